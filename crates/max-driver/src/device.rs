//! The devices of this machine: the host, and accelerators beside it.
//!
//! What differs between devices is decided here and in the few places that match on [`Kind`]; a new kind is a new
//! variant, and the compiler lists what it has to implement.

use std::collections::BTreeMap;
use std::fmt;

use max_core::{DeviceKind, DeviceRef, Error, Number, Result, bail};

use crate::cuda::Gpu;
use crate::pool::Pool;
use crate::virtual_device::{self, Virtual};
use crate::{Stream, host};

/// A device on which buffers live and work runs; cheap to clone and to compare.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Device(Kind);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Kind {
    Host,
    Cuda(&'static Gpu),
    Virtual(&'static Virtual),
}

/// What does the work of a device and holds its memory.
pub(crate) enum Home {
    /// The host, with a pool for the memory of this device.
    Host(&'static Pool),
    Gpu(&'static Gpu),
}

impl Device {
    /// The host.
    pub const fn cpu() -> Device {
        Device(Kind::Host)
    }

    /// An accelerator by number, or the first one.
    pub fn accelerator(id: Option<u32>) -> Result<Device> {
        let id = id.unwrap_or(0);
        let missing = |why: Error| {
            let device = DeviceRef::gpu(id);
            Error::runtime(format!(
                "no accelerator is available as {device}: {why}; use the CPU device instead"
            ))
        };
        match virtual_device::open(id).map_err(missing)? {
            virtual_device::Accelerator::Gpu(gpu) => Ok(Device(Kind::Cuda(gpu))),
            virtual_device::Accelerator::Virtual(device) => Ok(Device(Kind::Virtual(device))),
        }
    }

    /// The device that a graph's device reference means.
    pub fn from_ref(device: DeviceRef) -> Result<Device> {
        match device.kind {
            DeviceKind::Cpu => Ok(Device::cpu()),
            DeviceKind::Gpu => Device::accelerator(Some(device.id)),
        }
    }

    /// The reference by which graphs name it.
    pub fn device_ref(&self) -> DeviceRef {
        DeviceRef { kind: self.kind(), id: self.id() }
    }

    /// Host or accelerator.
    pub fn kind(&self) -> DeviceKind {
        match self.0 {
            Kind::Host => DeviceKind::Cpu,
            Kind::Cuda(_) | Kind::Virtual(_) => DeviceKind::Gpu,
        }
    }

    /// Its number among those of its kind; the host has number 0.
    pub fn id(&self) -> u32 {
        match self.0 {
            Kind::Host => 0,
            Kind::Cuda(gpu) => gpu.id(),
            Kind::Virtual(device) => device.id,
        }
    }

    /// `cpu` or `gpu`.
    pub fn label(&self) -> &'static str {
        self.kind().name()
    }

    /// The API that programs it: `cpu` or `cuda`, or `virtual` for a device that the host stands in for.
    pub fn api(&self) -> &'static str {
        match self.0 {
            Kind::Host => "cpu",
            Kind::Cuda(_) => "cuda",
            Kind::Virtual(_) => "virtual",
        }
    }

    /// The architecture of a GPU, such as `sm_90`; an error for the host, and for a virtual device.
    pub fn architecture_name(&self) -> Result<String> {
        match self.0 {
            Kind::Host => bail!(runtime, "only an accelerator has an architecture name; {self} is the host"),
            Kind::Cuda(gpu) => {
                let (major, minor) = gpu.compute_capability();
                Ok(format!("sm_{major}{minor}"))
            }
            Kind::Virtual(_) => bail!(runtime, "{self} is virtual, so it has no architecture name"),
        }
    }

    /// The hardware's own name.
    pub fn model_name(&self) -> String {
        match self.0 {
            Kind::Host => host::model_name(),
            Kind::Cuda(gpu) => gpu.name.clone(),
            Kind::Virtual(device) => format!("VirtualGPU-{}", device.id),
        }
    }

    /// The GPU, if it is one.
    pub fn gpu(&self) -> Option<&'static Gpu> {
        match self.home() {
            Home::Host(_) => None,
            Home::Gpu(gpu) => Some(gpu),
        }
    }

    /// Where its work is done and its memory lies.
    pub(crate) fn home(&self) -> Home {
        match self.0 {
            Kind::Host => Home::Host(&host::POOL),
            Kind::Cuda(gpu) => Home::Gpu(gpu),
            Kind::Virtual(device) => Home::Host(&device.pool),
        }
    }

    /// Whether it is the host.
    pub fn is_host(&self) -> bool {
        self.kind() == DeviceKind::Cpu
    }

    /// Whether the host's processor does its work, in host memory: true of the host itself and of virtual devices.
    pub fn runs_on_host(&self) -> bool {
        self.gpu().is_none()
    }

    /// Whether the host and the device share the same memory.
    pub fn is_host_unified(&self) -> bool {
        match self.0 {
            Kind::Host => true,
            Kind::Cuda(_) | Kind::Virtual(_) => false,
        }
    }

    /// Whether programs can be compiled for it.
    pub fn is_compatible(&self) -> bool {
        match self.0 {
            Kind::Host | Kind::Virtual(_) => true,
            Kind::Cuda(gpu) => gpu.compute_capability() >= (7, 0),
        }
    }

    /// Whether it can access the memory of another device without a copy.
    pub fn can_access(&self, other: &Device) -> bool {
        match (&self.0, &other.0) {
            (Kind::Cuda(gpu), Kind::Cuda(other)) => gpu.reaches(other),
            _ => self == other,
        }
    }

    /// The most bytes that one buffer may have: all the memory of the device, if the system tells how much that is.
    pub fn max_single_alloc_size(&self) -> Result<usize> {
        match self.0 {
            Kind::Host | Kind::Virtual(_) => Ok(host::total_memory().unwrap_or(isize::MAX as usize)),
            Kind::Cuda(gpu) => gpu.free_and_total().map(|(_, total)| total),
        }
    }

    /// The stream on which work runs unless another is named.
    pub fn default_stream(&self) -> Stream {
        self.into()
    }

    /// Waits for all work given to the device on any stream, and reports a failure of that work.
    pub fn synchronize(&self) -> Result<()> {
        match self.0 {
            Kind::Host | Kind::Virtual(_) => Ok(()),
            Kind::Cuda(gpu) => gpu.finish().and_then(|()| gpu.watch.check()),
        }
    }

    /// The device's memory statistics, in bytes: `bytes_in_use` by buffers, `bytes_pooled` for reuse, and, where the
    /// system tells, `total_memory` and `free_memory`.
    ///
    /// For GPUs, if NVML is present, also: `gpu_utilization` and `memory_utilization` as recent percentages,
    /// `temperature` in degrees Celsius, and `power_usage` in watts.
    pub fn stats(&self) -> BTreeMap<String, Number> {
        match self.0 {
            Kind::Host => host::stats(&host::POOL),
            Kind::Cuda(gpu) => gpu.stats(),
            Kind::Virtual(device) => host::stats(&device.pool),
        }
    }
}

/// The host device, under its documented name.
#[allow(non_snake_case, reason = "the documented name")]
pub fn CPU() -> Device {
    Device::cpu()
}

/// The first accelerator, under its documented name; [`Device::accelerator`] takes a number.
#[allow(non_snake_case, reason = "the documented name")]
pub fn Accelerator() -> Result<Device> {
    Device::accelerator(None)
}

impl From<&Device> for DeviceRef {
    fn from(device: &Device) -> DeviceRef {
        device.device_ref()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device(type={},id={})", self.label(), self.id())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use max_core::ErrorKind;

    #[test]
    fn the_host_answers() {
        let cpu = Device::cpu();
        assert_eq!(cpu.to_string(), "Device(type=cpu,id=0)");
        assert_eq!((cpu.label(), cpu.api(), cpu.id()), ("cpu", "cpu", 0));
        assert!(cpu.is_host() && cpu.is_compatible() && cpu.is_host_unified() && cpu.can_access(&cpu));
        assert!(!cpu.model_name().is_empty());
        assert!(cpu.architecture_name().is_err());
        assert!(cpu.stats().contains_key("bytes_in_use"));
        let most = cpu.max_single_alloc_size().unwrap();
        if let Some(total) = cpu.stats().get("total_memory") {
            assert_eq!(*total, Number::Int(most as i128));
        }
        assert!(most > 0);
        assert_eq!(Device::from_ref(cpu.device_ref()), Ok(cpu.clone()));
        assert!(cpu.synchronize().is_ok());
    }

    #[test]
    fn a_missing_accelerator_is_explained() {
        let error = Device::from_ref(DeviceRef::gpu(200)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Runtime);
        assert!(error.message().contains("no accelerator is available as gpu:200"), "{error}");
        if crate::accelerator_count() == 0 {
            let why = error.message();
            let library = why.contains("libcuda.so.1") && why.contains("install the NVIDIA driver");
            assert!(library || why.contains("found no GPU") || why.contains("cuInit"), "{error}");
        }
    }
}
