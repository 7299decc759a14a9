//! x86-64: AVX-512, AVX2 with FMA, and what every such machine has.

use std::arch::x86_64::*;

use super::LINE;

/// An instruction set for which code is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    Avx512,
    Avx2,
    Baseline,
}

impl Isa {
    /// Those of this machine, the best first.
    pub(crate) fn available() -> Vec<Isa> {
        let avx2 = std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma");
        let avx512 = avx2
            && std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512dq")
            && std::arch::is_x86_feature_detected!("avx512vl");
        let present = [(Isa::Avx512, avx512), (Isa::Avx2, avx2), (Isa::Baseline, true)];
        present.into_iter().filter_map(|(isa, there)| there.then_some(isa)).collect()
    }
}

/// Compiles `Body::run::<FMA>` for each instruction set: `versions!(name: Trait, fn(arg: type, ..))` makes a function
/// `name::<Body>(isa)` that gives the version for one.
macro_rules! versions {
    ($name:ident: $body:path, fn($($arg:ident: $type:ty),*)) => {
        fn $name<B: $body>(isa: $crate::simd::Isa) -> unsafe fn($($type),*) {
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            unsafe fn avx512<B: $body>($($arg: $type),*) {
                // SAFETY: as for the function around it.
                unsafe { B::run::<true>($($arg),*) }
            }
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2<B: $body>($($arg: $type),*) {
                // SAFETY: as for the function around it.
                unsafe { B::run::<true>($($arg),*) }
            }
            match isa {
                $crate::simd::Isa::Avx512 => avx512::<B>,
                $crate::simd::Isa::Avx2 => avx2::<B>,
                $crate::simd::Isa::Baseline => B::run::<false>,
            }
        }
    };
}
pub(crate) use versions;

/// Copies a cache line past the caches. Others see it after a [`fence`].
///
/// # Safety
///
/// Both are valid for a line; `dst` is aligned to it.
#[inline(always)]
pub(crate) unsafe fn stream_line(dst: *mut u8, src: *const u8) {
    for part in (0..LINE).step_by(size_of::<__m128i>()) {
        // SAFETY: the part is inside the line, and aligned because the line is; SSE2 is always there.
        unsafe { _mm_stream_si128(dst.add(part).cast(), _mm_loadu_si128(src.add(part).cast())) }
    }
}

/// Makes streamed lines visible before anything that is written later.
pub(crate) fn fence() {
    // SAFETY: SSE is always there.
    unsafe { _mm_sfence() }
}

/// Asks for a cache line that will be read, into the second cache; any address will do.
#[inline(always)]
pub(crate) fn prefetch(line: *const u8) {
    // SAFETY: SSE is always there, and asking for memory that does not exist has no effect.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
}

/// Sixteen bytes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Vector(__m128i);

impl Default for Vector {
    #[inline(always)]
    fn default() -> Vector {
        Vector(bytemuck::Zeroable::zeroed())
    }
}

/// Elements that two vectors of them can interleave.
pub(crate) trait Interleave: Copy {
    /// The elements of two vectors in turn, in two vectors.
    fn interleave(a: Vector, b: Vector) -> [Vector; 2];
}

macro_rules! interleave {
    ($($type:ident: $low:ident, $high:ident;)*) => {$(
        impl Interleave for $type {
            #[inline(always)]
            fn interleave(a: Vector, b: Vector) -> [Vector; 2] {
                // SAFETY: SSE2 is always there.
                unsafe { [Vector($low(a.0, b.0)), Vector($high(a.0, b.0))] }
            }
        }
    )*};
}
interleave! {
    u8: _mm_unpacklo_epi8, _mm_unpackhi_epi8;
    u16: _mm_unpacklo_epi16, _mm_unpackhi_epi16;
    u32: _mm_unpacklo_epi32, _mm_unpackhi_epi32;
    u64: _mm_unpacklo_epi64, _mm_unpackhi_epi64;
}
