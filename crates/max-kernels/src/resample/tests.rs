//! Resampling against plain loops in f64, for every type, layout and number of threads.

use max_core::kernel::{Kernel, Slot};
use max_core::small_float::F8E4M3FN;
use max_core::{Bool, bf16, f16};
use max_driver::Buffer;

use super::*;
use crate::matmul::tests::{Random, element};
use crate::prepare;

type Rule = (Interpolation, Coordinates);

const LINEAR: Rule = (Interpolation::Linear, Coordinates::HalfPixel);

fn kernel(
    rule: Rule,
    shape: [i64; 4],
    count: [i64; 2],
    source: Access<i64>,
    out: Access<i64>,
) -> Resample<i64> {
    let [outer, rows, columns, inner] = shape;
    let (interpolation, coordinates) = rule;
    Resample { interpolation, coordinates, outer, size: [rows, columns], count, inner, source, out }
}

/// Row-major, with some elements left out after each.
fn spaced(slot: u32, dtype: DType, shape: [i64; 4], gap: i64) -> (Access<i64>, usize) {
    let (mut strides, mut step) = (vec![0; 4], 1 + gap);
    for axis in (0..4).rev() {
        strides[axis] = step;
        step *= shape[axis];
    }
    (Access { slot: Slot(slot), dtype, offset: 0, strides }, step as usize)
}

/// The results of plain loops in f64, row-major.
fn expected<T: Element>(k: &Resample<i64>, x: &[T]) -> Vec<f64> {
    let taps = |axis: usize, at: i64| {
        let mut weights = Vec::new();
        let sizes = [k.size[axis], k.count[axis]].map(|size| size as usize);
        let first = k.interpolation.taps(k.coordinates, sizes, at as usize, &mut weights);
        weights
            .into_iter()
            .enumerate()
            .map(move |(i, weight)| ((first + i) as i64, weight))
            .collect::<Vec<_>>()
    };
    let results = (0..k.outer * k.count[0] * k.count[1] * k.inner).map(|at| {
        let (i, rest) = (at % k.inner, at / k.inner);
        let (column, rest) = (taps(1, rest % k.count[1]), rest / k.count[1]);
        let (row, outer) = (taps(0, rest % k.count[0]), rest / k.count[0]);
        let mut sum = 0.0;
        for &(y, down) in &row {
            for &(z, along) in &column {
                sum += down * along * element(x, &k.source, &[outer, y, z, i]).to_f64();
            }
        }
        sum
    });
    results.collect()
}

fn run<T: Element>(k: &Resample<i64>, x: &[T], room: usize, threads: usize) -> Vec<T> {
    let (x, out) = (Buffer::from(x.to_vec()), Buffer::from(vec![T::from_double(77.0); room]));
    let memory = [Memory::of(&x).unwrap(), Memory::of_mut(&out).unwrap()];
    let prepared = prepare(&Kernel::Resample(k.clone())).unwrap();
    prepared.run(&memory, &Pool::new(threads)).unwrap();
    out.to_vec::<T>().unwrap()
}

fn check<T: Element>(random: &mut Random, rule: Rule, shape: [i64; 4], count: [i64; 2], gaps: [i64; 2]) {
    let (source, length) = spaced(0, T::DTYPE, shape, gaps[0]);
    let (out, room) = spaced(1, T::DTYPE, [shape[0], count[0], count[1], shape[3]], gaps[1]);
    let x = random.elements::<T>(length);
    let k = kernel(rule, shape, count, source, out);
    let expected = expected(&k, &x);
    let got = run(&k, &x, room, 1);
    let bits = |elements: &[T]| bytemuck::cast_slice::<T, u8>(elements).to_vec();
    assert_eq!(bits(&run(&k, &x, room, 3)), bits(&got), "{} {k:?}", T::DTYPE);
    for (at, want) in expected.iter().enumerate() {
        let found = got[at * (1 + gaps[1]) as usize].to_f64();
        let unit = match T::DTYPE {
            _ if rule.0.is_nearest() => 0.0,
            DType::Float64 => 1e-13,
            DType::Float32 => 2e-6,
            DType::Float16 => 1e-3,
            DType::BFloat16 => 8e-3,
            dtype if dtype.is_float() => 0.13,
            _ => 0.0,
        };
        let want = if T::DTYPE.is_float() { *want } else { T::from_double(settled(*want)).to_f64() };
        assert!((found - want).abs() <= unit * (1.0 + want.abs() * 4.0), "{} {found} {want} {k:?}", T::DTYPE);
    }
}

#[test]
fn small_shapes_of_every_type_and_rule() {
    let mut random = Random(31);
    for _ in 0..250 {
        let mut pick = |choices: &[i64]| choices[random.below(choices.len() as u64) as usize];
        let shape = [pick(&[1, 2]), pick(&[1, 2, 5, 9]), pick(&[1, 3, 7, 40]), pick(&[1, 1, 3, 35])];
        let count = [pick(&[1, 2, 5, 19]), pick(&[1, 3, 8, 50])];
        let gaps = [pick(&[0, 0, 1]), pick(&[0, 0, 2])];
        let rule = (
            Interpolation::ALL[random.below(Interpolation::ALL.len() as u64) as usize],
            Coordinates::ALL[random.below(Coordinates::ALL.len() as u64) as usize],
        );
        macro_rules! all {
            ($($type:ty)*) => {$( check::<$type>(&mut random, rule, shape, count, gaps); )*};
        }
        all!(f32 f64 i8 i32 i64 u8 u16 f16 bf16 F8E4M3FN);
        if rule.0.is_nearest() {
            check::<Bool>(&mut random, rule, shape, count, gaps);
        }
    }
}

#[test]
fn larger_images() {
    let mut random = Random(32);
    for &interpolation in Interpolation::ALL {
        let rule = (interpolation, Coordinates::HalfPixel);
        for (shape, count) in [
            ([2, 64, 64, 1], [128, 128]),
            ([1, 300, 200, 1], [30, 21]),
            ([1, 20, 500, 1], [45, 500]),
            ([3, 1, 900, 1], [1, 1700]),
            ([1, 40, 1, 1000], [90, 1]),
            ([1, 16, 18, 64], [33, 35]),
        ] {
            check::<f32>(&mut random, rule, shape, count, [0, 0]);
            check::<bf16>(&mut random, rule, shape, count, [0, 0]);
        }
    }
}

#[test]
fn an_infinite_neighbour_without_weight_does_not_count() {
    for columns in [[1, 4], [4, 1]] {
        for &interpolation in Interpolation::ALL {
            let (source, length) = spaced(0, DType::Float32, [1, columns[0], columns[1], 1], 0);
            let (out, room) = spaced(1, DType::Float32, [1, 2 * columns[0] - 1, 2 * columns[1] - 1, 1], 0);
            let x: Vec<f32> = (0..length).map(|i| if i == 2 { f32::INFINITY } else { i as f32 }).collect();
            let rule = (interpolation, Coordinates::AlignCorners);
            let count = [2 * columns[0] - 1, 2 * columns[1] - 1];
            let got = run(&kernel(rule, [1, columns[0], columns[1], 1], count, source, out), &x, room, 1);
            assert_eq!([got[0], got[2], got[6]], [0.0, 1.0, 3.0], "{interpolation}");
        }
    }
}

#[test]
fn empty_results_of_any_length_are_free() {
    let most = 1 << 40;
    let (source, length) = spaced(0, DType::Float32, [0, 1, 5, 1], 0);
    let (out, room) = spaced(1, DType::Float32, [0, 1, most, 1], 0);
    assert!(
        run::<f32>(&kernel(LINEAR, [0, 1, 5, 1], [1, most], source, out), &vec![0.0; length], room, 1)
            .is_empty()
    );
    let (source, _) = spaced(0, DType::Float32, [1, 0, 5, 1], 0);
    let (out, _) = spaced(1, DType::Float32, [1, 3, 5, 1], 0);
    assert!(prepare(&Kernel::Resample(kernel(LINEAR, [1, 0, 5, 1], [3, 5], source, out))).is_err());
}
