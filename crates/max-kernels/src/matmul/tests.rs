//! Products against plain loops: every bit, for every type, layout and number of threads.

use max_core::kernel::{Instr, Kernel, Loop, Reg, Slot};
use max_core::scalar::Lane;
use max_core::{Bool, DType};
use max_driver::Buffer;

use super::*;
use crate::prepare;

/// Numbers that look random.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }

    /// Elements that are small whole and half numbers where the type has them, and now and then anything else.
    pub(crate) fn elements<T: Element>(&mut self, count: usize) -> Vec<T> {
        (0..count).map(|_| T::from_f64((self.below(64) as f64 - 32.0) / 3.0)).collect()
    }

    /// Some layout of a shape in a slot: any order of axes, gaps, axes that run backwards, batch axes that repeat.
    pub(crate) fn access(
        &mut self,
        slot: u32,
        dtype: DType,
        shape: &[i64],
        repeat: bool,
    ) -> (Access<i64>, usize) {
        let rank = shape.len();
        let mut order: Vec<usize> = (0..rank).collect();
        (1..rank).for_each(|i| order.swap(i, self.below(i as u64 + 1) as usize));
        let (mut step, mut offset) = (1, self.below(3) as i64);
        let mut strides = vec![0; rank];
        for axis in order {
            if repeat && axis + 2 < rank && self.below(3) == 0 {
                continue;
            }
            strides[axis] = if self.below(4) == 0 { -step } else { step };
            offset += if strides[axis] < 0 { step * Ord::max(shape[axis] - 1, 0) } else { 0 };
            step *= Ord::max(shape[axis], 1) + i64::from(self.below(4) == 0);
        }
        (Access { slot: Slot(slot), dtype, offset, strides }, step as usize + 3)
    }
}

/// A loop that stores what was computed, row-major.
pub(crate) fn store(slot: u32, dtype: DType, shape: &[i64]) -> Loop<i64> {
    let mut strides = vec![1; shape.len()];
    (1..shape.len()).rev().for_each(|axis| strides[axis - 1] = strides[axis] * shape[axis]);
    Loop {
        shape: shape.to_vec(),
        reduce: None,
        accesses: vec![Access { slot: Slot(slot), dtype, offset: 0, strides }],
        code: vec![Instr::Product(dtype), Instr::Store(0, Reg(0))],
    }
}

/// The element of an access at an index.
pub(crate) fn element<T: Copy>(elements: &[T], access: &Access<i64>, index: &[i64]) -> T {
    let distance: i64 = index.iter().zip(&access.strides).map(|(i, stride)| i * stride).sum();
    elements[(access.offset + distance) as usize]
}

/// A sum in the order that all kernels share.
pub(crate) fn sum<L: Lane>(count: usize, step: impl Fn(L, usize) -> L) -> L {
    let part = |start: usize| (start..count.min(start + DEPTH)).fold(L::splat(0.0), &step);
    (0..count).step_by(DEPTH).map(part).reduce(L::add).unwrap_or(L::splat(0.0))
}

/// A type with the step of its kernels on this machine.
pub(crate) trait Step: Element {
    fn step(sum: Self::Lane, x: Self::Lane, y: Self::Lane) -> Self::Lane {
        sum.add(x.mul(y))
    }
}

pub(crate) fn fused() -> bool {
    crate::simd::Isa::best() != crate::simd::Isa::Baseline
}

macro_rules! steps {
    (plain: $($plain:ty)*; fused: $($fused:ty)*) => {
        $(impl Step for $plain {})*
        $(impl Step for $fused {
            fn step(sum: Self::Lane, x: Self::Lane, y: Self::Lane) -> Self::Lane {
                if fused() { x.mul_add(y, sum) } else { sum + x * y }
            }
        })*
    };
}

steps! {
    plain: i8 i16 i32 i64 u8 u16 u32 u64 Bool;
    fused: f32 f64
}

/// Runs a product of some size, with operands laid out anyhow, on 1, 2 and 3 threads.
fn check<T: Step>(random: &mut Random, batch: &[i64], [m, k, n]: [i64; 3]) {
    let shape = |last: [i64; 2]| [batch, &last].concat();
    let (lhs, left_count) = random.access(0, T::DTYPE, &shape([m, k]), true);
    let (rhs, right_count) = random.access(1, T::DTYPE, &shape([k, n]), true);
    let (x, y) = (random.elements::<T>(left_count), random.elements::<T>(right_count));
    let mut expected = Vec::new();
    for index in 0..batch.iter().product::<i64>() {
        let mut rest = index;
        let mut at: Vec<i64> = batch.iter().rev().map(|&size| (rest % size, rest /= size).0).collect();
        at.reverse();
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let at = |last: [i64; 2]| [&at[..], &last].concat();
            let product = sum(k as usize, |sum, p| {
                let x = element(&x, &lhs, &at([i, p as i64]));
                let y = element(&y, &rhs, &at([p as i64, j]));
                T::step(sum, x.to_lane(), y.to_lane())
            });
            expected.push(T::from_lane(product));
        }
    }
    let epilogue = store(2, T::DTYPE, &shape([m, n]));
    let kernel = Kernel::Matmul(Matmul { batch: batch.to_vec(), m, n, k, lhs, rhs, epilogue });
    let prepared = prepare(&kernel).unwrap();
    let (x, y) = (Buffer::from(x), Buffer::from(y));
    for threads in [1, 2, 3] {
        let out = Buffer::from(vec![T::from_f64(77.0); expected.len()]);
        let memory = [Memory::of(&x).unwrap(), Memory::of(&y).unwrap(), Memory::of_mut(&out).unwrap()];
        prepared.run(&memory, &Pool::new(threads)).unwrap();
        let out = out.to_vec::<T>().unwrap();
        let same = bytemuck::cast_slice::<T, u8>(&out) == bytemuck::cast_slice::<T, u8>(&expected);
        assert!(same, "{} {kernel:?}", T::DTYPE);
    }
}

#[test]
fn small_products_of_every_type() {
    let mut random = Random(1);
    let sizes = [0, 1, 2, 3, 5, 17];
    for at in 0..sizes.len().pow(3) {
        let [m, k, n] = [at / 36, at / 6 % 6, at % 6].map(|at| sizes[at]);
        macro_rules! all { ($($type:ty)*) => {$( check::<$type>(&mut random, &[2], [m, k, n]); )*}; }
        all!(f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 Bool);
    }
}

#[test]
fn batches_repeat_and_nest() {
    let mut random = Random(2);
    for batch in [&[][..], &[1], &[0], &[3, 2], &[2, 1, 4], &[500]] {
        for size in [[3, 4, 5], [1, 9, 33], [20, 3, 40]] {
            check::<f32>(&mut random, batch, size);
            check::<i16>(&mut random, batch, size);
        }
    }
}

#[test]
fn long_sums_and_many_blocks() {
    let mut random = Random(3);
    for size in [
        [1, 600, 1100],
        [3, 513, 70],
        [4, 256, 1025],
        [5, 300, 64],
        [16, 267, 1100],
        [7, 300, 530],
        [190, 257, 40],
        [30, 20, 600],
        [15, 1000, 33],
    ] {
        for _ in 0..4 {
            check::<f32>(&mut random, &[], size);
            check::<f64>(&mut random, &[], size);
        }
        check::<i32>(&mut random, &[], size);
    }
}
