//! Runs scans: many lines are summed together, so that no sum waits for its predecessor alone. Lines that lie side by side are
//! read as they are; others are transposed tile by tile. Few long lines are cut into runs, which are summed like lines.
//!
//! The order of additions depends on the length of a line only, however it is computed: from zero within runs of [`RUN`]
//! elements, each added to the sum of the runs before it.

use std::marker::PhantomData;

use max_core::kernel::{Access, Scan};
use max_core::scalar::Lane;
use max_core::{DType, Element, Error, Result, bail, dispatch};

use crate::matmul::{Places, count};
use crate::simd::{Isa, versions};
use crate::{Memory, Pool, tile};

/// How many lines are summed together as vectors; fewer than [`FEW`] are summed one by one.
const LINES: usize = 32;
const FEW: usize = 8;

/// The length of the runs within a line.
const RUN: usize = 1024;

/// How many elements of each line are transposed together: a divisor of [`RUN`].
const DEPTH: usize = 64;

/// Roughly how many elements a task sums.
const TASK: usize = 1 << 15;

/// A scan that is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedScan {
    /// Groups of neighbouring lines: how many there are, and how many lines each has.
    groups: usize,
    lines: usize,
    /// The length of a line.
    size: usize,
    exclusive: bool,
    reverse: bool,
    source: Lines,
    out: Lines,
    sum: unsafe fn(Block),
    /// Replaces the sums of runs by the sums of all runs before each.
    accumulate: fn(&mut [u64]),
}

/// Where lines are in memory.
#[derive(Debug)]
struct Lines {
    groups: Places,
    /// The distances between neighbouring lines, and between the elements of a line, in bytes.
    strides: [isize; 2],
    /// The distance of the element that a line starts with, in bytes.
    first: isize,
}

/// At most [`LINES`] lines, or runs that are treated as such.
#[derive(Clone, Copy)]
struct Block {
    source: Side,
    out: Side,
    lines: usize,
    size: usize,
    exclusive: bool,
    goal: Goal,
}

/// Where the first line of a block starts, and the distances between lines and between elements, in bytes.
#[derive(Clone, Copy)]
struct Side {
    at: *mut u8,
    strides: [isize; 2],
}

/// What is wanted of a block.
#[derive(Clone, Copy)]
enum Goal {
    /// The running sums of whole lines.
    Lines,
    /// The running sums of runs, given the sum of what is before each of them.
    Runs(*const u64),
    /// The total of each run, and nothing else.
    Totals(*mut u64),
}

impl PreparedScan {
    pub(crate) fn new(k: &Scan<i64>) -> Result<PreparedScan> {
        let dtype = k.source.dtype;
        if k.out.dtype != dtype || dtype == DType::Bool {
            bail!(internal, "a scan of {dtype} into {}", k.out.dtype);
        }
        count(&[k.outer, k.size, k.inner])?;
        // Lines are neighbours along the axes after that of the scan, or else along those before it.
        let (groups, lines, axis) = if k.inner == 1 { (1, k.outer, 0) } else { (k.outer, k.inner, 2) };
        let walk = |access: &Access<i64>| {
            let bytes = |axis: usize| access.strides[axis] as isize * dtype.size_in_bytes() as isize;
            let (along, last) = (bytes(1), (Ord::max(k.size, 1) - 1) as isize);
            let (first, step) = if k.reverse { (along * last, -along) } else { (0, along) };
            Lines { groups: Places::new(access, &[groups]), strides: [bytes(axis), step], first }
        };
        let (sum, accumulate) = dispatch!(dtype, T => match T::DTYPE.is_float() {
            true => functions::<Wide<T>>(),
            false => functions::<Own<T>>(),
        });
        Ok(PreparedScan {
            groups: groups as usize,
            lines: lines as usize,
            size: k.size as usize,
            exclusive: k.exclusive,
            reverse: k.reverse,
            source: walk(&k.source),
            out: walk(&k.out),
            sum,
            accumulate,
        })
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        let &PreparedScan { groups, lines, size, .. } = self;
        if groups * lines * size == 0 {
            return Ok(());
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            if groups * lines < 2 * LINES && size >= 2 * RUN {
                return (0..groups * lines)
                    .try_for_each(|line| self.by_runs(memory, pool, line / lines, line % lines));
            }
            self.by_lines(memory, pool);
        }
        Ok(())
    }

    /// A block of whole lines, with their beginning in memory.
    fn block(&self, memory: &[Memory], group: usize, line: usize, count: usize) -> Block {
        let side = |lines: &Lines| {
            let start = lines.groups.at(memory, group).wrapping_offset(lines.first);
            Side { at: start.wrapping_offset(line as isize * lines.strides[0]), strides: lines.strides }
        };
        Block {
            source: side(&self.source),
            out: side(&self.out),
            lines: count,
            size: self.size,
            exclusive: self.exclusive,
            goal: Goal::Lines,
        }
    }

    /// # Safety
    ///
    /// The memory was checked for the kernel.
    unsafe fn by_lines(&self, memory: &[Memory], pool: &Pool) {
        let &PreparedScan { groups, lines, size, .. } = self;
        let blocks = lines.div_ceil(LINES);
        let together = (TASK / LINES / size).max(1);
        pool.run((groups * blocks).div_ceil(together), &|task| {
            for block in task * together..(groups * blocks).min((task + 1) * together) {
                let (group, line) = (block / blocks, block % blocks * LINES);
                // SAFETY: the caller checked the memory for the kernel, and every line is in one block.
                unsafe { (self.sum)(self.block(memory, group, line, LINES.min(lines - line))) };
            }
        });
    }

    /// Sums one line: the totals of its runs first, then the runs, both in parallel.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    unsafe fn by_runs(&self, memory: &[Memory], pool: &Pool, group: usize, line: usize) -> Result<()> {
        let runs = self.size.div_ceil(RUN);
        let mut before: Vec<u64> = Vec::new();
        before
            .try_reserve_exact(runs)
            .map_err(|_| Error::memory(format!("no memory for the sums of {runs} runs")))?;
        before.resize(runs, 0);
        // All runs but the last one are whole; they are numbered as they lie in memory.
        let (last, blocks) = (runs - 1, (runs - 1).div_ceil(LINES));
        let whole = |block: usize, goal: Goal| {
            let first = block * LINES;
            let run = if self.reverse { last - 1 - first } else { first };
            self.runs(memory, group, line, run, LINES.min(last - first), goal)
        };
        let sums = Shared(before.as_mut_ptr());
        pool.run(blocks, &|block| {
            // SAFETY: the runs are parts of a line in memory that was checked, and every run is in one block.
            unsafe { (self.sum)(whole(block, Goal::Totals(sums.at(block * LINES)))) };
        });
        if self.reverse {
            before[..last].reverse();
        }
        (self.accumulate)(&mut before);
        if self.reverse {
            before[..last].reverse();
        }
        let sums = Shared(before.as_mut_ptr());
        pool.run(blocks + 1, &|block| {
            let part = match block < blocks {
                true => whole(block, Goal::Runs(sums.at(block * LINES))),
                false => {
                    let size = self.size - last * RUN;
                    Block { size, ..self.runs(memory, group, line, last, 1, Goal::Runs(sums.at(last))) }
                }
            };
            // SAFETY: as above.
            unsafe { (self.sum)(part) };
        });
        Ok(())
    }

    /// Some runs of a line as a block: neighbours in memory, of which the first one is given.
    fn runs(
        &self,
        memory: &[Memory],
        group: usize,
        line: usize,
        run: usize,
        count: usize,
        goal: Goal,
    ) -> Block {
        let block = self.block(memory, group, line, count);
        let side = |side: Side| {
            let apart = RUN as isize * side.strides[1];
            let next = if self.reverse { -apart } else { apart };
            Side { at: side.at.wrapping_offset(run as isize * apart), strides: [next, side.strides[1]] }
        };
        Block { source: side(block.source), out: side(block.out), size: RUN, goal, ..block }
    }
}

/// The sums of runs, of which every task has its own.
struct Shared(*mut u64);

// SAFETY: tasks touch different elements.
unsafe impl Sync for Shared {}

impl Shared {
    fn at(&self, run: usize) -> *mut u64 {
        self.0.wrapping_add(run)
    }
}

/// How elements are summed.
trait Arithmetic {
    /// The elements.
    type T: Element;
    /// Sums, of at most eight bytes.
    type Sum: Copy;
    fn zero() -> Self::Sum;
    fn widen(x: Self::T) -> Self::Sum;
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn round(sum: Self::Sum) -> Self::T;
}

/// Floats are summed in f64 and rounded once.
struct Wide<T>(PhantomData<T>);

impl<T: Element> Arithmetic for Wide<T> {
    type T = T;
    type Sum = f64;

    #[inline(always)]
    fn zero() -> f64 {
        0.0
    }

    #[inline(always)]
    fn widen(x: T) -> f64 {
        x.to_f64()
    }

    #[inline(always)]
    fn add(a: f64, b: f64) -> f64 {
        a + b
    }

    #[inline(always)]
    fn round(sum: f64) -> T {
        T::from_f64(sum)
    }
}

/// Other types use their own arithmetic.
struct Own<T>(PhantomData<T>);

impl<T: Element> Arithmetic for Own<T> {
    type T = T;
    type Sum = T::Lane;

    #[inline(always)]
    fn zero() -> T::Lane {
        T::from_i128(0).to_lane()
    }

    #[inline(always)]
    fn widen(x: T) -> T::Lane {
        x.to_lane()
    }

    #[inline(always)]
    fn add(a: T::Lane, b: T::Lane) -> T::Lane {
        Lane::add(a, b)
    }

    #[inline(always)]
    fn round(sum: T::Lane) -> T {
        T::from_lane(sum)
    }
}

type Functions = (unsafe fn(Block), fn(&mut [u64]));

fn functions<A: Arithmetic>() -> Functions {
    (version::<Sums<A>>(Isa::best()), accumulate::<A>)
}

fn accumulate<A: Arithmetic>(sums: &mut [u64]) {
    let mut total = A::zero();
    for sum in sums {
        let at: *mut A::Sum = (&raw mut *sum).cast();
        // SAFETY: a sum has at most eight bytes, and totals were written as such.
        unsafe {
            let own = at.read();
            at.write(total);
            total = A::add(total, own);
        }
    }
}

trait Body {
    /// # Safety
    ///
    /// The lines are in memory that may be read and written.
    unsafe fn run<const FMA: bool>(block: Block);
}

versions!(version: Body, fn(block: Block));

/// Sums blocks.
struct Sums<A>(PhantomData<A>);

impl<A: Arithmetic> Body for Sums<A> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(block: Block) {
        let adjacent = size_of::<A::T>() as isize;
        let sides = [block.source, block.out];
        // SAFETY: guaranteed by the caller.
        unsafe {
            if block.lines == LINES && sides.iter().all(|side| side.strides[0] == adjacent) {
                return whole::<A, LINES>(block, |start, count, state| {
                    let at = |side: Side| side.at.wrapping_offset(start as isize * side.strides[1]);
                    let [source, out] = sides.map(|side| (at(side), side.strides[1]));
                    rows::<A, LINES>(source, out, count, block, state);
                });
            }
            if block.lines >= FEW && sides.iter().all(|side| side.strides[1].abs() == adjacent) {
                return transposed::<A>(block);
            }
            for line in 0..block.lines {
                let at = |side: Side, start: usize| {
                    side.at
                        .wrapping_offset(line as isize * side.strides[0] + start as isize * side.strides[1])
                };
                let goal = match block.goal {
                    Goal::Lines => Goal::Lines,
                    Goal::Runs(before) => Goal::Runs(before.wrapping_add(line)),
                    Goal::Totals(totals) => Goal::Totals(totals.wrapping_add(line)),
                };
                let block = Block { lines: 1, goal, ..block };
                whole::<A, 1>(block, |start, count, state| {
                    let [source, out] = sides.map(|side| (at(side, start), side.strides[1]));
                    rows::<A, 1>(source, out, count, block, state);
                });
            }
        }
    }
}

/// The sums of some lines: of the runs before, and within the current one.
struct State<S, const COUNT: usize> {
    before: [S; COUNT],
    within: [S; COUNT],
}

/// Calls a function for each run of a block, with its start, its length and the sums, and delivers totals.
///
/// # Safety
///
/// As for [`Body::run`].
#[inline(always)]
unsafe fn whole<A: Arithmetic, const COUNT: usize>(
    block: Block,
    mut run: impl FnMut(usize, usize, &mut State<A::Sum, COUNT>),
) {
    let mut state = State { before: [A::zero(); COUNT], within: [A::zero(); COUNT] };
    if let Goal::Runs(before) = block.goal {
        for (line, sum) in state.before[..block.lines].iter_mut().enumerate() {
            // SAFETY: guaranteed by the caller.
            *sum = unsafe { before.add(line).cast::<A::Sum>().read() };
        }
    }
    let mut start = 0;
    while start < block.size {
        let count = RUN.min(block.size - start);
        run(start, count, &mut state);
        start += count;
        if let Goal::Lines = block.goal {
            for (before, within) in state.before.iter_mut().zip(&mut state.within) {
                *before = A::add(*before, *within);
                *within = A::zero();
            }
        }
    }
    if let Goal::Totals(totals) = block.goal {
        for (line, &sum) in state.within[..block.lines].iter().enumerate() {
            // SAFETY: guaranteed by the caller.
            unsafe { totals.add(line).cast::<A::Sum>().write(sum) };
        }
    }
}

/// Sums some elements of lines that lie side by side, from addresses and distances to others.
///
/// # Safety
///
/// As for [`Body::run`].
#[inline(always)]
unsafe fn rows<A: Arithmetic, const COUNT: usize>(
    (source, source_step): (*mut u8, isize),
    (out, out_step): (*mut u8, isize),
    count: usize,
    block: Block,
    state: &mut State<A::Sum, COUNT>,
) {
    let State { before, within } = state;
    let mut sums = *within;
    for i in 0..count as isize {
        let source = source.wrapping_offset(i * source_step).cast::<A::T>();
        let out = out.wrapping_offset(i * out_step).cast::<A::T>();
        // SAFETY: guaranteed by the caller; elements need not be aligned.
        unsafe {
            match block.goal {
                Goal::Totals(_) => {
                    for (line, sum) in sums.iter_mut().enumerate() {
                        *sum = A::add(*sum, A::widen(source.add(line).read_unaligned()));
                    }
                }
                _ => {
                    for (line, sum) in sums.iter_mut().enumerate() {
                        let next = A::add(*sum, A::widen(source.add(line).read_unaligned()));
                        let result = A::add(before[line], if block.exclusive { *sum } else { next });
                        out.add(line).write_unaligned(A::round(result));
                        *sum = next;
                    }
                }
            }
        }
    }
    *within = sums;
}

/// Sums lines whose elements are adjacent, by transposing tiles of them.
///
/// # Safety
///
/// As for [`Body::run`].
#[inline(always)]
unsafe fn transposed<A: Arithmetic>(block: Block) {
    let size = size_of::<A::T>();
    // Lanes without a line stay zero.
    let mut tile = [0u64; DEPTH * LINES];
    let (tile, across) = (tile.as_mut_ptr().cast::<u8>(), (LINES * size) as isize);
    let Block { source, out, lines, .. } = block;
    // SAFETY: guaranteed by the caller; the tile has room for elements of eight bytes.
    unsafe {
        whole::<A, LINES>(block, |start, count, state| {
            for from in (start..start + count).step_by(DEPTH) {
                let depth = DEPTH.min(start + count - from);
                // The lowest address of the elements, and their order in the tile.
                let low = |side: Side| match side.strides[1] < 0 {
                    true => side.at.wrapping_offset((from + depth - 1) as isize * side.strides[1]),
                    false => side.at.wrapping_offset(from as isize * side.strides[1]),
                };
                let row = |side: Side| match side.strides[1] < 0 {
                    true => (tile.wrapping_offset((depth - 1) as isize * across), -across),
                    false => (tile, across),
                };
                let apart = source.strides[0] / size as isize;
                tile::transpose(size, tile, LINES, low(source), apart, lines, depth);
                rows::<A, LINES>(row(source), row(out), depth, block, state);
                if !matches!(block.goal, Goal::Totals(_)) {
                    let apart = (out.strides[0] / size as isize) as usize;
                    tile::transpose(size, low(out), apart, tile, LINES as isize, depth, lines);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use max_core::f16;
    use max_core::kernel::{Kernel, Slot};
    use max_driver::Buffer;

    use super::*;

    /// Sums in the order that the head of this file states.
    fn expected<T: Element>(
        x: &[T],
        [outer, size, inner]: [usize; 3],
        exclusive: bool,
        reverse: bool,
    ) -> Vec<T> {
        let mut results = x.to_vec();
        for line in 0..outer * inner {
            let (mut before, mut within) = (0.0, 0.0);
            for i in 0..size {
                let at = if reverse { size - 1 - i } else { i };
                let at = (line / inner * size + at) * inner + line % inner;
                let next = within + x[at].to_f64();
                results[at] = T::from_f64(before + if exclusive { within } else { next });
                within = next;
                if (i + 1) % RUN == 0 {
                    (before, within) = (before + within, 0.0);
                }
            }
        }
        results
    }

    fn check<T: Element>(shape: [usize; 3], exclusive: bool, reverse: bool) {
        let [outer, size, inner] = shape.map(|size| size as i64);
        let access = |slot| Access {
            slot: Slot(slot),
            dtype: T::DTYPE,
            offset: 0,
            strides: vec![size * inner, inner, 1],
        };
        let kernel =
            Kernel::from(Scan { outer, size, inner, exclusive, reverse, source: access(0), out: access(1) });
        let draw = |i: usize| {
            T::from_f64((i * 7919 % 6007) as f64 / 512.0 - if T::DTYPE.is_float() { 3.3 } else { 0.0 })
        };
        let x: Vec<T> = (0..shape.iter().product()).map(draw).collect();
        let (source, out) = (Buffer::from(x.clone()), Buffer::from(vec![T::from_f64(7.0); x.len()]));
        for threads in [1, 3] {
            let memory = [Memory::of(&source), Memory::of_mut(&out)].map(Result::unwrap);
            crate::prepare(&kernel).unwrap().run(&memory, &Pool::new(threads)).unwrap();
            let (got, want) = (out.to_vec::<T>().unwrap(), expected(&x, shape, exclusive, reverse));
            let differs = got.iter().zip(&want).position(|(a, b)| a.to_f64() != b.to_f64());
            assert_eq!(differs, None, "{} {shape:?} exclusive {exclusive} reverse {reverse}", T::DTYPE);
        }
    }

    #[test]
    fn sums_have_the_same_bits_however_lines_lie_in_memory() {
        let sizes = [1, 2, DEPTH - 1, DEPTH, RUN - 1, RUN, RUN + 1, 2 * RUN, 2 * RUN + 1, 40 * RUN + 5];
        for size in sizes {
            for [outer, inner] in [[1, 1], [2, 1], [7, 1], [9, 1], [33, 1], [70, 1], [1, 3], [2, 32], [1, 40]]
            {
                if size * outer * inner > 400_000 {
                    continue;
                }
                for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
                    check::<f32>([outer, size, inner], exclusive, reverse);
                }
                check::<f64>([outer, size, inner], true, true);
                check::<f16>([outer, size, inner], false, true);
            }
        }
        check::<i32>([3, 5000, 1], true, true);
        check::<i16>([40, 70, 1], false, true);
        check::<i64>([1, 2100, 33], true, false);
    }
}
