//! Symbolic devices: what a graph says about where a value lives.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceKind {
    /// The host.
    Cpu,
    /// An accelerator.
    Gpu,
}

impl DeviceKind {
    /// `cpu` or `gpu`.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Gpu => "gpu",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DeviceKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<DeviceKind> {
        match text {
            "cpu" => Ok(DeviceKind::Cpu),
            "gpu" => Ok(DeviceKind::Gpu),
            _ => Err(Error::value(format!("'{text}' is not a kind of device; expected 'cpu' or 'gpu'"))),
        }
    }
}

/// A device by kind and number, such as `gpu:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceRef {
    /// Host or accelerator.
    pub kind: DeviceKind,
    /// Its number among those of its kind.
    pub id: u32,
}

impl DeviceRef {
    /// The host.
    pub const CPU: DeviceRef = DeviceRef::cpu(0);

    /// The host with a number.
    pub const fn cpu(id: u32) -> Self {
        DeviceRef { kind: DeviceKind::Cpu, id }
    }

    /// An accelerator.
    pub const fn gpu(id: u32) -> Self {
        DeviceRef { kind: DeviceKind::Gpu, id }
    }

    /// Whether it is the host.
    pub fn is_cpu(self) -> bool {
        self.kind == DeviceKind::Cpu
    }

    /// Whether it is an accelerator.
    pub fn is_gpu(self) -> bool {
        self.kind == DeviceKind::Gpu
    }
}

impl fmt::Display for DeviceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.id)
    }
}

impl FromStr for DeviceRef {
    type Err = Error;

    fn from_str(text: &str) -> Result<DeviceRef> {
        let bad = || {
            Error::value(format!("'{text}' is not a device; expected something like 'cpu', 'gpu' or 'gpu:1'"))
        };
        let (kind, id) = text.split_once(':').unwrap_or((text, "0"));
        let kind = kind.parse().map_err(|_| bad())?;
        Ok(DeviceRef { kind, id: id.parse().map_err(|_| bad())? })
    }
}
