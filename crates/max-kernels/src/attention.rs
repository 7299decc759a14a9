//! Runs attention.
//!
//! A task computes some rows of one result: it goes over the keys block by block, with the scores of its rows and one
//! block in scratch memory, never all scores. What earlier blocks have summed is scaled down when a later block has a
//! greater score. Blocks of keys have one size, so a row's sums have one order.

mod softmax;

use max_core::kernel::Attention;
use max_core::scalar::Lane;
use max_core::{Bool, DType, Element, Result, bail, dispatch};

use crate::matmul::{
    Cut, DEPTH, Ending, Kernels, Matrix, Micro, Operand, ROW, count, multiply, pack, pack_left, pack_right,
};
use crate::scratch::{bytes, pieces};
use crate::{Memory, Pool};
use softmax::{Mask, Real, Scores, weigh};

/// About how many queries and how many columns of the values a task computes.
const QUERIES: usize = 112;
const COLUMNS: usize = 256;

/// An attention that is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedAttention {
    batch: usize,
    queries: usize,
    keys: usize,
    depth: usize,
    width: usize,
    query: Operand,
    /// Turned, so that its columns are the keys.
    key: Operand,
    value: Operand,
    mask: Option<(Operand, DType)>,
    scale: f64,
    causal: bool,
    ending: Ending,
    run: unsafe fn(&PreparedAttention, &[Memory], &Pool),
}

impl PreparedAttention {
    pub(crate) fn new(k: &Attention<i64>) -> Result<PreparedAttention> {
        let dtype = k.query.dtype;
        let masked = k.mask.as_ref().map(|mask| mask.dtype);
        let fits =
            |mask: DType| mask == DType::Bool || mask.is_float() && is_double(mask) == is_double(dtype);
        if [k.key.dtype, k.value.dtype] != [dtype; 2] || !masked.is_none_or(fits) {
            let (key, value) = (k.key.dtype, k.value.dtype);
            bail!(internal, "an attention of {dtype}, {key} and {value} with a mask of {masked:?}");
        }
        count(&[&k.batch[..], &[k.queries, k.width]].concat())?;
        Ok(PreparedAttention {
            batch: count(&k.batch)?,
            queries: k.queries as usize,
            keys: k.keys as usize,
            depth: k.depth as usize,
            width: k.width as usize,
            query: Operand::new(&k.query, &k.batch, [k.queries, k.depth]),
            key: Operand::new(&k.key, &k.batch, [k.keys, k.depth]).transposed(),
            value: Operand::new(&k.value, &k.batch, [k.keys, k.width]),
            mask: k.mask.as_ref().map(|mask| (Operand::new(mask, &k.batch, [k.queries, k.keys]), mask.dtype)),
            scale: k.scale,
            causal: k.causal,
            ending: Ending::new(&k.epilogue, dtype)?,
            run: floats(dtype)?,
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

    /// How many of the keys, from the first, a query sees; that may be less than none.
    fn seen(&self, query: usize) -> isize {
        let keys = self.keys as isize;
        if self.causal { query as isize + 1 + keys - self.queries as isize } else { keys }
    }
}

fn is_double(dtype: DType) -> bool {
    dtype == DType::Float64
}

/// The function for a float dtype.
fn floats(dtype: DType) -> Result<unsafe fn(&PreparedAttention, &[Memory], &Pool)> {
    use max_core::float8::{F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ};
    Ok(match dtype {
        DType::Float64 => run::<f64>,
        DType::Float32 => run::<f32>,
        DType::Float16 => run::<max_core::f16>,
        DType::BFloat16 => run::<max_core::bf16>,
        DType::Float8E4M3FN => run::<F8E4M3FN>,
        DType::Float8E4M3FNUZ => run::<F8E4M3FNUZ>,
        DType::Float8E5M2 => run::<F8E5M2>,
        DType::Float8E5M2FNUZ => run::<F8E5M2FNUZ>,
        _ => bail!(internal, "an attention of {dtype}"),
    })
}

/// # Safety
///
/// The memory was checked for the kernel, whose operands have this type.
unsafe fn run<T: Element>(k: &PreparedAttention, memory: &[Memory], pool: &Pool)
where
    T::Lane: Real,
{
    if k.batch == 0 || k.queries == 0 || k.width == 0 {
        return;
    }
    let kernels = T::Lane::kernels();
    let rows = Cut::new(k.queries, QUERIES, kernels.tiles.len());
    let columns = Cut::new(k.width, COLUMNS, kernels.width);
    let blocks = rows.parts() * columns.parts();
    pool.run(k.batch * blocks, &|task| {
        let block = task % blocks;
        let task = Task {
            k,
            memory,
            index: task / blocks,
            rows: rows.range(block / columns.parts()),
            columns: columns.range(block % columns.parts()),
        };
        // SAFETY: the caller vouches for the memory; no other task has this block.
        unsafe { task.run::<T>(kernels) };
    });
}

/// A block of a result.
struct Task<'a> {
    k: &'a PreparedAttention,
    memory: &'a [Memory],
    index: usize,
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
}

impl Task<'_> {
    /// # Safety
    ///
    /// The memory was checked for the kernel, whose operands have this type; nobody else has this block.
    unsafe fn run<T: Element>(&self, kernels: &Kernels<T::Lane>)
    where
        T::Lane: Real,
    {
        let Task { k, memory, index, .. } = *self;
        let (rows, columns) = (self.rows.len(), self.columns.len());
        let stride = columns.next_multiple_of(kernels.width);
        let keys = k.keys.min(DEPTH).next_multiple_of(kernels.width);
        let masks = if k.mask.is_some() { rows * ROW } else { 0 };
        let rights = DEPTH * keys.max(stride);
        let sizes = [rows * ROW, rights, rows * ROW, masks, rows * stride, rows, rows];
        pieces(sizes.map(bytes::<T::Lane>).iter().sum(), |scratch| {
            let [left, right, scores, masks, sums, greatest, totals] =
                sizes.map(|size| scratch.take::<T::Lane>(size));
            let value = k.value.at::<T>(memory, index);
            // What no row of this block sees is left out.
            let seen = k.seen(self.rows.end - 1).clamp(0, k.keys as isize) as usize;
            // SAFETY: the caller vouches for the operands; scratch memory has the sizes asked for.
            unsafe {
                (0..rows).for_each(|i| greatest.add(i).write(T::Lane::splat(f64::NEG_INFINITY)));
                totals.write_bytes(0, rows);
                sums.write_bytes(0, rows * stride);
                for start in (0..seen).step_by(DEPTH) {
                    let taken = DEPTH.min(k.keys - start);
                    self.scores::<T>(kernels, start, taken, [left, right, scores]);
                    let mask = self.mask::<T::Lane>(start, taken, masks);
                    weigh(&Scores {
                        scores,
                        rows,
                        keys: taken,
                        seen: [k.seen(self.rows.start) - start as isize, k.causal.into()],
                        scale: T::Lane::splat(k.scale),
                        mask,
                        greatest,
                        totals,
                        sums: (sums, stride),
                    });
                    let part = value.part([start, self.columns.start], [taken, columns]);
                    pack_right(kernels, right, part);
                    let (weights, right) =
                        ((scores.cast_const(), ROW as isize), (right.cast_const(), taken * kernels.width));
                    multiply(kernels, [rows, taken, columns], weights, right, (sums, stride as isize), true);
                }
                let place = k.ending.place::<T::Lane>(memory, index, [self.rows.start, self.columns.start]);
                let (to, to_stride) = place.unwrap_or((sums, stride as isize));
                for i in 0..rows {
                    let total = totals.add(i).read();
                    for j in 0..columns {
                        let sum = sums.add(i * stride + j).read();
                        let weighted = if k.keys == 0 { sum } else { sum / total };
                        to.offset(i as isize * to_stride).add(j).write_unaligned(weighted);
                    }
                }
                let sums = (sums.cast_const(), stride);
                k.ending.finish(memory, index, self.rows.clone(), self.columns.clone(), sums);
            }
        });
    }

    /// The products of the queries with some keys.
    ///
    /// # Safety
    ///
    /// As for `run`; the scratch memory holds packed rows, packed keys and the scores.
    unsafe fn scores<T: Element>(
        &self,
        kernels: &Kernels<T::Lane>,
        start: usize,
        taken: usize,
        [left, right, scores]: [*mut T::Lane; 3],
    ) where
        T::Lane: Micro,
    {
        let Task { k, memory, index, .. } = *self;
        let rows = self.rows.len();
        let (query, key) = (k.query.at::<T>(memory, index), k.key.at::<T>(memory, index));
        // SAFETY: the caller vouches.
        unsafe {
            if k.depth == 0 {
                scores.write_bytes(0, rows * ROW);
            }
            for depth in (0..k.depth).step_by(DEPTH) {
                let deep = DEPTH.min(k.depth - depth);
                // Rows of one block stay packed for all keys.
                if start == 0 || k.depth > DEPTH {
                    pack_left(left, query.part([self.rows.start, depth], [rows, deep]));
                }
                pack_right(kernels, right, key.part([depth, start], [deep, taken]));
                let (left, right) =
                    ((left.cast_const(), ROW as isize), (right.cast_const(), deep * kernels.width));
                multiply(kernels, [rows, deep, taken], left, right, (scores, ROW as isize), depth > 0);
            }
        }
    }

    /// The mask for some keys, packed.
    ///
    /// # Safety
    ///
    /// As for `run`; the scratch memory holds packed rows.
    unsafe fn mask<L: Micro>(&self, start: usize, taken: usize, to: *mut L) -> Mask<L> {
        let Some((mask, dtype)) = &self.k.mask else { return Mask::None };
        let (at, size) = ([self.rows.start, start], [self.rows.len(), taken]);
        // SAFETY: the caller vouches; the mask's elements widen to the type of scores, which `new` has checked.
        unsafe {
            if *dtype == DType::Bool {
                let Matrix { start, strides, size } = mask.at::<Bool>(self.memory, self.index).part(at, size);
                for (i, j) in (0..size[0]).flat_map(|i| (0..size[1]).map(move |j| (i, j))) {
                    let kept = start.offset(i as isize * strides[0] + j as isize * strides[1]).read();
                    to.add(i * ROW + j).write(L::splat(f64::from(u8::from(kept.get()))));
                }
                return Mask::Keep(to);
            }
            dispatch!(*dtype, M => {
                pack(to.cast(), ROW, mask.at::<M>(self.memory, self.index).part(at, size));
            });
        }
        Mask::Add(to)
    }
}

#[cfg(test)]
mod tests;
