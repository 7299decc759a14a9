//! The architectures that models in folders can have: one record each.
//!
//! A record says under which names files speak of an architecture, how `config.json` describes a model of it, and how files
//! call its weights. What it computes is a graph that all architectures of its kind share, so a new one is a record here
//! and, where its graph differs, a field in the config of that graph.

use max_core::{Result, bail};

use crate::config::Config;
use crate::decoder::DecoderConfig;
use crate::encoder::EncoderConfig;

mod decoders;
mod encoders;
pub(crate) mod gguf;

/// An architecture.
#[derive(Debug)]
pub struct Architecture {
    /// Its name in `architectures` of `config.json`.
    pub name: &'static str,
    /// Its name in `model_type`.
    pub model_type: &'static str,
    /// How its config is read, and what it is used for.
    pub kind: Kind,
    /// What the names of weights may start with and mean nothing by.
    pub prefix: &'static str,
    /// Parts of the names of weights in files, and what they are called here; each is replaced, in this order.
    pub weights: &'static [(&'static str, &'static str)],
    /// The starts of names of weights that are not used.
    pub unused: &'static [&'static str],
}

/// What an architecture is used for.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Embeddings of texts.
    Encoder(fn(&Config) -> Result<EncoderConfig>),
    /// Text, token after token.
    Decoder(fn(&Config) -> Result<DecoderConfig>),
}

impl Kind {
    /// What it is used for, in a word.
    pub fn task(&self) -> &'static str {
        match self {
            Kind::Encoder(_) => "encode",
            Kind::Decoder(_) => "generate",
        }
    }
}

/// All architectures.
pub const ARCHITECTURES: &[Architecture] = &[
    encoders::BERT,
    encoders::MPNET,
    decoders::LLAMA,
    decoders::MISTRAL,
    decoders::QWEN2,
    decoders::QWEN3,
    decoders::GEMMA2,
    decoders::GEMMA3,
    decoders::PHI3,
    decoders::GRANITE,
    decoders::OLMO2,
    decoders::SMOLLM3,
];

impl Architecture {
    /// The architecture that a `config.json` names.
    pub fn of(config: &Config) -> Result<&'static Architecture> {
        let names = config.texts("architectures")?;
        let model_type = config.text("model_type")?.unwrap_or_default();
        let named = ARCHITECTURES.iter().find(|known| names.contains(&known.name));
        let typed = || ARCHITECTURES.iter().find(|known| known.model_type == model_type);
        match named.or_else(typed) {
            Some(architecture) => Ok(architecture),
            None => {
                let known: Vec<_> = ARCHITECTURES.iter().map(|known| known.name).collect();
                let name = names.first().copied().unwrap_or(model_type);
                bail!(
                    not_implemented,
                    "the architecture '{name}' is not known; there are {}",
                    known.join(", ")
                )
            }
        }
    }

    /// What a weight is called here, if it is used.
    pub fn weight_name(&self, name: &str) -> Option<String> {
        let name = name.strip_prefix(self.prefix).unwrap_or(name);
        let used = !self.unused.iter().any(|start| name.starts_with(start));
        let renamed = |name: String, (from, to): &(&str, &str)| name.replace(from, to);
        used.then(|| self.weights.iter().fold(name.to_string(), renamed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_found_by_name_or_type() {
        let find = |text: &str| Architecture::of(&Config::parse("config.json", text.as_bytes()).unwrap());
        assert_eq!(
            find(r#"{"architectures": ["MPNetModel"], "model_type": "bert"}"#).unwrap().name,
            "MPNetModel"
        );
        assert_eq!(
            find(r#"{"architectures": ["BertForMaskedLM"], "model_type": "bert"}"#).unwrap().name,
            "BertModel"
        );
        let error = find(r#"{"architectures": ["T5Model"], "model_type": "t5"}"#).unwrap_err();
        assert!(error.message().starts_with("the architecture 'T5Model' is not known; there are BertModel,"));
        assert!(find("{}").is_err());
    }

    #[test]
    fn weights_are_renamed() {
        let name = |name| encoders::BERT.weight_name(name);
        assert_eq!(name("embeddings.word_embeddings.weight").unwrap(), "words.weight");
        assert_eq!(
            name("bert.encoder.layer.11.attention.self.query.bias").unwrap(),
            "layers.11.attention.query.bias"
        );
        assert_eq!(
            name("encoder.layer.0.attention.output.LayerNorm.gamma").unwrap(),
            "layers.0.attention_norm.weight"
        );
        assert_eq!(name("encoder.layer.0.output.dense.weight").unwrap(), "layers.0.down.weight");
        assert_eq!(name("pooler.dense.weight"), None);
        let name = |name| encoders::MPNET.weight_name(name);
        assert_eq!(
            name("encoder.layer.3.attention.attn.o.weight").unwrap(),
            "layers.3.attention.output.weight"
        );
        assert_eq!(name("mpnet.encoder.relative_attention_bias.weight").unwrap(), "relative.weight");
    }
}
