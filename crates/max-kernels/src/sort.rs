//! Runs sorts.
//!
//! Elements become unsigned keys in the same order, and a key together with its position is one integer; no two of these
//! are equal, so there is one result, whichever way it is found. A few elements of a line are selected (`select.rs`), keys
//! of one byte are counted (`count.rs`), and other lines are sorted by their digits (`radix.rs`). Many lines are sorted
//! side by side; a few long ones are split, so that threads share each.

mod count;
mod key;
mod radix;
mod select;
#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use max_core::kernel::{Access, Sort};
use max_core::{DType, Error, Result, bail};

use crate::matmul::{Places, count as product};
use crate::{Memory, Pool, scratch};
use key::{Block, Compact, Key, Packed};

/// Roughly how many elements a task sorts.
const TASK: usize = 1 << 12;

/// Lines of at least this many elements are shared by threads where there are only a few.
const LONG: usize = 1 << 16;
const FEW: usize = 8;

/// The parts that a long line is split into have at least this many elements; there are at most so many.
const PART: usize = 1 << 15;
const PARTS: usize = 32;

/// From this many elements on, keys of eight bytes are packed into less where they fit.
const COMPACT: usize = 1 << 12;

/// How many keys are computed at a time.
const CHUNK: usize = 1024;

/// Scratch memory up to this size is kept for the next sort.
const KEPT: usize = 1 << 26;

/// Longer lines would need more memory than has addresses.
const MOST: i64 = 1 << 56;

/// A sort that is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedSort {
    lines: usize,
    size: usize,
    count: usize,
    descending: bool,
    dtype: DType,
    keys: unsafe fn(Block),
    source: Lines,
    values: Option<Lines>,
    indices: Option<Lines>,
}

/// Where lines are in memory.
#[derive(Debug)]
struct Lines {
    starts: Places,
    /// The distance between the elements of a line in bytes.
    step: isize,
}

/// A line of the source and its results.
#[derive(Clone, Copy)]
struct Line {
    source: Strided,
    values: Option<Strided>,
    indices: Option<Strided>,
    size: usize,
    count: usize,
    descending: bool,
    /// What keys are reduced by before they are packed: none is less.
    base: u64,
    /// The bytes of an element.
    width: usize,
    keys: unsafe fn(Block),
}

/// Elements in memory at equal distances.
#[derive(Clone, Copy)]
struct Strided {
    start: *mut u8,
    step: isize,
}

/// Runs tasks, on threads or one after the other.
type Tasks<'a> = &'a dyn Fn(usize, &(dyn Fn(usize) + Sync));

impl PreparedSort {
    pub(crate) fn new(k: &Sort<i64>) -> Result<PreparedSort> {
        let dtype = k.source.dtype;
        let fits = |access: &Option<Access<i64>>, dtype| access.as_ref().is_none_or(|a| a.dtype == dtype);
        if !fits(&k.values, dtype) || !fits(&k.indices, DType::Int64) || k.count > k.size {
            bail!(internal, "a sort of {dtype} takes {} elements of {}", k.count, k.size);
        }
        let lines = product(&k.lines)?;
        product(&[lines as i64, k.size])?;
        if k.size > MOST {
            bail!(memory, "a sort of {} elements along an axis needs too much memory", k.size);
        }
        let walk = |access: &Access<i64>| {
            let step = access.strides[k.lines.len()] as isize * access.dtype.size_in_bytes() as isize;
            Lines { starts: Places::new(access, &k.lines), step }
        };
        Ok(PreparedSort {
            lines,
            size: k.size as usize,
            count: k.count as usize,
            descending: k.descending,
            dtype,
            keys: key::keys(dtype),
            source: walk(&k.source),
            values: k.values.as_ref().map(walk),
            indices: k.indices.as_ref().map(walk),
        })
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        let &PreparedSort { lines, size, count, .. } = self;
        if lines * count == 0 {
            return Ok(());
        }
        let line = |number: usize| {
            let place = |lines: &Lines| Strided { start: lines.starts.at(memory, number), step: lines.step };
            Line {
                source: place(&self.source),
                values: self.values.as_ref().map(place),
                indices: self.indices.as_ref().map(place),
                size,
                count,
                descending: self.descending,
                base: 0,
                width: self.dtype.size_in_bytes(),
                keys: self.keys,
            }
        };
        if size >= LONG && lines < FEW {
            // SAFETY: the caller checked the memory for the kernel, and lines do not share results.
            return (0..lines)
                .try_for_each(|number| unsafe { self.sort(line(number), &|tasks, f| pool.run(tasks, f)) });
        }
        let together = (TASK / size).max(1);
        let error = Mutex::new(None);
        pool.run(lines.div_ceil(together), &|task| {
            let numbers = task * together..lines.min((task + 1) * together);
            // SAFETY: as above.
            let sorted = numbers.into_iter().try_for_each(|number| unsafe {
                self.sort(line(number), &|tasks, f| (0..tasks).for_each(f))
            });
            if let Err(e) = sorted {
                keep(&error, e);
            }
        });
        error.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Sorts a line.
    ///
    /// # Safety
    ///
    /// The source may be read, and the results written.
    unsafe fn sort(&self, line: Line, tasks: Tasks) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match line.width {
                1 if self.dtype == DType::Bool => count::sort_bools(line, tasks),
                1 if line.size >= count::LEAST => count::sort_bytes(line, tasks),
                1 => sort_keys::<u8, u64>(line, tasks),
                2 if line.size <= u32::MAX as usize => sort_keys::<u16, u64>(line, tasks),
                2 => sort_keys::<u16, u128>(line, tasks),
                4 if line.size <= u32::MAX as usize => sort_keys::<u32, u64>(line, tasks),
                4 => sort_keys::<u32, u128>(line, tasks),
                _ => sort_wide(line, tasks),
            }
        }
    }
}

/// # Safety
///
/// As for [`PreparedSort::sort`].
unsafe fn sort_keys<K: Key, P: Packed>(line: Line, tasks: Tasks) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match select::suits(&line) {
            true => select::select::<K, P>(line, tasks),
            false => radix::sort::<K, P>(line, tasks),
        }
    }
}

/// Keys of eight bytes, which often are near each other.
///
/// # Safety
///
/// As for [`PreparedSort::sort`].
unsafe fn sort_wide(line: Line, tasks: Tasks) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if (COMPACT..=Compact::SIZE).contains(&line.size) && !select::suits(&line) {
            let (base, most) = line.bounds(tasks);
            if most - base < Compact::KEYS {
                return radix::sort::<u64, Compact>(Line { base, ..line }, tasks);
            }
        }
        sort_keys::<u64, u128>(line, tasks)
    }
}

// SAFETY: pointers to memory that all threads of a run may use.
unsafe impl Sync for Strided {}
// SAFETY: as above.
unsafe impl Send for Strided {}

/// Memory that tasks share, each its own part.
#[derive(Clone, Copy)]
struct Shared<T>(*mut T);

// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn get(self) -> *mut T {
        self.0
    }
}

impl Strided {
    #[inline(always)]
    fn at(self, index: usize) -> *mut u8 {
        self.start.wrapping_offset(index as isize * self.step)
    }
}

impl Line {
    /// How it is split for threads: the number of parts, and the length of all but the last.
    fn parts(&self) -> (usize, usize) {
        let length = self.size.div_ceil((self.size / PART).clamp(1, PARTS));
        (self.size.div_ceil(length), length)
    }

    /// The least and the largest key of eight bytes.
    ///
    /// # Safety
    ///
    /// The source may be read.
    unsafe fn bounds(&self, tasks: Tasks) -> (u64, u64) {
        let (least, most) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        let (parts, length) = self.parts();
        tasks(parts, &|part| {
            let mut found = (u64::MAX, 0);
            let range = part * length..self.size.min((part + 1) * length);
            // SAFETY: guaranteed by the caller.
            unsafe {
                self.each_chunk::<u64>(range, |keys, _| {
                    found = keys.iter().fold(found, |(least, most), &key| (least.min(key), most.max(key)));
                });
            }
            least.fetch_min(found.0, Ordering::Relaxed);
            most.fetch_max(found.1, Ordering::Relaxed);
        });
        let least = least.into_inner();
        (least, most.into_inner().max(least))
    }

    /// Calls a function with the keys of some elements, a chunk at a time, and the position of the first of them.
    ///
    /// # Safety
    ///
    /// The source may be read.
    #[inline(always)]
    unsafe fn each_chunk<K: Key>(&self, range: std::ops::Range<usize>, mut f: impl FnMut(&[K], usize)) {
        let mut memory = [const { MaybeUninit::<u64>::uninit() }; CHUNK];
        let keys = memory.as_mut_ptr().cast::<K>();
        let mut start = range.start;
        while start < range.end {
            let count = CHUNK.min(range.end - start);
            let (source, step, descending) = (self.source.at(start), self.source.step, self.descending);
            // SAFETY: the caller guarantees the source; there is room for a chunk of the widest keys, all of which are
            // written.
            let keys = unsafe {
                (self.keys)(Block { source, step, count, descending, keys: keys.cast() });
                std::slice::from_raw_parts(keys, count)
            };
            f(keys, start);
            start += count;
        }
    }

    /// Writes results from a position on.
    ///
    /// # Safety
    ///
    /// The results may be written, and their positions are inside the line.
    unsafe fn write<P: Packed>(&self, from: usize, sorted: &[P]) {
        let sorted = &sorted[..sorted.len().min(self.count.saturating_sub(from))];
        if let Some(indices) = self.indices {
            let mut to = indices.at(from);
            for element in sorted {
                // SAFETY: guaranteed by the caller; results need not be aligned.
                unsafe { to.cast::<i64>().write_unaligned(element.index() as i64) };
                to = to.wrapping_offset(indices.step);
            }
        }
        let Some(values) = self.values else { return };
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.width {
                1 => self.copy::<u8, P>(values, from, sorted),
                2 => self.copy::<u16, P>(values, from, sorted),
                4 => self.copy::<u32, P>(values, from, sorted),
                _ => self.copy::<u64, P>(values, from, sorted),
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Line::write`]; an element has the size of a `T`.
    unsafe fn copy<T: Copy, P: Packed>(&self, values: Strided, from: usize, sorted: &[P]) {
        for (at, element) in sorted.iter().enumerate() {
            // SAFETY: guaranteed by the caller; elements need not be aligned.
            unsafe {
                let value = self.source.at(element.index()).cast::<T>().read_unaligned();
                values.at(from + at).cast::<T>().write_unaligned(value);
            }
        }
    }
}

/// Calls a function with this many bytes of memory, aligned to a cache line. They hold anything.
fn with_memory<R>(bytes: usize, f: impl FnOnce(*mut u8) -> R) -> Result<R> {
    if bytes <= KEPT {
        return Ok(scratch::with(bytes, f));
    }
    match scratch::Lines::new(bytes.div_ceil(size_of::<scratch::Line>())) {
        Some(mut lines) => Ok(f(lines.ptr_mut())),
        None => bail!(memory, "the system refused to allocate {bytes} bytes of host memory for a sort"),
    }
}

fn keep(slot: &Mutex<Option<Error>>, error: Error) {
    slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(error);
}
