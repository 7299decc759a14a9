//! The innermost loops of matmuls: small tiles of sums that stay in registers, for each vector unit.
//!
//! Every kernel sums an element in the same order: over the depth of a block from first to last, starting from zero,
//! and blocks of [`DEPTH`] one after the other. So an element has the same bits whichever kernel computes it, and
//! whatever is computed with it. The vector unit decides how a step rounds.

#[cfg_attr(target_arch = "x86_64", path = "micro/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "micro/aarch64.rs")]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "micro/portable.rs")]
mod arch;

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};
use max_core::Element;
use max_core::scalar::Lane;

use crate::register::{Lanes, Register};
use crate::simd::{Isa, prefetch};

/// The depth of a block of a matmul: a longer sum is a sum of such blocks.
pub(crate) const DEPTH: usize = 256;

/// The distance between packed rows of a left operand: a block and some padding, so that rows do not share cache sets.
pub(crate) const ROW: usize = DEPTH + 16;

/// The most rows that the kernels for few rows take.
pub(crate) const THIN: usize = 4;

/// Room for any tile.
pub(crate) const TILE_BYTES: usize = 32 * 32 * 4;

/// How many rows of a right operand are prefetched ahead.
const AHEAD: isize = 12;

/// Computes a tile with [`Kernels::width`] columns and as many rows as its position in the table says. The arguments
/// are the depth, then, each with the distance between its rows, the left operand, the right one, a tile to add, if
/// any, and the result; and what is prefetched meanwhile.
pub(crate) type Tile<L, A, B> =
    unsafe fn(usize, (*const A, isize), (*const B, isize), Option<(*const L, isize)>, (*mut L, isize), Soon);

/// Memory that is prefetched step by step, as much at a time as a step reads of the right operand: where it starts, and
/// the bytes from step to step.
pub(crate) type Soon = (*const u8, isize);

/// The next rows of a right operand.
pub(crate) fn next_rows<B>((right, stride): (*const B, isize)) -> Soon {
    let row = stride.wrapping_mul(size_of::<B>() as isize);
    (right.cast::<u8>().wrapping_offset(AHEAD.wrapping_mul(row)), row)
}

/// Computes one block of few rows with a right operand in place. The arguments are the depth, then, each with the
/// distance between its rows, the left and the right operand, the number of columns (a multiple of [`Kernels::lanes`]),
/// and the sums.
pub(crate) type Thin<L, A, B> =
    unsafe fn(usize, (*const A, isize), (*const B, isize), usize, (*mut L, isize));

/// The kernels of a vector unit for sums of type `L`, with operands packed as `A` and `B`.
pub(crate) struct Kernels<L: 'static, A: 'static = L, B: 'static = L> {
    /// The columns of a tile.
    pub(crate) width: usize,
    /// The columns of a vector.
    pub(crate) lanes: usize,
    /// The kernels for one row, two rows and so on.
    pub(crate) tiles: &'static [Tile<L, A, B>],
    /// The same for only the first vector of columns.
    pub(crate) narrow: &'static [Tile<L, A, B>],
    /// The kernels for one row, two rows and so on, with a right operand in place.
    pub(crate) thin: &'static [Thin<L, A, B>; THIN],
}

/// A type that sums are computed in.
pub(crate) trait Micro: Lane + Pod {
    /// The kernels for an instruction set.
    fn kernels_for(isa: Isa) -> &'static Kernels<Self>;

    /// The best kernels of this machine.
    fn kernels() -> &'static Kernels<Self> {
        Self::kernels_for(Isa::best())
    }
}

/// A type that right operands keep when packed: it is widened in registers.
pub(crate) trait Narrow: Element<Lane = f32> {
    /// The kernels for an instruction set.
    fn kernels_for(isa: Isa) -> &'static Kernels<f32, f32, Self>;
}

/// A type of one or two bytes, for which some machines have dot products of four bytes. Those of bf16 treat subnormal
/// operands and sums as zero.
pub(crate) trait Dot: Element {
    /// The kernels of this machine, if it has such instructions.
    fn dots() -> Option<&'static Kernels<Self::Lane, u32, u32>>;
}

/// A register of sums, and the operands whose products are added to it.
trait Vector: Copy {
    /// The type of sums in memory.
    type Lane: Copy;
    /// The types that operands are packed as, and the register of either.
    type Left: Copy;
    type Right: Copy;
    type Operand: Copy;
    const LANES: usize;

    /// The same element everywhere.
    ///
    /// # Safety
    ///
    /// The vector's instructions exist on this machine; likewise for all functions here.
    unsafe fn splat(from: Self::Left) -> Self::Operand;

    /// Elements from memory.
    ///
    /// # Safety
    ///
    /// See `splat`; `from` is valid for reading `LANES` elements.
    unsafe fn fetch(from: *const Self::Right) -> Self::Operand;

    /// Zeros.
    ///
    /// # Safety
    ///
    /// See `splat`.
    unsafe fn zero() -> Self;

    /// Sums from memory.
    ///
    /// # Safety
    ///
    /// See `splat`; `from` is valid for reading `LANES` lanes.
    unsafe fn load(from: *const Self::Lane) -> Self;

    /// Sums to memory.
    ///
    /// # Safety
    ///
    /// See `splat`; `to` is valid for writing `LANES` lanes.
    unsafe fn store(self, to: *mut Self::Lane);

    /// Adds another register.
    ///
    /// # Safety
    ///
    /// See `splat`.
    unsafe fn add(self, other: Self) -> Self;

    /// Adds a product.
    ///
    /// # Safety
    ///
    /// See `splat`.
    unsafe fn add_product(self, x: Self::Operand, y: Self::Operand) -> Self;
}

impl<R: Register<Lane: Zeroable>> Vector for R {
    type Lane = R::Lane;
    type Left = R::Lane;
    type Right = R::Lane;
    type Operand = R;
    const LANES: usize = R::LANES;
    #[inline(always)]
    unsafe fn splat(from: R::Lane) -> R {
        // SAFETY: guaranteed by the caller; likewise below.
        unsafe { R::splat(from) }
    }
    #[inline(always)]
    unsafe fn fetch(from: *const R::Lane) -> R {
        // SAFETY: see `splat`.
        unsafe { R::load(from) }
    }
    #[inline(always)]
    unsafe fn zero() -> R {
        // SAFETY: see `splat`.
        unsafe { R::splat(R::Lane::zeroed()) }
    }
    #[inline(always)]
    unsafe fn load(from: *const R::Lane) -> R {
        // SAFETY: see `splat`.
        unsafe { R::load(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut R::Lane) {
        // SAFETY: see `splat`.
        unsafe { R::store(self, to) }
    }
    #[inline(always)]
    unsafe fn add(self, other: R) -> R {
        // SAFETY: see `splat`.
        unsafe { R::add(self, other) }
    }
    #[inline(always)]
    unsafe fn add_product(self, x: R, y: R) -> R {
        // SAFETY: see `splat`.
        unsafe { R::add_product(self, x, y) }
    }
}

/// A vector of floats whose right operands have a narrower type.
#[derive(Clone, Copy)]
struct Widened<V, B>(V, PhantomData<B>);

/// A narrow type that can be read as a vector of wide ones.
trait Widen<V>: Copy {
    /// # Safety
    ///
    /// As for [`Vector::fetch`].
    unsafe fn widen(from: *const Self) -> V;
}

impl<B: Element<Lane = f32>, const N: usize> Widen<Lanes<f32, N>> for B {
    #[inline(always)]
    unsafe fn widen(from: *const B) -> Lanes<f32, N> {
        // SAFETY: the caller guarantees that the elements can be read.
        let narrow = unsafe { from.cast::<[B; N]>().read_unaligned() };
        Lanes(narrow.map(B::to_lane))
    }
}

impl<V: Register<Lane: Zeroable>, B: Widen<V>> Vector for Widened<V, B> {
    type Lane = V::Lane;
    type Left = V::Lane;
    type Right = B;
    type Operand = V;
    const LANES: usize = V::LANES;
    #[inline(always)]
    unsafe fn splat(from: V::Lane) -> V {
        // SAFETY: guaranteed by the caller; likewise below.
        unsafe { V::splat(from) }
    }
    #[inline(always)]
    unsafe fn fetch(from: *const B) -> V {
        // SAFETY: see `splat`.
        unsafe { B::widen(from) }
    }
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see `splat`.
        Widened(unsafe { V::splat(V::Lane::zeroed()) }, PhantomData)
    }
    #[inline(always)]
    unsafe fn load(from: *const V::Lane) -> Self {
        // SAFETY: see `splat`.
        Widened(unsafe { V::load(from) }, PhantomData)
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut V::Lane) {
        // SAFETY: see `splat`.
        unsafe { self.0.store(to) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see `splat`.
        Widened(unsafe { self.0.add(other.0) }, PhantomData)
    }
    #[inline(always)]
    unsafe fn add_product(self, x: V, y: V) -> Self {
        // SAFETY: see `splat`.
        Widened(unsafe { self.0.add_product(x, y) }, PhantomData)
    }
}

/// See [`Tile`]: of `N` vectors of columns.
///
/// # Safety
///
/// The operands can be read over the depth, the tile can be written, and the vector's instructions exist.
#[inline(always)]
unsafe fn tile<V: Vector, const R: usize, const N: usize>(
    depth: usize,
    (left, left_stride): (*const V::Left, isize),
    (right, right_stride): (*const V::Right, isize),
    add: Option<(*const V::Lane, isize)>,
    (tile, stride): (*mut V::Lane, isize),
    (soon, pace): Soon,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut sums = [[V::zero(); N]; R];
        for p in 0..depth {
            let right = right.offset(p as isize * right_stride);
            let soon = soon.wrapping_offset(p as isize * pace).cast::<V::Right>();
            let mut y = [V::fetch(right); N];
            for (j, y) in y.iter_mut().enumerate() {
                prefetch(soon.wrapping_add(j * V::LANES).cast());
                *y = V::fetch(right.add(j * V::LANES));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let x = V::splat(left.offset(i as isize * left_stride).add(p).read_unaligned());
                for (sum, &y) in sums.iter_mut().zip(&y) {
                    *sum = sum.add_product(x, y);
                }
            }
        }
        for (i, row) in sums.iter().enumerate() {
            for (j, sum) in row.iter().enumerate() {
                let sum = match add {
                    Some((tile, stride)) => {
                        V::load(tile.offset(i as isize * stride).add(j * V::LANES)).add(*sum)
                    }
                    None => *sum,
                };
                sum.store(tile.offset(i as isize * stride).add(j * V::LANES));
            }
        }
    }
}

/// See [`Thin`]. Four rows of the right operand are read at a time, each from left to right for the prefetcher.
///
/// # Safety
///
/// The operands can be read over the depth and the columns, the sums can be written, and the vector's instructions
/// exist.
#[inline(always)]
unsafe fn thin<V: Vector, const R: usize>(
    depth: usize,
    (left, left_stride): (*const V::Left, isize),
    (right, right_stride): (*const V::Right, isize),
    columns: usize,
    (sums, sums_stride): (*mut V::Lane, isize),
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut p = 0;
        while p < depth {
            let step = if depth - p >= 4 { 4 } else { 1 };
            let right = right.offset(p as isize * right_stride);
            let left = left.add(p);
            for j in (0..columns).step_by(V::LANES) {
                let mut rows = [V::zero(); R];
                if p > 0 {
                    for (i, row) in rows.iter_mut().enumerate() {
                        *row = V::load(sums.offset(i as isize * sums_stride).add(j));
                    }
                }
                for q in 0..step {
                    let y = V::fetch(right.offset(q as isize * right_stride).add(j));
                    for (i, row) in rows.iter_mut().enumerate() {
                        let x = left.offset(i as isize * left_stride).add(q).read_unaligned();
                        *row = row.add_product(V::splat(x), y);
                    }
                }
                for (i, row) in rows.iter().enumerate() {
                    row.store(sums.offset(i as isize * sums_stride).add(j));
                }
            }
            p += step;
        }
    }
}

/// The functions above, compiled for some instructions.
macro_rules! compiled {
    ($tiles:ident $thins:ident $(#[$feature:meta])*) => {
        $(#[$feature])*
        unsafe fn $tiles<V: Vector, const R: usize, const N: usize>(
            depth: usize,
            left: (*const V::Left, isize),
            right: (*const V::Right, isize),
            add: Option<(*const V::Lane, isize)>,
            to: (*mut V::Lane, isize),
            soon: Soon,
        ) {
            // SAFETY: guaranteed by the caller.
            unsafe { tile::<V, R, N>(depth, left, right, add, to, soon) }
        }

        $(#[$feature])*
        unsafe fn $thins<V: Vector, const R: usize>(
            depth: usize,
            left: (*const V::Left, isize),
            right: (*const V::Right, isize),
            columns: usize,
            sums: (*mut V::Lane, isize),
        ) {
            // SAFETY: guaranteed by the caller.
            unsafe { thin::<V, R>(depth, left, right, columns, sums) }
        }
    };
}
#[cfg(target_arch = "x86_64")]
use compiled;

/// A table of kernels for a vector, with as many rows as there are registers for.
macro_rules! kernels {
    ($vector:ty, $tile:ident, $thin:ident, $($rows:literal)*) => {
        const {
            &Kernels {
                width: 2 * <$vector as Vector>::LANES,
                lanes: <$vector as Vector>::LANES,
                tiles: &[$($tile::<$vector, $rows, 2>),*],
                narrow: &[$($tile::<$vector, $rows, 1>),*],
                thin: &[$thin::<$vector, 1>, $thin::<$vector, 2>, $thin::<$vector, 3>, $thin::<$vector, 4>],
            }
        }
    };
}
use kernels;

compiled!(tile_plain thin_plain);

/// Kernels that the compiler vectorizes.
macro_rules! plain_kernels {
    ($vector:ty) => {
        kernels!($vector, tile_plain, thin_plain, 1 2 3 4)
    };
}
use plain_kernels;

/// Types whose kernels the compiler vectorizes on this architecture.
#[cfg(not(target_arch = "x86_64"))]
macro_rules! plain_lanes {
    ($($lane:ident)*) => {$(
        impl Micro for $lane {
            fn kernels_for(_: Isa) -> &'static Kernels<$lane> {
                plain_kernels!(Lanes<$lane, { 16 / size_of::<$lane>() }>)
            }
        }
    )*};
}

/// Types without dot-product instructions on this architecture.
#[cfg(not(target_arch = "x86_64"))]
macro_rules! no_dots {
    ($($type:ident)*) => {$(
        impl Dot for $type {
            fn dots() -> Option<&'static Kernels<<$type as Element>::Lane, u32, u32>> {
                None
            }
        }
    )*};
}
#[cfg(not(target_arch = "x86_64"))]
use {no_dots, plain_lanes};
