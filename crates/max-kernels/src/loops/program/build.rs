//! Generates the program of a loop: which stage computes what, and where values are stored.

use max_core::kernel::{Instr, Level, Loop, Reduction, Reg};
use max_core::scalar::NumericOp;
use max_core::{DType, Element, Result, dispatch};

use super::{Accumulator, Choices, Entry, Kind, Op, Placement, Program, REGIONS, Region, Stage};
use crate::loops::best::best;
use crate::loops::space::{identity, literal, register};
use crate::scratch::Line;
use crate::tile::{self, Arg, TileFn};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rate {
    Constant,
    Row,
    Element,
}

struct Builder<'a> {
    loop_: &'a Loop<i64>,
    dtypes: &'a [DType],
    live: &'a [bool],
    choices: Choices,
    rates: Vec<Rate>,
    /// The first stage in which a value is available.
    ready: Vec<usize>,
    /// The places of constants, per-row values and kept values, and of the other values of each stage.
    entries: Vec<Entry>,
    kept: Vec<bool>,
    /// Free places of `Tile` and `Home` by size.
    free: Vec<(Region, usize, usize)>,
    program: Program,
}

/// Generates the program of a loop.
pub(in crate::loops) fn build(
    loop_: &Loop<i64>,
    dtypes: &[DType],
    live: &[bool],
    choices: Choices,
) -> Result<Program> {
    let mut builder = Builder {
        loop_,
        dtypes,
        live,
        choices,
        rates: rates(loop_),
        ready: ready(loop_),
        entries: vec![0; loop_.code.len()],
        kept: vec![false; loop_.code.len()],
        free: Vec::new(),
        program: Program {
            image: Vec::new(),
            placements: Vec::new(),
            stages: Vec::new(),
            tail: Vec::new(),
            widths: [0; REGIONS],
            live: 0,
            computes: false,
        },
    };
    builder.constants()?;
    builder.stages()?;
    Ok(builder.program)
}

fn rates(loop_: &Loop<i64>) -> Vec<Rate> {
    let levels = loop_.levels(|stride| *stride == 0);
    let mut rates: Vec<Rate> = Vec::with_capacity(levels.len());
    for (instr, level) in loop_.code.iter().zip(levels) {
        let rate = match instr {
            Instr::Literal(_) | Instr::Size(..) => Rate::Constant,
            Instr::Apply(..) | Instr::Select(_) | Instr::Cast(..) | Instr::Random(..) => {
                instr.args().iter().map(|arg| rates[arg.0 as usize]).max().unwrap_or(Rate::Constant)
            }
            // A per-row value is stored once per element where the access says so.
            Instr::Store(access, _) => match loop_.reduce {
                Some(axis) if level == Level::Row && loop_.accesses[*access as usize].strides[axis] == 0 => {
                    Rate::Row
                }
                _ => Rate::Element,
            },
            _ if level == Level::Row => Rate::Row,
            _ => Rate::Element,
        };
        rates.push(rate);
    }
    rates
}

fn ready(loop_: &Loop<i64>) -> Vec<usize> {
    let mut ready: Vec<usize> = Vec::with_capacity(loop_.code.len());
    for instr in &loop_.code {
        let stage = instr.args().iter().map(|arg| ready[arg.0 as usize]).max().unwrap_or(0);
        ready.push(stage + usize::from(matches!(instr, Instr::Reduce(..))));
    }
    ready
}

fn combining(kind: Reduction) -> NumericOp {
    match kind {
        Reduction::Prod => NumericOp::Mul,
        Reduction::Max => NumericOp::Max,
        Reduction::Min => NumericOp::Min,
        _ => NumericOp::Add,
    }
}

fn copy(dtype: DType) -> TileFn {
    tile::cast(register(dtype), register(dtype))
}

impl Builder<'_> {
    fn size(&self, at: usize) -> usize {
        tile::register_size(self.dtypes[at])
    }

    fn entry(&mut self, region: Region, start: usize) -> Entry {
        self.program.placements.push(Placement { region, start });
        (self.program.placements.len() - 1) as Entry
    }

    /// A new place in a region.
    fn grow(&mut self, region: Region, size: usize) -> Entry {
        let start = self.program.widths[region as usize];
        self.program.widths[region as usize] += size;
        self.entry(region, start)
    }

    /// A new constant, and the address of its group.
    fn constant(&mut self, size: usize) -> (Entry, *mut u8) {
        let entry = self.grow(Region::Image, size);
        self.program.image.resize(self.program.widths[Region::Image as usize], Line::ZERO);
        (entry, self.address(entry))
    }

    fn address(&mut self, constant: Entry) -> *mut u8 {
        let start = self.program.placements[constant as usize].start;
        self.program.image[start..].as_mut_ptr().cast()
    }

    /// The function on tiles for an instruction.
    fn function(&self, at: usize) -> Result<Option<TileFn>> {
        let dtype = |reg: &Reg| self.dtypes[reg.0 as usize];
        Ok(match &self.loop_.code[at] {
            Instr::Apply(op, [a, _]) => Some(tile::apply(*op, dtype(a))?),
            Instr::Select([_, a, _]) => Some(tile::select(dtype(a))),
            Instr::Cast(arg, to) => Some(tile::cast(dtype(arg), *to)),
            Instr::Random(distribution, dtype, _) => Some(tile::random(*distribution, *dtype)?),
            _ => None,
        })
    }

    fn arg_entries(&self, at: usize) -> [Entry; 3] {
        let mut entries = [0; 3];
        let args = self.loop_.code[at].args();
        for (place, entry) in entries.iter_mut().enumerate() {
            *entry = args.get(place).or(args.first()).map_or(0, |arg| self.entries[arg.0 as usize]);
        }
        entries
    }

    fn constants(&mut self) -> Result<()> {
        for at in 0..self.loop_.code.len() {
            if !self.live[at] || self.rates[at] != Rate::Constant {
                continue;
            }
            let (entry, address) = self.constant(self.size(at));
            let value = match &self.loop_.code[at] {
                Instr::Literal(literal) => Some(*literal),
                Instr::Size(size, dtype) => {
                    Some(dispatch!(*dtype, T => literal(T::from_i128(i128::from(*size)))))
                }
                _ => None,
            };
            if let Some(value) = value {
                // SAFETY: the address is that of a group of the image.
                unsafe { tile::splat(value, address) };
            } else if let Some(f) = self.function(at)? {
                let args = self
                    .arg_entries(at)
                    .map(|entry| Arg { ptr: self.address(entry).cast_const(), repeat: true });
                // SAFETY: as above; the arguments are groups of the image too.
                unsafe { f(address, args, 1) };
            }
            self.entries[at] = entry;
        }
        Ok(())
    }

    fn stages(&mut self) -> Result<()> {
        let last = (0..self.loop_.code.len())
            .filter(|&at| self.live[at])
            .map(|at| self.ready[at])
            .max()
            .unwrap_or(0);
        let mut needed = vec![vec![false; self.loop_.code.len()]; last + 1];
        for stage in (0..=last).rev() {
            self.demand(stage, last, &mut needed);
        }
        for (stage, needed) in needed.iter().enumerate() {
            let row = self.row_code(stage)?;
            let mut made = self.element_code(stage, needed, stage == last)?;
            made.row = row;
            self.program.stages.push(made);
        }
        self.program.tail = self.stores(Rate::Row);
        Ok(())
    }

    /// Marks what the pass of a stage computes, and what earlier stages must keep for it.
    fn demand(&mut self, stage: usize, last: usize, needed: &mut [Vec<bool>]) {
        for at in (0..self.loop_.code.len()).rev() {
            let instr = &self.loop_.code[at];
            let root = match instr {
                _ if !self.live[at] => continue,
                Instr::Reduce(..) => self.ready[at] == stage + 1,
                Instr::Store(..) => stage == last && self.rates[at] == Rate::Element,
                _ => false,
            };
            needed[stage][at] |= root;
            if !needed[stage][at] {
                continue;
            }
            let loads = matches!(instr, Instr::Load(_) | Instr::Index(_) | Instr::Product(_));
            if !root && self.choices.keep && !loads && self.ready[at] < stage {
                self.kept[at] = true;
                needed[self.ready[at]][at] = true;
                continue;
            }
            for arg in instr.args() {
                let arg = arg.0 as usize;
                needed[stage][arg] |= self.rates[arg] == Rate::Element;
            }
        }
    }

    /// The per-row values that are available from a stage on.
    fn row_code(&mut self, stage: usize) -> Result<Vec<Op>> {
        let mut ops = Vec::new();
        for at in 0..self.loop_.code.len() {
            let instr = &self.loop_.code[at];
            let other = matches!(instr, Instr::Reduce(..) | Instr::Store(..));
            if other || !self.live[at] || self.rates[at] != Rate::Row || self.ready[at] != stage {
                continue;
            }
            let dst = self.grow(Region::Row, self.size(at));
            if let Some(f) = self.function(at)? {
                ops.push(Op::Apply { f, dst, args: self.arg_entries(at) });
            } else {
                ops.push(self.load(at, dst, true));
            }
            self.entries[at] = dst;
        }
        Ok(ops)
    }

    /// The pass of a stage.
    fn element_code(&mut self, number: usize, needed: &[bool], last: bool) -> Result<Stage> {
        let mut stage = Stage::default();
        let code = &self.loop_.code;
        let here: Vec<usize> = (0..code.len()).filter(|&at| needed[at]).collect();
        let again = |kept: &[bool], ready: &[usize], at: usize| kept[at] && ready[at] < number;
        // Where each value is used last; stores come after everything.
        let mut last_use = vec![0; code.len()];
        let mut padded = vec![false; code.len()];
        let several = self.stores_several();
        for &at in here.iter().filter(|&&at| !again(&self.kept, &self.ready, at)) {
            let (store, reduce) =
                (matches!(code[at], Instr::Store(..)), matches!(code[at], Instr::Reduce(..)));
            for arg in code[at].args() {
                let arg = arg.0 as usize;
                last_use[arg] = last_use[arg].max(if store { code.len() } else { at });
                // Stores and reductions along the row take exactly the elements there are; everything else, including
                // the copies before several stores, takes whole groups.
                padded[arg] |= !(store && !several || reduce && self.choices.horizontal);
            }
        }
        self.free.clear();
        let (tiles, homes) = (self.taken(Region::Tile), self.taken(Region::Home));
        self.free.extend(tiles.into_iter().chain(homes));
        let mut in_use = 0;
        for at in here {
            let size = self.size(at);
            match &code[at] {
                Instr::Store(..) => continue,
                Instr::Reduce(kind, arg) => {
                    self.accumulate(*kind, at, arg.0 as usize, &mut stage)?;
                    in_use -= self.release(at, &last_use);
                }
                _ if again(&self.kept, &self.ready, at) => {
                    stage.element.push(Op::Seat { entry: self.entries[at], size: size as u32 });
                }
                _ if self.kept[at] => {
                    let dst = self.grow(Region::Wide, size);
                    stage.element.push(Op::Seat { entry: dst, size: size as u32 });
                    if let Some(f) = self.function(at)? {
                        stage.element.push(Op::Apply { f, dst, args: self.arg_entries(at) });
                    }
                    self.entries[at] = dst;
                    in_use -= self.release(at, &last_use);
                }
                _ => {
                    let f = self.function(at)?;
                    let args = self.arg_entries(at);
                    if f.is_some() {
                        in_use -= self.release(at, &last_use);
                    }
                    let dtype = self.dtypes[at];
                    let lies = !matches!(code[at], Instr::Index(_));
                    let direct = f.is_none() && lies && tile::direct(self.in_memory(at, dtype));
                    let region = if direct { Region::Home } else { Region::Tile };
                    let dst = self.allocate(region, size);
                    in_use += if direct { 0 } else { size };
                    self.entries[at] = dst;
                    stage.element.push(match f {
                        Some(f) => Op::Apply { f, dst, args },
                        None => self.load(at, dst, padded[at]),
                    });
                }
            }
            self.program.live = self.program.live.max(in_use);
        }
        if last {
            let stores = self.stores(Rate::Element);
            stage.element.extend(stores);
        }
        self.program.computes |=
            stage.element.iter().any(|op| !matches!(op, Op::Load { .. } | Op::Store { .. }));
        Ok(stage)
    }

    /// The entries of a region that belong to earlier stages.
    fn taken(&self, region: Region) -> Vec<(Region, usize, usize)> {
        let mut starts: Vec<usize> = self
            .program
            .placements
            .iter()
            .filter(|place| place.region == region)
            .map(|place| place.start)
            .collect();
        starts.sort_unstable();
        starts.dedup();
        let ends = starts.iter().skip(1).copied().chain([self.program.widths[region as usize]]);
        starts.iter().zip(ends).map(|(&start, end)| (region, end - start, start)).collect()
    }

    fn allocate(&mut self, region: Region, size: usize) -> Entry {
        match self.free.iter().position(|(r, s, _)| *r == region && *s == size) {
            Some(at) => {
                let (_, _, start) = self.free.swap_remove(at);
                self.entry(region, start)
            }
            None => self.grow(region, size),
        }
    }

    /// Frees the places of arguments whose last use is this instruction; returns the tiles' bytes per element.
    fn release(&mut self, at: usize, last_use: &[usize]) -> usize {
        let mut bytes = 0;
        for arg in self.loop_.code[at].args() {
            let arg = arg.0 as usize;
            if last_use[arg] != at {
                continue;
            }
            let place = self.program.placements[self.entries[arg] as usize];
            let freed = (place.region, self.size(arg), place.start);
            if matches!(place.region, Region::Tile | Region::Home) && !self.free.contains(&freed) {
                self.free.push(freed);
                bytes += if place.region == Region::Tile { freed.1 } else { 0 };
            }
        }
        bytes
    }

    /// The dtype of a load's elements in memory.
    fn in_memory(&self, at: usize, dtype: DType) -> DType {
        if matches!(self.loop_.code[at], Instr::Product(_)) { register(dtype) } else { dtype }
    }

    fn load(&self, at: usize, dst: Entry, padded: bool) -> Op {
        // What a kernel passes to its epilogue comes after the accesses of the loop.
        let view = match self.loop_.code[at] {
            Instr::Index(view) => return Op::Index { f: tile::index(), dst, view },
            Instr::Load(access) => access,
            _ => self.loop_.accesses.len() as u32,
        };
        let dtype = self.in_memory(at, self.dtypes[at]);
        Op::Load {
            f: tile::load(dtype),
            dst,
            view,
            size: self.size(at) as u32,
            direct: tile::direct(dtype),
            padded,
        }
    }

    /// Whether there is more than one store, so that what is read in place is copied before any of them.
    fn stores_several(&self) -> bool {
        self.loop_.stored().count() > 1
    }

    fn stores(&mut self, rate: Rate) -> Vec<Op> {
        let stores: Vec<(u32, usize)> = (0..self.loop_.code.len())
            .filter_map(|at| match self.loop_.code[at] {
                Instr::Store(access, arg) if self.rates[at] == rate => Some((access, arg.0 as usize)),
                _ => None,
            })
            .collect();
        let several = self.stores_several();
        let mut ops = Vec::new();
        let mut sources = Vec::new();
        for &(_, arg) in &stores {
            let loads = matches!(self.loop_.code[arg], Instr::Load(_) | Instr::Product(_));
            let mut src = self.entries[arg];
            // What is read in place could be overwritten by another store.
            if several && loads {
                let dtype = self.dtypes[arg];
                let region = if rate == Rate::Row { Region::Row } else { Region::Tile };
                let dst = self.grow(region, self.size(arg));
                ops.push(Op::Apply { f: copy(dtype), dst, args: [src; 3] });
                src = dst;
            }
            sources.push(src);
        }
        for ((access, arg), src) in stores.into_iter().zip(sources) {
            let dtype = self.dtypes[arg];
            let f = tile::store(dtype, self.choices.streaming);
            let direct = tile::direct(dtype);
            ops.push(Op::Store { f, src, view: access, size: self.size(arg) as u32, direct });
        }
        ops
    }

    fn accumulate(&mut self, kind: Reduction, at: usize, arg: usize, stage: &mut Stage) -> Result<()> {
        let dtype = register(self.dtypes[arg]);
        let src = self.entries[arg];
        let size = tile::register_size(dtype);
        let values = self.grow(Region::Total, size);
        let kind = if kind.gives_index() {
            let indices = self.grow(Region::Total, size_of::<i64>());
            let best = best(kind, dtype);
            let entries = [values, indices];
            stage.element.push(Op::Offer { best, acc: entries, src });
            self.entries[at] = indices;
            stage.accumulators.push(Accumulator { entries, kind: Kind::Best(best) });
            return Ok(());
        } else if self.choices.horizontal {
            let reducer = tile::reducer(kind, dtype)?;
            stage.element.push(Op::Add { f: reducer.add, acc: values, src });
            Kind::Lanes { reducer, combine: tile::apply(combining(kind).into(), dtype)? }
        } else {
            let combine = tile::apply(combining(kind).into(), dtype)?;
            stage.element.push(Op::Apply { f: combine, dst: values, args: [values, src, src] });
            let (entry, address) = self.constant(size);
            // SAFETY: the address is that of a group of the image.
            unsafe { tile::splat(identity(kind, dtype), address) };
            Kind::Tile { identity: entry, copy: copy(dtype), combine }
        };
        self.entries[at] = values;
        stage.accumulators.push(Accumulator { entries: [values; 2], kind });
        Ok(())
    }
}
