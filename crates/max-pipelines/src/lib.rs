//! Models: architectures, tokenizers, encoders and text generation.

#![forbid(unsafe_code)]
