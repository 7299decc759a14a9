//! `Tensor`: the user's handle, its properties, methods and operators.

use std::fmt;
use std::sync::Arc;

use max_core::{DType, DeviceRef, Element, Error, Location, Number, Result, Shape, TensorType, bail};
use max_driver::{Buffer, Device};
use max_graph::graph::located;
use max_graph::ops::reduce::Axes;
use max_graph::ops::slice::Indices;
use max_graph::{HasTensorValue, Operand, Operands, TensorValue};

use crate::functions as F;
use crate::node::{Cell, State};
use crate::realize::{Checkpoint, Reason, realized};

/// An array whose elements exist or will be computed when they are read.
///
/// Tensors are immutable. Cloning makes another handle on the same tensor.
pub struct Tensor(Arc<Cell>);

impl Tensor {
    pub(crate) fn of(cell: Arc<Cell>) -> Tensor {
        cell.hold();
        Tensor(cell)
    }

    pub(crate) fn cell(&self) -> &Arc<Cell> {
        &self.0
    }

    /// A tensor over the memory of a buffer, without a copy.
    pub fn from_buffer(buffer: Buffer) -> Tensor {
        Tensor::of(Cell::real(buffer))
    }

    /// A tensor that represents a value of a graph under construction. Ops on it are recorded there; it cannot be read.
    pub fn from_value(value: TensorValue) -> Tensor {
        Tensor::of(Cell::new(value.tensor_type().clone(), State::Value(value)))
    }

    /// Its type.
    pub fn tensor_type(&self) -> &TensorType {
        &self.0.ty
    }

    /// Its shape.
    pub fn shape(&self) -> &Shape {
        &self.0.ty.shape
    }

    /// The number of its axes.
    pub fn rank(&self) -> usize {
        self.0.ty.shape.rank()
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.0.ty.dtype
    }

    /// The device it is on.
    pub fn device(&self) -> DeviceRef {
        self.0.ty.device
    }

    /// The number of its elements.
    pub fn num_elements(&self) -> Result<usize> {
        let count = self.shape().num_elements()?.as_static().and_then(|count| usize::try_from(count).ok());
        count.ok_or_else(|| Error::type_(format!("the number of elements of {} is not known", self.0.ty)))
    }

    /// Whether it has memory.
    pub fn is_real(&self) -> bool {
        self.0.is_real()
    }

    /// The graph value it represents, if any.
    pub fn value(&self) -> Option<TensorValue> {
        self.0.value()
    }

    /// Its memory, if any.
    pub fn storage(&self) -> Option<Buffer> {
        self.0.buffer()
    }

    /// Computes it, unless it is already computed.
    #[track_caller]
    pub fn realize(&self) -> Result<&Tensor> {
        located("realize", Location::caller(), || self.realize_until(&|| Ok(())))
    }

    /// Like [`Tensor::realize`], but calls `checkpoint` before each kernel; an error stops it.
    pub fn realize_until(&self, checkpoint: Checkpoint) -> Result<&Tensor> {
        if !self.is_real() {
            realized(&self.0, Reason::Read, checkpoint)?;
        }
        Ok(self)
    }

    /// Its memory, computed if necessary.
    #[track_caller]
    pub fn buffer(&self) -> Result<Buffer> {
        match self.realize()?.storage() {
            Some(buffer) => Ok(buffer),
            None => bail!(internal, "a realized tensor has no memory"),
        }
    }

    /// Its only element.
    #[track_caller]
    pub fn item(&self) -> Result<Number> {
        self.buffer()?.item()
    }

    /// Its elements in row-major order.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if self.dtype() != T::DTYPE {
            bail!(type_, "expected a {} tensor, got {}", T::DTYPE, self.0.ty);
        }
        self.buffer()?.to(&Device::cpu())?.to_vec()
    }

    /// The last two axes swapped.
    #[track_caller]
    #[allow(non_snake_case, reason = "the documented name")]
    pub fn T(&self) -> Result<Tensor> {
        F::transpose(self, -1, -2)
    }

    /// A part of it; see [`Indices`].
    #[track_caller]
    pub fn slice(&self, indices: impl Into<Indices>) -> Result<Tensor> {
        F::slice_tensor(self, indices)
    }

    /// Matrix multiplication.
    #[track_caller]
    pub fn matmul(&self, rhs: impl Into<Operand>) -> Result<Tensor> {
        F::matmul(self, rhs)
    }

    /// The elements converted to another dtype; the tensor itself if it has that dtype already.
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype() { Ok(self.clone()) } else { F::cast(self, dtype) }
    }

    /// The tensor on a device; the tensor itself if it is there already.
    #[track_caller]
    pub fn to(&self, device: impl Into<DeviceRef>) -> Result<Tensor> {
        let device = device.into();
        if device == self.device() { Ok(self.clone()) } else { F::transfer_to(self, device) }
    }

    /// Clamps the elements to the given bounds.
    #[track_caller]
    pub fn clip(&self, min: Option<f64>, max: Option<f64>) -> Result<Tensor> {
        F::clamp(self, min.map(Operand::from), max.map(Operand::from))
    }
}

/// Methods that are functions with the tensor as their first operand.
macro_rules! methods {
    ($($(#[$doc:meta])* $method:ident($($arg:ident: $type:ty),*) = $function:ident;)*) => {
        impl Tensor {
            $($(#[$doc])*
            #[track_caller]
            pub fn $method(&self, $($arg: impl Into<$type>),*) -> Result<Tensor> {
                F::$function(self, $($arg),*)
            })*
        }
    };
}

methods! {
    /// See [`F::reshape()`].
    reshape(shape: Shape) = reshape;
    /// See [`F::broadcast_to()`].
    broadcast_to(shape: Shape) = broadcast_to;
    /// See [`F::flatten()`].
    flatten(start_dim: i64, end_dim: i64) = flatten;
    /// See [`F::squeeze()`].
    squeeze(axis: i64) = squeeze;
    /// See [`F::unsqueeze()`].
    unsqueeze(axis: i64) = unsqueeze;
    /// See [`F::permute()`].
    permute(dims: Vec<i64>) = permute;
    /// See [`F::transpose()`].
    transpose(dim_1: i64, dim_2: i64) = transpose;
    /// See [`F::argmax()`].
    argmax(axis: Axes) = argmax;
    /// See [`F::reduce_max()`].
    max(axis: Axes) = reduce_max;
    /// See [`F::reduce_min()`].
    min(axis: Axes) = reduce_min;
    /// See [`F::sum()`].
    sum(axis: Axes) = sum;
    /// See [`F::prod()`].
    prod(axis: Axes) = prod;
    /// See [`F::mean()`].
    mean(axis: Axes) = mean;
}

impl Clone for Tensor {
    fn clone(&self) -> Tensor {
        Tensor::of(self.0.clone())
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl From<Buffer> for Tensor {
    fn from(buffer: Buffer) -> Tensor {
        Tensor::from_buffer(buffer)
    }
}

impl<T: Element> From<Vec<T>> for Tensor {
    fn from(elements: Vec<T>) -> Tensor {
        Tensor::from_buffer(elements.into())
    }
}

impl<T: Element, const N: usize> From<[T; N]> for Tensor {
    fn from(elements: [T; N]) -> Tensor {
        Tensor::from_buffer(elements.into())
    }
}

impl From<&Tensor> for Arc<dyn HasTensorValue> {
    fn from(tensor: &Tensor) -> Arc<dyn HasTensorValue> {
        tensor.0.clone()
    }
}

impl From<&Tensor> for Operand {
    fn from(tensor: &Tensor) -> Operand {
        Operand::from(Arc::<dyn HasTensorValue>::from(tensor))
    }
}

impl From<Tensor> for Operand {
    fn from(tensor: Tensor) -> Operand {
        Operand::from(&tensor)
    }
}

impl From<&Tensor> for Operands {
    fn from(tensor: &Tensor) -> Operands {
        Operands::from(vec![tensor])
    }
}

max_graph::tensor_operators!(Tensor, F, []);

/// The elements in NumPy's format, followed by the type. Reading them computes the tensor; if that fails, or there is
/// nothing to read, only the type is written.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TensorType { dtype, shape, device, .. } = &self.0.ty;
        match self.buffer() {
            Ok(buffer) => {
                let elements = buffer.to_string().replace('\n', "\n       ");
                write!(f, "Tensor({elements}, shape={shape}, dtype={dtype}, device={device})")
            }
            Err(_) => write!(f, "Tensor(shape={shape}, dtype={dtype}, device={device})"),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
