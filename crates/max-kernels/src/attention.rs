//! Runs attention.
//!
//! Rows are computed over the keys block by block, with the scores of some rows and one block in scratch memory, never
//! all scores. A block contributes to each row its greatest score, the sum of its weights relative to that, and the
//! weighted sum of its values; the contributions are combined in the order of the blocks. All blocks have the same
//! size, so a row has the same bits whatever rows are computed with it, and whether its blocks are computed one after
//! the other or by several tasks.
//!
//! Heads that share keys and values form a group: their rows are computed together. For many rows keys are packed once;
//! for few rows keys and values are read in place.
//!
//! Keys and values are operands, or those of sequences in the pages of a cache ([`paged`]). What rows attend to is a
//! [`Context`]; a block of keys is inside of a page, so nothing else differs.
//!
//! Keys that a row does not see have weight zero. If their values are not finite and rows computed with it see them,
//! the row may become NaN, because zero times such a value is NaN.

mod context;
mod pack;
mod paged;
mod rows;
mod softmax;
mod weight;

use std::ops::Range;

use max_core::kernel::{Access, Attention};
use max_core::{DType, Element, Result, bail, dispatch_small};

use crate::matmul::{Cut, DEPTH, Ending, Micro, Operand, count};
use crate::scratch::{bytes, pieces, with};
use crate::{Memory, Pool};
pub(crate) use context::Context;
use context::Source;
use rows::{FEW, Packed, Rows};
use softmax::{LINES, State, Weighing, divide, fold};

pub(crate) use paged::PreparedPagedAttention;
use weight::Real;

/// Roughly how many rows a task computes: if keys are packed for all tasks, and if each task packs its own.
const ROWS: [usize; 2] = [126, 252];

/// The number of groups of heads that gives enough tasks for the threads of most machines.
const ENOUGH: usize = 16;

/// The columns of values for which [`ROWS`] rows fit in the L2 cache.
const COLUMNS: usize = 256;

/// The multiplications below which small attentions share a task.
const TASK: usize = 1 << 17;

/// The most memory for the contributions of blocks, if several tasks compute the blocks of a row.
const GIVEN: usize = 4 << 20;

/// The most memory for packed keys and values.
const PACKED: usize = 16 << 20;

/// An attention that is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedAttention {
    heads: Heads,
    queries: usize,
    keys: usize,
    depth: usize,
    width: usize,
    query: Operand,
    source: Source,
    mask: Option<(Operand, DType)>,
    scale: f64,
    causal: bool,
    /// The most keys that a query sees; zero means all.
    window: usize,
    /// The bound that scores approach; zero means none.
    softcap: f64,
    ending: Ending,
    run: Run,
}

/// # Safety
///
/// The memory was checked for the kernel.
type Run = unsafe fn(&PreparedAttention, &[Memory], &Pool) -> Result<()>;

/// The heads, in groups that share keys and values.
#[derive(Debug)]
struct Heads {
    /// The number of groups, and of heads in each.
    groups: usize,
    members: usize,
    /// The sizes and strides of the axes over groups, then of those over members, in indices of heads; the last axis
    /// first.
    axes: [Vec<(usize, usize)>; 2],
}

impl Heads {
    fn new(batch: &[i64], key: &Access<i64>, value: &Access<i64>) -> Result<Heads> {
        let mut axes = [vec![], vec![]];
        if count(batch)? == 0 {
            return Ok(Heads { groups: 0, members: 0, axes });
        }
        let mut step = 1;
        for (axis, &size) in batch.iter().enumerate().rev() {
            let shared = key.strides[axis] == 0 && value.strides[axis] == 0;
            axes[usize::from(shared)].push((size as usize, step));
            step *= size as usize;
        }
        let [groups, members] = axes.each_ref().map(|axes| axes.iter().map(|&(size, _)| size).product());
        Ok(Heads { groups, members, axes })
    }

    /// The index of a member of a group.
    fn index(&self, group: usize, member: usize) -> usize {
        let mut index = 0;
        for (axes, mut number) in self.axes.iter().zip([group, member]) {
            for &(size, step) in axes {
                index += number % size * step;
                number /= size;
            }
        }
        index
    }
}

impl PreparedAttention {
    pub(crate) fn new(k: &Attention<i64>) -> Result<PreparedAttention> {
        let dtype = k.query.dtype;
        let masked = k.mask.as_ref().map(|mask| mask.dtype);
        let fits =
            |mask: DType| mask == DType::Bool || mask.is_float() && is_double(mask) == is_double(dtype);
        if [k.key.dtype, k.value.dtype] != [dtype; 2] || !masked.is_none_or(fits) {
            let (key, value) = (k.key.dtype, k.value.dtype);
            bail!(
                internal,
                "attention of {dtype}, {key} and {value} with a mask of {masked:?} is not supported"
            );
        }
        count(&[&k.batch[..], &[k.queries, k.width]].concat())?;
        Ok(PreparedAttention {
            heads: Heads::new(&k.batch, &k.key, &k.value)?,
            queries: k.queries as usize,
            keys: k.keys as usize,
            depth: k.depth as usize,
            width: k.width as usize,
            query: Operand::new(&k.query, &k.batch, [k.queries, k.depth]),
            source: Source::Operands {
                key: Operand::new(&k.key, &k.batch, [k.keys, k.depth]).transposed(),
                value: Operand::new(&k.value, &k.batch, [k.keys, k.width]),
            },
            mask: k.mask.as_ref().map(|mask| (Operand::new(mask, &k.batch, [k.queries, k.keys]), mask.dtype)),
            scale: k.scale,
            causal: k.causal,
            window: k.window,
            softcap: 0.0,
            ending: Ending::new(&k.epilogue, dtype)?,
            run: floats(dtype)?,
        })
    }

    /// How scores become weights.
    fn weighing<L: Real>(&self) -> Weighing<L> {
        let adds = self.mask.as_ref().is_some_and(|&(_, dtype)| dtype != DType::Bool);
        // Scores below a bound are scaled already.
        Weighing::new(if self.softcap > 0.0 { 1.0 } else { self.scale }, adds)
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { (self.run)(self, memory, pool) }
    }
}

fn is_double(dtype: DType) -> bool {
    dtype == DType::Float64
}

/// The function for a float dtype.
fn floats(dtype: DType) -> Result<Run> {
    Ok(dispatch_small!(dtype, N => run::<N>,
        DType::Float64 => run::<f64>,
        DType::Float32 => run::<f32>,
        DType::Float16 => run::<max_core::f16>,
        DType::BFloat16 => run::<max_core::bf16>,
        _ => bail!(internal, "attention of {dtype} is not supported"),
    ))
}

/// # Safety
///
/// The memory was checked for the kernel, whose operands have type `T`.
unsafe fn run<T: Element>(k: &PreparedAttention, memory: &[Memory], pool: &Pool) -> Result<()>
where
    T::Lane: Real,
{
    let context = Context { first: 0, queries: k.queries, keys: k.keys, block: DEPTH, pages: &[], layer: 0 };
    // SAFETY: guaranteed by the caller.
    unsafe { attend::<T, T>(k, context, memory, pool) };
    Ok(())
}

/// Computes the queries of a context.
///
/// # Safety
///
/// The memory was checked for the kernel, whose queries have type `Q` and whose keys and values have type `T`, unless they are
/// decoded to it.
unsafe fn attend<Q, T>(k: &PreparedAttention, context: Context, memory: &[Memory], pool: &Pool)
where
    Q: Element<Lane = T::Lane>,
    T: Element,
    T::Lane: Real,
{
    let (groups, count) = (k.heads.groups, k.heads.members * context.queries);
    if groups == 0 || count == 0 || k.width == 0 {
        return;
    }
    let kernels = T::Lane::kernels();
    let weighing = k.weighing();
    let of = |group, rows, packed| Rows { k, context, kernels, weighing, memory, group, rows, packed };
    if count <= FEW && groups < ENOUGH && context.keys > context.block {
        // SAFETY: guaranteed by the caller.
        return unsafe { by_blocks::<Q, T>(groups, |group| of(group, 0..count, None), pool) };
    }
    let cut =
        |about: usize| Cut::new(count, (about * COLUMNS / k.width.max(COLUMNS)).max(1), kernels.tiles.len());
    let sizes = of(0, 0..count, None).packed_sizes::<T>().map(bytes::<T::Lane>);
    let rows = cut(ROWS[0]);
    if rows.parts() > 1 && sizes[0].saturating_add(sizes[1]) <= PACKED {
        // SAFETY: guaranteed by the caller.
        return unsafe { packed::<Q, T>(groups, sizes, rows, of, pool) };
    }
    let rows = cut(ROWS[1]);
    let work = count.saturating_mul(context.keys).saturating_mul(k.depth + k.width).max(1);
    let together = if rows.parts() == 1 { (TASK / work).clamp(1, groups) } else { 1 };
    pool.run(groups.div_ceil(together) * rows.parts(), &|task| {
        let (first, rows) = (task / rows.parts() * together, rows.range(task % rows.parts()));
        for group in first..groups.min(first + together) {
            // SAFETY: the caller guarantees the memory; no other task writes these rows.
            unsafe { of(group, rows.clone(), None).run::<Q, T>() };
        }
    });
}

/// For many rows per group: tasks that pack keys and values, then tasks for rows. `sizes` are those of packed keys and
/// values in bytes.
///
/// # Safety
///
/// The memory was checked for the kernel, whose operands have type `T`.
unsafe fn packed<'a, Q, T>(
    groups: usize,
    sizes: [usize; 2],
    rows: Cut,
    of: impl Fn(usize, Range<usize>, Option<Packed<T::Lane>>) -> Rows<'a, T::Lane> + Sync,
    pool: &Pool,
) where
    Q: Element<Lane = T::Lane>,
    T: Element,
    T::Lane: Real,
{
    let size = sizes[0] + sizes[1];
    let all = |group| of(group, 0..rows.range(rows.parts() - 1).end, None);
    let (block, Range { start: first, end }) = (all(0).context.block, all(0).range());
    let (first, blocks) = (first / block, end.div_ceil(block) - first / block);
    let round = (PACKED / size.max(1)).clamp(1, groups);
    for start in (0..groups).step_by(round) {
        let taken = round.min(groups - start);
        with(taken * size, |memory| {
            let shared = Shared(memory);
            let packed = |number: usize| {
                let keys = shared.get().wrapping_add(number * size);
                Packed { keys: keys.cast(), values: keys.wrapping_add(sizes[0]).cast() }
            };
            pool.run(taken * blocks, &|task| {
                let group = task / blocks;
                // SAFETY: guaranteed by the caller; no other task writes this block.
                unsafe { all(start + group).pack::<T>((first + task % blocks) * block, packed(group)) };
            });
            pool.run(taken * rows.parts(), &|task| {
                let (group, rows) = (task / rows.parts(), rows.range(task % rows.parts()));
                // SAFETY: guaranteed by the caller; no other task writes these rows, and everything is packed.
                unsafe { of(start + group, rows, Some(packed(group))).run::<Q, T>() };
            });
        });
    }
}

/// Memory of which every task writes its own part.
#[derive(Clone, Copy)]
struct Shared<L>(*mut L);

// SAFETY: users make sure that no two threads access the same part at a time.
unsafe impl<L> Sync for Shared<L> {}

impl<L> Shared<L> {
    fn get(&self) -> *mut L {
        self.0
    }
}

/// For few rows in few groups, and many keys: tasks for blocks of keys, then one per group that combines the
/// contributions of the blocks.
///
/// # Safety
///
/// The memory was checked for the kernel, whose operands have type `T`.
unsafe fn by_blocks<'a, Q, T>(groups: usize, of: impl Fn(usize) -> Rows<'a, T::Lane> + Sync, pool: &Pool)
where
    Q: Element<Lane = T::Lane>,
    T: Element,
    T::Lane: Real,
{
    let any = of(0);
    let (block, range) = (any.context.block, any.range());
    let (first, blocks) = (range.start / block, range.end.div_ceil(block) - range.start / block);
    let (sizes, stride) = (any.state_sizes(any.rows.len()), any.stride());
    let size: usize = sizes.map(bytes::<T::Lane>).iter().sum::<usize>() / size_of::<T::Lane>();
    let round = (GIVEN / size_of::<T::Lane>() / (size * blocks.max(1))).clamp(1, groups);
    let tops = [sizes[0], sizes[1]].map(|size| bytes::<T::Lane>(size) / size_of::<T::Lane>());
    for start in (0..groups).step_by(round) {
        let taken = round.min(groups - start);
        pieces(bytes::<T::Lane>(taken * blocks * size), |scratch| {
            let shared = Shared(scratch.take::<T::Lane>(taken * blocks * size));
            let part = |number: usize| {
                let greatest = shared.get().wrapping_add(number * size);
                let totals = greatest.wrapping_add(tops[0]);
                State { greatest, totals, sums: totals.wrapping_add(tops[1]), stride }
            };
            pool.run(taken * blocks, &|task| {
                let rows = of(start + task / blocks);
                let state = part(task);
                pieces(rows.bytes::<Q, T>(), |scratch| {
                    // SAFETY: guaranteed by the caller; no other task uses this part of the shared memory.
                    unsafe {
                        let room = rows.room::<Q, T>(scratch);
                        let group = |number| state.group(number, rows.height());
                        rows.block::<T>(&room, (first + task % blocks) * block, group, |_, _, _| ());
                    }
                });
            });
            pool.run(taken, &|task| {
                let rows = of(start + task);
                // SAFETY: guaranteed by the caller; all parts are complete, and no other task writes these rows.
                unsafe { rows.combine((task * blocks..(task + 1) * blocks).map(part)) };
            });
        });
    }
}

impl<L: Real> Rows<'_, L> {
    /// The sizes of the pieces of the state of `rows` rows.
    fn state_sizes(&self, rows: usize) -> [usize; 3] {
        let lines = rows.div_ceil(self.height()) * LINES;
        [lines, lines, rows * self.stride()]
    }

    /// Computes the rows.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, whose operands have type `T`; no other task writes these rows.
    unsafe fn run<Q: Element<Lane = L>, T: Element<Lane = L>>(&self) {
        let sizes = [self.state_sizes(self.rows.len()), self.state_sizes(self.height())];
        let states: usize = sizes.as_flattened().iter().map(|&size| bytes::<L>(size)).sum();
        pieces(self.bytes::<Q, T>() + states, |scratch| {
            let [state, part] = sizes.map(|sizes| {
                let [greatest, totals, sums] = sizes.map(|size| scratch.take::<L>(size));
                State { greatest, totals, sums, stride: self.stride() }
            });
            let range = self.range();
            // SAFETY: the caller guarantees the operands; scratch memory has the requested sizes.
            unsafe {
                state.clear(self.rows.len(), self.groups());
                let (room, block) = (self.room::<Q, T>(scratch), self.context.block);
                for start in (range.start / block * block..range.end).step_by(block) {
                    self.block::<T>(
                        &room,
                        start,
                        |_| part,
                        |group, rows, part| {
                            fold(self.weighing, rows, state.group(group, self.height()), part)
                        },
                    );
                }
                self.finish(state);
            }
        });
    }

    /// Computes the rows from the contributions of blocks.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel; no other task writes these rows, and the parts hold them.
    unsafe fn combine(&self, parts: impl Iterator<Item = State<L>>) {
        let sizes = self.state_sizes(self.rows.len());
        pieces(sizes.map(bytes::<L>).iter().sum(), |scratch| {
            let [greatest, totals, sums] = sizes.map(|size| scratch.take::<L>(size));
            let state = State { greatest, totals, sums, stride: self.stride() };
            // SAFETY: guaranteed by the caller; scratch memory has the requested size.
            unsafe {
                state.clear(self.rows.len(), self.groups());
                for part in parts {
                    for group in 0..self.groups() {
                        let rows = self.height().min(self.rows.len() - group * self.height());
                        let [state, part] = [state, part].map(|state| state.group(group, self.height()));
                        fold(self.weighing, rows, state, part);
                    }
                }
                self.finish(state);
            }
        });
    }

    /// Divides the weighted sums by the totals of weights and runs the epilogue on them.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel; no other task writes these rows, and the state holds them.
    unsafe fn finish(&self, state: State<L>) {
        let (k, context, height) = (self.k, self.context, self.height());
        let mut row = self.rows.start;
        while row < self.rows.end {
            let (head, first) = (row / context.queries, row % context.queries);
            let rows = (context.queries - first).min(self.rows.end - row);
            let first = context.first + first;
            let index = k.heads.index(self.group, head);
            let place = k.ending.place::<L>(self.memory, index, [first, 0]);
            let sums = state.sums.wrapping_add((row - self.rows.start) * state.stride);
            let (to, stride) = place.unwrap_or((sums, state.stride as isize));
            // SAFETY: guaranteed by the caller.
            unsafe {
                for i in 0..rows {
                    let at = row - self.rows.start + i;
                    let total = state.totals.add(at / height * LINES + at % height).read();
                    // Without keys there are no weights to normalize, only empty sums.
                    let total = if context.keys == 0 { L::splat(1.0) } else { total };
                    divide(sums.add(i * state.stride), total, k.width, to.offset(i as isize * stride));
                }
                k.ending.finish(
                    self.memory,
                    index,
                    first..first + rows,
                    0..k.width,
                    (sums.cast_const(), state.stride),
                );
            }
            row += rows;
        }
    }
}

#[cfg(test)]
mod tests;
