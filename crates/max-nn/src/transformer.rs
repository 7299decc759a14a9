//! Blocks of transformers.

use max_core::{DeviceRef, Result};
use max_graph::ops;
use max_graph::{Operand, TensorValue};

use crate::module;
use crate::sequential::Layer;

/// Attention and a perceptron, each on a normalized input and added to it.
pub struct TransformerBlock<A> {
    /// The attention, called with what `forward` is given.
    pub self_attn: A,
    /// The perceptron.
    pub mlp: Box<dyn Layer>,
    /// What normalizes the input of the attention.
    pub input_layernorm: Box<dyn Layer>,
    /// What normalizes the input of the perceptron.
    pub post_attention_layernorm: Box<dyn Layer>,
    /// What both results are multiplied by before they are added.
    pub residual_multiplier: f64,
}

module!(TransformerBlock<A> { self_attn, mlp, input_layernorm, post_attention_layernorm });

impl<A> TransformerBlock<A> {
    /// The block on an input, with attention as a function of the normalized input.
    #[track_caller]
    pub fn forward(
        &self,
        x: impl Into<Operand>,
        attend: impl FnOnce(&A, TensorValue) -> Result<TensorValue>,
    ) -> Result<TensorValue> {
        let scaled = |x: TensorValue| match self.residual_multiplier {
            1.0 => Ok(x),
            factor => ops::mul(x, factor),
        };
        let x = x.into().tensor()?;
        let attended = attend(&self.self_attn, self.input_layernorm.call(x.clone())?)?;
        let x = ops::add(x, scaled(attended)?)?;
        let result = self.mlp.call(self.post_attention_layernorm.call(x.clone())?)?;
        ops::add(x, scaled(result)?)
    }
}

/// A value on each of some devices.
pub fn distribute_value(x: &TensorValue, devices: &[DeviceRef]) -> Result<Vec<TensorValue>> {
    devices.iter().map(|&device| ops::transfer_to(x, device)).collect()
}
