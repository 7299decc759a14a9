//! Attention against plain loops in f64, and rows against the same rows computed with other rows.

use max_core::dispatch;
use max_core::kernel::{Access, Kernel, Slot};
use max_driver::Buffer;

use super::*;
use crate::matmul::tests::{Random, element, store};
use crate::prepare;

#[derive(Clone, Copy, Debug)]
struct Case {
    /// Groups, heads per group, queries, keys, depth and width.
    sizes: [i64; 6],
    causal: bool,
    window: usize,
    mask: Option<DType>,
    /// Whether the heads of a group always share keys and values; otherwise they may.
    shared: bool,
}

impl Case {
    fn new(sizes: [i64; 6]) -> Case {
        Case { sizes, causal: false, window: 0, mask: None, shared: false }
    }
}

/// An attention with the memory that it reads, as buffers and as numbers.
struct Made {
    k: Attention<i64>,
    slots: Vec<Buffer>,
    numbers: Vec<Vec<f64>>,
}

/// The attention of a case with operands in random layouts.
fn make<T: Element>(random: &mut Random, case: Case) -> Made {
    let [groups, heads, queries, keys, depth, width] = case.sizes;
    let (mut slots, mut numbers) = (Vec::new(), Vec::new());
    let mut operand = |dtype: DType, last: [i64; 2], shared: bool| -> Access<i64> {
        let shape = [groups, heads, last[0], last[1]];
        let (mut access, count) = random.access(slots.len() as u32, dtype, &shape, true);
        if shared {
            access.offset += Ord::min(access.strides[1], 0) * (heads - 1);
            access.strides[1] = 0;
        }
        dispatch!(dtype, E => {
            let elements: Vec<E> = match E::DTYPE {
                DType::Bool => (0..count).map(|_| E::from_double(random.below(3) as f64)).collect(),
                _ => random.elements::<E>(count).into_iter().map(|x| E::from_double(x.to_f64() / 8.0)).collect(),
            };
            numbers.push(elements.iter().map(|x| x.to_f64()).collect());
            slots.push(Buffer::from(elements));
        });
        access
    };
    let query = operand(T::DTYPE, [queries, depth], false);
    let key = operand(T::DTYPE, [keys, depth], case.shared);
    let value = operand(T::DTYPE, [keys, width], case.shared);
    let mask = case.mask.map(|dtype| operand(dtype, [queries, keys], false));
    let k = Attention {
        batch: vec![groups, heads],
        queries,
        keys,
        depth,
        width,
        query,
        key,
        value,
        scale: 0.5,
        causal: case.causal,
        window: case.window,
        epilogue: store(slots.len() as u32, T::DTYPE, &[groups, heads, queries, width]),
        mask,
    };
    Made { k, slots, numbers }
}

fn run<T: Element>(k: &Attention<i64>, slots: &[Buffer], threads: usize) -> Vec<T> {
    let count = k.batch.iter().product::<i64>() * k.queries * k.width;
    let out = Buffer::from(vec![T::from_double(77.0); count as usize]);
    let mut memory: Vec<Memory> = slots.iter().map(|slot| Memory::of(slot).unwrap()).collect();
    memory.push(Memory::of_mut(&out).unwrap());
    prepare(&Kernel::Attention(k.clone())).unwrap().run(&memory, &Pool::new(threads)).unwrap();
    out.to_vec().unwrap()
}

fn assert_same<T: Element>(a: &[T], b: &[T], what: &dyn std::fmt::Debug) {
    assert_eq!(bytemuck::cast_slice::<T, u8>(a), bytemuck::cast_slice::<T, u8>(b), "{what:?}");
}

/// Runs a case on 1, 2 and 3 threads and compares with plain loops.
fn check<T: Element>(random: &mut Random, case: Case, tolerance: f64) {
    let Made { k, slots, numbers } = make::<T>(random, case);
    let [groups, heads, queries, keys, depth, width] = case.sizes;
    let results = run::<T>(&k, &slots, 1);
    for threads in [2, 3] {
        assert_same(&run::<T>(&k, &slots, threads), &results, &case);
    }
    let mut results = results.iter();
    for at in 0..groups * heads * queries {
        let (group, head, i) = (at / queries / heads, at / queries % heads, at % queries);
        let number = |operand: usize, access: &Access<i64>, row: i64, column: i64| {
            element(&numbers[operand], access, &[group, head, row, column])
        };
        let mut scores: Vec<f64> = (0..keys)
            .map(|j| {
                let product = |p| number(0, &k.query, i, p) * number(1, &k.key, j, p);
                let score = (0..depth).map(product).sum::<f64>() * k.scale;
                let position = i + keys - queries;
                let hidden =
                    case.causal && (j > position || case.window > 0 && j <= position - case.window as i64);
                match k.mask.as_ref().map(|mask| number(3, mask, i, j)) {
                    _ if hidden => f64::NEG_INFINITY,
                    Some(kept) if case.mask == Some(DType::Bool) && kept == 0.0 => f64::NEG_INFINITY,
                    Some(mask) if case.mask != Some(DType::Bool) => score + mask,
                    _ => score,
                }
            })
            .collect();
        let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        scores.iter_mut().for_each(|score| *score = (*score - greatest).exp());
        let total: f64 = scores.iter().sum();
        for column in 0..width {
            let weighed = |j: i64| scores[j as usize] / total * number(2, &k.value, j, column);
            let expected: f64 = (0..keys).map(weighed).sum();
            let result = results.next().unwrap().to_f64();
            let close = (result - expected).abs() <= tolerance * (1.0 + expected.abs());
            assert!(
                close || result.is_nan() && expected.is_nan(),
                "{result} for {expected} at {i} of {case:?}"
            );
        }
    }
}

#[test]
fn small_shapes() {
    let mut random = Random(5);
    let masks = [None, Some(DType::Bool), Some(DType::Float32)];
    for at in 0..4 * 4 * 3 * 3 * 9 {
        let (queries, keys) = ([0, 1, 3, 18][at % 4], [0, 1, 6, 40][at / 4 % 4]);
        let (depth, width) = ([0, 2, 17][at / 16 % 3], [0, 1, 35][at / 48 % 3]);
        let (causal, mask) = (at / 144 % 3 > 0, masks[at / 432]);
        let window = if at / 144 % 3 == 2 { 1 + at % 7 } else { 0 };
        let sizes = [1 + at as i64 % 2, 2, queries, keys, depth, width];
        let case = Case { causal, window, mask, shared: at % 5 < 2, ..Case::new(sizes) };
        check::<f32>(&mut random, case, 1e-5);
        let mask = mask.map(|dtype| if dtype == DType::Bool { dtype } else { DType::Float64 });
        check::<f64>(&mut random, Case { mask, ..case }, 1e-13);
    }
}

#[test]
fn long_sums_and_many_blocks() {
    let mut random = Random(6);
    let sizes = [
        [1, 1, 130, 600, 20, 70],
        [2, 1, 3, 520, 300, 5],
        [1, 1, 20, 256, 256, 300],
        [1, 1, 300, 300, 4, 8],
        [2, 3, 40, 700, 64, 64],
        [2, 4, 1, 1300, 32, 32],
        [20, 1, 1, 300, 16, 32],
    ];
    for sizes in sizes {
        for shared in [false, true] {
            let case = Case { shared, ..Case::new(sizes) };
            let float = Some(DType::Float32);
            let bool = Some(DType::Bool);
            check::<f32>(&mut random, case, 3e-5);
            check::<f32>(&mut random, Case { causal: true, ..case }, 3e-5);
            check::<f32>(&mut random, Case { causal: true, window: 100, ..case }, 3e-5);
            check::<f32>(&mut random, Case { causal: true, window: 300, mask: bool, ..case }, 3e-5);
            check::<f32>(&mut random, Case { mask: bool, ..case }, 3e-5);
            check::<f32>(&mut random, Case { causal: true, mask: float, ..case }, 3e-5);
            check::<f64>(&mut random, Case { causal: true, ..case }, 1e-13);
            check::<max_core::f16>(&mut random, Case { mask: Some(DType::Float16), ..case }, 1e-3);
            check::<max_core::bf16>(&mut random, Case { causal: true, window: 270, ..case }, 1e-2);
        }
    }
}

/// The part of an attention with only some queries of one head, and the keys up to the last that they may see.
fn part(k: &Attention<i64>, [group, head]: [i64; 2], queries: std::ops::Range<i64>) -> Attention<i64> {
    let moved = |access: &Access<i64>, row: i64| {
        let strides = &access.strides;
        let offset = access.offset + group * strides[0] + head * strides[1] + row * strides[2];
        Access { offset, ..access.clone() }
    };
    let count = queries.end - queries.start;
    let out = Slot(if k.mask.is_some() { 4 } else { 3 });
    Attention {
        batch: vec![1, 1],
        queries: count,
        keys: if k.causal { queries.end + k.keys - k.queries } else { k.keys },
        query: moved(&k.query, queries.start),
        key: moved(&k.key, 0),
        value: moved(&k.value, 0),
        mask: k.mask.as_ref().map(|mask| moved(mask, queries.start)),
        epilogue: store(out.0, k.query.dtype, &[1, 1, count, k.width]),
        ..k.clone()
    }
}

/// Rows of a case have the same bits as when computed alone.
fn check_rows<T: Element>(random: &mut Random, case: Case) {
    let Made { k, slots, .. } = make::<T>(random, case);
    let [groups, heads, queries, _, _, width] = case.sizes;
    let results = run::<T>(&k, &slots, 2);
    for first in 0..queries {
        let at = [random.below(groups as u64) as i64, random.below(heads as u64) as i64];
        let last = Ord::min(queries, first + [1, 1, 2, 5, 70][random.below(5) as usize]);
        let alone = run::<T>(&part(&k, at, first..last), &slots, 1 + first as usize % 2);
        let start = ((at[0] * heads + at[1]) * queries + first) * width;
        let among = &results[start as usize..][..((last - first) * width) as usize];
        assert_same(&alone, among, &(case, at, first..last));
    }
}

#[test]
fn rows_do_not_depend_on_their_neighbours() {
    let mut random = Random(7);
    for sizes in
        [[1, 2, 100, 700, 64, 64], [2, 3, 30, 600, 20, 35], [1, 8, 10, 300, 16, 32], [1, 1, 300, 300, 64, 32]]
    {
        for shared in [false, true] {
            let case = Case { shared, ..Case::new(sizes) };
            check_rows::<f32>(&mut random, case);
            check_rows::<f32>(&mut random, Case { causal: true, ..case });
            check_rows::<f32>(&mut random, Case { causal: true, window: 90, ..case });
            check_rows::<f32>(&mut random, Case { mask: Some(DType::Bool), ..case });
            check_rows::<f32>(&mut random, Case { causal: true, mask: Some(DType::Float32), ..case });
            check_rows::<f64>(&mut random, Case { causal: true, ..case });
            check_rows::<max_core::bf16>(&mut random, case);
        }
    }
}

#[test]
fn rows_that_share_cache_sets_are_packed() {
    let mut random = Random(8);
    let (rows, far) = (300, 1024);
    let elements: Vec<f32> = random.elements((rows * far) as usize);
    let close: Vec<f32> = elements.chunks(far as usize).flat_map(|row| row[..32].to_vec()).collect();
    let k = |stride: i64| {
        let of = |slot| access(slot, [0, stride, 1]);
        Attention {
            depth: 32,
            width: 32,
            query: of(0),
            key: of(0),
            value: of(0),
            scale: 0.01,
            epilogue: store(1, DType::Float32, &[1, rows, 32]),
            ..alike(rows, rows)
        }
    };
    let apart = run::<f32>(&k(far), &[Buffer::from(elements)], 2);
    assert_same(&apart, &run::<f32>(&k(32), &[Buffer::from(close)], 2), &"strides");
}

fn access(slot: u32, strides: [i64; 3]) -> Access<i64> {
    Access { slot: Slot(slot), dtype: DType::Float32, offset: 0, strides: strides.to_vec() }
}

/// One head with equal queries and keys, of depth and width one.
fn alike(queries: i64, keys: i64) -> Attention<i64> {
    Attention {
        batch: vec![1],
        queries,
        keys,
        depth: 1,
        width: 1,
        query: access(0, [0, 0, 0]),
        key: access(0, [0, 0, 0]),
        value: access(1, [0, 1, 0]),
        mask: None,
        scale: 1.0,
        causal: true,
        window: 0,
        epilogue: store(2, DType::Float32, &[1, queries, 1]),
    }
}

#[test]
fn rows_that_see_nothing_are_nan() {
    let out = run::<f32>(&alike(3, 2), &[Buffer::from([1f32]), Buffer::from([2f32, 4.0])], 1);
    assert!(out[0].is_nan());
    assert_eq!(out[1..], [2.0, 3.0]);
}

#[test]
fn keys_outside_the_window_are_never_touched() {
    let values: Vec<f32> =
        (0..2000).map(|j| if (1024..1536).contains(&j) { 2.0 } else { f32::NAN }).collect();
    let slots = [Buffer::from([1f32]), Buffer::from(values)];
    // Queries at the end of a block see its keys and those of the block before.
    let k = Attention { queries: 10, keys: 1536, window: 502, ..alike(10, 1536) };
    assert_eq!(run::<f32>(&k, &slots, 1), [2.0; 10]);
    assert!(run::<f32>(&Attention { window: 600, ..k }, &slots, 1)[0].is_nan());
}

#[test]
fn an_added_mask_hides_nan_scores() {
    let infinite = f32::NEG_INFINITY;
    let mask = Buffer::from([0f32, infinite, 0.0]);
    let k = Attention {
        key: access(3, [0, 1, 0]),
        mask: Some(access(2, [0, 0, 1])),
        causal: false,
        epilogue: store(4, DType::Float32, &[1, 1, 1]),
        ..alike(1, 3)
    };
    let slots =
        [Buffer::from([1f32]), Buffer::from([2f32, 3.0, 4.0]), mask, Buffer::from([1f32, f32::NAN, 1.0])];
    assert_eq!(run::<f32>(&k, &slots, 1), [3.0]);
}

#[test]
fn scales_of_any_size_and_sign() {
    for scale in [-1.0, 0.0, 1e-30, 1e30, 2.0] {
        let k = Attention {
            key: access(3, [0, 1, 0]),
            causal: false,
            scale,
            epilogue: store(2, DType::Float32, &[1, 1, 1]),
            ..alike(1, 2)
        };
        let slots = [
            Buffer::from([1f32]),
            Buffer::from([2f32, 4.0]),
            Buffer::from([0f32]),
            Buffer::from([0f32, 1.0]),
        ];
        let mut memory: Vec<Memory> = slots.iter().map(|slot| Memory::of(slot).unwrap()).collect();
        memory[2] = Memory::of_mut(&slots[2]).unwrap();
        prepare(&Kernel::Attention(k)).unwrap().run(&memory, &Pool::new(1)).unwrap();
        let weight = scale.exp() / (1.0 + scale.exp());
        let expected = if scale > 700.0 { 4.0 } else { 2.0 * (1.0 - weight) + 4.0 * weight };
        let result = f64::from(slots[2].to_vec::<f32>().unwrap()[0]);
        assert!((result - expected).abs() < 1e-6, "{result} for {expected} with scale {scale}");
    }
}
