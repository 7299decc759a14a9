//! Sorts: lines that fit a block, lines of several tiles, and selections.

use max_core::kernel::{Kernel, Sort};
use max_core::{DType, dispatch};
use max_driver::Buffer;

use super::case::{Case, Random, row_major, untouched};

/// Elements with any bits, or some of them often; bools are 0 or 1.
fn elements(random: &mut Random, dtype: DType, count: usize) -> Buffer {
    if dtype == DType::Bool || random.below(2) == 0 {
        return random.buffer(dtype, count);
    }
    let mut bits = || (random.below(1 << 31) << 33 | random.below(1 << 31) << 2).to_le_bytes();
    dispatch!(dtype, T => {
        let any = (0..count).map(|_| bytemuck::pod_read_unaligned::<T>(&bits()[8 - size_of::<T>()..]));
        Buffer::from(any.collect::<Vec<T>>())
    })
}

pub(crate) fn cases() -> Vec<Case> {
    let mut random = Random(20);
    let mut cases = Vec::new();
    let sizes: [(&[i64], i64, i64); 14] = [
        (&[], 1, 1),
        (&[3], 5, 5),
        (&[2, 3], 33, 7),
        (&[40], 1000, 1000),
        (&[2], 2048, 2048),
        (&[2], 2049, 2049),
        (&[3], 2049, 1),
        (&[3], 9000, 50),
        (&[], 70_000, 1024),
        (&[2], 70_000, 2048),
        (&[2], 40_000, 40_000),
        (&[], 300_001, 5000),
        (&[], 600_000, 3),
        (&[40], 5000, 2500),
    ];
    for (at, &dtype) in DType::ALL.iter().cycle().take(4 * DType::ALL.len()).enumerate() {
        let (lines, size, count) = sizes[at % sizes.len()];
        let shape = [lines, &[size]].concat();
        let results = [lines, &[count]].concat();
        let (source, span) = match at % 3 {
            0 => random.access(0, dtype, &shape, false),
            _ => row_major(0, dtype, &shape),
        };
        let (values, spanned) = row_major(1, dtype, &results);
        let descending = random.below(2) == 0;
        let indices = row_major(2, DType::Int64, &results).0;
        let k = Sort {
            lines: lines.to_vec(),
            size,
            count,
            descending,
            source,
            values: Some(values),
            indices: Some(indices),
        };
        let input = elements(&mut random, dtype, span);
        let buffers = vec![input, untouched(dtype, spanned), untouched(DType::Int64, spanned)];
        cases.push(Case::new(Kernel::Sort(k), buffers, 2));
    }
    // More axes of lines than functions take, in an order that none of them merges in; only positions.
    let lines = [2, 3, 2, 3, 2, 3];
    let shape = [&lines[..], &[5]].concat();
    let (source, span) = random.access(0, DType::Float32, &shape, false);
    let indices = row_major(1, DType::Int64, &[&lines[..], &[2]].concat());
    let k = Sort {
        lines: lines.to_vec(),
        size: 5,
        count: 2,
        descending: true,
        source,
        values: None,
        indices: Some(indices.0),
    };
    let buffers = vec![random.buffer(DType::Float32, span), untouched(DType::Int64, indices.1)];
    cases.push(Case::new(Kernel::Sort(k), buffers, 1));
    cases
}
