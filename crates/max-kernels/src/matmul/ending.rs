//! Where the result of a matmul goes: straight to memory, or through the epilogue of its kernel.

use std::ops::Range;

use max_core::kernel::{Access, Instr, Loop, Reg, Slot};
use max_core::{DType, Result, bail};

use crate::Memory;
use crate::loops::Epilogue;

/// The places of an access over some axes, in row-major order.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    slot: Slot,
    element: usize,
    offset: isize,
    /// Size and stride of each axis, the last one first.
    axes: Vec<(usize, isize)>,
}

impl Places {
    /// The places over the first axes of an access, which has at least as many strides as `sizes`.
    pub(crate) fn new(access: &Access<i64>, sizes: &[i64]) -> Places {
        let axes = sizes.iter().zip(&access.strides).map(|(&size, &stride)| (size as usize, stride as isize));
        Places {
            slot: access.slot,
            element: access.dtype.size_in_bytes(),
            offset: access.offset as isize,
            axes: axes.rev().collect(),
        }
    }

    /// The bytes of an element.
    pub(crate) fn element(&self) -> usize {
        self.element
    }

    /// Whether all indices have the same place.
    pub(crate) fn repeat(&self) -> bool {
        self.axes.iter().all(|&(size, stride)| size == 1 || stride == 0)
    }

    /// The address at an index. It wraps around, since an operand without elements may have any strides.
    pub(crate) fn at(&self, memory: &[Memory], mut index: usize) -> *mut u8 {
        let mut distance = self.offset;
        for &(size, stride) in &self.axes {
            distance = distance.wrapping_add(((index % size) as isize).wrapping_mul(stride));
            index /= size;
        }
        memory[self.slot.0 as usize].ptr().wrapping_offset(distance.wrapping_mul(self.element as isize))
    }
}

/// What happens to the result.
#[derive(Debug)]
pub(crate) enum Ending {
    /// It is stored directly, with unit stride along columns: the places of matrices, and the distance between rows.
    Store(Places, isize),
    /// An epilogue runs on it.
    Run(Box<Epilogue>),
}

impl Ending {
    /// How a kernel that computes a dtype ends in a loop over `[.., rows, columns]`.
    pub(crate) fn new(loop_: &Loop<i64>, dtype: DType) -> Result<Ending> {
        let [outer @ .., rows, columns] = loop_.shape.as_slice() else {
            bail!(internal, "an epilogue has the shape {:?}", loop_.shape);
        };
        if let Some(other) = loop_.code.iter().find_map(|instr| match instr {
            Instr::Product(other) if *other != dtype => Some(other),
            _ => None,
        }) {
            bail!(internal, "an epilogue takes {other} where {dtype} is computed");
        }
        let widened = dtype.is_float() && dtype != DType::Float32 && dtype != DType::Float64;
        if let ([Instr::Product(_), Instr::Store(number, Reg(0))], false) = (loop_.code.as_slice(), widened) {
            let access = &loop_.accesses[*number as usize];
            let (down, along) = (access.strides[outer.len()], access.strides[outer.len() + 1]);
            if (along == 1 || *columns == 1) && (down.unsigned_abs() >= columns.unsigned_abs() || *rows == 1)
            {
                return Ok(Ending::Store(Places::new(access, outer), down as isize));
            }
        }
        Ok(Ending::Run(Box::new(Epilogue::new(loop_)?)))
    }

    /// The destination of the result at an index, row and column, and the distance between rows, if it is stored
    /// directly.
    pub(crate) fn place<L>(
        &self,
        memory: &[Memory],
        outer: usize,
        at: [usize; 2],
    ) -> Option<(*mut L, isize)> {
        match self {
            Ending::Store(places, stride) => {
                let distance = at[0] as isize * stride + at[1] as isize;
                Some((places.at(memory, outer).cast::<L>().wrapping_offset(distance), *stride))
            }
            Ending::Run(_) => None,
        }
    }

    /// Stores a block of the result, or runs the epilogue on it.
    ///
    /// # Safety
    ///
    /// The block is inside the loop's space, `product` holds it, and the memory was checked for the kernel.
    pub(crate) unsafe fn deliver<L>(
        &self,
        memory: &[Memory],
        outer: usize,
        rows: Range<usize>,
        columns: Range<usize>,
        product: (*const L, usize),
    ) {
        if let Some((to, stride)) = self.place::<L>(memory, outer, [rows.start, columns.start]) {
            for i in 0..rows.len() {
                // SAFETY: guaranteed by the caller; destinations need not be aligned, so bytes are copied.
                unsafe {
                    let (from, to) = (product.0.add(i * product.1), to.offset(i as isize * stride));
                    std::ptr::copy_nonoverlapping(
                        from.cast::<u8>(),
                        to.cast(),
                        columns.len() * size_of::<L>(),
                    );
                }
            }
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.finish(memory, outer, rows, columns, product) };
    }

    /// Runs the epilogue, if there is one, on a block of the result.
    ///
    /// # Safety
    ///
    /// The block is inside the loop's space, `product` holds it, and the memory was checked for the kernel.
    pub(crate) unsafe fn finish<L>(
        &self,
        memory: &[Memory],
        outer: usize,
        rows: Range<usize>,
        columns: Range<usize>,
        product: (*const L, usize),
    ) {
        if let Ending::Run(epilogue) = self {
            // SAFETY: guaranteed by the caller.
            unsafe { epilogue.run(memory, outer, rows, columns, product.0.cast(), product.1) };
        }
    }
}
