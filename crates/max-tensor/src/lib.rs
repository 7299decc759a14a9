//! Eager tensors: code that runs immediately, at graph speed.
//!
//! A [`Tensor`] is *real* (it has memory) or *pending* (it is recorded and will be computed when somebody reads it).
//! An op outside any region has run when its call returns. Inside [`functional`], ops are recorded and run together at
//! the end as one program, so that they fuse; inside [`lazy`], only what is read ever runs.
//!
//! ```
//! use max_tensor::{Tensor, functional as region, functions as F};
//!
//! let x = Tensor::from([1.0f32, -2.0, 3.0]);
//! let y = F::relu(&x)?; // already computed
//! assert_eq!(y.to_vec::<f32>()?, [1.0, 0.0, 3.0]);
//!
//! // One kernel: nothing is written to memory in between.
//! let z = region(|| F::tanh((&x * 2.0)? + &y))?;
//! assert!(z.is_real());
//! # Ok::<(), max_core::Error>(())
//! ```
//!
//! How it works: a recorded op is a node that holds what it reads, so ops that nobody can use any more are freed. To
//! realize a tensor, `realize.rs` walks from it back to real tensors, makes a graph of the nodes in between, and asks
//! `cache.rs` for the compiled model of this structure. Sizes and numbers that vary become symbols and inputs of the
//! model (`structure.rs`), so that a loop compiles its body once or twice, whatever it counts.

#![forbid(unsafe_code)]

mod cache;
mod calls;
mod create;
mod defaults;
mod fragment;
pub mod functions;
mod node;
pub mod random;
mod realize;
mod scope;
mod structure;
mod tensor;
mod trace;

pub use cache::{CacheStats, cache_stats, clear_cache};
pub use defaults::{Defaults, defaults};
pub use realize::Reason;
pub use scope::{Region, RegionKind, functional, lazy};
pub use tensor::Tensor;
pub use trace::{Realization, Trace, is_tracing};

/// Locks a mutex, ignoring poisoning: the data is consistent at every step.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
