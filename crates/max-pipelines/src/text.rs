//! Text generation without the model: how a request's tokens are chosen, when they end, and how they become text.

pub mod sampling;
pub mod stop;
