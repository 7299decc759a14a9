//! Products of packed blocks.

use super::micro::{Kernels, Micro, TILE_BYTES};

/// Room for a tile that sticks out of its block.
#[repr(C, align(64))]
struct Room([u8; TILE_BYTES]);

/// Multiplies a left block (`rows` x `depth`, unit stride along the depth) with a packed right one (`depth` x
/// `columns`), adding to what is there or not. With the left block and the result comes the distance of their rows, with
/// the right one that of its panels.
///
/// # Safety
///
/// The operands can be read, the right one is packed for these kernels, and the result is writable.
pub(crate) unsafe fn multiply<L: Micro>(
    kernels: &Kernels<L>,
    [rows, depth, columns]: [usize; 3],
    (left, left_stride): (*const L, isize),
    (right, panel): (*const L, usize),
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
                let left = (left.offset(i as isize * left_stride), left_stride);
                let right = (right.add(j / width * panel), width as isize);
                let to = to.offset(i as isize * stride).add(j);
                if j + width <= columns {
                    kernel(depth, left, right, (to, stride), add);
                } else {
                    let aside = room.0.as_mut_ptr().cast::<L>();
                    kernel(depth, left, right, (aside, width as isize), false);
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
