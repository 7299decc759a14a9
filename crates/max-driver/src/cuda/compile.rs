//! Functions of GPUs from their source: compiled by NVRTC for the architecture of the GPU, kept in memory and on disk.

use std::borrow::Cow;

use max_core::{Result, bail};

use super::Gpu;
use crate::Stream;

/// CUDA C++ that includes no headers, with one function for others to call.
///
/// Every parameter of that function has eight bytes: a pointer, `long long`, `unsigned long long` or `double`. The
/// function is declared `extern "C" __global__`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// The name of the function.
    pub name: String,
    /// What comes before the text: declarations that sources of a module share. It is there once for all that have it.
    pub prelude: Cow<'static, str>,
    /// The text.
    pub code: String,
}

/// A function that a GPU can run.
#[derive(Clone)]
pub struct Function {}

/// The functions that a GPU has been given.
#[derive(Default)]
pub(crate) struct Modules {}

impl Gpu {
    /// The functions of sources, in order. What is neither in memory nor on disk is compiled, many at a time.
    pub fn functions(&'static self, _sources: &[Source]) -> Result<Vec<Function>> {
        bail!(not_implemented, "functions")
    }

    /// As [`Gpu::functions`], all of one module: they are compiled, kept and loaded together, whichever is wanted
    /// first. Names must differ.
    pub fn module(&'static self, _sources: &[Source]) -> Result<Vec<Function>> {
        bail!(not_implemented, "module")
    }
}

impl Function {
    /// Enqueues it on a stream. More than 48 KiB of shared memory are asked for here too.
    ///
    /// # Safety
    ///
    /// The parameters are what the function takes, and memory they point to is alive and as large as the function
    /// believes until the work is done, and nobody else writes it meanwhile.
    pub unsafe fn launch(
        &self,
        _stream: &Stream,
        _grid: [u32; 3],
        _block: [u32; 3],
        _shared: u32,
        _params: &[u64],
    ) -> Result<()> {
        bail!(not_implemented, "launch")
    }
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Function")
    }
}
