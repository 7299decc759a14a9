//! Matmuls of packed blocks.

use std::mem::MaybeUninit;

use bytemuck::Pod;
use max_core::scalar::Lane;

use super::micro::{Kernels, Soon, TILE_BYTES, next_rows};
use super::pack::Matrix;
use crate::simd::{LINE, prefetch};

/// Room for a tile that extends past its block.
#[repr(C, align(64))]
struct Room(MaybeUninit<[u8; TILE_BYTES]>);

/// Memory that will be read soon, as rows of cache lines: it is prefetched bit by bit during other computation.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    start: *const u8,
    /// The distance between rows.
    row: isize,
    /// The lines per row, and in total.
    lines: usize,
    all: usize,
    asked: usize,
}

impl Ahead {
    pub(crate) fn nothing() -> Ahead {
        Ahead { start: std::ptr::null(), row: 0, lines: 0, all: 0, asked: 0 }
    }

    /// A matrix, if each of its rows is contiguous.
    pub(crate) fn of<T>(matrix: Matrix<T>) -> Ahead {
        let [rows, columns] = matrix.size;
        let lines = if matrix.strides[1] == 1 { (columns * size_of::<T>()).div_ceil(LINE) } else { 0 };
        let row = matrix.strides[0].wrapping_mul(size_of::<T>() as isize);
        Ahead { start: matrix.start.cast(), row, lines, all: lines * rows, asked: 0 }
    }

    /// Prefetches this many more lines.
    pub(crate) fn ask(&mut self, lines: usize) {
        let until = self.all.min(self.asked.saturating_add(lines));
        for at in self.asked..until {
            let row = self.start.wrapping_offset((at / self.lines) as isize * self.row);
            prefetch(row.wrapping_add(at % self.lines * LINE));
        }
        self.asked = until;
    }
}

/// A right operand: panels with the columns of a tile.
#[derive(Clone, Copy)]
pub(crate) struct Right<B> {
    pub(crate) start: *const B,
    /// The distance between panels.
    pub(crate) panel: usize,
    /// The distance between rows of a panel.
    pub(crate) row: isize,
    /// What is needed after the last panel, if panels come from far away: each is prefetched during the one before.
    pub(crate) next: Option<*const B>,
}

impl<B> Right<B> {
    /// What a strip prefetches during a panel: its part of the next one, where that is far away.
    fn soon(&self, [panel, panels]: [usize; 2], [strip, strips]: [usize; 2], depth: usize) -> Soon {
        let start = |panel: usize| self.start.wrapping_add(panel * self.panel);
        let Some(next) = self.next else { return next_rows((start(panel), self.row)) };
        let next = if panel + 1 < panels { start(panel + 1) } else { next };
        let pace = self.row.unsigned_abs() * size_of::<B>() / strips;
        (next.cast::<u8>().wrapping_add(strip * depth * pace), pace as isize)
    }
}

/// Multiplies a left block (`rows` x `depth`, unit stride along the depth) by a right one (`depth` x `columns`) and
/// adds a block, if there is one; meanwhile it prefetches memory that is needed next. The left block, the block to add
/// and the result each come with the distance between their rows.
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
    ahead: &mut Ahead,
) {
    let (width, strips) = (kernels.width, rows.div_ceil(kernels.tiles.len()));
    let (height, panels) = (rows.div_ceil(strips.max(1)), columns.div_ceil(kernels.width));
    let lines = ahead.all.div_ceil((strips * panels).max(1));
    for at in 0..strips * panels {
        // Row by row of tiles, so that what they read of the left operand stays in the L1 cache; or, if there are few
        // rows or the right operand is far away, column by column, so that it is read once.
        let by_rows = strips > 2 && right.next.is_none();
        let (strip, panel) = if by_rows { (at / panels, at % panels) } else { (at % strips, at / strips) };
        let (i, j) = (strip * height, panel * width);
        let taken = height.min(rows - i);
        // SAFETY: guaranteed by the caller; a tile that would extend past the block is computed separately.
        unsafe {
            let left = (left.offset(i as isize * left_stride), left_stride);
            let soon = right.soon([panel, panels], [strip, strips], depth);
            let right = (right.start.add(j / width * right.panel), right.row);
            let add = add.map(|(add, stride)| (add.offset(i as isize * stride).add(j), stride));
            let to = to.offset(i as isize * stride).add(j);
            ahead.ask(lines);
            let narrow = columns - j <= kernels.lanes;
            let kernel = if narrow { kernels.narrow[taken - 1] } else { kernels.tiles[taken - 1] };
            if j + if narrow { kernels.lanes } else { width } <= columns {
                kernel(depth, left, right, add, (to, stride), soon);
                continue;
            }
            let mut room = Room(MaybeUninit::uninit());
            let aside = room.0.as_mut_ptr().cast::<L>();
            kernel(depth, left, right, None, (aside, width as isize), soon);
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
