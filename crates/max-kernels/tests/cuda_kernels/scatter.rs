//! Scatters.

use max_core::DType;
use max_core::kernel::{Access, Combine, Indexed, Kernel, Scatter, Slot};

use super::case::{Case, Random, row_major, untouched};
use super::gather::indices;

/// Lines with indices of their own and lines that share them, few and many, and in each several updates of an element.
pub(crate) fn cases() -> Vec<Case> {
    let mut random = Random(11);
    let mut cases = Vec::new();
    let types = [
        DType::Float32,
        DType::BFloat16,
        DType::Int32,
        DType::Float64,
        DType::UInt8,
        DType::Float16,
        DType::Bool,
    ];
    let shapes = [
        [1, 1000, 9000, 1],
        [2, 7, 5000, 3],
        [5000, 9, 40, 1],
        [1, 50, 300, 1000],
        [3, 20, 2500, 40],
        [2, 5, 30, 7],
        [1, 5, 0, 7],
        [0, 5, 3, 7],
        [2, 5, 3, 0],
    ];
    for (at, dtype) in types.into_iter().cycle().take(63).enumerate() {
        let [outer, size, picks, inner] = shapes[at % 9];
        let index = [DType::Int64, DType::Int32, DType::UInt64][at % 3];
        let combine = Combine::ALL[(at + at / 9) % 5];
        // The indices of all lines, or the same ones for all.
        let strides = if at % 2 == 0 { [picks * inner, inner, 1, 0] } else { [0, 1, 0, 0] };
        let count = if at % 2 == 0 { outer * picks * inner } else { picks };
        let space = Indexed {
            outer,
            sizes: vec![size],
            inner,
            axis: 1,
            indices: Access { slot: Slot(1), dtype: index, offset: 0, strides: strides.to_vec() },
            index_shape: [outer, picks, inner, 1],
        };
        let k = Scatter {
            space,
            combine,
            input: row_major(0, dtype, &[outer, size, inner]).0,
            updates: row_major(2, dtype, &[outer, picks, inner]).0,
            out: row_major(3, dtype, &[outer, size, inner]).0,
        };
        let buffers = vec![
            random.buffer(dtype, (outer * size * inner) as usize),
            indices(&mut random, index, size, count as usize),
            random.buffer(dtype, (outer * picks * inner) as usize),
            untouched(dtype, (outer * size * inner) as usize),
        ];
        cases.push(Case::new(Kernel::Scatter(k), buffers, 1));
    }
    cases
}
