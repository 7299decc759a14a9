//! Packs operands: widened to the type that sums are computed in, and laid out as the inner loops read them.

use std::any::TypeId;

use max_core::Element;

use super::micro::{Kernels, Micro, ROW};

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
        let done = if down == 1 { transpose(to, stride, matrix) } else { 0 };
        for j in done..columns {
            for i in 0..rows {
                let from = start.offset(i as isize * down + j as isize * along);
                to.add(i * stride + j).write(from.read_unaligned().to_lane());
            }
        }
    }
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
        if TypeId::of::<T>() == TypeId::of::<T::Lane>() {
            return std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), count * size_of::<T>());
        }
        for i in 0..count {
            to.add(i).write(from.add(i).read_unaligned().to_lane());
        }
    }
}

/// Transposes columns of unit stride, eight at a time as far as they go; how many it did.
///
/// # Safety
///
/// The matrix is readable, and the rows fit.
unsafe fn transpose<T: Element>(to: *mut T::Lane, stride: usize, matrix: Matrix<T>) -> usize {
    let Matrix { start, strides: [_, along], size: [rows, columns] } = matrix;
    let whole = columns - columns % 8;
    #[cfg(target_arch = "x86_64")]
    let fast = size_of::<T>() == 4
        && TypeId::of::<T>() == TypeId::of::<T::Lane>()
        && is_x86_feature_detected!("avx2");
    for j in (0..whole).step_by(8) {
        let from = start.wrapping_offset(j as isize * along);
        let mut i = 0;
        #[cfg(target_arch = "x86_64")]
        if fast {
            while i + 8 <= rows {
                // SAFETY: the caller vouches for the matrix, and the instructions were checked.
                unsafe { transpose_8(to.add(i * stride + j).cast(), stride, from.add(i).cast(), along) };
                i += 8;
            }
        }
        while i < rows {
            for k in 0..8 {
                // SAFETY: the caller vouches.
                unsafe {
                    let element = from.offset(i as isize + k as isize * along).read_unaligned();
                    to.add(i * stride + j + k).write(element.to_lane());
                }
            }
            i += 1;
        }
    }
    whole
}

/// Transposes eight by eight elements of four bytes.
///
/// # Safety
///
/// Both hold the square, and there is AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn transpose_8(to: *mut f32, stride: usize, from: *const f32, from_stride: isize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller vouches; other types of four bytes are moved as bits.
    unsafe {
        let row = |i: isize| _mm256_loadu_ps(from.offset(i * from_stride));
        let pairs: [[__m256; 2]; 4] = std::array::from_fn(|i| {
            let (x, y) = (row(2 * i as isize), row(2 * i as isize + 1));
            [_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y)]
        });
        let fours: [[__m256; 4]; 2] = std::array::from_fn(|i| {
            let ([x, z], [y, w]) = (pairs[2 * i], pairs[2 * i + 1]);
            [
                _mm256_shuffle_ps::<0x44>(x, y),
                _mm256_shuffle_ps::<0xee>(x, y),
                _mm256_shuffle_ps::<0x44>(z, w),
                _mm256_shuffle_ps::<0xee>(z, w),
            ]
        });
        for i in 0..4 {
            let (x, y) = (fours[0][i], fours[1][i]);
            _mm256_storeu_ps(to.add(i * stride), _mm256_permute2f128_ps::<0x20>(x, y));
            _mm256_storeu_ps(to.add((i + 4) * stride), _mm256_permute2f128_ps::<0x31>(x, y));
        }
    }
}
