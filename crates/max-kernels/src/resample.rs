//! Runs resampling.
//!
//! The weights of every row and column are known before a kernel runs. Rows are combined as they are, vector by vector.
//! Columns are too if what is inside them is long; single elements are gathered. Columns are more work than rows, so those
//! come first where the image gets higher: then fewer rows are left to do.

use std::any::TypeId;
use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Pod;
use max_core::kernel::{Access, Resample};
use max_core::resample::settled;
use max_core::scalar::FloatLane;
use max_core::{Coordinates, DType, Element, Interpolation, Result, bail, dispatch};

use crate::matmul::{Places, count};
use crate::scratch::{bytes, list, pieces};
use crate::simd::{Isa, versions};
use crate::tile::{self, GROUP, LoadFn, StoreFn};
use crate::{Memory, Pool};

/// Roughly how many results a task computes, and the fewest rows if columns come first: then tasks share rows.
const TASK: usize = 1 << 15;
const ROWS: usize = 16;

/// Resampling that is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedResample {
    outer: usize,
    size: [usize; 2],
    count: [usize; 2],
    inner: usize,
    rows: Table,
    columns: Table,
    /// Whether columns are resampled before rows.
    columns_first: bool,
    /// How many rows are computed together, and how many such bands are a task.
    band: usize,
    together: usize,
    source: Pixels,
    out: Pixels,
    /// Whether rows of the source are read in place, and results written there.
    reads: bool,
    writes: bool,
    /// The bytes of an element, and of a number that is weighted; none if elements are only moved.
    element: usize,
    number: usize,
    load: LoadFn,
    store: StoreFn,
    compute: unsafe fn(Job),
}

/// What the results along an axis are made of.
#[derive(Debug, Default)]
struct Table {
    /// The first element of each result.
    first: Vec<usize>,
    /// Where the weights of each result start; one more than there are results.
    starts: Vec<usize>,
    weights: Weights,
    /// The most weights of a result.
    most: usize,
    /// The first element of each result, and the weights of all first elements, of all second ones and so on: every result
    /// has as many, some of them zero.
    places: Vec<usize>,
    spread: Weights,
}

/// Weights in the precision they are used in; the other list is empty.
#[derive(Debug, Default)]
struct Weights {
    single: Vec<f32>,
    double: Vec<f64>,
}

impl Weights {
    fn new(weights: Vec<f64>, double: bool) -> Result<Weights> {
        if double {
            return Ok(Weights { single: Vec::new(), double: weights });
        }
        let mut single = list(weights.len())?;
        single.extend(weights.iter().map(|&weight| weight as f32));
        Ok(Weights { single, double: Vec::new() })
    }
}

/// Numbers that are weighted.
trait Weighted: FloatLane + Pod {
    fn of(weights: &Weights) -> &[Self];
    fn is_zero(self) -> bool;
}

impl Weighted for f32 {
    #[inline(always)]
    fn of(weights: &Weights) -> &[f32] {
        &weights.single
    }
    #[inline(always)]
    fn is_zero(self) -> bool {
        self == 0.0
    }
}

impl Weighted for f64 {
    #[inline(always)]
    fn of(weights: &Weights) -> &[f64] {
        &weights.double
    }
    #[inline(always)]
    fn is_zero(self) -> bool {
        self == 0.0
    }
}

impl Table {
    fn new(rule: (Interpolation, Coordinates), [size, count]: [usize; 2], double: bool) -> Result<Table> {
        let mut first = list(count)?;
        if rule.0.is_nearest() && size > 0 {
            let mut weights = Vec::with_capacity(1);
            for at in 0..count {
                weights.clear();
                first.push(rule.0.taps(rule.1, [size, count], at, &mut weights));
            }
            return Ok(Table { first, ..Table::default() });
        }
        // At most four elements each, or those near enough to a result that is made of many.
        let mut weights = list(count.saturating_mul(4).saturating_add(size.saturating_mul(3)))?;
        let mut starts = list(count.saturating_add(1))?;
        starts.push(0);
        for at in 0..count {
            first.push(rule.0.taps(rule.1, [size, count], at, &mut weights));
            starts.push(weights.len());
        }
        let most = starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        let (mut places, mut spread) = (list(count)?, list(most.saturating_mul(count))?);
        spread.resize(most * count, 0.0);
        for at in 0..count {
            // All of them are inside the source.
            let place = first[at].min(size - most);
            let own = &weights[starts[at]..starts[at + 1]];
            for (i, weight) in own.iter().enumerate() {
                spread[(first[at] - place + i) * count + at] = *weight;
            }
            places.push(place);
        }
        let (weights, spread) = (Weights::new(weights, double)?, Weights::new(spread, double)?);
        Ok(Table { first, starts, weights, most, places, spread })
    }

    /// The first element of a result, and the weights from it on.
    #[inline(always)]
    fn taps<L: Weighted>(&self, at: usize) -> (usize, &[L]) {
        (self.first[at], &L::of(&self.weights)[self.starts[at]..self.starts[at + 1]])
    }

    /// The elements that some results are made of.
    fn covered(&self, results: Range<usize>) -> Range<usize> {
        let ends = results.clone().map(|at| self.first[at] + self.starts[at + 1] - self.starts[at]);
        let from = results.map(|at| self.first[at]).min().unwrap_or(0);
        from..ends.max().unwrap_or(from)
    }
}

/// Where pixels are in memory.
#[derive(Debug)]
struct Pixels {
    outer: Places,
    /// The strides of rows, columns and what is inside.
    strides: [isize; 3],
    /// Whether a row is contiguous.
    flat: bool,
}

impl Pixels {
    fn new(access: &Access<i64>, outer: i64, [columns, inner]: [i64; 2]) -> Pixels {
        let strides: [isize; 3] = std::array::from_fn(|axis| access.strides[axis + 1] as isize);
        let flat = (strides[1] == inner as isize || columns == 1) && (strides[2] == 1 || inner == 1);
        Pixels { outer: Places::new(access, &[outer]), strides, flat }
    }
}

impl PreparedResample {
    pub(crate) fn new(k: &Resample<i64>) -> Result<PreparedResample> {
        let (dtype, nearest) = (k.source.dtype, k.interpolation.is_nearest());
        let sizes = |of: [i64; 2]| [k.outer, of[0], of[1], k.inner];
        if k.out.dtype != dtype || (dtype == DType::Bool && !nearest) || k.size.iter().any(|&size| size < 1) {
            bail!(internal, "invalid resampling: {k:?}");
        }
        count(&sizes(k.size))?;
        let results = count(&sizes(k.count))?;
        let double = dispatch!(dtype, T => TypeId::of::<<T as Element>::Real>() == TypeId::of::<f64>());
        let table = |axis: usize| match results {
            0 => Ok(Table::default()),
            _ => {
                let sizes = [k.size[axis], k.count[axis]].map(|size| size as usize);
                Table::new((k.interpolation, k.coordinates), sizes, double)
            }
        };
        let columns_first = k.count[0] > k.size[0] && k.count[1] != k.size[1];
        let row = Ord::max(k.count[1].saturating_mul(k.inner), 1) as usize;
        let fewest = if columns_first { ROWS } else { 1 };
        let band = Ord::min(Ord::max(TASK / row, fewest), Ord::max(k.count[0], 1) as usize);
        let source = Pixels::new(&k.source, k.outer, [k.size[1], k.inner]);
        let out = Pixels::new(&k.out, k.outer, [k.count[1], k.inner]);
        let lanes = dispatch!(dtype, T => TypeId::of::<T>() == TypeId::of::<<T as Element>::Real>());
        Ok(PreparedResample {
            outer: k.outer as usize,
            size: k.size.map(|size| size as usize),
            count: k.count.map(|size| size as usize),
            inner: k.inner as usize,
            rows: table(0)?,
            columns: table(1)?,
            columns_first,
            band,
            together: Ord::max(TASK / band.saturating_mul(row), 1),
            reads: lanes && source.flat,
            writes: lanes && out.flat,
            source,
            out,
            element: dtype.size_in_bytes(),
            number: match nearest {
                true => 0,
                false if double => size_of::<f64>(),
                false => size_of::<f32>(),
            },
            load: if dtype.is_float() { tile::load(dtype) } else { dispatch!(dtype, T => load_whole::<T>) },
            store: if dtype.is_float() {
                tile::store(dtype, false)
            } else {
                dispatch!(dtype, T => store_whole::<T>)
            },
            compute: match (nearest, dtype.size_in_bytes()) {
                (false, _) if double => version::<Weigh<f64>>(Isa::best()),
                (false, _) => version::<Weigh<f32>>(Isa::best()),
                (true, 1) => version::<Move<u8>>(Isa::best()),
                (true, 2) => version::<Move<u16>>(Isa::best()),
                (true, 4) => version::<Move<u32>>(Isa::best()),
                (true, _) => version::<Move<u64>>(Isa::best()),
            },
        })
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        let [rows, columns] = self.count;
        if self.outer == 0 || rows == 0 || columns == 0 || self.inner == 0 {
            return Ok(());
        }
        let bands = rows.div_ceil(self.band);
        let all = self.outer * bands;
        pool.run(all.div_ceil(self.together), &|task| {
            for number in task * self.together..all.min((task + 1) * self.together) {
                let (outer, first) = (number / bands, number % bands * self.band);
                let rows = first..rows.min(first + self.band);
                let room = self.room(&rows).map(|size| size * self.number);
                pieces(room.map(bytes::<u8>).iter().sum(), |scratch| {
                    let job = Job {
                        k: self,
                        source: self.source.outer.at(memory, outer),
                        out: self.out.outer.at(memory, outer),
                        rows: [rows.start, rows.end],
                        room: room.map(|size| scratch.take::<u8>(size)),
                    };
                    // SAFETY: the caller checked the memory for the kernel, and every row is in one band; scratch memory
                    // has the requested sizes.
                    unsafe { (self.compute)(job) };
                });
            }
        });
        Ok(())
    }

    /// How many numbers of scratch memory a band needs, if they are not only moved: rows of the source as they are used, rows whose columns are done, a
    /// row before its columns are done, and a row before it is stored.
    fn room(&self, rows: &Range<usize>) -> [usize; 4] {
        if self.number == 0 {
            return [0; 4];
        }
        let [size, len] = self.row_sizes();
        let loaded = if self.columns_first { 1 } else { self.rows.most };
        let done = if self.columns_first { self.rows.covered(rows.clone()).len() } else { 0 };
        [
            if self.reads { 0 } else { size * loaded + GROUP },
            done * len,
            if self.columns_first || size == len { 0 } else { size },
            if self.writes { 0 } else { len },
        ]
    }

    /// The number of elements in a row of the source and in one of the result.
    fn row_sizes(&self) -> [usize; 2] {
        [self.size[1] * self.inner, self.count[1] * self.inner]
    }
}

/// A band of rows.
#[derive(Clone, Copy)]
struct Job<'a> {
    k: &'a PreparedResample,
    source: *const u8,
    out: *mut u8,
    /// The first row of the result and the end.
    rows: [usize; 2],
    /// See [`PreparedResample::room`].
    room: [*mut u8; 4],
}

trait Body {
    /// # Safety
    ///
    /// The source of the band can be read, its results written, and there is room for what comes in between.
    unsafe fn run<const FMA: bool>(job: Job);
}

versions!(version: Body, fn(job: Job));

/// Moves the nearest elements, whatever they mean.
struct Move<U>(PhantomData<U>);

impl<U: Pod> Body for Move<U> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(job: Job) {
        let Job { k, rows: [first, end], .. } = job;
        let (from, to) = (&k.source, &k.out);
        let [size, len] = k.row_sizes();
        let flat = from.flat && to.flat;
        for row in first..end {
            let source = job.source.cast::<U>().wrapping_offset(k.rows.first[row] as isize * from.strides[0]);
            let out = job.out.cast::<U>().wrapping_offset(row as isize * to.strides[0]);
            // SAFETY: guaranteed by the caller; elements need not be aligned, so runs are copied as bytes.
            unsafe {
                if flat && row > first && k.rows.first[row] == k.rows.first[row - 1] {
                    let same = out.wrapping_offset(-to.strides[0]).cast_const();
                    std::ptr::copy_nonoverlapping(same.cast::<u8>(), out.cast(), len * size_of::<U>());
                } else if flat && size == len {
                    std::ptr::copy_nonoverlapping(source.cast::<u8>(), out.cast(), len * size_of::<U>());
                } else if flat && k.inner == 1 {
                    for (column, place) in k.columns.first.iter().enumerate() {
                        out.add(column).write_unaligned(source.add(*place).read_unaligned());
                    }
                } else {
                    for (column, place) in k.columns.first.iter().enumerate() {
                        let source = source.wrapping_offset(*place as isize * from.strides[1]);
                        let out = out.wrapping_offset(column as isize * to.strides[1]);
                        for i in 0..k.inner as isize {
                            let element = source.wrapping_offset(i * from.strides[2]).read_unaligned();
                            out.wrapping_offset(i * to.strides[2]).write_unaligned(element);
                        }
                    }
                }
            }
        }
    }
}

/// Adds up weighted elements as numbers of a type.
struct Weigh<L>(PhantomData<L>);

impl<L: Weighted> Body for Weigh<L> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(job: Job) {
        let Job { k, rows: [first, end], .. } = job;
        let [size, len] = k.row_sizes();
        let [loaded, done, between, stored] = job.room.map(|piece| piece.cast::<L>());
        let covered = if k.columns_first { k.rows.covered(first..end) } else { 0..0 };
        // SAFETY: guaranteed by the caller.
        unsafe {
            for row in covered.clone() {
                let source = job.row(row);
                let mut from = source.cast::<L>();
                if !k.reads {
                    load(k, loaded, source);
                    from = loaded;
                }
                across::<L>(k, done.add((row - covered.start) * len), from);
            }
            for row in first..end {
                let out = job.out.wrapping_offset(row as isize * k.out.strides[0] * k.element as isize);
                let to = if k.writes { out.cast() } else { stored };
                let (at, weights) = k.rows.taps::<L>(row);
                if k.columns_first {
                    let from = done.add((at - covered.start) * len).cast_const();
                    combine(to, from, len as isize, weights, len);
                } else {
                    let mut from = job.row(at).cast::<L>();
                    let mut apart = k.source.strides[0];
                    if !k.reads {
                        for i in 0..weights.len() {
                            load(k, loaded.add(i * size), job.row(at + i));
                        }
                        (from, apart) = (loaded, size as isize);
                    }
                    if size == len {
                        combine(to, from, apart, weights, len);
                    } else {
                        if k.size[0] != k.count[0] {
                            combine(between, from, apart, weights, size);
                            from = between;
                        }
                        across::<L>(k, to, from);
                    }
                }
                if !k.writes {
                    store(k, out, stored);
                }
            }
        }
    }
}

impl Job<'_> {
    /// Where a row of the source starts.
    #[inline(always)]
    fn row(&self, row: usize) -> *const u8 {
        self.source.wrapping_offset(row as isize * self.k.source.strides[0] * self.k.element as isize)
    }
}

/// Loads a row of the source.
///
/// # Safety
///
/// The row can be read, and there is room for it and for a group more.
#[inline(always)]
unsafe fn load<L>(k: &PreparedResample, to: *mut L, from: *const u8) {
    let [_, along, deep] = k.source.strides;
    let [runs, len] = if k.source.flat { [1, k.size[1] * k.inner] } else { [k.size[1], k.inner] };
    let deep = if k.source.flat { 1 } else { deep };
    for run in 0..runs {
        let from = from.wrapping_offset(run as isize * along * k.element as isize);
        // SAFETY: guaranteed by the caller; what is written beyond a run is overwritten by the next one.
        unsafe { (k.load)(to.add(run * len).cast(), from, deep, len) };
    }
}

/// Stores a row of the result.
///
/// # Safety
///
/// The row can be written, and there is as much to read.
#[inline(always)]
unsafe fn store<L>(k: &PreparedResample, to: *mut u8, from: *const L) {
    let [_, along, deep] = k.out.strides;
    let [runs, len] = if k.out.flat { [1, k.count[1] * k.inner] } else { [k.count[1], k.inner] };
    let deep = if k.out.flat { 1 } else { deep };
    for run in 0..runs {
        let to = to.wrapping_offset(run as isize * along * k.element as isize);
        // SAFETY: guaranteed by the caller.
        unsafe { (k.store)(to, deep, from.add(run * len).cast(), len) };
    }
}

/// Loads integers as f64.
///
/// # Safety
///
/// As for a [`LoadFn`].
unsafe fn load_whole<T: Element>(to: *mut u8, from: *const u8, stride: isize, count: usize) {
    let from = from.cast::<T>();
    for i in 0..count {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let element = from.wrapping_offset(i as isize * stride).read_unaligned();
            to.cast::<f64>().add(i).write_unaligned(element.to_f64());
        }
    }
}

/// Stores f64 as integers.
///
/// # Safety
///
/// As for a [`StoreFn`].
unsafe fn store_whole<T: Element>(to: *mut u8, stride: isize, from: *const u8, count: usize) {
    let to = to.cast::<T>();
    for i in 0..count {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let sum = settled(from.cast::<f64>().add(i).read_unaligned());
            to.wrapping_offset(i as isize * stride).write_unaligned(T::from_double(sum));
        }
    }
}

/// Resamples the columns of a row.
///
/// # Safety
///
/// A row of the source can be read, and one of the result written.
#[inline(always)]
unsafe fn across<L: Weighted>(k: &PreparedResample, to: *mut L, from: *const L) {
    let (inner, columns) = (k.inner, &k.columns);
    // SAFETY: guaranteed by the caller; the table only has elements of the source.
    unsafe {
        if inner > 1 {
            for column in 0..k.count[1] {
                let (at, weights) = columns.taps::<L>(column);
                combine(to.add(column * inner), from.add(at * inner), inner as isize, weights, inner);
            }
            return;
        }
        let (count, weights) = (k.count[1], L::of(&columns.spread));
        match columns.most {
            1 => pick::<L, 1>(to, from, &columns.places, weights),
            2 => pick::<L, 2>(to, from, &columns.places, weights),
            4 => pick::<L, 4>(to, from, &columns.places, weights),
            most => {
                pick::<L, 1>(to, from, &columns.places, weights);
                for tap in 1..most {
                    let weights = &weights[tap * count..][..count];
                    for (column, (place, weight)) in columns.places.iter().zip(weights).enumerate() {
                        let sum = to.add(column).read_unaligned();
                        let x = from.add(*place + tap).read_unaligned();
                        to.add(column).write_unaligned(sum.add(weighted(*weight, x)));
                    }
                }
            }
        }
    }
}

/// An element with its weight. One without weight adds nothing, even if it is infinite.
#[inline(always)]
fn weighted<L: Weighted>(weight: L, x: L) -> L {
    let product = weight.mul(x);
    if weight.is_zero() { L::splat(0.0) } else { product }
}

/// Combines `TAPS` elements from each place on.
///
/// # Safety
///
/// They can be read, and the results written.
#[inline(always)]
unsafe fn pick<L: Weighted, const TAPS: usize>(to: *mut L, from: *const L, places: &[usize], weights: &[L]) {
    let count = places.len();
    let weights: [&[L]; TAPS] = std::array::from_fn(|tap| &weights[tap * count..][..count]);
    for column in 0..count {
        // SAFETY: guaranteed by the caller; elements need not be aligned.
        unsafe {
            let from = from.add(places[column]);
            let mut sum = weighted(weights[0][column], from.read_unaligned());
            for (tap, weights) in weights.iter().enumerate().skip(1) {
                sum = sum.add(weighted(weights[column], from.add(tap).read_unaligned()));
            }
            to.add(column).write_unaligned(sum);
        }
    }
}

/// Combines runs of elements that are `apart`.
///
/// # Safety
///
/// They can be read, and the results written.
#[inline(always)]
unsafe fn combine<L: Weighted>(to: *mut L, from: *const L, apart: isize, weights: &[L], len: usize) {
    let mut at = 0;
    // SAFETY: guaranteed by the caller.
    unsafe {
        while at + 32 <= len {
            chunk::<L, 32>(to.add(at), from.wrapping_add(at), apart, weights);
            at += 32;
        }
        while at + 8 <= len {
            chunk::<L, 8>(to.add(at), from.wrapping_add(at), apart, weights);
            at += 8;
        }
        while at < len {
            chunk::<L, 1>(to.add(at), from.wrapping_add(at), apart, weights);
            at += 1;
        }
    }
}

/// As [`combine`], for a length that is known when it is compiled.
///
/// # Safety
///
/// As for that.
#[inline(always)]
unsafe fn chunk<L: Weighted, const N: usize>(to: *mut L, from: *const L, apart: isize, weights: &[L]) {
    let mut sums = [L::splat(0.0); N];
    for (tap, &weight) in weights.iter().enumerate() {
        if weight.is_zero() {
            continue;
        }
        let from = from.wrapping_offset((tap as isize).wrapping_mul(apart));
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: guaranteed by the caller; elements need not be aligned.
            *sum = sum.add(weight.mul(unsafe { from.add(i).read_unaligned() }));
        }
    }
    for (i, sum) in sums.into_iter().enumerate() {
        // SAFETY: guaranteed by the caller.
        unsafe { to.add(i).write_unaligned(sum) };
    }
}

#[cfg(test)]
mod tests;
