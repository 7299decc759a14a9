//! The decisions for convolutions, without a GPU.

use max_core::kernel::Slot;
use max_core::scalar::NumericOp;

use super::*;
use crate::cuda::nvrtc;

const AMPERE: (u32, u32) = (8, 0);

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
    let of = |dtype, channels, filter, groups| method(&conv(dtype, channels, filter, groups), AMPERE, 2);
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
    assert_eq!(method(&k, AMPERE, 132), ConvMethod::Tensor(64));
    assert_eq!(blocks(&k, ConvMethod::Tensor(64)), 3 * 4);
}

#[test]
fn hopper_gpus_have_a_function_for_whole_vectors() {
    let is_special = |k: &Conv2d<i64>| matches!(method(k, HOPPER, 132), ConvMethod::Hopper(_));
    let k = conv(DType::BFloat16, 64, [3, 3, 64], 1);
    assert!(is_special(&k) && is_special(&conv(DType::Float16, 64, [3, 3, 128], 2)));
    let moved = Access { offset: 4, ..k.input.clone() };
    let turned = Access { strides: vec![64 * 9, 64 * 3, 1, 64], ..k.filter.clone() };
    assert!(!is_special(&Conv2d { input: moved, ..k.clone() }));
    assert!(!is_special(&Conv2d { filter: turned, ..k.clone() }));
    assert!(!is_special(&conv(DType::BFloat16, 60, [3, 3, 64], 1)));
    assert!(!is_special(&conv(DType::BFloat16, 16, [3, 3, 64], 1)));
    assert!(!is_special(&conv(DType::BFloat16, 64, [3, 3, 60], 1)));
    assert!(!is_special(&conv(DType::BFloat16, 64, [7, 5, 64], 1)));
    assert!(!is_special(&conv(DType::Float32, 64, [3, 3, 64], 1)));
    // What does not fit in 32 bits.
    for huge in [1 << 29, i64::MAX / 64 * 8] {
        let far = Access { strides: vec![huge, 14 * 64, 64, 1], ..k.input.clone() };
        assert!(!is_special(&Conv2d { input: far, ..k.clone() }));
        assert!(!is_special(&Conv2d {
            dilation: [huge as usize, 1],
            padding: [huge as usize, 0],
            ..k.clone()
        }));
    }
}

/// A convolution of images with padding of one and windows of three by three.
fn same(images: i64, side: i64, channels: i64, filters: i64, stride: usize) -> Conv2d<i64> {
    let out = [images, (side - 1) / stride as i64 + 1, (side - 1) / stride as i64 + 1, filters];
    let plain = conv(DType::BFloat16, channels, [3, 3, filters], 1);
    Conv2d {
        out,
        input_size: [side, side, channels],
        stride: [stride; 2],
        padding: [1; 2],
        input: access(0, DType::BFloat16, &[images, side, side, channels]),
        epilogue: Loop {
            shape: out.to_vec(),
            accesses: vec![access(2, DType::BFloat16, &out)],
            ..plain.epilogue.clone()
        },
        ..plain
    }
}

#[test]
fn strips_hold_all_that_a_tile_sees() {
    let shapes =
        [same(32, 56, 64, 64, 1), same(32, 14, 64, 64, 1), same(32, 7, 64, 64, 1), same(3, 9, 64, 64, 2)];
    for k in shapes {
        let [_, height, width, _] = k.out;
        let [lines, line] = [hopper::padded(&k, 0), hopper::padded(&k, 1)];
        let place = |position: i64| {
            let (x, y, image) = (position % width, position / width % height, position / width / height);
            (image * lines + y * k.stride[0] as i64) * line + x * k.stride[1] as i64
        };
        for tiling in hopper::TILINGS {
            let (tall, strip) = (tiling.tall(), tiling.strip(&k).unwrap());
            let positions: i64 = k.out[..3].iter().product();
            for first in (0..positions).step_by(tall as usize) {
                for position in first..(first + tall).min(positions) {
                    let from = place(position) - place(first);
                    assert!(
                        from >= 0 && from + 2 * line + 2 < strip,
                        "{tiling:?} from {first} to {position} of {:?}",
                        k.out
                    );
                }
            }
        }
    }
    // Windows far outside: positions would not come in the order of their pixels, not even where there is a stride.
    let far = Conv2d { padding: [9; 2], out: [2, 21, 21, 64], ..same(2, 5, 64, 64, 1) };
    let strided = Conv2d { padding: [4; 2], out: [208, 9, 9, 128], ..same(208, 12, 64, 128, 2) };
    let across = Conv2d { padding: [1, 9], stride: [1, 2], out: [2, 10, 13, 64], ..same(2, 10, 64, 64, 1) };
    for k in [far, strided, across] {
        assert!(hopper::TILINGS.iter().all(|tiling| tiling.strip(&k).is_none()), "{:?}", k.out);
    }
}

#[test]
fn tiles_fill_the_gpu() {
    // Each is at most one round of blocks, or many.
    for (k, most) in [
        (same(32, 56, 64, 64, 1), 4),
        (same(32, 28, 128, 128, 1), 1),
        (same(32, 14, 256, 256, 1), 1),
        (same(32, 7, 512, 512, 1), 1),
        (same(32, 56, 128, 128, 2), 1),
        (same(32, 28, 256, 256, 2), 1),
    ] {
        let tiling = Tiling::of(&k, 132).unwrap();
        let rounds = tiling.tiles(&k).div_ceil(132 * u64::from(tiling.blocks));
        assert!(rounds <= most, "{rounds} rounds of {tiling:?}");
        assert_eq!(tiling.is_sliding, k.stride == [1, 1] && k.out[1] > 7, "{tiling:?}");
    }
}

#[test]
fn few_tiles_with_long_windows_are_split() {
    let mut k = conv(DType::BFloat16, 256, [3, 3, 64], 1);
    let tensor = ConvMethod::Tensor(64);
    assert_eq!((depth(&k), blocks(&k, tensor)), (2304, 3));
    assert_eq!(parts(&k, tensor, 132), 8);
    assert_eq!(parts(&k, tensor, 8), 2);
    assert_eq!(parts(&k, tensor, 3), 1);
    let part_depth = |parts| part_depth(&k, tensor, parts);
    assert_eq!((part_depth(8), part_depth(7), part_depth(1)), (288, 352, 2304));
    // Steps: strips are not divided, taps are.
    for tiling in hopper::TILINGS {
        let method = ConvMethod::Hopper(tiling);
        let parts = parts(&k, method, 132);
        assert_eq!(parts, if tiling.is_sliding { 4 } else { 8 });
        assert_eq!(super::part_depth(&k, method, parts), if tiling.is_sliding { 9 } else { 5 });
    }
    k.input.dtype = DType::Int32;
    assert_eq!(parts(&k, ConvMethod::Tiles, 132), 1);
}

/// Adds a vector to the result of a convolution.
fn with_bias(k: &Conv2d<i64>) -> Conv2d<i64> {
    let mut k = k.clone();
    let dtype = k.input.dtype;
    k.epilogue.accesses.push(Access { strides: vec![0, 0, 0, 1], ..access(3, dtype, &[k.out[3]]) });
    k.epilogue.code = vec![
        Instr::Product(dtype),
        Instr::Load(1),
        Instr::Apply(NumericOp::Add.into(), [Reg(0), Reg(1)]),
        Instr::Store(0, Reg(2)),
    ];
    k
}

#[test]
fn epilogues_of_elements_are_functions_of_sums() {
    let k = same(2, 9, 64, 64, 1);
    let plain = finished(&k).unwrap().unwrap();
    assert_eq!((plain.body.as_str(), plain.params.len()), ("return product;", 0));
    let bias = finished(&with_bias(&k)).unwrap().unwrap();
    assert!(bias.body.ends_with("return r2;") && bias.parameters.contains("e0_1"), "{}", bias.body);
    // One that stores apart, twice, or something that has no rows.
    let mut other = with_bias(&k);
    other.epilogue.accesses[0].strides = vec![81 * 64, 9, 1, 81];
    assert!(finished(&other).unwrap().is_none());
    let mut other = with_bias(&k);
    other.epilogue.code.push(Instr::Store(0, Reg(2)));
    assert!(finished(&other).unwrap().is_none());
    let mut other = with_bias(&k);
    other.epilogue.accesses[1].strides = vec![0, 1, 0, 0];
    assert!(finished(&other).unwrap().is_none());
}

#[test]
fn positions_are_rows_where_strides_say_so() {
    let rows = |strides: [i64; 4], out: [i64; 4]| {
        in_rows(&Access { strides: strides.to_vec(), ..access(0, DType::Float32, &out) }, &out)
            .map(|access| access.strides)
    };
    assert_eq!(rows([120, 24, 8, 1], [2, 5, 3, 8]), Some(vec![8, 1]));
    assert_eq!(rows([0, 0, 0, 1], [2, 5, 3, 8]), Some(vec![0, 1]));
    assert_eq!(rows([7, 24, 99, 1], [1, 5, 1, 8]), Some(vec![24, 1]));
    assert_eq!(rows([9, 9, 9, 3], [1, 1, 1, 8]), Some(vec![0, 3]));
    assert_eq!(rows([120, 32, 8, 1], [2, 5, 3, 8]), None);
    assert_eq!(rows([0, 24, 8, 1], [2, 5, 3, 8]), None);
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
    let source = |method, from, to| source(method, from, &Finish::plain(access(2, to, &[1; 4])));
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

    let all = |from, to| hopper::TILINGS.map(|tiling| source(ConvMethod::Hopper(tiling), from, to));
    let [bf16, f16] = halves;
    let mut hopper = [all(bf16, bf16), all(f16, DType::Float32), all(f16, f16)].concat();
    let bias = finished(&with_bias(&same(2, 9, 64, 64, 1))).unwrap().unwrap();
    hopper.extend(hopper::TILINGS.map(|tiling| tiling.source(bf16, &bias)));
    nvrtc::check_for(&hopper, &["sm_90a"]);
}
