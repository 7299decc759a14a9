//! Convolutions against plain loops: every bit, for every type, layout and number of threads.

use max_core::float8::F8E5M2;
use max_core::kernel::Kernel;
use max_core::scalar::Lane;
use max_core::{Bool, bf16, f16};
use max_driver::Buffer;

use super::*;
use crate::matmul::tests::{Random, element, store};
use crate::prepare;

#[derive(Clone, Copy, Debug)]
struct Case {
    image: [i64; 4],
    /// Height, width and filters.
    filter: [i64; 3],
    stride: [usize; 2],
    dilation: [usize; 2],
    padding: [usize; 2],
    groups: usize,
}

/// Small whole numbers, whose sums are exact in any order.
fn whole<T: Element>(random: &mut Random, count: usize) -> Vec<T> {
    (0..count).map(|_| T::from_f64(random.below(9) as f64 - 4.0)).collect()
}

/// Runs a case with operands laid out anyhow, on 1, 2 and 3 threads.
fn check<T: Element>(random: &mut Random, case: Case) {
    let Case { image: [n, h, w, c], filter: [r, s, f], stride, dilation, padding, groups } = case;
    let size = |axis: usize, size: i64, taps: i64| {
        let padded = size + 2 * padding[axis] as i64 - dilation[axis] as i64 * (taps - 1) - 1;
        Ord::max(padded.div_euclid(stride[axis] as i64) + 1, 0)
    };
    let out = [n, size(0, h, r), size(1, w, s), f];
    let (channels, filters) = (c / groups as i64, f / groups as i64);
    let (input, input_count) = random.access(0, T::DTYPE, &case.image, true);
    let (filter, filter_count) = random.access(1, T::DTYPE, &[r, s, channels, f], true);
    let (x, weights) = (whole::<T>(random, input_count), whole::<T>(random, filter_count));
    let mut expected: Vec<T> = Vec::new();
    for at in 0..out.iter().product::<i64>() {
        let [b, y, z, k] = [at / (out[1] * out[2] * f), at / (out[2] * f) % out[1], at / f % out[2], at % f];
        let term = |p: usize| {
            let p = p as i64;
            let (i, j, l) = (p / channels / s, p / channels % s, p % channels);
            let source = |axis: usize, at: i64, tap: i64| {
                at * stride[axis] as i64 + tap * dilation[axis] as i64 - padding[axis] as i64
            };
            let (row, column) = (source(0, y, i), source(1, z, j));
            let inside = (0..h).contains(&row) && (0..w).contains(&column);
            let index = [b, row, column, k / filters * channels + l];
            let x = if inside { element(&x, &input, &index) } else { T::from_f64(0.0) };
            (x.to_lane(), element(&weights, &filter, &[i, j, l, k]).to_lane())
        };
        let count = (r * s * channels) as usize;
        let result = (0..count).map(term).fold(T::Lane::splat(0.0), |sum, (x, y)| sum.add(x.mul(y)));
        expected.push(T::from_lane(result));
    }
    let epilogue = store(2, T::DTYPE, &out);
    let kernel = Kernel::Conv2d(Conv2d {
        out,
        input_size: [h, w, c],
        filter_size: [r, s],
        stride,
        dilation,
        padding,
        groups,
        input,
        filter,
        epilogue,
    });
    let prepared = prepare(&kernel).unwrap();
    let (x, weights) = (Buffer::from(x), Buffer::from(weights));
    for threads in [1, 2, 3] {
        let out = Buffer::from(vec![T::from_f64(77.0); expected.len()]);
        let memory = [Memory::of(&x).unwrap(), Memory::of(&weights).unwrap(), Memory::of_mut(&out).unwrap()];
        prepared.run(&memory, &Pool::new(threads)).unwrap();
        let out = out.to_vec::<T>().unwrap();
        let same = bytemuck::cast_slice::<T, u8>(&out) == bytemuck::cast_slice::<T, u8>(&expected);
        assert!(same, "{} {case:?} {kernel:?}", T::DTYPE);
    }
}

#[test]
fn small_shapes_of_every_type() {
    let mut random = Random(9);
    for _ in 0..150 {
        let mut pick = |choices: &[i64]| choices[random.below(choices.len() as u64) as usize];
        let groups = pick(&[1, 1, 2, 3]);
        let (channels, filters) = (pick(&[1, 1, 2, 5]), pick(&[1, 1, 3, 35]));
        let [sh, sw, dh, dw] = [(); 4].map(|()| pick(&[1, 1, 2, 3]) as usize);
        let case = Case {
            image: [pick(&[1, 2]), pick(&[1, 4, 9]), pick(&[1, 5, 12]), groups * channels],
            filter: [pick(&[1, 2, 3]), pick(&[1, 2, 5]), groups * filters],
            stride: [sh, sw],
            dilation: [dh, dw],
            padding: [pick(&[0, 0, 1, 2, 7]) as usize, pick(&[0, 0, 1, 3, 13]) as usize],
            groups: groups as usize,
        };
        macro_rules! all { ($($type:ty)*) => {$( check::<$type>(&mut random, case); )*}; }
        all!(f32 f64 i8 i64 u16 u32 Bool f16 bf16 F8E5M2);
    }
}

#[test]
fn long_patches_wide_rows_and_many_blocks() {
    let mut random = Random(10);
    let plain = Case {
        image: [1, 6, 9, 40],
        filter: [3, 3, 20],
        stride: [1; 2],
        dilation: [1; 2],
        padding: [1; 2],
        groups: 1,
    };
    let wide = Case { image: [1, 2, 400, 3], filter: [2, 7, 140], padding: [0, 3], ..plain };
    let tall = Case { image: [2, 90, 3, 2], filter: [1, 1, 5], padding: [0; 2], stride: [2, 1], ..plain };
    let apart = Case { image: [1, 20, 30, 130], filter: [3, 3, 130], groups: 130, ..plain };
    for case in [plain, wide, tall, apart] {
        for _ in 0..3 {
            check::<f32>(&mut random, case);
        }
        check::<f64>(&mut random, case);
        check::<i32>(&mut random, case);
    }
}

#[test]
fn nothing_in_gives_nothing_or_zeros() {
    let mut random = Random(11);
    let none = Case {
        image: [1, 4, 4, 0],
        filter: [2, 2, 3],
        stride: [1; 2],
        dilation: [1; 2],
        padding: [0; 2],
        groups: 1,
    };
    for case in
        [none, Case { image: [0, 4, 4, 2], ..none }, Case { image: [1, 4, 4, 2], filter: [2, 2, 0], ..none }]
    {
        check::<f32>(&mut random, case);
    }
}
