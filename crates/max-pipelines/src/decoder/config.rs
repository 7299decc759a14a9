//! What a decoder is made from. All architectures of decoders are configs of one graph.

use max_core::{Result, bail};
use max_nn::{Activation, RopeScaling};

/// A transformer whose tokens see those before them.
#[derive(Clone, Debug)]
pub struct DecoderConfig {
    /// The number of tokens that there are.
    pub vocab_size: usize,
    /// The elements of a token between layers.
    pub width: usize,
    /// The layers, each with what it sees and how it knows positions.
    pub layers: Vec<LayerConfig>,
    /// The number of attention heads.
    pub heads: usize,
    /// The number of heads of keys and values.
    pub key_heads: usize,
    /// The elements of a head.
    pub head_dim: usize,
    /// The elements of a token inside of a perceptron.
    pub intermediate: usize,
    /// The most tokens of a sequence.
    pub max_length: usize,
    /// What keeps norms from dividing by zero.
    pub epsilon: f64,
    /// What is added to the weights of norms.
    pub norm_offset: f64,
    /// Which norms a layer has.
    pub norms: Norms,
    /// How queries and keys are normalized.
    pub query_norm: QueryNorm,
    /// What perceptrons apply to their gates.
    pub activation: Activation,
    /// Whether queries, keys and values have biases.
    pub projection_bias: bool,
    /// Whether the result of attention has a bias.
    pub output_bias: bool,
    /// Whether perceptrons have biases.
    pub mlp_bias: bool,
    /// Whether the table of tokens is that of the logits too.
    pub tied: bool,
    /// The rotary embeddings that layers choose from.
    pub ropes: Vec<Rope>,
    /// Whether the pairs of rotary embeddings are neighbours.
    pub interleaved: bool,
    /// The factor of attention scores.
    pub scale: f64,
    /// The bound of attention scores, or zero.
    pub score_cap: f64,
    /// The bound of logits, or zero.
    pub logit_cap: f64,
    /// The factor of embedded tokens.
    pub embedding_factor: f64,
    /// The factor of what layers add to tokens.
    pub residual_factor: f64,
    /// The factor of logits.
    pub logit_factor: f64,
}

/// A layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerConfig {
    /// How many tokens a token sees, counted from itself; all before it if this is zero.
    pub window: usize,
    /// Which rotary embedding it has, if any.
    pub rope: Option<usize>,
}

/// A rotary embedding.
#[derive(Clone, Debug)]
pub struct Rope {
    /// How many elements of a head are turned.
    pub dim: usize,
    /// The base of the frequencies.
    pub theta: f64,
    /// How they are scaled.
    pub scaling: RopeScaling,
}

/// Where a layer normalizes: before attention and perceptron, after them, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Norms {
    Before,
    After,
    Both,
}

/// How queries and keys are normalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryNorm {
    /// Not at all.
    None,
    /// Each head by itself.
    Head,
    /// All heads together.
    Whole,
}

impl DecoderConfig {
    /// More layers than any model has, so that a mistake in a file is an error instead of a lot of memory.
    pub const MOST_LAYERS: usize = 10_000;

    /// Whether sequences may be longer than the context, because positions are scaled with the length.
    pub fn is_open_ended(&self) -> bool {
        self.ropes.iter().all(|rope| matches!(rope.scaling, RopeScaling::Dynamic { .. }))
    }

    /// Whether a sequence that has just reached a length must be computed again from its first token, because rotary
    /// embeddings of longer sequences turn all tokens in another way.
    pub fn reread_at(&self, length: usize) -> bool {
        self.ropes.iter().any(|rope| match &rope.scaling {
            RopeScaling::LongRope { short_factor, long_factor, original_max_position, .. } => {
                short_factor != long_factor && length as i64 == original_max_position.saturating_add(1)
            }
            _ => false,
        })
    }

    /// The config, if a model can have it.
    pub fn validated(self) -> Result<DecoderConfig> {
        if self.key_heads == 0 || !self.heads.is_multiple_of(self.key_heads) {
            bail!(value, "{} heads cannot share {} heads of keys equally", self.heads, self.key_heads);
        }
        if !self.scale.is_finite() || self.scale <= 0.0 {
            bail!(value, "attention scores need a positive factor; got {}", self.scale);
        }
        for rope in &self.ropes {
            if rope.dim > self.head_dim {
                bail!(value, "{} elements of a head of {} cannot be turned", rope.dim, self.head_dim);
            }
            rope.scaling.validate(rope.dim as i64, rope.theta)?;
        }
        if self.layers.iter().any(|layer| layer.rope.is_some_and(|rope| rope >= self.ropes.len())) {
            bail!(internal, "a layer with a rotary embedding that does not exist");
        }
        Ok(self)
    }
}
