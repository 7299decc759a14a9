//! Architectures of decoders.

use max_core::{Result, bail};
use max_nn::{Activation, RopeScaling};

use super::{Architecture, Kind};
use crate::config::Config;
use crate::decoder::{DecoderConfig, LayerConfig, Norms, QueryNorm, Rope};

/// The names that most decoders have for their weights.
const WEIGHTS: &[(&str, &str)] = &[
    ("embed_tokens", "embedding"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "mlp_norm"),
    ("self_attn.q_proj", "attention.query"),
    ("self_attn.k_proj", "attention.key"),
    ("self_attn.v_proj", "attention.value"),
    ("self_attn.o_proj", "attention.output"),
    ("self_attn.qkv_proj", "attention.query_key_value"),
    ("self_attn.q_norm", "attention.query_norm"),
    ("self_attn.k_norm", "attention.key_norm"),
    ("mlp.gate_up_proj", "mlp.gate_up"),
    ("mlp.gate_proj", "mlp.gate"),
    ("mlp.up_proj", "mlp.up"),
    ("mlp.down_proj", "mlp.down"),
    ("lm_head", "head"),
];

/// Those of decoders with norms after attention and perceptron.
const WEIGHTS_WITH_POST_NORMS: &[(&str, &str)] = &[
    ("embed_tokens", "embedding"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "attention_post_norm"),
    ("pre_feedforward_layernorm", "mlp_norm"),
    ("post_feedforward_layernorm", "mlp_post_norm"),
    ("self_attn.q_proj", "attention.query"),
    ("self_attn.k_proj", "attention.key"),
    ("self_attn.v_proj", "attention.value"),
    ("self_attn.o_proj", "attention.output"),
    ("self_attn.q_norm", "attention.query_norm"),
    ("self_attn.k_norm", "attention.key_norm"),
    ("mlp.gate_proj", "mlp.gate"),
    ("mlp.up_proj", "mlp.up"),
    ("mlp.down_proj", "mlp.down"),
    ("lm_head", "head"),
];

/// What all records share.
const DECODER: Architecture = Architecture {
    name: "",
    model_type: "",
    kind: Kind::Decoder(common),
    prefix: "model.",
    weights: WEIGHTS,
    unused: &["rotary_emb.", "vision_tower.", "multi_modal_projector."],
};

/// Llama 2 and 3, and models of the same form.
pub const LLAMA: Architecture = Architecture { name: "LlamaForCausalLM", model_type: "llama", ..DECODER };

/// Llama with a sliding window.
pub const MISTRAL: Architecture =
    Architecture { name: "MistralForCausalLM", model_type: "mistral", ..DECODER };

/// Llama with biases of queries, keys and values.
pub const QWEN2: Architecture = Architecture {
    name: "Qwen2ForCausalLM",
    model_type: "qwen2",
    kind: Kind::Decoder(|config| {
        DecoderConfig { projection_bias: true, output_bias: false, ..common(config)? }.validated()
    }),
    ..DECODER
};

/// Llama with norms of queries and keys.
pub const QWEN3: Architecture = Architecture {
    name: "Qwen3ForCausalLM",
    model_type: "qwen3",
    kind: Kind::Decoder(|config| {
        DecoderConfig { query_norm: QueryNorm::Head, ..common(config)? }.validated()
    }),
    ..DECODER
};

/// Gemma 2: norms on both sides, bounded scores and logits, windows in every other layer.
pub const GEMMA2: Architecture = Architecture {
    name: "Gemma2ForCausalLM",
    model_type: "gemma2",
    kind: Kind::Decoder(|config| gemma(config, 2)),
    weights: WEIGHTS_WITH_POST_NORMS,
    ..DECODER
};

/// Gemma 3: norms of queries and keys, another rotary embedding in layers with windows.
pub const GEMMA3: Architecture = Architecture {
    name: "Gemma3ForCausalLM",
    model_type: "gemma3_text",
    kind: Kind::Decoder(|config| {
        let pattern =
            config.size_or("sliding_window_pattern", config.size_or("_sliding_window_pattern", 6)?)?;
        let own = gemma(config, pattern)?;
        let dim = own.head_dim;
        let local = match local_rope(config)? {
            Some(local) => local,
            None => {
                let theta = config.number_or("rope_local_base_freq", 10_000.0)?;
                Rope { dim, theta, scaling: RopeScaling::None }
            }
        };
        let ropes = [own.ropes, vec![local]].concat();
        let layer = |layer: LayerConfig| LayerConfig { rope: Some(usize::from(layer.window > 0)), ..layer };
        let layers = own.layers.into_iter().map(layer).collect();
        DecoderConfig { query_norm: QueryNorm::Head, ropes, layers, ..own }.validated()
    }),
    weights: WEIGHTS_WITH_POST_NORMS,
    ..DECODER
};

/// Phi-3 and Phi-4: Llama with projections in one matrix.
pub const PHI3: Architecture = Architecture { name: "Phi3ForCausalLM", model_type: "phi3", ..DECODER };

/// Llama with factors.
pub const GRANITE: Architecture = Architecture {
    name: "GraniteForCausalLM",
    model_type: "granite",
    kind: Kind::Decoder(|config| {
        let logits = config.number_or("logits_scaling", 1.0)?;
        DecoderConfig {
            embedding_factor: config.number_or("embedding_multiplier", 1.0)?,
            residual_factor: config.number_or("residual_multiplier", 1.0)?,
            scale: config.number_or("attention_multiplier", 1.0)?,
            logit_factor: if logits == 0.0 { 1.0 } else { 1.0 / logits },
            ..common(config)?
        }
        .validated()
    }),
    ..DECODER
};

/// OLMo 2: norms after attention and perceptron only, and of all queries and keys of a token together.
pub const OLMO2: Architecture = Architecture {
    name: "Olmo2ForCausalLM",
    model_type: "olmo2",
    kind: Kind::Decoder(|config| {
        DecoderConfig { norms: Norms::After, query_norm: QueryNorm::Whole, ..common(config)? }.validated()
    }),
    weights: WEIGHTS_WITH_POST_NORMS,
    ..DECODER
};

/// Llama with some layers that know no positions.
pub const SMOLLM3: Architecture = Architecture {
    name: "SmolLM3ForCausalLM",
    model_type: "smollm3",
    kind: Kind::Decoder(|config| {
        let own = common(config)?;
        let interval = config.size_or("no_rope_layer_interval", 4)?;
        let listed = config.numbers("no_rope_layers")?;
        let layer = |(number, layer): (usize, LayerConfig)| {
            // The list says which layers do have a rotary embedding.
            let turned = match listed.as_deref() {
                Some(listed) => listed.get(number).is_none_or(|&turned| turned != 0.0),
                None => !(number + 1).is_multiple_of(interval),
            };
            LayerConfig { rope: layer.rope.filter(|_| turned), ..layer }
        };
        let layers = own.layers.into_iter().enumerate().map(layer).collect();
        let tied = config.get("tie_word_embeddings").is_none() || own.tied;
        DecoderConfig { layers, tied, ..own }.validated()
    }),
    ..DECODER
};

/// What configs of decoders have in common, under the names that most of them share.
fn common(config: &Config) -> Result<DecoderConfig> {
    let (width, heads) = (config.size("hidden_size")?, config.size("num_attention_heads")?);
    let head_dim = match config.size_or("head_dim", 0) {
        Ok(0) if width.is_multiple_of(heads) => width / heads,
        Ok(0) => bail!(value, "{heads} heads cannot share {width} elements of a token"),
        given => given?,
    };
    let bias = config.flag("attention_bias")?;
    let rope = rope(config, head_dim)?;
    let positions = config.size_or("max_position_embeddings", 2048)?;
    // Where scaling grows with the sequence, the config says where it begins.
    let max_length = match rope.scaling {
        RopeScaling::Dynamic { factor, .. } => (positions as f64 * factor.max(1.0)) as usize,
        _ => positions,
    };
    DecoderConfig {
        vocab_size: config.size("vocab_size")?,
        width,
        layers: layers(config)?,
        heads,
        key_heads: config.size_or("num_key_value_heads", heads)?,
        head_dim,
        intermediate: config.size("intermediate_size")?,
        max_length,
        epsilon: config.number_or("rms_norm_eps", 1e-6)?,
        norm_offset: 0.0,
        norms: Norms::Before,
        query_norm: QueryNorm::None,
        activation: activation(config)?,
        projection_bias: bias,
        output_bias: bias,
        mlp_bias: config.flag("mlp_bias")?,
        tied: config.flag("tie_word_embeddings")?,
        ropes: vec![rope],
        interleaved: false,
        scale: (head_dim as f64).powf(-0.5),
        score_cap: 0.0,
        logit_cap: 0.0,
        embedding_factor: 1.0,
        residual_factor: 1.0,
        logit_factor: 1.0,
    }
    .validated()
}

/// What Gemma 2 and 3 have in common: layers whose number is a multiple of the pattern see everything.
fn gemma(config: &Config, pattern: usize) -> Result<DecoderConfig> {
    let own = common(config)?;
    let mut layers = own.layers.clone();
    if config.get("layer_types").is_none() {
        let window = config.size_or("sliding_window", 4096)?;
        for (number, layer) in layers.iter_mut().enumerate() {
            layer.window = if (number + 1).is_multiple_of(pattern) { 0 } else { window };
        }
    }
    let scalar = config.number_or("query_pre_attn_scalar", 256.0)?;
    DecoderConfig {
        layers,
        norm_offset: 1.0,
        norms: Norms::Both,
        tied: config.get("tie_word_embeddings").is_none() || own.tied,
        scale: scalar.powf(-0.5),
        score_cap: config.number_or("attn_logit_softcapping", 0.0)?,
        logit_cap: config.number_or("final_logit_softcapping", 0.0)?,
        embedding_factor: f64::from((own.width as f32).sqrt()),
        ..own
    }
    .validated()
}

fn activation(config: &Config) -> Result<Activation> {
    let name = config.text("hidden_activation")?.or(config.text("hidden_act")?).unwrap_or("silu");
    match name {
        "silu" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        "relu" => Ok(Activation::Relu),
        other => bail!(not_implemented, "perceptrons with the activation '{other}'"),
    }
}

/// The layers: which of them have a window.
fn layers(config: &Config) -> Result<Vec<LayerConfig>> {
    let count = config.size("num_hidden_layers")?;
    if count > DecoderConfig::MOST_LAYERS {
        bail!(
            value,
            "{count} layers are more than any model has: at most {} are expected",
            DecoderConfig::MOST_LAYERS
        );
    }
    let used = config.get("use_sliding_window").is_none() || config.flag("use_sliding_window")?;
    let window = if used { config.size_or("sliding_window", 0)? } else { 0 };
    let kinds = config.texts("layer_types")?;
    if !kinds.is_empty() && kinds.len() != count {
        bail!(value, "{count} layers have {} types", kinds.len());
    }
    // Some models have full attention in the first layers.
    let first = if kinds.is_empty() && used { config.size_or("max_window_layers", 0)? } else { 0 };
    let first = if config.get("use_sliding_window").is_some() { first } else { 0 };
    (0..count)
        .map(|number| {
            let window = match kinds.get(number) {
                Some(&"full_attention") => 0,
                Some(&"sliding_attention") => window,
                Some(other) => bail!(not_implemented, "layers of the type '{other}'"),
                None if number < first => 0,
                None => window,
            };
            Ok(LayerConfig { window, rope: Some(0) })
        })
        .collect()
}

/// The rotary embedding that a config describes.
fn rope(config: &Config, head_dim: usize) -> Result<Rope> {
    // Newer configs have all of it in one place, for each type of layer if these differ.
    let place = match config.part("rope_parameters")? {
        Some(parameters) => Some(parameters.part("full_attention")?.unwrap_or(parameters)),
        None => None,
    };
    let scaling = match &place {
        Some(place) => Some(place.clone()),
        None => config.part("rope_scaling")?,
    };
    let theta = match &place {
        Some(place) => place.number_or("rope_theta", 10_000.0)?,
        None => config.number_or("rope_theta", 10_000.0)?,
    };
    let part = match &place {
        Some(place) if place.get("partial_rotary_factor").is_some() => {
            place.number_or("partial_rotary_factor", 1.0)?
        }
        _ => config.number_or("partial_rotary_factor", 1.0)?,
    };
    let dim = (head_dim as f64 * part) as usize;
    let scaling = scaling.map_or(Ok(RopeScaling::None), |scaling| rope_scaling(config, &scaling))?;
    Ok(Rope { dim, theta, scaling })
}

/// The rotary embedding of layers with windows, if a config has one for them.
fn local_rope(config: &Config) -> Result<Option<Rope>> {
    let Some(parameters) = config.part("rope_parameters")? else { return Ok(None) };
    let Some(local) = parameters.part("sliding_attention")? else { return Ok(None) };
    let dim = config.size("head_dim")?;
    let theta = local.number_or("rope_theta", 10_000.0)?;
    Ok(Some(Rope { dim, theta, scaling: rope_scaling(config, &local)? }))
}

/// How the frequencies of a rotary embedding are scaled.
fn rope_scaling(config: &Config, scaling: &Config) -> Result<RopeScaling> {
    let kind = scaling.text("rope_type")?.or(scaling.text("type")?).unwrap_or("default");
    let longest = config.size_or("max_position_embeddings", 2048)? as i64;
    let original = match scaling.size_or("original_max_position_embeddings", 0)? {
        0 => config.size_or("original_max_position_embeddings", longest as usize)? as i64,
        original => original as i64,
    };
    let factor = scaling.number_or("factor", 1.0)?;
    let scaled = match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor },
        "dynamic" => RopeScaling::Dynamic { factor, original: longest },
        "llama3" => RopeScaling::Llama3 {
            factor,
            low_freq_factor: scaling.number_or("low_freq_factor", 1.0)?,
            high_freq_factor: scaling.number_or("high_freq_factor", 4.0)?,
            orig_max_position: original,
        },
        "yarn" => {
            let (beta_fast, beta_slow) =
                (scaling.number_or("beta_fast", 32.0)?, scaling.number_or("beta_slow", 1.0)?);
            let mscale = scaling.number_or("mscale", 0.0)?;
            let mscale_all_dim = scaling.number_or("mscale_all_dim", 0.0)?;
            if mscale != 0.0 && mscale_all_dim != 0.0 {
                bail!(not_implemented, "YaRN with 'mscale' and 'mscale_all_dim'");
            }
            let truncate = scaling.get("truncate").is_none() || scaling.flag("truncate")?;
            let original_max_position_embeddings = original;
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_position_embeddings, truncate }
        }
        "longrope" | "su" => RopeScaling::LongRope {
            short_factor: scaling.numbers("short_factor")?.unwrap_or_default(),
            long_factor: scaling.numbers("long_factor")?.unwrap_or_default(),
            original_max_position: original,
            max_position_embeddings: longest,
        },
        other => bail!(not_implemented, "rotary embeddings that are scaled as '{other}'"),
    };
    let given = scaling.number_or("attention_factor", scaled.attention_factor())?;
    if (given - scaled.attention_factor()).abs() > 1e-6 {
        bail!(
            not_implemented,
            "a rotary embedding of the type '{kind}' with the attention factor {given} instead of {}",
            scaled.attention_factor()
        );
    }
    Ok(scaled)
}
