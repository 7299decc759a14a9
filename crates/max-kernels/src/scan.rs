//! Runs scans: many lines are summed together, so that no sum waits for its predecessor alone. Lines that lie side by side are
//! read as they are; others are transposed tile by tile. Few long lines are cut into runs, which are summed like lines.
//!
//! The order of additions depends on the length of a line only, however it is computed: from zero within runs of [`RUN`]
//! elements, each added to the sum of the runs before it.

use std::marker::PhantomData;

use max_core::kernel::{Access, Scan};
use max_core::{DType, Element, Result, bail, dispatch};

use crate::matmul::{Places, count};
use crate::simd::{Isa, versions};
use crate::{Memory, Pool, tile};

/// How many lines are summed together as vectors; fewer than [`FEW`] are summed one by one.
const LINES: usize = 32;
const FEW: usize = 8;

/// The length of the runs within a line.
const RUN: usize = 1024;

/// How many lines are transposed together, and how many elements of each, a divisor of [`RUN`]: few lines and many elements,
/// so that memory is read in long pieces.
const HEIGHT: usize = 16;
const DEPTH: usize = 256;

/// Roughly how many elements a task sums.
const TASK: usize = 1 << 15;

/// How many runs of a long line are summed between its totals and its results, so that these find them in the cache.
const STRETCH: usize = 256;

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
    /// Replaces the sums of runs by the sums of all runs before each, given the sum before all of them; returns the total.
    accumulate: fn(&mut [u64], u64) -> u64,
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

impl Block {
    /// Some of its lines.
    #[inline(always)]
    fn part(self, line: usize, lines: usize) -> Block {
        let side = |side: Side| Side { at: side.at.wrapping_offset(line as isize * side.strides[0]), ..side };
        let goal = match self.goal {
            Goal::Lines => Goal::Lines,
            Goal::Runs(before) => Goal::Runs(before.wrapping_add(line)),
            Goal::Totals(totals) => Goal::Totals(totals.wrapping_add(line)),
        };
        Block { source: side(self.source), out: side(self.out), lines, goal, ..self }
    }
}

impl Side {
    /// An element of the first line, and the distance to the next one.
    #[inline(always)]
    fn from(self, start: usize) -> (*mut u8, isize) {
        (self.at.wrapping_offset(start as isize * self.strides[1]), self.strides[1])
    }
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
            true => functions::<Floats<T>>(),
            false => functions::<Integers<T>>(),
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
                (0..groups * lines).for_each(|line| self.by_runs(memory, pool, line / lines, line % lines));
            } else {
                self.by_lines(memory, pool);
            }
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

    /// Sums one line, stretch by stretch: the totals of its runs first, then the runs, both in parallel.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    unsafe fn by_runs(&self, memory: &[Memory], pool: &Pool, group: usize, line: usize) {
        // All runs but the last one are whole.
        let last = self.size.div_ceil(RUN) - 1;
        // The sums before each run of a stretch, in the order of memory, and before the next stretch.
        let mut sums = [0u64; STRETCH + 1];
        for start in (0..last).step_by(STRETCH) {
            let count = STRETCH.min(last - start);
            let total = sums[STRETCH];
            let shared = Shared(sums.as_mut_ptr());
            let part = |first: usize, goal: fn(*mut u64) -> Goal| {
                let run = start + if self.reverse { count - 1 - first } else { first };
                self.runs(memory, group, line, run, LINES.min(count - first), goal(shared.at(first)))
            };
            let blocks = count.div_ceil(LINES);
            pool.run(blocks, &|block| {
                // SAFETY: the runs are parts of a line in memory that was checked, and every run is in one block.
                unsafe { (self.sum)(part(block * LINES, Goal::Totals)) };
            });
            // SAFETY: no task runs, and the array is borrowed through this pointer only.
            let sums = unsafe { std::slice::from_raw_parts_mut(shared.at(0), STRETCH + 1) };
            let (own, _) = sums.split_at_mut(count);
            if self.reverse {
                own.reverse();
            }
            let total = (self.accumulate)(own, total);
            if self.reverse {
                own.reverse();
            }
            sums[STRETCH] = total;
            pool.run(blocks, &|block| {
                // SAFETY: as above.
                unsafe { (self.sum)(part(block * LINES, |sums| Goal::Runs(sums))) };
            });
        }
        let goal = Goal::Runs(&raw const sums[STRETCH]);
        let rest = Block { size: self.size - last * RUN, ..self.runs(memory, group, line, last, 1, goal) };
        // SAFETY: as above.
        unsafe { (self.sum)(rest) };
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

/// How elements are summed. Sums have eight bytes, which is how they are passed on.
trait Arithmetic {
    /// The elements.
    type T: Element;
    /// Their sums.
    type Sum: Copy;
    fn widen(x: Self::T) -> Self::Sum;
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn round(sum: Self::Sum) -> Self::T;
    fn from_bits(bits: u64) -> Self::Sum;
    fn to_bits(sum: Self::Sum) -> u64;
}

/// Floats are summed in f64 and rounded once.
struct Floats<T>(PhantomData<T>);

impl<T: Element> Arithmetic for Floats<T> {
    type T = T;
    type Sum = f64;

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
        T::from_double(sum)
    }

    #[inline(always)]
    fn from_bits(bits: u64) -> f64 {
        f64::from_bits(bits)
    }

    #[inline(always)]
    fn to_bits(sum: f64) -> u64 {
        sum.to_bits()
    }
}

/// Integers wrap; the lowest bits of a sum do not depend on how many there are.
struct Integers<T>(PhantomData<T>);

impl<T: Element> Arithmetic for Integers<T> {
    type T = T;
    type Sum = u64;

    #[inline(always)]
    fn widen(x: T) -> u64 {
        x.to_i128() as u64
    }

    #[inline(always)]
    fn add(a: u64, b: u64) -> u64 {
        a.wrapping_add(b)
    }

    #[inline(always)]
    fn round(sum: u64) -> T {
        T::from_i128(sum.into())
    }

    #[inline(always)]
    fn from_bits(bits: u64) -> u64 {
        bits
    }

    #[inline(always)]
    fn to_bits(sum: u64) -> u64 {
        sum
    }
}

type Functions = (unsafe fn(Block), fn(&mut [u64], u64) -> u64);

fn functions<A: Arithmetic>() -> Functions {
    (version::<Sums<A>>(Isa::best()), accumulate::<A>)
}

fn accumulate<A: Arithmetic>(sums: &mut [u64], before: u64) -> u64 {
    sums.iter_mut().fold(before, |before, sum| {
        let total = A::add(A::from_bits(before), A::from_bits(*sum));
        *sum = before;
        A::to_bits(total)
    })
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
        // SAFETY: guaranteed by the caller; a tile has room for elements of eight bytes.
        unsafe {
            if block.lines == LINES && sides.iter().all(|side| side.strides[0] == adjacent) {
                return sum::<A, LINES>(block, std::ptr::null_mut());
            }
            if block.lines >= FEW && sides.iter().all(|side| side.strides[1].abs() == adjacent) {
                let mut tile = [0u64; DEPTH * HEIGHT];
                for line in (0..block.lines).step_by(HEIGHT) {
                    let part = block.part(line, HEIGHT.min(block.lines - line));
                    sum::<A, HEIGHT>(part, tile.as_mut_ptr().cast());
                }
                return;
            }
            for line in 0..block.lines {
                sum::<A, 1>(block.part(line, 1), std::ptr::null_mut());
            }
        }
    }
}

/// The sums of some lines: of the runs before, and within the current one.
struct State<S, const COUNT: usize> {
    before: [S; COUNT],
    within: [S; COUNT],
}

/// Sums at most `COUNT` lines: run by run, as they lie side by side, or with a tile that they are transposed in, whose lanes
/// without a line hold anything.
///
/// # Safety
///
/// As for [`Body::run`]; with a tile, the elements of a line are adjacent.
#[inline(always)]
unsafe fn sum<A: Arithmetic, const COUNT: usize>(block: Block, tile: *mut u8) {
    let mut state = State { before: [A::from_bits(0); COUNT], within: [A::from_bits(0); COUNT] };
    // SAFETY: guaranteed by the caller.
    unsafe {
        if let Goal::Runs(before) = block.goal {
            for line in 0..block.lines {
                state.before[line] = A::from_bits(before.add(line).read());
            }
        }
        let mut start = 0;
        while start < block.size {
            let count = RUN.min(block.size - start);
            if tile.is_null() {
                rows::<A, COUNT>(block.source.from(start), block.out.from(start), count, block, &mut state);
            } else {
                transposed::<A, COUNT>(block, tile, start, count, &mut state);
            }
            start += count;
            if let Goal::Lines = block.goal {
                for line in 0..COUNT {
                    state.before[line] = A::add(state.before[line], state.within[line]);
                    state.within[line] = A::from_bits(0);
                }
            }
        }
        if let Goal::Totals(totals) = block.goal {
            for line in 0..block.lines {
                totals.add(line).write(A::to_bits(state.within[line]));
            }
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
    source: (*mut u8, isize),
    out: (*mut u8, isize),
    count: usize,
    block: Block,
    state: &mut State<A::Sum, COUNT>,
) {
    let State { before, within } = state;
    let (before, mut sums) = (*before, *within);
    for row in 0..count as isize {
        // A whole row is read before anything is written, because both may be the same.
        // SAFETY: guaranteed by the caller; elements need not be aligned.
        let x = unsafe { source.0.wrapping_offset(row * source.1).cast::<[A::T; COUNT]>().read_unaligned() };
        let mut next = sums;
        for line in 0..COUNT {
            next[line] = A::add(sums[line], A::widen(x[line]));
        }
        if !matches!(block.goal, Goal::Totals(_)) {
            let shown = if block.exclusive { sums } else { next };
            let mut results = x;
            for line in 0..COUNT {
                results[line] = A::round(A::add(before[line], shown[line]));
            }
            // SAFETY: as above.
            unsafe { out.0.wrapping_offset(row * out.1).cast::<[A::T; COUNT]>().write_unaligned(results) };
        }
        sums = next;
    }
    *within = sums;
}

/// Sums some elements of lines through a tile.
///
/// # Safety
///
/// As for [`sum`].
#[inline(always)]
unsafe fn transposed<A: Arithmetic, const COUNT: usize>(
    block: Block,
    tile: *mut u8,
    start: usize,
    count: usize,
    state: &mut State<A::Sum, COUNT>,
) {
    let size = size_of::<A::T>();
    let Block { source, out, lines, .. } = block;
    let across = (COUNT * size) as isize;
    let mut from = start;
    while from < start + count {
        let depth = DEPTH.min(start + count - from);
        // The lowest address of the elements, and their order in the tile.
        let low = |side: Side| side.from(if side.strides[1] < 0 { from + depth - 1 } else { from }).0;
        let row = |side: Side| match side.strides[1] < 0 {
            true => (tile.wrapping_offset((depth - 1) as isize * across), -across),
            false => (tile, across),
        };
        let apart = |side: Side| side.strides[0] / size as isize;
        // SAFETY: guaranteed by the caller.
        unsafe {
            tile::transpose(size, tile, COUNT, low(source), apart(source), lines, depth);
            rows::<A, COUNT>(row(source), row(out), depth, block, state);
            if !matches!(block.goal, Goal::Totals(_)) {
                tile::transpose(size, low(out), apart(out) as usize, tile, COUNT as isize, depth, lines);
            }
        }
        from += depth;
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
                results[at] = T::from_double(before + if exclusive { within } else { next });
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
            T::from_double((i * 7919 % 6007) as f64 / 512.0 - if T::DTYPE.is_float() { 3.3 } else { 0.0 })
        };
        let x: Vec<T> = (0..shape.iter().product()).map(draw).collect();
        let (source, out) = (Buffer::from(x.clone()), Buffer::from(vec![T::from_double(7.0); x.len()]));
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
        let sizes = [
            1,
            2,
            DEPTH - 1,
            DEPTH,
            RUN - 1,
            RUN,
            RUN + 1,
            2 * RUN,
            2 * RUN + 1,
            40 * RUN + 5,
            300 * RUN + 1,
        ];
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
