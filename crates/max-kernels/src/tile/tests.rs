//! Every function against its definition, on every instruction set of this machine.

use bytemuck::Zeroable;
use max_core::scalar::{CompareOp, LogicalOp, NumericOp, RealOp};
use max_core::{Bool, Number};

use super::*;

/// Pseudo-random numbers, the same in every run.
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
        1 => T::from_double(special[noise.next() as usize % special.len()]),
        2 => T::from_i128(noise.next() as i128 % 10 - 5),
        _ => T::from_double((noise.next() as i64 as f64) / 1e17),
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

/// Equal as stored values: the same bits, or both NaN.
fn same<T: Element>(a: T, b: T) -> bool {
    bytemuck::bytes_of(&a) == bytemuck::bytes_of(&b) || (a.to_f64().is_nan() && b.to_f64().is_nan())
}

#[test]
fn ops_match_the_scalar_table() {
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
        let [a, b] = [1, 2].map(samples::<f64>);
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
    if value.is_nan() || rounded.is_nan() {
        return f64::INFINITY;
    }
    // Infinity counts as the number that would follow the largest finite one.
    let finite = |x: f64| x.clamp(-2f64.powi(128), 2f64.powi(128));
    let magnitude = finite(magnitude).abs().max(f64::from(f32::MIN_POSITIVE));
    let ulp = 2f64.powi((magnitude.log2().floor() as i32).min(127) - 23);
    (finite(value.into()) - finite(exact)).abs() / ulp
}

/// The allowed error of a function in units in the last place of a magnitude: for bodies of the table that subtract,
/// the magnitude of what they subtract from. Bodies that scale the argument of exp inherit its error.
fn allowed(op: RealOp, x: f64, exact: f64) -> (f64, f64) {
    match op {
        RealOp::Gelu | RealOp::GeluTanh => (4.0, exact.abs().max(x.abs())),
        RealOp::GeluQuick => ((4.0 + 2.0 * x.abs()).max(4.0), exact),
        _ => (2.0, exact),
    }
}

#[test]
fn functions_of_real_numbers_are_accurate() {
    let dense = (0..1u64 << 32).step_by(16381).map(|bits| f32::from_bits(bits as u32));
    let ordinary = (0..1 << 16).map(|i| (i - (1 << 15)) as f32 * (12.0 / (1 << 15) as f32));
    let edges =
        [0.0, 1.0, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-45, 88.72284, 88.72283, 87.4, 103.9, 104.0];
    let mut all: Vec<f32> = dense.chain(ordinary).collect();
    all.extend(edges.iter().flat_map(|&edge| [edge, -edge]));
    all.resize(all.len().next_multiple_of(GROUP), f32::NAN);
    for &op in RealOp::ALL.iter().filter(|op| op.arity() == 1) {
        // Where exp overflows, the quotient is zero rather than tiny, as the table defines it in f32.
        let bottom = match op {
            RealOp::Sigmoid | RealOp::Silu => -88.0,
            RealOp::GeluQuick => -51.0,
            _ => f32::NEG_INFINITY,
        };
        let exact: Vec<f64> = all.iter().map(|&x| op.apply([f64::from(x); 2])).collect();
        for isa in Isa::available() {
            let out: Vec<f32> = run(map::apply(isa, op.into(), DType::Float32).unwrap(), &all, &all);
            for ((&x, &y), &exact) in
                all.iter().zip(&out).zip(&exact).filter(|((x, _), _)| x.is_nan() || **x >= bottom)
            {
                let (allowed, magnitude) = allowed(op, x.into(), exact);
                let error = ulps(y, exact, magnitude);
                assert!(error <= allowed, "{isa:?} {op:?} {x:e}: {y:e}, not {exact:e}: {error} units");
                let signed = y == 0.0 && x == 0.0 && exact == 0.0;
                assert!(
                    !signed || y.is_sign_negative() == exact.is_sign_negative(),
                    "{isa:?} {op:?} {x:e}: {y:e}"
                );
            }
        }
    }
}

#[test]
fn casts_match_number_conversions() {
    for isa in Isa::available() {
        for &from in DType::ALL {
            let (bytes, numbers): (Vec<u8>, Vec<Number>) = dispatch!(from, T => {
                let elements = samples::<T>(3);
                let tile = registers(&elements);
                (bytemuck::cast_slice(&tile).to_vec(), elements.into_iter().map(number).collect())
            });
            for &to in DType::ALL {
                dispatch!(to, T => {
                    let mut out = vec![<T as Element>::Lane::zeroed(); COUNT];
                    // SAFETY: the operand and the result are whole groups.
                    unsafe { map::cast(isa, from, to)(out.as_mut_ptr().cast(), [arg(&bytes); 3], COUNT / GROUP) };
                    for (out, number) in out.into_iter().zip(&numbers) {
                        let expected: T = match *number {
                            Number::Float(f) => T::from_double(f),
                            Number::Int(i) => T::from_i128(i),
                            Number::Bool(b) => T::from_i128(b.into()),
                        };
                        assert!(same(out, expected.to_lane()), "{isa:?} {number} from {from} to {to}: {out:?}, not {expected:?}");
                    }
                });
            }
        }
    }
}

fn number<T: Element>(element: T) -> Number {
    match T::DTYPE {
        DType::Bool => Number::Bool(element.to_i128() != 0),
        dtype if dtype.is_float() => Number::Float(element.to_f64()),
        _ => Number::Int(element.to_i128()),
    }
}

#[test]
fn select_takes_one_or_the_other() {
    for isa in Isa::available() {
        for &dtype in DType::ALL {
            dispatch!(dtype, T => {
                let condition = registers(&samples::<Bool>(4));
                let [a, b] = [5, 6].map(|seed| registers(&samples::<T>(seed)));
                let mut out = a.clone();
                // SAFETY: all are whole groups; the result is not an operand.
                unsafe {
                    let args = [arg(&condition), arg(&a), arg(&b)];
                    map::select(isa, dtype)(out.as_mut_ptr().cast(), args, COUNT / GROUP);
                }
                for i in 0..COUNT {
                    assert!(same(out[i], if condition[i].get() { a[i] } else { b[i] }), "{isa:?} {dtype}");
                }
            });
        }
    }
}

#[test]
fn loads_and_stores_walk_strides() {
    for isa in Isa::available() {
        for (&dtype, stride) in DType::ALL.iter().flat_map(|d| [1, 2, -1, 0, 7].map(|stride| (d, stride))) {
            for count in [1, 63, 64, 65, 127, 200] {
                dispatch!(dtype, T => check_walk::<T>(isa, stride, count));
            }
        }
    }
}

/// Loads elements and stores them again, both at addresses that are not aligned.
fn check_walk<T: Element<Lane: Element>>(isa: Isa, stride: isize, count: usize) {
    let size = size_of::<T>();
    let span = (count - 1) * stride.unsigned_abs() + 1;
    let elements: Vec<T> = samples(count as u64).into_iter().cycle().take(span).collect();
    let mut memory = vec![0u8; span * size + 1];
    memory[1..].copy_from_slice(bytemuck::cast_slice(&elements));
    let first = if stride < 0 { span - 1 } else { 0 };
    let at = |i: usize| first.wrapping_add_signed(i as isize * stride);

    let mut tile = vec![T::from_double(7.0).to_lane(); count.next_multiple_of(GROUP)];
    let from = memory[1 + first * size..].as_ptr();
    // SAFETY: there are `span` elements after the first byte, and the tile is whole groups.
    unsafe { memory::load(isa, T::DTYPE)(tile.as_mut_ptr().cast(), from, stride, count) };
    let expected = registers(&elements);
    for (i, &element) in tile[..count].iter().enumerate() {
        assert!(same(element, expected[at(i)]), "{isa:?} load {} {stride} {count}", T::DTYPE);
    }
    if T::DTYPE == DType::Bool {
        assert!(bytemuck::cast_slice::<_, u8>(&tile).iter().all(|&byte| byte < 2));
    }
    for streaming in [false, true] {
        for offset in [0, 1, 24] {
            let guard = 0xa5;
            let mut stored = vec![guard; span * size + 64 + offset];
            let start = stored.as_ptr().align_offset(64) % 64 + offset;
            let start = if start + span * size <= stored.len() { start } else { offset };
            // SAFETY: there is room for `span` elements from the start.
            unsafe {
                let to = stored.as_mut_ptr().add(start + first * size);
                memory::store(isa, T::DTYPE, streaming)(to, stride, tile.as_ptr().cast(), count);
            }
            fence();
            let mut expected = vec![guard; stored.len()];
            for (i, &element) in tile[..count].iter().enumerate() {
                expected[start + at(i) * size..][..size]
                    .copy_from_slice(bytemuck::bytes_of(&T::from_lane(element)));
            }
            assert!(stored == expected, "{isa:?} store {} {stride} {count} {streaming} {offset}", T::DTYPE);
        }
    }
}

#[test]
fn reductions_combine_every_element_once() {
    for isa in Isa::available() {
        for &dtype in DType::ALL {
            dispatch!(dtype, T => check_reductions::<T>(isa));
            assert!(reduce::reducer(isa, Reduction::ArgMax, dtype).is_err());
        }
    }
}

fn check_reductions<T: Element<Lane: Element + std::fmt::Debug>>(isa: Isa) {
    let kinds = [
        (Reduction::Sum, NumericOp::Add),
        (Reduction::Prod, NumericOp::Mul),
        (Reduction::Max, NumericOp::Max),
        (Reduction::Min, NumericOp::Min),
    ];
    for (kind, op) in kinds {
        let reducer = reduce::reducer(isa, kind, T::DTYPE).unwrap();
        for (count, repeat) in [(0, false), (1, false), (64, false), (200, false), (100, true)] {
            // Small whole numbers, so that sums and products are exact in any order. After them comes NaN, if the type
            // has it.
            let value = |i: usize| {
                if op == NumericOp::Mul { 1 + i128::from(i % 50 == 7) } else { (i as i128 * 7) % 11 - 5 }
            };
            let lane = |i: usize| T::from_i128(if repeat { 3 } else { value(i) }).to_lane();
            let tile: Vec<T::Lane> = (0..256)
                .map(|i| if i < count || repeat { lane(i) } else { T::from_double(f64::NAN).to_lane() })
                .collect();
            let mut acc = vec![T::from_double(9.0).to_lane(); GROUP];
            // SAFETY: the accumulator is a group, and the tile holds `count` elements.
            unsafe {
                (reducer.start)(acc.as_mut_ptr().cast());
                let (first, second) = (count / 3 / GROUP * GROUP, Arg { repeat, ..arg(&tile) });
                (reducer.add)(acc.as_mut_ptr().cast(), second, first);
                let rest = second.ptr.wrapping_add(if repeat { 0 } else { first * size_of::<T::Lane>() });
                (reducer.add)(acc.as_mut_ptr().cast(), Arg { ptr: rest, repeat }, count - first);
                (reducer.finish)(acc.as_mut_ptr().cast());
            }
            let bound = |f: f64| <T::Lane as Element>::from_double(f);
            let identity = match (kind, T::DTYPE) {
                (Reduction::Max, dtype) if dtype != DType::Bool => bound(f64::NEG_INFINITY),
                (Reduction::Min, dtype) if dtype != DType::Bool => bound(f64::INFINITY),
                (Reduction::Prod | Reduction::Min, _) => bound(1.0),
                _ => bound(0.0),
            };
            let expected = (0..count).fold(identity, |acc, i| op.apply([acc, lane(i)]));
            assert!(
                acc.iter().all(|&a| same(a, expected)),
                "{isa:?} {kind:?} {} {count}: {:?}, not {expected:?}",
                T::DTYPE,
                acc[0]
            );
        }
    }
}

#[test]
fn literals_fill_a_group() {
    for &dtype in DType::ALL {
        dispatch!(dtype, T => {
            let element = T::from_double(1.5);
            let mut bits = [0; 8];
            bits[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&element));
            let mut tile = [<T as Element>::Lane::zeroed(); GROUP];
            // SAFETY: the tile is a group.
            unsafe { splat(Literal { dtype, bits: u64::from_le_bytes(bits) }, tile.as_mut_ptr().cast()) };
            assert!(tile.iter().all(|&lane| same(lane, element.to_lane())), "{dtype}");
            assert_eq!(size_of_val(&tile), GROUP * register_size(dtype));
            assert_eq!(direct(dtype), dtype != DType::Bool && size_of::<T>() == register_size(dtype));
        });
    }
}

#[test]
fn transposes_of_all_shapes() {
    fn check<T: Element>() {
        for (rows, cols) in [(1, 1), (3, 5), (16, 16), (17, 33), (64, 8), (100, 70), (1, 40), (0, 3)] {
            let (src_stride, dst_stride) = (cols + 3, rows + 2);
            let src: Vec<T> = samples(7).into_iter().cycle().take(rows * src_stride).collect();
            let mut dst = vec![T::from_double(1.0); cols * dst_stride];
            let mut expected = dst.clone();
            for (r, c) in (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c))) {
                expected[c * dst_stride + r] = src[r * src_stride + c];
            }
            // SAFETY: both hold the matrix with its strides.
            unsafe {
                let (to, from) = (dst.as_mut_ptr().cast(), src.as_ptr().cast());
                transpose(size_of::<T>(), to, dst_stride, from, src_stride as isize, rows, cols);
            }
            let (dst, expected): (&[u8], &[u8]) =
                (bytemuck::cast_slice(&dst), bytemuck::cast_slice(&expected));
            assert!(dst == expected, "{} {rows} {cols}", T::DTYPE);
        }
    }
    check::<u8>();
    check::<i16>();
    check::<f32>();
    check::<f64>();
}

#[test]
fn random_numbers_are_the_same_on_every_instruction_set() {
    let seeds: Vec<u64> = (0..COUNT as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let positions: Vec<u64> = (0..COUNT as u64).map(|i| i << (i % 40)).collect();
    let expected = |distribution: Distribution| -> (Vec<f32>, Vec<f64>) {
        let pairs = || seeds.iter().zip(&positions);
        let narrow = pairs().map(|(&seed, &at)| distribution.draw::<f32>(seed, at)).collect();
        (narrow, pairs().map(|(&seed, &at)| distribution.draw::<f64>(seed, at)).collect())
    };
    for isa in Isa::available() {
        let draw = |distribution, dtype| map::random(isa, distribution, dtype).unwrap();
        let (narrow, wide) = expected(Distribution::Uniform);
        assert_eq!(run::<u64, f32>(draw(Distribution::Uniform, DType::Float32), &seeds, &positions), narrow);
        assert_eq!(run::<u64, f64>(draw(Distribution::Uniform, DType::Float64), &seeds, &positions), wide);
        let (narrow, wide) = expected(Distribution::Normal);
        assert_eq!(run::<u64, f64>(draw(Distribution::Normal, DType::Float64), &seeds, &positions), wide);
        let got = run::<u64, f32>(draw(Distribution::Normal, DType::Float32), &seeds, &positions);
        for (got, expected) in got.iter().zip(&narrow) {
            assert!(
                (got - expected).abs() <= 4.0 * f32::EPSILON * expected.abs(),
                "{isa:?}: {got}, not {expected}"
            );
        }
    }
}

#[test]
fn positions_are_counted_and_padded() {
    for isa in Isa::available() {
        for [rows, cols] in [[1usize, 1], [1, 64], [3, 5], [2, 100], [70, 1]] {
            let mut tile = vec![0i64; (rows * cols).next_multiple_of(GROUP)];
            // SAFETY: the tile has room for whole groups.
            unsafe { index::index(isa)(tile.as_mut_ptr().cast(), 10, [-100, 3], rows, cols) };
            let at = |i: usize| 10 - 100 * (i / cols) as i64 + 3 * (i % cols) as i64;
            let count = rows * cols;
            assert!((0..tile.len()).all(|i| tile[i] == at(i.min(count - 1))), "{rows} x {cols}: {tile:?}");
        }
    }
}
