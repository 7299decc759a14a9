//! Operands: what an op accepts as a tensor, and how operands are brought to one dtype and one device.
//!
//! Tensors, dims and shapes are strong: they keep their dtype and promote exactly. Numbers and arrays are
//! weak: they take the dtype of the tensors they are used with, if it can hold their values. All but tensors are put
//! on the device of the tensors they are used with.

use std::any::Any;
use std::sync::Arc;

use max_core::{DType, DeviceRef, Dim, Error, Number, Result, Shape, bail};

use crate::graph::record_one;
use crate::host::HostTensor;
use crate::ops::cast::cast_value;
use crate::ops::constant::{Constant, ShapeToTensor};
use crate::ops::transfer_to;
use crate::value::{TensorValue, Value};
use crate::weight::Weight;

/// Something that has a tensor value in the graph being built.
pub trait HasTensorValue: Any + Send + Sync {
    /// Its value in the current graph.
    fn tensor_value(self: Arc<Self>) -> Result<TensorValue>;
}

/// Something an op accepts as a tensor. A failed expression is an operand too: the op returns its error.
#[derive(Clone)]
pub struct Operand(Result<Kind>);

#[derive(Clone)]
enum Kind {
    Value(Value),
    Object(Arc<dyn HasTensorValue>),
    Number(Number),
    Array(HostTensor),
    Dim(Dim),
    Shape(Shape),
}

/// An operand resolved in its graph: a tensor, or still weak.
enum Resolved {
    Strong(TensorValue),
    /// Sizes, which are known everywhere.
    Sizes(TensorValue),
    Number(Number),
    Array(HostTensor),
}

impl Operand {
    pub(crate) fn number(number: Number) -> Operand {
        Operand(Ok(Kind::Number(number)))
    }

    /// Its value, if it is a plain number.
    pub(crate) fn as_number(&self) -> Option<Number> {
        match self.0 {
            Ok(Kind::Number(number)) => Some(number),
            _ => None,
        }
    }

    /// Its value, if it is an integer that is known; an error if that is more than 64 bits.
    pub(crate) fn as_size(&self) -> Option<Result<i64>> {
        match self.0 {
            Ok(Kind::Number(Number::Int(i))) => {
                Some(i64::try_from(i).map_err(|_| Error::value(format!("{i} exceeds 64 bits"))))
            }
            Ok(Kind::Dim(Dim::Static(size))) => Some(Ok(size)),
            _ => None,
        }
    }

    /// The array that it is, if it is one.
    pub(crate) fn as_array(&self) -> Option<&HostTensor> {
        match &self.0 {
            Ok(Kind::Array(array)) => Some(array),
            _ => None,
        }
    }

    fn resolve(self) -> Result<Resolved> {
        Ok(match self.0? {
            Kind::Value(value) => Resolved::Strong(value.tensor()?),
            Kind::Object(object) => Resolved::Strong(object.tensor_value()?),
            Kind::Dim(dim) => {
                Resolved::Sizes(record_one(ShapeToTensor { dims: [dim].into(), scalar: true }, [])?)
            }
            Kind::Shape(dims) => Resolved::Sizes(record_one(ShapeToTensor { dims, scalar: false }, [])?),
            Kind::Number(number) => Resolved::Number(number),
            Kind::Array(array) => Resolved::Array(array),
        })
    }

    /// Converts it to a tensor on its own: arrays keep their dtype, numbers take their default one, both on the host.
    pub fn tensor(self) -> Result<TensorValue> {
        self.resolve()?.tensor(None)
    }

    /// Returns it as a tensor, which it must already be: numbers and arrays are errors.
    pub fn strong(self, what: &str) -> Result<TensorValue> {
        match self.resolve()? {
            Resolved::Strong(value) | Resolved::Sizes(value) => Ok(value),
            _ => bail!(
                type_,
                "{what} must be a tensor, not a number or an array: make a Tensor of it, or a constant of the graph with ops.constant"
            ),
        }
    }

    /// Converts it to a tensor: with the dtype and device of another one if it is weak, else with its own dtype.
    pub fn like(self, other: &TensorValue) -> Result<TensorValue> {
        self.resolve()?.tensor(Some((other.dtype(), other.device())))
    }

    /// Converts a number or an array to a tensor of a dtype on a device; anything else keeps its own.
    pub(crate) fn weak(self, dtype: DType, device: DeviceRef) -> Result<TensorValue> {
        self.resolve()?.tensor(Some((dtype, device)))
    }

    /// Converts a number or an array to a tensor of its own dtype on a device; anything else stays where it is.
    pub(crate) fn on(self, device: DeviceRef) -> Result<TensorValue> {
        let resolved = self.resolve()?;
        let dtype = resolved.dtype();
        resolved.tensor(Some((dtype, device)))
    }

    fn value(self) -> Result<Value> {
        match self.0 {
            Ok(Kind::Value(value)) => Ok(value),
            other => Operand(other).tensor().map(Value::from),
        }
    }
}

impl Resolved {
    /// Turns a weak operand into a constant of the given dtype, or its own, on a device; puts sizes on the device.
    fn tensor(self, like: Option<(DType, DeviceRef)>) -> Result<TensorValue> {
        let (dtype, device) = like.unzip();
        let device = device.unwrap_or(DeviceRef::CPU);
        let value = match self {
            Resolved::Strong(value) => return Ok(value),
            Resolved::Sizes(value) => return transfer_to(&value, device),
            Resolved::Number(n) => HostTensor::scalar(n, dtype.unwrap_or(n.natural_dtype()))?,
            Resolved::Array(a) => a.cast_checked(dtype.unwrap_or(a.dtype()))?,
        };
        record_one(Constant { value, device }, [])
    }

    /// The tensor that keeps its dtype.
    fn strong(&self) -> Option<&TensorValue> {
        match self {
            Resolved::Strong(value) | Resolved::Sizes(value) => Some(value),
            _ => None,
        }
    }

    /// The tensor that stays where it is.
    fn placed(&self) -> Option<&TensorValue> {
        match self {
            Resolved::Strong(value) => Some(value),
            _ => None,
        }
    }

    fn dtype(&self) -> DType {
        match self {
            Resolved::Strong(value) | Resolved::Sizes(value) => value.dtype(),
            Resolved::Number(n) => n.natural_dtype(),
            Resolved::Array(a) => a.dtype(),
        }
    }
}

/// Converts the members of a list to tensors: weak ones take the dtype and the device of the first strong one.
pub fn together(operands: Operands) -> Result<Vec<TensorValue>> {
    let resolved = operands.0.into_iter().map(Operand::resolve).collect::<Result<Vec<_>>>()?;
    let dtype = match resolved.iter().find_map(Resolved::strong) {
        Some(value) => value.dtype(),
        None => weak_dtype(&resolved)?,
    };
    let device = resolved.iter().find_map(Resolved::placed).map_or(DeviceRef::CPU, TensorValue::device);
    let like = (dtype, device);
    resolved.into_iter().map(|r| r.tensor(Some(like))).collect()
}

/// Brings operands to one dtype: strong ones promote, weak ones follow. If all are weak they go to the host.
pub fn promote<const N: usize>(operands: [Operand; N]) -> Result<[TensorValue; N]> {
    promote_on(operands, DeviceRef::CPU)
}

/// Like [`promote`], with another device for operands that are all weak.
pub fn promote_on<const N: usize>(operands: [Operand; N], fallback: DeviceRef) -> Result<[TensorValue; N]> {
    let resolved = operands.into_iter().map(Operand::resolve).collect::<Result<Vec<_>>>()?;
    let strong = resolved.iter().filter_map(Resolved::strong);
    let device = same_device(resolved.iter().filter_map(Resolved::placed))?.unwrap_or(fallback);
    let dtype = match strong.map(|v| Ok(v.dtype())).reduce(|a, b| a?.promote(b?)) {
        Some(dtype) => dtype?,
        None => weak_dtype(&resolved)?,
    };
    let values = resolved.into_iter().map(|r| cast_value(&r.tensor(Some((dtype, device)))?, dtype));
    let values: Vec<_> = values.collect::<Result<_>>()?;
    values.try_into().map_err(|_| Error::internal("promotion changed the number of operands"))
}

/// The dtype of operands none of which is a tensor: arrays take precedence over numbers, floats over integers.
fn weak_dtype(operands: &[Resolved]) -> Result<DType> {
    let arrays = operands.iter().filter(|r| matches!(r, Resolved::Array(_)));
    if let Some(dtype) = arrays.map(|r| Ok(r.dtype())).reduce(|a, b| a?.promote(b?)) {
        return dtype;
    }
    let rank = |dtype: &DType| (dtype.is_float(), dtype.is_integral());
    Ok(operands.iter().map(Resolved::dtype).max_by_key(rank).unwrap_or(DType::Float32))
}

/// The common device of values, if there are any.
pub fn same_device<'a>(values: impl IntoIterator<Item = &'a TensorValue>) -> Result<Option<DeviceRef>> {
    let mut devices = values.into_iter().map(TensorValue::device);
    let Some(first) = devices.next() else { return Ok(None) };
    match devices.find(|&d| d != first) {
        Some(other) => bail!(value, "Input values must be on the same device; got {first} and {other}"),
        None => Ok(Some(first)),
    }
}

/// Several operands, for ops that take a list and for graph outputs.
#[derive(Clone)]
pub struct Operands(Vec<Operand>);

impl Operands {
    /// Each as a value of the current graph.
    pub(crate) fn into_values(self) -> Result<Vec<Value>> {
        self.0.into_iter().map(Operand::value).collect()
    }
}

macro_rules! operand_from {
    ($($type:ty: $x:ident => $kind:expr;)*) => {$(
        impl From<$type> for Operand {
            fn from($x: $type) -> Operand {
                Operand($kind)
            }
        }

        impl From<$type> for Operands {
            fn from(x: $type) -> Operands {
                Operands(vec![x.into()])
            }
        }
    )*};
}

operand_from! {
    TensorValue: v => Ok(Kind::Value(v.into()));
    &TensorValue: v => Ok(Kind::Value(v.into()));
    Value: v => Ok(Kind::Value(v));
    &Value: v => Ok(Kind::Value(v.clone()));
    &Weight: w => Ok(Kind::Object(Arc::new(w.clone())));
    Arc<dyn HasTensorValue>: o => Ok(Kind::Object(o));
    HostTensor: a => Ok(Kind::Array(a));
    bool: b => Ok(Kind::Number(Number::Bool(b)));
    i32: i => Ok(Kind::Number(Number::Int(i.into())));
    i64: i => Ok(Kind::Number(Number::Int(i.into())));
    u64: i => Ok(Kind::Number(Number::Int(i.into())));
    f32: f => Ok(Kind::Number(Number::Float(f.into())));
    f64: f => Ok(Kind::Number(Number::Float(f)));
    Dim: d => Ok(Kind::Dim(d));
    Shape: s => Ok(Kind::Shape(s));
    &Shape: s => Ok(Kind::Shape(s.clone()));
}

impl<T: Into<Operand>> From<Result<T>> for Operand {
    fn from(operand: Result<T>) -> Operand {
        operand.map_or_else(|e| Operand(Err(e)), Into::into)
    }
}

impl<T: Into<Operand>> From<Result<T>> for Operands {
    fn from(operand: Result<T>) -> Operands {
        Operands(vec![operand.into()])
    }
}

impl<T: Into<Operand>> From<Vec<T>> for Operands {
    fn from(operands: Vec<T>) -> Operands {
        Operands(operands.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Operand>, const N: usize> From<[T; N]> for Operands {
    fn from(operands: [T; N]) -> Operands {
        Operands(operands.into_iter().map(Into::into).collect())
    }
}

impl From<Result<Vec<Value>>> for Operands {
    fn from(operands: Result<Vec<Value>>) -> Operands {
        match operands {
            Ok(operands) => operands.into(),
            Err(e) => Operands(vec![Operand(Err(e))]),
        }
    }
}

impl From<Result<Vec<TensorValue>>> for Operands {
    fn from(operands: Result<Vec<TensorValue>>) -> Operands {
        match operands {
            Ok(operands) => operands.into(),
            Err(e) => Operands(vec![Operand(Err(e))]),
        }
    }
}
