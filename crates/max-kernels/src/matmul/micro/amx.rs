//! Tiles of matmuls by AMX.

use std::arch::asm;

use super::{Kernels, Soon, THIN, Thin, Tile};
use crate::simd::amx::{SIDE, Shapes, release};
use crate::simd::{LINE, prefetch};

/// The rows and the columns of a tile of sums: two registers each way.
const ROWS: usize = 2 * SIDE;

/// A type of sums in memory, converted from the bits of a sum in a register.
pub(super) trait Sums: Copy + 'static {
    /// Whether operands are bf16 rather than bytes.
    const BF16: bool;
    fn from_bits(bits: u32) -> Self;
    fn plus(self, other: Self) -> Self;
}

impl Sums for f32 {
    const BF16: bool = true;
    #[inline(always)]
    fn from_bits(bits: u32) -> f32 {
        f32::from_bits(bits)
    }
    #[inline(always)]
    fn plus(self, other: f32) -> f32 {
        self + other
    }
}

macro_rules! bytes {
    ($($lane:ident)*) => {$(
        impl Sums for $lane {
            const BF16: bool = false;
            #[inline(always)]
            fn from_bits(bits: u32) -> $lane {
                bits as $lane
            }
            #[inline(always)]
            fn plus(self, other: $lane) -> $lane {
                self.wrapping_add(other)
            }
        }
    )*};
}
bytes!(i8 u8);

/// For sums of `rows` rows: registers 0 to 3 are sums, 4 and 5 rows of the left operand, 6 and 7 columns of the right one.
const fn shapes(rows: usize) -> Shapes {
    const fn shape(rows: usize) -> (usize, usize) {
        (rows, if rows > 0 { 4 * SIDE } else { 0 })
    }
    let top = shape(if rows < SIDE { rows } else { SIDE });
    let bottom = shape(rows - top.0);
    Shapes::new([top, top, bottom, bottom, top, bottom, shape(SIDE), shape(SIDE)])
}

/// One step of a tile of `R` rows, over a whole register of the depth; strides are in bytes.
///
/// # Safety
///
/// The registers have their shapes, and the operands can be read.
#[inline(always)]
unsafe fn step<L: Sums, const R: usize>(
    left: *const u8,
    left_stride: isize,
    right: *const u8,
    right_stride: isize,
) {
    // SAFETY: guaranteed by the caller; no memory is written.
    unsafe {
        asm!("tileloadd tmm4, [{} + {}*1]", in(reg) left, in(reg) left_stride, options(nostack, readonly, preserves_flags));
        asm!("tileloadd tmm6, [{} + {}*1]", in(reg) right, in(reg) right_stride, options(nostack, readonly, preserves_flags));
        asm!("tileloadd tmm7, [{} + {}*1]", in(reg) right.add(64), in(reg) right_stride, options(nostack, readonly, preserves_flags));
        if L::BF16 {
            asm!(
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                options(nostack, nomem, preserves_flags)
            );
        } else {
            asm!(
                "tdpbuud tmm0, tmm4, tmm6",
                "tdpbuud tmm1, tmm4, tmm7",
                options(nostack, nomem, preserves_flags)
            );
        }
        if R > SIDE {
            let left = left.offset(SIDE as isize * left_stride);
            asm!("tileloadd tmm5, [{} + {}*1]", in(reg) left, in(reg) left_stride, options(nostack, readonly, preserves_flags));
            if L::BF16 {
                asm!(
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    options(nostack, nomem, preserves_flags)
                );
            } else {
                asm!(
                    "tdpbuud tmm2, tmm5, tmm6",
                    "tdpbuud tmm3, tmm5, tmm7",
                    options(nostack, nomem, preserves_flags)
                );
            }
        }
    }
}

/// See [`Tile`].
///
/// # Safety
///
/// AMX is available; the operands can be read over the depth, and the tile can be written.
unsafe fn tile<L: Sums, const R: usize>(
    depth: usize,
    (left, left_stride): (*const u32, isize),
    (right, right_stride): (*const u32, isize),
    add: Option<(*const L, isize)>,
    (to, stride): (*mut L, isize),
    (soon, pace): Soon,
) {
    #[repr(C, align(64))]
    struct Sums([[u32; ROWS]; ROWS]);
    let shapes = const { &shapes(R) };
    let mut sums = Sums([[0; ROWS]; ROWS]);
    // SAFETY: guaranteed by the caller; the remainder of the depth is copied to a buffer from which whole registers can
    // be read.
    unsafe {
        shapes.set();
        asm!("tilezero tmm0", "tilezero tmm1", options(nostack, nomem, preserves_flags));
        if R > SIDE {
            asm!("tilezero tmm2", "tilezero tmm3", options(nostack, nomem, preserves_flags));
        }
        let whole = depth - depth % SIDE;
        for p in (0..whole).step_by(SIDE) {
            let soon = soon.wrapping_offset(p as isize * pace);
            for at in (0..SIDE * pace.unsigned_abs()).step_by(LINE) {
                prefetch(soon.wrapping_add(at));
            }
            let right = right.offset(p as isize * right_stride);
            step::<L, R>(left.add(p).cast(), left_stride * 4, right.cast(), right_stride * 4);
        }
        if whole < depth {
            let (mut x, mut y) = ([[0u32; SIDE]; ROWS], [[0u32; ROWS]; SIDE]);
            for (i, row) in x[..R].iter_mut().enumerate() {
                let from = left.offset(i as isize * left_stride).add(whole);
                (0..depth - whole).for_each(|p| row[p] = from.add(p).read_unaligned());
            }
            for (p, row) in y[..depth - whole].iter_mut().enumerate() {
                *row =
                    right.offset((whole + p) as isize * right_stride).cast::<[u32; ROWS]>().read_unaligned();
            }
            step::<L, R>(x.as_ptr().cast(), 64, y.as_ptr().cast(), 128);
        }
        let (start, apart) = (sums.0.as_mut_ptr().cast::<u8>(), 4 * ROWS);
        asm!("tilestored [{} + {}*1], tmm0", in(reg) start, in(reg) apart, options(nostack, preserves_flags));
        asm!("tilestored [{} + {}*1], tmm1", in(reg) start.add(64), in(reg) apart, options(nostack, preserves_flags));
        if R > SIDE {
            let start = start.add(SIDE * apart);
            asm!("tilestored [{} + {}*1], tmm2", in(reg) start, in(reg) apart, options(nostack, preserves_flags));
            asm!("tilestored [{} + {}*1], tmm3", in(reg) start.add(64), in(reg) apart, options(nostack, preserves_flags));
        }
        release();
        for (i, row) in sums.0[..R].iter().enumerate() {
            let to = to.offset(i as isize * stride);
            for (j, &bits) in row.iter().enumerate() {
                let sum = L::from_bits(bits);
                to.add(j).write_unaligned(match add {
                    Some((tile, stride)) => {
                        tile.offset(i as isize * stride).add(j).read_unaligned().plus(sum)
                    }
                    None => sum,
                });
            }
        }
    }
}

/// See [`Thin`]: operands packed in groups are never read in place.
unsafe fn thin<L>(_: usize, _: (*const u32, isize), _: (*const u32, isize), _: usize, _: (*mut L, isize)) {
    unreachable!("groups of elements are packed")
}

macro_rules! tiles {
    ($($rows:literal)*) => { &[$(tile::<L, $rows>),*] };
}

/// The kernels of a type of sums.
pub(super) fn kernels<L: Sums>() -> &'static Kernels<L, u32, u32> {
    struct Table<L>(std::marker::PhantomData<L>);
    impl<L: Sums> Table<L> {
        const TILES: &'static [Tile<L, u32, u32>] =
            tiles!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
        const THIN: &'static [Thin<L, u32, u32>; THIN] = &[thin::<L>; THIN];
        const ALL: &'static Kernels<L, u32, u32> =
            &Kernels { width: ROWS, lanes: ROWS, tiles: Self::TILES, narrow: Self::TILES, thin: Self::THIN };
    }
    Table::<L>::ALL
}
