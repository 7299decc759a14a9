//! The innermost loops of convolutions: small tiles of sums that stay in registers over all taps of a window.
//!
//! Every tile sums an element in the same order, from the first tap and channel of a window to the last, so that an
//! element has the same bits whichever tile computes it and whatever is computed with it.

use bytemuck::Zeroable;
use max_core::Bool;

#[cfg(target_arch = "x86_64")]
use super::rotate::Rotate;
use crate::matmul::Micro;
use crate::register::{Lanes, Register};
use crate::simd::Isa;

/// Room for any tile.
const TILE_BYTES: usize = 14 * 2 * 64;

/// Temporary memory for a tile that exceeds its destination.
#[repr(C, align(64))]
pub(super) struct Room([u8; TILE_BYTES]);

impl Default for Room {
    fn default() -> Room {
        Room([0; TILE_BYTES])
    }
}

impl Room {
    pub(super) fn lanes<L>(&mut self) -> *mut L {
        self.0.as_mut_ptr().cast()
    }
}

/// Stores or adds a part of a tile that was computed in a temporary.
///
/// # Safety
///
/// The part can be read and its destination written.
pub(super) unsafe fn place<L: Tiled>(
    (to, stride): (*mut L, isize),
    (from, width): (*const L, usize),
    [rows, columns]: [usize; 2],
    add: bool,
) {
    for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
        // SAFETY: guaranteed by the caller; destinations need not be aligned.
        unsafe {
            let (to, sum) = (to.offset(i as isize * stride).add(j), *from.add(i * width + j));
            to.write_unaligned(if add { to.read_unaligned().add(sum) } else { sum });
        }
    }
}

/// The input of a filter at a position: runs of elements in rows of taps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// The number of rows, and the distance between them.
    pub(super) rows: usize,
    pub(super) row: isize,
    /// The number of runs in a row, and the distance between them.
    pub(super) runs: usize,
    pub(super) run: isize,
    /// The number of elements of a run.
    pub(super) depth: usize,
    /// How many weights are skipped after each row.
    pub(super) skip: usize,
}

/// Computes a tile of positions and filters. The arguments are the window; the start of the first position's window and
/// the distance between positions; the weights and the distance between those of consecutive elements; the destination
/// and the distance between its rows; and whether to add to what is there.
pub(super) type Tile<L> = unsafe fn(&Window, (*const L, isize), (*const L, isize), (*mut L, isize), bool);

/// The tiles for a type on a vector unit, each for one position, two positions and so on.
pub(super) struct Tiles<L: 'static> {
    /// The lanes of a register.
    pub(super) lanes: usize,
    /// All filters read the same window: for one register of filters, and for two.
    pub(super) shared: [&'static [Tile<L>]; 2],
    /// Every filter reads its own elements, in the same layout as the weights: for one register of filters, and for
    /// two.
    pub(super) own: [&'static [Tile<L>]; 2],
}

/// A type that convolutions are computed in.
pub(crate) trait Tiled: Micro {
    /// The tiles for an instruction set.
    fn tiles_for(isa: Isa) -> &'static Tiles<Self>;

    /// The best tiles of this machine.
    fn tiles() -> &'static Tiles<Self> {
        Self::tiles_for(Isa::best())
    }

    /// Tiles for groups of `group` filters, each of which reads all `group` elements side by side, if this machine has
    /// them: of one register of filters, for one position, two positions and so on. Each element has `group` rows of
    /// weights: the first for the elements as they are, the next for the elements rotated by one place, and so on.
    fn rotated(_group: usize) -> Option<&'static [Tile<Self>]> {
        None
    }
}

/// See [`Tile`]: `P` positions and `N` registers of filters, which read the same elements or, if `OWN`, each its own.
///
/// # Safety
///
/// Windows and weights can be read and the tile written, and the register's instructions exist.
#[inline(always)]
unsafe fn tile<V: Register<Lane: Zeroable>, const P: usize, const N: usize, const OWN: bool>(
    window: &Window,
    (left, position): (*const V::Lane, isize),
    (mut weights, step): (*const V::Lane, isize),
    (to, stride): (*mut V::Lane, isize),
    add: bool,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut sums = [[V::splat(V::Lane::zeroed()); N]; P];
        for row in 0..window.rows {
            for run in 0..window.runs {
                let left = left.offset(row as isize * window.row + run as isize * window.run);
                for p in 0..window.depth {
                    let mut y = [V::splat(V::Lane::zeroed()); N];
                    for (j, y) in y.iter_mut().enumerate() {
                        *y = V::load(weights.add(j * V::LANES));
                    }
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let left = left.offset(i as isize * position);
                        for (j, sum) in sums.iter_mut().enumerate() {
                            let x = if OWN {
                                V::load(left.offset(p as isize * step).add(j * V::LANES))
                            } else {
                                V::splat(*left.add(p))
                            };
                            *sum = sum.add_product(x, y[j]);
                        }
                    }
                    weights = weights.offset(step);
                }
            }
            weights = weights.wrapping_offset(window.skip as isize * step);
        }
        for (i, row) in sums.iter().enumerate() {
            for (j, sum) in row.iter().enumerate() {
                let to = to.offset(i as isize * stride).add(j * V::LANES);
                if add { V::load(to).add(*sum) } else { *sum }.store(to);
            }
        }
    }
}

/// See [`Tiled::rotated`]: `P` positions and groups of `G`.
///
/// # Safety
///
/// As for `tile`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn rotated<V: Rotate<Lane: Zeroable>, const P: usize, const G: usize>(
    window: &Window,
    (left, position): (*const V::Lane, isize),
    (mut weights, step): (*const V::Lane, isize),
    (to, stride): (*mut V::Lane, isize),
    add: bool,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut sums = [V::splat(V::Lane::zeroed()); P];
        for row in 0..window.rows {
            for run in 0..window.runs {
                let left = left.offset(row as isize * window.row + run as isize * window.run);
                let mut x = [V::splat(V::Lane::zeroed()); P];
                for (i, x) in x.iter_mut().enumerate() {
                    *x = V::load(left.offset(i as isize * position));
                }
                for by in 0..G {
                    let y = V::load(weights);
                    for (sum, x) in sums.iter_mut().zip(x) {
                        *sum = sum.add_product(x.rotate::<G>(by), y);
                    }
                    weights = weights.offset(step);
                }
            }
            weights = weights.wrapping_offset((window.skip * G) as isize * step);
        }
        for (i, sum) in sums.iter().enumerate() {
            let to = to.offset(i as isize * stride);
            if add { V::load(to).add(*sum) } else { *sum }.store(to);
        }
    }
}

/// The function `tile`, compiled for some instructions.
macro_rules! compiled {
    ($name:ident $(#[$feature:meta])*) => {
        $(#[$feature])*
        unsafe fn $name<V: Register<Lane: Zeroable>, const P: usize, const N: usize, const OWN: bool>(
            window: &Window,
            left: (*const V::Lane, isize),
            weights: (*const V::Lane, isize),
            to: (*mut V::Lane, isize),
            add: bool,
        ) {
            // SAFETY: guaranteed by the caller.
            unsafe { tile::<V, P, N, OWN>(window, left, weights, to, add) }
        }
    };
}

compiled!(plain);
#[cfg(target_arch = "x86_64")]
compiled!(avx2 #[target_feature(enable = "avx2,fma")]);
#[cfg(target_arch = "x86_64")]
compiled!(avx512 #[target_feature(enable = "avx512f,avx2,fma")]);

macro_rules! tiles {
    ($register:ty, $tile:ident, $($positions:literal)*; $($few:literal)*) => {
        const {
            &Tiles {
                lanes: <$register as Register>::LANES,
                shared: [
                    &[$($tile::<$register, $positions, 1, false>),*],
                    &[$($tile::<$register, $positions, 2, false>),*],
                ],
                own: [&[$($tile::<$register, $few, 1, true>),*], &[$($tile::<$register, $few, 2, true>),*]],
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! rotated {
    ($tile:ident, $register:ty, $group:literal) => {
        const {
            &[
                $tile::<$register, 1, $group> as Tile<_>,
                $tile::<$register, 2, $group>,
                $tile::<$register, 3, $group>,
                $tile::<$register, 4, $group>,
                $tile::<$register, 5, $group>,
                $tile::<$register, 6, $group>,
                $tile::<$register, 7, $group>,
                $tile::<$register, 8, $group>,
            ]
        }
    };
}

/// Floats, with the registers of the vector units.
macro_rules! floats {
    ($($lane:ident: $wide:ident $narrow:ident $($rotated:ident)?;)*) => {$(
        impl Tiled for $lane {
            $(#[cfg(target_arch = "x86_64")]
            fn rotated(group: usize) -> Option<&'static [Tile<$lane>]> {
                use std::arch::x86_64::$wide;
                match (Isa::best(), group) {
                    (Isa::Avx512, 2) => Some(rotated!($rotated, $wide, 2)),
                    (Isa::Avx512, 4) => Some(rotated!($rotated, $wide, 4)),
                    (Isa::Avx512, 8) => Some(rotated!($rotated, $wide, 8)),
                    _ => None,
                }
            })?

            fn tiles_for(isa: Isa) -> &'static Tiles<$lane> {
                #[cfg(target_arch = "x86_64")]
                use std::arch::x86_64::{$narrow, $wide};
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => tiles!($wide, avx512, 1 2 3 4 5 6 7 8 9 10 11 12 13 14; 1 2 3 4 5 6 7 8),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => tiles!($narrow, avx2, 1 2 3 4 5 6; 1 2 3 4 5 6),
                    Isa::Baseline => tiles!(Lanes<$lane, { 16 / size_of::<$lane>() }>, plain, 1 2 3 4; 1 2 3 4),
                }
            }
        }
    )*};
}

floats! {
    f32: __m512 __m256 rotated;
    f64: __m512d __m256d;
}

/// Integers and bools, vectorized by the compiler.
macro_rules! integers {
    ($($lane:ident)*) => {$(
        impl Tiled for $lane {
            fn tiles_for(isa: Isa) -> &'static Tiles<$lane> {
                match isa {
                    Isa::Baseline => tiles!(Lanes<$lane, { 16 / size_of::<$lane>() }>, plain, 1 2 3 4; 1 2 3 4),
                    #[cfg(target_arch = "x86_64")]
                    _ => tiles!(Lanes<$lane, { 32 / size_of::<$lane>() }>, avx2, 1 2 3 4; 1 2 3 4),
                }
            }
        }
    )*};
}

integers!(i8 i16 i32 i64 u8 u16 u32 u64 Bool);
