//! Mixtures of experts.

use max_core::{DType, DeviceRef, Dim, Result, Shape, bail};
use max_graph::ops;
use max_graph::{Operand, TensorValue, Weight};

use crate::linear::{Linear, LinearConfig};
use crate::{Activation, Mlp, module};

/// Perceptrons of which each token goes through a few.
#[derive(Clone, Debug)]
pub struct MoE {
    /// The scores of the experts.
    pub gate: Linear,
    /// The gates of all experts, `[experts, length, hidden]`.
    pub gate_proj: Weight,
    /// The projections up, `[experts, length, hidden]`.
    pub up_proj: Weight,
    /// The projections down, `[experts, hidden, length]`.
    pub down_proj: Weight,
    /// A perceptron that all tokens go through.
    pub shared_experts: Option<Mlp>,
    /// What it was made from.
    pub config: MoEConfig,
}

module!(MoE { gate, gate_proj, up_proj, down_proj, shared_experts });

/// What a mixture of experts is made from.
#[derive(Clone, Debug)]
pub struct MoEConfig {
    /// The elements of a token.
    pub hidden_dim: usize,
    /// The number of experts.
    pub num_experts: usize,
    /// How many of them each token goes through.
    pub num_experts_per_token: usize,
    /// The elements in the middle of an expert.
    pub moe_dim: usize,
    /// The same for what all tokens go through; 0 for nothing.
    pub shared_experts_dim: usize,
    /// The dtype of the weights.
    pub dtype: DType,
    /// Where it is computed.
    pub device: DeviceRef,
    /// Whether the probabilities of a token's experts are scaled to add up to one.
    pub normalize: bool,
}

impl MoEConfig {
    /// The layer.
    pub fn build(self) -> Result<MoE> {
        let MoEConfig { hidden_dim, num_experts, num_experts_per_token, moe_dim, dtype, device, .. } = self;
        if num_experts_per_token == 0 || num_experts_per_token > num_experts {
            bail!(
                value,
                "a token goes through at least one of {num_experts} experts, not {num_experts_per_token}"
            );
        }
        let weight = |name: &str, sizes: [usize; 3]| {
            let shape: Shape = sizes.into_iter().map(Dim::from).collect();
            Weight::new(name, dtype, shape, device)
        };
        let shared_experts = match self.shared_experts_dim {
            0 => None,
            length => {
                Some(Mlp::new(dtype, &Default::default(), hidden_dim, length, device, Activation::Silu)?)
            }
        };
        Ok(MoE {
            gate: LinearConfig::new(hidden_dim, num_experts, dtype, device).build()?,
            gate_proj: weight("gate_proj", [num_experts, moe_dim, hidden_dim])?,
            up_proj: weight("up_proj", [num_experts, moe_dim, hidden_dim])?,
            down_proj: weight("down_proj", [num_experts, hidden_dim, moe_dim])?,
            shared_experts,
            config: self,
        })
    }
}

impl MoE {
    /// The layer on tokens, `[tokens, hidden]`.
    #[track_caller]
    pub fn forward(&self, x: impl Into<Operand>) -> Result<TensorValue> {
        let x = ops::transfer_to(x, self.config.device)?;
        let wide = ops::cast(self.gate.forward(&x)?, DType::Float32)?;
        let probabilities = ops::softmax(wide, -1)?;
        let chosen = ops::top_k(probabilities, self.config.num_experts_per_token as i64, -1)?;
        let [scores, ids] = <[TensorValue; 2]>::try_from(chosen)
            .map_err(|_| max_core::Error::internal("the largest probabilities without their experts"))?;
        let scores = match self.config.normalize {
            true => ops::div(&scores, ops::sum(&scores, -1)?)?,
            false => scores,
        };
        let (gate, up, down) = (&self.gate_proj, &self.up_proj, &self.down_proj);
        let mixed = ops::mixture(&x, ids, scores, gate, up, down, Activation::Silu, false, None)?;
        match &self.shared_experts {
            Some(shared) => ops::add(mixed, shared.forward(&x)?),
            None => Ok(mixed),
        }
    }
}
