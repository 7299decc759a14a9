//! Kernels recorded once and enqueued as a whole.

use max_core::{Result, bail};
use max_driver::Stream;
use max_driver::cuda::Graph;

use super::Prepared;
use crate::Memory;

/// What kernels enqueue, recorded with the memory they were given.
#[derive(Debug)]
pub struct Recording {
    graph: Graph,
    /// The address and the length of each piece of memory, scratch memory last; `None` after a failed recording.
    memory: Option<Vec<Piece>>,
}

type Piece = (usize, usize);

/// What kernels are recorded with.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The kernels in order, each with its memory, one piece per slot.
    pub kernels: &'a [(&'a Prepared, Vec<Memory<'a>>)],
    /// Their scratch memory.
    pub scratch: Memory<'a>,
}

impl Work<'_> {
    fn enqueue(&self, stream: &Stream) -> Result<()> {
        self.kernels.iter().try_for_each(|(kernel, memory)| kernel.run(memory, self.scratch, stream))
    }

    fn pieces(&self) -> impl Iterator<Item = Piece> {
        let all = self.kernels.iter().flat_map(|(_, memory)| memory).chain([&self.scratch]);
        all.map(|piece| (piece.ptr().addr(), piece.end().addr() - piece.ptr().addr()))
    }
}

impl Recording {
    /// Records kernels on a dedicated stream. None of them runs.
    pub fn new(stream: &Stream, work: Work) -> Result<Recording> {
        let graph = Graph::record(stream, || work.enqueue(stream))?;
        Ok(Recording { graph, memory: Some(work.pieces().collect()) })
    }

    /// Records the kernels again, on other memory. If that fails, the recording fits no memory.
    pub fn again(&mut self, stream: &Stream, work: Work) -> Result<()> {
        self.memory = None;
        self.graph.record_again(stream, || work.enqueue(stream))?;
        self.memory = Some(work.pieces().collect());
        Ok(())
    }

    /// How many functions, copies and fills it enqueues.
    pub fn nodes(&self) -> usize {
        self.graph.nodes()
    }

    /// Whether it was recorded with this very memory.
    pub fn fits(&self, work: Work) -> bool {
        self.memory.as_ref().is_some_and(|recorded| work.pieces().eq(recorded.iter().copied()))
    }

    /// Enqueues all of it on a stream of its GPU, on the memory it was recorded with.
    pub fn launch(&self, work: Work, stream: &Stream) -> Result<()> {
        if !self.fits(work) {
            bail!(internal, "a recording was given other memory than it was recorded with");
        }
        // SAFETY: kernels checked the memory when they were recorded with it. It is the memory given here, so it is
        // alive, and it is freed in the order of the stream.
        unsafe { self.graph.launch(stream) }
    }
}
