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
    /// Its device.
    pub device: DeviceRef,
    /// The axis order of a filter, if known.
    pub layout: Option<FilterLayout>,
}

impl TensorType {
    /// A tensor type; see [`TensorType::validate`] for what is checked when it enters a graph.
    pub fn new(dtype: DType, shape: impl Into<Shape>, device: impl Into<DeviceRef>) -> TensorType {
        TensorType { dtype, shape: shape.into(), device: device.into(), layout: None }
    }

    /// The buffer type with the same dtype, shape and device.
    pub fn as_buffer(&self) -> BufferType {
        BufferType { dtype: self.dtype, shape: self.shape.clone(), device: self.device }
    }

    /// Checks the rank, the names of symbols, and that no static dim is negative. A type does not allocate: its sizes
    /// may exceed any machine's memory.
    pub fn validate(&self) -> Result<()> {
        validate(&self.shape)
    }

    /// The same type with another shape and no filter layout.
    pub fn with_shape(&self, shape: impl Into<Shape>) -> TensorType {
        TensorType::new(self.dtype, shape, self.device)
    }

    /// The same type with another dtype.
    pub fn cast(&self, dtype: DType) -> TensorType {
        TensorType { dtype, ..self.clone() }
    }

    /// The same type on another device.
    pub fn to(&self, device: impl Into<DeviceRef>) -> TensorType {
        TensorType { device: device.into(), ..self.clone() }
    }
}

/// The type of a mutable tensor.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct BufferType {
    /// The type of its elements.
    pub dtype: DType,
    /// Its dims.
    pub shape: Shape,
    /// Its device.
    pub device: DeviceRef,
}

impl BufferType {
    /// A buffer type.
    pub fn new(dtype: DType, shape: impl Into<Shape>, device: impl Into<DeviceRef>) -> BufferType {
        BufferType { dtype, shape: shape.into(), device: device.into() }
    }

    /// The tensor type with the same dtype, shape and device.
    pub fn as_tensor(&self) -> TensorType {
        TensorType::new(self.dtype, &self.shape, self.device)
    }

    /// The same type with another dtype.
    pub fn cast(&self, dtype: DType) -> BufferType {
        BufferType { dtype, ..self.clone() }
    }

    /// The same type on another device.
    pub fn to(&self, device: impl Into<DeviceRef>) -> BufferType {
        BufferType { device: device.into(), ..self.clone() }
    }
}

/// The maximum rank of a tensor.
pub const MAX_RANK: usize = 64;

fn validate(shape: &Shape) -> Result<()> {
    if shape.rank() > MAX_RANK {
        bail!(value, "a tensor has at most {MAX_RANK} axes; got {}", shape.rank());
    }
    for dim in shape.iter() {
        dim.validate()?;
        if let Dim::Static(size) = dim
            && *size < 0
        {
            bail!(type_, "Static tensor dimensions must be non-negative; got {size} in {shape}");
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
    /// Something that only custom ops can access, by the name of its type.
    Opaque(Arc<str>),
}

impl Type {
    /// Checks the shape; see [`TensorType::validate`].
    pub fn validate(&self) -> Result<()> {
        match self {
            Type::Tensor(t) => t.validate(),
            Type::Buffer(b) => validate(&b.shape),
            Type::Opaque(_) => Ok(()),
        }
    }

    /// The device, if the type has one.
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

/// The compact form of the text IR: `float32[a, 3]`, followed by `@gpu:0` or the like if it is not on the host.
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
        assert!(t.with_shape([i64::MAX; 3]).validate().is_ok());
        assert!(t.with_shape([1; 65]).validate().unwrap_err().message().contains("64 axes"));
    }

    #[test]
    fn cast_and_to_change_one_part() {
        let filter = TensorType {
            layout: Some(FilterLayout::RSCF),
            ..TensorType::new(DType::Float32, ("a", 3), DeviceRef::CPU)
        };
        assert_eq!(filter.cast(DType::Int8).to_string(), "int8[a, 3]#RSCF");
        assert_eq!(filter.to(DeviceRef::gpu(1)).to_string(), "float32[a, 3]@gpu:1#RSCF");
        assert_eq!(filter.as_buffer().cast(DType::Int8).to_string(), "&int8[a, 3]");
        assert_eq!(filter.as_buffer().to(DeviceRef::gpu(1)).to_string(), "&float32[a, 3]@gpu:1");
    }
}
