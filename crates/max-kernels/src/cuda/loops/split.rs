//! Splits few long rows into many shorter ones: a loop over parts of the rows, and one that combines their results in
//! order.

use max_core::kernel::{Access, Instr, Literal, Loop, Reduction, Reg};
use max_core::scalar::{CompareOp, LogicalOp, NumericOp};
use max_core::{DType, Result, ScalarOp};

use super::mapping::Scheme;
use super::nest::Nest;
use super::{Mapping, Scratch};
use crate::cuda::SCRATCH;
use crate::loops::{live, register};

/// A loop and the dtypes of its registers. Narrow floats are held as float32 anyway, so a sum of float32 partial
/// results may have a narrow dtype.
pub(super) type Typed = (Loop<i64>, Vec<DType>);

/// The shortest parts: along rows in elements, across them in steps.
const SHORTEST: [i64; 2] = [4096, 64];

/// Loops that do the same with more threads, if there are too few rows to keep them busy and there is only one pass.
pub(super) fn split(
    loop_: &Loop<i64>,
    dtypes: &[DType],
    nest: &Nest,
    mapping: &Mapping,
    multiprocessors: u32,
    scratch: Scratch<'_>,
) -> Result<Option<Vec<Typed>>> {
    let Some(axis) = loop_.reduce else { return Ok(None) };
    let once = (0..nest.code.len())
        .filter(|&at| matches!(nest.code[at], Instr::Store(..)))
        .all(|at| nest.stores_once(at));
    let blocks = mapping.items(nest) / mapping.items_of_block() as i64 + 1;
    let parts = i64::from(multiprocessors) * 4 / blocks;
    let across = matches!(mapping.scheme, Scheme::Across { .. });
    let shortest = SHORTEST[usize::from(across)];
    let length = nest.row_length();
    if !once || nest.last() != 1 || parts < 2 || length < 2 * shortest {
        return Ok(None);
    }
    let part = (length as u64).div_ceil(parts as u64).next_multiple_of(shortest as u64) as i64;
    let parts = length / part;
    let rest = length % part;
    let total = parts + i64::from(rest > 0);
    if total < 2 {
        return Ok(None);
    }
    let mut splitter = Splitter { loop_, dtypes, axis, total, across, partials: Vec::new() };
    splitter.reserve(scratch)?;
    let mut loops = vec![splitter.parts(0, parts, part)];
    if rest > 0 {
        loops.push(splitter.parts(parts, 1, rest));
    }
    loops.push(splitter.whole());
    if rest > 0 {
        // The remainder starts where whole parts end.
        let (tail, _) = &mut loops[1];
        for access in tail.accesses.iter_mut().take(loop_.accesses.len()) {
            let along = access.strides[tail.shape.len() - 1];
            access.offset += along * parts * part;
        }
    }
    Ok(Some(loops))
}

/// Where the partial results of a reduction are stored.
struct Partials {
    at: usize,
    kind: Reduction,
    arg: Reg,
    /// The values: their dtype and where they start.
    value: (DType, i64),
    /// Where the positions of the best elements start, if they are needed.
    index: i64,
}

struct Splitter<'a> {
    loop_: &'a Loop<i64>,
    dtypes: &'a [DType],
    axis: usize,
    total: i64,
    across: bool,
    partials: Vec<Partials>,
}

/// What finds the value of a best element.
fn bound(kind: Reduction) -> Reduction {
    if kind == Reduction::ArgMin { Reduction::Min } else { Reduction::Max }
}

impl Splitter<'_> {
    fn reserve(&mut self, scratch: Scratch<'_>) -> Result<()> {
        let rows = self.loop_.shape.iter().enumerate().filter(|(axis, _)| *axis != self.axis);
        let count = rows.fold(self.total, |product, (_, &size)| product.saturating_mul(size));
        let live = live(&self.loop_.code);
        for (at, instr) in self.loop_.code.iter().enumerate().filter(|(at, _)| live[*at]) {
            let Instr::Reduce(kind, arg) = *instr else { continue };
            let dtype = register(self.dtypes[arg.0 as usize]);
            let value = (dtype, scratch(dtype, count)?);
            let index = if kind.gives_index() { scratch(DType::Int64, count)? } else { 0 };
            self.partials.push(Partials { at, kind, arg, value, index });
        }
        Ok(())
    }

    /// An access to partial results over the axes of the loop, with the parts in place of the rows.
    fn partial(&self, dtype: DType, offset: i64) -> Access<i64> {
        let mut strides = vec![0; self.loop_.shape.len()];
        let mut step = if self.across { 1 } else { self.total };
        for axis in (0..strides.len()).rev().filter(|&axis| axis != self.axis) {
            strides[axis] = step;
            step *= self.loop_.shape[axis];
        }
        strides[self.axis] = if self.across { step } else { 1 };
        Access { slot: SCRATCH, dtype, offset, strides }
    }

    /// A loop over some parts of each row, whose last axis is reduced.
    fn parts(&self, first: i64, count: i64, length: i64) -> Typed {
        let mut loop_ = self.loop_.clone();
        let mut dtypes = self.dtypes.to_vec();
        loop_.shape[self.axis] = count;
        loop_.shape.push(length);
        loop_.reduce = Some(loop_.shape.len() - 1);
        for access in &mut loop_.accesses {
            let along = access.strides[self.axis];
            access.strides[self.axis] = along * length;
            access.strides.push(along);
        }
        for (instr, dtype) in loop_.code.iter_mut().zip(&mut dtypes) {
            if matches!(instr, Instr::Store(..)) {
                *instr = Instr::Literal(Literal { dtype: DType::Bool, bits: 0 });
                *dtype = DType::Bool;
            }
        }
        for place in &self.partials {
            let mut value = Reg(place.at as u32);
            let mut push = |instr: Instr<i64>, dtype: DType| {
                loop_.code.push(instr);
                dtypes.push(dtype);
                Reg(dtypes.len() as u32 - 1)
            };
            let at = |mut access: Access<i64>| {
                access.offset += first * access.strides[self.axis];
                access.strides.push(0);
                access
            };
            if place.kind.gives_index() {
                value = push(Instr::Reduce(bound(place.kind), place.arg), place.value.0);
                let mut starts = self.partial(DType::Int64, 0);
                let part = self.part_length(first, length);
                starts.strides.iter_mut().for_each(|stride| *stride = 0);
                starts.strides[self.axis] = part;
                let starts = Access { slot: max_core::kernel::Slot::NONE, ..at(starts) };
                loop_.accesses.push(starts);
                let start = push(Instr::Index(loop_.accesses.len() as u32 - 1), DType::Int64);
                let add = ScalarOp::from(NumericOp::Add);
                let index = push(Instr::Apply(add, [Reg(place.at as u32), start]), DType::Int64);
                loop_.accesses.push(at(self.partial(DType::Int64, place.index)));
                push(Instr::Store(loop_.accesses.len() as u32 - 1, index), DType::Int64);
            }
            loop_.accesses.push(at(self.partial(place.value.0, place.value.1)));
            push(Instr::Store(loop_.accesses.len() as u32 - 1, value), place.value.0);
        }
        (loop_, dtypes)
    }

    /// The length of a full part: those before part `first` are full, while the last, of `length`, may be shorter.
    fn part_length(&self, first: i64, length: i64) -> i64 {
        if first == 0 { length } else { (self.loop_.shape[self.axis] - length) / first }
    }

    /// The loop that combines the parts and does the rest of the work.
    fn whole(&self) -> Typed {
        let mut loop_ = self.loop_.clone();
        loop_.shape[self.axis] = self.total;
        loop_.accesses.iter_mut().for_each(|access| access.strides[self.axis] = 0);
        let (mut code, mut dtypes) = (Vec::new(), Vec::new());
        let mut moved: Vec<Reg> = Vec::with_capacity(self.loop_.code.len());
        for (at, instr) in self.loop_.code.iter().enumerate() {
            let mut push = |instr: Instr<i64>, dtype: DType| {
                code.push(instr);
                dtypes.push(dtype);
                Reg(dtypes.len() as u32 - 1)
            };
            let mut load = |dtype: DType, offset: i64| {
                loop_.accesses.push(self.partial(dtype, offset));
                Instr::Load(loop_.accesses.len() as u32 - 1)
            };
            let reg = match self.partials.iter().find(|place| place.at == at) {
                None => push(renamed(instr, &moved), self.dtypes[at]),
                Some(place) if place.kind.gives_index() => {
                    let value = push(load(place.value.0, place.value.1), place.value.0);
                    let index = push(load(DType::Int64, place.index), DType::Int64);
                    let best = push(Instr::Reduce(bound(place.kind), value), place.value.0);
                    let mut ask = |op: ScalarOp, args| push(Instr::Apply(op, args), DType::Bool);
                    let same = ask(CompareOp::Equal.into(), [value, best]);
                    let is_nan = ask(CompareOp::IsNan.into(), [value, value]);
                    let wins = ask(LogicalOp::LogicalOr.into(), [same, is_nan]);
                    let most = Literal { dtype: DType::Int64, bits: i64::MAX as u64 };
                    let none = push(Instr::Literal(most), DType::Int64);
                    let index = push(Instr::Select([wins, index, none]), DType::Int64);
                    push(Instr::Reduce(Reduction::Min, index), DType::Int64)
                }
                Some(place) => {
                    let value = push(load(place.value.0, place.value.1), place.value.0);
                    push(Instr::Reduce(place.kind, value), self.dtypes[at])
                }
            };
            moved.push(reg);
        }
        loop_.code = code;
        (loop_, dtypes)
    }
}

/// An instruction with its registers renumbered.
fn renamed(instr: &Instr<i64>, moved: &[Reg]) -> Instr<i64> {
    let mut instr = instr.clone();
    instr.args_mut().iter_mut().for_each(|reg| *reg = moved[reg.0 as usize]);
    instr
}
