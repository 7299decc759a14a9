//! The vectors of 64-bit ARM: NEON, which is always available.

use std::arch::aarch64::*;

use max_core::small_float::{F8E4M3FN, F8E5M2};
use max_core::{Bool, bf16, f16};

use super::*;

/// A table of kernels for NEON, with its thirty-two registers.
macro_rules! neon {
    ($vector:ty) => {
        kernels!($vector, tile_plain, thin_plain, 1 2 3 4 5 6 7 8 9 10 11 12)
    };
}

impl Widen<float32x4_t> for bf16 {
    #[inline(always)]
    unsafe fn widen(from: *const bf16) -> float32x4_t {
        // SAFETY: NEON is always available, and the caller guarantees that the elements can be read.
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.cast()))) }
    }
}

macro_rules! one_by_one {
    ($($narrow:ident)*) => {$(
        impl Widen<float32x4_t> for $narrow {
            #[inline(always)]
            unsafe fn widen(from: *const $narrow) -> float32x4_t {
                // SAFETY: as above.
                unsafe { vld1q_f32(from.cast::<[$narrow; 4]>().read_unaligned().map($narrow::to_f32).as_ptr()) }
            }
        }
    )*};
}

one_by_one!(f16 F8E4M3FN F8E5M2);

macro_rules! floats {
    ($($lane:ident $register:ident)*) => {$(
        impl Micro for $lane {
            fn kernels_for(_: Isa) -> &'static Kernels<$lane> {
                neon!($register)
            }
        }
    )*};
}

floats!(f32 float32x4_t f64 float64x2_t);

macro_rules! narrow {
    ($($narrow:ident)*) => {$(
        impl Narrow for $narrow {
            fn kernels_for(_: Isa) -> &'static Kernels<f32, f32, $narrow> {
                neon!(Widened<float32x4_t, $narrow>)
            }
        }
    )*};
}

narrow!(bf16 f16 F8E4M3FN F8E5M2);

plain_lanes!(i8 i16 i32 i64 u8 u16 u32 u64 Bool);
no_dots!(bf16 i8 u8 i16 u16);
