//! The innermost loops of products: small tiles of sums that stay in registers, for each vector unit.
//!
//! Every kernel sums an element in the same order: over the depth of a block from first to last, beginning with zero,
//! and blocks of [`DEPTH`] one after the other. So an element has the same bits whichever kernel computes it, and
//! whatever lies beside it. Which vector unit there is decides whether a step rounds once (fused) or twice.

use bytemuck::Pod;
use max_core::Bool;
use max_core::scalar::Lane;

use crate::simd::Isa;

/// The depth of a block of a product: a longer sum is a sum of such blocks.
pub(crate) const DEPTH: usize = 256;

/// How far apart the packed rows of a left operand lie: a block and a bit, so that rows do not share cache sets.
pub(crate) const ROW: usize = DEPTH + 16;

/// The most rows that the kernels for few rows take.
pub(crate) const THIN: usize = 4;

/// Room for any tile.
pub(crate) const TILE_BYTES: usize = 14 * 2 * 64;

/// Computes a tile of as many rows as its place in the table says and of [`Kernels::width`] columns: arguments are the
/// depth, then with the distance of their rows the left operand, the right one and the tile, and whether to add to
/// what is there.
pub(crate) type Tile<L> = unsafe fn(usize, (*const L, isize), (*const L, isize), (*mut L, isize), bool);

/// Computes one block of few rows, over so many columns (a multiple of [`Kernels::lanes`]) of a right operand as it
/// lies: depth, left, right with the distance of its rows, columns, the sums with the distance of their rows.
pub(crate) type Thin<L> = unsafe fn(usize, *const L, (*const L, isize), usize, (*mut L, usize));

/// The kernels for a type on a vector unit.
pub(crate) struct Kernels<L: 'static> {
    /// The columns of a tile.
    pub(crate) width: usize,
    /// The columns of a vector.
    pub(crate) lanes: usize,
    /// The kernels for one row, two rows and so on.
    pub(crate) tiles: &'static [Tile<L>],
    /// The kernels for one row, two rows and so on, of a right operand as it lies.
    pub(crate) thin: &'static [Thin<L>; THIN],
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

/// A register of lanes.
trait Vector: Copy {
    type Lane: Copy;
    const LANES: usize;

    /// The same lane everywhere.
    ///
    /// # Safety
    ///
    /// The vector's instructions exist on this machine; so for all functions here.
    unsafe fn splat(lane: Self::Lane) -> Self;

    /// Zeros.
    ///
    /// # Safety
    ///
    /// See `splat`.
    unsafe fn zero() -> Self;

    /// Lanes from memory.
    ///
    /// # Safety
    ///
    /// See `splat`; there are so many lanes.
    unsafe fn load(from: *const Self::Lane) -> Self;

    /// Lanes to memory.
    ///
    /// # Safety
    ///
    /// See `splat`; there is room for so many lanes.
    unsafe fn store(self, to: *mut Self::Lane);

    /// The sum with another.
    ///
    /// # Safety
    ///
    /// See `splat`.
    unsafe fn add(self, other: Self) -> Self;

    /// The sum with a product.
    ///
    /// # Safety
    ///
    /// See `splat`.
    unsafe fn add_product(self, x: Self, y: Self) -> Self;
}

/// A vector that the compiler makes from what there is.
#[derive(Clone, Copy)]
struct Lanes<L, const N: usize>([L; N]);

impl<L: Lane + Pod, const N: usize> Vector for Lanes<L, N> {
    type Lane = L;
    const LANES: usize = N;
    #[inline(always)]
    unsafe fn splat(lane: L) -> Self {
        Lanes([lane; N])
    }
    #[inline(always)]
    unsafe fn zero() -> Self {
        Lanes([L::zeroed(); N])
    }
    #[inline(always)]
    unsafe fn load(from: *const L) -> Self {
        // SAFETY: the caller has so many lanes there.
        Lanes(unsafe { from.cast::<[L; N]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut L) {
        // SAFETY: the caller has room for so many lanes there.
        unsafe { to.cast::<[L; N]>().write_unaligned(self.0) };
    }
    #[inline(always)]
    unsafe fn add(mut self, other: Self) -> Self {
        for i in 0..N {
            self.0[i] = self.0[i].add(other.0[i]);
        }
        self
    }
    #[inline(always)]
    unsafe fn add_product(mut self, x: Self, y: Self) -> Self {
        for i in 0..N {
            self.0[i] = self.0[i].add(x.0[i].mul(y.0[i]));
        }
        self
    }
}

/// The registers of x86, with the names of their instructions.
#[cfg(target_arch = "x86_64")]
macro_rules! registers {
    ($($register:ident of $count:literal $lane:ident: $splat:ident $zero:ident $load:ident $store:ident $add:ident $fma:ident;)*) => {$(
        impl Vector for std::arch::x86_64::$register {
            type Lane = $lane;
            const LANES: usize = $count;
            #[inline(always)]
            unsafe fn splat(lane: $lane) -> Self {
                // SAFETY: the caller has checked that the instruction exists; so for all.
                unsafe { std::arch::x86_64::$splat(lane) }
            }
            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: see `splat`.
                unsafe { std::arch::x86_64::$zero() }
            }
            #[inline(always)]
            unsafe fn load(from: *const $lane) -> Self {
                // SAFETY: see `splat`; and the caller has so many lanes there.
                unsafe { std::arch::x86_64::$load(from) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $lane) {
                // SAFETY: see `splat`; and the caller has room for so many lanes there.
                unsafe { std::arch::x86_64::$store(to, self) }
            }
            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                // SAFETY: see `splat`.
                unsafe { std::arch::x86_64::$add(self, other) }
            }
            #[inline(always)]
            unsafe fn add_product(self, x: Self, y: Self) -> Self {
                // SAFETY: see `splat`.
                unsafe { std::arch::x86_64::$fma(x, y, self) }
            }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
registers! {
    __m512 of 16 f32: _mm512_set1_ps _mm512_setzero_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_add_ps _mm512_fmadd_ps;
    __m512d of 8 f64: _mm512_set1_pd _mm512_setzero_pd _mm512_loadu_pd _mm512_storeu_pd _mm512_add_pd _mm512_fmadd_pd;
    __m256 of 8 f32: _mm256_set1_ps _mm256_setzero_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_add_ps _mm256_fmadd_ps;
    __m256d of 4 f64: _mm256_set1_pd _mm256_setzero_pd _mm256_loadu_pd _mm256_storeu_pd _mm256_add_pd _mm256_fmadd_pd;
}

/// See [`Tile`].
///
/// # Safety
///
/// The operands hold the depth and the tile its rows, and the vector's instructions exist.
#[inline(always)]
unsafe fn tile<V: Vector, const R: usize>(
    depth: usize,
    (left, left_stride): (*const V::Lane, isize),
    (right, right_stride): (*const V::Lane, isize),
    (tile, stride): (*mut V::Lane, isize),
    add: bool,
) {
    // SAFETY: the caller vouches.
    unsafe {
        let mut sums = [[V::zero(); 2]; R];
        for p in 0..depth {
            let right = right.offset(p as isize * right_stride);
            let y = [V::load(right), V::load(right.add(V::LANES))];
            for (i, sums) in sums.iter_mut().enumerate() {
                let x = V::splat(*left.offset(i as isize * left_stride).add(p));
                *sums = [sums[0].add_product(x, y[0]), sums[1].add_product(x, y[1])];
            }
        }
        for (i, row) in sums.iter().enumerate() {
            for (j, sum) in row.iter().enumerate() {
                let to = tile.offset(i as isize * stride).add(j * V::LANES);
                if add { V::load(to).add(*sum) } else { *sum }.store(to);
            }
        }
    }
}

/// See [`Thin`]. Four rows of the right operand pass at a time, each from left to right as memory likes it.
///
/// # Safety
///
/// The operands hold the depth and the columns, and the vector's instructions exist.
#[inline(always)]
unsafe fn thin<V: Vector, const R: usize>(
    depth: usize,
    left: *const V::Lane,
    (right, right_stride): (*const V::Lane, isize),
    columns: usize,
    (sums, sums_stride): (*mut V::Lane, usize),
) {
    // SAFETY: the caller vouches.
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
                        *row = V::load(sums.add(i * sums_stride + j));
                    }
                }
                for q in 0..step {
                    let y = V::load(right.offset(q as isize * right_stride).add(j));
                    for (i, row) in rows.iter_mut().enumerate() {
                        *row = row.add_product(V::splat(*left.add(i * ROW + q)), y);
                    }
                }
                for (i, row) in rows.iter().enumerate() {
                    row.store(sums.add(i * sums_stride + j));
                }
            }
            p += step;
        }
    }
}

/// The functions above, compiled for some instructions, as tables.
macro_rules! compiled {
    ($tiles:ident $thins:ident $(#[$feature:meta])*) => {
        $(#[$feature])*
        unsafe fn $tiles<V: Vector, const R: usize>(
            depth: usize,
            left: (*const V::Lane, isize),
            right: (*const V::Lane, isize),
            to: (*mut V::Lane, isize),
            add: bool,
        ) {
            // SAFETY: the caller vouches.
            unsafe { tile::<V, R>(depth, left, right, to, add) }
        }

        $(#[$feature])*
        unsafe fn $thins<V: Vector, const R: usize>(
            depth: usize,
            left: *const V::Lane,
            right: (*const V::Lane, isize),
            columns: usize,
            sums: (*mut V::Lane, usize),
        ) {
            // SAFETY: the caller vouches.
            unsafe { thin::<V, R>(depth, left, right, columns, sums) }
        }
    };
}

compiled!(tile_plain thin_plain);
#[cfg(target_arch = "x86_64")]
compiled!(tile_avx2 thin_avx2 #[target_feature(enable = "avx2,fma")]);
#[cfg(target_arch = "x86_64")]
compiled!(tile_avx512 thin_avx512 #[target_feature(enable = "avx512f,avx2,fma")]);

macro_rules! kernels {
    ($vector:ty, $tile:ident, $thin:ident, $($rows:literal)*) => {
        const {
            &Kernels {
                width: 2 * <$vector as Vector>::LANES,
                lanes: <$vector as Vector>::LANES,
                tiles: &[$($tile::<$vector, $rows>),*],
                thin: &[$thin::<$vector, 1>, $thin::<$vector, 2>, $thin::<$vector, 3>, $thin::<$vector, 4>],
            }
        }
    };
}

/// Floats: what the vector units offer.
macro_rules! floats {
    ($($lane:ident: $wide:ident $narrow:ident;)*) => {$(
        impl Micro for $lane {
            fn kernels_for(isa: Isa) -> &'static Kernels<$lane> {
                #[cfg(target_arch = "x86_64")]
                use std::arch::x86_64::{$narrow, $wide};
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => kernels!($wide, tile_avx512, thin_avx512, 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => kernels!($narrow, tile_avx2, thin_avx2, 1 2 3 4 5 6),
                    Isa::Baseline => {
                        kernels!(Lanes<$lane, { 16 / size_of::<$lane>() }>, tile_plain, thin_plain, 1 2 3 4)
                    }
                }
            }
        }
    )*};
}

floats! {
    f32: __m512 __m256;
    f64: __m512d __m256d;
}

/// Integers and bools: what the compiler makes.
macro_rules! integers {
    ($($lane:ident)*) => {$(
        impl Micro for $lane {
            fn kernels_for(isa: Isa) -> &'static Kernels<$lane> {
                match isa {
                    Isa::Baseline => {
                        kernels!(Lanes<$lane, { 16 / size_of::<$lane>() }>, tile_plain, thin_plain, 1 2 3 4)
                    }
                    #[cfg(target_arch = "x86_64")]
                    _ => kernels!(Lanes<$lane, { 32 / size_of::<$lane>() }>, tile_avx2, thin_avx2, 1 2 3 4),
                }
            }
        }
    )*};
}

integers!(i8 i16 i32 i64 u8 u16 u32 u64 Bool);
