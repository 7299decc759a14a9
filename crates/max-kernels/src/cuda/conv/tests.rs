//! The decisions for convolutions, without a GPU.

use max_core::kernel::{Instr, Loop, Reg, Slot};

use super::*;
use crate::cuda::nvrtc;

const HOPPER: (u32, u32) = (9, 0);

fn access(slot: u32, dtype: DType, shape: &[i64]) -> Access<i64> {
    let (strides, _) = row_major(shape).unwrap();
    Access { slot: Slot(slot), dtype, offset: 0, strides }
}

/// A convolution of `[2, 14, 14, channels]` without padding.
fn conv(dtype: DType, channels: i64, [height, width, filters]: [i64; 3], groups: usize) -> Conv2d<i64> {
    let out = [2, 15 - height, 15 - width, filters];
    Conv2d {
        out,
        input_size: [14, 14, channels],
        filter_size: [height, width],
        depth: channels / groups as i64,
        stride: [1, 1],
        dilation: [1, 1],
        padding: [0, 0],
        groups,
        input: access(0, dtype, &[2, 14, 14, channels]),
        filter: access(1, dtype, &[height, width, channels / groups as i64, filters]),
        epilogue: Loop {
            shape: out.to_vec(),
            reduce: None,
            accesses: vec![access(2, dtype, &out)],
            code: vec![Instr::Product(dtype), Instr::Store(0, Reg(0))],
        },
    }
}

#[test]
fn one_tap_is_a_matmul() {
    let mut k = conv(DType::Float32, 8, [1, 1, 16], 1);
    let matmul = as_matmul(&k).unwrap();
    assert_eq!((&matmul.batch[..], matmul.m, matmul.n, matmul.k), (&[2, 14][..], 14, 16, 8));
    assert_eq!(matmul.lhs.strides, [14 * 14 * 8, 14 * 8, 8, 1]);
    assert_eq!(matmul.rhs.strides, [0, 0, 16, 1]);
    k.stride = [2, 3];
    k.out = [2, 7, 5, 16];
    assert_eq!(as_matmul(&k).unwrap().lhs.strides, [14 * 14 * 8, 2 * 14 * 8, 3 * 8, 1]);
    // Zeros after the last column, zeros before the first, and more taps.
    k.out[2] = 6;
    assert!(as_matmul(&k).is_none());
    k.out[2] = 5;
    k.padding = [0, 1];
    assert!(as_matmul(&k).is_none());
    assert!(as_matmul(&conv(DType::Float32, 8, [1, 2, 16], 1)).is_none());
    assert!(as_matmul(&conv(DType::Float32, 8, [1, 1, 16], 2)).is_none());
}

#[test]
fn methods_follow_from_types_and_groups() {
    let of = |dtype, channels, filter, groups| method(&conv(dtype, channels, filter, groups), HOPPER, 2);
    assert_eq!(of(DType::Float32, 64, [3, 3, 64], 1), ConvMethod::Tiles);
    assert_eq!(of(DType::BFloat16, 64, [3, 3, 64], 1), ConvMethod::Tensor(64));
    assert_eq!(of(DType::Float16, 64, [3, 3, 256], 1), ConvMethod::Tensor(128));
    assert_eq!(of(DType::Int8, 64, [3, 3, 256], 1), ConvMethod::Tiles);
    assert_eq!(of(DType::BFloat16, 64, [3, 3, 64], 64), ConvMethod::Direct);
    assert_eq!(of(DType::BFloat16, 64, [3, 3, 128], 16), ConvMethod::Direct);
    assert_eq!(of(DType::BFloat16, 64, [3, 3, 64], 2), ConvMethod::Tensor(64));
    let k = conv(DType::BFloat16, 64, [3, 3, 256], 1);
    assert_eq!(method(&k, (7, 5), 2), ConvMethod::Tiles);
    // Small tiles where large ones would leave most of the GPU idle.
    assert_eq!(method(&k, HOPPER, 132), ConvMethod::Tensor(64));
    assert_eq!(blocks(&k, ConvMethod::Tensor(64)), 3 * 4);
}

#[test]
fn few_tiles_with_long_windows_are_split() {
    let mut k = conv(DType::BFloat16, 256, [3, 3, 64], 1);
    assert_eq!((depth(&k), blocks(&k, ConvMethod::Tensor(64))), (2304, 3));
    assert_eq!(parts(&k, ConvMethod::Tensor(64), 132), 8);
    assert_eq!(parts(&k, ConvMethod::Tensor(64), 8), 2);
    assert_eq!(parts(&k, ConvMethod::Tensor(64), 3), 1);
    assert_eq!((part_depth(&k, 8), part_depth(&k, 7), part_depth(&k, 1)), (288, 352, 2304));
    k.input.dtype = DType::Int32;
    assert_eq!(parts(&k, ConvMethod::Tiles, 132), 1);
}

#[test]
fn numbers_say_whether_eight_are_read_at_once() {
    let whole = |k: &Conv2d<i64>| {
        let numbers = numbers(k, &k.epilogue.accesses[0]);
        assert_eq!(numbers.len(), 30);
        [numbers[28], numbers[29]]
    };
    let mut k = conv(DType::BFloat16, 16, [3, 3, 24], 1);
    assert_eq!(whole(&k), [1, 1]);
    assert_eq!(whole(&conv(DType::BFloat16, 3, [3, 3, 24], 1)), [0, 1]);
    assert_eq!(whole(&conv(DType::BFloat16, 16, [3, 3, 24], 2)), [1, 0]);
    k.input.offset = 4;
    assert_eq!(whole(&k), [0, 1]);
    k.filter.strides = vec![3 * 16, 16, 1, 9 * 16];
    assert_eq!(whole(&k), [0, 0]);
}

#[test]
fn invalid_convolutions_are_rejected() {
    let k = conv(DType::Float32, 8, [3, 3, 16], 1);
    expect(&k).unwrap();
    expect(&Conv2d { groups: 3, ..k.clone() }).unwrap_err();
    expect(&Conv2d { stride: [0, 1], ..k.clone() }).unwrap_err();
    expect(&Conv2d { dilation: [usize::MAX, 1], ..k }).unwrap_err();
}

#[test]
fn functions_compile() {
    let types = DType::ALL.iter().copied().filter(|dtype| !dtype.is_small_float());
    let mut sources: Vec<Source> = types
        .flat_map(|dtype| [ConvMethod::Direct, ConvMethod::Tiles].map(|method| source(method, dtype, dtype)))
        .collect();
    sources.push(source(ConvMethod::Direct, DType::BFloat16, DType::Float32));
    sources.push(source(ConvMethod::Tiles, DType::BFloat16, DType::Float32));
    nvrtc::check(&sources);
    let halves = [DType::BFloat16, DType::Float16];
    let pairs = halves.into_iter().flat_map(|dtype| [(dtype, dtype), (dtype, DType::Float32)]);
    let tensor: Vec<Source> = pairs
        .flat_map(|(from, to)| [64, 128].map(|wide| source(ConvMethod::Tensor(wide), from, to)))
        .collect();
    nvrtc::check_for(&tensor, &["sm_80", "sm_90"]);
}
