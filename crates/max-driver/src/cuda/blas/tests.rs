use super::lt::{self, compute};
use super::*;
use std::io::Write;

fn matrix(dtype: DType, leading: i64) -> Matrix {
    Matrix { dtype, transposed: false, leading, batch_stride: 0, alignment: 256 }
}

/// A matmul of contiguous matrices.
fn gemm(types: [DType; 3], [m, n, k]: [i64; 3], compute: Compute) -> Gemm {
    let [a, b, d] = types;
    Gemm {
        batch: 1,
        m,
        n,
        k,
        a: matrix(a, k),
        b: matrix(b, n),
        c: None,
        d: matrix(d, n),
        compute,
        bias: false,
        activation: Activation::None,
        scaling: Scaling::None,
    }
}

#[test]
fn rows_here_are_columns_there() {
    let mut gemm = gemm([DType::Float32; 3], [2, 3, 5], Compute::F32);
    let shapes = Shapes::of(&gemm).unwrap();
    assert_eq!(shapes, Shapes { batch: 1, b: ([3, 5], 3), a: ([5, 2], 5), c: None, d: ([3, 2], 3) });
    gemm.b = Matrix { transposed: true, leading: 8, ..gemm.b };
    gemm.a = Matrix { transposed: true, leading: 4, ..gemm.a };
    gemm.c = Some(matrix(DType::Float32, 7));
    gemm.batch = 6;
    let shapes = Shapes::of(&gemm).unwrap();
    let expected = Shapes { batch: 6, b: ([5, 3], 8), a: ([2, 5], 4), c: Some(([3, 2], 7)), d: ([3, 2], 3) };
    assert_eq!(shapes, expected);
}

#[test]
fn a_single_row_may_have_any_distance() {
    let single = gemm([DType::Float32; 3], [1, 3, 5], Compute::F32);
    let single = Gemm { a: matrix(DType::Float32, 0), d: matrix(DType::Float32, 1), ..single };
    let shapes = Shapes::of(&single).unwrap();
    assert_eq!((shapes.a, shapes.d), (([5, 1], 5), ([3, 1], 3)));
    let broadcast = Gemm { m: 2, ..single };
    assert_eq!(Shapes::of(&broadcast), None, "rows that share memory are not a matrix there");
}

#[test]
fn unsupported_shapes_are_rejected() {
    let good = gemm([DType::Float32; 3], [2, 3, 5], Compute::F32);
    assert!(Shapes::of(&good).is_some());
    for empty in
        [Gemm { m: 0, ..good }, Gemm { n: 0, ..good }, Gemm { k: 0, ..good }, Gemm { batch: 0, ..good }]
    {
        assert_eq!(Shapes::of(&empty), None, "{empty:?}");
    }
    let d = |d: Matrix| Gemm { d, ..good };
    for odd in [
        Gemm { batch: 1 << 40, ..good },
        d(Matrix { transposed: true, ..good.d }),
        d(Matrix { alignment: 0, ..good.d }),
        d(Matrix { alignment: 2, ..good.d }),
        d(Matrix { alignment: 24, ..good.d }),
        d(Matrix { alignment: 512, ..good.d }),
        d(Matrix { batch_stride: -1, ..good.d }),
    ] {
        assert_eq!(Shapes::of(&odd), None, "{odd:?}");
    }
}

#[test]
fn types_that_the_library_supports() {
    use Compute::{F32, F64, I32, TF32};
    use DType::{BFloat16, Float8E4M3FN, Float16, Float32, Float64, Int8, Int32};
    let compute = |types: [DType; 3], compute| {
        Types::of(&gemm(types, [2, 3, 5], compute), (9, 0)).map(|types| (types.compute, types.scale))
    };
    assert_eq!(compute([Float32; 3], F32), Some((compute::F32, Float32)));
    assert_eq!(compute([Float32; 3], TF32), Some((compute::F32_BY_TF32, Float32)));
    assert_eq!(compute([BFloat16; 3], TF32), Some((compute::F32, Float32)));
    assert_eq!(compute([BFloat16, BFloat16, Float32], F32), Some((compute::F32, Float32)));
    assert_eq!(compute([Float64; 3], F64), Some((compute::F64, Float64)));
    assert_eq!(compute([Int8, Int8, Int32], I32), Some((compute::I32, Int32)));
    for (types, in_what) in [
        ([Float16, BFloat16, Float32], F32),
        ([Float32, Float32, Float16], F32),
        ([Float16, Float16, BFloat16], F32),
        ([Float64; 3], F32),
        ([Float32; 3], F64),
        ([Int8; 3], I32),
        ([Int32; 3], I32),
        ([Float8E4M3FN, Float8E4M3FN, BFloat16], F32),
    ] {
        assert_eq!(compute(types, in_what), None, "{types:?} in {in_what:?}");
    }
    let mut other = gemm([BFloat16; 3], [2, 3, 5], F32);
    other.c = Some(matrix(Float32, 3));
    assert_eq!(Types::of(&other, (9, 0)), None, "c has the type of the result");
}

#[test]
fn float8_operands_are_contiguous_along_k() {
    let along = |result, capability| {
        let mut gemm = gemm([DType::Float8E4M3FN, DType::Float8E5M2, result], [16, 16, 16], Compute::F32);
        gemm.b.transposed = true;
        let plain = Types::of(&gemm, capability).is_some();
        gemm.bias = true;
        (plain, Types::of(&gemm, capability).is_some())
    };
    assert_eq!(along(DType::BFloat16, (9, 0)), (true, true));
    assert_eq!(along(DType::Float32, (8, 9)), (true, false));
    assert_eq!(along(DType::BFloat16, (8, 6)), (false, false));
    assert_eq!(along(DType::Float8E4M3FN, (9, 0)), (false, false));
}

#[test]
fn only_float8_operands_are_scaled() {
    let of = |dtype, scaling, batch, capability| {
        let mut gemm =
            Gemm { scaling, batch, ..gemm([dtype, dtype, DType::BFloat16], [16; 3], Compute::F32) };
        gemm.b.transposed = true;
        Types::of(&gemm, capability).is_some()
    };
    let float8 = DType::Float8E4M3FN;
    assert!(of(float8, Scaling::Whole, 3, (8, 9)));
    assert!(of(float8, Scaling::Vectors, 1, (9, 0)));
    assert!(!of(float8, Scaling::Vectors, 3, (9, 0)), "factors are of one matrix");
    assert!(!of(float8, Scaling::Vectors, 1, (8, 9)));
    assert!(!of(DType::BFloat16, Scaling::Whole, 1, (9, 0)));
}

#[test]
fn the_library_takes_our_descriptors() {
    let library = match lt::library() {
        Ok(library) => library,
        // Not eprintln!, whose output is only shown when a test fails.
        Err(error) => return drop(writeln!(std::io::stderr(), "skipped: no cuBLASLt: {error}")),
    };
    assert_eq!(size_of::<Choice>(), 96);
    for (activation, bias) in
        [(Activation::None, false), (Activation::Relu, true), (Activation::GeluTanh, false)]
    {
        let gemm = Gemm { bias, activation, ..gemm([DType::BFloat16; 3], [16, 32, 64], Compute::F32) };
        let types = Types::of(&gemm, (9, 0)).unwrap();
        types.description(library, &gemm).unwrap().unwrap();
    }
    for scaling in [Scaling::Whole, Scaling::Vectors] {
        let types = [DType::Float8E4M3FN, DType::Float8E4M3FN, DType::BFloat16];
        let mut gemm = Gemm { scaling, ..gemm(types, [16, 32, 64], Compute::F32) };
        gemm.b = Matrix { transposed: true, ..matrix(DType::Float8E4M3FN, 64) };
        let known = Types::of(&gemm, (9, 0)).unwrap().description(library, &gemm).unwrap().is_some();
        // Vectors of factors are newer than the oldest library that is supported.
        assert!(known || scaling == Scaling::Vectors);
    }
    MatrixLayout::new(library, 14, [32, 16], 32, (3, 512)).unwrap();
    let preferences = Preferences::new(library).unwrap();
    preferences.set(prefer::WORKSPACE_BYTES, 1usize << 20).unwrap();
    preferences.set(prefer::REDUCTION_SCHEMES, REDUCTION_SCHEMES).unwrap();
    preferences.set(prefer::ALIGNMENT_OF_D, 16u32).unwrap();
    let error = preferences.set(prefer::ALIGNMENT_OF_D, 16u8).unwrap_err();
    assert!(error.message().contains("cublasLtMatmulPreferenceSetAttribute failed"), "{error}");
}
