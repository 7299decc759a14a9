//! What tests of kernels on a GPU share.

use std::io::Write;

use max_driver::Device;

/// The GPU, or a line that says why there is none.
pub fn gpu() -> Option<Device> {
    match Device::accelerator(None) {
        Ok(device) => Some(device),
        Err(error) => {
            // Not by a macro, whose text tests keep to themselves.
            let _ = writeln!(std::io::stderr(), "skipped: no GPU: {}", error.message());
            None
        }
    }
}
