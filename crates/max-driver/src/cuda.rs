//! NVIDIA GPUs, through libraries that are loaded when they are first needed: nothing of CUDA is required at build
//! time.
//!
//! `library` finds and opens a library and reads its table of functions; `api` is the table of the driver itself. The
//! rest of the workspace uses a [`Gpu`], functions compiled from source ([`Gpu::functions`]), matmuls ([`Gpu::gemm`]),
//! events, executions recorded as graphs, and collectives. All addresses are in the one address space that the host and all GPUs
//! share. Every failure is an error that says which library failed, and at what.

mod api;
mod blas;
mod compile;
mod copy;
mod event;
mod gpu;
mod graph;
mod library;
mod memory;
mod nccl;
mod nvml;
pub mod nvtx;
mod pinned;
mod strided;
mod version;
mod watch;

pub use blas::{Activation, Compute, Gemm, GemmAddresses, GemmPlan, Matrix, Scaling};
pub use compile::{Function, Source};
pub use event::Event;
pub use gpu::Gpu;
pub use graph::Graph;
pub use library::search_in;
pub use nccl::{collective, require_collectives};

pub(crate) use api::StreamHandle;
pub(crate) use copy::{Fill, copy, download, upload};
pub(crate) use gpu::{NON_BLOCKING, count, open};
pub(crate) use memory::{Block, Foreign, LEGACY, Users};
pub(crate) use nccl::between_gpus;
pub(crate) use pinned::Pinned;
pub(crate) use strided::{Side, copy as copy_strided};
