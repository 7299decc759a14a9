//! Products of packed blocks.

use std::mem::MaybeUninit;

use bytemuck::Pod;
use max_core::scalar::Lane;

use super::micro::{Kernels, TILE_BYTES};

/// Room for a tile that sticks out of its block.
#[repr(C, align(64))]
struct Room(MaybeUninit<[u8; TILE_BYTES]>);

/// Multiplies a left block (`rows` x `depth`, unit stride along the depth) with a packed right one (`depth` x
/// `columns`), adding to what is there or not. With the left block and the result comes the distance of their rows, with
/// the right one that of its panels.
///
/// # Safety
///
/// The operands can be read, the right one is packed for these kernels, and the result is writable.
pub(crate) unsafe fn multiply<L: Lane + Pod, A, B>(
    kernels: &Kernels<L, A, B>,
    size: [usize; 3],
    left: (*const A, isize),
    (right, panel): (*const B, usize),
    to: (*mut L, isize),
    add: bool,
) {
    let right = (right, panel, kernels.width as isize);
    // SAFETY: the caller vouches.
    unsafe { multiply_panels(kernels, size, left, right, to, add) }
}

/// As [`multiply`], with a right operand whose panels and their rows lie at any distance.
///
/// # Safety
///
/// As for [`multiply`]; all columns of the last panel can be read.
pub(crate) unsafe fn multiply_panels<L: Lane + Pod, A, B>(
    kernels: &Kernels<L, A, B>,
    [rows, depth, columns]: [usize; 3],
    (left, left_stride): (*const A, isize),
    (right, panel, right_stride): (*const B, usize, isize),
    (to, stride): (*mut L, isize),
    add: bool,
) {
    let (height, width) = (kernels.tiles.len(), kernels.width);
    for j in (0..columns).step_by(width) {
        // SAFETY: the caller vouches; a tile that would stick out is computed aside.
        unsafe {
            let right = (right.add(j / width * panel), right_stride);
            for i in (0..rows).step_by(height) {
                let taken = height.min(rows - i);
                let kernel = kernels.tiles[taken - 1];
                let left = (left.offset(i as isize * left_stride), left_stride);
                let to = to.offset(i as isize * stride).add(j);
                if j + width <= columns {
                    kernel(depth, left, right, (to, stride), add);
                    continue;
                }
                let mut room = Room(MaybeUninit::uninit());
                let aside = room.0.as_mut_ptr().cast::<L>();
                kernel(depth, left, right, (aside, width as isize), false);
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
