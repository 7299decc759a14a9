//! Convolutions against plain loops: every bit, for every type, layout and number of threads.

use max_core::kernel::{Access, Kernel, Slot};
use max_core::scalar::Lane;
use max_core::small_float::{F8E4M3FN, F8E5M2};
use max_core::{Bool, DType, bf16, f16};
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
    /// Before and after an axis.
    padding: [[usize; 2]; 2],
    groups: usize,
}

/// The layout of operands and results.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// Operands in random layouts; results row-major.
    Any,
    /// Everything row-major, channels last.
    Rows,
    /// Channels of images and results before their rows, as planes.
    Planes,
}

const PLAIN: Case = Case {
    image: [1, 6, 9, 40],
    filter: [3, 3, 20],
    stride: [1; 2],
    dilation: [1; 2],
    padding: [[1; 2]; 2],
    groups: 1,
};

impl Case {
    fn out(&self) -> [i64; 4] {
        let size = |axis: usize| {
            let [before, after] = self.padding[axis].map(|padding| padding as i64);
            let reach = self.dilation[axis] as i64 * (self.filter[axis] - 1);
            let padded = self.image[axis + 1] + before + after - reach - 1;
            Ord::max(padded.div_euclid(self.stride[axis] as i64) + 1, 0)
        };
        [self.image[0], size(0), size(1), self.filter[2]]
    }

    fn filter_shape(&self) -> [i64; 4] {
        let [height, width, filters] = self.filter;
        [height, width, self.image[3] / self.groups as i64, filters]
    }

    /// The kernel, and how many elements its operands have.
    fn kernel(&self, random: &mut Random, dtype: DType, layout: Layout) -> (Conv2d<i64>, [usize; 2]) {
        let ((input, input_count), (filter, filter_count)) = match layout {
            Layout::Any => (
                random.access(0, dtype, &self.image, true),
                random.access(1, dtype, &self.filter_shape(), true),
            ),
            _ => (
                ordered(0, dtype, &self.image, layout == Layout::Planes),
                ordered(1, dtype, &self.filter_shape(), false),
            ),
        };
        let out = self.out();
        let mut epilogue = store(2, dtype, &out);
        epilogue.accesses[0] = ordered(2, dtype, &out, layout == Layout::Planes).0;
        let kernel = Conv2d {
            out,
            input_size: [self.image[1], self.image[2], self.image[3]],
            filter_size: [self.filter[0], self.filter[1]],
            depth: self.filter_shape()[2],
            stride: self.stride,
            dilation: self.dilation,
            padding: self.padding.map(|[before, _]| before),
            groups: self.groups,
            input,
            filter,
            epilogue,
        };
        (kernel, [input_count, filter_count])
    }
}

/// An access in row-major order, or with the last axis before the two others.
fn ordered(slot: u32, dtype: DType, shape: &[i64; 4], planes: bool) -> (Access<i64>, usize) {
    let (mut strides, mut step) = (vec![0; 4], 1);
    for axis in if planes { [2, 1, 3, 0] } else { [3, 2, 1, 0] } {
        strides[axis] = step;
        step *= shape[axis];
    }
    (Access { slot: Slot(slot), dtype, offset: 0, strides }, step as usize)
}

/// Small whole numbers, whose sums are exact in any order.
fn whole<T: Element>(random: &mut Random, count: usize) -> Vec<T> {
    (0..count).map(|_| T::from_double(random.below(9) as f64 - 4.0)).collect()
}

/// The results of plain loops, row-major.
fn expected<T: Element>(case: &Case, kernel: &Conv2d<i64>, x: &[T], weights: &[T]) -> Vec<T> {
    let Case { image: [_, h, w, c], filter: [r, s, f], stride, dilation, padding, groups } = *case;
    let (out, channels, filters) = (kernel.out, c / groups as i64, f / groups as i64);
    let mut expected = Vec::new();
    for at in 0..out.iter().product::<i64>() {
        let [b, y, z, k] = [at / (out[1] * out[2] * f), at / (out[2] * f) % out[1], at / f % out[2], at % f];
        let mut sum = T::Lane::splat(0.0);
        for p in 0..r * s * channels {
            let (i, j, l) = (p / channels / s, p / channels % s, p % channels);
            let source = |axis: usize, at: i64, tap: i64| {
                at * stride[axis] as i64 + tap * dilation[axis] as i64 - padding[axis][0] as i64
            };
            let (row, column) = (source(0, y, i), source(1, z, j));
            if (0..h).contains(&row) && (0..w).contains(&column) {
                let x = element(x, &kernel.input, &[b, row, column, k / filters * channels + l]);
                sum = sum.add(x.to_lane().mul(element(weights, &kernel.filter, &[i, j, l, k]).to_lane()));
            }
        }
        expected.push(T::from_lane(sum));
    }
    expected
}

/// Runs a kernel.
fn run<T: Element>(kernel: &Conv2d<i64>, x: &[T], weights: &[T], threads: usize) -> Vec<T> {
    let count = kernel.out.iter().product::<i64>() as usize;
    let (x, weights) = (Buffer::from(x.to_vec()), Buffer::from(weights.to_vec()));
    let out = Buffer::from(vec![T::from_double(77.0); count]);
    let memory = [Memory::of(&x).unwrap(), Memory::of(&weights).unwrap(), Memory::of_mut(&out).unwrap()];
    let prepared = prepare(&Kernel::Conv2d(kernel.clone())).unwrap();
    prepared.run(&memory, &Pool::new(threads)).unwrap();
    out.to_vec::<T>().unwrap()
}

fn assert_same<T: Element>(got: &[T], expected: &[T], what: &impl std::fmt::Debug) {
    let same = bytemuck::cast_slice::<T, u8>(got) == bytemuck::cast_slice::<T, u8>(expected);
    assert!(same, "{} {what:?}", T::DTYPE);
}

/// Runs a case on 1, 2 and 3 threads.
fn check<T: Element>(random: &mut Random, case: Case, layout: Layout) {
    let (kernel, [input_count, filter_count]) = case.kernel(random, T::DTYPE, layout);
    let (x, weights) = (whole::<T>(random, input_count), whole::<T>(random, filter_count));
    let expected = expected(&case, &kernel, &x, &weights);
    let [_, height, width, filters] = kernel.out.map(|size| size as usize);
    for threads in [1, 2, 3] {
        let out = run(&kernel, &x, &weights, threads);
        let out = match layout {
            Layout::Planes => (0..out.len())
                .map(|at| {
                    let (position, filter) = (at / filters, at % filters);
                    let (image, position) = (position / (height * width), position % (height * width));
                    out[(image * filters + filter) * height * width + position]
                })
                .collect(),
            _ => out,
        };
        assert_same(&out, &expected, &(case, layout, &kernel));
    }
}

/// Runs a case in all layouts and some types.
fn check_layouts(random: &mut Random, case: Case) {
    for layout in [Layout::Any, Layout::Rows, Layout::Planes] {
        check::<f32>(random, case, layout);
        check::<f64>(random, case, layout);
        check::<i32>(random, case, layout);
        check::<bf16>(random, case, layout);
    }
}

#[test]
fn small_shapes_of_every_type() {
    let mut random = Random(9);
    for _ in 0..200 {
        let mut pick = |choices: &[i64]| choices[random.below(choices.len() as u64) as usize];
        let groups = pick(&[1, 1, 2, 3]);
        let (channels, filters) = (pick(&[1, 1, 2, 5]), pick(&[1, 1, 2, 3, 35]));
        let [sh, sw, dh, dw] = [(); 4].map(|()| pick(&[1, 1, 2, 3]) as usize);
        let [top, bottom, left, right] = [(); 4].map(|()| pick(&[0, 0, 1, 2, 7, 13]) as usize);
        let case = Case {
            image: [pick(&[1, 2]), pick(&[1, 4, 9]), pick(&[1, 5, 12]), groups * channels],
            filter: [pick(&[1, 2, 3]), pick(&[1, 2, 5]), groups * filters],
            stride: [sh, sw],
            dilation: [dh, dw],
            padding: [[top, bottom], [left, right]],
            groups: groups as usize,
        };
        let layout = [Layout::Any, Layout::Any, Layout::Rows, Layout::Planes][random.below(4) as usize];
        macro_rules! all { ($($type:ty)*) => {$( check::<$type>(&mut random, case, layout); )*}; }
        all!(f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 Bool f16 bf16 F8E4M3FN F8E5M2);
    }
}

#[test]
fn long_windows_wide_rows_and_many_blocks() {
    let mut random = Random(10);
    let none = [[0; 2]; 2];
    for case in [
        PLAIN,
        Case { image: [1, 2, 600, 3], filter: [2, 7, 140], padding: [[0; 2], [3, 3]], ..PLAIN },
        Case { image: [2, 90, 3, 2], filter: [1, 1, 5], padding: none, stride: [2, 1], ..PLAIN },
        Case { image: [1, 7, 7, 130], filter: [3, 3, 70], ..PLAIN },
        Case { image: [2, 3, 5, 1024], filter: [1, 1, 33], padding: none, ..PLAIN },
        Case { image: [1, 5, 6, 1100], filter: [2, 1, 16], padding: none, stride: [2; 2], ..PLAIN },
        Case { image: [1, 30, 40, 2], filter: [23, 31, 3], ..PLAIN },
        Case { image: [2, 16, 17, 3], filter: [7, 7, 64], stride: [2; 2], padding: [[3; 2]; 2], ..PLAIN },
        Case {
            image: [1, 20, 31, 16],
            filter: [3, 3, 48],
            dilation: [2, 3],
            padding: [[2, 2], [3, 1]],
            ..PLAIN
        },
    ] {
        check_layouts(&mut random, case);
    }
}

#[test]
fn groups_of_few_and_many() {
    let mut random = Random(12);
    for (image, filters, groups) in [
        ([1, 20, 30, 130], 130, 130),
        ([2, 9, 30, 48], 48, 48),
        ([1, 14, 14, 320], 320, 320),
        ([1, 9, 11, 64], 128, 64),
        ([1, 9, 11, 20], 60, 20),
        ([1, 12, 12, 64], 64, 32),
        ([1, 12, 12, 128], 128, 32),
        ([2, 8, 12, 136], 136, 17),
        ([1, 7, 7, 96], 96, 6),
        ([1, 7, 7, 96], 12, 6),
        ([1, 7, 7, 12], 96, 6),
    ] {
        let plain = Case { image, filter: [3, 3, filters], groups, ..PLAIN };
        check_layouts(&mut random, plain);
        check_layouts(&mut random, Case { stride: [2; 2], ..plain });
        check_layouts(&mut random, Case { filter: [2, 5, filters], padding: [[0, 1], [3, 2]], ..plain });
        check_layouts(&mut random, Case { dilation: [2, 1], padding: [[0; 2]; 2], ..plain });
    }
}

#[test]
fn filters_too_large_to_share() {
    let mut random = Random(13);
    let case = Case { image: [2, 1, 1, 2100], filter: [1, 1, 2048], padding: [[0; 2]; 2], ..PLAIN };
    check::<f32>(&mut random, case, Layout::Rows);
}

#[test]
fn taps_and_positions_far_apart() {
    let mut random = Random(14);
    let far = 1 << 40;
    let image = [1, 4, 5, 2];
    let dilated = Case { image, filter: [2, 2, 3], dilation: [far; 2], padding: [[far / 2; 2]; 2], ..PLAIN };
    let spaced = Case { image, filter: [2, 3, 3], stride: [far; 2], padding: [[1, far], [0, far]], ..PLAIN };
    let inside = Case { padding: [[far, 0]; 2], ..dilated };
    for case in [dilated, spaced, inside] {
        check_layouts(&mut random, case);
        check_layouts(&mut random, Case { filter: [2, 2, 2], groups: 2, ..case });
    }
}

#[test]
fn the_same_bits_for_any_threads_and_batch() {
    let mut random = Random(15);
    for case in [
        Case { image: [3, 14, 14, 96], filter: [3, 3, 80], ..PLAIN },
        Case { image: [3, 14, 15, 64], filter: [3, 3, 64], groups: 64, ..PLAIN },
        Case { image: [3, 9, 15, 64], filter: [3, 3, 64], groups: 16, ..PLAIN },
        Case { image: [3, 7, 7, 700], filter: [1, 1, 40], padding: [[0; 2]; 2], ..PLAIN },
    ] {
        for layout in [Layout::Rows, Layout::Planes] {
            let (kernel, [input_count, filter_count]) = case.kernel(&mut random, DType::Float32, layout);
            let (x, weights) = (random.elements::<f32>(input_count), random.elements::<f32>(filter_count));
            let alone = Case { image: [1, case.image[1], case.image[2], case.image[3]], ..case };
            let (one, [size, _]) = alone.kernel(&mut random, DType::Float32, layout);
            let images = x.chunks(size).flat_map(|image| run(&one, image, &weights, 1)).collect::<Vec<_>>();
            for threads in [1, 2, 3, 16] {
                assert_same(&run(&kernel, &x, &weights, threads), &images, &(case, layout, threads));
            }
        }
    }
}

#[test]
fn empty_inputs_give_nothing_or_zeros() {
    let mut random = Random(11);
    let none = Case { image: [1, 4, 4, 0], filter: [2, 2, 3], padding: [[0; 2]; 2], ..PLAIN };
    for case in
        [none, Case { image: [0, 4, 4, 2], ..none }, Case { image: [1, 4, 4, 2], filter: [2, 2, 0], ..none }]
    {
        check_layouts(&mut random, case);
    }
    // Nothing but padding.
    check_layouts(&mut random, Case { image: [1, 0, 4, 3], padding: [[2; 2]; 2], ..none });
}
