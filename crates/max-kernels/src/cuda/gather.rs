//! To be written.

use max_core::kernel::Gather;
use max_core::{Result, bail};

use super::Plan;

impl Plan {
    pub(super) fn gather(&mut self, _kernel: &Gather<i64>) -> Result<()> {
        bail!(not_implemented, "gather on a GPU")
    }
}
