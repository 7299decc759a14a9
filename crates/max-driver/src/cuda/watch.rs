//! Error reports of kernels: memory shared with the device, checked whenever the host waits for it.
//!
//! A kernel cannot return an error. One that meets bad data, such as an index out of range, writes a [`Report`] instead
//! and goes on without accessing memory out of bounds; the next wait for the device turns the report into an error.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use max_core::{Result, bail};

use super::api::Api;

/// What a kernel writes if `seen` was zero: first `seen = 2`, then the other fields, then `seen = 1`.
#[repr(C)]
pub(crate) struct Report {
    /// One when there is a report; two while it is being written or read.
    seen: AtomicU64,
    /// The bad value.
    found: i64,
    /// The limit it violates.
    limit: i64,
    /// The axis it belongs to.
    axis: i64,
}

/// The report of a GPU.
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
        unsafe { report.write(Report { seen: AtomicU64::new(0), found: 0, limit: 0, axis: 0 }) };
        Ok(Watch { report })
    }

    /// Its address, for kernels.
    pub(crate) fn address(&self) -> u64 {
        self.report as u64
    }

    /// Returns the report as an error, once.
    pub(crate) fn check(&self) -> Result<()> {
        // SAFETY: the memory is never freed, and this field is only accessed atomically.
        let seen = unsafe { &(*self.report).seen };
        // Most of the time there is no report. One thread takes it, and devices do not write it meanwhile.
        if seen.load(Ordering::Relaxed) != 1
            || seen.compare_exchange(1, 2, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return Ok(());
        }
        // SAFETY: the other fields were written before `seen` became one, and stay unchanged until it is zero.
        let [found, limit, axis] = unsafe {
            let report = self.report;
            [&raw const (*report).found, &raw const (*report).limit, &raw const (*report).axis]
                .map(|field| field.read_volatile())
        };
        seen.store(0, Ordering::Release);
        bail!(index, "index {found} is out of range for axis {axis} with size {limit}")
    }
}

/// Flags of page-locked memory: usable from all contexts, and mapped into the device's address space.
pub(super) const PORTABLE: u32 = 1;
pub(super) const MAPPED: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use max_core::ErrorKind;

    #[test]
    fn a_report_is_returned_once() {
        let mut report = Report { seen: AtomicU64::new(2), found: 7, limit: 5, axis: 1 };
        let watch = Watch { report: &raw mut report };
        assert!(watch.check().is_ok(), "it is still being written");
        report.seen = AtomicU64::new(1);
        let watch = Watch { report: &raw mut report };
        let error = watch.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Index);
        assert!(error.message().contains("index 7 is out of range for axis 1 with size 5"), "{error}");
        assert!(watch.check().is_ok());
        assert_eq!(*report.seen.get_mut(), 0);
    }
}
