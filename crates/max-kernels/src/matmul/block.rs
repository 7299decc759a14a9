//! Products of packed blocks.

use std::mem::MaybeUninit;

use bytemuck::Pod;
use max_core::scalar::Lane;

use super::micro::{Kernels, TILE_BYTES};

/// Room for a tile that sticks out of its block.
#[repr(C, align(64))]
struct Room(MaybeUninit<[u8; TILE_BYTES]>);

/// A right operand: panels of as many columns as a tile has.
#[derive(Clone, Copy)]
pub(crate) struct Right<B> {
    pub(crate) start: *const B,
    /// How far apart panels lie.
    pub(crate) panel: usize,
    /// How far apart rows of a panel lie.
    pub(crate) row: isize,
}

/// Multiplies a left block (`rows` x `depth`, unit stride along the depth) with a right one (`depth` x `columns`), and adds
/// a block, if there is one. With the left block, the block to add and the result comes the distance of their rows.
///
/// # Safety
///
/// The operands can be read, the right one to the end of its last panel, and the result is writable.
pub(crate) unsafe fn multiply<L: Lane + Pod, A, B>(
    kernels: &Kernels<L, A, B>,
    [rows, depth, columns]: [usize; 3],
    (left, left_stride): (*const A, isize),
    right: Right<B>,
    add: Option<(*const L, isize)>,
    (to, stride): (*mut L, isize),
) {
    let (height, width) = (kernels.tiles.len(), kernels.width);
    // Row by row of tiles: what they read of the left operand stays in the first cache.
    for i in (0..rows).step_by(height) {
        let taken = height.min(rows - i);
        let kernel = kernels.tiles[taken - 1];
        for j in (0..columns).step_by(width) {
            // SAFETY: the caller vouches; a tile that would stick out is computed aside.
            unsafe {
                let left = (left.offset(i as isize * left_stride), left_stride);
                let right = (right.start.add(j / width * right.panel), right.row);
                let add = add.map(|(add, stride)| (add.offset(i as isize * stride).add(j), stride));
                let to = to.offset(i as isize * stride).add(j);
                if j + width <= columns {
                    kernel(depth, left, right, add, (to, stride));
                    continue;
                }
                let mut room = Room(MaybeUninit::uninit());
                let aside = room.0.as_mut_ptr().cast::<L>();
                kernel(depth, left, right, None, (aside, width as isize));
                for row in 0..taken {
                    for column in 0..columns - j {
                        let sum = *aside.add(row * width + column);
                        let sum = match add {
                            Some((add, stride)) => {
                                add.offset(row as isize * stride).add(column).read_unaligned().add(sum)
                            }
                            None => sum,
                        };
                        to.offset(row as isize * stride).add(column).write_unaligned(sum);
                    }
                }
            }
        }
    }
}
