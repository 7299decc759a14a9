//! Rows of memory that are reduced in place: sums, means and maxima of contiguous rows.
//!
//! Nothing is computed before the reduction and little after it, so whole rows are reduced, many in one call, and what
//! follows is an epilogue over their results.

use max_core::kernel::{Instr, Level, Literal, Loop, Reg};
use max_core::{DType, Result};

use super::Epilogue;
use super::plan::task_size;
use super::space::kept_axis;
use crate::scratch;
use crate::tile::{self, RowsFn};
use crate::{Memory, Pool};

/// Shorter rows are better reduced side by side, longer ones in parts.
const SHORTEST: i64 = 64;
const LONGEST: i64 = 1 << 18;
/// Fewer rows are better reduced in parts.
const FEWEST: i64 = 16;
/// The maximum number of results that wait for the epilogue.
const TOGETHER: usize = 1024;

/// Rows that are ready to be reduced.
#[derive(Debug)]
pub(crate) struct PreparedRows {
    slot: usize,
    offset: isize,
    stride: isize,
    size: usize,
    rows: usize,
    count: usize,
    reduce: RowsFn,
    epilogue: Epilogue,
}

impl PreparedRows {
    /// The loop as reduced rows, if it has that form.
    pub(super) fn new(loop_: &Loop<i64>) -> Result<Option<PreparedRows>> {
        let Some(axis) = loop_.reduce else { return Ok(None) };
        let (Some(found), Some(kept)) = (reduction(loop_, axis), kept_axis(loop_)) else { return Ok(None) };
        let (load, reduce, kind) = found;
        let access = &loop_.accesses[load.access];
        let fits = (SHORTEST..=LONGEST).contains(&loop_.shape[axis]) && kept.size >= FEWEST;
        if !fits || access.strides[axis] != 1 || !tile::direct(access.dtype) {
            return Ok(None);
        }
        let mut code = loop_.code.clone();
        code[load.at] = Instr::Literal(Literal { dtype: DType::Bool, bits: 0 });
        code[reduce] = Instr::Product(access.dtype);
        let mut accesses = loop_.accesses.clone();
        for (access, &stride) in accesses.iter_mut().zip(&kept.strides) {
            access.strides = vec![0, stride];
        }
        let ending = Loop { shape: vec![1, kept.size], reduce: None, accesses, code };
        Ok(Some(PreparedRows {
            slot: access.slot.0 as usize,
            offset: access.offset as isize,
            stride: kept.strides[load.access] as isize,
            size: access.dtype.size_in_bytes(),
            rows: kept.size as usize,
            count: loop_.shape[axis] as usize,
            reduce: tile::reducer(kind, access.dtype)?.rows,
            epilogue: Epilogue::new(&ending)?,
        }))
    }

    /// # Safety
    ///
    /// The memory was checked for the loop.
    pub(super) unsafe fn run(&self, memory: &[Memory], pool: &Pool) {
        let chunk = (task_size(self.rows.saturating_mul(self.count)) / self.count).max(1);
        let task = |task: usize| {
            let end = self.rows.min((task + 1) * chunk);
            scratch::with(TOGETHER.min(chunk) * self.size, |results| {
                for start in (task * chunk..end).step_by(TOGETHER) {
                    let rows = start..end.min(start + TOGETHER);
                    let at = (self.offset + start as isize * self.stride) * self.size as isize;
                    let from = memory[self.slot].ptr().wrapping_offset(at);
                    // SAFETY: the caller's promise; the scratch memory has room for one result per row.
                    unsafe {
                        (self.reduce)(results, from, self.stride, rows.len(), self.count);
                        self.epilogue.run(memory, 0, 0..1, rows.clone(), results, rows.len());
                    }
                }
            });
        };
        let tasks = self.rows.div_ceil(chunk);
        if tasks > 1 { pool.run(tasks, &task) } else { task(0) }
    }
}

/// A load and the access it reads.
struct Load {
    at: usize,
    access: usize,
}

/// The only load along the rows, the only reduction, and its kind; `None` if anything else is per element.
fn reduction(loop_: &Loop<i64>, axis: usize) -> Option<(Load, usize, max_core::kernel::Reduction)> {
    let levels = loop_.levels(|stride| *stride == 0);
    let mut elements = (0..levels.len()).filter(|&at| levels[at] == Level::Element);
    let at = elements.next()?;
    let Instr::Load(access) = loop_.code[at] else { return None };
    let mut reductions = loop_.code.iter().enumerate().filter_map(|(at, instr)| match instr {
        Instr::Reduce(kind, arg) => Some((at, *kind, *arg)),
        _ => None,
    });
    let (reduce, kind, arg) = reductions.next()?;
    let once = |instr: &Instr<i64>| match instr {
        Instr::Store(store, _) => loop_.accesses[*store as usize].strides[axis] == 0,
        _ => true,
    };
    let alone = elements.next().is_none() && reductions.next().is_none() && loop_.code.iter().all(once);
    let simple = alone && arg == Reg(at as u32) && !kind.gives_index();
    simple.then_some((Load { at, access: access as usize }, reduce, kind))
}
