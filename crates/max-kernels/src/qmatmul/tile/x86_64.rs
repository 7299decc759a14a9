//! The units of x86-64: AMX with AVX-512, AVX-512 with VNNI, AVX2 with and without VNNI, and plain code.

#[path = "amx.rs"]
mod amx;

use std::arch::x86_64::*;
use std::sync::OnceLock;

use max_core::DType;

use super::floats::float_tile;
use super::plain::Plain;
use super::*;
use crate::simd::{self, Isa};

/// Kernels for each height.
macro_rules! heights {
    ($function:ident, $($type:ty),* $(; $tall:expr)?) => {
        const {
            &[
                $function::<$($type,)* 1> as Tile, $function::<$($type,)* 2>, $function::<$($type,)* 4>,
                $function::<$($type,)* 8>, $($tall)?
            ]
        }
    };
}

/// The kernels of the best unit of this machine.
pub(super) fn tiles<K: Kind>() -> &'static [Tile] {
    tiles_of::<K>(available()[0])
}

fn tiles_of<K: Kind>(vectors: Vectors) -> &'static [Tile] {
    match vectors {
        Vectors::Amx => heights!(avx512, K; amx::tile::<K>),
        Vectors::Avx512 => heights!(avx512, K),
        Vectors::AvxVnni => heights!(avx_vnni, K),
        Vectors::Avx2 => heights!(avx2, K),
        Vectors::Plain => heights!(tile, Plain, K),
    }
}

/// The kernels of every unit, by name.
#[cfg(test)]
pub(super) fn units<K: Kind>() -> Vec<(&'static str, &'static [Tile])> {
    let name = |vectors| match vectors {
        Vectors::Amx => "amx",
        Vectors::Avx512 => "avx512",
        Vectors::AvxVnni => "avx_vnni",
        Vectors::Avx2 => "avx2",
        Vectors::Plain => "plain",
    };
    available().iter().map(|&vectors| (name(vectors), tiles_of::<K>(vectors))).collect()
}

/// The same for weights that are floats.
pub(super) fn float_tiles<T: Element<Lane = f32>>() -> &'static [Tile] {
    match Isa::best() {
        Isa::Avx512 => heights!(floats_avx512, T),
        Isa::Avx2 => heights!(floats_avx2, T),
        Isa::Baseline => heights!(float_tile, Plain, T),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vectors {
    Amx,
    Avx512,
    AvxVnni,
    Avx2,
    Plain,
}

/// The vector units of this machine, the best first.
fn available() -> &'static [Vectors] {
    static AVAILABLE: OnceLock<Vec<Vectors>> = OnceLock::new();
    AVAILABLE.get_or_init(|| {
        let isa = Isa::best();
        let has_avx512 = isa == Isa::Avx512 && is_x86_feature_detected!("avx512vnni");
        let units = [
            (Vectors::Amx, has_avx512 && simd::amx::is_there()),
            (Vectors::Avx512, has_avx512),
            (Vectors::AvxVnni, isa != Isa::Baseline && is_x86_feature_detected!("avxvnni")),
            (Vectors::Avx2, isa != Isa::Baseline),
            (Vectors::Plain, true),
        ];
        units.into_iter().filter_map(|(unit, there)| there.then_some(unit)).collect()
    })
}

macro_rules! compiled {
    ($($name:ident $tile:ident $unit:ty, $kind:ident: [$($bound:tt)*], $features:literal;)*) => {$(
        #[target_feature(enable = $features)]
        unsafe fn $name<$kind: $($bound)*, const R: usize>(
            blocks: usize,
            panel: *const u8,
            rows: Rows,
            tiles: usize,
            to: *mut f32,
            stride: usize,
        ) {
            // SAFETY: guaranteed by the caller, who has checked that the instructions exist.
            unsafe { $tile::<$unit, $kind, R>(blocks, panel, rows, tiles, to, stride) }
        }
    )*};
}

compiled! {
    avx512 tile Wide, K: [Kind], "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c";
    avx_vnni tile Narrow<true>, K: [Kind], "avx2,fma,f16c,avxvnni";
    avx2 tile Narrow<false>, K: [Kind], "avx2,fma,f16c";
    floats_avx512 float_tile Wide, T: [Element<Lane = f32>], "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c";
    floats_avx2 float_tile Narrow<false>, T: [Element<Lane = f32>], "avx2,fma,f16c";
}

/// Sixteen columns in a register of AVX-512.
struct Wide;

impl Unit for Wide {
    const LANES: usize = 16;
    type Ints = __m512i;
    type Floats = __m512;

    #[inline(always)]
    unsafe fn zeros() -> __m512i {
        // SAFETY: the caller has checked that the instructions exist; likewise below.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512i {
        // SAFETY: see `zeros`; and the caller guarantees that the bytes can be read; likewise below.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn keep(bytes: __m512i, to: *mut u8) {
        // SAFETY: see `zeros`; and the caller guarantees that the bytes can be written.
        unsafe { _mm512_storeu_si512(to.cast(), bytes) }
    }
    #[inline(always)]
    unsafe fn bits(bytes: __m512i, right: i32, mask: u8) -> __m512i {
        // SAFETY: see `zeros`.
        unsafe {
            let count = _mm_cvtsi32_si128(right.abs());
            let shifted = match right {
                0 => bytes,
                1.. => _mm512_srl_epi16(bytes, count),
                _ => _mm512_sll_epi16(bytes, count),
            };
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask.cast_signed()))
        }
    }
    #[inline(always)]
    unsafe fn or(x: __m512i, y: __m512i) -> __m512i {
        // SAFETY: see `zeros`.
        unsafe { _mm512_or_si512(x, y) }
    }
    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], numbers: __m512i) -> __m512i {
        // SAFETY: see `zeros`.
        unsafe {
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), numbers)
        }
    }
    #[inline(always)]
    unsafe fn dot(sum: __m512i, bytes: __m512i, four: *const u8, _: bool) -> __m512i {
        // SAFETY: see `load`.
        unsafe { _mm512_dpbusd_epi32(sum, bytes, _mm512_set1_epi32(four.cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn to_floats(ints: __m512i) -> __m512 {
        // SAFETY: see `zeros`.
        unsafe { _mm512_cvtepi32_ps(ints) }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        // SAFETY: see `zeros`.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn mul(x: __m512, y: __m512) -> __m512 {
        // SAFETY: see `zeros`.
        unsafe { _mm512_mul_ps(x, y) }
    }
    #[inline(always)]
    unsafe fn add_product(sum: __m512, x: __m512, y: __m512) -> __m512 {
        // SAFETY: see `zeros`.
        unsafe { _mm512_fmadd_ps(x, y, sum) }
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8) -> __m512 {
        // SAFETY: see `load`.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn powers(from: *const u8) -> __m512 {
        // SAFETY: see `load`.
        unsafe {
            let exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
            let powers = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponents));
            let is_nan = _mm512_cmpeq_epi32_mask(exponents, _mm512_set1_epi32(255));
            let powers = _mm512_mask_mov_ps(powers, is_nan, _mm512_set1_ps(f32::NAN));
            _mm512_mul_ps(powers, _mm512_set1_ps(0.5))
        }
    }
    #[inline(always)]
    unsafe fn small(from: *const u8) -> __m512 {
        // SAFETY: see `load`.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn widen<T: Element<Lane = f32>>(from: *const u8) -> __m512 {
        // SAFETY: see `load`.
        unsafe {
            match T::DTYPE {
                DType::Float32 => _mm512_loadu_ps(from.cast()),
                DType::Float16 => Self::halves(from),
                DType::BFloat16 => {
                    let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
                }
                // The upper byte of a float16.
                DType::Float8E5M2 => {
                    let bits = _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast()));
                    _mm512_cvtph_ps(_mm256_slli_epi16::<8>(bits))
                }
                // A float16 of the same bits is 2^8 times smaller; the largest exponent and significand is NaN.
                DType::Float8E4M3FN => {
                    let bits = _mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast()));
                    let small = _mm256_and_si256(_mm256_slli_epi16::<7>(bits), _mm256_set1_epi16(!(1 << 14)));
                    let absolute = _mm256_and_si256(bits, _mm256_set1_epi16(0x7f));
                    let is_nan = _mm256_cmpeq_epi16(absolute, _mm256_set1_epi16(0x7f));
                    let small = _mm256_or_si256(small, is_nan);
                    _mm512_mul_ps(_mm512_cvtph_ps(small), _mm512_set1_ps(256.0))
                }
                _ => {
                    let mut lanes = [0f32; 16];
                    for (lane, element) in lanes.iter_mut().zip(from.cast::<[T; 16]>().read_unaligned()) {
                        *lane = element.to_lane();
                    }
                    _mm512_loadu_ps(lanes.as_ptr())
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn add(x: __m512, y: __m512) -> __m512 {
        // SAFETY: see `zeros`.
        unsafe { _mm512_add_ps(x, y) }
    }
    #[inline(always)]
    unsafe fn store(floats: __m512, to: *mut f32) {
        // SAFETY: see `zeros`; and the caller guarantees that the lanes can be written.
        unsafe { _mm512_storeu_ps(to, floats) }
    }
}

/// Eight columns in a register of AVX2, with or without instructions for dot products.
struct Narrow<const VNNI: bool>;

impl<const VNNI: bool> Unit for Narrow<VNNI> {
    const LANES: usize = 8;
    type Ints = __m256i;
    type Floats = __m256;

    #[inline(always)]
    unsafe fn zeros() -> __m256i {
        // SAFETY: the caller has checked that the instructions exist; likewise below.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m256i {
        // SAFETY: see `zeros`; and the caller guarantees that the bytes can be read; likewise below.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn keep(bytes: __m256i, to: *mut u8) {
        // SAFETY: see `zeros`; and the caller guarantees that the bytes can be written.
        unsafe { _mm256_storeu_si256(to.cast(), bytes) }
    }
    #[inline(always)]
    unsafe fn bits(bytes: __m256i, right: i32, mask: u8) -> __m256i {
        // SAFETY: see `zeros`.
        unsafe {
            let count = _mm_cvtsi32_si128(right.abs());
            let shifted = match right {
                0 => bytes,
                1.. => _mm256_srl_epi16(bytes, count),
                _ => _mm256_sll_epi16(bytes, count),
            };
            _mm256_and_si256(shifted, _mm256_set1_epi8(mask.cast_signed()))
        }
    }
    #[inline(always)]
    unsafe fn or(x: __m256i, y: __m256i) -> __m256i {
        // SAFETY: see `zeros`.
        unsafe { _mm256_or_si256(x, y) }
    }
    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], numbers: __m256i) -> __m256i {
        // SAFETY: see `zeros`.
        unsafe {
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), numbers)
        }
    }
    #[inline(always)]
    unsafe fn dot(sum: __m256i, bytes: __m256i, four: *const u8, wide: bool) -> __m256i {
        // SAFETY: see `load`.
        unsafe {
            let four = _mm256_set1_epi32(four.cast::<i32>().read_unaligned());
            if VNNI {
                return _mm256_dpbusd_avx_epi32(sum, bytes, four);
            }
            // The sums of two products fit in 16 bits if the unsigned bytes are below 128; others are halved.
            let pairs = |bytes| _mm256_maddubs_epi16(bytes, four);
            if wide {
                let low = _mm256_set1_epi8(0x0f);
                let high = pairs(_mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low));
                let low = pairs(_mm256_and_si256(bytes, low));
                let sum = _mm256_add_epi32(sum, _mm256_madd_epi16(high, _mm256_set1_epi16(16)));
                return _mm256_add_epi32(sum, _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
            }
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs(bytes), _mm256_set1_epi16(1)))
        }
    }
    #[inline(always)]
    unsafe fn to_floats(ints: __m256i) -> __m256 {
        // SAFETY: see `zeros`.
        unsafe { _mm256_cvtepi32_ps(ints) }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        // SAFETY: see `zeros`.
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn mul(x: __m256, y: __m256) -> __m256 {
        // SAFETY: see `zeros`.
        unsafe { _mm256_mul_ps(x, y) }
    }
    #[inline(always)]
    unsafe fn add_product(sum: __m256, x: __m256, y: __m256) -> __m256 {
        // SAFETY: see `zeros`.
        unsafe { _mm256_fmadd_ps(x, y, sum) }
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8) -> __m256 {
        // SAFETY: see `load`.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn powers(from: *const u8) -> __m256 {
        // SAFETY: see `load`.
        unsafe {
            let exponents = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()));
            let powers = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponents));
            let is_nan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(exponents, _mm256_set1_epi32(255)));
            _mm256_mul_ps(_mm256_or_ps(powers, is_nan), _mm256_set1_ps(0.5))
        }
    }
    #[inline(always)]
    unsafe fn small(from: *const u8) -> __m256 {
        // SAFETY: see `load`.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn widen<T: Element<Lane = f32>>(from: *const u8) -> __m256 {
        // SAFETY: see `load`.
        unsafe {
            match T::DTYPE {
                DType::Float32 => _mm256_loadu_ps(from.cast()),
                DType::Float16 => Self::halves(from),
                DType::BFloat16 => {
                    let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
                }
                // As for AVX-512.
                DType::Float8E5M2 => {
                    let bits = _mm_cvtepu8_epi16(_mm_loadl_epi64(from.cast()));
                    _mm256_cvtph_ps(_mm_slli_epi16::<8>(bits))
                }
                DType::Float8E4M3FN => {
                    let bits = _mm_cvtepi8_epi16(_mm_loadl_epi64(from.cast()));
                    let small = _mm_and_si128(_mm_slli_epi16::<7>(bits), _mm_set1_epi16(!(1 << 14)));
                    let absolute = _mm_and_si128(bits, _mm_set1_epi16(0x7f));
                    let small = _mm_or_si128(small, _mm_cmpeq_epi16(absolute, _mm_set1_epi16(0x7f)));
                    _mm256_mul_ps(_mm256_cvtph_ps(small), _mm256_set1_ps(256.0))
                }
                _ => {
                    let mut lanes = [0f32; 8];
                    for (lane, element) in lanes.iter_mut().zip(from.cast::<[T; 8]>().read_unaligned()) {
                        *lane = element.to_lane();
                    }
                    _mm256_loadu_ps(lanes.as_ptr())
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn add(x: __m256, y: __m256) -> __m256 {
        // SAFETY: see `zeros`.
        unsafe { _mm256_add_ps(x, y) }
    }
    #[inline(always)]
    unsafe fn store(floats: __m256, to: *mut f32) {
        // SAFETY: see `zeros`; and the caller guarantees that the lanes can be written.
        unsafe { _mm256_storeu_ps(to, floats) }
    }
}
