//! Runs loops: fused regions of elementwise code and reductions.
//!
//! `space` decides which axes tiles cover. Then a loop runs in one of three ways: rows of memory that are only reduced
//! (`rows`), f32 and bf16 code as a chain (`chain`), everything else as calls on tiles (`program` turns code into calls,
//! `plan` splits the work, `run` executes it, `run/address` finds the memory). All of them compute the same bits. All
//! decisions depend on the loop alone and are made once; running allocates nothing once the scratch memory of a thread
//! has grown to what the loop needs.
//!
//! # An example: layer norm of 8192 rows of 1024 elements
//!
//! The loop has the shape `[8192, 1024]`, reduces axis 1, and this code (capitals are per row):
//!
//! ```text
//! r0 = load x          R4 = div R3 1024     R7 = reduce sum r6       r10 = mul r5 R9
//! r1 = load scale      r5 = sub r0 R4       R8 = add (R7 / 1024) e   r11 = mul r10 r1
//! r2 = load shift      r6 = mul r5 r5       R9 = rsqrt R8            r12 = add r11 r2
//! R3 = reduce sum r0                                                 store y r12
//! ```
//!
//! 1. `space`: `x` and `y` are contiguous along the reduced axis, so tiles go along the rows: 8192 rows, 1024 columns.
//! 2. Stages: `R3` is known after a first pass over the row, `R7` after a second, and a third pass stores `y`. `r5` is
//!    cheap, so the third pass computes it again instead of reading it back.
//! 3. As a chain (`chain/build`), each pass is a segment that repeats for each of the 16 groups of 64 elements, with
//!    per-row segments in between; a step combines the current group with an operand in memory:
//!
//!    ```text
//!    1 time    load 0, store sum              16 times  load x, add to sum
//!    1 time    combine sum, div 1024, store R4; load 0, store squares
//!    16 times  load x, sub R4, square, add to squares
//!    1 time    combine squares, div 1024, add e, rsqrt, store R9
//!    16 times  prefetch the next x, load x, sub R4, mul R9, mul scale, add shift, store y
//!    ```
//! 4. `PreparedChain::run` cuts the rows into tasks. A task turns each step's place into an address once and runs all its
//!    rows in one call; from row to row, steps move by the strides of their views.
//! 5. As calls on tiles, the same passes are lists of [`program::Op`]: the second is `Load x`, `Apply sub`, `Apply mul`,
//!    `Add`, each a function over a tile of up to 1024 elements in the L1 cache. That is how loops run that also compute
//!    with other dtypes or walk memory in other ways, and all loops on machines that have no chains.
//!
//! The order of a sum is the same everywhere: 64 lanes, runs of 64 groups, runs combined pairwise.

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
pub(crate) use program::live;
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
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self {
                PreparedLoop::Nothing => {}
                PreparedLoop::Rows(rows) => rows.run(memory, pool),
                PreparedLoop::Chain(chain) => chain.run(memory, pool),
                PreparedLoop::Tiles(plan) => plan.run(memory, pool),
            }
        }
        Ok(())
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
