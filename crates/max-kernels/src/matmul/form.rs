//! How matmuls of a type are computed: the types that operands are packed as, and the kernels.

use std::any::TypeId;
use std::marker::PhantomData;

use bytemuck::Pod;
use max_core::small_float::{F8E4M3FN, F8E5M2};
use max_core::{Element, bf16, f16};

use super::micro::{DEPTH, Dot, Kernels, Micro, Narrow};
use super::pack::{Matrix, pack, pack_groups, pack_panels};
use crate::simd::Isa;

/// The formats of packed operands and their kernels. All sum the terms of an element in the same order: see `micro`.
pub(crate) trait Form: Sized + 'static {
    /// The types of operands in memory.
    type LeftElement: Element<Lane = Self::Sum>;
    type RightElement: Element<Lane = Self::Sum>;
    /// The type of sums.
    type Sum: Micro;
    /// The types that operands are packed as.
    type Left: Pod;
    type Right: Pod;
    /// How many elements along the depth a packed element holds.
    const GROUP: usize;
    /// Whether a left operand with unit stride along the depth can be read in place; whole groups only.
    const LEFT_LIES: bool;
    /// Whether a right operand with unit stride along its columns can be read in place.
    const RIGHT_LIES: bool;

    fn kernels() -> &'static Kernels<Self::Sum, Self::Left, Self::Right>;

    /// Packs rows of a left operand, with a stride of `stride` packed elements; zeros fill the last group.
    ///
    /// # Safety
    ///
    /// The matrix can be read, and there is room for the rows.
    unsafe fn pack_left(to: *mut Self::Left, stride: usize, matrix: Matrix<Self::LeftElement>);

    /// Packs a right operand as panels of [`Kernels::width`] columns, with a stride of `panel` packed elements; zeros
    /// fill the last panel and the last group.
    ///
    /// # Safety
    ///
    /// The matrix can be read, and there is room for the panels.
    unsafe fn pack_right(to: *mut Self::Right, panel: usize, matrix: Matrix<Self::RightElement>);

    /// The number of packed elements that cover a depth.
    fn groups(depth: usize) -> usize {
        depth.div_ceil(Self::GROUP)
    }

    /// The distance between packed rows of a block of a left operand: padded, so that rows do not share cache sets.
    fn row() -> usize {
        DEPTH / Self::GROUP + 16
    }
}

/// Both operands in the type of sums.
pub(crate) struct Plain<T>(PhantomData<T>);

impl<T: Element + 'static> Form for Plain<T>
where
    T::Lane: Micro,
{
    type LeftElement = T;
    type RightElement = T;
    type Sum = T::Lane;
    type Left = T::Lane;
    type Right = T::Lane;
    const GROUP: usize = 1;
    const LEFT_LIES: bool = size_of::<T>() == size_of::<T::Lane>();
    const RIGHT_LIES: bool = Self::LEFT_LIES;

    fn kernels() -> &'static Kernels<T::Lane> {
        T::Lane::kernels()
    }
    unsafe fn pack_left(to: *mut T::Lane, stride: usize, matrix: Matrix<T>) {
        // SAFETY: guaranteed by the caller.
        unsafe { pack(to, stride, matrix) }
    }
    unsafe fn pack_right(to: *mut T::Lane, panel: usize, matrix: Matrix<T>) {
        // SAFETY: guaranteed by the caller.
        unsafe { pack_panels::<T>(to, (Self::kernels().width, panel), matrix) }
    }
}

/// The left operand, of type `L` in memory, in f32; the right one as in memory and widened in registers.
pub(crate) struct Widened<T, L = T>(PhantomData<(T, L)>);

static ONE: f32 = 1.0;

/// Elements that are only moved, as bits.
pub(crate) trait Bits: Element {
    /// A type of the same size that is its own lane type.
    type Bits: Element<Lane = Self::Bits>;
}

macro_rules! bits {
    ($($type:ident $bits:ident)*) => {$(impl Bits for $type { type Bits = $bits; })*};
}
bits!(bf16 u16 f16 u16 F8E4M3FN u8 F8E5M2 u8 i16 u16 u16 u16 i8 u8 u8 u8);

impl<T: Narrow + Bits + 'static, L: Element<Lane = f32> + 'static> Form for Widened<T, L> {
    type LeftElement = L;
    type RightElement = T;
    type Sum = f32;
    type Left = f32;
    type Right = T;
    const GROUP: usize = 1;
    const LEFT_LIES: bool = size_of::<L>() == size_of::<f32>();
    const RIGHT_LIES: bool = true;

    fn kernels() -> &'static Kernels<f32, f32, T> {
        T::kernels_for(Isa::best())
    }
    unsafe fn pack_left(to: *mut f32, stride: usize, matrix: Matrix<L>) {
        let Matrix { start, strides: [down, along], size: [rows, columns] } = matrix;
        if along != 1 || TypeId::of::<L>() != TypeId::of::<T>() {
            // SAFETY: guaranteed by the caller.
            return unsafe { pack(to, stride, matrix) };
        }
        let kernels = Self::kernels();
        let whole = columns - columns % kernels.lanes;
        for i in 0..rows {
            // SAFETY: guaranteed by the caller; both types are the same. A row times one is the row, widened in registers.
            unsafe {
                let (from, to) = (start.offset(i as isize * down).cast::<T>(), to.add(i * stride));
                kernels.thin[0](1, ((&raw const ONE), 1), (from, 0), whole, (to, 0));
                (whole..columns).for_each(|j| to.add(j).write(from.add(j).read_unaligned().to_lane()));
            }
        }
    }
    unsafe fn pack_right(to: *mut T, panel: usize, matrix: Matrix<T>) {
        // SAFETY: guaranteed by the caller; bits have the size of their type.
        unsafe {
            pack_panels::<T::Bits>(to.cast(), (Self::kernels().width, panel), matrix.cast());
        }
    }
}

/// Groups of four bytes along the depth, for instructions that multiply and accumulate a whole group. Only for machines
/// that have them.
pub(crate) struct Dots<T>(PhantomData<T>);

impl<T: Dot + Bits + 'static> Form for Dots<T>
where
    T::Lane: Micro,
{
    type LeftElement = T;
    type RightElement = T;
    type Sum = T::Lane;
    type Left = u32;
    type Right = u32;
    const GROUP: usize = size_of::<u32>() / size_of::<T>();
    const LEFT_LIES: bool = true;
    const RIGHT_LIES: bool = false;

    fn kernels() -> &'static Kernels<T::Lane, u32, u32> {
        T::dots().expect("the format is only chosen on machines that have its instructions")
    }
    unsafe fn pack_left(to: *mut u32, stride: usize, matrix: Matrix<T>) {
        let [rows, depth] = matrix.size;
        // SAFETY: guaranteed by the caller; a packed element is a whole group.
        unsafe {
            if depth % Self::GROUP != 0 {
                (0..rows).for_each(|i| to.add(i * stride + depth / Self::GROUP).write(0));
            }
            pack(to.cast::<T::Bits>(), stride * Self::GROUP, matrix.cast::<T::Bits>());
        }
    }
    unsafe fn pack_right(to: *mut u32, panel: usize, matrix: Matrix<T>) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            pack_groups::<T::Bits>(to.cast(), (Self::kernels().width, panel * Self::GROUP), matrix.cast())
        }
    }
}
