//! Which vector units this machine has, and the same code compiled for each of them.
//!
//! Kernels over tiles are written once, element by element and without branches, as bodies that are always inlined.
//! [`versions!`] compiles such a body once for each instruction set of the architecture, where the compiler turns its
//! loops into vector code; which version runs is decided at run time. Nothing outside `simd/` asks for the
//! architecture.

#[cfg_attr(target_arch = "x86_64", path = "simd/x86_64.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "simd/baseline.rs")]
mod arch;

pub(crate) use arch::{Isa, Vector, fence, prefetch, stream_line, versions};

/// The size of a cache line, the unit of streaming stores.
pub(crate) const LINE: usize = 64;

impl Isa {
    /// The best of this machine; the same in the whole life of the process.
    pub(crate) fn best() -> Isa {
        static BEST: std::sync::OnceLock<Isa> = std::sync::OnceLock::new();
        *BEST.get_or_init(|| Isa::available()[0])
    }
}

/// Turns a square block of elements: the block at the second address, rows so many elements apart, into the block at the
/// first.
pub(crate) type TransposeBlock<T> = unsafe fn(*mut T, usize, *const T, isize);

/// Elements that two vectors of them can interleave.
pub(crate) trait Interleave: Copy {
    /// The elements of two vectors in turn, in two vectors.
    fn interleave(a: Vector, b: Vector) -> [Vector; 2];

    /// A function that turns blocks as wide as a cache line, where this machine has one.
    fn transpose_lines() -> Option<TransposeBlock<Self>> {
        None
    }
}
