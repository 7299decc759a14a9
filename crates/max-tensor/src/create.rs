//! Tensors from nothing: filled with one value, or ranges.

use max_core::{Number, Result, Shape, TensorType};
use max_graph::ops;

use crate::defaults::defaults;
use crate::functions as F;
use crate::scope::call_one;
use crate::tensor::Tensor;

impl Tensor {
    /// A tensor of one value, of the default dtype on the default device.
    #[track_caller]
    pub fn full(shape: impl Into<Shape>, value: impl Into<Number>) -> Result<Tensor> {
        let (dtype, device) = defaults();
        Tensor::full_like(&TensorType::new(dtype, shape, device), value)
    }

    /// A tensor of ones, of the default dtype on the default device.
    #[track_caller]
    pub fn ones(shape: impl Into<Shape>) -> Result<Tensor> {
        Tensor::full(shape, 1i64)
    }

    /// A tensor of zeros, of the default dtype on the default device.
    #[track_caller]
    pub fn zeros(shape: impl Into<Shape>) -> Result<Tensor> {
        Tensor::full(shape, 0i64)
    }

    /// The numbers from zero up to, but not including, a count, of the default dtype on the default device.
    #[track_caller]
    pub fn arange(count: i64) -> Result<Tensor> {
        let (dtype, device) = defaults();
        F::range(0i64, count, 1i64, None, dtype, device)
    }

    /// A tensor of a type, filled with one value.
    #[track_caller]
    pub fn full_like(ty: &TensorType, value: impl Into<Number>) -> Result<Tensor> {
        let value = value.into();
        call_one(|| {
            let value = ops::constant(ops::constant::Data::Number(value), ty.dtype, ty.device)?;
            ops::broadcast_to(value, ty.shape.clone())
        })
    }

    /// A tensor of a type, filled with ones.
    #[track_caller]
    pub fn ones_like(ty: &TensorType) -> Result<Tensor> {
        Tensor::full_like(ty, 1i64)
    }

    /// A tensor of a type, filled with zeros.
    #[track_caller]
    pub fn zeros_like(ty: &TensorType) -> Result<Tensor> {
        Tensor::full_like(ty, 0i64)
    }
}
