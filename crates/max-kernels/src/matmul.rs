//! Runs matmuls.
//!
//! A task computes a block of rows and columns: for each block of the depth it packs some of its rows of the left
//! operand (or reads them in place) and multiplies them by panels of the right one. Packed panels come from one of
//! three sources: a constant operand is packed once for all executions, one that many rows share is packed by all
//! threads before the tasks start, and any other by the task itself. A matmul of few rows with a row-major right
//! operand reads that in place instead, and long sums of few rows and columns are split into tasks along the depth.
//! The order of summation is always the same, so the choice never affects results: blocks are added one after the
//! other up to [`LONG`], and the sums of such parts pairwise, so that rounding errors do not grow with the depth.

mod block;
mod constant;
mod ending;
pub(crate) mod fold;
mod form;
mod micro;
mod pack;

use std::ops::Range;

use max_core::kernel::{Access, Instr, Matmul, Slot};
use max_core::scalar::Lane;
use max_core::small_float::{F8E4M3FN, F8E5M2};
use max_core::{DType, Result, bail, bf16, dispatch, f16};

use block::{Ahead, Right, multiply};
pub use constant::Constant;
pub(crate) use constant::Place;
pub(crate) use ending::{Ending, Places};
use form::{Dots, Form, Plain, Widened};
use micro::Dot;
pub(crate) use micro::{DEPTH, Kernels, Micro, ROW, THIN, next_rows};
pub(crate) use pack::{Matrix, pack, pack_right, pack_right_rows};

use crate::cache::Caches;
use crate::scratch::{Line, bytes, pieces, with};
use crate::tile::{RUN, levels, merged};
use crate::{Memory, Pool};

/// Roughly how many rows a task computes, and how many of them at a time.
const ROWS: usize = 64;

/// The rows above which threads pack a right operand together.
const SHARED_ROWS: usize = 84;

/// Roughly how many rows a task computes if it packs the right operand itself.
const OWN_ROWS: usize = 504;

/// Roughly how many columns a task computes if it packs the right operand itself: what it packs stays in the L2 cache,
/// and in L1 where few rows use it.
const OWN_COLUMNS: usize = 256;
const OWN_FEW_COLUMNS: usize = 64;

/// The maximum number of rows for which the right operand is read in place, once per [`THIN`] rows.
const FEW_ROWS: usize = 4 * THIN;

/// How many columns a task of few rows computes: one page of each row.
const THIN_COLUMNS: usize = 1024;

/// How many times as many columns a task has if it does little else than read panels.
const LONG_RUNS: usize = 4;

/// The minimum number of tasks per thread, so that no thread waits long for the last one: where right operands are
/// packed, and where adjacent columns are read from memory together.
const TASKS: usize = 16;
const FEW_TASKS: usize = 2;

/// How much of the depth is summed block after block; beyond that, sums are combined pairwise.
const LONG: usize = RUN * DEPTH;

/// The maximum number of rows and columns of matmuls whose sums are split into tasks along the depth.
const DEEP: usize = 128;

/// The depth beyond which the sums of these tasks would take much memory.
const DEEPEST: usize = 1 << 17;

/// The number of multiplications below which matmuls share a task.
const TASK: usize = 1 << 17;

/// The most matmuls whose tasks threads share; more are run one group after the other.
const TOGETHER: usize = 8;

/// Matmuls of one dtype that are ready to run.
#[derive(Debug)]
pub(crate) struct PreparedMatmuls {
    all: Vec<PreparedMatmul>,
    run: Run,
}

/// One of them.
#[derive(Debug)]
struct PreparedMatmul {
    batch: usize,
    /// The rows, the depth and the columns.
    size: [usize; 3],
    left: Operand,
    right: Operand,
    /// The right operand as a part of its memory, which may be constant; `None` if it is more than one matrix.
    whole: Option<(Slot, Place)>,
    ending: Ending,
}

/// Matrices in memory: where they start, and the strides of rows and columns.
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

    /// The bytes of an element.
    pub(crate) fn element(&self) -> usize {
        self.places.element()
    }

    /// The transposed matrices.
    pub(crate) fn transposed(mut self) -> Operand {
        self.strides.reverse();
        self.size.reverse();
        self
    }

    pub(crate) fn at<T>(&self, memory: &[Memory], index: usize) -> Matrix<T> {
        Matrix { start: self.places.at(memory, index).cast(), strides: self.strides, size: self.size }
    }
}

/// The product of sizes, as an amount of work.
pub(crate) fn count(sizes: &[i64]) -> Result<usize> {
    let product =
        sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(usize::try_from(size).ok()?));
    match product {
        Some(product) if product <= isize::MAX as usize => Ok(product),
        _ => bail!(internal, "a kernel has the sizes {sizes:?}"),
    }
}

/// Sizes split into parts of about a given length, all but the last a multiple of a unit.
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

impl PreparedMatmuls {
    pub(crate) fn new(all: &impl AsRef<[Matmul<i64>]>) -> Result<PreparedMatmuls> {
        let all = all.as_ref();
        let Some(first) = all.first() else { bail!(internal, "a kernel of no matmuls") };
        let dtypes = [first.lhs.dtype, first.rhs.dtype];
        let all = all.iter().map(|k| PreparedMatmul::new(k, dtypes)).collect::<Result<_>>()?;
        Ok(PreparedMatmuls { all, run: choose(dtypes)? })
    }

    /// Runs them.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { (self.run)(&self.all, memory, pool) };
        Ok(())
    }
}

impl PreparedMatmul {
    fn new(k: &Matmul<i64>, [left, right]: [DType; 2]) -> Result<PreparedMatmul> {
        let k = &fold::fold(k);
        if (k.lhs.dtype, k.rhs.dtype) != (left, right) {
            let (lhs, rhs) = (k.lhs.dtype, k.rhs.dtype);
            bail!(internal, "a matmul of {lhs} and {rhs} where {left} and {right} are expected");
        }
        count(&[&k.batch[..], &[k.m, k.n]].concat())?;
        let right = Operand::new(&k.rhs, &k.batch, [k.k, k.n]);
        // The sums of float8 operands are wanted with more bits than these have.
        let dtype = k.epilogue.code.iter().find_map(|instr| match instr {
            Instr::Product(wide) if left.is_float8() && (wide.is_half() || *wide == DType::Float32) => {
                Some(*wide)
            }
            _ => None,
        });
        let one = right.places.repeat() && k.k > 0 && k.n > 0;
        Ok(PreparedMatmul {
            batch: count(&k.batch)?,
            size: [k.m, k.k, k.n].map(|size| size as usize),
            left: Operand::new(&k.lhs, &k.batch, [k.m, k.k]),
            right,
            whole: one.then(|| (k.rhs.slot, Place::new(&k.rhs, [k.k, k.n], left))),
            ending: Ending::new(&k.epilogue, dtype.unwrap_or(left))?,
        })
    }

    /// The number of multiplications for each matrix of the batch, roughly: an empty sum is some work too.
    fn work(&self) -> usize {
        let [m, depth, n] = self.size;
        m.saturating_mul(n).saturating_mul(depth.max(1))
    }
}

type Run = unsafe fn(&[PreparedMatmul], &[Memory], &Pool);

/// How matmuls of two dtypes are computed on this machine.
fn choose([left, right]: [DType; 2]) -> Result<Run> {
    fn dots<T: Dot + form::Bits>(otherwise: Run) -> Run
    where
        T::Lane: Micro,
    {
        if T::dots().is_some() { run::<Dots<T>> } else { otherwise }
    }
    Ok(match (left, right) {
        (DType::Float32, DType::BFloat16) => run::<Widened<bf16, f32>>,
        (DType::Float32, DType::Float16) => run::<Widened<f16, f32>>,
        (DType::Float32, DType::Float8E4M3FN) => run::<Widened<F8E4M3FN, f32>>,
        (DType::Float32, DType::Float8E5M2) => run::<Widened<F8E5M2, f32>>,
        (DType::BFloat16, DType::Float8E4M3FN) => run::<Widened<F8E4M3FN, bf16>>,
        (DType::BFloat16, DType::Float8E5M2) => run::<Widened<F8E5M2, bf16>>,
        _ if left != right => bail!(internal, "a matmul of {left} and {right}"),
        (DType::Float8E4M3FN, _) => run::<Widened<F8E4M3FN>>,
        (DType::Float8E5M2, _) => run::<Widened<F8E5M2>>,
        (DType::BFloat16, _) => dots::<bf16>(run::<Widened<bf16>>),
        (DType::Float16, _) => run::<Widened<f16>>,
        (DType::Int8, _) => dots::<i8>(run::<Plain<i8>>),
        (DType::UInt8, _) => dots::<u8>(run::<Plain<u8>>),
        (DType::Int16, _) => dots::<i16>(run::<Plain<i16>>),
        (DType::UInt16, _) => dots::<u16>(run::<Plain<u16>>),
        _ => dispatch!(left, T => run::<Plain<T>>),
    })
}

/// # Safety
///
/// The memory was checked for the kernel, whose operands have this form.
unsafe fn run<F: Form>(all: &[PreparedMatmul], memory: &[Memory], pool: &Pool) {
    for some in all.chunks(TOGETHER) {
        let columns = some.iter().fold(0usize, |sum, k| sum.saturating_add(k.size[2]));
        let of = |k| Product::<F> { k, kernels: F::kernels(), memory, pool, columns };
        // SAFETY: guaranteed by the caller.
        let tasks: [_; TOGETHER] =
            std::array::from_fn(|at| unsafe { some.get(at).and_then(|k| of(k).start()) });
        let count = tasks.iter().flatten().map(|tasks| tasks.count).sum();
        let work = tasks.iter().flatten().fold(0usize, |sum, tasks| sum.saturating_add(tasks.work()));
        let run = |mut task: usize| {
            for tasks in tasks.iter().flatten() {
                if task < tasks.count {
                    // SAFETY: guaranteed by the caller; each task has its own blocks.
                    return unsafe { tasks.run(task) };
                }
                task -= tasks.count;
            }
        };
        // Matmuls that are a task each share one where that is still little work.
        if count <= some.len() && work <= TASK { (0..count).for_each(run) } else { pool.run(count, &run) }
    }
}

/// A matmul that is running.
struct Product<'a, F: Form> {
    k: &'a PreparedMatmul,
    kernels: &'static Kernels<F::Sum, F::Left, F::Right>,
    memory: &'a [Memory<'a>],
    pool: &'a Pool,
    /// The columns of all matmuls that run together.
    columns: usize,
}

/// The tasks of a matmul, or of some of its columns and indices.
struct Tasks<'a, F: Form> {
    product: Product<'a, F>,
    method: Method<F::Right>,
    columns: Range<usize>,
    indices: Range<usize>,
    /// How rows and columns are split.
    rows: Cut,
    across: Cut,
    /// How many indices share a task.
    together: usize,
    count: usize,
}

/// A packed right operand, or some of its columns: block after block of the depth, each with its panels stored
/// contiguously.
struct Panels<B> {
    start: *const B,
    columns: Range<usize>,
}

/// How a task computes its blocks.
enum Method<B> {
    /// With the kernels for few rows, which read the right operand in place, except for the last columns.
    Thin,
    /// With the kernels for panels.
    Panels(Source<B>),
}

/// Where a task gets panels of the right operand from.
enum Source<B> {
    /// It is packed.
    Panels(Panels<B>),
    /// The task reads it in place, except for the last columns.
    Lies,
    /// The task packs it.
    Own,
}

// SAFETY: it is only an address; whoever reads there guarantees that this is allowed.
unsafe impl<B> Sync for Panels<B> {}

/// Sums in scratch memory that tasks share.
struct Sums<L>(*mut L);

// SAFETY: it is only an address; whoever reads or writes there guarantees that this is allowed.
unsafe impl<L> Sync for Sums<L> {}

impl<L> Sums<L> {
    fn at(&self, distance: usize) -> *mut L {
        self.0.wrapping_add(distance)
    }
}

impl<B> Panels<B> {
    /// The panels starting with that of a column, in the block of the depth that starts at an offset.
    fn at<F: Form<Right = B>>(&self, width: usize, column: usize, start: usize, taken: usize) -> Right<B> {
        let panel = F::groups(taken) * width;
        let block = start / F::GROUP * self.columns.len().next_multiple_of(width);
        let start = self.start.wrapping_add(block + (column - self.columns.start) / width * panel);
        Right { start, panel, row: width as isize, next: None }
    }
}

impl<'a, F: Form> Product<'a, F> {
    /// Its tasks. What takes more than one round of tasks is computed right away.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, whose operands have this form.
    unsafe fn start(self) -> Option<Tasks<'a, F>> {
        let k = self.k;
        let [m, depth, n] = k.size;
        if k.batch == 0 || m == 0 || n == 0 {
            return None;
        }
        let repeats = k.right.places.repeat();
        let lies = F::RIGHT_LIES && k.right.strides[1] == 1;
        let thin = lies && m <= FEW_ROWS;
        let small =
            lies && depth.saturating_mul(n).saturating_mul(size_of::<F::Right>()) <= Caches::get().second / 4;
        // All matmuls that run together have enough tasks, in proportion to their columns.
        let few_tasks = (FEW_TASKS * self.pool.threads()).saturating_mul(n).div_ceil(self.columns);
        let many_rows = if repeats { m.saturating_mul(k.batch) } else { m };
        let (method, sizes) =
            if k.batch == 1 && m <= DEEP && n <= DEEP && (4 * DEPTH..DEEPEST).contains(&depth) {
                // SAFETY: guaranteed by the caller.
                unsafe { self.deep(lies) };
                return None;
            } else if let Some(panels) = self.constant(!thin) {
                (Method::Panels(Source::Panels(panels)), self.panel_sizes())
            } else if thin {
                (Method::Thin, [m, THIN_COLUMNS, few_tasks])
            } else if many_rows > SHARED_ROWS && k.work() > 8 * TASK && !small {
                // SAFETY: guaranteed by the caller.
                unsafe { Product { columns: n, ..self }.shared(repeats) };
                return None;
            } else {
                let columns = if m <= FEW_ROWS { OWN_FEW_COLUMNS } else { OWN_COLUMNS };
                let source = if small { Source::Lies } else { Source::Own };
                (Method::Panels(source), [OWN_ROWS, columns, few_tasks])
            };
        Some(self.tasks(method, sizes, 0..n, 0..k.batch))
    }

    /// The tasks for columns of some of the matmuls: of about the given numbers of rows and columns, or of fewer columns
    /// where there would otherwise be fewer than `tasks` tasks.
    fn tasks(
        &self,
        method: Method<F::Right>,
        [about_rows, about_columns, tasks]: [usize; 3],
        columns: Range<usize>,
        indices: Range<usize>,
    ) -> Tasks<'a, F> {
        let [m, _, n] = self.k.size;
        let width = self.kernels.width;
        let threads = self.pool.threads();
        // Tiles of a part are about equally high, so that it need not be a multiple of the highest.
        let mut rows = Cut::new(m, about_rows, 1);
        let enough = tasks.div_ceil(indices.len() * rows.parts());
        let about = about_columns.min(columns.len().div_ceil(enough)).max(about_columns / 4);
        let mut across = Cut::new(columns.len(), about, width);
        let work = self.k.work();
        let parts = rows.parts().next_multiple_of(threads);
        let count = indices.len() * rows.parts() * across.parts();
        let all = |own: usize| own.saturating_mul(self.columns) / n;
        // Rows that are in several parts are split evenly; others only if all matmuls together have few tasks.
        let is_few = if rows.parts() > 1 { count } else { all(count) } < FEW_TASKS * threads;
        if is_few && all(work) / parts > TASK {
            if m <= THIN && columns.len() >= 2 * threads * width {
                // So few rows cost less than to read the right operand more than once.
                across = Cut::new(columns.len(), columns.len().div_ceil(threads), width);
            } else {
                rows = Cut::new(m, m.div_ceil(parts), 1);
            }
        }
        let blocks = rows.parts() * across.parts();
        let together = if blocks == 1 { (TASK / work).clamp(1, indices.len()) } else { 1 };
        let count = indices.len().div_ceil(together) * blocks;
        let product = Product { ..*self };
        Tasks { product, method, columns, indices, rows, across, together, count }
    }

    /// The sizes of tasks that read panels. With few rows, that is all a task does, and long runs of memory are read faster.
    fn panel_sizes(&self) -> [usize; 3] {
        let runs = if self.k.size[0] <= THIN { LONG_RUNS } else { 1 };
        [ROWS, runs * self.columns(), TASKS * self.pool.threads()]
    }

    /// Roughly how many columns a task computes: a block of that many panels fills the L2 cache.
    fn columns(&self) -> usize {
        let block = DEPTH / F::GROUP * size_of::<F::Right>();
        (Caches::get().second / block).max(4 * self.kernels.width)
    }

    /// The number of packed elements of this many columns.
    fn packed_size(&self, columns: usize) -> usize {
        F::groups(self.k.size[1]) * columns.next_multiple_of(self.kernels.width)
    }

    /// The right operand, if it is constant and is packed already or to be packed now.
    fn constant(&self, wanted: bool) -> Option<Panels<F::Right>> {
        let columns = 0..self.k.size[2];
        let lines = bytes::<F::Right>(self.packed_size(columns.len())) / size_of::<Line>();
        let fill = |to: *mut u8| {
            let to = Panels::<F::Right> { start: to.cast_const().cast(), columns: columns.clone() };
            // SAFETY: there are as many lines as the panels need, and nobody else has them yet.
            unsafe { self.pack(0, &to) };
        };
        let (slot, place) = self.k.whole?;
        let start = self.memory[slot.0 as usize].constant()?.packed(place, wanted, lines, fill)?;
        Some(Panels { start: start.cast(), columns })
    }

    /// Computes it with right operands that all threads pack before they multiply, as much at a time as fits well in
    /// the last-level cache.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, whose operands have this form.
    unsafe fn shared(&self, repeats: bool) {
        let (n, width) = (self.k.size[2], self.kernels.width);
        let room = (Caches::get().last / 2).clamp(4 << 20, 32 << 20) / size_of::<F::Right>();
        let parts = Cut::new(n, (room / self.packed_size(width).max(1)).max(1) * width, width);
        for index in if repeats { 0..1 } else { 0..self.k.batch } {
            for part in 0..parts.parts() {
                let columns = parts.range(part);
                with(bytes::<F::Right>(self.packed_size(columns.len())), |scratch| {
                    let panels = Panels { start: scratch.cast_const().cast(), columns: columns.clone() };
                    let indices = if repeats { 0..self.k.batch } else { index..index + 1 };
                    // SAFETY: guaranteed by the caller; the panels fit.
                    unsafe { self.pack(index, &panels) };
                    let method = Method::Panels(Source::Panels(panels));
                    let tasks = self.tasks(method, self.panel_sizes(), columns, indices);
                    // SAFETY: guaranteed by the caller; every task has its own blocks.
                    self.pool.run(tasks.count, &|task| unsafe { tasks.run(task) });
                });
            }
        }
    }

    /// Computes it with one task per block of the depth. Their sums are combined in the same order as everywhere else.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, whose operands have this form and whose batch size is one.
    unsafe fn deep(&self, lies: bool) {
        let ([m, depth, n], source) = (self.k.size, if lies { Source::Lies } else { Source::Own });
        let (stride, blocks) = (n.next_multiple_of(self.kernels.width), depth.div_ceil(DEPTH));
        with(bytes::<F::Sum>(m * stride * blocks), |scratch| {
            let sums = Sums(scratch.cast::<F::Sum>());
            self.pool.run(blocks, &|block| {
                let depth = block * DEPTH..depth.min((block + 1) * DEPTH);
                let to = Some((sums.at(block * m * stride), stride as isize));
                let block = Block { product: self, index: 0, rows: 0..m, columns: 0..n, depth, to };
                // SAFETY: guaranteed by the caller; every block has its own sums.
                unsafe { block.packed(&source) };
            });
            let rows = Cut::new(m, m.div_ceil(self.pool.threads()), 1);
            self.pool.run(rows.parts(), &|part| {
                let rows = rows.range(part);
                let (count, parts) = (rows.len() * stride, blocks.div_ceil(RUN));
                let at = |block: usize| sums.at((block * m + rows.start) * stride);
                // The first block of the sums at each level.
                let mut stack = [0; levels(DEEPEST / LONG)];
                // SAFETY: guaranteed by the caller; no other task has these rows.
                unsafe {
                    for part in 0..parts {
                        let first = part * RUN;
                        (first + 1..blocks.min(first + RUN))
                            .for_each(|block| add(at(first), at(block), count));
                        stack[part.count_ones() as usize] = first;
                        merged(part, parts).for_each(|l| add(at(stack[l - 1]), at(stack[l]), count));
                    }
                    self.k.ending.deliver(self.memory, 0, rows.clone(), 0..n, (at(0).cast_const(), stride));
                }
            });
        });
    }

    /// Packs columns of a right operand.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, and the panels fit.
    unsafe fn pack(&self, index: usize, to: &Panels<F::Right>) {
        let (depth, width) = (self.k.size[1], self.kernels.width);
        let across = Cut::new(to.columns.len(), 512, width);
        let down = depth.div_ceil(DEPTH);
        self.pool.run(across.parts() * down, &|task| {
            let part = across.range(task % across.parts());
            let start = task / across.parts() * DEPTH;
            let (column, taken) = (to.columns.start + part.start, DEPTH.min(depth - start));
            let panels = to.at::<F>(width, column, start, taken);
            let matrix = self.k.right.at::<F::RightElement>(self.memory, index);
            let matrix = matrix.part([start, column], [taken, part.len()]);
            // SAFETY: guaranteed by the caller; no other task packs this part.
            unsafe { F::pack_right(panels.start.cast_mut(), panels.panel, matrix) };
        });
    }
}

impl<F: Form> Tasks<'_, F> {
    /// Their work, as far as it is known.
    fn work(&self) -> usize {
        self.product.k.work().saturating_mul(self.indices.len())
    }

    /// Runs one of them.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, whose operands have this form; nobody else runs this task.
    unsafe fn run(&self, task: usize) {
        let Tasks { product, columns, indices, rows, across, together, .. } = self;
        let blocks = rows.parts() * across.parts();
        let (group, block) = (task / blocks, task % blocks);
        let part = across.range(block / rows.parts());
        for index in group * together..indices.len().min((group + 1) * together) {
            let block = Block {
                product,
                index: indices.start + index,
                rows: rows.range(block % rows.parts()),
                columns: columns.start + part.start..columns.start + part.end,
                depth: 0..product.k.size[1],
                to: None,
            };
            // SAFETY: guaranteed by the caller.
            unsafe { block.in_parts(&self.method) };
        }
    }
}

/// A block of one of the matmuls.
struct Block<'a, F: Form> {
    product: &'a Product<'a, F>,
    index: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    /// The part of the depth, and the destination of its sums if it is not the whole depth.
    depth: Range<usize>,
    to: Option<(*mut F::Sum, isize)>,
}

impl<F: Form> Block<'_, F> {
    /// Computes it, at most [`LONG`] of the depth at a time, and combines the results.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, whose operands have this form; nobody else has this block.
    unsafe fn in_parts(self, method: &Method<F::Right>) {
        let (rows, columns, parts) = (self.rows.len(), self.columns.len(), self.depth.len().div_ceil(LONG));
        // SAFETY: guaranteed by the caller.
        let compute = |block: Block<F>| unsafe {
            match method {
                Method::Thin => block.thin(),
                Method::Panels(source) => block.packed(source),
            }
        };
        if parts <= 1 {
            return compute(self);
        }
        let Product { k, kernels, memory, .. } = *self.product;
        let stride = columns.next_multiple_of(kernels.width);
        with(bytes::<F::Sum>(rows * stride * levels(parts)), |scratch| {
            let at = |level: usize| scratch.cast::<F::Sum>().wrapping_add(level * rows * stride);
            for part in 0..parts {
                let start = self.depth.start + part * LONG;
                compute(Block {
                    depth: start..self.depth.end.min(start + LONG),
                    to: Some((at(part.count_ones() as usize), stride as isize)),
                    rows: self.rows.clone(),
                    columns: self.columns.clone(),
                    ..self
                });
                // SAFETY: the levels do not overlap, and each has room for the sums of this many rows.
                merged(part, parts).for_each(|level| unsafe { add(at(level - 1), at(level), rows * stride) });
            }
            let sums = (at(0).cast_const(), stride);
            // SAFETY: guaranteed by the caller; the first level has the sums of the whole depth.
            unsafe { k.ending.deliver(memory, self.index, self.rows.clone(), self.columns.clone(), sums) };
        });
    }

    /// Computes it with the right operand from a source.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, whose operands have this form; nobody else has this block.
    unsafe fn packed(&self, source: &Source<F::Right>) {
        let Product { k, kernels, memory, .. } = *self.product;
        let (index, rows, columns) = (self.index, self.rows.len(), self.columns.len());
        let (depth, width, row) = (self.depth.len(), kernels.width, F::row());
        let stride = columns.next_multiple_of(width);
        let at = [self.rows.start, self.columns.start];
        let place = self.to.or_else(|| k.ending.place::<F::Sum>(memory, index, at));
        let own = match source {
            Source::Panels(_) => 0,
            Source::Lies => width * DEPTH / F::GROUP,
            Source::Own => stride * DEPTH / F::GROUP,
        };
        // Sums over several blocks of the depth stay in the cache; direct results are written with the last block.
        let aside = if place.is_none() || depth > DEPTH { rows * stride } else { 0 };
        // Dot products are so fast that both the rows and a panel should stay in the L1 cache.
        let about = if F::GROUP > 1 { ROWS / 2 } else { ROWS };
        let group = Cut::new(rows, about.next_multiple_of(kernels.tiles.len()), 1).part;
        let sizes = [bytes::<F::Left>(group * row), bytes::<F::Right>(own), bytes::<F::Sum>(aside)];
        pieces(sizes.iter().sum(), |scratch| {
            let left = scratch.take::<F::Left>(group * row);
            let own = scratch.take::<F::Right>(own);
            let sums = (scratch.take::<F::Sum>(aside), stride as isize);
            let x = k.left.at::<F::LeftElement>(memory, index);
            let y = k.right.at::<F::RightElement>(memory, index);
            // SAFETY: the caller guarantees the operands and the destination; scratch memory has the sizes asked for.
            unsafe {
                for start in (self.depth.start..self.depth.end.max(1)).step_by(DEPTH) {
                    let taken = DEPTH.min(self.depth.end - start);
                    let groups = F::groups(taken);
                    let lying = self.lying(source, start + taken);
                    let right = match source {
                        Source::Panels(panels) => self.panels(panels, start, taken),
                        Source::Lies | Source::Own => {
                            let at = [start, self.columns.start + lying];
                            let panel = groups * width;
                            F::pack_right(own, panel, y.part(at, [taken, columns - lying]));
                            Right { start: own.cast_const(), panel, row: width as isize, next: None }
                        }
                    };
                    let (is_first, is_last) = (start == self.depth.start, start + DEPTH >= self.depth.end);
                    for first in (0..rows).step_by(group) {
                        let some = group.min(rows - first);
                        let next = DEPTH.min(self.depth.end.saturating_sub(start + DEPTH));
                        let mut ahead =
                            Ahead::of(x.part([self.rows.start + first, start + taken], [some, next]));
                        let x = x.part([self.rows.start + first, start], [some, taken]);
                        if is_first {
                            Ahead::of(x).ask(usize::MAX);
                        }
                        let left = lying_left::<F>(x).unwrap_or_else(|| {
                            F::pack_left(left, row, x);
                            (left, row as isize)
                        });
                        let down = |(at, stride): (*mut F::Sum, isize)| {
                            (at.wrapping_offset(first as isize * stride), stride)
                        };
                        let sums = down(sums);
                        let add = (!is_first).then_some((sums.0.cast_const(), sums.1));
                        let to = place.filter(|_| is_last).map_or(sums, down);
                        if lying > 0 {
                            let y = y.part([start, self.columns.start], [taken, lying]);
                            let (start, row) = (y.start.cast(), y.strides[0]);
                            let right = Right { start, panel: width, row, next: None };
                            multiply(kernels, [some, groups, lying], left, right, add, to, &mut ahead);
                        }
                        let add = add.map(|(sums, stride)| (sums.wrapping_add(lying), stride));
                        let rest = (to.0.wrapping_add(lying), to.1);
                        multiply(
                            kernels,
                            [some, groups, columns - lying],
                            left,
                            right,
                            add,
                            rest,
                            &mut ahead,
                        );
                        if is_last && self.to.is_none() {
                            let rows = self.rows.start + first..self.rows.start + first + some;
                            let product = (sums.0.cast_const(), stride);
                            k.ending.finish(memory, index, rows, self.columns.clone(), product);
                        }
                    }
                }
            }
        });
    }

    /// The panels of its columns in the block of the depth that starts at an offset. After them it needs those of the next
    /// block, or the task that comes next those of the next columns.
    fn panels(&self, panels: &Panels<F::Right>, start: usize, taken: usize) -> Right<F::Right> {
        let at = |column, start| {
            let taken = DEPTH.min(self.depth.end.saturating_sub(start));
            panels.at::<F>(self.product.kernels.width, column, start, taken)
        };
        let goes_on = start + taken < self.depth.end;
        let next = if goes_on {
            at(self.columns.start, start + taken)
        } else {
            at(self.columns.end, self.depth.start)
        };
        Right { next: Some(next.start), ..at(self.columns.start, start) }
    }

    /// How many of its columns are read in place, down to a row. A vector that extends past the end of a row reads into
    /// the next one; only where there is no next row are the last columns packed.
    fn lying(&self, source: &Source<F::Right>, down: usize) -> usize {
        let Product { k, kernels, .. } = *self.product;
        let ([_, depth, n], columns) = (k.size, self.columns.len());
        let goes_on = k.right.strides[0] == n as isize && (depth - down).saturating_mul(n) >= kernels.width;
        match source {
            Source::Lies if goes_on => columns,
            Source::Lies => columns - columns % kernels.lanes,
            Source::Panels(_) | Source::Own => 0,
        }
    }

    /// Computes it from few rows and a right operand that is read in place, except for the last columns.
    ///
    /// # Safety
    ///
    /// As for `packed`; and there are at most [`FEW_ROWS`] rows, and the right operand can be read in place.
    unsafe fn thin(&self) {
        let Product { k, kernels, memory, .. } = *self.product;
        let (index, rows, columns) = (self.index, self.rows.len(), self.columns.len());
        let (depth, width, row) = (self.depth.len(), kernels.width, F::row());
        let whole = columns - columns % kernels.lanes;
        let stride = columns.next_multiple_of(width);
        let sizes = [
            bytes::<F::Left>(rows * row),
            bytes::<F::Right>(width * DEPTH),
            bytes::<F::Sum>(2 * rows * stride),
        ];
        pieces(sizes.iter().sum(), |scratch| {
            let left = scratch.take::<F::Left>(rows * row);
            let right = scratch.take::<F::Right>(width * DEPTH);
            let part = scratch.take::<F::Sum>(2 * rows * stride);
            let sums = part.wrapping_add(rows * stride);
            let at = [self.rows.start, self.columns.start];
            let place = self.to.or_else(|| k.ending.place::<F::Sum>(memory, index, at));
            let (to, to_stride) = place.unwrap_or((sums, stride as isize));
            let x = k.left.at::<F::LeftElement>(memory, index);
            let y = k.right.at::<F::RightElement>(memory, index);
            // SAFETY: as in `packed`; the right operand has the type that kernels read.
            unsafe {
                if depth == 0 {
                    part.write_bytes(0, rows * stride);
                }
                for start in (self.depth.start..self.depth.end.max(1)).step_by(DEPTH) {
                    let taken = DEPTH.min(self.depth.end - start);
                    if taken > 0 {
                        F::pack_left(left, row, x.part([self.rows.start, start], [rows, taken]));
                        let y = y.part([start, self.columns.start], [taken, columns]);
                        for i in (0..rows).step_by(THIN) {
                            let left = (left.add(i * row).cast_const(), row as isize);
                            let sums = (part.add(i * stride), stride as isize);
                            let right = (y.start.cast(), y.strides[0]);
                            kernels.thin[THIN.min(rows - i) - 1](taken, left, right, whole, sums);
                        }
                        let rest = columns - whole;
                        F::pack_right(right, taken * width, y.part([0, whole], [taken, rest]));
                        let start = right.cast_const();
                        let right = Right { start, panel: 0, row: width as isize, next: None };
                        let (left, to) =
                            ((left.cast_const(), row as isize), (part.add(whole), stride as isize));
                        multiply(kernels, [rows, taken, rest], left, right, None, to, &mut Ahead::nothing());
                    }
                    for i in 0..rows {
                        let (from, to) = (part.add(i * stride), to.offset(i as isize * to_stride));
                        for j in 0..columns {
                            let (sum, to) = (from.add(j).read(), to.add(j));
                            let is_first = start == self.depth.start;
                            to.write_unaligned(if is_first { sum } else { to.read_unaligned().add(sum) });
                        }
                    }
                }
                if self.to.is_none() {
                    k.ending.finish(
                        memory,
                        index,
                        self.rows.clone(),
                        self.columns.clone(),
                        (sums.cast_const(), stride),
                    );
                }
            }
        });
    }
}

/// Adds this many sums to others.
///
/// # Safety
///
/// Both can be read, and the ones added to can be written.
unsafe fn add<L: Lane>(to: *mut L, from: *const L, count: usize) {
    for i in 0..count {
        // SAFETY: guaranteed by the caller.
        unsafe { to.add(i).write(to.add(i).read().add(from.add(i).read())) };
    }
}

/// A block of a left operand, with the distance between its rows, if it can be read in place.
fn lying_left<F: Form>(x: Matrix<F::LeftElement>) -> Option<(*const F::Left, isize)> {
    let ([stride, along], [rows, depth]) = (x.strides, x.size);
    let whole = depth % F::GROUP == 0 && stride % F::GROUP as isize == 0;
    let far = rows <= 8 || !collide::<F::LeftElement>(stride);
    (F::LEFT_LIES && along == 1 && whole && far).then(|| (x.start.cast(), stride / F::GROUP as isize))
}

/// Whether the distance between rows is a multiple of a page, or nearly: many such rows evict each other from the L1
/// cache.
fn collide<T>(stride: isize) -> bool {
    const PAGE: isize = 4096;
    const NEAR: isize = 512;
    let apart = stride.wrapping_mul(size_of::<T>() as isize).rem_euclid(PAGE);
    apart.min(PAGE - apart) < NEAR
}

#[cfg(test)]
pub(crate) mod tests;
