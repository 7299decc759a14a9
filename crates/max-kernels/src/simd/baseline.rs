//! Architectures whose vector units need no detection: NEON is part of every 64-bit ARM.

use super::{Interleave, LINE};

/// An instruction set for which code is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    Baseline,
}

impl Isa {
    /// The instruction sets of this machine, best first.
    pub(crate) fn available() -> Vec<Isa> {
        vec![Isa::Baseline]
    }

    /// The same with vectors of at most 32 bytes.
    pub(crate) fn shorter(self) -> Isa {
        self
    }
}

/// Gives `Body::run::<FMA>`: `versions!(name: Trait, fn(arg: type, ..))` makes a function `name::<Body>(isa)`.
macro_rules! versions {
    ($name:ident: $body:path, fn($($arg:ident: $type:ty),*)) => {
        fn $name<B: $body>(_: $crate::simd::Isa) -> unsafe fn($($type),*) {
            B::run::<{ cfg!(target_arch = "aarch64") }>
        }
    };
}
pub(crate) use versions;

/// Copies a cache line.
///
/// # Safety
///
/// `src` can be read and `dst` written for a line, and they do not overlap.
#[inline(always)]
pub(crate) unsafe fn stream_line(dst: *mut u8, src: *const u8) {
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, LINE) }
}

/// Makes streamed lines visible; ordinary stores need nothing.
pub(crate) fn fence() {}

/// Prefetches a cache line; a hint, left to the hardware here.
#[inline(always)]
pub(crate) fn prefetch(_: *const u8) {}

/// Prefetches a cache line; a hint, left to the hardware here.
#[inline(always)]
pub(crate) fn prefetch_near(_: *const u8) {}

/// Sixteen bytes.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub(crate) struct Vector([u8; 16]);

macro_rules! interleave {
    ($($type:ident)*) => {$(
        impl Interleave for $type {
            #[inline(always)]
            fn interleave(a: Vector, b: Vector) -> [Vector; 2] {
                const COUNT: usize = 16 / size_of::<$type>();
                let [a, b]: [[$type; COUNT]; 2] = [a, b].map(|vector| bytemuck::cast(vector.0));
                let mut interleaved = [[0; COUNT]; 2];
                for i in 0..COUNT {
                    interleaved[2 * i / COUNT][2 * i % COUNT] = a[i];
                    interleaved[2 * i / COUNT][2 * i % COUNT + 1] = b[i];
                }
                interleaved.map(|vector| Vector(bytemuck::cast(vector)))
            }
        }
    )*};
}
interleave!(u8 u16 u32 u64);
