use max_core::kernel::{Kernel, Slot};
use max_core::{Bool, Element, bf16, dispatch};
use max_driver::Buffer;

use super::*;
use crate::prepare;

/// Numbers without a pattern.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ self.0 >> 29
    }
}

fn before<T: Element>(a: T, b: T, descending: bool) -> std::cmp::Ordering {
    let order = match T::DTYPE.is_float() {
        true => {
            let (a, b) = (a.to_f64(), b.to_f64());
            a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
        }
        false => a.to_i128().cmp(&b.to_i128()),
    };
    if descending { order.reverse() } else { order }
}

fn bytes<T: Element>(elements: &[T]) -> &[u8] {
    bytemuck::cast_slice(elements)
}

/// Sorts the lines `[lines, size]` of a source through strides, and compares with a stable sort of each.
fn check<T: Element>(source: &[T], lines: usize, count: usize, descending: bool, threads: usize) {
    let size = source.len() / lines.max(1);
    let mut values = Vec::new();
    let mut indices = Vec::new();
    for line in 0..lines {
        let line = &source[line * size..][..size];
        let mut order: Vec<usize> = (0..size).collect();
        order.sort_by(|&a, &b| before(line[a], line[b], descending));
        values.extend(order[..count].iter().map(|&at| line[at]));
        indices.extend(order[..count].iter().map(|&at| at as i64));
    }
    let out = Buffer::from(vec![T::from_i128(0); lines * count]);
    let places = Buffer::from(vec![-1i64; lines * count]);
    let access = |slot, dtype, along: usize| Access {
        slot: Slot(slot),
        dtype,
        offset: 0,
        strides: vec![along as i64, 1],
    };
    let k = Sort {
        lines: vec![lines as i64],
        size: size as i64,
        count: count as i64,
        descending,
        source: access(0, T::DTYPE, size),
        values: Some(access(1, T::DTYPE, count)),
        indices: Some(access(2, DType::Int64, count)),
    };
    let input = Buffer::from(source.to_vec());
    let memory =
        [Memory::of(&input).unwrap(), Memory::of_mut(&out).unwrap(), Memory::of_mut(&places).unwrap()];
    prepare(&Kernel::Sort(k)).unwrap().run(&memory, &Pool::new(threads)).unwrap();
    let what = format!("{} {lines} x {size}, {count}, descending {descending}", T::DTYPE);
    assert!(places.to_vec::<i64>().unwrap() == indices, "{what}");
    assert!(bytes(&out.to_vec::<T>().unwrap()) == bytes(&values), "{what}");
}

/// Elements with any bits, some of them many times.
fn any<T: Element>(draws: &mut Draws, len: usize) -> Vec<T> {
    let element = |bits: u64| match T::DTYPE {
        DType::Bool => bytemuck::cast_slice::<Bool, T>(&[Bool::from(bits & 1 == 1)])[0],
        _ => bytemuck::pod_read_unaligned::<T>(&bits.to_le_bytes()[..size_of::<T>()]),
    };
    let few: Vec<u64> = (0..5).map(|_| draws.next()).collect();
    (0..len)
        .map(|_| match draws.next() % 8 {
            0 => element(few[draws.next() as usize % 5]),
            1 => T::from_i128(i128::from(draws.next() % 3)),
            _ => element(draws.next()),
        })
        .collect()
}

#[test]
fn lines_of_every_dtype_are_sorted() {
    let mut draws = Draws(1);
    for &dtype in DType::ALL {
        for (lines, size) in [(1, 1), (3, 2), (5, 7), (40, 33), (3, 300), (2, 1025), (1, 5000), (2, 20_000)] {
            for count in [1, 2, 9, 17, 60, 500, size / 2, size] {
                let descending = draws.next() & 1 == 1;
                dispatch!(dtype, T => check(&any::<T>(&mut draws, lines * size), lines, count.min(size), descending, 1));
            }
        }
    }
}

#[test]
fn threads_share_long_lines() {
    let mut draws = Draws(2);
    for threads in [1, 2, 3] {
        for (lines, size) in [(1, 70_000), (2, 140_001)] {
            for count in [1, 16, 100, 3000, size - 1, size] {
                let len = lines * size;
                check(&any::<f32>(&mut draws, len), lines, count, true, threads);
                check(&any::<i64>(&mut draws, len), lines, count, false, threads);
                check(&any::<u8>(&mut draws, len), lines, count, true, threads);
                check(&any::<Bool>(&mut draws, len), lines, count, false, threads);
            }
        }
    }
}

#[test]
fn patterns_are_sorted() {
    let sizes = [100, 3000, 80_000];
    let patterns: [fn(usize, usize) -> i64; 9] = [
        |i, _| i as i64,
        |i, n| (n - i) as i64,
        |_, _| 7,
        |i, _| (i % 2) as i64,
        |i, n| if i == n / 2 { i64::MAX } else { 1 },
        |i, _| (i as i64) << 40 | (i % 7) as i64,
        |i, n| (i * 7919 % n) as i64 - n as i64 / 2,
        |i, _| if i == 3 { (1 << 40) - 1 } else { 0 },
        |i, _| if i == 3 { 1 << 40 } else { 0 },
    ];
    for size in sizes {
        for pattern in patterns {
            let x: Vec<i64> = (0..size).map(|i| pattern(i, size)).collect();
            let floats: Vec<f32> = x.iter().map(|&x| if x == 1 { f32::NAN } else { x as f32 }).collect();
            for (count, descending) in [(1, true), (10, false), (50, true), (size, false), (size, true)] {
                check(&x, 1, count, descending, 2);
                check(&floats, 1, count, descending, 2);
            }
        }
    }
}

#[test]
fn strides_may_be_anything() {
    // The columns of a 3 x 4 matrix, backwards; only positions, side by side.
    let source = Buffer::from([3i16, 1, 2, 5, 4, 4, 4, 4, 0, 9, 1, 5]);
    let out = Buffer::from(vec![-1i64; 8]);
    let access = |slot, dtype, offset, strides: &[i64]| Access {
        slot: Slot(slot),
        dtype,
        offset,
        strides: strides.to_vec(),
    };
    let k = Sort {
        lines: vec![2, 2],
        size: 3,
        count: 2,
        descending: false,
        source: access(0, DType::Int16, 8, &[2, 1, -4]),
        values: None,
        indices: Some(access(1, DType::Int64, 0, &[2, 1, 4])),
    };
    let memory = [Memory::of(&source).unwrap(), Memory::of_mut(&out).unwrap()];
    prepare(&Kernel::Sort(k)).unwrap().run(&memory, &Pool::new(1)).unwrap();
    assert_eq!(out.to_vec::<i64>().unwrap(), [0, 2, 0, 1, 2, 1, 2, 0]);
}

#[test]
fn empty_lines_and_counts_write_nothing() {
    check::<f32>(&[], 0, 0, true, 1);
    check::<bf16>(&[], 3, 0, true, 1);
    check(&[1i32, 2, 3], 1, 0, false, 1);
    let k = |count: i64| Sort {
        lines: vec![],
        size: 2,
        count,
        descending: false,
        source: Access { slot: Slot(0), dtype: DType::Int8, offset: 0, strides: vec![1] },
        values: None,
        indices: None,
    };
    assert!(prepare(&Kernel::Sort(k(3))).is_err() && prepare(&Kernel::Sort(k(2))).is_ok());
    let mut repeated = Sort { size: i64::MAX, ..k(5000) };
    repeated.source.strides = vec![0];
    let error = prepare(&Kernel::Sort(repeated)).unwrap_err();
    assert!(error.message().contains("too much memory"), "{error}");
}
