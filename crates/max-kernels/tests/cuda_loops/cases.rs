//! Hand-written loops: every op and dtype, rows of every length and direction, layouts, positions, loops in place.

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

/// Elements of every kind: small, large, odd, and NaN.
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
        dispatch!(dtype, T => bytes.extend_from_slice(bytemuck::bytes_of(&T::from_double(value))));
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

/// A loop over two vectors of odd length that stores the result of each instruction.
fn each(dice: &mut Dice, name: String, from: DType, given: &[(Instr<i64>, DType)]) -> Case {
    let count = 1003;
    let mut accesses = vec![access(0, from, &[1]), access(1, from, &[1])];
    let mut code = vec![Instr::Load(0), Instr::Load(1)];
    let mut memory = [(); 2].map(|()| wild(dice, from, count as usize)).to_vec();
    for (instr, to) in given {
        let number = accesses.len() as u32;
        accesses.push(access(number, *to, &[1]));
        memory.push(zeros(*to, count));
        code.push(instr.clone());
        code.push(Instr::Store(number, Reg(code.len() as u32 - 1)));
    }
    let loop_ = Loop { shape: vec![count], reduce: None, accesses, code };
    case(name, loop_, memory, 8.0)
}

/// Every op on every dtype, several at a time; alone, as in prebuilt modules, on one dtype.
pub(crate) fn ops() -> Vec<Case> {
    let mut dice = Dice(3);
    let mut cases = Vec::new();
    for &dtype in DType::ALL {
        let fits = |op: &ScalarOp| match op {
            ScalarOp::RealOp(_) => dtype.is_float(),
            ScalarOp::LogicalOp(_) => dtype == DType::Bool,
            _ => true,
        };
        let (asked, given): (Vec<_>, Vec<_>) = ScalarOp::all()
            .filter(fits)
            .map(|op| (op, op.result_dtype(dtype)))
            .partition(|(_, to)| *to == DType::Bool);
        let together = if dtype == DType::Float32 { 1 } else { 8 };
        for ops in [asked, given].iter().flat_map(|ops| ops.chunks(together)) {
            let names: Vec<&str> = ops.iter().map(|(op, _)| op.name()).collect();
            let instrs: Vec<_> = ops.iter().map(|&(op, to)| (apply(op, 0, 1), to)).collect();
            cases.push(each(&mut dice, format!("{} of {dtype}", names.join(", ")), dtype, &instrs));
        }
        let add = (apply(NumericOp::Add, 0, 1), dtype);
        cases.push(each(&mut dice, format!("add alone of {dtype}"), dtype, &[add]));
    }
    cases
}

/// Every cast, those to elements of one size together; alone, as in prebuilt modules, for some dtypes.
pub(crate) fn casts() -> Vec<Case> {
    let mut dice = Dice(5);
    let mut cases = Vec::new();
    for &from in DType::ALL {
        for size in [1, 2, 4, 8] {
            let to: Vec<DType> = DType::ALL.iter().copied().filter(|to| to.size_in_bytes() == size).collect();
            let instrs: Vec<_> = to.iter().map(|&to| (Instr::Cast(Reg(0), to), to)).collect();
            let exact = each(&mut dice, format!("{from} to {to:?}"), from, &instrs);
            cases.push(Case { slack: 0.0, ..exact });
        }
    }
    for [from, to] in [[DType::Float32, DType::BFloat16], [DType::BFloat16, DType::Float32]] {
        let instr = (Instr::Cast(Reg(0), to), to);
        cases.push(each(&mut dice, format!("{from} to {to} alone"), from, &[instr]));
    }
    cases
}

/// Reductions of a matrix, each followed by an op with another per-row value.
fn reduction(dice: &mut Dice, kinds: &[Reduction], dtype: DType, shape: [i64; 2], axis: usize) -> Case {
    let rows = shape[1 - axis];
    let mut row = [1, 1];
    row[axis] = 0;
    let mut accesses = vec![access(0, dtype, &[shape[1], 1])];
    let mut code = vec![Instr::Load(0)];
    let mut memory = vec![mild(dice, dtype, (shape[0] * shape[1]) as usize)];
    for &kind in kinds {
        let out = if kind.gives_index() { DType::Int64 } else { dtype };
        let (number, reg) = (accesses.len() as u32, code.len() as u32);
        accesses.extend([access(number, out, &row), access(number + 1, out, &row)]);
        memory.extend([zeros(out, rows), zeros(out, rows)]);
        code.extend([
            Instr::Reduce(kind, Reg(0)),
            Instr::Load(number + 1),
            apply(NumericOp::Max, reg, reg + 1),
            Instr::Store(number, Reg(reg + 2)),
        ]);
    }
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    let loop_ = Loop { shape: shape.to_vec(), reduce: Some(axis), accesses, code };
    // Sums of many elements are large, and products of many are compared by their sign and their size.
    case(format!("{} of {dtype} {shape:?} along {axis}", names.join(", ")), loop_, memory, 16.0)
}

pub(crate) fn reductions() -> Vec<Case> {
    use Reduction::{ArgMax, ArgMin, Max, Min, Prod, Sum};
    let mut dice = Dice(7);
    let mut cases = Vec::new();
    for &dtype in DType::ALL {
        let mut kinds = vec![Sum, Prod, Max, Min, ArgMax, ArgMin];
        kinds.retain(|kind| *kind != Prod || !dtype.is_small_float());
        let together = if dtype == DType::Float32 { 1 } else { kinds.len() };
        for kinds in kinds.chunks(together) {
            for shape in [[40, 24], [5, 100], [3, 7]] {
                cases.extend([0, 1].map(|axis| reduction(&mut dice, kinds, dtype, shape, axis)));
            }
        }
    }
    // The first of equal elements, and NaN.
    for (shape, axis) in [([40, 24], 0), ([40, 24], 1), ([5, 100], 1), ([3, 100_001], 1), ([100_001, 3], 0)] {
        for kinds in [&[ArgMax][..], &[Max, ArgMin], &[Min]] {
            let mut case = reduction(&mut dice, kinds, DType::Float32, shape, axis);
            case.memory[0] = wild(&mut dice, DType::Float32, (shape[0] * shape[1]) as usize);
            case.name.push_str(", wild");
            cases.push(case);
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
        for length in [0, 1, 2, 3, 16, 31, 33, 64, 100, 256, 1000, 1024, 4099, 20_000, 40_000] {
            for rows in [1, 40] {
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

/// Rows that are split into parts.
pub(crate) fn long_rows() -> Vec<Case> {
    use Reduction::{ArgMax, ArgMin, Max, Sum};
    let mut dice = Dice(11);
    let mut cases = Vec::new();
    for (dtype, all) in
        [(DType::Float32, true), (DType::BFloat16, false), (DType::Int32, false), (DType::UInt8, false)]
    {
        for kinds in [&[Sum][..], &[ArgMax], &[Max, ArgMin]] {
            for shape in
                [[3, 100_001], [7, 65_536], [1, 1 << 20], [2, 8193]].iter().take(if all { 4 } else { 2 })
            {
                cases.push(reduction(&mut dice, kinds, dtype, *shape, 1));
                cases.push(reduction(&mut dice, kinds, dtype, [shape[1], shape[0]], 0));
            }
            cases.push(reduction(&mut dice, kinds, dtype, [5000, 200], 0));
        }
    }
    cases
}

/// Two operands in all combinations of layouts.
pub(crate) fn layouts() -> Vec<Case> {
    let mut dice = Dice(13);
    let mut cases = Vec::new();
    let shapes = [[200, 300], [65, 129], [256, 192], [3, 5000], [5000, 3]];
    for (dtype, count) in [(DType::Float32, 5), (DType::BFloat16, 3), (DType::Float64, 3), (DType::UInt8, 5)]
    {
        for &shape in &shapes[..count] {
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

/// Positions and random numbers of every stride.
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

/// Loops that write to what they read.
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
    cases.push(case("two pieces are swapped".into(), swap, vec![a, b], 0.0));
    cases
}

/// Pseudo-random loops.
pub(crate) fn random() -> Vec<Case> {
    let loops = (1..180).map(|seed| (seed, super::random::random_loop(seed)));
    loops.map(|(seed, (loop_, memory))| case(format!("seed {seed}"), loop_, memory, 64.0)).collect()
}
