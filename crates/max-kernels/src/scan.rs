//! Runs scans: neighbouring lines are summed together, element by element along the axis, so that the sums of a line
//! never wait for each other alone.

use max_core::kernel::{Access, Scan};
use max_core::scalar::Lane;
use max_core::{DType, Element, Result, bail, dispatch};

use crate::matmul::{Places, count};
use crate::simd::{Isa, versions};
use crate::{Memory, Pool};

/// How many lines are summed together where they lie side by side, as vectors, and elsewhere.
const LINES: usize = 32;
const FEW: usize = 8;

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
    source: Lines,
    out: Lines,
    sum: unsafe fn(Block),
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

/// Some lines of a group.
#[derive(Clone, Copy)]
struct Block {
    source: (*const u8, [isize; 2]),
    out: (*mut u8, [isize; 2]),
    lines: usize,
    size: usize,
    exclusive: bool,
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
        Ok(PreparedScan {
            groups: groups as usize,
            lines: lines as usize,
            size: k.size as usize,
            exclusive: k.exclusive,
            source: walk(&k.source),
            out: walk(&k.out),
            sum: dispatch!(dtype, T => version::<Sums<T>>(Isa::best())),
        })
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        let PreparedScan { groups, lines, size, exclusive, source, out, sum } = self;
        let blocks = lines.div_ceil(LINES);
        if groups * blocks * size == 0 {
            return Ok(());
        }
        let together = (TASK / LINES / size).max(1);
        pool.run((groups * blocks).div_ceil(together), &|task| {
            for block in task * together..(groups * blocks).min((task + 1) * together) {
                let (group, line) = (block / blocks, block % blocks * LINES);
                let start = |lines: &Lines| {
                    let group = lines.groups.at(memory, group).wrapping_offset(lines.first);
                    group.wrapping_offset(line as isize * lines.strides[0])
                };
                // SAFETY: the caller checked the memory for the kernel, and every line is in one block.
                unsafe {
                    sum(Block {
                        source: (start(source), source.strides),
                        out: (start(out), out.strides),
                        lines: LINES.min(lines - line),
                        size: *size,
                        exclusive: *exclusive,
                    });
                }
            }
        });
        Ok(())
    }
}

trait Body {
    /// # Safety
    ///
    /// The lines are in memory that may be read and written.
    unsafe fn run<const FMA: bool>(block: Block);
}

versions!(version: Body, fn(block: Block));

/// Sums lines of a type.
struct Sums<T>(std::marker::PhantomData<T>);

impl<T: Element> Body for Sums<T> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(block: Block) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match T::DTYPE.is_float() {
                true => sum(block, 0.0, |sum, x: T| sum + x.to_f64(), |sum| T::from_f64(sum)),
                false => {
                    let zero = T::from_i128(0).to_lane();
                    sum(block, zero, |sum: T::Lane, x: T| sum.add(x.to_lane()), |sum| T::from_lane(sum));
                }
            }
        }
    }
}

/// Sums lines by an addition and a final rounding.
///
/// # Safety
///
/// As for [`Body::run`].
#[inline(always)]
unsafe fn sum<T: Element, S: Copy>(
    block: Block,
    zero: S,
    add: impl Fn(S, T) -> S + Copy,
    round: impl Fn(S) -> T + Copy,
) {
    let Block { source: (source, from), out: (out, to), lines, .. } = block;
    let adjacent = [size_of::<T>() as isize; 2];
    // SAFETY: guaranteed by the caller.
    unsafe {
        if [from[0], to[0]] == adjacent && lines == LINES {
            return together::<T, S, LINES>(block, adjacent, zero, add, round);
        }
        let mut line = 0;
        while line < lines {
            let at = line as isize;
            let source = (source.wrapping_offset(at * from[0]), from);
            let rest = Block { source, out: (out.wrapping_offset(at * to[0]), to), ..block };
            if lines - line >= FEW {
                together::<T, S, FEW>(rest, [from[0], to[0]], zero, add, round);
                line += FEW;
            } else {
                together::<T, S, 1>(rest, [from[0], to[0]], zero, add, round);
                line += 1;
            }
        }
    }
}

/// Sums a number of lines that is known when it is compiled, at these distances from each other.
///
/// # Safety
///
/// As for [`Body::run`].
#[inline(always)]
unsafe fn together<T: Element, S: Copy, const COUNT: usize>(
    block: Block,
    apart: [isize; 2],
    zero: S,
    add: impl Fn(S, T) -> S,
    round: impl Fn(S) -> T,
) {
    let Block { source: (source, from), out: (out, to), size, exclusive, .. } = block;
    let mut sums = [zero; COUNT];
    for i in 0..size as isize {
        let (source, out) = (source.wrapping_offset(i * from[1]), out.wrapping_offset(i * to[1]));
        for (line, sum) in sums.iter_mut().enumerate() {
            let at = line as isize;
            // SAFETY: guaranteed by the caller; elements need not be aligned.
            unsafe {
                let x = source.wrapping_offset(at * apart[0]).cast::<T>().read_unaligned();
                let next = add(*sum, x);
                let result = if exclusive { *sum } else { next };
                out.wrapping_offset(at * apart[1]).cast::<T>().write_unaligned(round(result));
                *sum = next;
            }
        }
    }
}
