//! Values: handles on the values of a graph, with the documented methods and operators.

use std::fmt;

use max_core::{BufferType, DType, DeviceRef, Error, Number, Result, Shape, TensorType, Type, bail};

use crate::graph::Graph;
use crate::ir::ValueId;
use crate::operand::Operand;
use crate::ops as graph_ops;
use crate::ops::reduce::Axes;
use crate::ops::slice::Indices;

/// Any value of a graph.
#[derive(Clone)]
pub struct Value {
    graph: Graph,
    id: ValueId,
    ty: Type,
}

impl Value {
    pub(crate) fn new(graph: Graph, id: ValueId, ty: &Type) -> Value {
        Value { graph, id, ty: ty.clone() }
    }

    /// The graph it belongs to.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Its id in the body of the graph.
    pub fn id(&self) -> ValueId {
        self.id
    }

    /// Its type.
    pub fn type_(&self) -> &Type {
        &self.ty
    }

    /// Converts it to a tensor value; an error if it is not one.
    pub fn tensor(&self) -> Result<TensorValue> {
        match &self.ty {
            Type::Tensor(ty) => Ok(TensorValue { graph: self.graph.clone(), id: self.id, ty: ty.clone() }),
            other => bail!(type_, "Value is not a TensorValue: it has type {other}"),
        }
    }

    /// Converts it to a buffer value; an error if it is not one.
    pub fn buffer(&self) -> Result<BufferValue> {
        match &self.ty {
            Type::Buffer(ty) => Ok(BufferValue { value: self.clone(), ty: ty.clone() }),
            other => bail!(type_, "Value is not a BufferValue: it has type {other}"),
        }
    }

    /// Converts it to an opaque value; an error if it is not one.
    pub fn opaque(&self) -> Result<OpaqueValue> {
        match &self.ty {
            Type::Opaque(_) => Ok(OpaqueValue(self.clone())),
            other => bail!(type_, "Value is not an opaque value: it has type {other}"),
        }
    }
}

/// An immutable tensor in a graph.
#[derive(Clone)]
pub struct TensorValue {
    graph: Graph,
    id: ValueId,
    ty: TensorType,
}

/// A mutable tensor in a graph.
#[derive(Clone)]
pub struct BufferValue {
    value: Value,
    ty: BufferType,
}

impl BufferValue {
    /// Its type.
    pub fn buffer_type(&self) -> &BufferType {
        &self.ty
    }

    /// Its shape.
    pub fn shape(&self) -> &Shape {
        &self.ty.shape
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// Where it lives.
    pub fn device(&self) -> DeviceRef {
        self.ty.device
    }

    /// Converts it to a value of any type.
    pub fn value(&self) -> &Value {
        &self.value
    }
}

/// A value whose contents only custom ops can access.
#[derive(Clone)]
pub struct OpaqueValue(Value);

impl OpaqueValue {
    /// Converts it to a value of any type.
    pub fn value(&self) -> &Value {
        &self.0
    }
}

impl TensorValue {
    pub(crate) fn new(graph: Graph, id: ValueId, ty: TensorType) -> TensorValue {
        TensorValue { graph, id, ty }
    }

    /// Its id in the body of the graph.
    pub fn id(&self) -> ValueId {
        self.id
    }

    /// The graph it belongs to.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Its type.
    pub fn tensor_type(&self) -> &TensorType {
        &self.ty
    }

    /// Its shape.
    pub fn shape(&self) -> &Shape {
        &self.ty.shape
    }

    /// The number of its dims.
    pub fn rank(&self) -> usize {
        self.ty.shape.rank()
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// Where it lives.
    pub fn device(&self) -> DeviceRef {
        self.ty.device
    }

    /// The last two axes swapped.
    #[track_caller]
    #[allow(non_snake_case, reason = "the documented name")]
    pub fn T(&self) -> Result<TensorValue> {
        graph_ops::transpose(self, -1, -2)
    }

    /// A subtensor; see [`Indices`].
    #[track_caller]
    pub fn slice(&self, indices: impl Into<Indices>) -> Result<TensorValue> {
        graph_ops::slice_tensor(self, indices)
    }
}

/// Methods that are ops with the value as their first operand.
macro_rules! methods {
    ($($(#[$doc:meta])* $method:ident($($arg:ident: $type:ty),*) = $op:ident;)*) => {
        impl TensorValue {
            $($(#[$doc])*
            #[track_caller]
            pub fn $method(&self, $($arg: impl Into<$type>),*) -> Result<TensorValue> {
                graph_ops::$op(self, $($arg),*)
            })*
        }
    };
}

methods! {
    /// See [`graph_ops::cast()`].
    cast(dtype: DType) = cast;
    /// See [`graph_ops::reshape()`].
    reshape(shape: Shape) = reshape;
    /// See [`graph_ops::broadcast_to()`].
    broadcast_to(shape: Shape) = broadcast_to;
    /// See [`graph_ops::flatten()`].
    flatten(start_dim: i64, end_dim: i64) = flatten;
    /// See [`graph_ops::permute()`].
    permute(dims: Vec<i64>) = permute;
    /// See [`graph_ops::transpose()`].
    transpose(dim_1: i64, dim_2: i64) = transpose;
    /// See [`graph_ops::rebind()`].
    rebind(shape: Shape, message: String) = rebind;
    /// See [`graph_ops::transfer_to()`].
    to(device: DeviceRef) = transfer_to;
    /// See [`graph_ops::argmax()`].
    argmax(axis: Axes) = argmax;
    /// See [`graph_ops::reduce_max()`].
    max(axis: Axes) = reduce_max;
    /// See [`graph_ops::reduce_min()`].
    min(axis: Axes) = reduce_min;
    /// See [`graph_ops::sum()`].
    sum(axis: Axes) = sum;
    /// See [`graph_ops::squeeze()`].
    squeeze(axis: i64) = squeeze;
    /// See [`graph_ops::unsqueeze()`].
    unsqueeze(axis: i64) = unsqueeze;
    /// See [`graph_ops::mean()`].
    mean(axis: Axes) = mean;
    /// See [`graph_ops::var()`].
    var(axis: Axes) = var;
    /// See [`graph_ops::stdev()`].
    stdev(axis: Axes) = stdev;
    /// See [`graph_ops::matmul()`].
    matmul(rhs: Operand) = matmul;
}

impl From<&TensorValue> for Value {
    fn from(tensor: &TensorValue) -> Value {
        Value { graph: tensor.graph.clone(), id: tensor.id, ty: Type::Tensor(tensor.ty.clone()) }
    }
}

impl From<&BufferValue> for BufferValue {
    fn from(buffer: &BufferValue) -> BufferValue {
        buffer.clone()
    }
}

impl From<&BufferValue> for Value {
    fn from(buffer: &BufferValue) -> Value {
        buffer.value.clone()
    }
}

impl From<TensorValue> for Value {
    fn from(tensor: TensorValue) -> Value {
        Value { graph: tensor.graph, id: tensor.id, ty: Type::Tensor(tensor.ty) }
    }
}

crate::tensor_operators!(TensorValue, graph_ops, [&Value, Value]);

impl TryFrom<Value> for TensorValue {
    type Error = Error;

    fn try_from(value: Value) -> Result<TensorValue> {
        value.tensor()
    }
}

impl fmt::Debug for TensorValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Value::from(self).fmt(f)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ty {
            Type::Tensor(TensorType { dtype, shape, device, .. }) => {
                write!(f, "TensorValue(dtype={dtype}, shape={shape:?}, device={device})")
            }
            Type::Buffer(BufferType { dtype, shape, device }) => {
                write!(f, "BufferValue(dtype={dtype}, shape={shape:?}, device={device})")
            }
            Type::Opaque(name) => write!(f, "OpaqueValue(name='{name}')"),
        }
    }
}

impl From<Number> for Operand {
    fn from(number: Number) -> Operand {
        Operand::number(number)
    }
}
