//! Matmuls against plain loops: every bit, for every type, layout and number of threads.

use max_core::kernel::{Instr, Kernel, Loop, Matmuls, Reg, Slot};
use max_core::scalar::{Lane, NumericOp};
use max_core::small_float::{F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ};
use max_core::{Bool, DType, Element, bf16, f16};
use max_driver::Buffer;

use super::*;
use crate::simd::Isa;
use crate::{Constant, prepare};

/// Pseudo-random numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }

    /// Elements that are small multiples of one half where the type has them, and occasionally anything else.
    pub(crate) fn elements<T: Element>(&mut self, count: usize) -> Vec<T> {
        (0..count).map(|_| T::from_double((self.below(64) as f64 - 32.0) / 3.0)).collect()
    }

    /// A random layout of a shape in a slot: any order of axes, gaps, negative strides, broadcast batch axes.
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

/// A loop that stores the result, row-major.
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
    fn pairwise<L: Lane>(parts: &[L]) -> L {
        match parts {
            [] => L::splat(0.0),
            [only] => *only,
            _ => {
                let (first, rest) = parts.split_at(parts.len().next_power_of_two() / 2);
                pairwise(first).add(pairwise(rest))
            }
        }
    }
    let block = |start: usize| (start..count.min(start + DEPTH)).fold(L::splat(0.0), &step);
    let blocks: Vec<L> = (0..count).step_by(DEPTH).map(block).collect();
    let parts = blocks.chunks(RUN).map(|part| part.iter().copied().reduce(L::add).unwrap_or(L::splat(0.0)));
    pairwise(&parts.collect::<Vec<L>>())
}

/// A type, with the multiply-add step of its kernels on this machine.
pub(crate) trait Step: Element {
    fn step(sum: Self::Lane, x: Self::Lane, y: Self::Lane) -> Self::Lane {
        sum.add(x.mul(y))
    }
}

/// Whether a step rounds once on an instruction set.
fn is_fused(isa: Isa) -> bool {
    isa != Isa::Baseline || cfg!(target_arch = "aarch64")
}

pub(crate) fn fused() -> bool {
    is_fused(Isa::best())
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
    fused: f32 f64 f16 bf16 F8E4M3FN F8E4M3FNUZ F8E5M2 F8E5M2FNUZ
}

/// The matmul of operands, in the type of sums.
fn products<T: Step>(
    batch: &[i64],
    [m, k, n]: [i64; 3],
    (lhs, x): (&Access<i64>, &[T]),
    (rhs, y): (&Access<i64>, &[T]),
) -> Vec<T::Lane> {
    let mut products = Vec::new();
    for mut index in 0..batch.iter().product::<i64>() {
        let mut starts = [lhs.offset, rhs.offset];
        for (axis, &size) in batch.iter().enumerate().rev() {
            starts[0] += index % size * lhs.strides[axis];
            starts[1] += index % size * rhs.strides[axis];
            index /= size;
        }
        let (left, right) = (&lhs.strides[batch.len()..], &rhs.strides[batch.len()..]);
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            products.push(sum(k as usize, |sum, p| {
                let x = x[(starts[0] + i * left[0] + p as i64 * left[1]) as usize];
                let y = y[(starts[1] + p as i64 * right[0] + j * right[1]) as usize];
                T::step(sum, x.to_lane(), y.to_lane())
            }));
        }
    }
    products
}

/// Whether results have the expected bits; for bf16, which instructions with their own rounding may compute, whether
/// they are close.
fn same<T: Element>(results: &[T], expected: &[T]) -> bool {
    let near = |(x, y): (&T, &T)| (x.to_f64() - y.to_f64()).abs() <= y.to_f64().abs() / 64.0 + 1e-2;
    if T::DTYPE == DType::BFloat16 && bf16::dots().is_some() {
        return results.len() == expected.len() && results.iter().zip(expected).all(near);
    }
    bytemuck::cast_slice::<T, u8>(results) == bytemuck::cast_slice::<T, u8>(expected)
}

/// Runs a matmul of some size, with operands in random layouts, on 1, 2 and 3 threads.
fn check<T: Step>(random: &mut Random, batch: &[i64], [m, k, n]: [i64; 3]) {
    let shape = |last: [i64; 2]| [batch, &last].concat();
    let lhs = random.access(0, T::DTYPE, &shape([m, k]), true);
    let rhs = random.access(1, T::DTYPE, &shape([k, n]), true);
    check_layout::<T>(random, batch, [m, k, n], lhs, rhs);
}

/// Runs a matmul with buffers of the given sizes, with a right operand that may change and with a constant one.
fn check_layout<T: Step>(
    random: &mut Random,
    batch: &[i64],
    [m, k, n]: [i64; 3],
    (lhs, left_count): (Access<i64>, usize),
    (rhs, right_count): (Access<i64>, usize),
) {
    let (x, y) = (random.elements::<T>(left_count), random.elements::<T>(right_count));
    let expected = products(batch, [m, k, n], (&lhs, &x), (&rhs, &y));
    let expected: Vec<T> = expected.into_iter().map(T::from_lane).collect();
    let epilogue = store(2, T::DTYPE, &[batch, &[m, n]].concat());
    let kernel = Kernel::Matmul(Matmul { batch: batch.to_vec(), m, n, k, lhs, rhs, epilogue });
    let (x, y) = (Buffer::from(x), Buffer::from(y));
    let constant = Constant::new(y.host_bytes().unwrap());
    let prepared = prepare(&kernel).unwrap();
    for right in [Memory::of(&y).unwrap(), Memory::of_constant(&constant)] {
        for threads in [1, 2, 3] {
            let out = Buffer::from(vec![T::from_double(77.0); expected.len()]);
            let memory = [Memory::of(&x).unwrap(), right, Memory::of_mut(&out).unwrap()];
            prepared.run(&memory, &Pool::new(threads)).unwrap();
            assert!(same(&out.to_vec::<T>().unwrap(), &expected), "{} {kernel:?}", T::DTYPE);
        }
    }
}

/// Batches with one right operand, whose left operands are contiguous or not.
#[test]
fn batches_become_rows() {
    let mut random = Random(8);
    for batch in [&[3, 4][..], &[1, 5], &[5, 1], &[2, 1, 3]] {
        for [m, k, n] in [[1, 7, 40], [6, 9, 33], [30, 20, 40], [1, 300, 5]] {
            for gap in [0, 1] {
                let mut left = vec![k + gap, 1];
                let mut apart = m * (k + gap) + gap;
                for &size in batch.iter().rev() {
                    left.insert(0, apart);
                    apart *= size;
                }
                let access =
                    |slot, strides| Access { slot: Slot(slot), dtype: DType::Float32, offset: 0, strides };
                let right = [&vec![0; batch.len()][..], &[n, 1]].concat();
                let lhs = (access(0, left), apart as usize);
                let rhs = (access(1, right), (k * n) as usize);
                check_layout::<f32>(&mut random, batch, [m, k, n], lhs, rhs);
            }
        }
    }
}

#[test]
fn small_matmuls_of_every_type() {
    let mut random = Random(1);
    let sizes = [0, 1, 2, 3, 5, 17];
    for at in 0..sizes.len().pow(3) {
        let [m, k, n] = [at / 36, at / 6 % 6, at % 6].map(|at| sizes[at]);
        macro_rules! all { ($($type:ty)*) => {$( check::<$type>(&mut random, &[2], [m, k, n]); )*}; }
        all!(f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 Bool f16 bf16 F8E4M3FN F8E4M3FNUZ F8E5M2 F8E5M2FNUZ);
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
        [1, 2000, 8],
        [20, 1500, 40],
        [100, 1100, 100],
        [300, 40, 16],
    ] {
        for _ in 0..3 {
            check::<f32>(&mut random, &[], size);
            check::<f64>(&mut random, &[], size);
        }
        check::<i32>(&mut random, &[], size);
    }
}

/// Sums of so much of the depth that they are combined pairwise, in every way that products are computed.
#[test]
fn sums_of_a_great_depth() {
    let mut random = Random(5);
    let depth = LONG as i64;
    for size in [[2, 2 * depth + 1, 8], [3, depth + 300, 140], [20, 3 * depth, 140], [1, 8 * depth + 5, 2]] {
        check::<f32>(&mut random, &[], size);
        check::<i32>(&mut random, &[], size);
    }
    check::<bf16>(&mut random, &[], [3, depth + 1, 130]);
    check_epilogue::<f32>(&mut random, [2, depth + 1, 3]);
}

/// A bias for each column, then relu, stored transposed.
fn check_epilogue<T: Step>(random: &mut Random, [m, k, n]: [i64; 3]) {
    let batch = [2];
    let access = |slot, offset, strides: &[i64]| Access {
        slot: Slot(slot),
        dtype: T::DTYPE,
        offset,
        strides: strides.to_vec(),
    };
    let (lhs, left_count) = random.access(0, T::DTYPE, &[2, m, k], true);
    let (rhs, right_count) = random.access(1, T::DTYPE, &[2, k, n], true);
    let (x, y) = (random.elements::<T>(left_count), random.elements::<T>(right_count));
    let bias = random.elements::<T>(n as usize + 1);
    let products = products(&batch, [m, k, n], (&lhs, &x), (&rhs, &y));
    let mut expected = vec![T::from_double(0.0); (2 * m * n) as usize];
    for (at, product) in products.into_iter().enumerate() {
        let (b, i, j) = (at as i64 / (m * n), at as i64 / n % m, at as i64 % n);
        let biased = product.add(bias[j as usize + 1].to_lane());
        expected[(b * m * n + j * m + i) as usize] = T::from_lane(biased.max(T::Lane::splat(0.0)));
    }
    let epilogue = Loop {
        shape: vec![2, m, n],
        reduce: None,
        accesses: vec![access(3, 0, &[m * n, 1, m]), access(2, 1, &[0, 0, 1])],
        code: vec![
            Instr::Product(T::DTYPE),
            Instr::Load(1),
            Instr::Apply(NumericOp::Add.into(), [Reg(0), Reg(1)]),
            Instr::Apply(NumericOp::Relu.into(), [Reg(2), Reg(2)]),
            Instr::Store(0, Reg(3)),
        ],
    };
    let kernel = Kernel::Matmul(Matmul { batch: batch.to_vec(), m, n, k, lhs, rhs, epilogue });
    let [x, y, bias] = [x, y, bias].map(Buffer::from);
    for threads in [1, 3] {
        let out = Buffer::from(vec![T::from_double(77.0); expected.len()]);
        let mut memory = [&x, &y, &bias, &out].map(|buffer| Memory::of(buffer).unwrap());
        memory[3] = Memory::of_mut(&out).unwrap();
        prepare(&kernel).unwrap().run(&memory, &Pool::new(threads)).unwrap();
        assert!(same(&out.to_vec::<T>().unwrap(), &expected), "{} {kernel:?}", T::DTYPE);
    }
}

#[test]
fn epilogues_run_on_results() {
    let mut random = Random(4);
    for size in [[1, 3, 70], [4, 300, 1030], [20, 0, 33], [200, 9, 300]] {
        check_epilogue::<f32>(&mut random, size);
        check_epilogue::<f64>(&mut random, size);
        check_epilogue::<bf16>(&mut random, size);
        check_epilogue::<i32>(&mut random, size);
    }
}

/// The kernels of every instruction set that this machine has, not only of the best.
#[test]
fn kernels_agree_with_plain_loops() {
    fn check<L: Step<Lane = L> + Micro>(random: &mut Random) {
        for isa in Isa::available() {
            let kernels = L::kernels_for(isa);
            let step = |sum: L, x: L, y: L| {
                if is_fused(isa) { L::step(sum, x, y) } else { sum.add(x.mul(y)) }
            };
            for (rows, depth, columns) in [(1, 3, 5), (4, 7, 64), (17, 9, 40), (29, DEPTH, 33)] {
                let y = random.elements::<L>(depth * columns);
                let matrix =
                    Matrix { start: y.as_ptr(), strides: [columns as isize, 1], size: [depth, columns] };
                let left = random.elements::<L>(rows * ROW);
                let mut right = vec![L::from_double(0.0); depth * columns.next_multiple_of(kernels.width)];
                let before = random.elements::<L>(rows * columns);
                let dot = |at: usize| {
                    let (i, j) = (at / columns, at % columns);
                    (0..depth).fold(L::splat(0.0), |sum, p| step(sum, left[i * ROW + p], y[p * columns + j]))
                };
                let expected: Vec<L> = (0..rows * columns).map(|at| before[at].add(dot(at))).collect();
                let mut sums = before.clone();
                // SAFETY: the vectors have these sizes.
                unsafe {
                    pack_right(kernels, right.as_mut_ptr(), matrix);
                    let (panel, row) = (depth * kernels.width, kernels.width as isize);
                    // What is prefetched makes no difference, even where there is nothing.
                    let next = (rows > 4).then_some(std::ptr::null());
                    let right = Right { start: right.as_ptr(), panel, row, next };
                    let to = (sums.as_mut_ptr(), columns as isize);
                    let add = Some((before.as_ptr(), columns as isize));
                    multiply(
                        kernels,
                        [rows, depth, columns],
                        (left.as_ptr(), ROW as isize),
                        right,
                        add,
                        to,
                        &mut Ahead::nothing(),
                    );
                }
                assert!(same(&sums, &expected), "{isa:?} {} {rows} {depth} {columns}", L::DTYPE);

                let (whole, few) = (columns - columns % kernels.lanes, rows.min(THIN));
                // SAFETY: the vectors have these sizes.
                unsafe {
                    let to = (sums.as_mut_ptr(), columns as isize);
                    let (left, right) = ((left.as_ptr(), ROW as isize), (y.as_ptr(), columns as isize));
                    kernels.thin[few - 1](depth, left, right, whole, to);
                }
                for at in (0..few * columns).filter(|at| at % columns < whole) {
                    assert!(same(&[sums[at]], &[dot(at)]), "{isa:?} {} thin {at}", L::DTYPE);
                }
            }
        }
    }
    let mut random = Random(7);
    check::<f32>(&mut random);
    check::<f64>(&mut random);
    check::<i8>(&mut random);
    check::<i64>(&mut random);
    check::<Bool>(&mut random);
}

/// Matmuls of one left operand, launched together and one after the other: the same bits, for any number of them, with
/// right operands that are constant or not, in any layout and of any width.
#[test]
fn matmuls_run_together_with_the_same_bits() {
    fn check<T: Step>(random: &mut Random, [m, k]: [i64; 2], widths: &[i64]) {
        let (lhs, left_count) = random.access(0, T::DTYPE, &[m, k], true);
        let count = widths.len() as u32;
        let mut buffers = vec![Buffer::from(random.elements::<T>(left_count))];
        let mut all = Vec::new();
        for (at, &n) in widths.iter().enumerate() {
            let (rhs, right_count) = random.access(1 + at as u32, T::DTYPE, &[k, n], true);
            buffers.push(Buffer::from(random.elements::<T>(right_count)));
            let epilogue = store(1 + count + at as u32, T::DTYPE, &[m, n]);
            all.push(Matmul { batch: vec![], m, n, k, lhs: lhs.clone(), rhs, epilogue });
        }
        let kept = buffers.iter().map(|buffer| Constant::new(buffer.host_bytes().unwrap()));
        let kept: Vec<Constant> = kept.collect();
        let outputs = || widths.iter().map(|n| Buffer::from(vec![T::from_double(77.0); (m * n) as usize]));
        for threads in [1, 2, 3] {
            let [apart, together] = [0; 2].map(|_| outputs().collect::<Vec<_>>());
            let run = |kernel: &Kernel<i64>, results: &[Buffer]| {
                let read =
                    buffers.iter().zip(&kept).enumerate().map(|(at, (buffer, constant))| match at % 2 {
                        0 => Memory::of(buffer).unwrap(),
                        _ => Memory::of_constant(constant),
                    });
                let written = results.iter().map(|buffer| Memory::of_mut(buffer).unwrap());
                let memory: Vec<Memory> = read.chain(written).collect();
                prepare(kernel).unwrap().run(&memory, &Pool::new(threads)).unwrap();
            };
            all.iter().for_each(|k| run(&Kernel::Matmul(k.clone()), &apart));
            run(&Kernel::Matmuls(Matmuls { all: all.clone() }), &together);
            for (one, other) in apart.iter().zip(&together) {
                let [one, other] = [one, other].map(|buffer| buffer.host_bytes().unwrap());
                assert_eq!(*one, *other, "{} {m} {k} {widths:?} on {threads} threads", T::DTYPE);
            }
        }
    }
    let mut random = Random(9);
    let long: Vec<i64> = (0..TOGETHER as i64 + 3).map(|at| 10 * at).collect();
    let widths: [&[i64]; 6] = [&[5], &[0, 1, 40], &[1, 1, 0], &[300, 100, 100], &[1030, 33, 64], &long];
    for [m, k] in [[0, 7], [1, 0], [1, 1], [1, 300], [3, 40], [16, 130], [50, 1100], [200, 90]] {
        for widths in widths {
            check::<f32>(&mut random, [m, k], widths);
            check::<bf16>(&mut random, [m, k], widths);
            check::<i8>(&mut random, [m, k], widths);
        }
    }
}

#[test]
fn matmuls_have_one_dtype_and_do_not_read_each_other() {
    let access = |slot, dtype| Access { slot: Slot(slot), dtype, offset: 0, strides: vec![4, 1] };
    let matmul = |rhs, dtype, out| {
        let epilogue = store(out, dtype, &[4, 4]);
        Matmul { batch: vec![], m: 4, n: 4, k: 4, lhs: access(0, dtype), rhs: access(rhs, dtype), epilogue }
    };
    let message = |all| prepare(&Kernel::Matmuls(Matmuls { all })).unwrap_err().to_string();
    let first = matmul(1, DType::Float32, 2);
    assert!(message(vec![]).contains("no matmuls"));
    let mixed = message(vec![first.clone(), matmul(3, DType::Int32, 4)]);
    assert!(mixed.contains("where float32 and float32 are expected"), "{mixed}");
    // The second reads what the first writes: as its right operand, and in its epilogue.
    let reads = message(vec![first.clone(), matmul(2, DType::Float32, 3)]);
    assert!(reads.contains("in a different way"), "{reads}");
    let mut second = matmul(1, DType::Float32, 3);
    second.epilogue.accesses.push(access(2, DType::Float32));
    second.epilogue.code.insert(0, Instr::Load(1));
    second.epilogue.code[2] = Instr::Store(0, Reg(1));
    let loads = message(vec![first, second]);
    assert!(loads.contains("in a different way"), "{loads}");
}

/// Every float8 in a right operand is widened to its value, by the kernels of every instruction set.
#[test]
fn all_of_float8_is_widened() {
    fn check<T: micro::Narrow>() {
        let all: Vec<T> = (0..=255u8).map(|bits| bytemuck::cast(bits)).collect();
        for isa in Isa::available() {
            let kernels = T::kernels_for(isa);
            let mut sums = vec![0f32; 256];
            // SAFETY: there is a row of one element, and 256 columns, a multiple of the lanes of any kernel.
            unsafe {
                kernels.thin[0](1, ([1f32].as_ptr(), 1), (all.as_ptr(), 256), 256, (sums.as_mut_ptr(), 256))
            };
            for (element, sum) in all.iter().zip(sums) {
                let expected = element.to_lane();
                assert!(
                    sum == expected || sum.is_nan() && expected.is_nan(),
                    "{isa:?} {} {sum} {expected}",
                    T::DTYPE
                );
            }
        }
    }
    check::<F8E4M3FN>();
    check::<F8E5M2>();
}

/// Float8 on both sides, or bfloat16 on the left: sums in float32, as of the same operands in float32.
#[test]
fn products_of_float8_are_wide() {
    fn check<L: Element, R: Element>(random: &mut Random, product: DType, [m, k, n]: [i64; 3]) {
        let (lhs, left_count) = random.access(0, L::DTYPE, &[m, k], true);
        let (rhs, right_count) = random.access(1, R::DTYPE, &[k, n], true);
        let (x, y) = (random.elements::<L>(left_count), random.elements::<R>(right_count));
        let wide = |x: f64| x as f32;
        let (left, right): (Vec<f32>, Vec<f32>) =
            (x.iter().map(|x| wide(x.to_f64())).collect(), y.iter().map(|y| wide(y.to_f64())).collect());
        let run = |[left, right]: [DType; 2], x: &Buffer, y: &Buffer, product: DType| {
            let mut epilogue = store(2, DType::Float32, &[m, n]);
            if product != DType::Float32 {
                epilogue.code = vec![
                    Instr::Product(product),
                    Instr::Cast(Reg(0), DType::Float32),
                    Instr::Store(0, Reg(1)),
                ];
            }
            let (lhs, rhs) = (Access { dtype: left, ..lhs.clone() }, Access { dtype: right, ..rhs.clone() });
            let kernel = Kernel::Matmul(Matmul { batch: vec![], m, n, k, lhs, rhs, epilogue });
            let out = Buffer::from(vec![77f32; (m * n) as usize]);
            let memory = [Memory::of(x).unwrap(), Memory::of(y).unwrap(), Memory::of_mut(&out).unwrap()];
            prepare(&kernel).unwrap().run(&memory, &Pool::new(2)).unwrap();
            out.to_vec::<f32>().unwrap()
        };
        let narrow = run([L::DTYPE, R::DTYPE], &Buffer::from(x), &Buffer::from(y), product);
        let f32s = [DType::Float32; 2];
        let expected = run(f32s, &Buffer::from(left), &Buffer::from(right), DType::Float32);
        // A cast of what was not rounded yet is no rounding.
        assert_eq!(narrow, expected, "{} {} {m} {k} {n}", L::DTYPE, R::DTYPE);
    }
    let mut random = Random(13);
    for size in [[1, 1, 1], [0, 3, 2], [2, 0, 3], [1, 300, 70], [17, 130, 100], [90, 600, 40]] {
        check::<F8E4M3FN, F8E4M3FN>(&mut random, DType::Float32, size);
        check::<F8E5M2, F8E5M2>(&mut random, DType::Float32, size);
        check::<bf16, F8E4M3FN>(&mut random, DType::BFloat16, size);
        check::<bf16, F8E5M2>(&mut random, DType::BFloat16, size);
    }
}

/// A narrow right operand is widened exactly: the bits are those of its copy in f32, constant or not, for every layout.
#[test]
fn operands_may_have_different_dtypes() {
    fn check<T: Element>(random: &mut Random, [m, k, n]: [i64; 3]) {
        let (lhs, left_count) = random.access(0, DType::Float32, &[m, k], true);
        let (rhs, right_count) = random.access(1, DType::Float32, &[k, n], true);
        let x = Buffer::from(random.elements::<f32>(left_count));
        let narrow: Vec<T> = random.elements::<T>(right_count);
        let wide: Vec<f32> = narrow.iter().map(|y| y.to_f64() as f32).collect();
        let results =
            [(Buffer::from(narrow), T::DTYPE), (Buffer::from(wide), DType::Float32)].map(|(y, dtype)| {
                let epilogue = store(2, DType::Float32, &[m, n]);
                let rhs = Access { dtype, ..rhs.clone() };
                let kernel =
                    Kernel::Matmul(Matmul { batch: vec![], m, n, k, lhs: lhs.clone(), rhs, epilogue });
                let constant = Constant::new(y.host_bytes().unwrap());
                [Memory::of(&y).unwrap(), Memory::of_constant(&constant)].map(|right| {
                    let out = Buffer::from(vec![77f32; (m * n) as usize]);
                    let memory = [Memory::of(&x).unwrap(), right, Memory::of_mut(&out).unwrap()];
                    prepare(&kernel).unwrap().run(&memory, &Pool::new(2)).unwrap();
                    out.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>()
                })
            });
        let [[narrow, packed], [wide, _]] = results;
        assert!(narrow == wide && packed == wide, "{} {m} {k} {n}", T::DTYPE);
    }
    let mut random = Random(11);
    for size in
        [[1, 1, 1], [0, 3, 2], [2, 0, 3], [2, 3, 0], [1, 300, 70], [4, 64, 33], [17, 130, 100], [90, 600, 40]]
    {
        check::<bf16>(&mut random, size);
        check::<f16>(&mut random, size);
        check::<F8E4M3FN>(&mut random, size);
        check::<F8E5M2>(&mut random, size);
    }
    let access = |slot, dtype| Access { slot: Slot(slot), dtype, offset: 0, strides: vec![4, 1] };
    let (lhs, rhs) = (access(0, DType::Int8), access(1, DType::Float32));
    let epilogue = store(2, DType::Int8, &[4, 4]);
    let message = prepare(&Kernel::Matmul(Matmul { batch: vec![], m: 4, n: 4, k: 4, lhs, rhs, epilogue }));
    assert!(message.unwrap_err().to_string().contains("a matmul of int8 and float32"));
}
