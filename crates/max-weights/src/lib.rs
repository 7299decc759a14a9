//! Weight files: safetensors, GGUF and PyTorch checkpoints.

#![forbid(unsafe_code)]
