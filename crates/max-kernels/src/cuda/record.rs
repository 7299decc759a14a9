//! Kernels recorded once and enqueued as a whole.

use std::collections::HashSet;
use std::ops::Range;

use max_core::{Result, bail};
use max_driver::cuda::Graph;
use max_driver::{Buffer, Stream};

use super::Prepared;
use crate::Memory;

/// What kernels enqueue, recorded with the memory they were given.
#[derive(Debug)]
pub struct Recording {
    graph: Graph,
    /// `None` after a failed recording.
    memory: Option<Recorded>,
}

/// The memory of a recording.
#[derive(Debug)]
struct Recorded {
    /// Where what the caller brings was, piece by piece.
    given: Vec<Piece>,
    /// What owns the rest.
    #[expect(dead_code, reason = "it only keeps memory alive")]
    kept: Vec<Buffer>,
}

/// The address and the length of a piece of memory.
type Piece = (usize, usize);

/// A kernel, and what it is recorded with.
#[derive(Clone, Debug)]
pub struct Launched<'a> {
    /// The kernel.
    pub kernel: &'a Prepared,
    /// Its memory, one piece per slot.
    pub memory: Vec<Memory<'a>>,
    /// Its scratch memory.
    pub scratch: Memory<'a>,
}

/// Enqueues kernels to be recorded.
///
/// A recording starts when everything before it on its stream is done, so its first kernel never starts early, and while the
/// others start, nothing else runs than kernels of the recording. What none of them may write is constant.
fn enqueue(work: &[Launched], stream: &Stream) -> Result<()> {
    let all = work.iter().flat_map(|launch| launch.memory.iter().chain([&launch.scratch]));
    let written = all.filter(|piece| piece.is_writable()).map(|piece| piece.ptr().addr()..piece.end().addr());
    let written = joined(written.collect());
    let is_constant = |piece: Memory| {
        let next = written.partition_point(|range| range.end <= piece.ptr().addr());
        written.get(next).is_none_or(|range| range.start >= piece.end().addr())
    };
    work.iter().enumerate().try_for_each(|(number, launch)| {
        let is_constant: Option<&dyn Fn(Memory) -> bool> = if number > 0 { Some(&is_constant) } else { None };
        launch.kernel.enqueue(&launch.memory, launch.scratch, stream, is_constant)
    })
}

/// Ranges that cover the same numbers, in order, without overlap.
fn joined(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|range, before| {
        let joins = range.start <= before.end;
        if joins {
            before.end = before.end.max(range.end);
        }
        joins
    });
    ranges
}

fn pieces<'a>(given: &'a [Memory]) -> impl Iterator<Item = Piece> + 'a {
    given.iter().map(|piece| (piece.ptr().addr(), piece.end().addr() - piece.ptr().addr()))
}

impl Recorded {
    fn new(work: &[Launched], given: &[Memory]) -> Result<Recorded> {
        let mut kept: Vec<&Buffer> = Vec::new();
        let mut seen: HashSet<*const Buffer> =
            given.iter().filter_map(|piece| piece.owner()).map(std::ptr::from_ref).collect();
        for piece in work.iter().flat_map(|launch| launch.memory.iter().chain([&launch.scratch])) {
            match piece.owner() {
                Some(owner) if seen.insert(owner) => kept.push(owner),
                None if !piece.ptr().is_null() => bail!(internal, "{piece:?} cannot be kept for a recording"),
                _ => {}
            }
        }
        Ok(Recorded { given: pieces(given).collect(), kept: kept.into_iter().cloned().collect() })
    }
}

impl Recording {
    /// Records kernels on a dedicated stream. None of them runs. What is given comes from the caller each time; the recording
    /// keeps all other memory alive.
    pub fn new(stream: &Stream, work: &[Launched], given: &[Memory]) -> Result<Recording> {
        let graph = Graph::record(stream, || enqueue(work, stream))?;
        Ok(Recording { graph, memory: Some(Recorded::new(work, given)?) })
    }

    /// Records the kernels again, on other memory. If that fails, the recording fits no memory.
    pub fn again(&mut self, stream: &Stream, work: &[Launched], given: &[Memory]) -> Result<()> {
        self.memory = None;
        self.graph.record_again(stream, || enqueue(work, stream))?;
        self.memory = Some(Recorded::new(work, given)?);
        Ok(())
    }

    /// How many functions, copies and fills it enqueues.
    pub fn nodes(&self) -> usize {
        self.graph.nodes()
    }

    /// Whether it was recorded with this very memory.
    pub fn fits(&self, given: &[Memory]) -> bool {
        self.memory.as_ref().is_some_and(|memory| pieces(given).eq(memory.given.iter().copied()))
    }

    /// Enqueues all of it on a stream of its GPU, on the memory it was recorded with.
    pub fn launch(&self, given: &[Memory], stream: &Stream) -> Result<()> {
        if !self.fits(given) {
            bail!(internal, "a recording was given other memory than it was recorded with");
        }
        // SAFETY: kernels checked their memory when they were recorded with it. It is alive: it is what is given here, or
        // kept. It is freed in the order of the stream.
        unsafe { self.graph.launch(stream) }
    }
}

#[cfg(test)]
mod tests {
    use super::joined;

    #[test]
    fn joined_ranges_are_in_order_and_apart() {
        let ranges = vec![30..40, 1..5, 7..7, 5..9, 32..33, 38..50, 60..61];
        assert_eq!(joined(ranges), [1..9, 30..50, 60..61]);
    }
}
