//! Tiles of positions.

use super::{GROUP, IndexFn};
use crate::simd::{Isa, versions};

/// The body of an [`IndexFn`].
trait IndexBody {
    /// # Safety
    ///
    /// As for [`IndexFn`].
    unsafe fn run<const FMA: bool>(dst: *mut u8, start: i64, strides: [i64; 2], rows: usize, cols: usize);
}

versions!(index_fn: IndexBody, fn(dst: *mut u8, start: i64, strides: [i64; 2], rows: usize, cols: usize));

struct Index;

impl IndexBody for Index {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(dst: *mut u8, start: i64, strides: [i64; 2], rows: usize, cols: usize) {
        let dst = dst.cast::<i64>();
        let count = rows * cols;
        let mut last = start;
        // SAFETY: the caller guarantees that the tile has room for whole groups.
        unsafe {
            for row in 0..rows {
                let first = start.wrapping_add((row as i64).wrapping_mul(strides[0]));
                for col in 0..cols {
                    last = first.wrapping_add((col as i64).wrapping_mul(strides[1]));
                    dst.add(row * cols + col).write_unaligned(last);
                }
            }
            for at in count..count.next_multiple_of(GROUP) {
                dst.add(at).write_unaligned(last);
            }
        }
    }
}

pub(super) fn index(isa: Isa) -> IndexFn {
    index_fn::<Index>(isa)
}
