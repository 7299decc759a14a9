//! Pseudo-random loops, the same in every run, with their memory.

use max_core::kernel::{Access, Instr, Level, Literal, Loop, Reduction, Reg, Slot};
use max_core::scalar::{CompareOp, NumericOp};
use max_core::{DType, Distribution, Element, ScalarOp, dispatch};

/// Pseudo-random numbers, the same in every run.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % sides.max(1)
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len())]
    }
}

/// Elements that add and multiply exactly.
pub(crate) fn elements(dice: &mut Dice, dtype: DType, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        let value = dice.pick(&[-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0]);
        dispatch!(dtype, T => bytes.extend_from_slice(bytemuck::bytes_of(&T::from_double(value))));
    }
    bytes
}

/// An access that names each element at most once if it is written, with the number of elements it spans.
fn random_access(dice: &mut Dice, shape: &[i64], written: bool, flat: Option<usize>) -> (Access<i64>, usize) {
    let mut order: Vec<usize> = (0..shape.len()).collect();
    if dice.roll(3) == 0 {
        order.rotate_left(dice.roll(shape.len()));
    }
    if dice.roll(4) == 0 {
        order.reverse();
    }
    let (mut strides, mut offset, mut step) = (vec![0; shape.len()], 0, 1);
    if dice.roll(6) == 0 {
        step = 2;
    }
    for &axis in order.iter().rev() {
        let size = shape[axis].max(1);
        if Some(axis) == flat || (!written && dice.roll(6) == 0) {
            continue;
        }
        strides[axis] = step;
        if dice.roll(8) == 0 {
            strides[axis] = -step;
            offset += step * (size - 1);
        }
        step *= size;
        step += if dice.roll(6) == 0 { 3 } else { 0 };
    }
    let reach: i64 = strides.iter().zip(shape).map(|(s, n)| s.abs() * (n.max(&1) - 1)).sum();
    offset += dice.roll(3) as i64;
    let access = Access { slot: Slot(0), dtype: DType::Bool, offset, strides };
    (access, (offset + reach + 1) as usize)
}

struct Maker {
    dice: Dice,
    loop_: Loop<i64>,
    dtypes: Vec<DType>,
    memory: Vec<Vec<u8>>,
}

impl Maker {
    fn push(&mut self, instr: Instr<i64>, dtype: DType) -> Reg {
        self.loop_.code.push(instr);
        self.dtypes.push(dtype);
        Reg(self.dtypes.len() as u32 - 1)
    }

    /// A register of a dtype.
    fn any(&mut self, dtype: DType) -> Reg {
        let stores = |at: &usize| !matches!(self.loop_.code[*at], Instr::Store(..));
        let fits: Vec<usize> =
            (0..self.dtypes.len()).filter(stores).filter(|at| self.dtypes[*at] == dtype).collect();
        if !fits.is_empty() && self.dice.roll(5) > 0 {
            let recent = fits.len().min(4);
            return Reg(fits[fits.len() - 1 - self.dice.roll(recent)] as u32);
        }
        match self.dice.roll(6) {
            0 => {
                let mut one = [0; 8];
                dispatch!(dtype, T => one[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&T::from_double(1.0))));
                let one = u64::from_le_bytes(one);
                self.push(Instr::Literal(Literal { dtype, bits: one }), dtype)
            }
            1 if !dtype.is_small_float() => self.push(Instr::Size(3, dtype), dtype),
            3 | 4 if dtype == DType::Int64 => self.index(),
            3 if matches!(dtype, DType::Float32 | DType::Float64) => {
                let (seed, place) = (self.any(DType::Int64), self.index());
                self.push(Instr::Random(Distribution::Uniform, dtype, [seed, place]), dtype)
            }
            2 if !fits.is_empty() => {
                let from = Reg(self.dice.pick(&fits) as u32);
                self.push(Instr::Cast(from, dtype), dtype)
            }
            _ => {
                let (mut access, len) = random_access(&mut self.dice, &self.loop_.shape.clone(), false, None);
                (access.slot, access.dtype) = (Slot(self.memory.len() as u32), dtype);
                self.loop_.accesses.push(access);
                let memory = elements(&mut self.dice, dtype, len);
                self.memory.push(memory);
                self.push(Instr::Load(self.loop_.accesses.len() as u32 - 1), dtype)
            }
        }
    }

    /// Positions with some strides.
    fn index(&mut self) -> Reg {
        let (access, _) = random_access(&mut self.dice, &self.loop_.shape.clone(), false, None);
        self.loop_.accesses.push(Access { slot: Slot::NONE, dtype: DType::Int64, ..access });
        self.push(Instr::Index(self.loop_.accesses.len() as u32 - 1), DType::Int64)
    }

    fn compute(&mut self, dtype: DType) {
        let [a, b] = [self.any(dtype), self.any(dtype)];
        match self.dice.roll(8) {
            0 | 1 if self.loop_.reduce.is_some() => {
                use Reduction::{ArgMax, ArgMin, Max, Min, Sum};
                let kind = self.dice.pick(&[Sum, Sum, Max, Min, ArgMax, ArgMin]);
                let result = if kind.gives_index() { DType::Int64 } else { dtype };
                self.push(Instr::Reduce(kind, a), result);
            }
            2 => {
                let op = ScalarOp::from(self.dice.pick(&[CompareOp::Equal, CompareOp::Greater]));
                let mask = self.push(Instr::Apply(op, [a, b]), DType::Bool);
                self.push(Instr::Select([mask, a, b]), dtype);
            }
            3 => {
                self.push(Instr::Apply(NumericOp::Negate.into(), [a, a]), dtype);
            }
            _ => {
                use NumericOp::{Add, Max, Min, Mul, Sub};
                let op = self.dice.pick(&[Add, Sub, Mul, Max, Min]);
                self.push(Instr::Apply(op.into(), [a, b]), dtype);
            }
        }
    }

    /// Writes a register to new memory, or over what it was loaded from.
    fn store(&mut self) {
        let values: Vec<usize> =
            (0..self.dtypes.len()).filter(|&at| !matches!(self.loop_.code[at], Instr::Store(..))).collect();
        let recent = values.len().min(5);
        let value = values[values.len() - 1 - self.dice.roll(recent)];
        let dtype = self.dtypes[value];
        let level = self.loop_.levels(|stride| *stride == 0)[value];
        let flat = self.loop_.reduce.filter(|_| level == Level::Row && self.dice.roll(3) > 0);
        let (mut access, len) = random_access(&mut self.dice, &self.loop_.shape.clone(), true, flat);
        (access.slot, access.dtype) = (Slot(self.memory.len() as u32), dtype);
        self.loop_.accesses.push(access);
        self.memory.push(vec![0; len * dtype.size_in_bytes()]);
        self.push(Instr::Store(self.loop_.accesses.len() as u32 - 1, Reg(value as u32)), dtype);
    }
}

/// The loop of a seed, and its memory.
pub(crate) fn random_loop(seed: u64) -> (Loop<i64>, Vec<Vec<u8>>) {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    (0..8).for_each(|_| _ = dice.roll(2));
    let rank = dice.roll(5);
    let most = [1, 5000, 300, 40, 12][rank];
    let mut shape: Vec<i64> = (0..rank)
        .map(|_| match dice.roll(8) {
            0 => 1,
            1 => dice.pick(&[7, 31, 64, 65, 127]),
            2 => dice.pick(&[2, 3, 16]),
            _ => 1 + dice.roll(most) as i64,
        })
        .collect();
    if rank > 0 && dice.roll(20) == 0 {
        let axis = dice.roll(rank);
        shape[axis] = 0;
    }
    let reduce = if rank > 0 && dice.roll(2) == 0 { Some(dice.roll(rank)) } else { None };
    let loop_ = Loop { shape, reduce, accesses: vec![], code: vec![] };
    let mut maker = Maker { dice, loop_, dtypes: vec![], memory: vec![] };
    let main = if maker.dice.roll(2) == 0 { DType::Float32 } else { maker.dice.pick(DType::ALL) };
    for _ in 0..1 + maker.dice.roll(8) {
        let dtype = if maker.dice.roll(6) == 0 { maker.dice.pick(DType::ALL) } else { main };
        maker.compute(dtype);
    }
    for _ in 0..1 + maker.dice.roll(2) {
        maker.store();
    }
    (maker.loop_, maker.memory)
}
