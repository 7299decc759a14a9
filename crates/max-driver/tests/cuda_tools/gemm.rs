use max_core::DType::{self, BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Float64, Int8, Int32};
use max_core::{Element, ErrorKind, dispatch};
use max_driver::cuda::{Activation, Compute, Gemm, GemmAddresses, Gpu, Matrix, Scaling};
use max_driver::{Buffer, Device};

use super::{address, download, gpu, upload};

/// A matmul to be checked: what differs from `[4, 24] x [24, 8]` of float32.
#[derive(Clone, Copy, Debug)]
struct Case {
    types: [DType; 3],
    size: [usize; 3],
    batch: usize,
    transposed: [bool; 2],
    /// Unused elements between one row and the next.
    gap: usize,
    /// Elements before the first.
    offset: usize,
    /// Whether all matrices of the batch share one `b`.
    repeated: bool,
    compute: Compute,
    bias: bool,
    /// Whether there is a `c`, and whether it is in the same memory as the result.
    added: Option<bool>,
    activation: Activation,
    factors: [f64; 2],
}

const CASE: Case = Case {
    types: [Float32; 3],
    size: [4, 8, 24],
    batch: 1,
    transposed: [false; 2],
    gap: 0,
    offset: 0,
    repeated: false,
    compute: Compute::F32,
    bias: false,
    added: None,
    activation: Activation::None,
    factors: [1.0, 0.0],
};

/// The value between the rows of a matrix, which must not change.
const GAP: f64 = 77.0;

/// A matrix in memory.
struct Placed {
    matrix: Matrix,
    offset: usize,
    values: Vec<f64>,
    buffer: Buffer,
}

impl Placed {
    /// `[batch, rows, columns]` of small whole numbers, which every type can represent.
    fn new(
        case: &Case,
        dtype: DType,
        shape: [usize; 2],
        transposed: bool,
        repeated: bool,
        seed: usize,
        device: &Device,
    ) -> Placed {
        let (lines, length) = if transposed { (shape[1], shape[0]) } else { (shape[0], shape[1]) };
        let leading = length + case.gap;
        let batch_stride = if repeated { 0 } else { lines * leading };
        let matrices = if repeated { 1 } else { case.batch };
        let mut values = vec![GAP; case.offset + matrices * lines * leading];
        for place in 0..matrices * lines * length {
            let at = case.offset + place / length * leading + place % length;
            values[at] = ((place * 7 + place / 5 * seed + seed) % 5) as f64 - 2.0;
        }
        let buffer = upload(dtype, &values, device);
        let bytes = case.offset * dtype.size_in_bytes();
        let alignment = if bytes == 0 { 256 } else { 1 << bytes.trailing_zeros().min(8) };
        let matrix = Matrix {
            dtype,
            transposed,
            leading: leading as i64,
            batch_stride: batch_stride as i64,
            alignment,
        };
        Placed { matrix, offset: case.offset, values, buffer }
    }

    fn at(&self, batch: usize, row: usize, column: usize) -> usize {
        let Matrix { leading, batch_stride, transposed, .. } = self.matrix;
        let (line, place) = if transposed { (column, row) } else { (row, column) };
        self.offset + batch * batch_stride as usize + line * leading as usize + place
    }

    fn address(&self) -> u64 {
        address(&self.buffer) + (self.offset * self.matrix.dtype.size_in_bytes()) as u64
    }
}

/// Runs a matmul and compares it with plain sums; whether the library supports it.
fn check(case: &Case, device: &Device, gpu: &'static Gpu) -> bool {
    let ([m, n, k], [a_type, b_type, d_type]) = (case.size, case.types);
    let a = Placed::new(case, a_type, [m, k], case.transposed[0], false, 1, device);
    let b = Placed::new(case, b_type, [k, n], case.transposed[1], case.repeated, 2, device);
    let d = Placed::new(case, d_type, [m, n], false, false, 3, device);
    let c = case.added.map(|in_place| match in_place {
        true => Placed { values: d.values.clone(), buffer: d.buffer.clone(), ..d },
        false => Placed::new(case, d_type, [m, n], false, false, 4, device),
    });
    let bias: Vec<f64> = (0..n).map(|column| (column % 3) as f64 - 1.0).collect();
    let bias_buffer = upload(d_type, &bias, device);
    let gemm = Gemm {
        batch: case.batch as i64,
        m: m as i64,
        n: n as i64,
        k: k as i64,
        a: a.matrix,
        b: b.matrix,
        c: c.as_ref().map(|c| c.matrix),
        d: d.matrix,
        compute: case.compute,
        bias: case.bias,
        activation: case.activation,
        scaling: Scaling::None,
    };
    let Some(plan) = gpu.gemm(&gemm).unwrap_or_else(|error| panic!("{case:?}: {error}")) else {
        return false;
    };
    let workspace = Buffer::uninit_pooled(DType::UInt8, &[plan.workspace_bytes().max(1)], device).unwrap();
    let at = GemmAddresses {
        a: a.address(),
        b: b.address(),
        c: c.as_ref().map_or(0, Placed::address),
        d: d.address(),
        bias: if case.bias { address(&bias_buffer) } else { 0 },
        scales: [0; 2],
        workspace: address(&workspace),
    };
    let [alpha, beta] = case.factors;
    // SAFETY: the matrices are as large as the matmul says, and alive until the result has been read.
    unsafe { plan.run(&device.default_stream(), &at, alpha, beta) }
        .unwrap_or_else(|error| panic!("{case:?}: {error}"));
    let found = download(&d.buffer);
    let mut expected = d.values.clone();
    for (batch, row, column) in
        (0..case.batch).flat_map(|b| (0..m).flat_map(move |r| (0..n).map(move |c| (b, r, c))))
    {
        let product: f64 =
            (0..k).map(|i| a.values[a.at(batch, row, i)] * b.values[b.at(batch, i, column)]).sum();
        let added = c.as_ref().map_or(0.0, |c| c.values[c.at(batch, row, column)]);
        let bias = if case.bias { bias[column] } else { 0.0 };
        let sum = alpha * product + beta * added + bias;
        let inner = 0.797_884_560_802_865_4 * (sum + 0.044_715 * sum * sum * sum);
        expected[d.at(batch, row, column)] = match case.activation {
            Activation::None => sum,
            Activation::Relu => sum.max(0.0),
            Activation::GeluTanh => 0.5 * sum * (1.0 + inner.tanh()),
        };
    }
    let rounded = |value: f64| dispatch!(d_type, T => T::from_double(value).to_f64());
    for (place, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
        // Sums of small whole numbers are exact; only gelu may be slightly off.
        let slack = if case.activation == Activation::GeluTanh { 0.01 + 0.01 * expected.abs() } else { 0.0 };
        assert!(
            (found - rounded(expected)).abs() <= slack,
            "element {place} of {case:?} is {found}, not {}: {plan:?} with {} bytes",
            rounded(expected),
            plan.workspace_bytes()
        );
    }
    true
}

/// Checks matmuls, all of which the library must support.
fn check_all(cases: &[Case]) {
    let Some((device, gpu)) = gpu() else { return };
    let without: Vec<_> = cases.iter().filter(|case| !check(case, &device, gpu)).collect();
    assert!(without.is_empty(), "the library does not support {without:#?}");
}

#[test]
fn matmuls_of_all_types() {
    let types: &[([DType; 3], Compute)] = &[
        ([Float32; 3], Compute::F32),
        ([Float32; 3], Compute::TF32),
        ([Float64; 3], Compute::F64),
        ([Float16; 3], Compute::F32),
        ([BFloat16; 3], Compute::F32),
        ([BFloat16; 3], Compute::TF32),
        ([Float16, Float16, Float32], Compute::F32),
        ([BFloat16, BFloat16, Float32], Compute::F32),
    ];
    let sizes =
        [[4, 8, 24], [1, 8, 24], [64, 1, 32], [129, 65, 33], [256, 512, 128], [1, 1, 1], [1, 4096, 512]];
    let cases: Vec<_> = types
        .iter()
        .flat_map(|&(types, compute)| sizes.map(|size| Case { types, compute, size, ..CASE }))
        .collect();
    check_all(&cases);
}

#[test]
fn matmuls_of_all_layouts() {
    let mut cases = Vec::new();
    for types in [[Float32; 3], [BFloat16; 3]] {
        for transposed in [[false, false], [false, true], [true, false], [true, true]] {
            let case = Case { types, transposed, size: [24, 16, 40], ..CASE };
            cases.push(case);
            cases.push(Case { gap: 8, ..case });
            cases.push(Case { gap: 3, ..case });
            cases.push(Case { offset: 4, ..case });
            cases.push(Case { offset: 1, gap: 5, size: [23, 17, 39], ..case });
            cases.push(Case { batch: 3, ..case });
            cases.push(Case { batch: 3, repeated: true, gap: 8, ..case });
            cases.push(Case { batch: 100, size: [3, 5, 7], offset: 2, ..case });
        }
    }
    check_all(&cases);
}

#[test]
fn matmuls_with_all_activations() {
    let mut cases = Vec::new();
    for types in [[Float32; 3], [BFloat16; 3], [Float16; 3], [BFloat16, BFloat16, Float32]] {
        for activation in [Activation::None, Activation::Relu, Activation::GeluTanh] {
            for bias in [false, true] {
                let case = Case { types, activation, bias, size: [48, 64, 32], ..CASE };
                cases.extend([case, Case { transposed: [false, true], ..case }, Case { batch: 2, ..case }]);
            }
        }
    }
    check_all(&cases);
}

#[test]
fn matmuls_with_an_addend() {
    let mut cases = Vec::new();
    for types in [[Float32; 3], [BFloat16; 3], [Float64; 3]] {
        let compute = if types[0] == Float64 { Compute::F64 } else { Compute::F32 };
        for added in [Some(false), Some(true)] {
            for factors in [[1.0, 1.0], [0.5, 2.0], [2.0, 0.0]] {
                let case = Case { types, compute, added, factors, size: [32, 48, 16], ..CASE };
                cases.extend([case, Case { batch: 2, gap: 4, ..case }]);
            }
        }
        cases.push(Case { types, compute, factors: [0.5, 0.0], ..CASE });
    }
    let last =
        Case { added: Some(false), factors: [1.0, 1.0], bias: true, activation: Activation::Relu, ..CASE };
    cases.push(Case { size: [32, 48, 16], ..last });
    check_all(&cases);
}

#[test]
fn matmuls_of_eight_bit_types() {
    let Some((_, gpu)) = gpu() else { return };
    let case = Case { transposed: [false, true], size: [32, 48, 64], ..CASE };
    let whole = Case { types: [Int8, Int8, Int32], compute: Compute::I32, ..case };
    check_all(&[whole, Case { batch: 2, ..whole }]);
    if gpu.compute_capability() < (8, 9) {
        return eprintln!("skipped: this GPU does not support float8");
    }
    let mut cases = Vec::new();
    for (a, b) in [(Float8E4M3FN, Float8E4M3FN), (Float8E4M3FN, Float8E5M2), (Float8E5M2, Float8E4M3FN)] {
        for d in [BFloat16, Float16, Float32] {
            cases.push(Case { types: [a, b, d], ..case });
        }
    }
    cases.push(Case { types: [Float8E4M3FN, Float8E4M3FN, BFloat16], bias: true, ..case });
    check_all(&cases);
}

#[test]
fn unsupported_matmuls_have_no_plan() {
    let Some((device, gpu)) = gpu() else { return };
    let size = [16, 16, 16];
    for case in [
        Case { types: [Float8E4M3FN, Float8E4M3FN, BFloat16], size, ..CASE },
        Case { types: [Float16, BFloat16, Float32], size, ..CASE },
        Case { types: [Int32; 3], compute: Compute::I32, size, ..CASE },
    ] {
        assert!(!check(&case, &device, gpu), "{case:?}");
    }
}

#[test]
fn float32_stays_float32() {
    let Some((device, gpu)) = gpu() else { return };
    let (m, n, k) = (64, 64, 64);
    // A difference that operands rounded to 19 bits lose.
    let value = 1.0 + f64::from(f32::EPSILON) * 512.0;
    let matrix = Matrix { dtype: Float32, transposed: false, leading: 64, batch_stride: 0, alignment: 256 };
    let (a, b) = (upload(Float32, &vec![value; m * k], &device), upload(Float32, &vec![1.0; k * n], &device));
    let d = upload(Float32, &vec![0.0; m * n], &device);
    let gemm = Gemm {
        batch: 1,
        m: m as i64,
        n: n as i64,
        k: k as i64,
        a: matrix,
        b: matrix,
        c: None,
        d: matrix,
        compute: Compute::F32,
        bias: false,
        activation: Activation::None,
        scaling: Scaling::None,
    };
    let results = [Compute::F32, Compute::TF32].map(|compute| {
        let plan = gpu.gemm(&Gemm { compute, ..gemm }).unwrap().unwrap();
        let workspace =
            Buffer::uninit_pooled(DType::UInt8, &[plan.workspace_bytes().max(1)], &device).unwrap();
        let (a, b, d_at, workspace_at) = (address(&a), address(&b), address(&d), address(&workspace));
        let at = GemmAddresses { a, b, c: 0, d: d_at, bias: 0, scales: [0; 2], workspace: workspace_at };
        let stream = device.default_stream();
        for (wrong, beta) in [(GemmAddresses { d: d_at + 4, ..at }, 0.0), (at, 1.0)] {
            // SAFETY: it never starts.
            let error = unsafe { plan.run(&stream, &wrong, 1.0, beta) }.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
        }
        // SAFETY: the matrices are as large as the matmul says.
        unsafe { plan.run(&stream, &at, 1.0, 0.0) }.unwrap();
        download(&d)
    });
    assert!(results[0].iter().all(|&sum| sum == 64.0 * value), "{:?}", &results[0][..4]);
    assert!(results[1].iter().all(|&sum| (sum - 64.0).abs() < 0.1), "{:?}", &results[1][..4]);
}

#[test]
fn long_sums_have_the_same_bits_twice() {
    let Some((device, gpu)) = gpu() else { return };
    let (m, n, k) = (32usize, 64usize, 65536usize);
    let random = |count: usize, seed: u64| -> Vec<f64> {
        let mut state = seed;
        (0..count)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 40) as f64 / f64::from(1 << 24) - 0.5
            })
            .collect()
    };
    for dtype in [BFloat16, Float32] {
        let matrix = |leading: usize| Matrix {
            dtype,
            transposed: false,
            leading: leading as i64,
            batch_stride: 0,
            alignment: 256,
        };
        let (a, b) = (upload(dtype, &random(m * k, 1), &device), upload(dtype, &random(k * n, 2), &device));
        let gemm = Gemm {
            batch: 1,
            m: m as i64,
            n: n as i64,
            k: k as i64,
            a: matrix(k),
            b: matrix(n),
            c: None,
            d: matrix(n),
            compute: Compute::F32,
            bias: false,
            activation: Activation::None,
            scaling: Scaling::None,
        };
        let plan = gpu.gemm(&gemm).unwrap().unwrap();
        let workspace =
            Buffer::uninit_pooled(DType::UInt8, &[plan.workspace_bytes().max(1)], &device).unwrap();
        let run = || {
            let d = upload(dtype, &vec![0.0; m * n], &device);
            let (a, b, d_at, workspace) = (address(&a), address(&b), address(&d), address(&workspace));
            let at = GemmAddresses { a, b, c: 0, d: d_at, bias: 0, scales: [0; 2], workspace };
            // SAFETY: the matrices are as large as the matmul says.
            unsafe { plan.run(&device.default_stream(), &at, 1.0, 0.0) }.unwrap();
            download(&d)
        };
        let first = run();
        for round in 0..10 {
            assert!(run() == first, "{dtype} in round {round}, with {} bytes", plan.workspace_bytes());
        }
    }
}
