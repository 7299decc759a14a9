//! Packs keys, which are rows in memory, as the columns of panels.

use max_core::Element;

use crate::matmul::{Kernels, Matrix, Micro, pack, pack_right};
use crate::simd::{LINE, prefetch};
use crate::tile;

/// Whether elements need no widening.
pub(super) fn is_wide<T: Element>() -> bool {
    size_of::<T>() == size_of::<T::Lane>()
}

/// Whether rows with this stride map to different cache sets.
pub(super) fn avoids_cache_conflicts<T>(stride: isize) -> bool {
    !stride.unsigned_abs().wrapping_mul(size_of::<T>()).is_multiple_of(4096)
}

/// Prefetches the columns of a matrix; see [`prefetch_rows`].
pub(super) fn prefetch_columns<T>(Matrix { start, strides, size }: Matrix<T>) {
    prefetch_rows(Matrix { start, strides: [strides[1], strides[0]], size: [size[1], size[0]] });
}

/// Prefetches the rows of a matrix, if they are contiguous.
pub(super) fn prefetch_rows<T>(matrix: Matrix<T>) {
    let Matrix { start, strides: [down, along], size: [rows, columns] } = matrix;
    for row in 0..if along == 1 { rows } else { 0 } {
        let row = start.wrapping_offset(row as isize * down).cast::<u8>();
        for line in (0..columns * size_of::<T>()).step_by(LINE) {
            prefetch(row.wrapping_add(line));
        }
    }
}

/// How many elements of scratch memory are needed to widen keys before they are transposed.
pub(super) fn staging<T: Element>(kernels: &Kernels<T::Lane>, depth: usize) -> usize
where
    T::Lane: Micro,
{
    if is_wide::<T>() { 0 } else { kernels.width * depth }
}

/// Packs keys as [`pack_right`] does: the columns of the matrix are the keys, its rows their depth.
///
/// # Safety
///
/// The matrix can be read; there is room for the panels at `to`, and for [`staging`] elements at `staging`.
pub(super) unsafe fn pack_keys<T: Element>(
    kernels: &Kernels<T::Lane>,
    to: *mut T::Lane,
    staging: *mut T::Lane,
    matrix: Matrix<T>,
) where
    T::Lane: Micro,
{
    let Matrix { start: from, strides: [down, along], size: [depth, keys] } = matrix;
    let width = kernels.width;
    // SAFETY: guaranteed by the caller.
    unsafe {
        if down != 1 {
            return pack_right(kernels, to, matrix);
        }
        for start in (0..keys).step_by(width) {
            let taken = width.min(keys - start);
            let panel = to.add(start * depth);
            if taken < width {
                panel.write_bytes(0, width * depth);
            }
            let from = from.offset(start as isize * along);
            prefetch_columns(matrix.part([0, start + taken], [depth, width.min(keys - start - taken)]));
            let (from, stride): (*const u8, isize) = if is_wide::<T>() {
                (from.cast(), along)
            } else {
                pack(staging, depth, Matrix { start: from, strides: [along, 1], size: [taken, depth] });
                (staging.cast_const().cast(), depth as isize)
            };
            tile::transpose(size_of::<T::Lane>(), panel.cast(), width, from, stride, taken, depth);
        }
    }
}
