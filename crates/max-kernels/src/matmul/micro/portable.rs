//! Machines whose vector units are left to the compiler.

use max_core::small_float::{F8E4M3FN, F8E5M2};
use max_core::{Bool, bf16, f16};

use super::*;

macro_rules! narrow {
    ($($narrow:ident)*) => {$(
        impl Narrow for $narrow {
            fn kernels_for(_: Isa) -> &'static Kernels<f32, f32, $narrow> {
                plain_kernels!(Widened<Lanes<f32, 4>, $narrow>)
            }
        }
    )*};
}

narrow!(bf16 f16 F8E4M3FN F8E5M2);

plain_lanes!(f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 Bool);
no_dots!(bf16 i8 u8 i16 u16);
