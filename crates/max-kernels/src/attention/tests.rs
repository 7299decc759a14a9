//! Attention against plain loops in f64.

use max_core::kernel::{Access, Kernel};
use max_driver::Buffer;

use super::*;
use crate::matmul::tests::{Random, element, store};
use crate::prepare;

#[derive(Clone, Copy, Debug)]
struct Case {
    /// Batch, queries, keys, depth and width.
    sizes: [i64; 5],
    causal: bool,
    mask: Option<DType>,
}

fn run<T: Element>(k: &Attention<i64>, slots: &[Buffer], threads: usize) -> Vec<T> {
    let out = Buffer::from(vec![T::from_f64(77.0); (k.batch[0] * k.queries * k.width) as usize]);
    let mut memory: Vec<Memory> = slots.iter().map(|slot| Memory::of(slot).unwrap()).collect();
    memory.push(Memory::of_mut(&out).unwrap());
    prepare(&Kernel::Attention(k.clone())).unwrap().run(&memory, &Pool::new(threads)).unwrap();
    out.to_vec().unwrap()
}

/// Runs a case with operands laid out anyhow, on 1, 2 and 3 threads, and compares with plain loops.
fn check<T: Element>(random: &mut Random, case: Case, tolerance: f64) {
    let [batch, queries, keys, depth, width] = case.sizes;
    let mut slots = Vec::new();
    let mut numbers: Vec<Vec<f64>> = Vec::new();
    let mut operand = |dtype: DType, shape: [i64; 3]| -> Access<i64> {
        let (access, count) = random.access(slots.len() as u32, dtype, &shape, true);
        dispatch!(dtype, E => {
            let elements: Vec<E> = match E::DTYPE {
                DType::Bool => (0..count).map(|_| E::from_f64(random.below(3) as f64)).collect(),
                _ => random.elements::<E>(count).into_iter().map(|x| E::from_f64(x.to_f64() / 8.0)).collect(),
            };
            numbers.push(elements.iter().map(|x| x.to_f64()).collect());
            slots.push(Buffer::from(elements));
        });
        access
    };
    let query = operand(T::DTYPE, [batch, queries, depth]);
    let key = operand(T::DTYPE, [batch, keys, depth]);
    let value = operand(T::DTYPE, [batch, keys, width]);
    let mask = case.mask.map(|dtype| operand(dtype, [batch, queries, keys]));
    let k = Attention {
        batch: vec![batch],
        queries,
        keys,
        depth,
        width,
        query,
        key,
        value,
        scale: 0.5,
        causal: case.causal,
        window: 0,
        epilogue: store(slots.len() as u32, T::DTYPE, &[batch, queries, width]),
        mask,
    };
    let results = run::<T>(&k, &slots, 1);
    for threads in [2, 3] {
        let again = run::<T>(&k, &slots, threads);
        assert_eq!(
            bytemuck::cast_slice::<T, u8>(&again),
            bytemuck::cast_slice::<T, u8>(&results),
            "{case:?}"
        );
    }
    let mut results = results.iter();
    for (b, i) in (0..batch).flat_map(|b| (0..queries).map(move |i| (b, i))) {
        let mut scores: Vec<f64> = (0..keys)
            .map(|j| {
                let product =
                    |p| element(&numbers[0], &k.query, &[b, i, p]) * element(&numbers[1], &k.key, &[b, j, p]);
                let score = (0..depth).map(product).sum::<f64>() * k.scale;
                let masked = k.mask.as_ref().map(|mask| element(&numbers[3], mask, &[b, i, j]));
                match masked {
                    _ if k.causal && j > i + keys - queries => f64::NEG_INFINITY,
                    None => score,
                    Some(mask) if case.mask != Some(DType::Bool) => score + mask,
                    Some(kept) => {
                        if kept == 0.0 {
                            f64::NEG_INFINITY
                        } else {
                            score
                        }
                    }
                }
            })
            .collect();
        let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        scores.iter_mut().for_each(|score| *score = (*score - greatest).exp());
        let total: f64 = scores.iter().sum();
        for column in 0..width {
            let weighed =
                |j: i64| scores[j as usize] / total * element(&numbers[2], &k.value, &[b, j, column]);
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
    for at in 0..4 * 4 * 3 * 3 * 6 {
        let (queries, keys) = ([0, 1, 3, 18][at % 4], [0, 1, 6, 40][at / 4 % 4]);
        let (depth, width) = ([0, 2, 17][at / 16 % 3], [0, 1, 35][at / 48 % 3]);
        let (causal, mask) = (at / 144 % 2 == 1, masks[at / 288]);
        check::<f32>(&mut random, Case { sizes: [2, queries, keys, depth, width], causal, mask }, 1e-5);
        let mask = mask.map(|dtype| if dtype == DType::Bool { dtype } else { DType::Float64 });
        check::<f64>(&mut random, Case { sizes: [2, queries, keys, depth, width], causal, mask }, 1e-13);
    }
}

#[test]
fn long_sums_and_many_blocks() {
    let mut random = Random(6);
    for sizes in [[1, 130, 600, 20, 70], [2, 3, 520, 300, 5], [1, 20, 256, 256, 300], [1, 300, 300, 4, 8]] {
        for (causal, mask) in
            [(false, None), (true, None), (false, Some(DType::Bool)), (true, Some(DType::Float32))]
        {
            check::<f32>(&mut random, Case { sizes, causal, mask }, 3e-5);
        }
        check::<f64>(&mut random, Case { sizes, causal: true, mask: None }, 1e-13);
        check::<max_core::f16>(&mut random, Case { sizes, causal: false, mask: Some(DType::Float16) }, 1e-3);
        check::<max_core::bf16>(&mut random, Case { sizes, causal: true, mask: None }, 1e-2);
    }
}

#[test]
fn rows_that_see_nothing_are_not_numbers() {
    let access = |slot, strides: [i64; 3]| Access {
        slot: max_core::kernel::Slot(slot),
        dtype: DType::Float32,
        offset: 0,
        strides: strides.to_vec(),
    };
    let k = Attention {
        batch: vec![1],
        queries: 3,
        keys: 2,
        depth: 1,
        width: 1,
        query: access(0, [0, 0, 0]),
        key: access(0, [0, 0, 0]),
        value: access(1, [0, 1, 0]),
        mask: None,
        scale: 1.0,
        causal: true,
        window: 0,
        epilogue: store(2, DType::Float32, &[1, 3, 1]),
    };
    let out = run::<f32>(&k, &[Buffer::from([1f32]), Buffer::from([2f32, 4.0])], 1);
    assert!(out[0].is_nan());
    assert_eq!(out[1..], [2.0, 3.0]);
}
