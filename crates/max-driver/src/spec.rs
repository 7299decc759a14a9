//! Devices by specification: what a configuration asks for, and what the machine has.

use max_core::{DeviceKind, Result, bail};

use crate::{Device, cuda, get_virtual_device_count};

/// The specification of a device: its kind and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceSpec {
    /// Its number among those of its kind; -1 stands for the first.
    pub id: i32,
    /// Host or accelerator.
    pub kind: DeviceKind,
}

impl DeviceSpec {
    /// The host. There is one, so any number means it; the documented default is -1.
    pub const fn cpu(id: i32) -> DeviceSpec {
        DeviceSpec { id, kind: DeviceKind::Cpu }
    }

    /// An accelerator; the documented default is 0.
    pub const fn accelerator(id: i32) -> DeviceSpec {
        DeviceSpec { id, kind: DeviceKind::Gpu }
    }
}

/// Opens the device of each specification.
pub fn load_devices(specs: &[DeviceSpec]) -> Result<Vec<Device>> {
    let load = |spec: &DeviceSpec| match (spec.kind, u32::try_from(spec.id)) {
        (DeviceKind::Cpu, _) => Ok(Device::cpu()),
        (DeviceKind::Gpu, Ok(id)) => Device::accelerator(Some(id)),
        (DeviceKind::Gpu, Err(_)) if spec.id == -1 => Device::accelerator(None),
        _ => bail!(
            value,
            "{} is not the number of a device; expected -1 for the first one, or 0 and up",
            spec.id
        ),
    };
    specs.iter().map(load).collect()
}

/// Whether the machine has every specified device.
pub fn devices_exist(specs: &[DeviceSpec]) -> bool {
    let count = accelerator_count() as i64;
    specs
        .iter()
        .all(|spec| spec.kind == DeviceKind::Cpu || (-1..count).contains(&i64::from(spec.id)) && count > 0)
}

/// All accelerators, or the host if there are none.
pub fn scan_available_devices() -> Vec<DeviceSpec> {
    match accelerator_count() {
        0 => vec![DeviceSpec::cpu(-1)],
        count => (0..count as i32).map(DeviceSpec::accelerator).collect(),
    }
}

/// The number of accelerators; in virtual device mode, that of the virtual devices.
pub fn accelerator_count() -> usize {
    match get_virtual_device_count() {
        0 => cuda::count().unwrap_or(0) as usize,
        count => count as usize,
    }
}

/// The API that programs the accelerator; `cpu` without one.
pub fn accelerator_api() -> &'static str {
    first_choice().api()
}

/// The architecture of the accelerator; an error if there is none.
pub fn accelerator_architecture_name() -> Result<String> {
    first_choice().architecture_name()
}

/// The first accelerator, or the host.
fn first_choice() -> Device {
    Device::accelerator(None).unwrap_or(Device::cpu())
}

#[cfg(test)]
mod tests {
    use super::*;
    use max_core::ErrorKind;

    #[test]
    fn descriptions_lead_to_devices() {
        assert_eq!(load_devices(&[DeviceSpec::cpu(-1), DeviceSpec::cpu(0)]), Ok(vec![Device::cpu(); 2]));
        assert_eq!(load_devices(&[DeviceSpec::accelerator(-2)]).unwrap_err().kind(), ErrorKind::Value);
        assert_eq!(devices_exist(&[DeviceSpec::accelerator(0)]), accelerator_count() > 0);
        let found = scan_available_devices();
        assert!(!found.is_empty() && devices_exist(&found));
        assert_eq!(accelerator_api() == "cpu", accelerator_count() == 0);
        assert_eq!(accelerator_architecture_name().is_ok(), accelerator_count() > 0);
    }
}
