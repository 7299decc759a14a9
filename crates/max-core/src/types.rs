//! The types of graph values.

use std::fmt;
use std::sync::Arc;

use crate::{DType, DeviceRef, Dim, FilterLayout, Result, Shape, bail};

/// The type of a tensor: element type, shape, device.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The type of its elements.
    pub dtype: DType,
    /// Its dims.
    pub shape: Shape,
    /// Where it lives.
    pub device: DeviceRef,
    /// The axis order of a filter, where it is known.
    pub layout: Option<FilterLayout>,
}

impl TensorType {
    /// A tensor type; see [`TensorType::validate`] for what is checked when it enters a graph.
    pub fn new(dtype: DType, shape: impl Into<Shape>, device: impl Into<DeviceRef>) -> TensorType {
        TensorType { dtype, shape: shape.into(), device: device.into(), layout: None }
    }

    /// The mutable twin.
    pub fn as_buffer(&self) -> BufferType {
        BufferType { dtype: self.dtype, shape: self.shape.clone(), device: self.device }
    }

    /// Checks that static dims are not negative and that their bytes can be counted.
    pub fn validate(&self) -> Result<()> {
        validate(self.dtype, &self.shape)
    }

    /// The same type with another shape and no filter layout.
    pub fn with_shape(&self, shape: impl Into<Shape>) -> TensorType {
        TensorType::new(self.dtype, shape, self.device)
    }

    /// The same type with another dtype.
    pub fn with_dtype(&self, dtype: DType) -> TensorType {
        TensorType { dtype, ..self.clone() }
    }
}

/// The type of a mutable tensor.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct BufferType {
    /// The type of its elements.
    pub dtype: DType,
    /// Its dims.
    pub shape: Shape,
    /// Where it lives.
    pub device: DeviceRef,
}

impl BufferType {
    /// A buffer type.
    pub fn new(dtype: DType, shape: impl Into<Shape>, device: impl Into<DeviceRef>) -> BufferType {
        BufferType { dtype, shape: shape.into(), device: device.into() }
    }

    /// The immutable twin.
    pub fn as_tensor(&self) -> TensorType {
        TensorType::new(self.dtype, &self.shape, self.device)
    }
}

/// The most axes a tensor can have.
pub const MAX_RANK: usize = 64;

fn validate(dtype: DType, shape: &Shape) -> Result<()> {
    if shape.rank() > MAX_RANK {
        bail!(value, "a tensor has at most {MAX_RANK} axes; got {}", shape.rank());
    }
    let mut bytes = dtype.size_in_bytes() as i64;
    for dim in shape.iter() {
        dim.validate()?;
        if let Dim::Static(size) = dim {
            if *size < 0 {
                bail!(type_, "Static tensor dimensions must be non-negative; got {size} in {shape}");
            }
            match bytes.checked_mul((*size).max(1)) {
                Some(product) => bytes = product,
                None => bail!(value, "a {dtype} tensor of shape {shape} overflows: its size exceeds 64 bits"),
            }
        }
    }
    Ok(())
}

/// The type of any graph value.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Type {
    /// An immutable tensor.
    Tensor(TensorType),
    /// A mutable tensor.
    Buffer(BufferType),
    /// Something only custom ops look into, by the name of its type.
    Opaque(Arc<str>),
}

impl Type {
    /// Checks sizes; see [`TensorType::validate`].
    pub fn validate(&self) -> Result<()> {
        match self {
            Type::Tensor(t) => t.validate(),
            Type::Buffer(b) => validate(b.dtype, &b.shape),
            Type::Opaque(_) => Ok(()),
        }
    }

    /// The device, where the type has one.
    pub fn device(&self) -> Option<DeviceRef> {
        match self {
            Type::Tensor(t) => Some(t.device),
            Type::Buffer(b) => Some(b.device),
            Type::Opaque(_) => None,
        }
    }

    /// The dtype and shape of tensors and buffers.
    pub fn array(&self) -> Option<(DType, &Shape)> {
        match self {
            Type::Tensor(t) => Some((t.dtype, &t.shape)),
            Type::Buffer(b) => Some((b.dtype, &b.shape)),
            Type::Opaque(_) => None,
        }
    }
}

impl From<TensorType> for Type {
    fn from(t: TensorType) -> Type {
        Type::Tensor(t)
    }
}

impl From<BufferType> for Type {
    fn from(t: BufferType) -> Type {
        Type::Buffer(t)
    }
}

/// The compact form of the text IR: `float32[a, 3]`, and `@gpu:0` behind it where it is not the host.
fn compact(f: &mut fmt::Formatter<'_>, dtype: DType, shape: &Shape, device: DeviceRef) -> fmt::Result {
    write!(f, "{dtype}{shape}")?;
    if device == DeviceRef::CPU { Ok(()) } else { write!(f, "@{device}") }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        compact(f, self.dtype, &self.shape, self.device)?;
        match self.layout {
            Some(layout) => write!(f, "#{layout}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for BufferType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("&")?;
        compact(f, self.dtype, &self.shape, self.device)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Tensor(t) => t.fmt(f),
            Type::Buffer(b) => b.fmt(f),
            Type::Opaque(name) => write!(f, "opaque<{name:?}>"),
        }
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorType(dtype={}, shape={:?}, device={})", self.dtype, self.shape, self.device)
    }
}

impl fmt::Debug for BufferType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferType(dtype={}, shape={:?}, device={})", self.dtype, self.shape, self.device)
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Tensor(t) => t.fmt(f),
            Type::Buffer(b) => b.fmt(f),
            Type::Opaque(name) => write!(f, "OpaqueType(name='{name}')"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_validates() {
        let t = TensorType::new(DType::Float32, ("a", 3), DeviceRef::CPU);
        assert_eq!(format!("{t:?}"), "TensorType(dtype=float32, shape=[Dim('a'), Dim(3)], device=cpu:0)");
        assert_eq!(t.to_string(), "float32[a, 3]");
        assert_eq!(Type::from(t.as_buffer()).to_string(), "&float32[a, 3]");
        assert!(t.with_shape(["1a"]).validate().unwrap_err().message().contains("Invalid name"));
        assert!(t.with_shape([-1]).validate().unwrap_err().message().contains("non-negative"));
        assert!(t.with_shape([1i64 << 40, 1 << 40]).validate().unwrap_err().message().contains("overflow"));
        assert!(t.with_shape([0i64, 1 << 40]).validate().is_ok());
        assert!(t.with_shape([1; 65]).validate().unwrap_err().message().contains("64 axes"));
    }
}
