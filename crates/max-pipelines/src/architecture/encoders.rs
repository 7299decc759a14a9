//! Architectures of encoders.

use max_core::{Result, bail};

use super::{Architecture, Kind};
use crate::config::Config;
use crate::encoder::{EncoderConfig, RelativePositions};

/// BERT: absolute positions, types of tokens, norms after residuals.
pub const BERT: Architecture = Architecture {
    name: "BertModel",
    model_type: "bert",
    kind: Kind::Encoder(|config| {
        match config.text("position_embedding_type")? {
            None | Some("absolute") => {}
            Some(other) => bail!(not_implemented, "BERT with positions of the type '{other}'"),
        }
        EncoderConfig { token_types: config.size_or("type_vocab_size", 2)?, ..common(config)? }.validated()
    }),
    prefix: "bert.",
    weights: &[
        ("embeddings.word_embeddings", "words"),
        ("embeddings.position_embeddings", "positions"),
        ("embeddings.token_type_embeddings", "types"),
        ("embeddings.LayerNorm", "norm"),
        ("encoder.layer.", "layers."),
        ("attention.self.", "attention."),
        ("attention.output.dense", "attention.output"),
        ("attention.output.LayerNorm", "attention_norm"),
        ("intermediate.dense", "up"),
        ("output.dense", "down"),
        ("output.LayerNorm", "norm"),
        (".gamma", ".weight"),
        (".beta", ".bias"),
    ],
    unused: &["embeddings.position_ids", "pooler.", "cls.", "classifier."],
};

/// MPNet: BERT without types of tokens, with biases for relative positions that all layers share.
pub const MPNET: Architecture = Architecture {
    name: "MPNetModel",
    model_type: "mpnet",
    kind: Kind::Encoder(|config| {
        let first_position = config.get("pad_token_id").and_then(|id| id.as_u64()).unwrap_or(1) as usize + 1;
        let buckets = config.size_or("relative_attention_num_buckets", 32)?;
        let relative = Some(RelativePositions { buckets, most_distant: 128 });
        EncoderConfig { first_position, relative, ..common(config)? }.validated()
    }),
    prefix: "mpnet.",
    weights: &[
        ("embeddings.word_embeddings", "words"),
        ("embeddings.position_embeddings", "positions"),
        ("embeddings.LayerNorm", "norm"),
        ("encoder.relative_attention_bias", "relative"),
        ("encoder.layer.", "layers."),
        ("attention.attn.q", "attention.query"),
        ("attention.attn.k", "attention.key"),
        ("attention.attn.v", "attention.value"),
        ("attention.attn.o", "attention.output"),
        ("attention.LayerNorm", "attention_norm"),
        ("intermediate.dense", "up"),
        ("output.dense", "down"),
        ("output.LayerNorm", "norm"),
    ],
    unused: &["embeddings.position_ids", "pooler.", "lm_head.", "classifier."],
};

/// What the configs of all these encoders have in common.
fn common(config: &Config) -> Result<EncoderConfig> {
    Ok(EncoderConfig {
        vocab_size: config.size("vocab_size")?,
        width: config.size("hidden_size")?,
        layers: config.size("num_hidden_layers")?,
        heads: config.size("num_attention_heads")?,
        intermediate: config.size("intermediate_size")?,
        positions: config.size("max_position_embeddings")?,
        first_position: 0,
        token_types: 0,
        relative: None,
        activation: config.text("hidden_act")?.unwrap_or("gelu").parse()?,
        epsilon: config.number_or("layer_norm_eps", 1e-12)?,
    })
}
