//! The vocabulary of max-rs: what a dtype, a dimension, a shape, a type, a device and an error are, and
//! what each scalar op means. Plain data and pure functions; every other crate builds on these.

#![forbid(unsafe_code)]

pub mod bytes;
pub mod checksum;
pub mod collective;
pub mod device;
pub mod dim;
pub mod dtype;
pub mod element;
pub mod error;
pub mod kernel;
pub mod layout;
pub mod memory;
pub mod quantization;
pub mod random;
pub mod resample;
pub mod scalar;
pub mod shape;
pub mod signature;
pub mod small_float;
pub mod types;

pub use bytes::HostBytes;
pub use checksum::checksum;
pub use collective::Collective;
pub use device::{DeviceKind, DeviceRef};
pub use dim::{Bindings, Dim};
pub use dtype::DType;
pub use element::{Bool, Element, Number};
pub use error::{Error, ErrorKind, FileName, Location, Result};
pub use half::{bf16, f16};
pub use layout::{ConvInputLayout, FilterLayout, Strided, ViewIndex};
pub use quantization::{BlockParameters, QuantizationConfig, QuantizationEncoding};
pub use random::Distribution;
pub use resample::{Coordinates, Interpolation};
pub use scalar::ScalarOp;
pub use shape::Shape;
pub use signature::{OpSignature, Parameter, Parameters};
pub use types::{BufferType, TensorType, Type};
