//! Runs loops.

use std::ops::Range;

use max_core::Result;
use max_core::kernel::Loop;

use crate::{Memory, Pool};

/// A loop that has been checked and is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedLoop {}

impl PreparedLoop {
    pub(crate) fn new(_loop: &Loop<i64>) -> Result<PreparedLoop> {
        Ok(PreparedLoop {})
    }

    pub(crate) fn run(&self, _memory: &[Memory], _pool: &Pool) -> Result<()> {
        Ok(())
    }
}

/// The loop at the end of another kernel, run block by block on what that computes.
#[derive(Debug)]
pub(crate) struct Epilogue {}

impl Epilogue {
    pub(crate) fn new(_loop: &Loop<i64>) -> Result<Epilogue> {
        Ok(Epilogue {})
    }

    /// Runs on a block of the last two axes at an index of the others (flattened, row-major). The block's products lie
    /// at `product`, rows `stride` elements apart, in the register form of their dtype (narrow floats as f32).
    ///
    /// # Safety
    ///
    /// The block is inside the loop's space, `product` holds it, and the memory was checked for the kernel.
    pub(crate) unsafe fn run(
        &self,
        _memory: &[Memory],
        _outer: usize,
        _rows: Range<usize>,
        _columns: Range<usize>,
        _product: *const u8,
        _stride: usize,
    ) {
    }
}
