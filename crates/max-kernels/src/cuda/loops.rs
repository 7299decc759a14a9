//! To be written.

use max_core::kernel::Loop;
use max_core::{Result, bail};

use super::Plan;

impl Plan {
    pub(super) fn loop_(&mut self, _kernel: &Loop<i64>) -> Result<()> {
        bail!(not_implemented, "loops on a GPU")
    }
}

/// The functions of sources, in order.
pub(super) fn compile(
    gpu: &'static max_driver::cuda::Gpu,
    sources: &[max_driver::cuda::Source],
) -> Result<Vec<max_driver::cuda::Function>> {
    gpu.functions(sources)
}
