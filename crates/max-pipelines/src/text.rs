//! Text generation without the model: how text becomes tokens, how a request's tokens are chosen, when they end, and how they
//! become text.

pub mod chat;
pub mod detokenize;
mod gguf_tokenizer;
pub mod request;
pub mod sampling;
pub mod stop;
pub mod tokenizer;
