//! Pooling against plain loops: every bit, for every type, layout and number of threads.

use max_core::kernel::{Access, Instr, Kernel, Reg, Slot};
use max_core::scalar::RealOp;
use max_core::small_float::{F8E4M3FN, F8E5M2};
use max_core::{Bool, bf16, f16};
use max_driver::Buffer;

use super::*;
use crate::matmul::tests::{Random, element, store};
use crate::prepare;

#[derive(Clone, Copy, Debug)]
struct Case {
    image: [i64; 4],
    window: [i64; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    padding: [usize; 4],
    /// How many windows there are more than those that fit.
    more: [i64; 2],
}

const PLAIN: Case = Case {
    image: [2, 9, 14, 40],
    window: [3, 3],
    stride: [1; 2],
    dilation: [1; 2],
    padding: [1; 4],
    more: [0; 2],
};

impl Case {
    fn out(&self) -> [i64; 4] {
        let size = |axis: usize| {
            let padding = (self.padding[2 * axis] + self.padding[2 * axis + 1]) as i64;
            let reach = self.dilation[axis] as i64 * (self.window[axis] - 1);
            let room = self.image[axis + 1] + padding - reach - 1;
            Ord::max(room.div_euclid(self.stride[axis] as i64) + 1 + self.more[axis], 0)
        };
        [self.image[0], size(0), size(1), self.image[3]]
    }

    fn kernel(&self, pooling: Pooling, input: Access<i64>) -> Window<i64> {
        let out = self.out();
        Window {
            pooling,
            out,
            input_size: [self.image[1], self.image[2]],
            window: self.window,
            stride: self.stride,
            dilation: self.dilation,
            padding: self.padding,
            epilogue: store(1, input.dtype, &out),
            input,
        }
    }
}

/// The results of plain loops, row-major.
fn expected<T: Element>(k: &Window<i64>, x: &[T]) -> Vec<T>
where
    T::Lane: Pod,
{
    let [_, height, width, channels] = k.out;
    let results = (0..k.out.iter().product::<i64>()).map(|at| {
        let (c, rest) = (at % channels, at / channels);
        let position = [rest / width % height, rest % width];
        let (mut max, mut sum, mut counted) = (<Max as Reduce<T>>::start(), 0.0, 0);
        for tap in 0..k.window[0] * k.window[1] {
            let taps = [tap / k.window[1], tap % k.window[1]];
            let at: [i64; 2] = std::array::from_fn(|axis| {
                position[axis] * k.stride[axis] as i64 + taps[axis] * k.dilation[axis] as i64
                    - k.padding[2 * axis] as i64
            });
            let within = |padded: bool| {
                (0..2).all(|axis| {
                    let [before, after] =
                        [0, 1].map(|side| k.padding[2 * axis + side] as i64 * i64::from(padded));
                    (-before..k.input_size[axis] + after).contains(&at[axis])
                })
            };
            counted += i64::from(within(k.pooling == Pooling::Mean));
            if within(false) {
                let x = element(x, &k.input, &[rest / width / height, at[0], at[1], c]);
                max = Lane::max(max, x.to_lane());
                sum += x.to_f64();
            }
        }
        match k.pooling {
            Pooling::Max => T::from_lane(max),
            _ => T::from_real(T::Real::splat(sum).div(T::Real::splat(Ord::max(counted, 1) as f64))),
        }
    });
    results.collect()
}

fn run<T: Element>(kernel: &Window<i64>, x: &[T], threads: usize) -> Vec<T> {
    let x = Buffer::from(x.to_vec());
    let out = Buffer::from(vec![T::from_double(77.0); kernel.out.iter().product::<i64>() as usize]);
    let memory = [Memory::of(&x).unwrap(), Memory::of_mut(&out).unwrap()];
    let prepared = prepare(&Kernel::Window(kernel.clone())).unwrap();
    prepared.run(&memory, &Pool::new(threads)).unwrap();
    out.to_vec::<T>().unwrap()
}

/// Small whole numbers, whose sums are exact in any order.
fn whole<T: Element>(random: &mut Random, count: usize) -> Vec<T> {
    (0..count).map(|_| T::from_double(random.below(9) as f64 - 4.0)).collect()
}

fn assert_same<T: Element>(got: &[T], expected: &[T], what: &impl std::fmt::Debug) {
    let same = bytemuck::cast_slice::<T, u8>(got) == bytemuck::cast_slice::<T, u8>(expected);
    assert!(same, "{} {what:?}", T::DTYPE);
}

/// Row-major, or with channels before rows.
fn ordered(dtype: DType, shape: &[i64; 4], planes: bool) -> (Access<i64>, usize) {
    let (mut strides, mut step) = (vec![0; 4], 1);
    for axis in if planes { [2, 1, 3, 0] } else { [3, 2, 1, 0] } {
        strides[axis] = step;
        step *= shape[axis];
    }
    (Access { slot: Slot(0), dtype, offset: 0, strides }, step as usize)
}

/// Runs a case with every kind of pooling, in a layout: 0 row-major, 1 planes, 2 any.
fn check<T: Element>(random: &mut Random, case: Case, layout: u64)
where
    T::Lane: Pod,
{
    let (input, count) = match layout {
        2 => random.access(0, T::DTYPE, &case.image, true),
        layout => ordered(T::DTYPE, &case.image, layout == 1),
    };
    let x = whole::<T>(random, count);
    for &pooling in Pooling::ALL {
        if pooling != Pooling::Max && T::DTYPE == DType::Bool {
            continue;
        }
        let kernel = case.kernel(pooling, input.clone());
        let expected = expected(&kernel, &x);
        for threads in [1, 3] {
            assert_same(&run(&kernel, &x, threads), &expected, &(case, &kernel));
        }
    }
}

#[test]
fn small_shapes_of_every_type() {
    let mut random = Random(21);
    for _ in 0..150 {
        let mut pick = |choices: &[i64]| choices[random.below(choices.len() as u64) as usize];
        let [sh, sw, dh, dw] = [(); 4].map(|()| pick(&[1, 1, 2, 3]) as usize);
        let padding = [(); 4].map(|()| pick(&[0, 0, 1, 2, 5]) as usize);
        let case = Case {
            image: [pick(&[1, 2]), pick(&[1, 4, 9]), pick(&[1, 5, 37]), pick(&[1, 3, 8, 17, 70])],
            window: [pick(&[1, 2, 3, 9]), pick(&[1, 2, 5])],
            stride: [sh, sw],
            dilation: [dh, dw],
            padding,
            more: [pick(&[0, 0, 1]), pick(&[0, 0, 1])],
        };
        let layout = random.below(3);
        macro_rules! all { ($($type:ty)*) => {$( check::<$type>(&mut random, case, layout); )*}; }
        all!(f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 Bool f16 bf16 F8E4M3FN F8E5M2);
    }
}

#[test]
fn large_windows_wide_rows_and_many_channels() {
    let mut random = Random(22);
    for case in [
        PLAIN,
        Case { image: [1, 70, 66, 21], window: [70, 66], padding: [0; 4], ..PLAIN },
        Case { image: [1, 2, 3000, 1], window: [2, 7], ..PLAIN },
        Case { image: [1, 3, 900, 3], stride: [2, 2], ..PLAIN },
        Case { image: [1, 4, 4, 9000], window: [2, 2], stride: [2; 2], padding: [0; 4], ..PLAIN },
        Case { image: [1, 130, 4, 700], window: [130, 3], ..PLAIN },
        Case { image: [2, 20, 200, 64], stride: [2; 2], ..PLAIN },
    ] {
        for layout in 0..3 {
            check::<f32>(&mut random, case, layout);
            check::<f64>(&mut random, case, layout);
            check::<u8>(&mut random, case, layout);
            check::<bf16>(&mut random, case, layout);
        }
    }
}

#[test]
fn windows_far_apart_and_far_reaching() {
    let mut random = Random(23);
    let far = 1 << 40;
    let image = [1, 4, 5, 2];
    let dilated = Case { image, window: [2, 2], dilation: [far; 2], padding: [far / 2; 4], ..PLAIN };
    let spaced = Case { image, window: [2, 3], stride: [far; 2], padding: [1, far, 0, far], ..PLAIN };
    for case in [dilated, spaced, Case { padding: [far, 0, far, 0], ..dilated }] {
        check::<f32>(&mut random, case, 0);
        check::<bf16>(&mut random, case, 2);
    }
    let out = [1, 1, 1, 2];
    let mut kernel = PLAIN.kernel(Pooling::Max, ordered(DType::Float32, &image, false).0);
    (kernel.out, kernel.input_size, kernel.epilogue) = (out, [4, 5], store(1, DType::Float32, &out));
    kernel.window = [1 << 62; 2];
    let x: Vec<f32> = (0..40).map(|i| i as f32).collect();
    assert_eq!(run(&kernel, &x, 1), [38.0, 39.0]);
    kernel.dilation = [1 << 10; 2];
    assert!(prepare(&Kernel::Window(kernel)).is_err());
}

#[test]
fn nan_is_the_maximum() {
    for channels in [1, 20] {
        let case = Case { image: [1, 5, 6, channels], ..PLAIN };
        let (input, count) = ordered(DType::Float32, &case.image, false);
        let mut x: Vec<f32> = (0..count).map(|i| i as f32).collect();
        x[0] = f32::NAN;
        x[1] = f32::NEG_INFINITY;
        let out = run(&case.kernel(Pooling::Max, input), &x, 2);
        let nan = (0..out.len()).filter(|&at| out[at].is_nan()).count();
        assert_eq!(nan, 4, "{channels} channels");
    }
}

#[test]
fn the_same_bits_for_any_threads_and_batch() {
    let mut random = Random(24);
    for image in [[3, 14, 14, 96], [3, 30, 31, 3], [3, 60, 50, 20]] {
        for window in [[3, 3], [7, 7]] {
            let case = Case { image, window, ..PLAIN };
            let alone = Case { image: [1, image[1], image[2], image[3]], ..case };
            let (input, count) = ordered(DType::Float32, &case.image, false);
            let x = random.elements::<f32>(count);
            let one = alone.kernel(Pooling::Mean, input.clone());
            let images = x.chunks(count / 3).flat_map(|image| run(&one, image, 1)).collect::<Vec<_>>();
            for threads in [1, 2, 16] {
                assert_same(&run(&case.kernel(Pooling::Mean, input.clone()), &x, threads), &images, &case);
            }
        }
    }
}

#[test]
fn epilogues_run_on_results() {
    let mut random = Random(25);
    for channels in [3, 24] {
        let case = Case { image: [2, 5, 6, channels], ..PLAIN };
        let (input, count) = ordered(DType::BFloat16, &case.image, false);
        let x = whole::<bf16>(&mut random, count);
        let mut kernel = case.kernel(Pooling::Mean, input);
        let plain = run(&kernel, &x, 2);
        let access = match kernel.epilogue.code.pop() {
            Some(Instr::Store(access, _)) => access,
            other => panic!("{other:?} is no store"),
        };
        kernel.epilogue.code.push(Instr::Apply(RealOp::Exp.into(), [Reg(0); 2]));
        kernel.epilogue.code.push(Instr::Store(access, Reg(1)));
        for (got, plain) in run(&kernel, &x, 2).iter().zip(plain) {
            let want = plain.to_f32().exp();
            assert!((got.to_f32() - want).abs() <= 0.02 * want, "{got} {want}");
        }
    }
}

#[test]
fn empty_inputs_give_nothing_or_padding() {
    let mut random = Random(26);
    let none = Case { image: [1, 4, 4, 0], window: [2, 2], padding: [0; 4], ..PLAIN };
    for case in
        [none, Case { image: [0, 4, 4, 2], ..none }, Case { image: [1, 0, 4, 3], padding: [2; 4], ..none }]
    {
        check::<f32>(&mut random, case, 0);
        check::<bf16>(&mut random, case, 1);
    }
}
