//! Work recorded once and enqueued as a whole.

use max_core::{Result, bail};

use crate::Stream;

/// Recorded work of a stream.
pub struct Graph {}

impl Graph {
    /// Records what a function gives to a stream, which does not run meanwhile: use a stream of its own. Nothing in the
    /// function may wait for the device or allocate.
    pub fn record(_stream: &Stream, _work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        bail!(not_implemented, "graphs")
    }

    /// Records other work in its place. Where that differs in parameters only, that costs much less than a new graph.
    pub fn record_again(&mut self, _stream: &Stream, _work: impl FnOnce() -> Result<()>) -> Result<()> {
        bail!(not_implemented, "graphs")
    }

    /// How many things it does: kernels, copies and fills.
    pub fn nodes(&self) -> usize {
        0
    }

    /// Enqueues all of it.
    ///
    /// # Safety
    ///
    /// The memory that was recorded is alive until the work is done, and written by nobody else meanwhile.
    pub unsafe fn launch(&self, _stream: &Stream) -> Result<()> {
        bail!(not_implemented, "graphs")
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph({} nodes)", self.nodes())
    }
}
