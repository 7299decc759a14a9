//! The utilization, temperature and power of a GPU, from its management library. Without the library they are unknown,
//! which is not an error.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use max_core::Number;

use super::Gpu;
use super::library::{Wanted, library};

type Handle = *mut c_void;

library! {
    /// The management library.
    Nvml = Wanted {
        title: "NVML",
        files: &["libnvidia-ml.so.1", "libnvidia-ml.so"],
        install: "it comes with the NVIDIA driver",
    };
    fn nvmlInit_v2() -> c_int;
    fn nvmlDeviceGetHandleByPciBusId_v2(bus: *const c_char, device: *mut Handle) -> c_int;
    fn nvmlDeviceGetUtilizationRates(device: Handle, rates: *mut [c_uint; 2]) -> c_int;
    fn nvmlDeviceGetTemperature(device: Handle, sensor: c_int, degrees: *mut c_uint) -> c_int;
    fn nvmlDeviceGetPowerUsage(device: Handle, milliwatts: *mut c_uint) -> c_int;
}

/// A GPU as the library knows it.
pub(super) struct Meter {
    nvml: &'static Nvml,
    handle: Handle,
}

/// The sensor of the chip itself.
const CHIP: c_int = 0;

fn nvml() -> Option<&'static Nvml> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    let load = || {
        let nvml = Nvml::load().ok()?;
        // SAFETY: this is the first call into the library.
        (unsafe { nvml.nvmlInit_v2() } == 0).then_some(nvml)
    };
    NVML.get_or_init(load).as_ref()
}

impl Gpu {
    /// Its utilization in percent of the time, degrees Celsius and watts, as far as they are known.
    pub(crate) fn readings(&self) -> Vec<(&'static str, Number)> {
        self.meter.get_or_init(|| self.find_meter()).as_ref().map(Meter::read).unwrap_or_default()
    }

    /// The same GPU by its PCI bus id: the two libraries number GPUs differently.
    fn find_meter(&self) -> Option<Meter> {
        let (nvml, mut bus, mut handle) = (nvml()?, [0 as c_char; 32], std::ptr::null_mut());
        // SAFETY: the string is zero-terminated inside the array, and there is a variable for the handle.
        let found = unsafe {
            self.api.cuDeviceGetPCIBusId(bus.as_mut_ptr(), bus.len() as c_int - 1, self.device) == 0
                && nvml.nvmlDeviceGetHandleByPciBusId_v2(bus.as_ptr(), &raw mut handle) == 0
        };
        found.then_some(Meter { nvml, handle })
    }
}

impl Meter {
    fn read(&self) -> Vec<(&'static str, Number)> {
        let (nvml, mut readings) = (self.nvml, Vec::new());
        let (mut rates, mut degrees, mut milliwatts) = ([0; 2], 0, 0);
        // SAFETY: each writes its numbers. Calls for what a GPU does not measure fail, and those readings are left out.
        unsafe {
            if nvml.nvmlDeviceGetUtilizationRates(self.handle, &raw mut rates) == 0 {
                readings.push(("gpu_utilization", Number::Int(rates[0].into())));
                readings.push(("memory_utilization", Number::Int(rates[1].into())));
            }
            if nvml.nvmlDeviceGetTemperature(self.handle, CHIP, &raw mut degrees) == 0 {
                readings.push(("temperature", Number::Int(degrees.into())));
            }
            if nvml.nvmlDeviceGetPowerUsage(self.handle, &raw mut milliwatts) == 0 {
                readings.push(("power_usage", Number::Float(f64::from(milliwatts) / 1e3)));
            }
        }
        readings
    }
}
