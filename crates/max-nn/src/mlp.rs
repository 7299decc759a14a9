//! Multi-layer perceptrons.

use max_core::{DType, DeviceRef, Result};
use max_graph::ops::{self, Sharding, ShardingStrategy};
use max_graph::{Operand, TensorValue};

use crate::linear::{Form, Linear, LinearConfig};
use crate::{Activation, module};

/// A gated perceptron: `down(activation(gate(x)) * up(x))`.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// The projection that goes through the activation.
    pub gate_proj: Linear,
    /// The projection back to the size of the input.
    pub down_proj: Linear,
    /// The projection that is gated.
    pub up_proj: Linear,
    /// The activation.
    pub activation: Activation,
}

module!(Mlp { gate_proj, down_proj, up_proj });

impl Mlp {
    /// A perceptron with weights in a form, from and to `hidden_dim`, with `feed_forward_length` elements in between.
    pub fn new(
        dtype: DType,
        form: &Form,
        hidden_dim: usize,
        feed_forward_length: usize,
        device: DeviceRef,
        activation: Activation,
    ) -> Result<Mlp> {
        let linear = |inputs, outputs| {
            LinearConfig::new(inputs, outputs, dtype, device).with_form(form.clone()).build()
        };
        Ok(Mlp {
            gate_proj: linear(hidden_dim, feed_forward_length)?,
            down_proj: linear(feed_forward_length, hidden_dim)?,
            up_proj: linear(hidden_dim, feed_forward_length)?,
            activation,
        })
    }

    /// The layer on an input.
    #[track_caller]
    pub fn forward(&self, x: impl Into<Operand>) -> Result<TensorValue> {
        let x = x.into();
        let gate = self.gate_proj.forward(x.clone())?;
        self.down_proj.forward(ops::gated(gate, self.up_proj.forward(x)?, self.activation)?)
    }

    /// One perceptron per device, each with a share of the elements in between; the sum of their results is the whole's.
    pub fn shard(&self, devices: &[DeviceRef]) -> Result<Vec<Mlp>> {
        let strategy = |sharding| ShardingStrategy::new(devices.len(), sharding);
        let (rows, columns) = (strategy(Sharding::Rowwise)?, strategy(Sharding::Columnwise)?);
        let gates = self.gate_proj.shard(&rows, devices)?;
        let downs = self.down_proj.shard(&columns, devices)?;
        let ups = self.up_proj.shard(&rows, devices)?;
        let parts = gates.into_iter().zip(downs).zip(ups);
        let shards = parts.map(|((gate_proj, down_proj), up_proj)| Mlp {
            gate_proj,
            down_proj,
            up_proj,
            activation: self.activation,
        });
        Ok(shards.collect())
    }
}
