//! Sessions load graphs as models; models execute. Files of graphs are read and written here.

#![forbid(unsafe_code)]

mod file;
mod model;
mod observe;
mod run;
mod session;

pub use file::{read_graph, save_graph};
pub use model::{MemoryReport, Model, TensorSpec};
pub use session::{InferenceSession, Source, WeightsRegistry};
