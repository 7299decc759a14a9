//! The decisions for matmuls, without a GPU.

use max_core::kernel::{Literal, Slot};
use max_core::scalar::{NumericOp, RealOp};

use super::*;
use crate::cuda::epilogue::of_parts;
use crate::cuda::nvrtc;

const F32: DType = DType::Float32;

fn access(slot: u32, dtype: DType, offset: i64, strides: &[i64]) -> Access<i64> {
    Access { slot: Slot(slot), dtype, offset, strides: strides.to_vec() }
}

/// A matmul with contiguous operands and a contiguous result.
fn matmul(dtype: DType, batch: &[i64], [m, n, k]: [i64; 3]) -> Matmul<i64> {
    let place = |slot, last: [i64; 2]| {
        let (strides, _) = row_major(&[batch, &last].concat()).unwrap();
        access(slot, dtype, 0, &strides)
    };
    Matmul {
        batch: batch.to_vec(),
        m,
        n,
        k,
        lhs: place(0, [m, k]),
        rhs: place(1, [k, n]),
        epilogue: Loop {
            shape: [batch, &[m, n]].concat(),
            reduce: None,
            accesses: vec![place(2, [m, n])],
            code: vec![Instr::Product(dtype), Instr::Store(0, Reg(0))],
        },
    }
}

fn method(k: &Matmul<i64>) -> MatmulMethod {
    decide(&simplify(k).unwrap()).unwrap()
}

/// The matmul that the library is asked for.
fn library(k: &Matmul<i64>) -> LibraryGemm {
    match method(k) {
        MatmulMethod::Library(gemm) => *gemm,
        method => panic!("{method:?} for {k:?}"),
    }
}

#[test]
fn plain_matmuls_are_one_call() {
    let LibraryGemm { gemm, .. } = library(&matmul(F32, &[], [4, 6, 8]));
    assert_eq!((gemm.batch, gemm.m, gemm.n, gemm.k), (1, 4, 6, 8));
    assert_eq!((gemm.a.leading, gemm.b.leading, gemm.d.leading), (8, 6, 6));
    assert!(!gemm.a.transposed && !gemm.b.transposed);

    let LibraryGemm { gemm, .. } = library(&matmul(DType::BFloat16, &[2, 1, 3], [4, 6, 8]));
    assert_eq!((gemm.batch, gemm.a.batch_stride, gemm.b.batch_stride, gemm.d.batch_stride), (6, 32, 48, 24));
}

#[test]
fn transposed_operands_are_read_in_place() {
    let mut k = matmul(F32, &[5], [12, 6, 8]);
    k.rhs.strides = vec![48, 1, 8];
    let LibraryGemm { gemm, .. } = library(&k);
    assert!(gemm.b.transposed && gemm.b.leading == 8 && !gemm.a.transposed);
    k.lhs.strides = vec![0, 1, 16];
    let LibraryGemm { gemm, .. } = library(&k);
    assert!(gemm.a.transposed && gemm.a.leading == 16 && gemm.a.batch_stride == 0);
}

#[test]
fn batches_with_a_shared_right_operand_become_rows() {
    let mut k = matmul(F32, &[2, 3], [4, 6, 8]);
    k.rhs.strides = vec![0, 0, 6, 1];
    let LibraryGemm { gemm, .. } = library(&k);
    assert_eq!((gemm.batch, gemm.m), (1, 24));
}

#[test]
fn operands_that_cannot_be_read_are_copied() {
    let mut k = matmul(F32, &[5], [4, 6, 8]);
    k.lhs.strides = vec![64, 16, 2];
    assert_eq!(method(&k), MatmulMethod::Copies([true, false]));
    // Rows that overlap, and rows that run backwards.
    k.lhs.strides = vec![64, 7, 1];
    assert_eq!(method(&k), MatmulMethod::Copies([true, false]));
    k.lhs.strides = vec![32, -8, 1];
    k.rhs.strides = vec![0, 0, 1];
    assert_eq!(method(&k), MatmulMethod::Copies([true, true]));
    // An odd start.
    let mut k = matmul(F32, &[], [4, 6, 8]);
    k.rhs.offset = 1;
    assert_eq!(method(&k), MatmulMethod::Copies([false, true]));
    // A single row may have any stride.
    let mut k = matmul(DType::Float64, &[], [1, 6, 8]);
    k.lhs.strides = vec![-3, 1];
    assert_eq!(library(&k).gemm.a.leading, 8);
}

#[test]
fn batches_that_are_not_one_axis_are_split_or_copied() {
    // Heads side by side in each row, of two batches and of many.
    let heads = |batch: i64| {
        let mut k = matmul(F32, &[batch, 5], [4, 8, 8]);
        k.rhs.strides = vec![8 * 5 * 8, 8, 40, 1];
        k.epilogue.accesses[0].strides = vec![4 * 5 * 8, 8, 40, 1];
        k
    };
    match method(&heads(2)) {
        MatmulMethod::Others(matmuls) => {
            assert_eq!(matmuls.len(), 2);
            let second = library(&matmuls[1]);
            assert_eq!(
                (second.store.offset, second.gemm.d.leading, second.gemm.d.batch_stride),
                (160, 40, 8)
            );
            assert_eq!((matmuls[1].rhs.offset, second.gemm.b.leading), (320, 40));
        }
        method => panic!("{method:?}"),
    }
    assert_eq!(method(&heads(20)), MatmulMethod::Scratch);
    let mut k = heads(20);
    k.epilogue = matmul(F32, &[20, 5], [4, 8, 8]).epilogue;
    assert_eq!(method(&k), MatmulMethod::Copies([false, true]));
}

/// An epilogue of some code, with a bias and a residual to load.
fn ended(code: &[Instr<i64>], dtype: DType) -> Matmul<i64> {
    let mut k = matmul(dtype, &[], [4, 6, 8]);
    k.epilogue.accesses.push(access(3, dtype, 0, &[0, 1]));
    k.epilogue.accesses.push(access(4, dtype, 4, &[8, 1]));
    k.epilogue.code = code.to_vec();
    k
}

#[test]
fn the_library_fuses_bias_residual_and_activation() {
    let add = |a, b| Instr::Apply(NumericOp::Add.into(), [Reg(a), Reg(b)]);
    let f32 = |code: &[Instr<i64>]| ended(code, F32);
    let code = [Instr::Load(1), Instr::Product(F32), add(0, 1), Instr::Store(0, Reg(2))];
    let biased = library(&f32(&code));
    assert!(biased.gemm.bias && biased.gemm.c.is_none() && biased.bias.unwrap().slot == Slot(3));

    let relu = Instr::Apply(NumericOp::Relu.into(), [Reg(4), Reg(4)]);
    let code = [
        Instr::Product(F32),
        Instr::Load(1),
        add(0, 1),
        Instr::Load(2),
        add(2, 3),
        relu.clone(),
        Instr::Store(0, Reg(5)),
    ];
    let all = library(&f32(&code));
    assert_eq!(
        (all.gemm.bias, all.gemm.activation, all.gemm.c.unwrap().leading),
        (true, Activation::Relu, 8)
    );
    assert_eq!(all.residual.unwrap().slot, Slot(4));

    let gelu = Instr::Apply(RealOp::GeluTanh.into(), [Reg(0), Reg(0)]);
    let code = [Instr::Product(F32), gelu, Instr::Store(0, Reg(1))];
    assert_eq!(library(&f32(&code)).gemm.activation, Activation::GeluTanh);
}

#[test]
fn all_other_epilogues_are_loops() {
    let add = |a, b| Instr::Apply(NumericOp::Add.into(), [Reg(a), Reg(b)]);
    let relu = |a| Instr::Apply(NumericOp::Relu.into(), [Reg(a), Reg(a)]);
    let after = [Instr::Product(F32), relu(0), Instr::Load(1), add(1, 2), Instr::Store(0, Reg(3))];
    let twice = [Instr::Product(F32), Instr::Store(0, Reg(0)), Instr::Store(2, Reg(0))];
    let itself = [Instr::Product(F32), add(0, 0), Instr::Store(0, Reg(1))];
    let used_later = [Instr::Product(F32), relu(0), Instr::Store(0, Reg(0))];
    let exp =
        [Instr::Product(F32), Instr::Apply(RealOp::Exp.into(), [Reg(0), Reg(0)]), Instr::Store(0, Reg(1))];
    for code in [&after[..], &twice, &itself, &used_later, &exp] {
        assert_eq!(method(&ended(code, F32)), MatmulMethod::Scratch, "{code:?}");
    }
    // The library does not support integers.
    let code = [Instr::Product(DType::Int8), relu(0), Instr::Store(0, Reg(1))];
    assert_eq!(method(&ended(&code, DType::Int8)), MatmulMethod::Scratch);
    assert!(matches!(method(&matmul(DType::Int8, &[7], [3, 4, 5])), MatmulMethod::Own(_)));
}

#[test]
fn results_may_be_slices_transposed_or_wider() {
    let mut k = matmul(F32, &[], [5, 6, 8]);
    k.epilogue.accesses[0] = access(2, F32, 4, &[20, 1]);
    let slice = library(&k);
    assert_eq!((slice.gemm.d.leading, slice.store.offset), (20, 4));
    k.epilogue.accesses[0] = access(2, F32, 0, &[1, 5]);
    match method(&k) {
        MatmulMethod::Others(matmuls) => {
            let swapped = library(&matmuls[0]);
            assert_eq!((swapped.gemm.m, swapped.gemm.n, swapped.gemm.d.leading), (6, 5, 5));
            assert!(swapped.gemm.a.transposed && swapped.gemm.b.transposed);
        }
        method => panic!("{method:?}"),
    }
    k.epilogue.accesses[0] = access(2, F32, 0, &[12, 2]);
    assert_eq!(method(&k), MatmulMethod::Scratch);
    k.epilogue.accesses[0] = access(2, F32, 1, &[6, 1]);
    assert_eq!(method(&k), MatmulMethod::Scratch);

    let mut k = matmul(DType::BFloat16, &[], [4, 6, 8]);
    k.epilogue.accesses[0].dtype = F32;
    k.epilogue.code =
        vec![Instr::Product(DType::BFloat16), Instr::Cast(Reg(0), F32), Instr::Store(0, Reg(1))];
    assert_eq!(library(&k).gemm.d.dtype, F32);
}

#[test]
fn float8_goes_through_wider_types() {
    let float8 = DType::Float8E4M3FN;
    let mut k = matmul(float8, &[], [16, 32, 64]);
    assert_eq!(method(&k), MatmulMethod::Scratch);
    k.epilogue.accesses[0].dtype = F32;
    k.epilogue.code = vec![Instr::Product(float8), Instr::Cast(Reg(0), F32), Instr::Store(0, Reg(1))];
    assert_eq!(method(&k), MatmulMethod::Widened);
    k.rhs.strides = vec![1, 64];
    assert_eq!(library(&k).gemm.d.dtype, F32);
    k.lhs.dtype = DType::Float8E5M2FNUZ;
    k.rhs.dtype = DType::Float8E5M2FNUZ;
    assert_eq!(method(&k), MatmulMethod::Widened);

    let scratch = access(9, F32, 0, &[32, 1]);
    let relu = Instr::Apply(NumericOp::Relu.into(), [Reg(1), Reg(1)]);
    let code = [Instr::Load(1), Instr::Product(float8), relu, Instr::Store(0, Reg(2))];
    let whole = of_parts(&ended(&code, float8).epilogue, vec![scratch]);
    let expected = [
        Instr::Load(1),
        Instr::Load(3),
        Instr::Cast(Reg(1), float8),
        Instr::Apply(NumericOp::Relu.into(), [Reg(2), Reg(2)]),
        Instr::Store(0, Reg(3)),
    ];
    assert_eq!(whole.code, expected);
    whole.dtypes().unwrap();
}

/// A float8 matmul with contiguous columns on the right, whose product in float32 is multiplied by factors with some strides
/// and stored in a dtype.
fn scaled(factors: &[[i64; 2]], to: DType) -> Matmul<i64> {
    let mut k = matmul(DType::Float8E4M3FN, &[], [16, 32, 64]);
    k.rhs.strides = vec![1, 64];
    k.epilogue.accesses[0].dtype = to;
    let mut code = vec![Instr::Product(F32)];
    let mut value = Reg(0);
    for (number, strides) in factors.iter().enumerate() {
        let slot = 3 + number as u32;
        k.epilogue.accesses.push(access(slot, F32, 0, strides));
        let load = Reg(code.len() as u32);
        code.extend([Instr::Load(1 + number as u32), Instr::Apply(NumericOp::Mul.into(), [value, load])]);
        value = Reg(load.0 + 1);
    }
    if to != F32 {
        code.push(Instr::Cast(value, to));
        value = Reg(code.len() as u32 - 1);
    }
    code.push(Instr::Store(0, value));
    k.epilogue.code = code;
    k.epilogue.dtypes().unwrap();
    k
}

#[test]
fn scaled_float8_is_one_call() {
    let slots = |gemm: &LibraryGemm| gemm.scales.each_ref().map(|scale| scale.as_ref().map(|s| s.slot.0));
    for to in [F32, DType::BFloat16, DType::Float16] {
        let whole = library(&scaled(&[[0, 0], [0, 0]], to));
        assert_eq!((whole.gemm.scaling, whole.gemm.d.dtype), (Scaling::Whole, to));
        assert_eq!(slots(&whole), [Some(3), Some(4)]);
        let vectors = library(&scaled(&[[0, 1], [1, 0]], to));
        assert_eq!((vectors.gemm.scaling, slots(&vectors)), (Scaling::Vectors, [Some(4), Some(3)]));
        assert_eq!(library(&scaled(&[], to)).gemm.scaling, Scaling::None);
    }
    let one = library(&scaled(&[[0, 0]], DType::BFloat16));
    assert_eq!((one.gemm.scaling, slots(&one)), (Scaling::Whole, [Some(3), None]));
}

#[test]
fn other_factors_are_loops() {
    // One vector, vectors with gaps, two for the rows, a matrix, and three factors.
    for factors in
        [&[[1, 0]][..], &[[2, 0], [0, 1]], &[[1, 0], [1, 0]], &[[32, 1], [0, 0]], &[[0, 0], [0, 0], [0, 0]]]
    {
        let k = scaled(factors, DType::BFloat16);
        assert_eq!(method(&k), MatmulMethod::Scratch, "{factors:?}");
        assert_eq!(steps(&k, 0), 1);
    }
    let mut odd = scaled(&[[0, 0], [0, 0]], DType::BFloat16);
    odd.rhs.strides = vec![32, 1];
    assert_eq!(method(&odd), MatmulMethod::Widened);
    let mut wide = scaled(&[[0, 0], [0, 0]], DType::BFloat16);
    (wide.lhs.dtype, wide.rhs.dtype) = (F32, F32);
    assert_eq!(method(&wide), MatmulMethod::Scratch, "only float8 operands are scaled");
    let mut rounded = scaled(&[], DType::BFloat16);
    (rounded.lhs.dtype, rounded.rhs.dtype) = (F32, F32);
    assert_eq!(method(&rounded), MatmulMethod::Scratch);
}

/// Follows a matmul through all decisions, as a plan does, and counts the steps until it can run.
fn steps(k: &Matmul<i64>, before: usize) -> usize {
    assert!(before < 8, "no end: {k:?}");
    let k = simplify(k).unwrap();
    let contiguous = |last: [i64; 2], dtype| {
        let (strides, _) = row_major(&[k.batch.as_slice(), &last].concat()).unwrap();
        access(9, dtype, 0, &strides)
    };
    let (mut next, dtype) = (k.clone(), k.lhs.dtype);
    match decide(&k).unwrap() {
        MatmulMethod::Nothing
        | MatmulMethod::Zeros
        | MatmulMethod::Own(_)
        | MatmulMethod::Thin(..)
        | MatmulMethod::Library(_) => return before,
        MatmulMethod::Others(others) => {
            return others.iter().map(|other| steps(other, before + 1)).max().unwrap();
        }
        MatmulMethod::Copies(copies) => {
            assert!(copies.contains(&true), "copies of nothing: {k:?}");
            // A batch of one matrix stays one.
            let copy = |from: &Access<i64>, last| {
                let mut to = contiguous(last, dtype);
                let batch = k.batch.len();
                if from.strides[..batch].iter().all(|&stride| stride == 0) {
                    to.strides[..batch].fill(0);
                }
                to
            };
            next.lhs = if copies[0] { copy(&k.lhs, [k.m, k.k]) } else { next.lhs };
            next.rhs = if copies[1] { copy(&k.rhs, [k.k, k.n]) } else { next.rhs };
        }
        MatmulMethod::Widened => {
            next.lhs = contiguous([k.m, k.k], DType::BFloat16);
            next.rhs = contiguous([k.k, k.n], DType::BFloat16);
            next.epilogue.code[0] = Instr::Product(DType::BFloat16);
        }
        MatmulMethod::Scratch => {
            let product = k.epilogue.code.iter().find_map(|instr| match instr {
                Instr::Product(dtype) => Some(*dtype),
                _ => None,
            });
            let dtype = product.unwrap();
            let wide = if dtype.is_small_float() { F32 } else { dtype };
            next.epilogue.accesses = vec![contiguous([k.m, k.n], wide)];
            next.epilogue.code = match wide == dtype {
                true => vec![Instr::Product(dtype), Instr::Store(0, Reg(0))],
                false => vec![Instr::Product(dtype), Instr::Cast(Reg(0), wide), Instr::Store(0, Reg(1))],
            };
        }
    }
    steps(&next, before + 1)
}

#[test]
fn every_matmul_ends_in_a_launch() {
    let mut random = crate::matmul::tests::Random(21);
    for round in 0..4000 {
        let dtype = DType::ALL[round % DType::ALL.len()];
        let rank = random.below(4) as usize;
        let batch: Vec<i64> = (0..rank).map(|_| random.below(8) as i64).collect();
        let [m, n, k] = [(); 3].map(|()| [1, 1, 3, 16, 5000][random.below(5) as usize]);
        let shape = |last: [i64; 2]| [batch.as_slice(), &last].concat();
        let (lhs, _) = random.access(0, dtype, &shape([m, k]), true);
        let (rhs, _) = random.access(1, dtype, &shape([k, n]), true);
        let mut kernel = matmul(dtype, &batch, [m, n, k]);
        if round % 3 == 0 {
            kernel.epilogue.accesses[0] = random.access(2, dtype, &shape([m, n]), false).0;
        }
        if round % 2 == 0 {
            kernel.rhs = rhs;
        }
        if round % 5 < 3 {
            kernel.lhs = lhs;
        }
        steps(&kernel, 0);
    }
}

#[test]
fn parts_add_up_in_order() {
    let part = |slot| access(slot, F32, 0, &[6, 1]);
    let add = |a, b| Instr::Apply(NumericOp::Add.into(), [Reg(a), Reg(b)]);
    let code = [Instr::Product(F32), Instr::Load(1), add(0, 1), Instr::Store(0, Reg(2))];
    let whole = of_parts(&ended(&code, F32).epilogue, vec![part(7), part(8), part(9)]);
    let sum = [Instr::Load(3), Instr::Load(4), add(0, 1), Instr::Load(5), add(2, 3)];
    assert_eq!(whole.code, [&sum[..], &[Instr::Load(1), add(4, 5), Instr::Store(0, Reg(6))]].concat());
    whole.dtypes().unwrap();
}

#[test]
fn empty_matmuls_give_nothing_or_zeros() {
    assert_eq!(method(&matmul(F32, &[0], [4, 6, 8])), MatmulMethod::Nothing);
    assert_eq!(method(&matmul(F32, &[], [4, 0, 8])), MatmulMethod::Nothing);
    let k = matmul(F32, &[], [4, 6, 0]);
    assert_eq!(method(&k), MatmulMethod::Zeros);
    assert_eq!(of_zeros(&k.epilogue).code[0], Instr::Literal(Literal { dtype: F32, bits: 0 }));
}

#[test]
fn thin_matmuls_read_the_right_operand_once() {
    use thin::RightLayout;
    let thin_layout = |k: &Matmul<i64>| match method(k) {
        MatmulMethod::Thin(layout) => Some(layout),
        _ => None,
    };
    assert_eq!(thin_layout(&matmul(F32, &[], [1, 4096, 512])), Some(RightLayout::Rows));
    assert_eq!(thin_layout(&matmul(F32, &[], [5, 4096, 512])), None);
    assert_eq!(thin_layout(&matmul(DType::Float64, &[], [1, 4096, 512])), None);
    // Too few strips for a GPU.
    assert_eq!(thin_layout(&matmul(DType::BFloat16, &[], [1, 512, 4096])), None);
    let mut k = matmul(DType::BFloat16, &[], [4, 512, 4096]);
    k.rhs.strides = vec![1, 4096];
    assert_eq!(thin_layout(&k), Some(RightLayout::Columns));
    // Tensor cores multiply several rows of halves.
    assert_eq!(thin_layout(&Matmul { m: 8, ..k.clone() }), Some(RightLayout::Columns));
    assert_eq!(thin_layout(&Matmul { m: 9, ..k.clone() }), None);
    let function =
        |m, capability| thin::Thin::new(&Matmul { m, ..k.clone() }, RightLayout::Columns, capability);
    assert_eq!(function(8, (8, 0)), thin::Thin::Tensor);
    assert_eq!(function(8, (7, 5)), thin::Thin::Dots);
    assert_eq!(function(1, (9, 0)), thin::Thin::Dots);
    // Rows of a batch are rows, and a column is a row of the transposed matmul.
    let mut k = matmul(F32, &[2], [1, 4096, 512]);
    k.rhs.strides = vec![0, 4096, 1];
    assert_eq!(thin_layout(&k), Some(RightLayout::Rows));
    match method(&matmul(F32, &[], [300, 1, 64])) {
        MatmulMethod::Others(matmuls) => assert_eq!(thin_layout(&matmuls[0]), Some(RightLayout::Columns)),
        method => panic!("{method:?}"),
    }
}

#[test]
fn thin_functions_compile() {
    let (mut sources, mut on_tensor_cores) = (Vec::new(), Vec::new());
    for (dtype, to) in [(F32, F32), (DType::BFloat16, DType::BFloat16), (DType::Float16, F32)] {
        let functions = [thin::Thin::Dots, thin::Thin::Strips];
        for (at, function) in functions.into_iter().cycle().take(8).chain([thin::Thin::Tensor]).enumerate() {
            let k = matmul(dtype, &[], [[1, 2, 3, 4, 8][at / 2], 4096, 512]);
            let mut gated = k.epilogue.clone();
            gated.accesses[0].dtype = to;
            gated.accesses.push(access(3, dtype, 0, &[4096, 1]));
            gated.code = vec![
                Instr::Product(dtype),
                Instr::Apply(RealOp::Silu.into(), [Reg(0); 2]),
                Instr::Load(1),
                Instr::Apply(NumericOp::Mul.into(), [Reg(1), Reg(2)]),
                Instr::Cast(Reg(3), to),
                Instr::Store(0, Reg(4)),
            ];
            let endings = [&k.epilogue, &gated].into_iter().enumerate();
            let endings = endings.map(|(number, epilogue)| ending::write(epilogue, number).unwrap().unwrap());
            let source = thin::source(&k, function, &endings.collect::<Vec<_>>());
            match function {
                thin::Thin::Tensor if dtype == F32 => {}
                thin::Thin::Tensor => on_tensor_cores.push(source),
                _ => sources.push(source),
            }
        }
    }
    nvrtc::check(&sources);
    nvrtc::check_for(&on_tensor_cores, &["sm_80", "sm_90"]);
}

#[test]
fn thin_matmuls_of_one_left_operand_are_one_function() {
    let k = matmul(DType::BFloat16, &[], [1, 512, 4096]);
    let narrow = Matmul { n: 64, ..k.clone() };
    assert!(thin::fit(&[k.clone(), narrow]));
    let mut other = k.clone();
    other.lhs.slot = Slot(9);
    assert!(!thin::fit(&[k, other]));
}

#[test]
fn functions_compile() {
    let dtypes = DType::ALL.iter().copied().filter(|dtype| !dtype.is_small_float());
    let wide = [DType::Float16, DType::BFloat16].map(|dtype| own::source(dtype, F32));
    nvrtc::check(&dtypes.map(|dtype| own::source(dtype, dtype)).chain(wide).collect::<Vec<_>>());
}
