//! To be written.

use max_core::kernel::Attention;
use max_core::{Result, bail};

use super::Plan;

impl Plan {
    pub(super) fn attention(&mut self, _kernel: &Attention<i64>) -> Result<()> {
        bail!(not_implemented, "attention on a GPU")
    }
}
