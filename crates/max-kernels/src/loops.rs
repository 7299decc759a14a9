//! Runs loops: fused regions of elementwise code and reductions.
//!
//! `space` decides which axes tiles cover, `program` turns code into calls on tiles, `plan` splits the work, and `run`
//! executes it. All decisions depend on the loop alone and are made once; running allocates nothing once the scratch
//! memory of a thread has grown to what the loop needs.

mod best;
mod chain;
mod plan;
mod program;
mod rows;
mod run;
mod space;
#[cfg(test)]
mod tests;

use std::ops::Range;

use max_core::kernel::{Instr, Loop};
use max_core::{Result, bail};

use crate::scratch;
use crate::tile::{self, GROUP};
use crate::{Memory, Pool};
use chain::PreparedChain;
use plan::{Plan, Uses};
pub(crate) use program::{args, live};
use rows::PreparedRows;
use run::{Base, Walk};
pub(crate) use space::{Axis, identity, merge, register, settle};
use space::{Space, View};

/// A loop that is ready to run.
#[derive(Debug)]
pub(crate) enum PreparedLoop {
    /// There is nothing to do.
    Nothing,
    Rows(Box<PreparedRows>),
    Chain(Box<PreparedChain>),
    Tiles(Box<Plan>),
}

impl PreparedLoop {
    pub(crate) fn new(loop_: &Loop<i64>) -> Result<PreparedLoop> {
        loop_.dtypes()?;
        if loop_.code.iter().any(|instr| matches!(instr, Instr::Product(_))) {
            bail!(internal, "a loop that is not an epilogue uses the result of a kernel");
        }
        let loop_ = &space::settle(loop_.clone());
        if loop_.shape.iter().any(|&size| size <= 0) {
            return Ok(PreparedLoop::Nothing);
        }
        if let Some(rows) = PreparedRows::new(loop_)? {
            return Ok(PreparedLoop::Rows(Box::new(rows)));
        }
        let dtypes = loop_.dtypes()?;
        let live = program::live(&loop_.code);
        let uses = uses(loop_, &live);
        Ok(match space::space(loop_, &uses) {
            Some(space) => match PreparedChain::new(loop_, &dtypes, &live, &uses, &space) {
                Some(chain) => PreparedLoop::Chain(Box::new(chain)),
                None => PreparedLoop::Tiles(Box::new(Plan::new(loop_, &dtypes, &live, &uses, space)?)),
            },
            None => PreparedLoop::Nothing,
        })
    }

    /// # Safety
    ///
    /// The memory was checked for the loop.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self {
                PreparedLoop::Nothing => {}
                PreparedLoop::Rows(rows) => rows.run(memory, pool),
                PreparedLoop::Chain(chain) => chain.run(memory, pool),
                PreparedLoop::Tiles(plan) => plan.run(memory, pool),
            }
        }
    }
}

/// The loop at the end of another kernel, run block by block on its results.
#[derive(Debug)]
pub(crate) struct Epilogue {
    plan: Option<Plan>,
    /// The bytes of an element of the kernel's results.
    product: usize,
}

impl Epilogue {
    pub(crate) fn new(loop_: &Loop<i64>) -> Result<Epilogue> {
        space::expect_epilogue(loop_)?;
        let dtypes = loop_.dtypes()?;
        let live = program::live(&loop_.code);
        let product = loop_.code.iter().find_map(|instr| match instr {
            Instr::Product(dtype) => Some(tile::register_size(*dtype)),
            _ => None,
        });
        let product = product.unwrap_or(0);
        if !live.contains(&true) || loop_.shape.iter().any(|&size| size <= 0) {
            return Ok(Epilogue { plan: None, product });
        }
        let uses = uses(loop_, &live);
        let (outer, inner) = loop_.shape.split_at(loop_.shape.len() - 2);
        let views = loop_.accesses.iter().map(|access| {
            let (outer, inner) = access.strides.split_at(outer.len());
            View {
                slot: access.slot.0 as usize,
                dtype: access.dtype,
                offset: access.offset as isize,
                outer: outer.iter().map(|&stride| stride as isize).collect(),
                row: inner[0] as isize,
                col: inner[1] as isize,
                along: 0,
            }
        });
        let space = Space {
            outer: outer.iter().map(|&size| size as usize).collect(),
            rows: inner[0] as usize,
            cols: inner[1] as usize,
            steps: 1,
            horizontal: false,
            transposed: false,
            views: views.collect(),
        };
        Ok(Epilogue { plan: Some(Plan::new(loop_, &dtypes, &live, &uses, space)?), product })
    }

    /// Runs on a block of the last two axes at an index of the others (flattened, row-major). The results of the block
    /// are at `product`, in rows `stride` elements apart, in the register form of their dtype (narrow floats as f32).
    ///
    /// # Safety
    ///
    /// The block is inside the loop's space, `product` holds it, and the memory was checked for the kernel.
    pub(crate) unsafe fn run(
        &self,
        memory: &[Memory],
        outer: usize,
        rows: Range<usize>,
        columns: Range<usize>,
        product: *const u8,
        stride: usize,
    ) {
        let Some(plan) = &self.plan else { return };
        scratch::with(plan.bytes, |scratch| {
            // SAFETY: the scratch memory has as many bytes as the plan needs.
            let mut walk = unsafe { Walk::new(plan, memory, scratch) };
            let [down, right] = plan.tiles(rows.len(), columns.len());
            let size = self.product;
            for row in rows.clone().step_by(down) {
                let down = down.min(rows.end - row);
                let mut col = columns.start;
                while col < columns.end {
                    let left = right.min(columns.end - col);
                    // The remainder of a row gets its own tile, so that the other tiles can be used in place.
                    let right = if down == 1 && left > GROUP { left - left % GROUP } else { left };
                    let at = (row - rows.start) * stride + (col - columns.start);
                    let ptr = product.wrapping_add(at * size).cast_mut();
                    walk.go(outer, row, col);
                    let (size, row) = (size as isize, stride as isize);
                    walk.set_base(
                        plan.space.views.len(),
                        Base { ptr, origin: ptr, limit: std::ptr::null(), size, row, col: 1, along: 0 },
                    );
                    walk.resize(down, right);
                    // SAFETY: the tile is inside the block, and not larger than the tiles of the plan.
                    unsafe { walk.tile() };
                    col += right;
                }
            }
            walk.end();
        });
    }
}

/// What a loop does with its accesses.
fn uses(loop_: &Loop<i64>, live: &[bool]) -> Uses {
    let none = vec![false; loop_.accesses.len()];
    let mut uses = Uses { read: none.clone(), written: none.clone(), counted: none };
    for (instr, _) in loop_.code.iter().zip(live).filter(|(_, live)| **live) {
        match instr {
            Instr::Load(access) => uses.read[*access as usize] = true,
            Instr::Index(access) => uses.counted[*access as usize] = true,
            Instr::Store(access, _) => uses.written[*access as usize] = true,
            _ => {}
        }
    }
    uses
}
