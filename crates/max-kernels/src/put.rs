//! Runs stores to places that are read from memory: a loop that copies, at an offset.

use max_core::kernel::{Access, Instr, Loop, Put, PutBound, Reg, Slot, put_start};
use max_core::{DType, Result, bail};

use crate::loops::PreparedLoop;
use crate::{Memory, Pool};

/// A store that is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedPut {
    copy: PreparedLoop,
    source: Slot,
    out: Slot,
    /// The bytes of an element.
    size: i64,
    bounds: Vec<PutBound<i64>>,
    /// The number of elements along the axis of each bound.
    counts: Vec<i64>,
    /// Whether there is nothing to copy.
    empty: bool,
}

impl PreparedPut {
    pub(crate) fn new(k: &Put<i64>) -> Result<PreparedPut> {
        let scalars = k.bounds.iter().flat_map(|bound| [Some(&bound.start), bound.stop.as_ref()]).flatten();
        if k.source.dtype != k.out.dtype || scalars.into_iter().any(|scalar| scalar.dtype != DType::Int64) {
            bail!(internal, "a store of {} into {}", k.source.dtype, k.out.dtype);
        }
        let numbered = |access: &Access<i64>, slot| Access { slot: Slot(slot), ..access.clone() };
        let copy = Loop {
            shape: k.shape.clone(),
            reduce: None,
            accesses: vec![numbered(&k.source, 0), numbered(&k.out, 1)],
            code: vec![Instr::Load(0), Instr::Store(1, Reg(0))],
        };
        let Some(counts) = k.bounds.iter().map(|bound| k.shape.get(bound.axis).copied()).collect() else {
            bail!(internal, "a store along an axis that it does not have");
        };
        Ok(PreparedPut {
            copy: PreparedLoop::new(&copy)?,
            source: k.source.slot,
            out: k.out.slot,
            size: k.out.dtype.size_in_bytes() as i64,
            bounds: k.bounds.clone(),
            counts,
            empty: k.shape.contains(&0),
        })
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        let read = |access: &Access<i64>| {
            let place = memory[access.slot.0 as usize].ptr().wrapping_offset(8 * access.offset as isize);
            // SAFETY: the caller guarantees that the slot holds the scalar; it may be unaligned.
            unsafe { place.cast::<i64>().read_unaligned() }
        };
        let mut offset = 0;
        for (bound, &count) in self.bounds.iter().zip(&self.counts) {
            let stop = bound.stop.as_ref().map(read);
            let start = put_start(bound.axis, bound.size, count, bound.step, read(&bound.start), stop)?;
            offset += start * bound.stride;
        }
        let [source, out] = [self.source, self.out].map(|slot| memory[slot.0 as usize]);
        if self.empty {
            return Ok(());
        }
        // SAFETY: the memory was checked for all of what is stored into, and the bounds are inside it; what else the loop
        // touches was checked too.
        unsafe { self.copy.run(&[source, out.after((offset * self.size) as usize)?], pool) }
    }
}
