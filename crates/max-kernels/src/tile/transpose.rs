//! Transposition, block by block so that both sides stay in the first cache.

/// Rows and columns of a block.
const BLOCK: usize = 16;

/// # Safety
///
/// As for [`super::transpose`], with elements of type T.
pub(super) unsafe fn transpose<T: Copy>(
    dst: *mut T,
    dst_stride: usize,
    src: *const T,
    src_stride: isize,
    rows: usize,
    cols: usize,
) {
    for top in (0..rows).step_by(BLOCK) {
        for left in (0..cols).step_by(BLOCK) {
            for c in left..cols.min(left + BLOCK) {
                for r in top..rows.min(top + BLOCK) {
                    let from = src.wrapping_offset(r as isize * src_stride).wrapping_add(c);
                    // SAFETY: the caller's promise: both elements are inside.
                    unsafe { dst.add(c * dst_stride + r).write_unaligned(from.read_unaligned()) }
                }
            }
        }
    }
}
