//! Kernels recorded once and enqueued as a whole.

use max_core::Result;
use max_driver::Stream;
use max_driver::cuda::Graph;

/// What kernels enqueue, recorded with the memory they were given.
#[derive(Debug)]
pub struct Recording(Graph);

impl Recording {
    /// Records the kernels that a function runs on a stream, which is used for nothing else. None of them runs.
    pub fn new(stream: &Stream, kernels: impl FnOnce() -> Result<()>) -> Result<Recording> {
        Graph::record(stream, kernels).map(Recording)
    }

    /// Records other kernels in their place, or the same on other memory.
    pub fn again(&mut self, stream: &Stream, kernels: impl FnOnce() -> Result<()>) -> Result<()> {
        self.0.record_again(stream, kernels)
    }

    /// How many functions, copies and fills it enqueues.
    pub fn nodes(&self) -> usize {
        self.0.nodes()
    }

    /// Enqueues all of it on a stream of its GPU. What [`Prepared::run`](super::Prepared::run) asks of memory holds for
    /// all memory that was recorded.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: kernels check the memory that they are recorded with, and the caller keeps it alive, as for their runs.
        unsafe { self.0.launch(stream) }
    }
}
