//! Helpers of GPU kernel tests.

use std::io::Write;

use max_driver::Device;

/// The GPU; without one, prints a line that says why.
pub fn gpu() -> Option<Device> {
    match Device::accelerator(None) {
        Ok(device) => Some(device),
        Err(error) => {
            // Not eprintln!, whose output tests capture.
            let _ = writeln!(std::io::stderr(), "skipped: no GPU: {}", error.message());
            None
        }
    }
}
