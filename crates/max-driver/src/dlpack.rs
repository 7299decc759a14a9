//! DLPack: sharing buffers with other libraries in both directions, without copies.
//!
//! The structures are those of DLPack 1.1, with their published names. Ownership moves with the pointer: an exported
//! tensor keeps its buffer alive until its consumer calls the deleter, and an imported tensor's deleter is called
//! exactly once, when the last buffer over it is dropped or when the import fails.

mod export;
mod import;

pub use export::{export, export_versioned};
pub use import::{import, import_versioned};

use std::ffi::c_void;

use max_core::{DType, DeviceKind, Error, Result, bail};

use crate::{Device, is_virtual_device_mode};

/// The protocol version that a tensor states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLPackVersion {
    /// Tensors of another major version cannot be read.
    pub major: u32,
    /// Grows with compatible additions.
    pub minor: u32,
}

/// The version of the tensors that are exported.
pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 1 };

/// Set in `flags` if the elements must not be written.
pub const FLAG_READ_ONLY: u64 = 1 << 0;
/// Set in `flags` if the producer made a copy for the consumer.
pub const FLAG_COPIED: u64 = 1 << 1;
/// Set in `flags` if elements of fewer than eight bits have a byte each; without it they are packed.
pub const FLAG_PADDED: u64 = 1 << 2;

/// Where a tensor lives: a type of device by its published number, and which device of that type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLDevice {
    /// The type; 1 is the host, 2 is CUDA.
    pub device_type: i32,
    /// Which device of its type.
    pub device_id: i32,
}

/// The published numbers of the device types that buffers can be on.
const CPU: i32 = 1;
const CUDA: i32 = 2;
/// Page-locked host memory, and CUDA managed memory, which migrates between the host and a GPU by itself.
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;

impl DLDevice {
    /// Whether it is a CUDA device, whose tensors are used in stream order.
    pub fn is_cuda(self) -> bool {
        matches!(self.device_type, CUDA | CUDA_MANAGED)
    }
}

/// How other libraries see a device; an error for a virtual one, which only exists here.
impl TryFrom<&Device> for DLDevice {
    type Error = Error;

    fn try_from(device: &Device) -> Result<DLDevice> {
        let device_type = match device.kind() {
            DeviceKind::Cpu => CPU,
            DeviceKind::Gpu if device.gpu().is_some() => CUDA,
            DeviceKind::Gpu => bail!(
                runtime,
                "{device} is virtual, and other libraries do not know it; copy the elements to the CPU first"
            ),
        };
        Ok(DLDevice { device_type, device_id: device.id() as i32 })
    }
}

/// The device on which a tensor can be used.
impl TryFrom<DLDevice> for Device {
    type Error = Error;

    fn try_from(device: DLDevice) -> Result<Device> {
        let DLDevice { device_type, device_id } = device;
        let name = device_name(device_type);
        match (device_type, u32::try_from(device_id)) {
            (CPU | CUDA_HOST, _) => Ok(Device::cpu()),
            (CUDA | CUDA_MANAGED, Ok(_)) if is_virtual_device_mode() => bail!(
                runtime,
                "a DLPack tensor on {name}:{device_id} cannot be imported: accelerators are virtual devices here"
            ),
            (CUDA | CUDA_MANAGED, Ok(id)) => Device::accelerator(Some(id)).map_err(|error| {
                Error::runtime(format!("a DLPack tensor on {name}:{device_id} cannot be imported: {error}"))
            }),
            _ => bail!(
                runtime,
                "a DLPack tensor on {name}:{device_id} (device type {device_type}) cannot be imported: only memory of \
                 the CPU and of CUDA devices can be used; copy it to the CPU first"
            ),
        }
    }
}

/// The type of an element: a family by its published number, its width, and the number of lanes of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLDataType {
    /// The family.
    pub code: u8,
    /// The width of one lane in bits.
    pub bits: u8,
    /// The number of lanes; 1 for scalars.
    pub lanes: u16,
}

/// A tensor that its producer manages.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DLTensor {
    /// The memory.
    pub data: *mut c_void,
    /// The device that it is on.
    pub device: DLDevice,
    /// The number of axes.
    pub ndim: i32,
    /// The type of the elements.
    pub dtype: DLDataType,
    /// The size of each axis.
    pub shape: *mut i64,
    /// The stride of each axis in elements; null if row-major without gaps.
    pub strides: *mut i64,
    /// The offset in bytes of the first element in the memory.
    pub byte_offset: u64,
}

/// A tensor with its deleter, as DLPack had it before version 1.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// The producer's own data.
    pub manager_ctx: *mut c_void,
    /// Frees the tensor, this structure included.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// A tensor with its deleter, version and flags.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensorVersioned {
    /// The version; the fields up to the deleter mean the same in all versions.
    pub version: DLPackVersion,
    /// The producer's own data.
    pub manager_ctx: *mut c_void,
    /// Frees the tensor, this structure included.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// A set of the `FLAG_` bits.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

impl From<DType> for DLDataType {
    fn from(dtype: DType) -> DLDataType {
        let code = match dtype {
            DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => 0,
            DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64 => 1,
            DType::Float16 | DType::Float32 | DType::Float64 => 2,
            DType::BFloat16 => 4,
            DType::Bool => 6,
            DType::Float8E4M3FN => 10,
            DType::Float8E4M3FNUZ => 11,
            DType::Float8E5M2 => 12,
            DType::Float8E5M2FNUZ => 13,
            DType::Float8E8M0FNU => 14,
            DType::Float6E2M3FN => 15,
            DType::Float6E3M2FN => 16,
            DType::Float4E2M1FN => 17,
        };
        DLDataType { code, bits: dtype.size_in_bits() as u8, lanes: 1 }
    }
}

impl TryFrom<DLDataType> for DType {
    type Error = max_core::Error;

    fn try_from(dl: DLDataType) -> Result<DType> {
        if let Some(dtype) = DType::ALL.iter().find(|&&dtype| DLDataType::from(dtype) == dl) {
            return Ok(*dtype);
        }
        let DLDataType { code, bits, lanes } = dl;
        let families = [
            "int",
            "uint",
            "float",
            "opaque handle",
            "bfloat",
            "complex",
            "bool",
            "float8_e3m4",
            "float8_e4m3",
        ];
        let family = families.get(usize::from(code)).copied().unwrap_or("unknown");
        bail!(
            value,
            "there is no dtype for the DLPack type {family} (code {code}) with {bits} bits and {lanes} lane{}",
            if lanes == 1 { "" } else { "s" }
        )
    }
}

/// The published name of a device type.
fn device_name(device_type: i32) -> &'static str {
    const NAMES: [&str; 18] = [
        "unknown",
        "CPU",
        "CUDA",
        "CUDAHost",
        "OpenCL",
        "unknown",
        "unknown",
        "Vulkan",
        "Metal",
        "VPI",
        "ROCM",
        "ROCMHost",
        "ExtDev",
        "CUDAManaged",
        "OneAPI",
        "WebGPU",
        "Hexagon",
        "MAIA",
    ];
    usize::try_from(device_type).ok().and_then(|i| NAMES.get(i).copied()).unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_published_layout() {
        assert_eq!((size_of::<DLTensor>(), size_of::<DLManagedTensor>()), (48, 64));
        assert_eq!(size_of::<DLManagedTensorVersioned>(), 80);
        assert_eq!(std::mem::offset_of!(DLTensor, byte_offset), 40);
        assert_eq!(std::mem::offset_of!(DLManagedTensorVersioned, dl_tensor), 32);
    }

    #[test]
    fn dtypes_lead_there_and_back() {
        for &dtype in DType::ALL {
            assert_eq!(DType::try_from(DLDataType::from(dtype)), Ok(dtype));
        }
        assert_eq!(DLDataType::from(DType::Bool), DLDataType { code: 6, bits: 8, lanes: 1 });
        let refused = |code, bits, lanes, words: &str| {
            let error = DType::try_from(DLDataType { code, bits, lanes }).unwrap_err();
            assert!(error.message().contains(words), "{error}");
        };
        refused(5, 64, 1, "complex (code 5) with 64 bits");
        refused(2, 32, 4, "4 lanes");
        refused(0, 4, 1, "int (code 0) with 4 bits");
        refused(200, 8, 1, "code 200");
        refused(17, 8, 1, "with 8 bits");
        assert_eq!(DLDataType::from(DType::Float4E2M1FN), DLDataType { code: 17, bits: 4, lanes: 1 });
        assert_eq!(DLDataType::from(DType::Float6E2M3FN), DLDataType { code: 15, bits: 6, lanes: 1 });
        assert_eq!(DLDataType::from(DType::Float8E8M0FNU), DLDataType { code: 14, bits: 8, lanes: 1 });
    }

    #[test]
    fn devices_have_names() {
        assert_eq!(
            (device_name(2), device_name(17), device_name(-1), device_name(99)),
            ("CUDA", "MAIA", "unknown", "unknown")
        );
    }
}
