//! The graph of decoders.

use max_core::{DType, DeviceRef, Dim, QuantizationEncoding, Result, Shape, bail};
use max_graph::ops::slice::Index;
use max_graph::{BufferValue, TensorValue, ops};
use max_nn::{Activation, Embedding, EmbeddingConfig, Form, Linear, LinearConfig, RmsNorm, module};

use super::config::{DecoderConfig, LayerConfig, Norms, QueryNorm};

/// How a matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// As floats.
    Floats(DType),
    /// As blocks.
    Blocks(QuantizationEncoding),
}

/// The weights of a decoder.
pub struct Decoder {
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Option<Linear>,
    config: DecoderConfig,
}

module!(Decoder { embedding, layers, norm, head });

struct Layer {
    attention_norm: Option<RmsNorm>,
    attention: Attention,
    attention_post_norm: Option<RmsNorm>,
    mlp_norm: Option<RmsNorm>,
    mlp: Mlp,
    mlp_post_norm: Option<RmsNorm>,
    config: LayerConfig,
}

module!(Layer { attention_norm, attention, attention_post_norm, mlp_norm, mlp, mlp_post_norm });

struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    query_norm: Option<RmsNorm>,
    key_norm: Option<RmsNorm>,
}

module!(Attention { query, key, value, output, query_norm, key_norm });

struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
}

module!(Mlp { gate, up, down });

/// The tokens of an execution and where their keys and values are: see [`ops::paged_attention`].
pub struct Tokens {
    /// `[tokens]`.
    pub tokens: TensorValue,
    /// `[sequences + 1]`.
    pub row_offsets: TensorValue,
    /// `[sequences]`.
    pub cache_lengths: TensorValue,
    /// `[sequences, pages]`.
    pub lookup_table: TensorValue,
    /// The cache.
    pub cache: BufferValue,
}

impl Decoder {
    /// The weights of a model, where a function says how each matrix is stored. Everything is computed in a dtype.
    pub fn new(
        config: &DecoderConfig,
        stored: &dyn Fn(&str) -> Stored,
        dtype: DType,
        device: DeviceRef,
    ) -> Result<Decoder> {
        let &DecoderConfig { width, intermediate, heads, key_heads, head_dim, epsilon, .. } = config;
        let norm = |size: usize| -> Result<RmsNorm> {
            let norm = RmsNorm::new(size, dtype, device, epsilon)?;
            Ok(RmsNorm { weight_offset: config.norm_offset, ..norm })
        };
        let norm_if = |wanted: bool, size: usize| wanted.then(|| norm(size)).transpose();
        let linear = |name: &str, inputs: usize, outputs: usize, bias: bool| -> Result<Linear> {
            let (weights, form) = match stored(name) {
                Stored::Floats(dtype) => (dtype, Form::Plain),
                Stored::Blocks(encoding) => (dtype, Form::Encoded(encoding, None)),
            };
            let mut linear = LinearConfig::new(inputs, outputs, weights, device).with_form(form).build()?;
            if bias {
                linear.bias = Some(max_nn::Weight::new("bias", dtype, [outputs], device)?);
            }
            Ok(linear)
        };
        let (before, after) = (config.norms != Norms::After, config.norms != Norms::Before);
        let layer = |(number, own): (usize, &LayerConfig)| -> Result<Layer> {
            let projection = |name: &str, heads: usize, bias: bool| {
                linear(&format!("layers.{number}.attention.{name}.weight"), width, heads * head_dim, bias)
            };
            let inner = |name: &str, inputs: usize, outputs: usize| {
                linear(&format!("layers.{number}.mlp.{name}.weight"), inputs, outputs, config.mlp_bias)
            };
            let output = format!("layers.{number}.attention.output.weight");
            let of_heads = |heads: usize| match config.query_norm {
                QueryNorm::None => Ok(None),
                QueryNorm::Head => norm(head_dim).map(Some),
                QueryNorm::Whole => norm(heads * head_dim).map(Some),
            };
            Ok(Layer {
                attention_norm: norm_if(before, width)?,
                attention: Attention {
                    query: projection("query", heads, config.projection_bias)?,
                    key: projection("key", key_heads, config.projection_bias)?,
                    value: projection("value", key_heads, config.projection_bias)?,
                    output: linear(&output, heads * head_dim, width, config.output_bias)?,
                    query_norm: of_heads(heads)?,
                    key_norm: of_heads(key_heads)?,
                },
                attention_post_norm: norm_if(after, width)?,
                mlp_norm: norm_if(before, width)?,
                mlp: Mlp {
                    gate: inner("gate", width, intermediate)?,
                    up: inner("up", width, intermediate)?,
                    down: inner("down", intermediate, width)?,
                },
                mlp_post_norm: norm_if(after, width)?,
                config: *own,
            })
        };
        let (table, encoding) = match stored("embedding.weight") {
            Stored::Floats(dtype) => (dtype, None),
            Stored::Blocks(encoding) => (dtype, Some(encoding)),
        };
        let table =
            EmbeddingConfig { vocab_size: config.vocab_size, hidden_dim: width, dtype: table, encoding };
        let head = match config.tied {
            true => None,
            false => Some(linear("head.weight", width, config.vocab_size, false)?),
        };
        Ok(Decoder {
            embedding: Embedding::new(table, device)?,
            layers: config.layers.iter().enumerate().map(layer).collect::<Result<_>>()?,
            norm: norm(width)?,
            head,
            config: config.clone(),
        })
    }

    /// The logits after each token `[tokens, vocab]`, or after the last one of each sequence, `[sequences, vocab]`, in float32.
    pub fn forward(&self, given: &Tokens, all: bool) -> Result<TensorValue> {
        let config = &self.config;
        let dtype = self.norm.weight.tensor_type().dtype;
        let positions = ops::ragged_positions(&given.tokens, &given.row_offsets, &given.cache_lengths)?;
        let lengths = ops::ragged_lengths(&given.tokens, &given.row_offsets, &given.cache_lengths)?;
        let ropes = config.ropes.iter().map(|rope| {
            ops::rope_rows(rope.scaling.clone(), rope.dim as i64, rope.theta, &positions, &lengths)
        });
        let ropes = ropes.collect::<Result<Vec<_>>>()?;
        let mut x = ops::cast(self.embedding.forward(&given.tokens)?, dtype)?;
        if config.embedding_factor != 1.0 {
            x = ops::mul(x, config.embedding_factor)?;
        }
        for (number, layer) in self.layers.iter().enumerate() {
            x = layer.forward(x, config, given, number, layer.config.rope.map(|rope| &ropes[rope]))?;
        }
        if !all {
            let ends = ops::slice_tensor(&given.row_offsets, vec![Index::from(1..)])?;
            x = ops::gather(x, ops::sub(ends, 1)?, 0)?;
        }
        let x = self.norm.forward(x)?;
        let mut logits = match &self.head {
            Some(head) => head.forward(x)?,
            None => self.tied_head().forward(x)?,
        };
        logits = ops::cast(logits, DType::Float32)?;
        if config.logit_factor != 1.0 {
            logits = ops::mul(logits, config.logit_factor)?;
        }
        if config.logit_cap > 0.0 {
            logits = ops::mul(ops::tanh(ops::div(logits, config.logit_cap)?)?, config.logit_cap)?;
        }
        Ok(logits)
    }

    /// The table of tokens as the layer of logits.
    fn tied_head(&self) -> Linear {
        let Embedding { weight, device } = &self.embedding;
        let form = weight.quantization_encoding.map_or(Form::Plain, |encoding| Form::Encoded(encoding, None));
        Linear {
            weight: weight.clone(),
            bias: None,
            weight_scale: None,
            input_scale: None,
            perm_idx: None,
            form,
            device: *device,
        }
    }
}

impl Layer {
    fn forward(
        &self,
        x: TensorValue,
        config: &DecoderConfig,
        given: &Tokens,
        number: usize,
        rope: Option<&TensorValue>,
    ) -> Result<TensorValue> {
        let normal = |norm: &Option<RmsNorm>, x: TensorValue| {
            norm.as_ref().map_or(Ok(x.clone()), |norm| norm.forward(x))
        };
        let add = |x: TensorValue, more: TensorValue| match config.residual_factor {
            1.0 => ops::add(x, more),
            factor => ops::add(x, ops::mul(more, factor)?),
        };
        let own = normal(&self.attention_norm, x.clone())?;
        let attended = self.attention.forward(own, config, given, (number, self.config.window), rope)?;
        let x = add(x, normal(&self.attention_post_norm, attended)?)?;
        let inner = self.mlp.forward(normal(&self.mlp_norm, x.clone())?, config.activation)?;
        add(x, normal(&self.mlp_post_norm, inner)?)
    }
}

impl Attention {
    fn forward(
        &self,
        x: TensorValue,
        config: &DecoderConfig,
        given: &Tokens,
        (layer, window): (usize, usize),
        rope: Option<&TensorValue>,
    ) -> Result<TensorValue> {
        let tokens = x.shape()[0].clone();
        let head_dim = Dim::from(config.head_dim);
        let heads = |x: TensorValue, heads: usize, norm: &Option<RmsNorm>| -> Result<TensorValue> {
            let shape = [tokens.clone(), Dim::from(heads), head_dim.clone()];
            match (norm, config.query_norm) {
                (Some(norm), QueryNorm::Whole) => ops::reshape(norm.forward(x)?, shape),
                (Some(norm), _) => norm.forward(ops::reshape(x, shape)?),
                (None, _) => ops::reshape(x, shape),
            }
        };
        let [q, k, v] = [project(&self.query, &x)?, project(&self.key, &x)?, project(&self.value, &x)?];
        let mut q = heads(q, config.heads, &self.query_norm)?;
        let mut k = heads(k, config.key_heads, &self.key_norm)?;
        let v = heads(v, config.key_heads, &None)?;
        if let Some(rows) = rope {
            // Beside each other they are turned at once; as rows they are computed there.
            let row = |x: TensorValue, heads: usize| {
                ops::reshape(x, [tokens.clone(), Dim::from(heads * config.head_dim)])
            };
            let both = ops::concat([row(q, config.heads)?, row(k, config.key_heads)?], 1)?;
            let all = Dim::from(config.heads + config.key_heads);
            let both = ops::reshape(both, [tokens.clone(), all, head_dim.clone()])?;
            let both = ops::rope(both, rows, 0, config.interleaved)?;
            let sizes = [config.heads, config.key_heads].map(Dim::from);
            let Ok([turned_q, turned_k]) = <[_; 2]>::try_from(ops::split(both, Shape::from(sizes), 1)?)
            else {
                bail!(internal, "a split into two has two results")
            };
            (q, k) = (turned_q, turned_k);
        }
        let Tokens { row_offsets, cache_lengths, lookup_table, cache, .. } = given;
        let layer = layer as i64;
        ops::paged_store(cache, k, row_offsets, cache_lengths, lookup_table, layer, 0)?;
        ops::paged_store(cache, v, row_offsets, cache_lengths, lookup_table, layer, 1)?;
        let window = i64::try_from(window).unwrap_or(0);
        let attended = ops::paged_attention(
            q,
            cache,
            row_offsets,
            cache_lengths,
            lookup_table,
            layer,
            config.scale,
            true,
            window,
            config.score_cap,
        )?;
        let width = Dim::from(config.heads * config.head_dim);
        project(&self.output, &ops::reshape(attended, [tokens, width])?)
    }
}

impl Mlp {
    fn forward(&self, x: TensorValue, activation: Activation) -> Result<TensorValue> {
        let (gate, up) = (project(&self.gate, &x)?, project(&self.up, &x)?);
        project(&self.down, &ops::gated(gate, up, activation)?)
    }
}

/// A linear layer inside the model. Weights in bfloat16 are multiplied by an input of that dtype, as in a model that computes
/// in bfloat16: processors have instructions for such products, which treat subnormal numbers as zero.
fn project(layer: &Linear, x: &TensorValue) -> Result<TensorValue> {
    match layer.weight.tensor_type().dtype {
        DType::BFloat16 => ops::cast(layer.forward(ops::cast(x, DType::BFloat16)?)?, x.dtype()),
        _ => layer.forward(x),
    }
}
