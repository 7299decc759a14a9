//! Decoders in GGUF files, whose metadata says what a `config.json` would.

use max_core::{Error, Result, bail};
use max_nn::{Activation, RopeScaling};
use max_weights::{Metadata, MetadataValue, Weights};

use crate::decoder::{DecoderConfig, LayerConfig, Norms, QueryNorm, Rope};

/// Parts of the names of weights, and what they are called here.
const WEIGHTS: &[(&str, &str)] = &[
    ("token_embd", "embedding"),
    ("output_norm", "norm"),
    ("blk.", "layers."),
    ("post_attention_norm", "attention_post_norm"),
    ("post_ffw_norm", "mlp_post_norm"),
    ("attn_norm", "attention_norm"),
    ("ffn_norm", "mlp_norm"),
    ("attn_qkv", "attention.query_key_value"),
    ("attn_q_norm", "attention.query_norm"),
    ("attn_k_norm", "attention.key_norm"),
    ("attn_q.", "attention.query."),
    ("attn_k.", "attention.key."),
    ("attn_v.", "attention.value."),
    ("attn_output", "attention.output"),
    ("ffn_gate_up", "mlp.gate_up"),
    ("ffn_gate", "mlp.gate"),
    ("ffn_up", "mlp.up"),
    ("ffn_down", "mlp.down"),
];

/// An architecture as GGUF files name it, and how it differs from Llama.
struct Record {
    name: &'static str,
    /// The name of the same architecture in `config.json`.
    architecture: &'static str,
    /// Whether the pairs of rotary embeddings are neighbours.
    interleaved: bool,
    differs: fn(&Reader, DecoderConfig) -> Result<DecoderConfig>,
}

const LLAMA: Record = Record {
    name: "llama",
    architecture: "LlamaForCausalLM",
    interleaved: true,
    differs: |_, config| Ok(config),
};

const RECORDS: &[Record] = &[
    LLAMA,
    Record { name: "mistral", architecture: "MistralForCausalLM", ..LLAMA },
    Record { name: "qwen2", architecture: "Qwen2ForCausalLM", interleaved: false, ..LLAMA },
    Record { name: "qwen3", architecture: "Qwen3ForCausalLM", interleaved: false, ..LLAMA },
    Record {
        name: "gemma2",
        architecture: "Gemma2ForCausalLM",
        interleaved: false,
        differs: |reader, config| {
            let scale = if config.layers.len() == 46 { config.width / config.heads } else { config.head_dim };
            gemma(reader, DecoderConfig { scale: (scale as f64).powf(-0.5), ..config }, 2)
        },
    },
    Record {
        name: "gemma3",
        architecture: "Gemma3ForCausalLM",
        interleaved: false,
        differs: |reader, config| {
            let scale = if config.layers.len() == 62 { config.width / config.heads } else { config.head_dim };
            let own = gemma(reader, DecoderConfig { scale: (scale as f64).powf(-0.5), ..config }, 6)?;
            let local = Rope { theta: 10_000.0, scaling: RopeScaling::None, ..own.ropes[0].clone() };
            let ropes = [own.ropes, vec![local]].concat();
            let layer =
                |layer: LayerConfig| LayerConfig { rope: Some(usize::from(layer.window > 0)), ..layer };
            let layers = own.layers.into_iter().map(layer).collect();
            Ok(DecoderConfig { ropes, layers, ..own })
        },
    },
    Record { name: "phi3", architecture: "Phi3ForCausalLM", interleaved: false, ..LLAMA },
    Record {
        name: "granite",
        architecture: "GraniteForCausalLM",
        differs: |reader, config| {
            let logits = reader.number_or("logit_scale", 1.0)?;
            Ok(DecoderConfig {
                embedding_factor: reader.number_or("embedding_scale", 1.0)?,
                residual_factor: reader.number_or("residual_scale", 1.0)?,
                scale: reader.number_or("attention.scale", config.scale)?,
                logit_factor: if logits == 0.0 { 1.0 } else { 1.0 / logits },
                ..config
            })
        },
        ..LLAMA
    },
    Record { name: "olmo2", architecture: "Olmo2ForCausalLM", interleaved: false, ..LLAMA },
    Record {
        name: "smollm3",
        architecture: "SmolLM3ForCausalLM",
        differs: |_, config| {
            // Files do not say which layers know no positions: it is every fourth.
            let layers = config.layers.iter().enumerate();
            let layers = layers.map(|(number, layer)| LayerConfig {
                rope: layer.rope.filter(|_| !(number + 1).is_multiple_of(4)),
                ..*layer
            });
            Ok(DecoderConfig { layers: layers.collect(), ..config })
        },
        ..LLAMA
    },
];

/// What Gemma 2 and 3 have in common. The weights of their norms are one larger than in other files.
fn gemma(reader: &Reader, config: DecoderConfig, pattern: usize) -> Result<DecoderConfig> {
    let window = reader.size_or("attention.sliding_window", 4096)?;
    let layers = config.layers.iter().enumerate();
    let layers = layers.map(|(number, layer)| LayerConfig {
        window: if (number + 1).is_multiple_of(pattern) { 0 } else { window },
        ..*layer
    });
    Ok(DecoderConfig {
        layers: layers.collect(),
        activation: Activation::GeluTanh,
        score_cap: reader.number_or("attn_logit_softcapping", 0.0)?,
        logit_cap: reader.number_or("final_logit_softcapping", 0.0)?,
        embedding_factor: f64::from((config.width as f32).sqrt()),
        ..config
    })
}

/// What a weight is called here, if it is used.
pub fn weight_name(name: &str) -> Option<String> {
    if name.starts_with("rope_") {
        return None;
    }
    let renamed = |name: String, (from, to): &(&str, &str)| name.replace(from, to);
    let name = WEIGHTS.iter().fold(name.to_string(), renamed);
    // The last layer, after the names that contain its own.
    Some(if name == "output.weight" { "head.weight".into() } else { name })
}

/// The architecture of a file as `config.json` would name it, and its config.
pub fn config(weights: &Weights) -> Result<(&'static str, DecoderConfig)> {
    let metadata = weights.metadata();
    let Some(name) = metadata.get("general.architecture").and_then(MetadataValue::as_str) else {
        bail!(value, "the metadata has no 'general.architecture'");
    };
    let Some(record) = RECORDS.iter().find(|record| record.name == name) else {
        let known: Vec<_> = RECORDS.iter().map(|record| record.name).collect();
        bail!(
            not_implemented,
            "the architecture '{name}' is not known in GGUF files; there are {}",
            known.join(", ")
        );
    };
    let reader = Reader { metadata, name };
    let (width, heads) = (reader.size("embedding_length")?, reader.size("attention.head_count")?);
    let head_dim = match reader.size_or("attention.key_length", 0)? {
        0 if width.is_multiple_of(heads) => width / heads,
        0 => bail!(value, "{heads} heads cannot share {width} elements of a token"),
        given => given,
    };
    if reader.size_or("attention.value_length", head_dim)? != head_dim {
        bail!(not_implemented, "values of another size than keys");
    }
    let has = |name: &str| weights.contains(name);
    let norms = match (has("blk.0.attn_norm.weight"), has("blk.0.post_attention_norm.weight")) {
        (true, false) => Norms::Before,
        (false, true) => Norms::After,
        (true, true) => Norms::Both,
        (false, false) => bail!(value, "the first layer has no norms"),
    };
    let query_norm = match weights.info("blk.0.attn_q_norm.weight") {
        Ok(info) if info.shape == [head_dim] => QueryNorm::Head,
        Ok(_) => QueryNorm::Whole,
        Err(_) => QueryNorm::None,
    };
    let Some(&[vocab_size, _]) = weights.info("token_embd.weight").ok().map(|info| info.shape).as_deref()
    else {
        bail!(value, "there is no table of tokens, 'token_embd.weight'");
    };
    let max_length = reader.size("context_length")?;
    let dim = reader.size_or("rope.dimension_count", head_dim)?;
    let rope = Rope {
        dim,
        theta: reader.number_or("rope.freq_base", 10_000.0)?,
        scaling: rope_scaling(&reader, weights, dim, max_length)?,
    };
    let window = match name {
        // What other files say about windows holds for some layers only.
        "phi3" | "mistral" | "llama" => reader.size_or("attention.sliding_window", 0)?,
        _ => 0,
    };
    let layers = reader.size("block_count")?;
    if layers > DecoderConfig::MOST_LAYERS {
        return Err(reader.wrong("block_count", &format!("at most {}", DecoderConfig::MOST_LAYERS)));
    }
    let config = DecoderConfig {
        vocab_size,
        width,
        layers: vec![LayerConfig { window, rope: Some(0) }; layers],
        heads,
        key_heads: reader.size_or("attention.head_count_kv", heads)?,
        head_dim,
        intermediate: reader.size("feed_forward_length")?,
        max_length,
        epsilon: reader.number_or("attention.layer_norm_rms_epsilon", 1e-5)?,
        norm_offset: 0.0,
        norms,
        query_norm,
        activation: Activation::Silu,
        projection_bias: has("blk.0.attn_q.bias"),
        output_bias: has("blk.0.attn_output.bias"),
        mlp_bias: has("blk.0.ffn_up.bias"),
        tied: !has("output.weight"),
        ropes: vec![rope],
        interleaved: record.interleaved,
        scale: (head_dim as f64).powf(-0.5),
        score_cap: 0.0,
        logit_cap: 0.0,
        embedding_factor: 1.0,
        residual_factor: 1.0,
        logit_factor: 1.0,
    };
    Ok((record.architecture, (record.differs)(&reader, config)?.validated()?))
}

/// How the frequencies of the rotary embedding are scaled.
fn rope_scaling(reader: &Reader, weights: &Weights, dim: usize, max_length: usize) -> Result<RopeScaling> {
    let original = reader.size_or("rope.scaling.original_context_length", max_length)? as i64;
    let factors = |name: &str| -> Result<Option<Vec<f64>>> {
        if !weights.contains(name) {
            return Ok(None);
        }
        let factors = weights.get(name)?.astype(max_core::DType::Float32)?.data.to_vec::<f32>()?;
        Ok(Some(factors.into_iter().take(dim / 2).map(f64::from).collect()))
    };
    // The factors of frequencies, whatever they were made from.
    if let Some(all) = factors("rope_freqs.weight")? {
        let (original, longest) = (max_length as i64, max_length as i64);
        return Ok(RopeScaling::LongRope {
            short_factor: all.clone(),
            long_factor: all,
            original_max_position: original,
            max_position_embeddings: longest,
        });
    }
    if let (Some(short_factor), Some(long_factor)) =
        (factors("rope_factors_short.weight")?, factors("rope_factors_long.weight")?)
    {
        return Ok(RopeScaling::LongRope {
            short_factor,
            long_factor,
            original_max_position: original,
            max_position_embeddings: max_length as i64,
        });
    }
    let factor = reader.number_or("rope.scaling.factor", 1.0)?;
    match reader.text("rope.scaling.type")? {
        None | Some("none") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor }),
        Some("yarn") => Ok(RopeScaling::Yarn {
            factor,
            beta_fast: reader.number_or("rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: reader.number_or("rope.scaling.yarn_beta_slow", 1.0)?,
            original_max_position_embeddings: original,
            truncate: true,
        }),
        Some(other) => bail!(not_implemented, "rotary embeddings that are scaled as '{other}'"),
    }
}

/// The metadata of an architecture.
struct Reader<'a> {
    metadata: &'a Metadata,
    name: &'a str,
}

impl Reader<'_> {
    fn get(&self, key: &str) -> Option<&MetadataValue> {
        self.metadata.get(&format!("{}.{key}", self.name))
    }

    fn wrong(&self, key: &str, expected: &str) -> Error {
        Error::value(format!("'{}.{key}' in the metadata must be {expected}", self.name))
    }

    fn size(&self, key: &str) -> Result<usize> {
        match self.size_or(key, 0)? {
            0 => Err(self.wrong(key, "a number from 1 to 2147483647")),
            size => Ok(size),
        }
    }

    fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        let Some(value) = self.get(key) else { return Ok(default) };
        match value.as_u64() {
            Some(size) if size <= i32::MAX as u64 => Ok(size as usize),
            _ => Err(self.wrong(key, "a number of at most 31 bits, the same for all layers")),
        }
    }

    fn number_or(&self, key: &str, default: f64) -> Result<f64> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_f64().filter(|number| number.is_finite()).ok_or_else(|| self.wrong(key, "a number"))
    }

    fn text(&self, key: &str) -> Result<Option<&str>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, "a text"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_renamed() {
        for (name, own) in [
            ("token_embd.weight", "embedding.weight"),
            ("output.weight", "head.weight"),
            ("output_norm.weight", "norm.weight"),
            ("blk.3.attn_output.weight", "layers.3.attention.output.weight"),
            ("blk.3.attn_q.bias", "layers.3.attention.query.bias"),
            ("blk.0.attn_q_norm.weight", "layers.0.attention.query_norm.weight"),
            ("blk.0.attn_norm.weight", "layers.0.attention_norm.weight"),
            ("blk.0.post_attention_norm.weight", "layers.0.attention_post_norm.weight"),
            ("blk.11.ffn_down.weight", "layers.11.mlp.down.weight"),
            ("blk.11.post_ffw_norm.weight", "layers.11.mlp_post_norm.weight"),
        ] {
            assert_eq!(weight_name(name).as_deref(), Some(own));
        }
        assert_eq!(weight_name("rope_freqs.weight"), None);
    }
}
