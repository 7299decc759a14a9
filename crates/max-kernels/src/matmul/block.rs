//! Products of blocks of operands that are packed, or that lie as if they were.

use std::mem::MaybeUninit;

use bytemuck::Pod;
use max_core::scalar::Lane;

use super::micro::{Kernels, TILE_BYTES};

/// Room for a tile that sticks out of its block.
#[repr(C, align(64))]
struct Room(MaybeUninit<[u8; TILE_BYTES]>);

/// A left operand: unit stride along the depth, which is cut into blocks.
#[derive(Clone, Copy)]
pub(crate) struct Left<A> {
    pub(crate) start: *const A,
    /// How far apart rows lie.
    pub(crate) row: isize,
    /// How far apart blocks of the depth lie.
    pub(crate) block: usize,
}

/// A right operand: panels of as many columns as a tile has.
#[derive(Clone, Copy)]
pub(crate) struct Right<B> {
    pub(crate) start: *const B,
    /// How far apart rows of a panel lie.
    pub(crate) row: isize,
    /// How far apart panels lie.
    pub(crate) panel: usize,
}

/// Multiplies rows with columns over a depth that is cut into blocks of a length: the sums of each block are added to
/// what is there, those of the first only if they are to be.
///
/// # Safety
///
/// The operands can be read, the right one to the end of its last panel, and the result is writable.
pub(crate) unsafe fn multiply<L: Lane + Pod, A, B>(
    kernels: &Kernels<L, A, B>,
    [rows, depth, columns]: [usize; 3],
    block: usize,
    left: Left<A>,
    right: Right<B>,
    (to, stride): (*mut L, isize),
    add: bool,
) {
    let (height, width) = (kernels.tiles.len(), kernels.width);
    for j in (0..columns).step_by(width) {
        for i in (0..rows).step_by(height) {
            let taken = height.min(rows - i);
            let kernel = kernels.tiles[taken - 1];
            for start in (0..depth).step_by(block) {
                let deep = block.min(depth - start);
                let add = add || start > 0;
                // SAFETY: the caller vouches; a tile that would stick out is computed aside.
                unsafe {
                    let at = left.start.add(start / block * left.block).offset(i as isize * left.row);
                    let left = (at, left.row);
                    let at = right.start.add(j / width * right.panel).offset(start as isize * right.row);
                    let right = (at, right.row);
                    let to = to.offset(i as isize * stride).add(j);
                    if j + width <= columns {
                        kernel(deep, left, right, (to, stride), add);
                        continue;
                    }
                    let mut room = Room(MaybeUninit::uninit());
                    let aside = room.0.as_mut_ptr().cast::<L>();
                    kernel(deep, left, right, (aside, width as isize), false);
                    for row in 0..taken {
                        for column in 0..columns - j {
                            let to = to.offset(row as isize * stride).add(column);
                            let sum = *aside.add(row * width + column);
                            to.write_unaligned(if add { to.read_unaligned().add(sum) } else { sum });
                        }
                    }
                }
            }
        }
    }
}
