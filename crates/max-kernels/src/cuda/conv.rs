//! To be written.

use max_core::kernel::Conv2d;
use max_core::{Result, bail};

use super::Plan;

impl Plan {
    pub(super) fn conv2d(&mut self, _kernel: &Conv2d<i64>) -> Result<()> {
        bail!(not_implemented, "conv on a GPU")
    }
}
