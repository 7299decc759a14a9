//! Sessions load graphs as models, and models execute. Graph files are read and written here.

#![forbid(unsafe_code)]

mod cache;
mod capture;
pub mod custom;
mod dump;
mod file;
mod lru;
mod model;
mod observe;
mod picture;
mod profile;
mod run;
mod session;
mod settings;
mod threads;

pub use cache::{CacheStats, clear_program_cache, program_cache_stats};
pub use custom::load_custom_ops;
pub use file::{read_graph, read_graph_in, save_graph};
pub use model::{KernelSummary, MemoryReport, Model, TensorSpec};
pub use session::{InferenceSession, Source, WeightsRegistry};
pub use settings::{AssertLevel, LogLevel, ProfilingMode, SplitKReductionPrecision};

/// Locks a mutex even if it is poisoned: what it guards is consistent at every step.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
