//! The steps of a chain.
//!
//! A value is constant, per row or per iteration. The per-row code of a stage uses the reductions of earlier stages;
//! then its body runs once per iteration and feeds its own reductions. The current group of a chain holds one value:
//! other values are operands in memory, so a value that is used again later is stored when another one takes its place.
//! What a later stage needs is computed again, unless that costs more than storing it for the whole row.

use max_core::kernel::{Instr, Loop, Reduction, Reg};
use max_core::scalar::{NumericOp, RealOp};
use max_core::{DType, Element, ScalarOp, dispatch};

use super::{Place, Planned, Shape};
use crate::loops::plan::KEPT;
use crate::loops::space::{Space, identity, literal};
use crate::scratch::Line;
use crate::tile::{self, Act, Arg, BLOCK, Form, GROUP, RUN, Segment, levels, merged};

/// The maximum number of instructions: sets of them are bits of a word.
const MOST: usize = 64;
/// The maximum number of runs of a reduction, since each has its own steps.
const RUNS: usize = 32;
/// The bytes of a group.
pub(super) const BYTES: isize = (GROUP * size_of::<f32>()) as isize;

/// What a chain consists of.
pub(super) struct Built {
    pub(super) steps: Vec<Planned>,
    pub(super) segments: Vec<Segment>,
    pub(super) image: Vec<Line>,
    pub(super) bytes: usize,
}

/// How often a value changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rate {
    Constant,
    Row,
    Element,
}

/// Where a value can be loaded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    Nowhere,
    /// A group of constants.
    Image(isize),
    /// A group of scratch memory, for a row.
    Group(isize),
    /// The same for an iteration: as many groups as iterations run together.
    Local(isize),
    /// A group of scratch memory per iteration.
    Wide(isize),
    /// The user's memory.
    View(u32),
}

struct Builder<'a> {
    loop_: &'a Loop<i64>,
    space: &'a Space,
    shape: &'a Shape,
    /// The value that stands for each: casts that change nothing are their operands.
    same: [u8; MOST],
    rates: [Rate; MOST],
    /// The first stage in which a value is available.
    ready: [u8; MOST],
    locations: [Location; MOST],
    /// How often a value is used by what is not emitted yet.
    left: [u16; MOST],
    /// Per-row values that bodies use, and values that are stored for whole rows.
    lasting: u64,
    kept: u64,
    /// The accesses that are read along the iterations.
    streamed: u64,
    /// The last stage.
    last: usize,
    /// The value that the current group holds.
    current: Option<usize>,
    /// The scratch memory that is taken.
    top: usize,
    built: Built,
}

/// The steps of a loop, if a chain can run it.
pub(super) fn build(
    loop_: &Loop<i64>,
    dtypes: &[DType],
    live: &[bool],
    space: &Space,
    shape: &Shape,
) -> Option<Built> {
    let count = loop_.code.len();
    if count > MOST
        || space.views.len() > MOST
        || shape.iterations().div_ceil(RUN) > RUNS && loop_.reduce.is_some()
    {
        return None;
    }
    let mut builder = Builder {
        loop_,
        space,
        shape,
        same: std::array::from_fn(|at| at as u8),
        rates: [Rate::Constant; MOST],
        ready: [0; MOST],
        locations: [Location::Nowhere; MOST],
        left: [0; MOST],
        lasting: 0,
        kept: 0,
        streamed: 0,
        last: 0,
        current: None,
        top: 0,
        built: Built {
            steps: Vec::with_capacity(4 * count),
            segments: Vec::with_capacity(8),
            image: Vec::new(),
            bytes: 0,
        },
    };
    let live = live.iter().enumerate().fold(0, |set: u64, (at, live)| set | u64::from(*live) << at);
    builder.analyze(dtypes, live)?;
    builder.constants(dtypes, live)?;
    builder.stages(live)?;
    Some(builder.built)
}

/// The members of a set, in order.
fn members(mut set: u64) -> impl DoubleEndedIterator<Item = usize> {
    let mut list = [0u8; MOST];
    let mut count = 0;
    while set != 0 {
        list[count] = set.trailing_zeros() as u8;
        count += 1;
        set &= set - 1;
    }
    (0..count).map(move |at| list[at] as usize)
}

impl Builder<'_> {
    fn arg(&self, at: usize, place: usize) -> usize {
        let args = self.loop_.code[at].args();
        self.same[args[place.min(args.len() - 1)].0 as usize] as usize
    }

    /// Rates and stages, and whether a chain has a step for everything.
    fn analyze(&mut self, dtypes: &[DType], live: u64) -> Option<()> {
        let code = &self.loop_.code;
        let mut computes = false;
        for at in members(live) {
            let instr = &code[at];
            let known = instr.args().iter().map(|arg| arg.0 as usize);
            let mut rate = known.clone().map(|arg| self.rates[arg]).max().unwrap_or(Rate::Constant);
            let mut stage = known.map(|arg| self.ready[arg]).max().unwrap_or(0);
            let float = Form::of(dtypes[at]);
            match instr {
                Instr::Literal(_) | Instr::Size(..) => {}
                _ if rate == Rate::Constant
                    && matches!(instr, Instr::Apply(..) | Instr::Select(_) | Instr::Cast(..)) => {}
                Instr::Load(access) => {
                    float?;
                    let view = &self.space.views[*access as usize];
                    let moves = if self.shape.across { view.along } else { view.col };
                    let across = self.shape.across && ![0, 1].contains(&view.col);
                    if across || !self.shape.across && ![0, 1].contains(&moves) {
                        return None;
                    }
                    rate = if moves == 0 { Rate::Row } else { Rate::Element };
                    self.streamed |= u64::from(moves != 0) << access;
                }
                Instr::Apply(op, [a, _]) => {
                    float?;
                    computes = true;
                    Form::of(dtypes[a.0 as usize])?;
                    Act::unary(*op).or(Act::binary(*op, false, Form::Float))?;
                }
                Instr::Cast(arg, to) => {
                    Form::of(dtypes[arg.0 as usize])?;
                    let form = float?;
                    let stored = || {
                        members(live)
                            .filter(|&user| code[user].args().iter().any(|arg| arg.0 as usize == at))
                            .all(|user| matches!(code[user], Instr::Store(..)))
                    };
                    if *to == DType::Float32 || form != Form::Float && stored() {
                        self.same[at] = self.same[arg.0 as usize];
                    }
                    computes = true;
                }
                Instr::Reduce(kind, _) => {
                    float?;
                    Act::reduction(*kind)?;
                    computes = true;
                    rate = Rate::Row;
                    stage += 1;
                }
                Instr::Store(access, _) => {
                    float?;
                    let view = &self.space.views[*access as usize];
                    let along = if self.shape.across { view.along } else { view.col };
                    let row = rate != Rate::Element && self.loop_.reduce.is_some() && along == 0;
                    rate = if row { Rate::Row } else { Rate::Element };
                    if view.col != 1 && (self.shape.across || !row) {
                        return None;
                    }
                }
                _ => return None,
            }
            (self.rates[at], self.ready[at]) = (rate, stage);
        }
        computes.then_some(())
    }

    fn image(&mut self) -> (isize, *mut u8) {
        let start = self.built.image.len();
        self.built.image.resize(start + BYTES as usize / size_of::<Line>(), Line::ZERO);
        ((start * size_of::<Line>()) as isize, self.built.image[start..].as_mut_ptr().cast())
    }

    fn constants(&mut self, dtypes: &[DType], live: u64) -> Option<()> {
        // Constants of other dtypes are computed on the way, in groups of up to 8 bytes per element.
        let mut groups: Vec<(usize, [Line; 8])> = Vec::new();
        for at in members(live) {
            if self.rates[at] != Rate::Constant || matches!(self.loop_.code[at], Instr::Store(..)) {
                continue;
            }
            let mut group = [Line::ZERO; 8];
            let value = match &self.loop_.code[at] {
                Instr::Literal(literal) => Some(*literal),
                Instr::Size(size, dtype) => {
                    Some(dispatch!(*dtype, T => literal(T::from_i128(i128::from(*size)))))
                }
                _ => None,
            };
            if let Some(value) = value {
                // SAFETY: there is room for a group of any dtype.
                unsafe { tile::splat(value, group.as_mut_ptr().cast()) };
            } else {
                let dtype = |place: usize| dtypes[self.loop_.code[at].args()[place].0 as usize];
                let f = match &self.loop_.code[at] {
                    Instr::Apply(op, _) => tile::apply(*op, dtype(0)).ok()?,
                    Instr::Select(_) => tile::select(dtype(1)),
                    Instr::Cast(_, to) => tile::cast(dtype(0), *to),
                    _ => return None,
                };
                let list = self.loop_.code[at].args();
                let operands = [0, 1, 2].map(|place: usize| {
                    let arg = list[place.min(list.len() - 1)].0 as usize;
                    let found = groups.iter().find(|(known, _)| *known == arg);
                    Arg {
                        ptr: found.map_or(std::ptr::null(), |(_, group)| group.as_ptr().cast()),
                        repeat: true,
                    }
                });
                // SAFETY: as above; constants depend on constants only, and those come before them.
                unsafe { f(group.as_mut_ptr().cast(), operands, 1) };
            }
            if Form::of(dtypes[at]).is_some() {
                let (offset, to) = self.image();
                // SAFETY: the image has room for a group of f32.
                unsafe { to.copy_from_nonoverlapping(group.as_ptr().cast(), BYTES as usize) };
                self.locations[at] = Location::Image(offset);
            }
            groups.push((at, group));
        }
        Some(())
    }

    /// Room in scratch memory.
    fn scratch(&mut self, groups: usize) -> isize {
        let start = self.top;
        self.top += groups * BYTES as usize;
        self.built.bytes = self.built.bytes.max(self.top);
        start as isize
    }

    fn push(&mut self, act: Act, place: Place, offset: isize, stride: isize, column: isize) {
        self.built.steps.push(Planned { act, place, offset, stride, lane: stride, row: 0, column });
    }

    /// A step on a group of scratch memory or of constants.
    fn on_group(&mut self, act: Act, place: Place, offset: isize) {
        self.push(act, place, offset, 0, 0);
    }

    /// A step on a value of an iteration in scratch memory.
    fn on_local(&mut self, act: Act, offset: isize) {
        self.built.steps.push(Planned {
            act,
            place: Place::Scratch,
            offset,
            stride: 0,
            lane: BYTES,
            row: 0,
            column: 0,
        });
    }

    /// A step on the memory of a view, from an iteration on.
    fn on_view(&mut self, act: Act, view: u32, first: usize, whole: bool) {
        let seen = &self.space.views[view as usize];
        let size = seen.dtype.size_in_bytes() as isize;
        let stride = if self.shape.across { seen.along * size } else { seen.col * size * GROUP as isize };
        let column = if whole && !self.shape.across { seen.col * size } else { 0 };
        self.push(act, Place::View(view), first as isize * stride, stride, column);
    }

    fn end(&mut self, iterations: usize) {
        self.spill();
        self.current = None;
        let begin = self.built.segments.last().map_or(0, |segment| segment.end);
        let end = self.built.steps.len();
        if end == begin {
            return;
        }
        match self.built.segments.last_mut() {
            // Rows of one group have one segment.
            Some(segment) if self.shape.single || segment.iterations == 1 && iterations == 1 => {
                segment.end = end
            }
            _ => self.built.segments.push(Segment { end, iterations }),
        }
    }

    fn form(&self, view: u32) -> Form {
        Form::of(self.space.views[view as usize].dtype).unwrap_or(Form::Float)
    }

    /// Stores the current value if it is used again and is nowhere else.
    fn spill(&mut self) {
        let Some(value) = self.current else { return };
        let lasting = self.lasting >> value & 1 != 0;
        if self.locations[value] == Location::Nowhere && (self.left[value] > 0 || lasting) {
            let offset = self.scratch(BLOCK);
            let row = self.rates[value] != Rate::Element;
            if row {
                self.on_group(Act::Store, Place::Scratch, offset);
            } else {
                self.on_local(Act::Store, offset);
            }
            self.locations[value] = if row { Location::Group(offset) } else { Location::Local(offset) };
        }
    }

    /// Makes a value the current one.
    fn fetch(&mut self, value: usize, first: usize) -> Option<()> {
        if self.current == Some(value) {
            return Some(());
        }
        self.spill();
        self.current = Some(value);
        match self.locations[value] {
            Location::Image(offset) => self.on_group(Act::Load, Place::Image, offset),
            Location::Group(offset) => self.on_group(Act::Load, Place::Scratch, offset),
            Location::Local(offset) => self.on_local(Act::Load, offset),
            Location::Wide(offset) => {
                self.push(Act::Load, Place::Scratch, offset + first as isize * BYTES, BYTES, 0)
            }
            Location::View(view) => self.on_view(Act::load(self.form(view)), view, first, true),
            Location::Nowhere => return None,
        }
        Some(())
    }

    /// A step of the current value and an operand.
    fn operand(&mut self, act: impl Fn(Form) -> Option<Act>, value: usize, first: usize) -> Option<()> {
        match self.locations[value] {
            Location::Image(offset) => self.on_group(act(Form::Float)?, Place::Image, offset),
            Location::Group(offset) => self.on_group(act(Form::Float)?, Place::Scratch, offset),
            Location::Local(offset) => self.on_local(act(Form::Float)?, offset),
            Location::Wide(offset) => {
                self.push(act(Form::Float)?, Place::Scratch, offset + first as isize * BYTES, BYTES, 0)
            }
            Location::View(view) => self.on_view(act(self.form(view))?, view, first, true),
            Location::Nowhere => return None,
        }
        Some(())
    }

    /// The steps of an instruction that computes a value.
    fn compute(&mut self, at: usize, first: usize) -> Option<()> {
        if self.same[at] as usize != at {
            return Some(());
        }
        match &self.loop_.code[at] {
            Instr::Apply(op, _) if op.arity() == 1 => {
                let act = Act::unary(*op)?;
                self.alone(act, self.arg(at, 0), first)?;
            }
            Instr::Cast(_, to) => {
                Form::of(*to)?;
                self.alone(Act::Round, self.arg(at, 0), first)?;
            }
            Instr::Apply(op, _) => {
                let (a, b) = (self.arg(at, 0), self.arg(at, 1));
                if a == b && *op == ScalarOp::from(NumericOp::Mul) {
                    self.left[a] = self.left[a].saturating_sub(1);
                    self.alone(Act::Square, a, first)?;
                } else {
                    let reversed = self.current == Some(b) && a != b;
                    let (x, y) = if reversed { (b, a) } else { (a, b) };
                    self.fetch(x, first)?;
                    self.left[x] = self.left[x].saturating_sub(1);
                    self.spill();
                    self.operand(|form| Act::binary(*op, reversed, form), y, first)?;
                    self.left[y] = self.left[y].saturating_sub(1);
                }
            }
            _ => return None,
        }
        self.current = Some(at);
        Some(())
    }

    /// A step of one value.
    fn alone(&mut self, act: Act, value: usize, first: usize) -> Option<()> {
        self.fetch(value, first)?;
        self.left[value] = self.left[value].saturating_sub(1);
        self.spill();
        self.on_group(act, Place::Scratch, 0);
        Some(())
    }

    /// Whether computing a value again costs more than storing it.
    fn is_costly(&self, at: usize) -> bool {
        match &self.loop_.code[at] {
            Instr::Apply(ScalarOp::RealOp(op), _) => !matches!(op, RealOp::Div | RealOp::Sqrt),
            _ => false,
        }
    }

    /// What the body of each stage computes; values to keep are marked.
    fn demand(&mut self, live: u64, last: usize) -> [u64; MOST] {
        let keeps = self.shape.iterations() * BYTES as usize <= KEPT;
        let mut needed = [0u64; MOST];
        for stage in (0..=last).rev() {
            for at in members(live).rev() {
                let instr = &self.loop_.code[at];
                let root = match instr {
                    Instr::Reduce(..) => usize::from(self.ready[at]) == stage + 1,
                    Instr::Store(..) => stage == last && self.rates[at] == Rate::Element,
                    _ => false,
                };
                if root {
                    needed[stage] |= 1 << at;
                }
                if needed[stage] >> at & 1 == 0 {
                    continue;
                }
                let early = usize::from(self.ready[at]) < stage;
                if !root && keeps && early && self.is_costly(at) {
                    self.kept |= 1 << at;
                    needed[self.ready[at] as usize] |= 1 << at;
                    continue;
                }
                for arg in instr.args() {
                    let arg = self.same[arg.0 as usize] as usize;
                    if self.rates[arg] == Rate::Element {
                        needed[stage] |= 1 << arg;
                    }
                }
            }
        }
        needed
    }

    fn stages(&mut self, live: u64) -> Option<()> {
        let last = members(live).map(|at| usize::from(self.ready[at])).max().unwrap_or(0);
        if last >= MOST {
            return None;
        }
        let stores = members(live)
            .any(|at| matches!(self.loop_.code[at], Instr::Store(..)) && self.rates[at] == Rate::Element);
        // Across rows, one pass is faster in wider tiles.
        if self.shape.across && !stores {
            return None;
        }
        self.last = last;
        let needed = self.demand(live, last);
        // Per-row values that are used elsewhere than in per-row code are stored.
        for at in members(live) {
            let stores = matches!(self.loop_.code[at], Instr::Store(..));
            for arg in operands(&self.loop_.code[at]) {
                let arg = self.same[arg.0 as usize] as usize;
                if self.rates[arg] != Rate::Row {
                    continue;
                }
                if self.rates[at] != Rate::Row || stores || matches!(self.loop_.code[at], Instr::Reduce(..)) {
                    self.lasting |= 1 << arg;
                } else {
                    self.left[arg] += 1;
                }
            }
        }
        for at in members(self.kept) {
            let offset = self.scratch(if self.shape.single { BLOCK } else { self.shape.iterations() });
            self.locations[at] = Location::Wide(offset);
        }
        let runs = self.shape.iterations().div_ceil(RUN);
        for (stage, &needed) in needed[..=last].iter().enumerate() {
            self.row_code(live, stage)?;
            let reductions = members(needed)
                .filter(|&at| matches!(self.loop_.code[at], Instr::Reduce(..)))
                .fold(0u64, |set, at| set | 1 << at);
            if needed == 0 {
                continue;
            }
            let mut totals = [0isize; MOST];
            for at in members(reductions) {
                totals[at] = self.scratch(if self.shape.single { BLOCK } else { levels(runs) });
            }
            if reductions == 0 {
                if self.shape.whole > 0 {
                    self.body(stage, needed, &totals, 0, 0, self.shape.whole)?;
                }
                if self.shape.rest > 0 {
                    self.body(stage, needed, &totals, 0, self.shape.whole, 0)?;
                }
                continue;
            }
            for run in 0..runs {
                let level = run.count_ones() as usize;
                for at in members(reductions) {
                    let Instr::Reduce(kind, _) = self.loop_.code[at] else { return None };
                    let offset = self.identity(kind);
                    self.on_group(Act::Load, Place::Image, offset);
                    self.on_group(Act::Store, Place::Scratch, totals[at] + level as isize * BYTES);
                    self.current = None;
                }
                self.end(1);
                let whole = (run * RUN).min(self.shape.whole)..((run + 1) * RUN).min(self.shape.whole);
                if !whole.is_empty() {
                    self.body(stage, needed, &totals, level, whole.start, whole.len())?;
                }
                if run + 1 == runs && self.shape.rest > 0 {
                    self.body(stage, needed, &totals, level, self.shape.whole, 0)?;
                }
                for level in merged(run, runs) {
                    for at in members(reductions) {
                        let Instr::Reduce(kind, _) = self.loop_.code[at] else { return None };
                        let [below, above] =
                            [level - 1, level].map(|level| totals[at] + level as isize * BYTES);
                        self.on_group(Act::Load, Place::Scratch, below);
                        self.on_group(
                            Act::binary(combining(kind), false, Form::Float)?,
                            Place::Scratch,
                            above,
                        );
                        self.on_group(Act::Store, Place::Scratch, below);
                    }
                }
                self.end(1);
            }
            for at in members(reductions) {
                let Instr::Reduce(kind, _) = self.loop_.code[at] else { return None };
                if self.shape.across {
                    self.locations[at] = Location::Group(totals[at]);
                } else {
                    self.spill();
                    self.on_group(Act::reduction(kind)?[2], Place::Scratch, totals[at]);
                    self.current = Some(at);
                }
            }
        }
        self.end(1);
        for at in members(live).filter(|&at| matches!(self.loop_.code[at], Instr::Store(..))) {
            let Instr::Store(access, _) = self.loop_.code[at] else { return None };
            if self.rates[at] != Rate::Row {
                continue;
            }
            self.fetch(self.arg(at, 0), 0)?;
            let form = self.form(access);
            let act = if self.shape.across { Act::store(form) } else { Act::store_one(form) };
            self.on_view(act, access, 0, false);
        }
        self.end(1);
        Some(())
    }

    /// Prefetches what the first pass over the next row reads, in the last pass over this one.
    fn ask(&mut self, first: usize) {
        for access in 0..self.space.views.len() {
            let view = &self.space.views[access];
            let row = view.outer.last().copied().unwrap_or(0);
            if self.streamed >> access & 1 != 0 && row != 0 {
                self.on_view(Act::ask(self.form(access as u32)), access as u32, first, true);
                let size = view.dtype.size_in_bytes() as isize;
                if let Some(step) = self.built.steps.last_mut() {
                    step.offset += row * size;
                }
            }
        }
    }

    /// A group of the identity of a reduction.
    fn identity(&mut self, kind: Reduction) -> isize {
        let (offset, to) = self.image();
        // SAFETY: the image has room for a group of f32.
        unsafe { tile::splat(identity(kind, DType::Float32), to) };
        offset
    }

    /// The per-row values that are available from a stage on.
    fn row_code(&mut self, live: u64, stage: usize) -> Option<()> {
        for at in members(live) {
            let instr = &self.loop_.code[at];
            let other = matches!(instr, Instr::Reduce(..) | Instr::Store(..));
            if other || self.rates[at] != Rate::Row || usize::from(self.ready[at]) != stage {
                continue;
            }
            if let Instr::Load(access) = *instr {
                self.spill();
                let form = self.form(access);
                let repeats = self.space.views[access as usize].col == 0;
                self.on_view(if repeats { Act::splat(form) } else { Act::load(form) }, access, 0, false);
                self.current = Some(at);
            } else {
                self.compute(at, 0)?;
            }
        }
        self.end(1);
        Some(())
    }

    /// The body of a stage for some iterations, or for the one that is not whole.
    #[allow(clippy::too_many_arguments, reason = "all of them vary")]
    fn body(
        &mut self,
        stage: usize,
        needed: u64,
        totals: &[isize; MOST],
        level: usize,
        first: usize,
        count: usize,
    ) -> Option<()> {
        let code = &self.loop_.code;
        let part = count == 0;
        let again = |at: usize| self.kept >> at & 1 != 0 && usize::from(self.ready[at]) < stage;
        let top = self.top;
        let stored = members(needed).filter(|&at| matches!(code[at], Instr::Store(..))).count();
        // How often each value is used here.
        let mut uses = [0u16; MOST];
        for at in members(needed).filter(|&at| !again(at)) {
            for arg in operands(&code[at]) {
                uses[self.same[arg.0 as usize] as usize] += 1;
            }
        }
        for at in members(needed) {
            if self.rates[at] == Rate::Element {
                self.left[at] = uses[at];
                if self.kept >> at & 1 == 0 {
                    self.locations[at] = Location::Nowhere;
                }
            }
        }
        self.current = None;
        if !part && stage > 0 && stage == self.last && !self.shape.across && !self.shape.single {
            self.ask(first);
        }
        for at in members(needed) {
            let Instr::Load(access) = code[at] else { continue };
            let form = self.form(access);
            let view = &self.space.views[access as usize];
            let repeats = self.shape.across && view.col == 0;
            // What is read in place could be overwritten by another store.
            if part || repeats || stored > 1 {
                let act = if part {
                    Act::load_part(form)
                } else if repeats {
                    Act::splat(form)
                } else {
                    Act::load(form)
                };
                self.on_view(act, access, first, !part);
                let offset = self.scratch(BLOCK);
                self.on_local(Act::Store, offset);
                self.locations[at] = Location::Local(offset);
            } else {
                self.locations[at] = Location::View(access);
            }
        }
        for at in members(needed) {
            match &code[at] {
                Instr::Load(_) | Instr::Store(..) => {}
                Instr::Reduce(kind, _) => {
                    let arg = self.arg(at, 0);
                    self.fetch(arg, first)?;
                    self.left[arg] = self.left[arg].saturating_sub(1);
                    let [whole, rest, _] = Act::reduction(*kind)?;
                    let act = if part { rest } else { whole };
                    self.on_group(act, Place::Scratch, totals[at] + level as isize * BYTES);
                }
                _ if self.kept >> at & 1 != 0 && usize::from(self.ready[at]) < stage => {}
                _ => {
                    self.compute(at, first)?;
                    if let (Location::Wide(offset), true) = (self.locations[at], self.same[at] as usize == at)
                    {
                        self.push(Act::Store, Place::Scratch, offset + first as isize * BYTES, BYTES, 0);
                    }
                }
            }
        }
        for at in members(needed) {
            let Instr::Store(access, _) = code[at] else { continue };
            let arg = self.arg(at, 0);
            self.fetch(arg, first)?;
            self.left[arg] = self.left[arg].saturating_sub(1);
            let form = self.form(access);
            let act = if part { Act::store_part(form) } else { Act::store(form) };
            self.on_view(act, access, first, !part);
        }
        self.end(if part { 1 } else { count });
        self.top = top;
        Some(())
    }
}

/// The operands of an instruction, each as often as it is used.
fn operands(instr: &Instr<i64>) -> &[Reg] {
    match instr {
        Instr::Apply(op, args) => &args[..op.arity()],
        other => other.args(),
    }
}

fn combining(kind: Reduction) -> ScalarOp {
    match kind {
        Reduction::Prod => NumericOp::Mul.into(),
        Reduction::Max => NumericOp::Max.into(),
        Reduction::Min => NumericOp::Min.into(),
        _ => NumericOp::Add.into(),
    }
}
