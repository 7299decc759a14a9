//! The decisions for products with quantized weights, without a GPU.

use max_core::QuantizationEncoding;
use max_core::kernel::{Experts, Slot};
use max_driver::cuda::Activation;

use super::super::matmul::ending;
use super::super::matmul::fused::FusedEpilogue;
use super::rows::{Shape, quantizing_source, source};
use super::*;
use crate::cuda::nvrtc;

/// The multiprocessors and the shared memory of a large GPU and of a small one.
const LARGE: (u32, usize) = (132, 227 << 10);
const SMALL: (u32, usize) = (40, 99 << 10);

fn storages() -> Vec<Storage> {
    let blocks = QuantizationEncoding::ALL.iter().filter(|encoding| encoding.blocks().is_some());
    let apart = [4, 8].map(|bits| Storage::Integers { bits, group: 128 });
    blocks.map(|encoding| Storage::Blocks(*encoding)).chain(apart).chain([Storage::Float4]).collect()
}

fn access(slot: u32, dtype: DType, strides: &[i64]) -> Access<i64> {
    Access { slot: Slot(slot), dtype, offset: 0, strides: strides.to_vec() }
}

/// A product with contiguous operands and a contiguous result.
fn qmatmul(dtype: DType, storage: Storage, [m, n, k]: [i64; 3]) -> QMatmul<i64> {
    let length = match storage {
        Storage::Blocks(encoding) => {
            let format = encoding.format().unwrap();
            k / format.elements as i64 * format.bytes as i64
        }
        Storage::Integers { bits, .. } => k * i64::from(bits) / 8,
        Storage::Float4 => k / 2,
        Storage::Floats { .. } => k,
    };
    let scales = storage.scales_dtype().map(|dtype| {
        let length = storage.scales(k as usize) as i64;
        (length, access(2, dtype, &[length, 1]))
    });
    let epilogue = Loop {
        shape: vec![m, n],
        reduce: None,
        accesses: vec![access(3, dtype, &[n, 1])],
        code: vec![Instr::Product(dtype), Instr::Store(0, Reg(0))],
    };
    let codes = access(1, storage.dtype(), &[length, 1]);
    let projection = Projection { storage, n, length, codes, scales, epilogue };
    QMatmul { batch: vec![], m, k, lhs: access(0, dtype, &[k, 1]), experts: None, all: vec![projection] }
}

#[test]
fn methods() {
    let q4 = Storage::Blocks(QuantizationEncoding::Q4_0);
    let of = |dtype, storage, sizes, capability| {
        let k = qmatmul(dtype, storage, sizes);
        method(&k, &k.all[0], (capability, LARGE.1)).unwrap()
    };
    let (bf16, f32) = (DType::BFloat16, DType::Float32);
    assert!(matches!(of(bf16, q4, [1, 64, 64], (9, 0)), Method::Few(_)));
    assert!(matches!(of(bf16, q4, [2, 64, 14336], (9, 0)), Method::Few(_)));
    assert!(matches!(of(bf16, q4, [4, 64, 4096], (8, 0)), Method::Few(_)));
    assert_eq!(of(bf16, q4, [5, 64, 64], (9, 0)), Method::Rows);
    // Quantizing long rows takes every block too long.
    assert_eq!(of(bf16, q4, [4, 64, 14336], (9, 0)), Method::Rows);
    assert_eq!(of(bf16, q4, [1, 64, 1 << 16], (9, 0)), Method::Rows);
    assert_eq!(of(f32, q4, [MOST_ROWS, 64, 64], (8, 0)), Method::Rows);
    assert_eq!(of(f32, q4, [MOST_ROWS + 1, 64, 64], (9, 0)), Method::Decoded(bf16));
    assert_eq!(of(bf16, q4, [1, 64, 64], (7, 5)), Method::Decoded(bf16));
    assert_eq!(of(bf16, q4, [0, 64, 64], (9, 0)), Method::Nothing);
    assert_eq!(of(bf16, q4, [1, 64, 0], (9, 0)), Method::Zeros);
    let floats = |dtype, group| Storage::Floats { dtype, group };
    assert_eq!(of(bf16, floats(bf16, 0), [1, 64, 64], (9, 0)), Method::Floats);
    assert_eq!(of(f32, floats(bf16, 0), [1, 64, 64], (9, 0)), Method::Decoded(f32));
    assert_eq!(of(bf16, floats(DType::Float8E4M3FN, 32), [1, 64, 64], (9, 0)), Method::Decoded(bf16));
}

#[test]
fn products_that_functions_cannot_read_are_errors() {
    let good = qmatmul(DType::Float32, Storage::Integers { bits: 4, group: 32 }, [1, 8, 64]);
    let fails = |change: &dyn Fn(&mut QMatmul<i64>)| {
        let mut bad = good.clone();
        change(&mut bad);
        method(&bad, &bad.all[0], ((9, 0), LARGE.1)).is_err()
    };
    assert!(!fails(&|_| {}));
    assert!(fails(&|k| k.k = 96));
    assert!(fails(&|k| k.lhs.dtype = DType::Float64));
    assert!(fails(&|k| k.all[0].scales = None));
    assert!(fails(&|k| k.all[0].length = 31));
    assert!(fails(&|k| k.all[0].codes.strides.push(1)));
    let experts = |k: &mut QMatmul<i64>| {
        let index = access(4, DType::Int32, &[1]);
        let (starts, ids) = (index.clone(), index);
        k.experts = Some(Experts { count: 2, groups: 3, starts, ends: 4, ids });
    };
    // The weights have no axis of experts.
    assert!(fails(&experts));
}

#[test]
fn parts_cover_all_columns() {
    for (n, k) in [(1, 32), (257, 4096), (14336, 4096), (128256, 8192), (65, 1 << 26), (200, 1 << 19)] {
        let parts = parts(n, k);
        let mut next = 0;
        for (first, columns) in &parts {
            assert_eq!(*first, next);
            assert!(*columns > 0 && (*columns <= 64 || columns * k <= MOST_DECODED), "{columns} x {k}");
            next += columns;
        }
        assert_eq!(next, n);
    }
    assert_eq!(parts(4096, 4096).len(), 1);
    assert_eq!(parts(14336, 4096).len(), 2);
}

#[test]
fn shapes_fit_shared_memory() {
    for storage in storages() {
        let decoder = Decoder::new(storage).unwrap();
        for (rows, gpu) in [5, 8, 16, 128].into_iter().flat_map(|rows| [(rows, LARGE), (rows, SMALL)]) {
            for n in [1, 1024, 4096, 128256] {
                assert!(Shape::new(&decoder, [rows, n], gpu).is_some(), "{storage} {rows} {n}");
            }
        }
        let eight = Shape::new(&decoder, [8, 4096], LARGE).unwrap();
        assert!(eight.stages >= 2, "{storage} {eight:?}");
        for rows in 1..=4 {
            let few = |k, (_, shared)| few::Shape::new(&decoder, [rows, k], shared);
            assert!(few(8192, LARGE).is_some() && few(4096, SMALL).is_some(), "{storage} {rows}");
            assert_eq!(few(1 << 20, LARGE), None);
        }
        assert_eq!(few::Shape::new(&decoder, [5, 32], LARGE.1), None);
    }
}

#[test]
fn blocks_share_tiles_evenly() {
    let decoder = Decoder::new(Storage::Blocks(QuantizationEncoding::Q4_0)).unwrap();
    let grid = |n| Shape::new(&decoder, [8, n], LARGE).unwrap().grid(1, 1, n, LARGE.0);
    assert_eq!(grid(4096), [1, 128, 1]);
    assert_eq!(grid(14336), [1, 224, 1]);
    assert_eq!(grid(1), [1, 1, 1]);
}

#[test]
fn functions_compile() {
    let mut sources = Vec::new();
    let dtypes = [DType::BFloat16, DType::Float32, DType::Float16];
    for (at, storage) in storages().into_iter().enumerate() {
        let decoder = Decoder::new(storage).unwrap();
        let to = dtypes[at / 3 % 3];
        for (number, (rows, n)) in [(5, 4096), (8, 64), (16, 64), (32, 4096)].into_iter().enumerate() {
            let shape = Shape::new(&decoder, [rows, n], LARGE).unwrap();
            let store = access(0, to, &[64, 1]);
            let fused = FusedEpilogue {
                bias: (number % 2 == 0).then(|| store.clone()),
                residual: (number % 3 == 0).then(|| store.clone()),
                activation: [Activation::None, Activation::Relu, Activation::GeluTanh][number % 3],
                ..FusedEpilogue::store(store)
            };
            let indices = [None, None, Some([DType::UInt32, DType::Int64]), None][number];
            // Each storage has every shape, but not every storage all of them: compiling takes long.
            if (at + number) % 3 == 0 {
                sources.push(source(&decoder, &shape, &fused, indices));
            }
        }
        for rows in [1, 2, 4].into_iter().filter(|&rows| rows == 1 || (at as i64 + rows) % 3 == 0) {
            let shape = few::Shape::new(&decoder, [rows, 4096], LARGE.1).unwrap();
            let k = qmatmul(dtypes[at % 3], storage, [rows, 64, 4096]);
            let endings = [0, 1].map(|number| ending::write(&k.all[0].epilogue, number).unwrap().unwrap());
            let endings: Vec<_> = endings.into_iter().zip([false, true]).collect();
            sources.push(few::source(&decoder, &shape, k.lhs.dtype, &endings));
        }
    }
    nvrtc::check_for(&sources, &["sm_80", "sm_90"]);
    let others = storages().into_iter().enumerate().map(|(at, storage)| {
        decoding_source(&Decoder::new(storage).unwrap(), [DType::BFloat16, DType::Float32][at % 2])
    });
    nvrtc::check(&others.chain(dtypes.map(quantizing_source)).collect::<Vec<_>>());
}
