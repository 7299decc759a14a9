//! Loops by hand: every op and dtype, rows of every length and direction, layouts, positions, loops in place.

use max_core::kernel::{Access, Instr, Literal, Loop, Reduction, Reg, Slot};
use max_core::scalar::{NumericOp, RealOp};
use max_core::{DType, Distribution, Element, ScalarOp, dispatch};

use super::Case;
use super::random::Dice;

pub(crate) fn access(slot: u32, dtype: DType, strides: &[i64]) -> Access<i64> {
    Access { slot: Slot(slot), dtype, offset: 0, strides: strides.to_vec() }
}

fn apply(op: impl Into<ScalarOp>, a: u32, b: u32) -> Instr<i64> {
    Instr::Apply(op.into(), [Reg(a), Reg(b)])
}

/// Elements of every kind: small, large, odd, and what is not a number.
fn wild(dice: &mut Dice, dtype: DType, count: usize) -> Vec<u8> {
    let choices = [
        0.0,
        -0.0,
        0.25,
        -0.5,
        0.999,
        1.0,
        -1.0,
        1.5,
        2.5,
        -2.5,
        3.7,
        -7.0,
        10.0,
        100.0,
        -127.0,
        250.0,
        1e4,
        -4e9,
        3e20,
        1e-3,
        1e-10,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    let mut bytes = Vec::new();
    for _ in 0..count {
        let value = dice.pick(&choices);
        dispatch!(dtype, T => bytes.extend_from_slice(bytemuck::bytes_of(&T::from_f64(value))));
    }
    bytes
}

/// Elements that add exactly.
fn mild(dice: &mut Dice, dtype: DType, count: usize) -> Vec<u8> {
    super::random::elements(dice, dtype, count)
}

fn case(name: String, loop_: Loop<i64>, memory: Vec<Vec<u8>>, slack: f64) -> Case {
    Case { name, loop_, memory, slack }
}

fn zeros(dtype: DType, count: i64) -> Vec<u8> {
    vec![0; count as usize * dtype.size_in_bytes()]
}

/// Every op on every dtype, in vectors with an odd end.
pub(crate) fn ops() -> Vec<Case> {
    let mut dice = Dice(3);
    let mut cases = Vec::new();
    for op in ScalarOp::all() {
        for &dtype in DType::ALL {
            let fits = match op {
                ScalarOp::RealOp(_) => dtype.is_float(),
                ScalarOp::LogicalOp(_) => dtype == DType::Bool,
                _ => true,
            };
            if !fits {
                continue;
            }
            let to = op.result_dtype(dtype);
            let count = 1003;
            let accesses = vec![access(0, dtype, &[1]), access(1, dtype, &[1]), access(2, to, &[1])];
            let code = vec![Instr::Load(0), Instr::Load(1), apply(op, 0, 1), Instr::Store(2, Reg(2))];
            let loop_ = Loop { shape: vec![count], reduce: None, accesses, code };
            let inputs = [(); 2].map(|()| wild(&mut dice, dtype, count as usize));
            let [a, b] = inputs;
            cases.push(case(format!("{} of {dtype}", op.name()), loop_, vec![a, b, zeros(to, count)], 8.0));
        }
    }
    cases
}

/// Every cast.
pub(crate) fn casts() -> Vec<Case> {
    let mut dice = Dice(5);
    let mut cases = Vec::new();
    for &from in DType::ALL {
        for &to in DType::ALL {
            let count = 517;
            let accesses = vec![access(0, from, &[1]), access(1, to, &[1])];
            let code = vec![Instr::Load(0), Instr::Cast(Reg(0), to), Instr::Store(1, Reg(1))];
            let loop_ = Loop { shape: vec![count], reduce: None, accesses, code };
            let input = wild(&mut dice, from, count as usize);
            cases.push(case(format!("{from} to {to}"), loop_, vec![input, zeros(to, count)], 0.0));
        }
    }
    cases
}

/// One reduction of a matrix, with something of the row added.
fn reduction(dice: &mut Dice, kind: Reduction, dtype: DType, shape: [i64; 2], axis: usize) -> Case {
    let out = if kind.gives_index() { DType::Int64 } else { dtype };
    let rows = shape[1 - axis];
    let mut row = [1, 1];
    row[axis] = 0;
    let accesses = vec![access(0, dtype, &[shape[1], 1]), access(1, out, &row), access(2, out, &row)];
    let code = vec![
        Instr::Load(0),
        Instr::Reduce(kind, Reg(0)),
        Instr::Load(2),
        apply(NumericOp::Max, 1, 2),
        Instr::Store(1, Reg(3)),
    ];
    let loop_ = Loop { shape: shape.to_vec(), reduce: Some(axis), accesses, code };
    let memory = vec![mild(dice, dtype, (shape[0] * shape[1]) as usize), zeros(out, rows), zeros(out, rows)];
    // Sums of many elements are large, and products of many are compared by their sign and their size.
    case(format!("{} of {dtype} {shape:?} along {axis}", kind.name()), loop_, memory, 16.0)
}

pub(crate) fn reductions() -> Vec<Case> {
    use Reduction::{ArgMax, ArgMin, Max, Min, Prod, Sum};
    let mut dice = Dice(7);
    let mut cases = Vec::new();
    for &dtype in DType::ALL {
        for kind in [Sum, Prod, Max, Min, ArgMax, ArgMin] {
            for shape in [[40, 24], [5, 100], [3, 7]] {
                if kind == Prod && dtype.is_float8() {
                    continue;
                }
                cases.extend([0, 1].map(|axis| reduction(&mut dice, kind, dtype, shape, axis)));
            }
        }
    }
    cases
}

/// Softmax with the sums, the largest elements and their positions stored as well.
fn softmax(dice: &mut Dice, shape: [i64; 2], axis: usize, dtype: DType) -> Case {
    let (dense, rows) = ([shape[1], 1], shape[1 - axis]);
    let mut row = [1, 1];
    row[axis] = 0;
    let all = shape[0] * shape[1];
    let loop_ = Loop {
        shape: shape.to_vec(),
        reduce: Some(axis),
        accesses: vec![
            access(0, dtype, &dense),
            access(1, dtype, &dense),
            access(2, dtype, &row),
            access(3, DType::Int64, &row),
        ],
        code: vec![
            Instr::Load(0),
            Instr::Reduce(Reduction::Max, Reg(0)),
            apply(NumericOp::Sub, 0, 1),
            apply(RealOp::Exp, 2, 2),
            Instr::Reduce(Reduction::Sum, Reg(3)),
            apply(RealOp::Div, 3, 4),
            Instr::Store(1, Reg(5)),
            Instr::Store(2, Reg(4)),
            Instr::Reduce(Reduction::ArgMax, Reg(0)),
            Instr::Store(3, Reg(8)),
        ],
    };
    let memory = vec![
        mild(dice, dtype, all as usize),
        zeros(dtype, all),
        zeros(dtype, rows),
        zeros(DType::Int64, rows),
    ];
    case(format!("softmax of {dtype} {shape:?} along {axis}"), loop_, memory, 16.0)
}

pub(crate) fn rows() -> Vec<Case> {
    let mut dice = Dice(9);
    let mut cases = Vec::new();
    for dtype in [DType::Float32, DType::BFloat16, DType::Float64] {
        for length in
            [0, 1, 2, 3, 4, 16, 31, 32, 33, 64, 100, 128, 256, 512, 1000, 1024, 4099, 8192, 20_000, 40_000]
        {
            for rows in [1, 3, 40] {
                cases.push(softmax(&mut dice, [rows, length], 1, dtype));
                cases.push(softmax(&mut dice, [length, rows], 0, dtype));
            }
        }
        for length in [64, 250, 512, 1000] {
            cases.push(softmax(&mut dice, [700, length], 1, dtype));
            cases.push(softmax(&mut dice, [50, length * 4], 0, dtype));
        }
    }
    cases
}

/// Rows that are cut into parts.
pub(crate) fn long_rows() -> Vec<Case> {
    use Reduction::{ArgMax, ArgMin, Max, Sum};
    let mut dice = Dice(11);
    let mut cases = Vec::new();
    for dtype in [DType::Float32, DType::BFloat16, DType::Int32, DType::UInt8] {
        for kind in [Sum, Max, ArgMax, ArgMin] {
            for shape in [[1, 1 << 20], [3, 100_001], [2, 8193], [7, 65_536]] {
                cases.push(reduction(&mut dice, kind, dtype, shape, 1));
                cases.push(reduction(&mut dice, kind, dtype, [shape[1], shape[0]], 0));
            }
            cases.push(reduction(&mut dice, kind, dtype, [5000, 200], 0));
        }
    }
    cases
}

/// Two operands in all the ways that they can lie to each other.
pub(crate) fn layouts() -> Vec<Case> {
    let mut dice = Dice(13);
    let mut cases = Vec::new();
    for dtype in [DType::Float32, DType::BFloat16, DType::Float64, DType::UInt8, DType::Bool] {
        for shape in [[200, 300], [3, 5000], [5000, 3], [65, 129], [64, 64], [1024, 512]] {
            let [rows, cols] = shape;
            for second in [[0, 1], [1, 0], [0, 0], [1, rows], [cols, 1]] {
                for third in [[cols, 1], [1, rows]] {
                    let accesses = vec![
                        access(0, dtype, &[cols, 1]),
                        access(1, dtype, &second),
                        access(2, dtype, &third),
                        access(3, dtype, &[1, rows]),
                    ];
                    let code = vec![
                        Instr::Load(0),
                        Instr::Load(1),
                        apply(NumericOp::Max, 0, 1),
                        Instr::Load(3),
                        apply(NumericOp::Min, 2, 3),
                        Instr::Store(2, Reg(4)),
                    ];
                    let all = (rows * cols) as usize;
                    let [a, b, c] = [(); 3].map(|()| mild(&mut dice, dtype, all));
                    let loop_ = Loop { shape: shape.to_vec(), reduce: None, accesses, code };
                    let name = format!("{dtype} {shape:?} {second:?} {third:?}");
                    cases.push(case(name, loop_, vec![a, b, zeros(dtype, rows * cols), c], 1.0));
                }
            }
        }
    }
    cases
}

/// Positions and random numbers of every walk.
pub(crate) fn positions() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [[3, 5], [1, 1], [130, 70], [2, 5000], [300, 3], [256, 64]] {
        let [rows, cols] = shape;
        for walk in [[cols, 1], [1, rows], [0, 1], [1, 0], [-cols, 2]] {
            for (distribution, dtype) in [
                (Distribution::Normal, DType::Float32),
                (Distribution::Normal, DType::Float64),
                (Distribution::Uniform, DType::Float32),
                (Distribution::Uniform, DType::Float64),
            ] {
                let index = Access { slot: Slot::NONE, offset: 7, ..access(0, DType::Int64, &walk) };
                let accesses = vec![index, access(0, dtype, &[cols, 1]), access(1, DType::Int64, &[1, rows])];
                let seed = Literal { dtype: DType::UInt64, bits: 0x1234_5678_9abc_def0 };
                let code = vec![
                    Instr::Literal(seed),
                    Instr::Index(0),
                    Instr::Random(distribution, dtype, [Reg(0), Reg(1)]),
                    Instr::Store(1, Reg(2)),
                    Instr::Store(2, Reg(1)),
                ];
                let loop_ = Loop { shape: shape.to_vec(), reduce: None, accesses, code };
                let memory = vec![zeros(dtype, rows * cols), zeros(DType::Int64, rows * cols)];
                let slack = if distribution == Distribution::Uniform { 0.0 } else { 8.0 };
                cases.push(case(
                    format!("{distribution:?} {dtype} {shape:?} {walk:?}"),
                    loop_,
                    memory,
                    slack,
                ));
            }
        }
    }
    cases
}

/// Loops over what they read.
pub(crate) fn in_place() -> Vec<Case> {
    let mut dice = Dice(17);
    let mut cases = Vec::new();
    for shape in [[40, 300], [300, 40], [1, 140_000], [50, 7], [4, 100_000]] {
        for axis in [0, 1] {
            let mut softmax = softmax(&mut dice, shape, axis, DType::Float32);
            softmax.loop_.accesses[1].slot = Slot(0);
            cases.push(softmax);
        }
    }
    let accesses = vec![access(0, DType::Int32, &[1]), access(1, DType::Int32, &[1])];
    let code = vec![Instr::Load(0), Instr::Load(1), Instr::Store(0, Reg(1)), Instr::Store(1, Reg(0))];
    let swap = Loop { shape: vec![1001], reduce: None, accesses, code };
    let [a, b] = [(); 2].map(|()| mild(&mut dice, DType::Int32, 1001));
    cases.push(case("two pieces change places".into(), swap, vec![a, b], 0.0));
    cases
}

/// Loops that look random.
pub(crate) fn random() -> Vec<Case> {
    let loops = (1..600).map(|seed| (seed, super::random::random_loop(seed)));
    loops.map(|(seed, (loop_, memory))| case(format!("seed {seed}"), loop_, memory, 64.0)).collect()
}
