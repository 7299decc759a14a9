//! Models: architectures, tokenizers, encoders and text generation.
//!
//! A model is a folder of files as they are published: `config.json`, `tokenizer.json` and weights. [`folder`] finds it, on
//! disk or by its name on the [`hub`].

#![forbid(unsafe_code)]

pub mod config;
pub mod folder;
pub mod hub;
pub mod text;
pub mod tokenizer;
