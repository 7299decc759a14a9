//! Runs matrix products.
//!
//! A task computes a block of rows and columns of one product, or several small products: it packs blocks of both
//! operands in scratch memory of its own and multiplies them with the kernels of `micro`. Blocks are cut by shape.
//! A product of few rows with a right operand that lies row by row reads that as it lies instead.

mod block;
mod ending;
mod micro;
mod pack;

use std::ops::Range;

use max_core::kernel::{Access, Matmul};
use max_core::{Element, Result, bail, dispatch};

pub(crate) use block::multiply;
pub(crate) use ending::{Ending, Places};
pub(crate) use micro::{DEPTH, Kernels, Micro, ROW, THIN};
pub(crate) use pack::{Matrix, pack, pack_left, pack_right, pack_right_rows};

use crate::scratch::{bytes, pieces};
use crate::{Memory, Pool};

/// About how many rows and columns a task computes: what it packs and computes stays in the second cache.
const ROWS: usize = 168;
const COLUMNS: usize = 256;

/// The most rows for which the right operand is read as it lies, once for each [`THIN`] of them.
const FEW_ROWS: usize = 4 * THIN;

/// How many columns a task of few rows computes: a page of each row.
const THIN_COLUMNS: usize = 1024;

/// The multiplications below which products share a task.
const TASK: usize = 1 << 17;

/// A matrix product that is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedMatmul {
    batch: usize,
    /// The rows, the depth and the columns.
    size: [usize; 3],
    left: Operand,
    right: Operand,
    ending: Ending,
    run: unsafe fn(&PreparedMatmul, &[Memory], &Pool),
}

/// Matrices in memory: where they start, and how far apart rows and columns lie.
#[derive(Debug)]
pub(crate) struct Operand {
    places: Places,
    strides: [isize; 2],
    size: [usize; 2],
}

impl Operand {
    pub(crate) fn new(access: &Access<i64>, batch: &[i64], size: [i64; 2]) -> Operand {
        let strides = [batch.len(), batch.len() + 1].map(|axis| access.strides[axis] as isize);
        Operand { places: Places::new(access, batch), strides, size: size.map(|size| size as usize) }
    }

    /// The same matrices with rows as columns.
    pub(crate) fn transposed(mut self) -> Operand {
        self.strides.reverse();
        self.size.reverse();
        self
    }

    pub(crate) fn at<T>(&self, memory: &[Memory], index: usize) -> Matrix<T> {
        Matrix { start: self.places.at(memory, index).cast(), strides: self.strides, size: self.size }
    }
}

/// The product of sizes, as a number of things to do.
pub(crate) fn count(sizes: &[i64]) -> Result<usize> {
    let product =
        sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(usize::try_from(size).ok()?));
    match product {
        Some(product) if product <= isize::MAX as usize => Ok(product),
        _ => bail!(internal, "a kernel has the sizes {sizes:?}"),
    }
}

/// Sizes cut into parts of about a length, each but the last a multiple of a unit.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    size: usize,
    part: usize,
}

impl Cut {
    pub(crate) fn new(size: usize, about: usize, unit: usize) -> Cut {
        let parts = size.div_ceil(about).max(1);
        Cut { size, part: size.div_ceil(parts).next_multiple_of(unit).max(1) }
    }

    pub(crate) fn parts(self) -> usize {
        self.size.div_ceil(self.part)
    }

    pub(crate) fn range(self, number: usize) -> Range<usize> {
        number * self.part..self.size.min((number + 1) * self.part)
    }
}

impl PreparedMatmul {
    pub(crate) fn new(k: &Matmul<i64>) -> Result<PreparedMatmul> {
        let dtype = k.lhs.dtype;
        if k.rhs.dtype != dtype {
            bail!(internal, "a product of {dtype} and {}", k.rhs.dtype);
        }
        count(&[&k.batch[..], &[k.m, k.n]].concat())?;
        Ok(PreparedMatmul {
            batch: count(&k.batch)?,
            size: [k.m, k.k, k.n].map(|size| size as usize),
            left: Operand::new(&k.lhs, &k.batch, [k.m, k.k]),
            right: Operand::new(&k.rhs, &k.batch, [k.k, k.n]),
            ending: Ending::new(&k.epilogue, dtype)?,
            run: dispatch!(dtype, T => run::<T>),
        })
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        // SAFETY: the caller vouches.
        unsafe { (self.run)(self, memory, pool) };
        Ok(())
    }

    /// Whether right operands of a type are read as they lie.
    fn is_thin<T: Element>(&self) -> bool {
        pack::is_wide::<T>() && self.size[0] <= FEW_ROWS && self.right.strides[1] == 1
    }
}

/// # Safety
///
/// The memory was checked for the kernel, whose operands have this type.
unsafe fn run<T: Element>(k: &PreparedMatmul, memory: &[Memory], pool: &Pool)
where
    T::Lane: Micro,
{
    let [m, depth, n] = k.size;
    if k.batch == 0 || m == 0 || n == 0 {
        return;
    }
    let kernels = T::Lane::kernels();
    let thin = k.is_thin::<T>();
    let rows = Cut::new(m, ROWS, kernels.tiles.len());
    let columns = Cut::new(n, if thin { THIN_COLUMNS } else { COLUMNS }, kernels.width);
    let blocks = rows.parts() * columns.parts();
    let work = m.saturating_mul(n).saturating_mul(depth.max(1));
    let together = if blocks == 1 { (TASK / work).clamp(1, k.batch) } else { 1 };
    pool.run(k.batch.div_ceil(together) * blocks, &|task| {
        let (group, block) = (task / blocks, task % blocks);
        let (rows, columns) = (rows.range(block / columns.parts()), columns.range(block % columns.parts()));
        for index in group * together..k.batch.min((group + 1) * together) {
            // SAFETY: the caller vouches for the memory; no other task has this block.
            unsafe {
                let task = Task { k, kernels, memory, index, rows: rows.clone(), columns: columns.clone() };
                if thin { task.thin::<T>() } else { task.packed::<T>() }
            }
        }
    });
}

/// A block of a product.
struct Task<'a, L: 'static> {
    k: &'a PreparedMatmul,
    kernels: &'static Kernels<L>,
    memory: &'a [Memory],
    index: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl<L: Micro> Task<'_, L> {
    /// Computes it from packed blocks.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, whose operands have this type; nobody else has this block.
    unsafe fn packed<T: Element<Lane = L>>(&self) {
        let Task { k, kernels, memory, index, .. } = *self;
        let (rows, columns) = (self.rows.len(), self.columns.len());
        let stride = columns.next_multiple_of(kernels.width);
        let sizes = [rows * ROW, stride * DEPTH, rows * stride];
        pieces(sizes.map(bytes::<L>).iter().sum(), |scratch| {
            let [left, right, sums] = sizes.map(|size| scratch.take::<L>(size));
            let place = k.ending.place::<L>(memory, index, [self.rows.start, self.columns.start]);
            let to = place.unwrap_or((sums, stride as isize));
            let (x, y) = (k.left.at::<T>(memory, index), k.right.at::<T>(memory, index));
            let depth = k.size[1];
            // SAFETY: the caller vouches for the operands and the place; scratch memory has the sizes asked for.
            unsafe {
                if depth == 0 {
                    (0..rows).for_each(|i| {
                        to.0.offset(i as isize * to.1).cast::<u8>().write_bytes(0, columns * size_of::<L>())
                    });
                }
                for start in (0..depth).step_by(DEPTH) {
                    let taken = DEPTH.min(depth - start);
                    pack_left(left, x.part([self.rows.start, start], [rows, taken]));
                    pack_right(kernels, right, y.part([start, self.columns.start], [taken, columns]));
                    let (left, right) =
                        ((left.cast_const(), ROW as isize), (right.cast_const(), taken * kernels.width));
                    multiply(kernels, [rows, taken, columns], left, right, to, start > 0);
                }
                k.ending.finish(
                    memory,
                    index,
                    self.rows.clone(),
                    self.columns.clone(),
                    (sums.cast_const(), stride),
                );
            }
        });
    }

    /// Computes it from few rows and a right operand that is read as it lies, but for the last columns.
    ///
    /// # Safety
    ///
    /// As for `packed`; and there are at most [`FEW_ROWS`] rows, and the right operand's columns have unit stride.
    unsafe fn thin<T: Element<Lane = L>>(&self) {
        let Task { k, kernels, memory, index, .. } = *self;
        let (rows, columns) = (self.rows.len(), self.columns.len());
        let whole = columns - columns % kernels.lanes;
        let stride = columns.next_multiple_of(kernels.width);
        let sizes = [rows * ROW, kernels.width * DEPTH, rows * stride, rows * stride];
        pieces(sizes.map(bytes::<L>).iter().sum(), |scratch| {
            let [left, right, part, sums] = sizes.map(|size| scratch.take::<L>(size));
            let (to, to_stride) = k
                .ending
                .place::<L>(memory, index, [self.rows.start, self.columns.start])
                .unwrap_or((sums, stride as isize));
            let (x, y) = (k.left.at::<T>(memory, index), k.right.at::<T>(memory, index));
            let depth = k.size[1];
            // SAFETY: as in `packed`; the right operand is of the type of sums.
            unsafe {
                if depth == 0 {
                    part.write_bytes(0, rows * stride);
                }
                for start in (0..depth.max(1)).step_by(DEPTH) {
                    let taken = DEPTH.min(depth - start);
                    if taken > 0 {
                        pack_left(left, x.part([self.rows.start, start], [rows, taken]));
                        let y = y.part([start, self.columns.start], [taken, columns]);
                        for i in (0..rows).step_by(THIN) {
                            let (left, sums) = (left.add(i * ROW), (part.add(i * stride), stride));
                            let right = (y.start.cast(), y.strides[0]);
                            kernels.thin[THIN.min(rows - i) - 1](taken, left, right, whole, sums);
                        }
                        let rest = columns - whole;
                        pack_right(kernels, right, y.part([0, whole], [taken, rest]));
                        multiply(
                            kernels,
                            [rows, taken, rest],
                            (left, ROW as isize),
                            (right, taken * kernels.width),
                            (part.add(whole), stride as isize),
                            false,
                        );
                    }
                    for i in 0..rows {
                        let (from, to) = (part.add(i * stride), to.offset(i as isize * to_stride));
                        for j in 0..columns {
                            let (sum, to) = (from.add(j).read(), to.add(j));
                            to.write_unaligned(if start > 0 { to.read_unaligned().add(sum) } else { sum });
                        }
                    }
                }
                k.ending.finish(
                    memory,
                    index,
                    self.rows.clone(),
                    self.columns.clone(),
                    (sums.cast_const(), stride),
                );
            }
        });
    }
}

#[cfg(test)]
pub(crate) mod tests;
