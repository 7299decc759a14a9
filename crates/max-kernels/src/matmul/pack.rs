//! Packs operands: widened to the type that sums are computed in, and laid out as the inner loops read them.

use std::any::TypeId;

use max_core::Element;

use super::micro::{Kernels, Micro, ROW};
use crate::tile;

/// How many columns are turned to rows together.
const TURNED: usize = 8;

/// A matrix in memory: where it starts, how far apart rows and columns lie in elements, and how many there are.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<T> {
    pub(crate) start: *const T,
    pub(crate) strides: [isize; 2],
    pub(crate) size: [usize; 2],
}

impl<T> Matrix<T> {
    /// The part from a row and a column on, of a size.
    pub(crate) fn part(self, at: [usize; 2], size: [usize; 2]) -> Matrix<T> {
        let distance = at[0] as isize * self.strides[0] + at[1] as isize * self.strides[1];
        Matrix { start: self.start.wrapping_offset(distance), size, ..self }
    }
}

/// Packs rows of a left operand, [`ROW`] apart.
///
/// # Safety
///
/// The matrix is readable, and the rows fit.
pub(crate) unsafe fn pack_left<T: Element>(to: *mut T::Lane, matrix: Matrix<T>) {
    // SAFETY: the caller vouches.
    unsafe { pack(to, ROW, matrix) };
}

/// Packs a right operand as panels, each of [`Kernels::width`] columns; zeros fill the last.
///
/// # Safety
///
/// The matrix is readable, and the panels fit.
pub(crate) unsafe fn pack_right<T: Element>(kernels: &Kernels<T::Lane>, to: *mut T::Lane, matrix: Matrix<T>)
where
    T::Lane: Micro,
{
    // SAFETY: the caller vouches.
    unsafe { pack_right_rows(kernels, (to, matrix.size[0], 0), matrix) };
}

/// Packs some rows of a right operand, which has so many in all, from a row on.
///
/// # Safety
///
/// The matrix is readable, and the panels fit.
pub(crate) unsafe fn pack_right_rows<T: Element>(
    kernels: &Kernels<T::Lane>,
    (to, depth, top): (*mut T::Lane, usize, usize),
    matrix: Matrix<T>,
) where
    T::Lane: Micro,
{
    let ([rows, columns], width) = (matrix.size, kernels.width);
    for start in (0..columns).step_by(width) {
        let taken = width.min(columns - start);
        // SAFETY: the caller vouches.
        unsafe {
            let panel = to.add(start * depth + top * width);
            if taken < width {
                panel.write_bytes(0, width * rows);
            }
            pack(panel, width, matrix.part([0, start], [rows, taken]));
        }
    }
}

/// Widens a matrix to rows of unit stride.
///
/// # Safety
///
/// The matrix is readable, and the rows fit.
pub(crate) unsafe fn pack<T: Element>(to: *mut T::Lane, stride: usize, matrix: Matrix<T>) {
    let Matrix { start, strides: [down, along], size: [rows, columns] } = matrix;
    // SAFETY: the caller vouches. Elements need not be aligned.
    unsafe {
        if along == 1 {
            for i in 0..rows {
                widen(to.add(i * stride), start.offset(i as isize * down), columns);
            }
            return;
        }
        if down == 1 && is_wide::<T>() {
            // A few columns at a time: more, if far apart, would push each other out of the cache.
            for j in (0..columns).step_by(TURNED) {
                let (to, from) = (to.add(j), start.offset(j as isize * along));
                let taken = TURNED.min(columns - j);
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

/// Whether elements need not be widened.
pub(crate) fn is_wide<T: Element>() -> bool {
    TypeId::of::<T>() == TypeId::of::<T::Lane>()
}

/// Widens elements that lie side by side.
///
/// # Safety
///
/// Both hold so many elements.
#[inline(always)]
unsafe fn widen<T: Element>(to: *mut T::Lane, from: *const T, count: usize) {
    // SAFETY: the caller vouches; what is of one type is copied as bytes.
    unsafe {
        if is_wide::<T>() {
            return std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), count * size_of::<T>());
        }
        for i in 0..count {
            to.add(i).write(from.add(i).read_unaligned().to_lane());
        }
    }
}
