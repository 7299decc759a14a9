//! x86-64: AVX-512, AVX2 with FMA, and the baseline, SSE2.

use std::arch::x86_64::*;

use super::{Interleave, LINE, TransposeBlock};

/// An instruction set for which code is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    Avx512,
    Avx2,
    Baseline,
}

impl Isa {
    /// The instruction sets of this machine, best first.
    pub(crate) fn available() -> Vec<Isa> {
        let avx2 = std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("f16c");
        let avx512 = avx2
            && std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512dq")
            && std::arch::is_x86_feature_detected!("avx512vl");
        let present = [(Isa::Avx512, avx512), (Isa::Avx2, avx2), (Isa::Baseline, true)];
        present.into_iter().filter_map(|(isa, there)| there.then_some(isa)).collect()
    }

    /// The same with vectors of at most 32 bytes, for code that the compiler vectorizes badly with longer ones.
    pub(crate) fn shorter(self) -> Isa {
        if self == Isa::Avx512 { Isa::Avx2 } else { self }
    }
}

/// Compiles `Body::run::<FMA>` for each instruction set: `versions!(name: Trait, fn(arg: type, ..))` makes a function
/// `name::<Body>(isa)` that returns the version for one.
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

/// Copies a cache line past the caches. Other threads see it after a [`fence`].
///
/// # Safety
///
/// `src` can be read and `dst` written for a line; they do not overlap, and `dst` is aligned to a line.
#[inline(always)]
pub(crate) unsafe fn stream_line(dst: *mut u8, src: *const u8) {
    for part in (0..LINE).step_by(size_of::<__m128i>()) {
        // SAFETY: the part is inside the line, and aligned because the line is; SSE2 is always available.
        unsafe { _mm_stream_si128(dst.add(part).cast(), _mm_loadu_si128(src.add(part).cast())) }
    }
}

/// Makes streamed lines visible before anything that is written later.
pub(crate) fn fence() {
    // SAFETY: SSE is always available.
    unsafe { _mm_sfence() }
}

/// Prefetches a cache line into the L2 cache; the address may be invalid.
#[inline(always)]
pub(crate) fn prefetch(line: *const u8) {
    // SAFETY: SSE is always available, and prefetching an invalid address has no effect.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
}

/// Prefetches a cache line into all caches; the address may be invalid.
#[inline(always)]
pub(crate) fn prefetch_near(line: *const u8) {
    // SAFETY: SSE is always available, and prefetching an invalid address has no effect.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
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

macro_rules! interleave {
    ($($type:ident: $low:ident, $high:ident $(, $transpose:ident)?;)*) => {$(
        impl Interleave for $type {
            #[inline(always)]
            fn interleave(a: Vector, b: Vector) -> [Vector; 2] {
                // SAFETY: SSE2 is always available.
                unsafe { [Vector($low(a.0, b.0)), Vector($high(a.0, b.0))] }
            }
            $(fn transpose_lines() -> Option<TransposeBlock<$type>> {
                (Isa::best() == Isa::Avx512).then_some($transpose as TransposeBlock<$type>)
            })?
        }
    )*};
}
interleave! {
    u8: _mm_unpacklo_epi8, _mm_unpackhi_epi8;
    u16: _mm_unpacklo_epi16, _mm_unpackhi_epi16;
    u32: _mm_unpacklo_epi32, _mm_unpackhi_epi32, transpose_16;
    u64: _mm_unpacklo_epi64, _mm_unpackhi_epi64;
}

/// Transposes a block of 16 x 16 elements.
///
/// # Safety
///
/// AVX-512 is available; `src` can be read and `dst` written for a block.
#[target_feature(enable = "avx512f")]
unsafe fn transpose_16(dst: *mut u32, dst_stride: usize, src: *const u32, src_stride: isize) {
    let zero = _mm512_setzero_ps();
    let mut rows = [zero; 16];
    for (r, row) in rows.iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller.
        *row = unsafe { _mm512_loadu_ps(src.offset(r as isize * src_stride).cast()) };
    }
    // Quarters of four rows each: every 128-bit lane has one column of the four rows.
    let mut quarters = [zero; 16];
    for g in 0..4 {
        let [a, b, c, d] = [rows[4 * g], rows[4 * g + 1], rows[4 * g + 2], rows[4 * g + 3]];
        let halves = [
            _mm512_castps_pd(_mm512_unpacklo_ps(a, b)),
            _mm512_castps_pd(_mm512_unpacklo_ps(c, d)),
            _mm512_castps_pd(_mm512_unpackhi_ps(a, b)),
            _mm512_castps_pd(_mm512_unpackhi_ps(c, d)),
        ];
        quarters[4 * g] = _mm512_castpd_ps(_mm512_unpacklo_pd(halves[0], halves[1]));
        quarters[4 * g + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(halves[0], halves[1]));
        quarters[4 * g + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(halves[2], halves[3]));
        quarters[4 * g + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(halves[2], halves[3]));
    }
    // The lanes of one column from all quarters: first even and odd lanes, then each column.
    for k in 0..4 {
        let even = [
            _mm512_shuffle_f32x4::<0x88>(quarters[k], quarters[4 + k]),
            _mm512_shuffle_f32x4::<0x88>(quarters[8 + k], quarters[12 + k]),
        ];
        let odd = [
            _mm512_shuffle_f32x4::<0xdd>(quarters[k], quarters[4 + k]),
            _mm512_shuffle_f32x4::<0xdd>(quarters[8 + k], quarters[12 + k]),
        ];
        let columns = [
            (k, _mm512_shuffle_f32x4::<0x88>(even[0], even[1])),
            (4 + k, _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1])),
            (8 + k, _mm512_shuffle_f32x4::<0xdd>(even[0], even[1])),
            (12 + k, _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1])),
        ];
        for (c, column) in columns {
            // SAFETY: guaranteed by the caller.
            unsafe { _mm512_storeu_ps(dst.add(c * dst_stride).cast(), column) };
        }
    }
}
