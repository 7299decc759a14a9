//! The vector units of this machine, and code compiled for each of them.
//!
//! Kernels over tiles are written once, element by element and without branches, as bodies that are always inlined.
//! [`versions!`] compiles such a body once for each instruction set of the architecture, so that the compiler
//! vectorizes its loops; the version is chosen at run time.

#[cfg_attr(target_arch = "x86_64", path = "simd/x86_64.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "simd/baseline.rs")]
mod arch;

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;

pub(crate) use arch::{Isa, Vector, fence, prefetch, prefetch_near, stream_line, versions};

/// The size of a cache line, the unit of streaming stores.
pub(crate) const LINE: usize = 64;

impl Isa {
    /// The best instruction set of this machine; the same for the life of the process.
    pub(crate) fn best() -> Isa {
        static BEST: std::sync::OnceLock<Isa> = std::sync::OnceLock::new();
        *BEST.get_or_init(|| Isa::available()[0])
    }
}

/// Transposes a square block of elements: arguments are the destination and the distance between its rows in elements,
/// then the same for the source.
pub(crate) type TransposeBlock<T> = unsafe fn(*mut T, usize, *const T, isize);

/// Elements whose vectors can be interleaved.
pub(crate) trait Interleave: Copy {
    /// The elements of two vectors, alternating, as two vectors.
    fn interleave(a: Vector, b: Vector) -> [Vector; 2];

    /// A function that transposes blocks as wide as a cache line, if this machine has one.
    fn transpose_lines() -> Option<TransposeBlock<Self>> {
        None
    }
}
