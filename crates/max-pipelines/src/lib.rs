//! Models: architectures, tokenizers, encoders and text generation.
//!
//! A model is a folder of files as they are published: `config.json`, `tokenizer.json` and weights. [`Folder`] finds it, on
//! disk or by its name on the [`hub`]; `config.json` names its [`Architecture`]; a [`SentenceEncoder`] runs it.

#![forbid(unsafe_code)]

mod architecture;
mod config;
mod decoder;
mod embedded;
mod encoder;
mod folder;
mod generator;
pub mod hub;
mod perplexity;
pub mod text;
mod tokenizer;

pub use architecture::{ARCHITECTURES, Architecture, Kind};
pub use config::Config;
pub use decoder::{
    Cache, CacheConfig, DecoderConfig, DecoderModel, DecoderOptions, LayerConfig, ModelFiles, Norms, Opened,
    Pages, QueryNorm, Rope, Sequence, Sequences, Sources, Step, Stored,
};
pub use embedded::{BOX, EMBEDDED, ENCODER, Embedded};
pub use encoder::{Embeddings, EncoderConfig, EncoderOptions, RelativePositions, SentenceEncoder};
pub use folder::Folder;
pub use generator::{Answer, AnswerStats, AnswerStream, CACHE_DTYPES, Conversation, Prompt, TextGenerator};
pub use perplexity::TextLikelihood;
pub use tokenizer::Tokenizer;
