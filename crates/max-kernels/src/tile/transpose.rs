//! Transposition, block by block: a block is read row by row, transposed in registers and written row by row.

use crate::simd::{Interleave, LINE, TransposeBlock, Vector};

/// The most rows of a block, for elements of one byte.
const MOST: usize = size_of::<Vector>();

/// How many rows of the source are transposed together: their lines stay in the L1 cache even if rows are a power of
/// two apart and so compete for the same cache sets.
const BAND: usize = 8;

/// # Safety
///
/// As for [`super::transpose`], with elements of type T.
pub(super) unsafe fn transpose<T: Interleave>(
    dst: *mut T,
    dst_stride: usize,
    src: *const T,
    src_stride: isize,
    rows: usize,
    cols: usize,
) {
    let (block, transpose_block): (usize, TransposeBlock<T>) = match T::transpose_lines() {
        Some(transpose_block) => (LINE / size_of::<T>(), transpose_block),
        None => (MOST / size_of::<T>(), whole_block),
    };
    let height = BAND.max(block);
    for band in (0..rows).step_by(height) {
        let bottom = rows.min(band + height);
        for left in (0..cols).step_by(block) {
            for top in (band..bottom).step_by(block) {
                let (height, width) = (block.min(bottom - top), block.min(cols - left));
                let from = src.wrapping_offset(top as isize * src_stride).wrapping_add(left);
                let to = dst.wrapping_add(left * dst_stride + top);
                // SAFETY: the caller guarantees that the block is inside both.
                unsafe {
                    if height == block && width == block {
                        transpose_block(to, dst_stride, from, src_stride);
                    } else {
                        for (c, r) in (0..width).flat_map(|c| (0..height).map(move |r| (c, r))) {
                            let element = from.offset(r as isize * src_stride).add(c).read_unaligned();
                            to.add(c * dst_stride + r).write_unaligned(element);
                        }
                    }
                }
            }
        }
    }
}

/// # Safety
///
/// A whole block can be read and written.
unsafe fn whole_block<T: Interleave>(dst: *mut T, dst_stride: usize, src: *const T, src_stride: isize) {
    let block = MOST / size_of::<T>();
    let mut rows = [Vector::default(); MOST];
    for (r, row) in rows[..block].iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller; a row of a block is a vector.
        *row = unsafe { src.offset(r as isize * src_stride).cast::<Vector>().read_unaligned() };
    }
    // Repeatedly interleaving the first half of the rows with the second transposes the block.
    for _ in 0..block.ilog2() {
        let before = rows;
        for i in 0..block / 2 {
            [rows[2 * i], rows[2 * i + 1]] = T::interleave(before[i], before[i + block / 2]);
        }
    }
    for (c, &row) in rows[..block].iter().enumerate() {
        // SAFETY: guaranteed by the caller.
        unsafe { dst.add(c * dst_stride).cast::<Vector>().write_unaligned(row) }
    }
}
