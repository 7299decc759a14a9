//! Chains on AVX-512: the current group is four registers.

use std::arch::x86_64::*;

use super::{Act, ChainFn, Segment, Step};
use crate::simd::{Isa, LINE, prefetch};
use crate::tile::{Arg, GROUP};

/// The chain of this machine, if it has AVX-512.
pub(crate) fn chain() -> Option<ChainFn> {
    (Isa::best() == Isa::Avx512).then_some(run as ChainFn)
}

/// The floats of a register, and the registers of a group.
const LANES: usize = 16;
const PARTS: usize = GROUP / LANES;

type Group = [__m512; PARTS];

/// A group whose registers are computed by an expression.
macro_rules! group {
    ($k:ident => $part:expr) => {
        [
            {
                const $k: usize = 0;
                $part
            },
            {
                const $k: usize = 1;
                $part
            },
            {
                const $k: usize = 2;
                $part
            },
            {
                const $k: usize = 3;
                $part
            },
        ]
    };
}

/// Combinations of two registers, as the scalar table defines them.
macro_rules! combine {
    (add, $a:expr, $b:expr) => {
        _mm512_add_ps($a, $b)
    };
    (sub, $a:expr, $b:expr) => {
        _mm512_sub_ps($a, $b)
    };
    (mul, $a:expr, $b:expr) => {
        _mm512_mul_ps($a, $b)
    };
    (div, $a:expr, $b:expr) => {
        _mm512_div_ps($a, $b)
    };
    // The first operand if it is NaN: the instructions return the second one if either is.
    (max, $a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        _mm512_mask_mov_ps(_mm512_max_ps(a, b), _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a), a)
    }};
    (min, $a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        _mm512_mask_mov_ps(_mm512_min_ps(a, b), _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a), a)
    }};
}

/// How many iterations run together.
pub(crate) const BLOCK: usize = 4;

/// # Safety
///
/// As for [`ChainFn`], and the machine has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn run(steps: &mut [Step], segments: &[Segment], rows: usize, rest: usize) {
    // The elements of each register that exist in a part of a group.
    let masks: [u16; PARTS] =
        std::array::from_fn(|k| ((1u32 << rest.saturating_sub(k * LANES).min(LANES)) - 1) as u16);
    for _ in 0..rows {
        let mut begin = 0;
        for segment in segments {
            let body = &steps[begin..segment.end];
            begin = segment.end;
            let mut at = 0;
            while at < segment.iterations {
                // SAFETY: the caller's promise.
                unsafe {
                    if at + BLOCK <= segment.iterations {
                        iterations::<BLOCK>(body, at, masks);
                        at += BLOCK;
                    } else {
                        iterations::<1>(body, at, masks);
                        at += 1;
                    }
                }
            }
        }
        for step in steps.iter_mut() {
            step.ptr = step.ptr.wrapping_offset(step.row);
        }
    }
}

/// Runs steps on N groups.
///
/// # Safety
///
/// As for [`run`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn iterations<const N: usize>(steps: &[Step], first: usize, masks: [u16; PARTS]) {
    let mut v: [Group; N] = [[_mm512_setzero_ps(); PARTS]; N];
    for step in steps {
        let start = step.ptr.wrapping_offset(first as isize * step.stride);
        /// Does something for each group and its place.
        macro_rules! each {
            ($g:ident, $at:ident => $body:expr) => {
                for n in 0..N {
                    let $at = start.wrapping_offset(n as isize * step.lane);
                    let $g = &mut v[n];
                    $body;
                }
            };
        }
        macro_rules! map {
            ($x:ident => $part:expr) => {
                each!(g, _at => *g = group!(K => { let $x = g[K]; $part }))
            };
        }
        macro_rules! with {
            ($op:ident, $load:ident) => {
                each!(g, at => *g = group!(K => combine!($op, g[K], $load::<K>(at))))
            };
        }
        macro_rules! from {
            ($op:ident, $load:ident) => {
                each!(g, at => *g = group!(K => combine!($op, $load::<K>(at), g[K])))
            };
        }
        macro_rules! reduce {
            ($op:ident) => {
                if step.lane == 0 {
                    let mut lanes: Group = group!(K => float::<K>(start));
                    for g in &v {
                        lanes = group!(K => combine!($op, lanes[K], g[K]));
                    }
                    store(start, lanes);
                } else {
                    each!(g, at => store(at, group!(K => combine!($op, float::<K>(at), g[K]))))
                }
            };
        }
        macro_rules! reduce_part {
            ($op:ident) => {
                each!(g, at => store_part(at, group!(K => combine!($op, float::<K>(at), g[K])), masks))
            };
        }
        macro_rules! all {
            ($op:ident) => {
                each!(g, at => {
                    let lanes: Group = group!(K => float::<K>(at));
                    let [a, b] = [combine!($op, lanes[0], lanes[2]), combine!($op, lanes[1], lanes[3])];
                    let x = combine!($op, a, b);
                    let x = combine!($op, x, _mm512_shuffle_f32x4::<0x4e>(x, x));
                    let x = combine!($op, x, _mm512_shuffle_f32x4::<0xb1>(x, x));
                    let x = combine!($op, x, _mm512_permute_ps::<0x4e>(x));
                    let x = combine!($op, x, _mm512_permute_ps::<0xb1>(x));
                    *g = [_mm512_broadcastss_ps(_mm512_castps512_ps128(x)); PARTS];
                })
            };
        }
        // SAFETY: the caller's promise for the memory of each step.
        unsafe {
            match step.act {
                Act::Load => each!(g, at => *g = group!(K => float::<K>(at))),
                Act::LoadBrain => each!(g, at => *g = group!(K => brain::<K>(at))),
                Act::Splat => each!(g, at => {
                    *g = [_mm512_set1_ps(at.cast::<f32>().read_unaligned()); PARTS];
                }),
                Act::SplatBrain => each!(g, at => {
                    let bits = i32::from(at.cast::<i16>().read_unaligned()) << 16;
                    *g = [_mm512_castsi512_ps(_mm512_set1_epi32(bits)); PARTS];
                }),
                Act::LoadPart => each!(g, at => {
                    let at = at.cast::<f32>();
                    *g = group!(K => _mm512_maskz_loadu_ps(masks[K], at.wrapping_add(K * LANES)));
                }),
                Act::LoadPartBrain => each!(g, at => {
                    let at = at.cast::<i16>();
                    *g = group!(K => widen(_mm256_maskz_loadu_epi16(masks[K], at.wrapping_add(K * LANES))));
                }),
                Act::Store => each!(g, at => store(at, *g)),
                Act::StoreBrain => each!(g, at => {
                    let halves = narrow(*g);
                    _mm512_storeu_si512(at.cast(), halves[0]);
                    _mm512_storeu_si512(at.add(LINE).cast(), halves[1]);
                }),
                Act::StoreOne => each!(g, at => _mm_store_ss(at.cast(), _mm512_castps512_ps128(g[0]))),
                Act::StoreOneBrain => each!(g, at => {
                    let bits = _mm_cvtsi128_si32(_mm512_castsi512_si128(narrow(*g)[0]));
                    at.cast::<u16>().write_unaligned(bits as u16);
                }),
                Act::StorePart => each!(g, at => store_part(at, *g, masks)),
                Act::StorePartBrain => each!(g, at => {
                    for (k, half) in narrow(*g).into_iter().enumerate() {
                        let mask = u32::from(masks[2 * k]) | u32::from(masks[2 * k + 1]) << LANES;
                        _mm512_mask_storeu_epi16(at.wrapping_add(k * LINE).cast(), mask, half);
                    }
                }),
                Act::Stream => each!(g, at => {
                    _mm512_stream_ps(at.cast(), g[0]);
                    _mm512_stream_ps(at.add(LINE).cast(), g[1]);
                    _mm512_stream_ps(at.add(2 * LINE).cast(), g[2]);
                    _mm512_stream_ps(at.add(3 * LINE).cast(), g[3]);
                }),
                Act::StreamBrain => each!(g, at => {
                    let halves = narrow(*g);
                    _mm512_stream_si512(at.cast(), halves[0]);
                    _mm512_stream_si512(at.add(LINE).cast(), halves[1]);
                }),
                Act::Ask => each!(_g, at => {
                    prefetch(at);
                    prefetch(at.wrapping_add(LINE));
                    prefetch(at.wrapping_add(2 * LINE));
                    prefetch(at.wrapping_add(3 * LINE));
                }),
                Act::AskBrain => each!(_g, at => {
                    prefetch(at);
                    prefetch(at.wrapping_add(LINE));
                }),
                Act::Round => {
                    let high = _mm512_set1_epi32(0xffff_0000u32 as i32);
                    map!(x => _mm512_castsi512_ps(_mm512_and_si512(rounded(x), high)));
                }
                Act::Square => map!(x => _mm512_mul_ps(x, x)),
                Act::Call(f) => {
                    let mut copy = v;
                    let ptr: *mut u8 = (&raw mut copy).cast();
                    f(ptr, [Arg { ptr, repeat: false }; 3], N);
                    v = copy;
                }
                Act::Abs => map!(x => _mm512_abs_ps(x)),
                Act::Negate => map!(x => _mm512_xor_ps(x, _mm512_set1_ps(-0.0))),
                Act::Relu => map!(x => combine!(max, x, _mm512_setzero_ps())),
                Act::Sqrt => map!(x => _mm512_sqrt_ps(x)),
                Act::Rsqrt => map!(x => _mm512_div_ps(_mm512_set1_ps(1.0), _mm512_sqrt_ps(x))),
                Act::Add => with!(add, float),
                Act::AddBrain => with!(add, brain),
                Act::Sub => with!(sub, float),
                Act::SubBrain => with!(sub, brain),
                Act::Mul => with!(mul, float),
                Act::MulBrain => with!(mul, brain),
                Act::Div => with!(div, float),
                Act::DivBrain => with!(div, brain),
                Act::Max => with!(max, float),
                Act::MaxBrain => with!(max, brain),
                Act::Min => with!(min, float),
                Act::MinBrain => with!(min, brain),
                Act::AddTo => from!(add, float),
                Act::AddToBrain => from!(add, brain),
                Act::SubFrom => from!(sub, float),
                Act::SubFromBrain => from!(sub, brain),
                Act::MulTo => from!(mul, float),
                Act::MulToBrain => from!(mul, brain),
                Act::DivInto => from!(div, float),
                Act::DivIntoBrain => from!(div, brain),
                Act::MaxTo => from!(max, float),
                Act::MaxToBrain => from!(max, brain),
                Act::MinTo => from!(min, float),
                Act::MinToBrain => from!(min, brain),
                Act::Sum => reduce!(add),
                Act::Product => reduce!(mul),
                Act::Largest => reduce!(max),
                Act::Smallest => reduce!(min),
                Act::SumPart => reduce_part!(add),
                Act::ProductPart => reduce_part!(mul),
                Act::LargestPart => reduce_part!(max),
                Act::SmallestPart => reduce_part!(min),
                Act::SumAll => all!(add),
                Act::ProductAll => all!(mul),
                Act::LargestAll => all!(max),
                Act::SmallestAll => all!(min),
            }
        }
    }
}

/// A register of a group in memory.
///
/// # Safety
///
/// It can be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn float<const K: usize>(at: *const u8) -> __m512 {
    // SAFETY: guaranteed by the caller.
    unsafe { _mm512_loadu_ps(at.cast::<f32>().add(K * LANES)) }
}

/// A register of a group of bf16 in memory.
///
/// # Safety
///
/// It can be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn brain<const K: usize>(at: *const u8) -> __m512 {
    // SAFETY: guaranteed by the caller.
    unsafe { widen(_mm256_loadu_si256(at.add(K * LINE / 2).cast())) }
}

/// # Safety
///
/// A group can be written.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store(at: *mut u8, v: Group) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        _mm512_storeu_ps(at.cast(), v[0]);
        _mm512_storeu_ps(at.add(LINE).cast(), v[1]);
        _mm512_storeu_ps(at.add(2 * LINE).cast(), v[2]);
        _mm512_storeu_ps(at.add(3 * LINE).cast(), v[3]);
    }
}

/// # Safety
///
/// The elements of the masks can be written.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store_part(at: *mut u8, v: Group, masks: [u16; PARTS]) {
    for k in 0..PARTS {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_mask_storeu_ps(at.wrapping_add(k * LINE).cast(), masks[k], v[k]) }
    }
}

/// bf16 as f32.
#[inline]
#[target_feature(enable = "avx512f")]
fn widen(bits: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
}

/// The bits of f32 whose high half is the nearest bf16, ties to even. A NaN stays one.
#[inline]
#[target_feature(enable = "avx512f")]
fn rounded(v: __m512) -> __m512i {
    let bits = _mm512_castps_si512(v);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let nearest = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
    _mm512_mask_mov_epi32(nearest, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v), quiet)
}

/// A group as bf16.
#[inline]
#[target_feature(enable = "avx512f")]
fn narrow(v: Group) -> [__m512i; 2] {
    let quarters: [__m256i; PARTS] =
        group!(K => _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded(v[K]))));
    [
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(quarters[0]), quarters[1]),
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(quarters[2]), quarters[3]),
    ]
}
