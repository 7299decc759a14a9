//! Architectures whose vector units need not be asked for: NEON is part of every 64-bit ARM.

use super::LINE;

/// An instruction set for which code is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    Baseline,
}

impl Isa {
    /// Those of this machine, the best first.
    pub(crate) fn available() -> Vec<Isa> {
        vec![Isa::Baseline]
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
/// Both are valid for a line.
#[inline(always)]
pub(crate) unsafe fn stream_line(dst: *mut u8, src: *const u8) {
    // SAFETY: as for this function; a streamed line is never its own source.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, LINE) }
}

/// Makes streamed lines visible; ordinary stores need nothing.
pub(crate) fn fence() {}
