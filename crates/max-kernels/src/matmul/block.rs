//! Products of packed blocks.

use super::micro::{Kernels, Micro, ROW, TILE_BYTES};

/// Room for a tile that sticks out of its block.
#[repr(C, align(64))]
struct Room([u8; TILE_BYTES]);

/// Multiplies a packed left block (`rows` x `depth`) with a packed right one (`depth` x `columns`), to rows some
/// distance apart, adding to what is there or not.
///
/// # Safety
///
/// The operands are packed for these kernels, and the result is writable.
pub(crate) unsafe fn multiply<L: Micro>(
    kernels: &Kernels<L>,
    [rows, depth, columns]: [usize; 3],
    left: *const L,
    right: *const L,
    (to, stride): (*mut L, isize),
    add: bool,
) {
    let (height, width) = (kernels.tiles.len(), kernels.width);
    let mut room = Room([0; TILE_BYTES]);
    for i in (0..rows).step_by(height) {
        let taken = height.min(rows - i);
        let kernel = kernels.tiles[taken - 1];
        for j in (0..columns).step_by(width) {
            // SAFETY: the caller vouches; a tile that would stick out is computed aside.
            unsafe {
                let (left, right) = (left.add(i * ROW), right.add(j * depth));
                let to = to.offset(i as isize * stride).add(j);
                if j + width <= columns {
                    kernel(depth, left, right, to, stride, add);
                } else {
                    let aside = room.0.as_mut_ptr().cast::<L>();
                    kernel(depth, left, right, aside, width as isize, false);
                    for (row, column) in
                        (0..taken).flat_map(|row| (0..columns - j).map(move |column| (row, column)))
                    {
                        let (to, sum) =
                            (to.offset(row as isize * stride).add(column), *aside.add(row * width + column));
                        to.write_unaligned(if add { to.read_unaligned().add(sum) } else { sum });
                    }
                }
            }
        }
    }
}
