//! What kernels report: a place that both sides see, looked at whenever the host waits for the device.
//!
//! A kernel cannot return an error. One that meets bad data, an index out of range, writes a [`Report`] instead and goes
//! on without touching memory it must not; the next wait for the device finds the report and makes it an error.

use std::ffi::c_void;

use max_core::{Result, bail};

use super::api::Api;

/// What a kernel writes, if `seen` was zero: two there, then the rest, then one there.
#[repr(C)]
pub(crate) struct Report {
    /// One once there is something; two while it is being written.
    seen: u64,
    /// What was found.
    found: i64,
    /// What would have been right.
    limit: i64,
    /// Where.
    axis: i64,
}

/// The place of the report.
pub(crate) struct Watch {
    report: *mut Report,
}

impl Watch {
    pub(crate) fn new(api: &Api) -> Result<Watch> {
        let mut place: *mut c_void = std::ptr::null_mut();
        // SAFETY: writes an address. The memory is never freed.
        let status = unsafe { api.cuMemHostAlloc(&raw mut place, size_of::<Report>(), PORTABLE | MAPPED) };
        api.check(status, "cuMemHostAlloc")?;
        let report = place.cast::<Report>();
        // SAFETY: the memory was allocated for it.
        unsafe { report.write(Report { seen: 0, found: 0, limit: 0, axis: 0 }) };
        Ok(Watch { report })
    }

    /// Its address, for kernels.
    pub(crate) fn address(&self) -> u64 {
        self.report as u64
    }

    /// The report as an error, once.
    pub(crate) fn check(&self) -> Result<()> {
        // SAFETY: the memory is there as long as the process; a device writes it meanwhile.
        let Report { seen, found, limit, axis } = unsafe { self.report.read_volatile() };
        if seen != 1 {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { (&raw mut (*self.report).seen).write_volatile(0) };
        bail!(index, "gather index {found} is out of range for axis {axis} with size {limit}")
    }
}

/// Flags of page-locked memory: for all contexts, and with an address on the device.
pub(super) const PORTABLE: u32 = 1;
pub(super) const MAPPED: u32 = 2;
