//! Page-locked host memory: copies between it and a GPU run asynchronously, so it remembers them.
//!
//! Whoever reads or writes it on the host first waits until the copies are done.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use max_core::{Error, Result};

use super::api::OUT_OF_MEMORY;
use super::watch::{MAPPED, PORTABLE};
use super::{Event, Gpu};
use crate::Stream;

/// See the module.
pub(crate) struct Pinned {
    gpu: &'static Gpu,
    ptr: NonNull<u8>,
    /// Events after the pending copies.
    pending: Mutex<Vec<Event>>,
}

// SAFETY: an address, which may be used from any thread.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Zeroed memory, for copies to and from any GPU.
    pub(crate) fn new(gpu: &'static Gpu, bytes: usize) -> Result<Pinned> {
        let _entered = gpu.enter()?;
        let mut place: *mut c_void = std::ptr::null_mut();
        // SAFETY: writes an address.
        let status = unsafe { gpu.api.cuMemHostAlloc(&raw mut place, bytes.max(1), PORTABLE | MAPPED) };
        if status == OUT_OF_MEMORY {
            let message = format!("the system refused to allocate {bytes} bytes of page-locked host memory");
            return Err(Error::memory(message));
        }
        gpu.api.check(status, "cuMemHostAlloc")?;
        let ptr = NonNull::new(place.cast::<u8>())
            .ok_or_else(|| Error::memory("the driver returned no page-locked host memory"))?;
        // SAFETY: the memory was just allocated with at least `bytes` bytes.
        unsafe { ptr.write_bytes(0, bytes) };
        Ok(Pinned { gpu, ptr, pending: Mutex::new(Vec::new()) })
    }

    /// Where it starts.
    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Makes later work of a stream wait for the copies.
    pub(crate) fn hold(&self, stream: &Stream) -> Result<()> {
        self.lock().iter().try_for_each(|event| event.hold(stream))
    }

    /// Remembers what has been enqueued on a stream so far.
    pub(crate) fn remember(&self, stream: &Stream) -> Result<()> {
        let event = Event::record(stream, false)?;
        let mut pending = self.lock();
        pending.retain(|event| !matches!(event.is_done(), Ok(true)));
        pending.push(event);
        Ok(())
    }

    /// Waits for the copies, and returns errors that kernels reported about what they copied.
    pub(crate) fn settle(&self) -> Result<()> {
        self.wait()?.iter().try_for_each(|event| event.gpu().watch.check())
    }

    /// Waits for the copies without checking what kernels reported. Returns the copies that were pending.
    pub(crate) fn wait(&self) -> Result<Vec<Event>> {
        // They stay in the list meanwhile: other threads have to wait for them as well.
        let pending = self.lock().clone();
        pending.iter().try_for_each(Event::synchronize)?;
        if !pending.is_empty() {
            self.lock().retain(|event| !matches!(event.is_done(), Ok(true)));
        }
        Ok(pending)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Memory that a copy may still be using is leaked rather than freed.
        if let (Ok(_), Ok(_entered)) = (self.wait(), self.gpu.enter()) {
            // SAFETY: it came from the driver, and no copy uses it any more.
            let _ = unsafe { self.gpu.api.cuMemFreeHost(self.ptr.as_ptr().cast()) };
        }
    }
}
