//! Attention with rotary embeddings and a cache, and decoders made of it.

use max_core::{DType, DeviceRef, Result, bail};
use max_graph::ops::slice::Index;
use max_graph::ops::{self, CacheLayer};
use max_graph::{BufferValue, Operand, TensorValue};

use crate::{Embedding, Layer, Linear, LinearConfig, MaskVariant, RotaryEmbedding, TransformerBlock, module};

/// Attention of tokens to those of their sequences, whose keys and values are in a cache.
pub struct AttentionWithRope {
    /// Gives queries.
    pub q_proj: Linear,
    /// Gives keys.
    pub k_proj: Linear,
    /// Gives values.
    pub v_proj: Linear,
    /// Gives the result.
    pub o_proj: Linear,
    /// What turns queries and keys.
    pub rope: RotaryEmbedding,
    /// What scores are multiplied by.
    pub scale: f64,
    /// Which tokens of its sequence a token sees.
    pub mask: MaskVariant,
    /// The window of masks that have one.
    pub window: i64,
}

module!(AttentionWithRope { q_proj, k_proj, v_proj, o_proj });

/// The sizes of an attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionConfig {
    /// The size of a token.
    pub hidden_size: usize,
    /// The number of heads of queries.
    pub heads: usize,
    /// The number of heads of keys and values.
    pub key_heads: usize,
    /// The number of elements of a head.
    pub head_dim: usize,
    /// Whether queries, keys and values have a bias.
    pub has_bias: bool,
    /// The dtype of the weights.
    pub dtype: DType,
    /// Where it runs.
    pub device: DeviceRef,
}

impl AttentionWithRope {
    /// A causal attention.
    pub fn new(config: &AttentionConfig, rope: RotaryEmbedding) -> Result<AttentionWithRope> {
        let &AttentionConfig { hidden_size, heads, key_heads, head_dim, has_bias, dtype, device } = config;
        if key_heads == 0 || !heads.is_multiple_of(key_heads) {
            bail!(value, "{heads} heads do not share {key_heads} heads of keys and values equally");
        }
        let project = |heads: usize| {
            let linear = LinearConfig::new(hidden_size, heads * head_dim, dtype, device);
            if has_bias { linear.with_bias().build() } else { linear.build() }
        };
        Ok(AttentionWithRope {
            q_proj: project(heads)?,
            k_proj: project(key_heads)?,
            v_proj: project(key_heads)?,
            o_proj: LinearConfig::new(heads * head_dim, hidden_size, dtype, device).build()?,
            scale: rope.compute_scale(None),
            rope,
            mask: MaskVariant::Causal,
            window: -1,
        })
    }

    /// The results for tokens, `[tokens, hidden_size]`, whose keys and values are stored in a layer of a cache. The table is
    /// that of [`RotaryEmbedding::freqs_cis`].
    #[track_caller]
    pub fn forward(
        &self,
        x: impl Into<Operand>,
        place: CacheLayer,
        table: &TensorValue,
    ) -> Result<TensorValue> {
        let x = x.into().tensor()?;
        let (q, k, v) = (self.q_proj.forward(&x)?, self.k_proj.forward(&x)?, self.v_proj.forward(&x)?);
        let table = Operand::from(table);
        let interleaved = self.rope.interleaved;
        let attended = ops::cached_self_attention(
            q,
            k,
            v,
            place,
            self.scale,
            table,
            interleaved,
            self.mask,
            self.window,
        )?;
        self.o_proj.forward(attended)
    }
}

/// The tokens of sequences one after the other, and where a cache has them: see [`ops::paged_attention`].
pub struct CachedTokens {
    /// The numbers of the tokens, `[tokens]`.
    pub tokens: TensorValue,
    /// Where each sequence starts, and the last one ends: `[sequences + 1]`.
    pub row_offsets: TensorValue,
    /// How many tokens of each are in the cache: `[sequences]`.
    pub cache_lengths: TensorValue,
    /// The pages of each: `[sequences, pages]`.
    pub lookup_table: TensorValue,
    /// The cache, `[pages, 2, layers, tokens of a page, heads, head_dim]`.
    pub cache: BufferValue,
}

/// A decoder: an embedding of tokens, blocks with attention to a cache, a norm, and a layer that gives logits.
pub struct Transformer {
    /// The embedding of tokens.
    pub embed_tokens: Embedding,
    /// The blocks.
    pub layers: Vec<TransformerBlock<AttentionWithRope>>,
    /// What normalizes the results of the last block.
    pub norm: Box<dyn Layer>,
    /// What gives logits.
    pub lm_head: Linear,
    /// What turns queries and keys.
    pub rope: RotaryEmbedding,
}

module!(Transformer { embed_tokens, layers, norm, lm_head });

impl Transformer {
    /// The logits after the last token of each sequence, `[sequences, vocabulary]` in float32. Keys and values are stored.
    #[track_caller]
    pub fn forward(&self, given: &CachedTokens) -> Result<TensorValue> {
        let CachedTokens { tokens, row_offsets, cache_lengths, lookup_table, cache } = given;
        let table = self.rope.freqs_cis()?;
        let mut x = self.embed_tokens.forward(tokens)?;
        for (number, layer) in self.layers.iter().enumerate() {
            let place = CacheLayer::new(cache, row_offsets, cache_lengths, lookup_table, number as i64)?;
            x = layer.forward(x, |attention, x| attention.forward(x, place, &table))?;
        }
        let ends = ops::cast(ops::slice_tensor(row_offsets, vec![Index::from(1..)])?, DType::Int64)?;
        let last = ops::gather(x, ops::sub(ends, 1)?, 0)?;
        ops::cast(self.lm_head.forward(self.norm.call(last)?)?, DType::Float32)
    }
}
