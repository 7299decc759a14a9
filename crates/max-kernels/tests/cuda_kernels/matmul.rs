//! Matmuls.

use max_core::kernel::{Access, Instr, Kernel, Literal, Loop, Matmul, Reg, Slot};
use max_core::scalar::{NumericOp, RealOp};
use max_core::{DType, Element, dispatch};
use max_driver::Buffer;

use super::case::{Case, Random, ordered, row_major, untouched};

const FLOATS: [DType; 4] = [DType::Float32, DType::Float64, DType::Float16, DType::BFloat16];

/// A matmul of two operands, each with the number of elements it spans, stored to an access.
fn stored(
    random: &mut Random,
    batch: &[i64],
    [m, n, k]: [i64; 3],
    lhs: (Access<i64>, usize),
    rhs: (Access<i64>, usize),
    out: (Access<i64>, usize),
) -> Case {
    let dtype = lhs.0.dtype;
    let buffers = vec![random.buffer(dtype, lhs.1), random.buffer(dtype, rhs.1), untouched(dtype, out.1)];
    let epilogue = Loop {
        shape: [batch, &[m, n]].concat(),
        reduce: None,
        accesses: vec![out.0],
        code: vec![Instr::Product(dtype), Instr::Store(0, Reg(0))],
    };
    let kernel = Matmul { batch: batch.to_vec(), m, n, k, lhs: lhs.0, rhs: rhs.0, epilogue };
    Case::new(Kernel::Matmul(kernel), buffers, 1)
}

/// Row-major and column-major operands, of even and odd sizes.
pub(crate) fn plain() -> Vec<Case> {
    let mut random = Random(1);
    let mut cases = Vec::new();
    for dtype in FLOATS {
        for [m, n, k] in [[64, 128, 256], [1, 1, 1], [33, 65, 129], [5, 8, 1], [300, 7, 40], [16, 16, 0]] {
            for turned in 0..8 {
                let order = |bit: u32| if turned >> bit & 1 == 1 { [0, 1] } else { [1, 0] };
                let (lhs, rhs) =
                    (ordered(0, dtype, &[m, k], &order(0)), ordered(1, dtype, &[k, n], &order(1)));
                let out = ordered(2, dtype, &[m, n], &order(2));
                cases.push(stored(&mut random, &[], [m, n, k], lhs, rhs, out));
            }
        }
        for batch in [&[3][..], &[2, 5], &[0]] {
            let [lhs, rhs, out] = [(0, [40, 24]), (1, [24, 56]), (2, [40, 56])]
                .map(|(slot, last)| row_major(slot, dtype, &[batch, &last].concat()));
            cases.push(stored(&mut random, batch, [40, 56, 24], lhs, rhs, out));
        }
    }
    cases
}

/// Operands in random layouts, of every type.
pub(crate) fn layouts() -> Vec<Case> {
    let mut random = Random(2);
    let mut cases = Vec::new();
    for &dtype in DType::ALL {
        for (batch, [m, n, k]) in [
            (&[][..], [3, 5, 7]),
            (&[], [70, 66, 33]),
            (&[2], [17, 9, 20]),
            (&[3, 2], [4, 6, 5]),
            (&[3, 7], [8, 5, 16]),
            (&[2, 3, 5], [6, 4, 8]),
            (&[2], [5, 4, 0]),
        ] {
            let shape = |last: [i64; 2]| [batch, &last].concat();
            let lhs = random.access(0, dtype, &shape([m, k]), true);
            let rhs = random.access(1, dtype, &shape([k, n]), true);
            let out = random.access(2, dtype, &shape([m, n]), false);
            cases.push(stored(&mut random, batch, [m, n, k], lhs, rhs, out));
        }
    }
    cases
}

/// Heads side by side in each row of an operand and of the result, and results that are columns of wider matrices.
pub(crate) fn heads() -> Vec<Case> {
    let mut random = Random(3);
    let mut cases = Vec::new();
    for dtype in [DType::Float32, DType::BFloat16] {
        for batch in [1, 3, 9] {
            let (heads, m, n, k) = (6, 20, 16, 24);
            let lhs = row_major(0, dtype, &[batch, heads, m, k]);
            let order = [3, 1, 2, 0];
            let rhs = ordered(1, dtype, &[batch, heads, k, n], &order);
            let out = ordered(2, dtype, &[batch, heads, m, n], &order);
            cases.push(stored(&mut random, &[batch, heads], [m, n, k], lhs, rhs, out));
        }
        let (lhs, rhs) = (row_major(0, dtype, &[12, 16]), row_major(1, dtype, &[16, 8]));
        let out = Access { slot: Slot(2), dtype, offset: 8, strides: vec![40, 1] };
        cases.push(stored(&mut random, &[], [12, 8, 16], lhs, rhs, (out, 12 * 40)));
        // One right operand for all batches.
        let (lhs, out) = (row_major(0, dtype, &[4, 3, 8, 16]), row_major(2, dtype, &[4, 3, 8, 32]));
        let mut rhs = row_major(1, dtype, &[16, 32]);
        rhs.0.strides.splice(0..0, [0, 0]);
        cases.push(stored(&mut random, &[4, 3], [8, 32, 16], lhs, rhs, out));
    }
    cases
}

/// The code of many epilogues: bias in access 1, residual in access 2, a second result in access 3.
fn codes(dtype: DType) -> Vec<Vec<Instr<i64>>> {
    let apply = |op: NumericOp, a, b| Instr::Apply(op.into(), [Reg(a), Reg(b)]);
    let real = |op: RealOp, a| Instr::Apply(op.into(), [Reg(a), Reg(a)]);
    let (product, bias, residual) = (Instr::Product(dtype), Instr::Load(1), Instr::Load(2));
    let add = |a, b| apply(NumericOp::Add, a, b);
    let relu = |a| apply(NumericOp::Relu, a, a);
    let store = |a| Instr::Store(0, Reg(a));
    let mut codes = vec![
        vec![bias.clone(), product.clone(), add(0, 1), store(2)],
        vec![product.clone(), bias.clone(), add(0, 1), relu(2), store(3)],
        vec![product.clone(), residual.clone(), add(1, 0), store(2)],
        vec![product.clone(), bias.clone(), add(0, 1), residual.clone(), add(2, 3), relu(4), store(5)],
        vec![product.clone(), relu(0), residual, add(1, 2), store(3)],
        vec![product.clone(), relu(0), store(1)],
        vec![product.clone(), apply(NumericOp::Mul, 0, 0), store(1), Instr::Store(3, Reg(0))],
    ];
    if dtype.is_float() {
        codes.push(vec![product.clone(), bias.clone(), add(0, 1), real(RealOp::GeluTanh, 2), store(3)]);
        codes.push(vec![product.clone(), bias, add(0, 1), real(RealOp::Gelu, 2), store(3)]);
        // NaN stays NaN, whatever comes after it.
        let nan = Literal { dtype: DType::Float32, bits: u64::from(f32::NAN.to_bits()) };
        let nan =
            vec![Instr::Literal(nan), Instr::Cast(Reg(0), dtype), product, add(1, 2), relu(3), store(4)];
        codes.push(nan);
    }
    codes
}

pub(crate) fn epilogues() -> Vec<Case> {
    let mut random = Random(4);
    let mut cases = Vec::new();
    for dtype in FLOATS.into_iter().chain([DType::Int32, DType::UInt8]) {
        for (batch, [m, n, k]) in [(&[][..], [24, 40, 32]), (&[3], [7, 16, 24]), (&[], [1, 64, 48])] {
            let shape = |last: [i64; 2]| [batch, &last].concat();
            let (lhs, rhs) = (row_major(0, dtype, &shape([m, k])), row_major(1, dtype, &shape([k, n])));
            let whole = |slot| row_major(slot, dtype, &shape([m, n]));
            let ((out, count), (residual, _), (second, _)) = (whole(4), whole(3), whole(5));
            let bias = ordered(2, dtype, &[n], &[0]).0;
            let bias = Access { strides: [vec![0; batch.len() + 1], vec![1]].concat(), ..bias };
            for code in codes(dtype) {
                let accesses = vec![out.clone(), bias.clone(), residual.clone(), second.clone()];
                let epilogue = Loop { shape: shape([m, n]), reduce: None, accesses, code };
                let (lhs, rhs) = (lhs.clone(), rhs.clone());
                let kernel = Matmul { batch: batch.to_vec(), m, n, k, lhs: lhs.0, rhs: rhs.0, epilogue };
                let counts = [lhs.1, rhs.1, n as usize, count].map(|count| random.buffer(dtype, count));
                let results = [untouched(dtype, count), untouched(dtype, count)];
                cases.push(Case::new(Kernel::Matmul(kernel), counts.into_iter().chain(results).collect(), 2));
            }
        }
    }
    cases.extend([DType::BFloat16, DType::Float16].map(|dtype| widened(&mut random, dtype)));
    cases.extend(FLOATS.map(|dtype| of_nan(dtype, 16)));
    cases.extend(FLOATS.map(|dtype| of_nan(dtype, 256)));
    cases
}

/// A matmul of narrow floats that is stored as float32.
fn widened(random: &mut Random, dtype: DType) -> Case {
    let (lhs, rhs) = (row_major(0, dtype, &[24, 32]), row_major(1, dtype, &[32, 40]));
    let (out, count) = row_major(2, DType::Float32, &[24, 40]);
    let buffers =
        vec![random.buffer(dtype, lhs.1), random.buffer(dtype, rhs.1), untouched(DType::Float32, count)];
    let epilogue = Loop {
        shape: vec![24, 40],
        reduce: None,
        accesses: vec![out],
        code: vec![Instr::Product(dtype), Instr::Cast(Reg(0), DType::Float32), Instr::Store(0, Reg(1))],
    };
    let kernel = Matmul { batch: vec![], m: 24, n: 40, k: 32, lhs: lhs.0, rhs: rhs.0, epilogue };
    Case::new(Kernel::Matmul(kernel), buffers, 1)
}

/// The relu of NaN is NaN.
fn of_nan(dtype: DType, size: i64) -> Case {
    let [lhs, rhs, (out, count)] = [0, 1, 2].map(|slot| row_major(slot, dtype, &[size, size]));
    let epilogue = Loop {
        shape: vec![size, size],
        reduce: None,
        accesses: vec![out],
        code: vec![
            Instr::Product(dtype),
            Instr::Apply(NumericOp::Relu.into(), [Reg(0), Reg(0)]),
            Instr::Store(0, Reg(1)),
        ],
    };
    let kernel = Matmul { batch: vec![], m: size, n: size, k: size, lhs: lhs.0, rhs: rhs.0, epilogue };
    let [left, right] = dispatch!(dtype, T => {
        let ones = vec![T::from_double(1.0); count];
        let mut left = ones.clone();
        left[40] = T::from_double(f64::NAN);
        [left, ones].map(Buffer::from)
    });
    let buffers = vec![left, right, untouched(dtype, count)];
    Case::new(Kernel::Matmul(kernel), buffers, 1)
}

/// Matmuls of few rows or few columns with long sums.
pub(crate) fn thin() -> Vec<Case> {
    let mut random = Random(5);
    let mut cases = Vec::new();
    for dtype in FLOATS {
        for [m, n, k] in [
            [1, 1024, 1000],
            [4, 264, 2048],
            [8, 24, 4096],
            [7, 40, 1030],
            [1, 7, 333],
            [1024, 1, 512],
            [3, 2, 5000],
        ] {
            for order in [[1, 0], [0, 1]] {
                let lhs = row_major(0, dtype, &[m, k]);
                let (rhs, out) = (ordered(1, dtype, &[k, n], &order), row_major(2, dtype, &[m, n]));
                cases.push(stored(&mut random, &[], [m, n, k], lhs, rhs, out));
            }
        }
    }
    cases
}

/// Float8 operands contiguous along k, as the library needs them, and other layouts.
pub(crate) fn float8() -> Vec<Case> {
    let mut random = Random(6);
    let types = DType::ALL.iter().copied().filter(|dtype| dtype.is_small_float());
    let mut cases = Vec::new();
    for dtype in types {
        for order in [[0, 1], [1, 0]] {
            for [m, n, k] in [[32, 48, 64], [16, 16, 16], [5, 7, 9]] {
                let lhs = row_major(0, dtype, &[m, k]);
                let (rhs, out) = (ordered(1, dtype, &[k, n], &order), row_major(2, dtype, &[m, n]));
                cases.push(stored(&mut random, &[], [m, n, k], lhs, rhs, out));
            }
        }
    }
    cases
}
