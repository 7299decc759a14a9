//! The vectors of x86-64.

#[path = "amx.rs"]
mod amx;

use std::arch::x86_64::*;
use std::marker::PhantomData;

use max_core::small_float::{F8E4M3FN, F8E5M2};
use max_core::{Bool, bf16, f16};

use super::*;
use crate::simd::amx::is_there;

compiled!(tile_avx2 thin_avx2 #[target_feature(enable = "avx2,fma,f16c")]);
compiled!(tile_avx512 thin_avx512 #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]);
compiled!(tile_bf16 thin_bf16 #[target_feature(enable = "avx512f,avx512bf16,avx2,fma")]);
compiled!(tile_vnni thin_vnni #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")]);

/// A table of kernels for AVX-512, with its thirty-two registers.
macro_rules! avx512 {
    ($vector:ty, $tile:ident, $thin:ident) => {
        kernels!($vector, $tile, $thin, 1 2 3 4 5 6 7 8 9 10 11 12 13 14)
    };
}

/// A table of kernels for AVX2, with its sixteen registers.
macro_rules! avx2 {
    ($vector:ty) => {
        kernels!($vector, tile_avx2, thin_avx2, 1 2 3 4 5 6)
    };
}

/// How narrow floats are widened to registers of f32.
macro_rules! widened {
    ($($narrow:ident to $register:ident: |$from:ident| $body:expr;)*) => {$(
        impl Widen<$register> for $narrow {
            #[inline(always)]
            unsafe fn widen($from: *const $narrow) -> $register {
                // SAFETY: the caller has checked that the instructions exist, and that the elements can be read.
                unsafe { $body }
            }
        }
    )*};
}

widened! {
    bf16 to __m512: |from| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()))));
    bf16 to __m256: |from| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()))));
    f16 to __m512: |from| _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
    f16 to __m256: |from| _mm256_cvtph_ps(_mm_loadu_si128(from.cast()));
    F8E5M2 to __m512: |from| _mm512_cvtph_ps(_mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast()))));
    F8E5M2 to __m256: |from| _mm256_cvtph_ps(_mm_slli_epi16::<8>(_mm_cvtepu8_epi16(_mm_loadl_epi64(from.cast()))));
    F8E4M3FN to __m512: |from| widen_e4m3(_mm_loadu_si128(from.cast()));
    F8E4M3FN to __m256: |from| widen_half_e4m3(_mm_loadl_epi64(from.cast()));
}

/// The bits of float8_e4m3fn that a float16 has too, after a shift. Exponents are lower there, by a factor of
/// [`E4M3_FACTOR`].
const E4M3_BITS: i16 = 0xbf80_u16.cast_signed();
const E4M3_FACTOR: f32 = 256.0;

/// What carries into the highest bit of the exponent from the bits of NaN only. With that bit, they are NaN in float16 too.
const E4M3_CARRY: i16 = 0x80;
const HIGHEST_EXPONENT: i16 = 0x4000;

/// # Safety
///
/// The instructions of AVX-512 exist.
#[inline(always)]
unsafe fn widen_e4m3(bytes: __m128i) -> __m512 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let shifted = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(bytes));
        let bits = _mm256_and_si256(shifted, _mm256_set1_epi16(E4M3_BITS));
        let carried = _mm256_add_epi16(bits, _mm256_set1_epi16(E4M3_CARRY));
        let nan = _mm256_and_si256(carried, _mm256_set1_epi16(HIGHEST_EXPONENT));
        let small = _mm512_cvtph_ps(_mm256_add_epi16(bits, nan));
        _mm512_mul_ps(small, _mm512_set1_ps(E4M3_FACTOR))
    }
}

/// # Safety
///
/// The instructions of AVX2 exist.
#[inline(always)]
unsafe fn widen_half_e4m3(bytes: __m128i) -> __m256 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let shifted = _mm_slli_epi16::<7>(_mm_cvtepi8_epi16(bytes));
        let bits = _mm_and_si128(shifted, _mm_set1_epi16(E4M3_BITS));
        let carried = _mm_add_epi16(bits, _mm_set1_epi16(E4M3_CARRY));
        let nan = _mm_and_si128(carried, _mm_set1_epi16(HIGHEST_EXPONENT));
        let small = _mm256_cvtph_ps(_mm_add_epi16(bits, nan));
        _mm256_mul_ps(small, _mm256_set1_ps(E4M3_FACTOR))
    }
}

macro_rules! floats {
    ($($lane:ident: $wide:ident $narrow:ident;)*) => {$(
        impl Micro for $lane {
            fn kernels_for(isa: Isa) -> &'static Kernels<$lane> {
                match isa {
                    Isa::Avx512 => avx512!($wide, tile_avx512, thin_avx512),
                    Isa::Avx2 => avx2!($narrow),
                    Isa::Baseline => plain_kernels!(Lanes<$lane, { 16 / size_of::<$lane>() }>),
                }
            }
        }
    )*};
}

floats! {
    f32: __m512 __m256;
    f64: __m512d __m256d;
}

macro_rules! narrow {
    ($($narrow:ident)*) => {$(
        impl Narrow for $narrow {
            fn kernels_for(isa: Isa) -> &'static Kernels<f32, f32, $narrow> {
                match isa {
                    Isa::Avx512 => avx512!(Widened<__m512, $narrow>, tile_avx512, thin_avx512),
                    Isa::Avx2 => avx2!(Widened<__m256, $narrow>),
                    Isa::Baseline => plain_kernels!(Widened<Lanes<f32, 4>, $narrow>),
                }
            }
        }
    )*};
}

narrow!(bf16 f16 F8E4M3FN F8E5M2);

/// Integers and bools, vectorized by the compiler.
macro_rules! integers {
    ($($lane:ident)*) => {$(
        impl Micro for $lane {
            fn kernels_for(isa: Isa) -> &'static Kernels<$lane> {
                match isa {
                    Isa::Baseline => plain_kernels!(Lanes<$lane, { 16 / size_of::<$lane>() }>),
                    _ => kernels!(Lanes<$lane, { 32 / size_of::<$lane>() }>, tile_avx2, thin_avx2, 1 2 3 4),
                }
            }
        }
    )*};
}

integers!(i8 i16 i32 i64 u8 u16 u32 u64 Bool);

/// Sums of sixteen lanes whose steps multiply and add several elements along the depth, four bytes of each operand.
#[derive(Clone, Copy)]
struct Dots<R, L>(R, PhantomData<L>);

macro_rules! dots {
    ($($register:ident as $($lane:ident)+: $zero:ident, $load:expr, $store:expr, $add:ident, $dot:expr;)*) => {$($(
        impl Vector for Dots<$register, $lane> {
            type Lane = $lane;
            type Left = u32;
            type Right = u32;
            type Operand = __m512i;
            const LANES: usize = 16;
            #[inline(always)]
            unsafe fn splat(from: u32) -> __m512i {
                // SAFETY: the caller has checked that the instruction exists; likewise below.
                unsafe { _mm512_set1_epi32(from.cast_signed()) }
            }
            #[inline(always)]
            unsafe fn fetch(from: *const u32) -> __m512i {
                // SAFETY: see `splat`; and the caller guarantees that the elements can be read.
                unsafe { _mm512_loadu_si512(from.cast()) }
            }
            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: see `splat`.
                Dots(unsafe { $zero() }, PhantomData)
            }
            #[inline(always)]
            unsafe fn load(from: *const $lane) -> Self {
                // SAFETY: see `splat`; and the caller guarantees that the lanes can be read.
                Dots(unsafe { $load(from.cast()) }, PhantomData)
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $lane) {
                // SAFETY: see `splat`; and the caller guarantees that the lanes can be written.
                unsafe { $store(to.cast(), self.0) }
            }
            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                // SAFETY: see `splat`.
                Dots(unsafe { $add(self.0, other.0) }, PhantomData)
            }
            #[inline(always)]
            unsafe fn add_product(self, x: __m512i, y: __m512i) -> Self {
                // SAFETY: see `splat`.
                Dots(unsafe { $dot(self.0, x, y) }, PhantomData)
            }
        }
    )+)*};
}

// Sums of integers wrap, so their low bits are right whether operands are treated as signed or not.
dots! {
    __m512 as f32: _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, dot_bf16;
    __m512i as i16 u16: _mm512_setzero_si512, load_shorts, store_shorts, _mm512_add_epi32, _mm512_dpwssd_epi32;
    __m512i as i8 u8: _mm512_setzero_si512, load_bytes, store_bytes, _mm512_add_epi32, _mm512_dpbusd_epi32;
}

#[inline(always)]
unsafe fn dot_bf16(sum: __m512, x: __m512i, y: __m512i) -> __m512 {
    // SAFETY: the caller has checked that the instruction exists; registers are bits.
    unsafe {
        _mm512_dpbf16_ps(
            sum,
            std::mem::transmute::<__m512i, __m512bh>(x),
            std::mem::transmute::<__m512i, __m512bh>(y),
        )
    }
}

#[inline(always)]
unsafe fn load_shorts(from: *const __m256i) -> __m512i {
    // SAFETY: the caller guarantees the instructions and the memory; so below.
    unsafe { _mm512_cvtepi16_epi32(_mm256_loadu_si256(from)) }
}

#[inline(always)]
unsafe fn store_shorts(to: *mut __m256i, sums: __m512i) {
    // SAFETY: as above.
    unsafe { _mm256_storeu_si256(to, _mm512_cvtepi32_epi16(sums)) }
}

#[inline(always)]
unsafe fn load_bytes(from: *const __m128i) -> __m512i {
    // SAFETY: as above.
    unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(from)) }
}

#[inline(always)]
unsafe fn store_bytes(to: *mut __m128i, sums: __m512i) {
    // SAFETY: as above.
    unsafe { _mm_storeu_si128(to, _mm512_cvtepi32_epi8(sums)) }
}

impl Dot for bf16 {
    fn dots() -> Option<&'static Kernels<f32, u32, u32>> {
        if is_there() {
            return Some(amx::kernels());
        }
        (Isa::best() == Isa::Avx512 && is_x86_feature_detected!("avx512bf16"))
            .then_some(avx512!(Dots<__m512, f32>, tile_bf16, thin_bf16))
    }
}

macro_rules! integer_dots {
    ($($lane:ident $(: $amx:ident)?)*) => {$(
        impl Dot for $lane {
            fn dots() -> Option<&'static Kernels<$lane, u32, u32>> {
                $(if is_there() {
                    return Some($amx::kernels());
                })?
                (Isa::best() == Isa::Avx512 && is_x86_feature_detected!("avx512vnni"))
                    .then_some(avx512!(Dots<__m512i, $lane>, tile_vnni, thin_vnni))
            }
        }
    )*};
}

integer_dots!(i16 u16 i8: amx u8: amx);
