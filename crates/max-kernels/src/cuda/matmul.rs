//! To be written.

use max_core::kernel::Matmul;
use max_core::{Result, bail};

use super::Plan;

impl Plan {
    pub(super) fn matmul(&mut self, _kernel: &Matmul<i64>) -> Result<()> {
        bail!(not_implemented, "matmul on a GPU")
    }
}
