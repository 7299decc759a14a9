//! Where the results of a convolution or of pooling go: as for matmuls, or transposed, if neighbouring positions are contiguous.

use std::ops::Range;

use max_core::kernel::{Instr, Loop, Reg};
use max_core::{DType, Result};

use crate::matmul::{Ending, Places};
use crate::{Memory, tile};

/// What happens to the results.
#[derive(Debug)]
pub(crate) enum Outcome {
    End(Ending),
    /// They are stored directly, with unit stride along positions: the places of rows, and the distance between
    /// filters.
    Transpose(Places, usize),
}

impl Outcome {
    /// How a kernel that computes a dtype runs its epilogue over `[batch, height, width, filters]`.
    pub(crate) fn new(loop_: &Loop<i64>, dtype: DType) -> Result<Outcome> {
        let ending = Ending::new(loop_, dtype)?;
        let widened = dtype.is_float() && dtype != DType::Float32 && dtype != DType::Float64;
        if let (Ending::Run(_), [Instr::Product(_), Instr::Store(number, Reg(0))], false) =
            (&ending, loop_.code.as_slice(), widened)
        {
            let access = &loop_.accesses[*number as usize];
            if let ([_, _, 1, across], [_, _, width, _]) = (access.strides.as_slice(), loop_.shape.as_slice())
                && across >= width
            {
                return Ok(Outcome::Transpose(Places::new(access, &loop_.shape[..2]), *across as usize));
            }
        }
        Ok(Outcome::End(ending))
    }

    /// See [`Ending::place`].
    pub(crate) fn place<L>(
        &self,
        memory: &[Memory],
        outer: usize,
        at: [usize; 2],
    ) -> Option<(*mut L, isize)> {
        match self {
            Outcome::End(ending) => ending.place(memory, outer, at),
            Outcome::Transpose(..) => None,
        }
    }

    /// See [`Ending::deliver`].
    ///
    /// # Safety
    ///
    /// As for that.
    pub(crate) unsafe fn deliver<L>(
        &self,
        memory: &[Memory],
        outer: usize,
        columns: Range<usize>,
        filters: Range<usize>,
        product: (*const L, usize),
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self {
                Outcome::End(ending) => ending.deliver(memory, outer, columns, filters, product),
                Outcome::Transpose(..) => self.finish(memory, outer, columns, filters, product),
            }
        }
    }

    /// See [`Ending::finish`].
    ///
    /// # Safety
    ///
    /// As for that.
    pub(crate) unsafe fn finish<L>(
        &self,
        memory: &[Memory],
        outer: usize,
        columns: Range<usize>,
        filters: Range<usize>,
        product: (*const L, usize),
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self {
                Outcome::End(ending) => ending.finish(memory, outer, columns, filters, product),
                Outcome::Transpose(places, across) => {
                    let at = filters.start * across + columns.start;
                    let to = places.at(memory, outer).cast::<L>().wrapping_add(at);
                    let (from, size) = (product.0.cast(), size_of::<L>());
                    let stride = product.1 as isize;
                    tile::transpose(size, to.cast(), *across, from, stride, columns.len(), filters.len());
                }
            }
        }
    }
}
