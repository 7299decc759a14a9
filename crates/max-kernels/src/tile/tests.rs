//! Every function against the plain meaning of what it does, on every instruction set of this machine.

use bytemuck::Zeroable;
use max_core::scalar::{CompareOp, FloatLane, Lane, LogicalOp, NumericOp, RealOp};
use max_core::{Bool, bf16, f16};

use super::*;

/// Numbers that follow no pattern, the same in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 27)
    }
}

const COUNT: usize = 5 * GROUP;

/// Elements with all kinds of bits, small numbers and the edges of the type.
fn samples<T: Element>(seed: u64) -> Vec<T> {
    let mut noise = Noise(seed);
    let special = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 1e30, 1e-40, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let element = |i: usize| match i % 4 {
        0 => bytemuck::pod_read_unaligned(&noise.next().to_le_bytes()[..size_of::<T>()]),
        1 => T::from_f64(special[noise.next() as usize % special.len()]),
        2 => T::from_i128(noise.next() as i128 % 10 - 5),
        _ => T::from_f64((noise.next() as i64 as f64) / 1e17),
    };
    (0..COUNT).map(element).collect()
}

fn registers<T: Element>(elements: &[T]) -> Vec<T::Lane> {
    elements.iter().map(|&e| T::from_lane(e.to_lane()).to_lane()).collect()
}

fn arg<T>(tile: &[T]) -> Arg {
    Arg { ptr: tile.as_ptr().cast(), repeat: false }
}

fn run<A, O: Copy + Zeroable>(f: TileFn, a: &[A], b: &[A]) -> Vec<O> {
    let mut out = vec![O::zeroed(); a.len()];
    // SAFETY: all three are whole groups of the same length.
    unsafe { f(out.as_mut_ptr().cast(), [arg(a), arg(b), arg(b)], a.len() / GROUP) };
    out
}

/// Equal as a value that is stored: the same bits, or both NaN.
fn same<T: Element>(a: T, b: T) -> bool {
    bytemuck::bytes_of(&a) == bytemuck::bytes_of(&b) || (a != a && b != b)
}

#[test]
fn ops_mean_what_the_table_says() {
    for isa in Isa::available() {
        for &dtype in DType::ALL {
            dispatch!(dtype, T => {
                type L = <T as Element>::Lane;
                let [a, b] = [1, 2].map(|seed| registers(&samples::<T>(seed)));
                for &op in NumericOp::ALL {
                    let out: Vec<L> = run(map::apply(isa, op.into(), dtype).unwrap(), &a, &b);
                    for i in 0..COUNT {
                        let expected = op.apply([a[i], b[i]]);
                        assert!(same(out[i], expected), "{isa:?} {op:?} {dtype} {:?}: {:?}, not {expected:?}", [a[i], b[i]], out[i]);
                    }
                }
                for &op in CompareOp::ALL {
                    let out: Vec<u8> = run(map::apply(isa, op.into(), dtype).unwrap(), &a, &b);
                    for i in 0..COUNT {
                        let expected = op.apply([a[i], b[i]]).get();
                        assert_eq!(out[i], u8::from(expected), "{isa:?} {op:?} {dtype} {:?}", [a[i], b[i]]);
                    }
                }
            });
        }
        let [a, b] = [1, 2].map(|seed| registers(&samples::<Bool>(seed)));
        for &op in LogicalOp::ALL {
            let out: Vec<u8> = run(map::apply(isa, op.into(), DType::Bool).unwrap(), &a, &b);
            for i in 0..COUNT {
                assert_eq!(out[i], u8::from(op.apply([a[i], b[i]]).get()), "{isa:?} {op:?}");
            }
            assert!(map::apply(isa, op.into(), DType::Int8).is_err());
        }
        let [a, b] = [1, 2].map(|seed| samples::<f64>(seed));
        for &op in RealOp::ALL {
            let out: Vec<f64> = run(map::apply(isa, op.into(), DType::Float64).unwrap(), &a, &b);
            for i in 0..COUNT {
                assert!(same(out[i], op.apply([a[i], b[i]])), "{isa:?} {op:?}");
            }
            assert!(map::apply(isa, op.into(), DType::Int64).is_err());
        }
    }
}

#[test]
fn results_may_replace_operands_and_operands_may_repeat() {
    for isa in Isa::available() {
        let mut a: Vec<f32> = (0..COUNT).map(|i| i as f32).collect();
        let before = a.clone();
        let f = map::apply(isa, NumericOp::Sub.into(), DType::Float32).unwrap();
        let two = [2f32; GROUP];
        let own = Arg { ptr: a.as_ptr().cast(), repeat: false };
        let args = [own, Arg { ptr: two.as_ptr().cast(), repeat: true }, own];
        // SAFETY: the tile is whole groups; the repeated one is a group.
        unsafe { f(a.as_mut_ptr().cast(), args, COUNT / GROUP) };
        assert!(a.iter().zip(before).all(|(a, b)| *a == b - 2.0));
    }
}

/// The distance to the exact value in units of the last place of an f32 of a magnitude.
fn ulps(value: f32, exact: f64, magnitude: f64) -> f64 {
    let rounded = exact as f32;
    if value == rounded || (value.is_nan() && rounded.is_nan()) {
        return 0.0;
    }
    if !value.is_finite() || !rounded.is_finite() {
        // One step from the largest number to infinity is a rounding like any other.
        let edge = |x: f32| {
            if x.is_infinite() {
                f64::from(f32::MAX).copysign(x.into()) * (1.0 + 2f64.powi(-24))
            } else {
                x.into()
            }
        };
        return (edge(value) - edge(rounded)).abs() / 2f64.powi(104);
    }
    let magnitude = magnitude.abs().max(f64::from(f32::MIN_POSITIVE));
    let ulp = 2f64.powi(magnitude.log2().floor() as i32 - 23);
    (f64::from(value) - exact).abs() / ulp
}

#[test]
fn functions_of_real_numbers_are_accurate() {
    let dense: Vec<f32> = (0..1u64 << 32).step_by(4093).map(|bits| f32::from_bits(bits as u32)).collect();
    let ordinary = (0..1 << 18).map(|i| (i - (1 << 17)) as f32 * (12.0 / (1 << 17) as f32));
    let mut all: Vec<f32> = dense.into_iter().chain(ordinary).collect();
    all.extend([0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN]);
    all.resize(all.len().next_multiple_of(GROUP), 0.25);
    for isa in Isa::available() {
        for &op in RealOp::ALL.iter().filter(|op| op.arity() == 1) {
            let out: Vec<f32> = run(map::apply(isa, op.into(), DType::Float32).unwrap(), &all, &all);
            let worst = all
                .iter()
                .zip(&out)
                .map(|(&x, &y)| {
                    let exact = op.apply([f64::from(x); 2]);
                    (ulps(y, exact, exact), x, y, exact)
                })
                .fold((0.0, 0.0, 0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a });
            println!("{isa:?} {op:?} {worst:?}");
        }
    }
}
