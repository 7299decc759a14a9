//! Runs non-maximum suppressions: a task selects the boxes of a class, then the selected ones are moved together.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicUsize, Ordering as Order};

use max_core::kernel::{Access, Suppress};
use max_core::{DType, Element, Result, bail};

use crate::matmul::count;
use crate::{Memory, Pool};

/// A suppression that is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedSuppress {
    kernel: Suppress<i64>,
    batches: usize,
    classes: usize,
    boxes: usize,
}

impl PreparedSuppress {
    pub(crate) fn new(k: &Suppress<i64>) -> Result<PreparedSuppress> {
        let [batches, classes, boxes] = k.sizes;
        let rows = count(&k.sizes)?;
        count(&[batches, boxes, k.corners])?;
        count(&k.rows)?;
        let dtype = k.boxes.dtype;
        let floats = [&k.scores, &k.overlap, &k.least].into_iter().all(|access| access.dtype == dtype);
        let integers = [&k.most, &k.out, &k.count].into_iter().all(|access| access.dtype == DType::Int64);
        if k.corners != 4 || k.rows[1] != 3 || k.rows[0] as usize != rows || !floats || !integers {
            bail!(internal, "a suppression of {dtype} boxes with {} corners into {:?}", k.corners, k.rows);
        }
        if !matches!(dtype, DType::Float32 | DType::Float64) {
            bail!(internal, "a suppression of {dtype} boxes");
        }
        Ok(PreparedSuppress {
            kernel: k.clone(),
            batches: batches as usize,
            classes: classes as usize,
            boxes: boxes as usize,
        })
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.kernel.boxes.dtype {
                DType::Float64 => self.run_as::<f64>(memory, pool),
                _ => self.run_as::<f32>(memory, pool),
            }
        }
    }

    /// # Safety
    ///
    /// The memory was checked for the kernel, whose boxes have this type.
    unsafe fn run_as<T: Element + PartialOrd>(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        let k = &self.kernel;
        // SAFETY: guaranteed by the caller.
        let (most, overlap, least) = unsafe {
            (
                read::<i64>(memory, &k.most, &[]),
                read::<T>(memory, &k.overlap, &[]),
                read::<T>(memory, &k.least, &[]),
            )
        };
        let most = usize::try_from(most).unwrap_or(0).min(self.boxes);
        let lists = if self.boxes == 0 { 0 } else { self.batches * self.classes };
        let mut found = Vec::new();
        if found.try_reserve_exact(lists).is_err() {
            return no_memory();
        }
        found.resize_with(lists, || AtomicUsize::new(0));
        pool.run(lists, &|list| {
            // SAFETY: guaranteed by the caller; every list has its own rows.
            let selected = unsafe { self.select::<T>(memory, list, most, overlap, least) };
            found[list].store(selected.unwrap_or(usize::MAX), Order::Relaxed);
        });
        let mut rows = 0;
        for (list, found) in found.into_iter().enumerate() {
            let found = found.into_inner();
            if found == usize::MAX {
                return no_memory();
            }
            let from = list * self.boxes;
            for row in 0..if from == rows { 0 } else { found } {
                for column in 0..3 {
                    // SAFETY: guaranteed by the caller. Rows only move towards the start.
                    unsafe {
                        let value = read::<i64>(memory, &k.out, &[from + row, column]);
                        write(memory, &k.out, &[rows + row, column], value);
                    }
                }
            }
            rows += found;
        }
        // SAFETY: guaranteed by the caller.
        unsafe { write(memory, &k.count, &[], rows as i64) };
        Ok(())
    }

    /// Selects the boxes of a class in a batch, and writes a row for each from the place of the list on. Returns how many
    /// there are; `None` if there is no memory.
    ///
    /// # Safety
    ///
    /// As for [`PreparedSuppress::run_as`], and nothing else writes these rows.
    unsafe fn select<T: Element + PartialOrd>(
        &self,
        memory: &[Memory],
        list: usize,
        most: usize,
        overlap: T,
        least: T,
    ) -> Option<usize> {
        let (k, batch, class) = (&self.kernel, list / self.classes, list % self.classes);
        if most == 0 {
            return Some(0);
        }
        let mut candidates: Vec<(T, usize)> = Vec::new();
        candidates.try_reserve_exact(self.boxes).ok()?;
        for at in 0..self.boxes {
            // SAFETY: guaranteed by the caller.
            let score = unsafe { read::<T>(memory, &k.scores, &[batch, class, at]) };
            if score > least {
                candidates.push((score, at));
            }
        }
        candidates
            .sort_unstable_by(|a, b| b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1)));
        let (mut kept, share): (Vec<Area>, f64) = (Vec::new(), overlap.to_f64());
        for (_, at) in candidates {
            let corner = |i: usize| {
                // SAFETY: guaranteed by the caller.
                unsafe { read::<T>(memory, &k.boxes, &[batch, at, i]) }.to_f64()
            };
            let area = Area::new([corner(0), corner(1), corner(2), corner(3)]);
            if kept.iter().any(|better| better.overlaps(&area, share)) {
                continue;
            }
            kept.try_reserve(1).ok()?;
            for (column, value) in [batch, class, at].into_iter().enumerate() {
                // SAFETY: guaranteed by the caller; there are at most as many rows as boxes.
                unsafe { write(memory, &k.out, &[list * self.boxes + kept.len(), column], value as i64) };
            }
            kept.push(area);
            if kept.len() == most {
                break;
            }
        }
        Some(kept.len())
    }
}

/// A box with its corners in order.
struct Area {
    low: [f64; 2],
    high: [f64; 2],
    size: f64,
}

impl Area {
    fn new([a, b, c, d]: [f64; 4]) -> Area {
        let (low, high) = ([a.min(c), b.min(d)], [a.max(c), b.max(d)]);
        Area { low, high, size: (high[0] - low[0]) * (high[1] - low[1]) }
    }

    /// Whether the intersection with another is more than a share of the union.
    fn overlaps(&self, other: &Area, share: f64) -> bool {
        let common = |axis: usize| {
            (self.high[axis].min(other.high[axis]) - self.low[axis].max(other.low[axis])).max(0.0)
        };
        let both = common(0) * common(1);
        self.size > 0.0 && other.size > 0.0 && both / (self.size + other.size - both) > share
    }
}

fn no_memory<R>() -> Result<R> {
    bail!(memory, "there is not enough memory for a non-maximum suppression")
}

/// The address of an element.
fn address(memory: &[Memory], access: &Access<i64>, index: &[usize]) -> *mut u8 {
    let steps = index.iter().zip(&access.strides).map(|(&i, &stride)| i as isize * stride as isize);
    let element = access.offset as isize + steps.sum::<isize>();
    memory[access.slot.0 as usize].ptr().wrapping_offset(element * access.dtype.size_in_bytes() as isize)
}

/// # Safety
///
/// The element exists and has this type.
unsafe fn read<T: Element>(memory: &[Memory], access: &Access<i64>, index: &[usize]) -> T {
    // SAFETY: guaranteed by the caller.
    unsafe { address(memory, access, index).cast::<T>().read_unaligned() }
}

/// # Safety
///
/// The element exists, has this type and may be written.
unsafe fn write(memory: &[Memory], access: &Access<i64>, index: &[usize], value: i64) {
    // SAFETY: guaranteed by the caller.
    unsafe { address(memory, access, index).cast::<i64>().write_unaligned(value) }
}
