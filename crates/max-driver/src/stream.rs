//! Streams: the order in which a device does its work.

use max_core::Result;

use crate::Device;

/// A sequence of work on a device, done in order; two streams of a device may run at the same time.
///
/// The host does all work in the call that asks for it, so its streams are always idle, and equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    device: Device,
}

impl Stream {
    /// A new stream of a device.
    pub fn new(device: &Device) -> Result<Stream> {
        Ok(Stream { device: device.clone() })
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits until all work given to it is done, and reports its failure if it failed.
    pub fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    /// Lets work given to this stream from now on start only after all present work of another one, or of a
    /// device's default stream.
    pub fn wait_for(&self, other: impl Into<Stream>) -> Result<()> {
        // Later work of the host is whatever the caller does next: it has to be held back here and now.
        other.into().synchronize()
    }
}

/// The default stream of a device.
impl From<&Device> for Stream {
    fn from(device: &Device) -> Stream {
        Stream { device: device.clone() }
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
