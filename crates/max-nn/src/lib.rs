//! Layers: structs with weights and a `forward` over graph values.
//!
//! What a layer computes is a function over operands in [`max_graph::ops`]; the layer adds its weights and its
//! configuration. A [`Module`] is anything that weights can be found in, so models are plain structs of layers, and the
//! path of fields that leads to a weight is its name.
//!
//! ```
//! use max_core::{DType, DeviceRef, Result, TensorType};
//! use max_graph::{Graph, Operand, TensorValue, ops};
//! use max_nn::{Linear, LinearConfig, Module, module};
//!
//! struct Perceptron {
//!     hidden: Linear,
//!     output: Linear,
//! }
//!
//! module!(Perceptron { hidden, output });
//!
//! impl Perceptron {
//!     fn forward(&self, x: impl Into<Operand>) -> Result<TensorValue> {
//!         self.output.forward(ops::relu(self.hidden.forward(x)?)?)
//!     }
//! }
//!
//! let linear = |inputs, outputs| LinearConfig::new(inputs, outputs, DType::Float32, DeviceRef::CPU).with_bias().build();
//! let mut model = Perceptron { hidden: linear(4, 8)?, output: linear(8, 2)? };
//! let names: Vec<_> = model.raw_state_dict().into_keys().collect();
//! assert_eq!(names, ["hidden.bias", "hidden.weight", "output.bias", "output.weight"]);
//!
//! let input = TensorType::new(DType::Float32, ("batch", 4), DeviceRef::CPU);
//! let graph = Graph::build("perceptron", [input], |x| model.forward(&x[0]))?;
//! assert_eq!(graph.output_types()?[0].to_string(), "float32[batch, 2]");
//! # Ok::<(), max_core::Error>(())
//! ```

#![forbid(unsafe_code)]

mod attention;
mod conv;
mod embedding;
mod linear;
mod mlp;
mod module;
mod moe;
mod norm;
mod rotary;
mod sequential;
pub mod state;
mod transformer;

pub use attention::{AttentionConfig, AttentionWithRope, CachedTokens, Transformer};
pub use conv::{Conv, ConvConfig};
pub use embedding::{Embedding, EmbeddingConfig, VocabParallelEmbedding};
pub use linear::{ColumnParallelLinear, Form, Linear, LinearConfig};
pub use max_graph::Weight;
pub use max_graph::ops::CacheLayer;
pub use max_graph::ops::flash_attention::MaskVariant;
pub use max_graph::ops::layer::Activation;
pub use max_graph::ops::rope::RopeScaling;
pub use max_graph::ops::{Sharding, ShardingStrategy};
pub use max_weights::WeightData;
pub use mlp::Mlp;
pub use module::{Module, Path};
pub use moe::{MoE, MoEConfig};
pub use norm::{GroupNorm, LayerNorm, RmsNorm};
pub use rotary::RotaryEmbedding;
pub use sequential::{Layer, Sequential};
pub use transformer::{TransformerBlock, distribute_value};
