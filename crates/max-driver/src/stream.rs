//! Streams: the order in which a device does its work.

use std::sync::Arc;

use max_core::Result;

use crate::Device;
use crate::cuda::{Event, Gpu, NON_BLOCKING, StreamHandle};

/// A sequence of work on a device, done in order; two streams of a device may run concurrently.
///
/// The host does all work in the call that asks for it, so its streams are always idle, and all equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    device: Device,
    /// A stream of a GPU other than its default one.
    own: Option<Arc<Own>>,
}

/// A stream that was created explicitly.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Own {
    gpu: &'static Gpu,
    handle: StreamHandle,
    /// Whether it is ours to destroy.
    ours: bool,
}

// SAFETY: a handle of the driver, whose functions may be called from any thread.
unsafe impl Send for Own {}
// SAFETY: as above.
unsafe impl Sync for Own {}

impl Stream {
    /// A new stream of a device.
    pub fn new(device: &Device) -> Result<Stream> {
        let Some(gpu) = device.gpu() else { return Ok(device.into()) };
        let _entered = gpu.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes a handle.
        gpu.api.check(unsafe { gpu.api.cuStreamCreate(&raw mut handle, NON_BLOCKING) }, "cuStreamCreate")?;
        Ok(Stream { device: device.clone(), own: Some(Arc::new(Own { gpu, handle, ours: true })) })
    }

    /// A stream that another library created, by its handle; the host's own stream for the host.
    ///
    /// # Safety
    ///
    /// The handle is that of a stream of the device, which outlives this and every clone of it.
    pub unsafe fn from_handle(device: &Device, handle: u64) -> Stream {
        let own = device.gpu().map(|gpu| Arc::new(Own { gpu, handle: handle as StreamHandle, ours: false }));
        Stream { device: device.clone(), own }
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The GPU and the handle, unless it is the host's.
    pub(crate) fn cuda(&self) -> Option<(&'static Gpu, StreamHandle)> {
        let gpu = self.device.gpu()?;
        Some((gpu, self.own.as_ref().map_or(gpu.default_stream, |own| own.handle)))
    }

    /// Its handle as a number for other libraries; `None` for the host.
    pub fn handle(&self) -> Option<u64> {
        self.cuda().map(|(_, handle)| handle as u64)
    }

    /// Waits until all work given to it is done, and reports a failure of that work.
    pub fn synchronize(&self) -> Result<()> {
        self.finish()?;
        self.cuda().map_or(Ok(()), |(gpu, _)| gpu.watch.check())
    }

    /// Waits until all work given to it is done, without collecting what kernels reported.
    pub(crate) fn finish(&self) -> Result<()> {
        let Some((gpu, handle)) = self.cuda() else { return Ok(()) };
        let _entered = gpu.enter()?;
        // SAFETY: the handle is alive.
        gpu.api.check(unsafe { gpu.api.cuStreamSynchronize(handle) }, "cuStreamSynchronize")
    }

    /// Makes work given to this stream from now on start only after all work already given to another stream, or to a
    /// device's default stream.
    pub fn wait_for(&self, other: impl Into<Stream>) -> Result<()> {
        let other = other.into();
        match (self.cuda(), other.cuda()) {
            (Some(_), Some(_)) if *self == other => Ok(()),
            (Some(_), Some(_)) => Event::record(&other, false)?.hold(self),
            // Later work of the host is whatever the caller does next, so it has to wait here.
            _ => other.synchronize(),
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if self.ours {
            let _entered = self.gpu.enter();
            // SAFETY: nobody uses it any more; work already given to it still completes.
            let _ = unsafe { self.gpu.api.cuStreamDestroy_v2(self.handle) };
        }
    }
}

/// The default stream of a device.
impl From<&Device> for Stream {
    fn from(device: &Device) -> Stream {
        Stream { device: device.clone(), own: None }
    }
}

impl From<&Stream> for Stream {
    fn from(stream: &Stream) -> Stream {
        stream.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_streams_are_always_done() {
        let cpu = Device::cpu();
        let stream = Stream::new(&cpu).unwrap();
        assert_eq!(stream.device(), &cpu);
        assert!(
            stream.wait_for(&cpu).is_ok() && stream.wait_for(&stream).is_ok() && stream.synchronize().is_ok()
        );
    }
}
