//! Normalization layers.

use max_core::{DType, DeviceRef, Result, bail};
use max_graph::ops;
use max_graph::{Operand, TensorValue, Weight};

use crate::module;

/// `(x - mean) / sqrt(variance + eps) * weight + bias` along the last axis.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// The scale.
    pub weight: Weight,
    /// The shift.
    pub bias: Option<Weight>,
    /// A small positive number that prevents division by zero.
    pub eps: f64,
}

module!(LayerNorm { weight, bias });

impl LayerNorm {
    /// A layer for a last axis of a size.
    pub fn new(dims: usize, device: DeviceRef, dtype: DType, eps: f64, use_bias: bool) -> Result<LayerNorm> {
        let weight = |name| Weight::new(name, dtype, [dims], device);
        let bias = if use_bias { Some(weight("bias")?) } else { None };
        Ok(LayerNorm { weight: weight("weight")?, bias, eps })
    }

    /// The layer on an input.
    #[track_caller]
    pub fn forward(&self, x: impl Into<Operand>) -> Result<TensorValue> {
        ops::affine_layer_norm(
            x,
            Operand::from(&self.weight),
            self.bias.as_ref().map(Operand::from),
            self.eps,
        )
    }
}

/// `x / sqrt(mean(x * x) + eps) * (weight + weight_offset)` along the last axis.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// The scale.
    pub weight: Weight,
    /// A small number that prevents division by zero.
    pub eps: f64,
    /// What is added to the weight, as in Gemma.
    pub weight_offset: f64,
    /// Whether the weight is multiplied before the result is rounded to the dtype of the input.
    pub multiply_before_cast: bool,
}

module!(RmsNorm { weight });

impl RmsNorm {
    /// A layer for a last axis of a size.
    pub fn new(dim: usize, dtype: DType, device: impl Into<DeviceRef>, eps: f64) -> Result<RmsNorm> {
        let weight = Weight::new("weight", dtype, [dim], device)?;
        Ok(RmsNorm { weight, eps, weight_offset: 0.0, multiply_before_cast: true })
    }

    /// The layer on an input.
    #[track_caller]
    pub fn forward(&self, x: impl Into<Operand>) -> Result<TensorValue> {
        let x = x.into().tensor()?;
        let weight = ops::transfer_to(&self.weight, x.device())?;
        ops::rms_norm(x, weight, self.eps, self.weight_offset, self.multiply_before_cast)
    }
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over groups of channels, which are axis 1.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    /// The scale of each channel.
    pub weight: Option<Weight>,
    /// The shift of each channel.
    pub bias: Option<Weight>,
    /// The number of groups.
    pub num_groups: usize,
    /// A small positive number that prevents division by zero.
    pub eps: f64,
}

module!(GroupNorm { weight, bias });

impl GroupNorm {
    /// A layer for channels in groups, with a scale and a shift if it is affine.
    pub fn new(
        num_groups: usize,
        num_channels: usize,
        device: DeviceRef,
        dtype: DType,
        eps: f64,
        affine: bool,
    ) -> Result<GroupNorm> {
        if num_groups == 0 || !num_channels.is_multiple_of(num_groups) {
            bail!(value, "{num_channels} channels cannot be divided into {num_groups} equal groups");
        }
        let weight = |name| match affine {
            true => Weight::new(name, dtype, [num_channels], device).map(Some),
            false => Ok(None),
        };
        Ok(GroupNorm { weight: weight("weight")?, bias: weight("bias")?, num_groups, eps })
    }

    /// The layer on an input.
    #[track_caller]
    pub fn forward(&self, x: impl Into<Operand>) -> Result<TensorValue> {
        let [weight, bias] = [&self.weight, &self.bias].map(|weight| weight.as_ref().map(Operand::from));
        ops::affine_group_norm(x, self.num_groups as i64, weight, bias, self.eps)
    }
}
