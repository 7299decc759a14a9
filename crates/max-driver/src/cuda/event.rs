//! Events: points in the work of a stream.

use std::sync::Arc;

use max_core::{Result, bail};

use super::Gpu;
use super::api::{EventHandle, NOT_READY};
use crate::Stream;

/// A point in the work of a GPU's stream. Clones are the same point.
#[derive(Clone)]
pub struct Event(Arc<Owned>);

struct Owned {
    handle: EventHandle,
    gpu: &'static Gpu,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

/// An event that only orders work is cheaper than one with a timestamp.
const DISABLE_TIMING: u32 = 2;

impl Event {
    /// Records an event after all work enqueued on a stream so far, with a timestamp if `timed`.
    pub fn record(stream: &Stream, timed: bool) -> Result<Event> {
        let Some((gpu, stream)) = stream.cuda() else {
            bail!(value, "the host has no events: its work is done when a call returns")
        };
        let _entered = gpu.enter()?;
        let mut handle = std::ptr::null_mut();
        let flags = if timed { 0 } else { DISABLE_TIMING };
        // SAFETY: writes a handle.
        gpu.api.check(unsafe { gpu.api.cuEventCreate(&raw mut handle, flags) }, "cuEventCreate")?;
        let event = Event(Arc::new(Owned { handle, gpu }));
        // SAFETY: both handles are alive.
        gpu.api.check(unsafe { gpu.api.cuEventRecord(handle, stream) }, "cuEventRecord")?;
        Ok(event)
    }

    /// Makes work enqueued on a stream from now on wait for this event; for a stream of the host, the call itself
    /// waits.
    pub fn hold(&self, stream: &Stream) -> Result<()> {
        let Some((gpu, stream)) = stream.cuda() else { return self.synchronize() };
        let _entered = gpu.enter()?;
        // SAFETY: both handles are alive.
        let status = unsafe { gpu.api.cuStreamWaitEvent(stream, self.0.handle, 0) };
        gpu.api.check(status, "cuStreamWaitEvent")
    }

    /// Waits for it.
    pub fn synchronize(&self) -> Result<()> {
        let (api, _entered) = (self.0.gpu.api, self.0.gpu.enter()?);
        // SAFETY: the handle is alive.
        api.check(unsafe { api.cuEventSynchronize(self.0.handle) }, "cuEventSynchronize")
    }

    /// The GPU it was recorded on.
    pub(crate) fn gpu(&self) -> &'static Gpu {
        self.0.gpu
    }

    /// Whether it has been reached.
    pub fn is_done(&self) -> Result<bool> {
        let (api, _entered) = (self.0.gpu.api, self.0.gpu.enter()?);
        // SAFETY: the handle is alive.
        match unsafe { api.cuEventQuery(self.0.handle) } {
            NOT_READY => Ok(false),
            status => api.check(status, "cuEventQuery").map(|()| true),
        }
    }

    /// The microseconds from an earlier event to this one; both must be timed and reached.
    pub fn microseconds_since(&self, earlier: &Event) -> Result<f64> {
        let (api, _entered, mut time) = (self.0.gpu.api, self.0.gpu.enter()?, 0.0f32);
        // SAFETY: writes a number; both handles are alive.
        let status = unsafe { api.cuEventElapsedTime(&raw mut time, earlier.0.handle, self.0.handle) };
        api.check(status, "cuEventElapsedTime")?;
        Ok(f64::from(time) * 1e3)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let _entered = self.gpu.enter();
        // SAFETY: this is the last use of the handle; the driver keeps it alive for pending work.
        let _ = unsafe { self.gpu.api.cuEventDestroy_v2(self.handle) };
    }
}
