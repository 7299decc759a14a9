//! Packs operands: widened to the type that sums are computed in, and laid out as the inner loops read them.

use std::any::TypeId;
use std::marker::PhantomData;

use max_core::Element;

use super::micro::{Kernels, Micro};
use crate::scratch::Line;
use crate::simd::{Isa, versions};
use crate::tile;

/// How many columns are transposed together: each is read one cache line at a time, and no line is read again.
const TRANSPOSED: usize = 16;

/// A matrix in memory: its start, the strides of rows and columns in elements, and their numbers.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<T> {
    pub(crate) start: *const T,
    pub(crate) strides: [isize; 2],
    pub(crate) size: [usize; 2],
}

impl<T> Matrix<T> {
    /// The part of a size that starts at a row and a column.
    pub(crate) fn part(self, at: [usize; 2], size: [usize; 2]) -> Matrix<T> {
        let distance = at[0] as isize * self.strides[0] + at[1] as isize * self.strides[1];
        Matrix { start: self.start.wrapping_offset(distance), size, ..self }
    }

    /// The same with elements of another type of the same size.
    pub(crate) fn cast<U>(self) -> Matrix<U> {
        const { assert!(size_of::<T>() == size_of::<U>()) };
        Matrix { start: self.start.cast(), strides: self.strides, size: self.size }
    }
}

/// Packs a right operand as panels, each of [`Kernels::width`] columns; zeros fill the last.
///
/// # Safety
///
/// The matrix can be read, and there is room for the panels.
pub(crate) unsafe fn pack_right<T: Element>(kernels: &Kernels<T::Lane>, to: *mut T::Lane, matrix: Matrix<T>)
where
    T::Lane: Micro,
{
    // SAFETY: guaranteed by the caller.
    unsafe { pack_right_rows(kernels, (to, matrix.size[0], 0), matrix) };
}

/// Packs some rows of a right operand that has `depth` rows in total, starting at row `top`.
///
/// # Safety
///
/// The matrix can be read, and there is room for the panels.
pub(crate) unsafe fn pack_right_rows<T: Element>(
    kernels: &Kernels<T::Lane>,
    (to, depth, top): (*mut T::Lane, usize, usize),
    matrix: Matrix<T>,
) where
    T::Lane: Micro,
{
    // SAFETY: guaranteed by the caller.
    unsafe { pack_panels::<T>(to.add(top * kernels.width), (kernels.width, depth * kernels.width), matrix) }
}

/// Packs a matrix as panels of `width` columns, with a stride of `panel` elements; zeros fill the last.
///
/// # Safety
///
/// The matrix can be read, and there is room for the panels.
pub(crate) unsafe fn pack_panels<T: Element>(
    to: *mut T::Lane,
    (width, panel): (usize, usize),
    matrix: Matrix<T>,
) {
    let [rows, columns] = matrix.size;
    let whole = columns / width;
    // SAFETY: guaranteed by the caller.
    unsafe {
        if matrix.strides[1] == 1
            && is_wide::<T>()
            && (width * size_of::<T>()).is_multiple_of(size_of::<Line>())
        {
            // Row by row, for sequential reads.
            let lines = width * size_of::<T>() / size_of::<Line>();
            for i in 0..rows {
                let from = matrix.start.offset(i as isize * matrix.strides[0]).cast::<Line>();
                for j in 0..whole {
                    let to = to.add(j * panel + i * width).cast::<Line>();
                    for line in 0..lines {
                        to.add(line).write_unaligned(from.add(j * lines + line).read_unaligned());
                    }
                }
            }
        } else {
            for j in 0..whole {
                pack(to.add(j * panel), width, matrix.part([0, j * width], [rows, width]));
            }
        }
        let rest = columns % width;
        if rest > 0 {
            let to = to.add(whole * panel);
            to.write_bytes(0, width * rows);
            pack(to, width, matrix.part([0, whole * width], [rows, rest]));
        }
    }
}

/// Packs a matrix as panels of `width` columns, with a stride of `panel` elements. Four bytes of consecutive elements
/// of a column are stored together as a group; zeros fill the last group and the last panel.
///
/// # Safety
///
/// The matrix can be read, and there is room for the panels.
pub(crate) unsafe fn pack_groups<T: Element>(to: *mut T, (width, panel): (usize, usize), matrix: Matrix<T>) {
    let group = size_of::<u32>() / size_of::<T>();
    let Matrix { start, strides: [down, along], size: [rows, columns] } = matrix;
    let whole = [rows - rows % group, columns - columns % width];
    // SAFETY: guaranteed by the caller. Elements need not be aligned.
    unsafe {
        if along == 1 {
            let size = [whole[0] / group, whole[1] / width, width];
            version::<Groups<T>>(Isa::best())(to.cast(), panel, start.cast(), down, size);
        }
        for (number, first) in (0..columns).step_by(width).enumerate() {
            let to = to.add(number * panel);
            let taken = width.min(columns - first);
            let start = start.offset(first as isize * along);
            if taken < width {
                to.write_bytes(0, width * rows.next_multiple_of(group));
            } else if whole[0] < rows {
                to.add(whole[0] * width).write_bytes(0, width * group);
            }
            let done = if along == 1 && taken == width {
                whole[0]
            } else if down == 1 && along % group as isize == 0 {
                // Groups are contiguous already and are transposed as a whole.
                for j in (0..taken).step_by(TRANSPOSED) {
                    let (to, from) = (to.add(j * group), start.offset(j as isize * along));
                    let (count, distance) = (TRANSPOSED.min(taken - j), along / group as isize);
                    tile::transpose(4, to.cast(), width, from.cast(), distance, count, whole[0] / group);
                }
                whole[0]
            } else {
                0
            };
            for (i, j) in (done..rows).flat_map(|i| (0..taken).map(move |j| (i, j))) {
                let from = start.offset(i as isize * down + j as isize * along);
                to.add((i / group * width + j) * group + i % group).write_unaligned(from.read_unaligned());
            }
        }
    }
}

trait Body {
    /// Packs whole groups of whole panels of a matrix with contiguous rows. The arguments are the panels and the
    /// distance between them, the matrix and the distance between its rows, and the numbers of groups, panels and
    /// columns per panel.
    ///
    /// # Safety
    ///
    /// The matrix can be read, and there is room for the panels.
    unsafe fn run<const FMA: bool>(to: *mut u8, panel: usize, from: *const u8, down: isize, size: [usize; 3]);
}

versions!(version: Body, fn(to: *mut u8, panel: usize, from: *const u8, down: isize, size: [usize; 3]));

struct Groups<T>(PhantomData<T>);

impl<T: Element> Body for Groups<T> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(
        to: *mut u8,
        panel: usize,
        from: *const u8,
        down: isize,
        [groups, panels, width]: [usize; 3],
    ) {
        let (to, from) = (to.cast::<T>(), from.cast::<T>());
        let group = size_of::<u32>() / size_of::<T>();
        // SAFETY: guaranteed by the caller; the width of panels is a multiple of `TRANSPOSED`.
        unsafe {
            for i in 0..groups {
                let from = from.offset((i * group) as isize * down);
                for at in 0..panels * (width / TRANSPOSED) {
                    let (number, j) = (at * TRANSPOSED / width, at * TRANSPOSED % width);
                    let to = to.add(number * panel + (i * width + j) * group);
                    let mut lines = [[T::zeroed(); TRANSPOSED]; 4];
                    for (g, line) in lines[..group].iter_mut().enumerate() {
                        let row = from.offset(g as isize * down).add(at * TRANSPOSED);
                        *line = row.cast::<[T; TRANSPOSED]>().read_unaligned();
                    }
                    for (g, line) in lines[..group].iter().enumerate() {
                        for (j, &element) in line.iter().enumerate() {
                            to.add(j * group + g).write_unaligned(element);
                        }
                    }
                }
            }
        }
    }
}

/// Widens a matrix to rows of unit stride.
///
/// # Safety
///
/// The matrix can be read, and there is room for the rows.
pub(crate) unsafe fn pack<T: Element>(to: *mut T::Lane, stride: usize, matrix: Matrix<T>) {
    let Matrix { start, strides: [down, along], size: [rows, columns] } = matrix;
    // SAFETY: guaranteed by the caller. Elements need not be aligned.
    unsafe {
        if along == 1 {
            for i in 0..rows {
                widen(to.add(i * stride), start.offset(i as isize * down), columns);
            }
            return;
        }
        if down == 1 && is_wide::<T>() {
            // A few columns at a time: more of them, with a large stride, would evict each other from the cache.
            for j in (0..columns).step_by(TRANSPOSED) {
                let (to, from) = (to.add(j), start.offset(j as isize * along));
                let taken = TRANSPOSED.min(columns - j);
                tile::transpose(size_of::<T>(), to.cast(), stride, from.cast(), along, taken, rows);
            }
            return;
        }
        for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
            let from = start.offset(i as isize * down + j as isize * along);
            to.add(i * stride + j).write(from.read_unaligned().to_lane());
        }
    }
}

/// Whether elements need no widening.
pub(crate) fn is_wide<T: Element>() -> bool {
    TypeId::of::<T>() == TypeId::of::<T::Lane>()
}

/// Widens contiguous elements.
///
/// # Safety
///
/// `count` elements can be read and written.
#[inline(always)]
unsafe fn widen<T: Element>(to: *mut T::Lane, from: *const T, count: usize) {
    // SAFETY: guaranteed by the caller; elements that need no widening are copied as bytes.
    unsafe {
        if is_wide::<T>() {
            let bytes = count * size_of::<T>();
            if bytes > 2 * size_of::<Line>() {
                return std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), bytes);
            }
            return copy_some(to.cast(), from.cast(), bytes);
        }
        for i in 0..count {
            to.add(i).write(from.add(i).read_unaligned().to_lane());
        }
    }
}

/// Copies a few bytes inline, which is faster than a call.
///
/// # Safety
///
/// `bytes` bytes can be read and written, and they do not overlap.
#[inline(always)]
unsafe fn copy_some(to: *mut u8, from: *const u8, bytes: usize) {
    const PIECE: usize = 16;
    let whole = bytes - bytes % PIECE;
    // SAFETY: guaranteed by the caller.
    unsafe {
        for at in (0..whole).step_by(PIECE) {
            let piece = from.add(at).cast::<[u8; PIECE]>().read_unaligned();
            to.add(at).cast::<[u8; PIECE]>().write_unaligned(piece);
        }
        for at in whole..bytes {
            to.add(at).write(from.add(at).read());
        }
    }
}
