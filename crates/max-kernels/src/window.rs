//! Runs pooling.
//!
//! A small window of many channels is reduced at once, some channels at a time. Otherwise all rows of a line of windows
//! are reduced first, column by column, and then the columns of each window: that is fast for large windows, and for few
//! channels, which are reduced together with their neighbours. Which of the two is used, and so the order of a sum,
//! follows from the sizes. Long sums are sums of runs of [`RUN`] elements.

use std::any::TypeId;
use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Pod;
use max_core::kernel::{Pooling, Sliding, Span, Window};
use max_core::scalar::{FloatLane, Lane};
use max_core::{Bool, DType, Element, Result, bail, dispatch};

use crate::conv::Outcome;
use crate::matmul::{Places, count};
use crate::scratch::{bytes, list, pieces};
use crate::simd::{Isa, versions};
use crate::tile::{self, GROUP, LoadFn, RUN};
use crate::{Memory, Pool};

/// The most elements of a line that are reduced together.
const LINE: usize = 8192;

/// Roughly how many elements a task reads.
const TASK: usize = 1 << 16;

/// The most elements of a window that is reduced at once, and the fewest channels.
const SMALL: usize = 16;
const CHANNELS: usize = 8;

/// Channels are cut at multiples of this.
const DEEP: usize = 16;

/// The type of the lanes of a dtype: narrow floats are widened before anything else.
macro_rules! with_lanes {
    ($dtype:expr, $T:ident => $body:expr) => {
        with_lanes!(@ $dtype, $T, $body,
            Bool = Bool, Int8 = i8, Int16 = i16, Int32 = i32, Int64 = i64,
            UInt8 = u8, UInt16 = u16, UInt32 = u32, UInt64 = u64, Float64 = f64)
    };
    (@ $dtype:expr, $T:ident, $body:expr, $($variant:ident = $type:ty),*) => {
        match $dtype {
            $(DType::$variant => { type $T = $type; $body })*
            _ => { type $T = f32; $body }
        }
    };
}

/// Pooling that is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedWindow {
    /// Batch, height, width and channels.
    out: [usize; 4],
    dilation: [usize; 2],
    /// The distance between the windows of a line, in columns.
    stride: usize,
    /// What the windows cover, by row and by column.
    rows: Vec<Span>,
    columns: Vec<Span>,
    /// The images, and the strides of height, width and channels.
    input: Places,
    input_strides: [isize; 3],
    /// The bytes of an element.
    element: usize,
    /// Whether channels are read as they are: contiguous and without widening.
    in_place: bool,
    /// Whether windows are reduced at once.
    at_once: bool,
    /// The columns and channels that are computed together, and how many such parts of a line are a task.
    part: [usize; 2],
    together: usize,
    load: LoadFn,
    result: Outcome,
    run: unsafe fn(&PreparedWindow, &[Memory], &Pool),
}

impl PreparedWindow {
    pub(crate) fn new(k: &Window<i64>) -> Result<PreparedWindow> {
        let (dtype, mean) = (k.input.dtype, k.pooling != Pooling::Max);
        if k.stride.contains(&0) || k.dilation.contains(&0) || (mean && dtype == DType::Bool) {
            bail!(internal, "invalid pooling: {k:?}");
        }
        count(&k.out)?;
        count(&[k.out[0], k.input_size[0], k.input_size[1], k.out[3]])?;
        let empty = k.out.contains(&0);
        let spans = |axis: usize| -> Result<Vec<Span>> {
            let [size, taps, out] = [k.input_size[axis], k.window[axis], k.out[axis + 1]];
            // The position of the last element of the last window must not overflow.
            let reach = |at: i64, step: usize| i128::from(Ord::max(at, 1) - 1) * step as i128;
            let last = reach(out, k.stride[axis]) + reach(taps, k.dilation[axis]);
            let sliding = Sliding {
                pooling: k.pooling,
                size: size as usize,
                taps: taps as usize,
                stride: k.stride[axis],
                dilation: k.dilation[axis],
                padding: [k.padding[2 * axis], k.padding[2 * axis + 1]],
            };
            if taps < 1
                || last > i128::from(i64::MAX)
                || sliding.padding.iter().any(|&p| p > i64::MAX as usize)
            {
                bail!(internal, "the positions of windows overflow: {k:?}");
            }
            let count = if empty { 0 } else { out as usize };
            let mut spans = list(count)?;
            spans.extend((0..count).map(|at| sliding.span(at)));
            Ok(spans)
        };
        let input_strides: [isize; 3] = std::array::from_fn(|axis| k.input.strides[axis + 1] as isize);
        let channels = k.out[3] as usize;
        let mut prepared = PreparedWindow {
            out: k.out.map(|size| size as usize),
            dilation: k.dilation,
            stride: k.stride[1],
            rows: spans(0)?,
            columns: spans(1)?,
            input: Places::new(&k.input, &k.out[..1]),
            input_strides,
            element: dtype.size_in_bytes(),
            in_place: dispatch!(dtype, T => TypeId::of::<T>() == TypeId::of::<<T as Element>::Lane>())
                && (input_strides[2] == 1 || channels == 1),
            at_once: false,
            part: [1; 2],
            together: 1,
            load: tile::load(dtype),
            result: Outcome::new(&k.epilogue, dtype)?,
            run: match mean {
                false => with_lanes!(dtype, T => run::<T, Max>),
                true => with_lanes!(dtype, T => run::<T, Mean>),
            },
        };
        prepared.cut();
        Ok(prepared)
    }

    /// Decides how lines are cut into parts and how windows are reduced.
    fn cut(&mut self) {
        let [.., long, channels] = self.out;
        let most = |spans: &[Span]| spans.iter().map(|span| span.len).max().unwrap_or(0).max(1);
        let [tall, taps] = [most(&self.rows), most(&self.columns)];
        // How many columns a window covers.
        let wide = (taps - 1) * self.dilation[1] + 1;
        self.at_once = self.in_place && channels >= CHANNELS && tall * taps <= SMALL;
        // Rows that are not read in place are all in scratch memory.
        let line = if self.in_place { LINE } else { LINE / tall };
        let deep = (line / wide).min(TASK / 2 / (wide * tall)) / DEEP * DEEP;
        let channels = if channels <= deep.max(DEEP) { channels } else { deep.max(DEEP) };
        let columns = (line / channels.max(1)).saturating_sub(wide) / self.stride + 1;
        let columns = columns.min(long.max(1));
        self.part = [columns, channels.max(1)];
        let covered = ((columns - 1).saturating_mul(self.stride)).saturating_add(wide);
        self.together = (TASK / covered.saturating_mul(channels.max(1)).saturating_mul(tall).max(1)).max(1);
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        if !self.out.contains(&0) {
            // SAFETY: guaranteed by the caller.
            unsafe { (self.run)(self, memory, pool) };
        }
        Ok(())
    }

    /// Computes some columns and channels of a line.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, which reduces lanes of type `T` by `R`.
    unsafe fn compute<T: Element, R: Reduce<T>>(
        &self,
        functions: &Functions,
        memory: &[Memory],
        outer: usize,
        columns: Range<usize>,
        channels: Range<usize>,
    ) where
        T::Lane: Pod,
    {
        let deep = channels.len();
        let row = self.rows[outer % self.out[1]];
        let [down, along, across] = self.input_strides;
        let (image, first) =
            (self.input.at(memory, outer / self.out[1]).cast_const(), channels.start as isize);
        let input = |column: usize| {
            let at = (row.first as isize).wrapping_mul(down);
            let at = at.wrapping_add((column as isize).wrapping_mul(along));
            let at = at.wrapping_add(first.wrapping_mul(across));
            image.wrapping_offset(at.wrapping_mul(self.element as isize))
        };
        // The columns of the image that the windows cover.
        let spans = self.columns[columns.clone()].iter().filter(|span| span.len > 0);
        let from = spans.clone().map(|span| span.first).min().unwrap_or(0);
        let to = spans.map(|span| span.first + (span.len - 1) * self.dilation[1] + 1).max().unwrap_or(0);
        let wide = to.saturating_sub(from);
        let line = if self.at_once { 0 } else { wide * deep };
        let room = if self.in_place { 0 } else { row.len * wide * deep + GROUP };
        let place = self.result.place::<T::Lane>(memory, outer, [columns.start, channels.start]);
        let results = if place.is_some() { 0 } else { columns.len() * deep };
        let size = bytes::<R::Acc>(line) + bytes::<T::Lane>(room) + bytes::<T::Lane>(results);
        pieces(size, |scratch| {
            let line = scratch.take::<R::Acc>(line);
            let room = scratch.take::<T::Lane>(room);
            let results = scratch.take::<T::Lane>(results);
            let (to, stride) = place.unwrap_or((results, deep as isize));
            let step = down.wrapping_mul(self.dilation[0] as isize);
            let mut job = Job {
                k: self,
                row,
                columns: [columns.start, columns.end],
                from,
                runs: 1,
                run: wide * deep,
                apart: 0,
                down: step,
                channels: deep,
                input: input(from),
                line: line.cast(),
                to: to.cast(),
                stride,
            };
            // SAFETY: the caller guarantees the memory; scratch memory has the requested sizes.
            unsafe {
                if self.at_once {
                    (functions.at_once)(job);
                } else if self.in_place {
                    if along != deep as isize {
                        (job.runs, job.run, job.apart) = (wide, deep, along);
                    }
                    (functions.rows)(job);
                    (functions.columns)(job);
                } else {
                    self.widen(room, job.input, [row.len, wide, deep]);
                    (job.input, job.down) = (room.cast(), (wide * deep) as isize);
                    (functions.widened_rows)(job);
                    (functions.columns)(job);
                }
                let product = (results.cast_const(), deep);
                self.result.finish(memory, outer, columns, channels, product);
            }
        });
    }

    /// Copies rows, columns and channels from an element on, as lanes.
    ///
    /// # Safety
    ///
    /// They are in memory, and there is room for them and for a group of lanes.
    unsafe fn widen<L>(&self, room: *mut L, from: *const u8, [rows, wide, deep]: [usize; 3]) {
        let [down, along, across] = self.input_strides;
        let down = down.wrapping_mul(self.dilation[0] as isize);
        let flat = across == 1 && along == deep as isize;
        let [runs, len] = if flat { [1, wide * deep] } else { [wide, deep] };
        for (row, run) in (0..rows).flat_map(|row| (0..runs).map(move |run| (row, run))) {
            let at = (row as isize * down + run as isize * along) * self.element as isize;
            // SAFETY: guaranteed by the caller; what is written beyond a run is overwritten by the next one.
            unsafe {
                let to = room.add(row * wide * deep + run * len);
                (self.load)(to.cast(), from.wrapping_offset(at), across, len);
            }
        }
    }
}

/// # Safety
///
/// The memory was checked for the kernel, which reduces lanes of type `T` by `R`.
unsafe fn run<T: Element, R: Reduce<T>>(k: &PreparedWindow, memory: &[Memory], pool: &Pool)
where
    T::Lane: Pod,
{
    let isa = Isa::best();
    let functions = Functions {
        at_once: version::<AtOnce<T, R>>(isa),
        rows: version::<Rows<T, R>>(isa),
        widened_rows: version::<WidenedRows<T, R>>(isa),
        columns: version::<Columns<T, R>>(isa),
    };
    let [images, lines, long, channels] = k.out;
    let [columns, deep] = k.part;
    let [across, down] = [long.div_ceil(columns), channels.div_ceil(deep)];
    let parts = images * lines * across * down;
    pool.run(parts.div_ceil(k.together), &|task| {
        for part in task * k.together..parts.min((task + 1) * k.together) {
            let (outer, part) = (part / (across * down), part % (across * down));
            let (column, channel) = (part / down * columns, part % down * deep);
            let columns = column..long.min(column + columns);
            let channels = channel..channels.min(channel + deep);
            // SAFETY: guaranteed by the caller.
            unsafe { k.compute::<T, R>(&functions, memory, outer, columns, channels) };
        }
    });
}

/// The functions for a type and a reduction.
struct Functions {
    at_once: unsafe fn(Job),
    rows: unsafe fn(Job),
    widened_rows: unsafe fn(Job),
    columns: unsafe fn(Job),
}

/// A part of a line.
#[derive(Clone, Copy)]
struct Job<'a> {
    k: &'a PreparedWindow,
    row: Span,
    /// The first column and the end.
    columns: [usize; 2],
    /// The first column of the image that is covered.
    from: usize,
    /// The elements of a row: the number of runs of contiguous ones, their length and the distance between them.
    runs: usize,
    run: usize,
    apart: isize,
    /// The distance between rows.
    down: isize,
    channels: usize,
    /// The first element that is covered.
    input: *const u8,
    /// The reduced rows.
    line: *mut u8,
    /// The results, and the distance between columns.
    to: *mut u8,
    stride: isize,
}

trait Body {
    /// # Safety
    ///
    /// What the job covers can be read, and its line and results have room for what is computed.
    unsafe fn run<const FMA: bool>(job: Job);
}

versions!(version: Body, fn(job: Job));

/// How elements are combined.
trait Reduce<T: Element>: 'static {
    /// What is known of some elements.
    type Acc: Pod;

    fn start() -> Self::Acc;
    fn of(lane: T::Lane) -> Self::Acc;
    fn join(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn finish(all: Self::Acc, count: f64) -> T::Lane;
}

struct Max;

impl<T: Element> Reduce<T> for Max
where
    T::Lane: Pod,
{
    type Acc = T::Lane;

    #[inline(always)]
    fn start() -> T::Lane {
        T::Lane::splat(if T::DTYPE == DType::Bool { 0.0 } else { f64::NEG_INFINITY })
    }
    #[inline(always)]
    fn of(lane: T::Lane) -> T::Lane {
        lane
    }
    #[inline(always)]
    fn join(a: T::Lane, b: T::Lane) -> T::Lane {
        a.max(b)
    }
    #[inline(always)]
    fn finish(all: T::Lane, _: f64) -> T::Lane {
        all
    }
}

/// Sums of integers are exact in f64, up to 2^53.
struct Mean;

impl<T: Element> Reduce<T> for Mean
where
    T::Lane: Pod,
    T::Real: Pod,
{
    type Acc = T::Real;

    #[inline(always)]
    fn start() -> T::Real {
        T::Real::splat(0.0)
    }
    #[inline(always)]
    fn of(lane: T::Lane) -> T::Real {
        match T::DTYPE.is_float() {
            true => bytemuck::cast(lane), // the same type
            false => T::from_lane(lane).to_real(),
        }
    }
    #[inline(always)]
    fn join(a: T::Real, b: T::Real) -> T::Real {
        a.add(b)
    }
    #[inline(always)]
    fn finish(all: T::Real, count: f64) -> T::Lane {
        let mean = all.div(T::Real::splat(count));
        match T::DTYPE.is_float() {
            true => bytemuck::cast(mean), // the same type
            false => T::from_real(mean).to_lane(),
        }
    }
}

/// One kind of step: what is read, how it is combined and what is written.
trait Step {
    type From: Copy;
    type Acc: Copy;
    type To: Copy;

    fn start() -> Self::Acc;
    fn widen(from: Self::From) -> Self::Acc;
    fn join(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn finish(all: Self::Acc, count: f64) -> Self::To;
}

macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident: $from:ty => $to:ty, $x:ident => $widen:expr, ($all:ident, $count:pat) => $finish:expr;)*) => {$(
        $(#[$doc])*
        struct $name<T, R>(PhantomData<(T, R)>);

        impl<T: Element, R: Reduce<T>> Step for $name<T, R> {
            type From = $from;
            type Acc = R::Acc;
            type To = $to;

            #[inline(always)]
            fn start() -> R::Acc {
                R::start()
            }
            #[inline(always)]
            fn widen($x: $from) -> R::Acc {
                $widen
            }
            #[inline(always)]
            fn join(a: R::Acc, b: R::Acc) -> R::Acc {
                R::join(a, b)
            }
            #[inline(always)]
            fn finish($all: R::Acc, $count: f64) -> $to {
                $finish
            }
        }
    )*};
}

steps! {
    /// Whole windows.
    AtOnce: T => T::Lane, x => R::of(x.to_lane()), (all, count) => R::finish(all, count);
    /// The rows of columns in memory.
    Rows: T => R::Acc, x => R::of(x.to_lane()), (all, _) => all;
    /// The rows of columns in scratch memory.
    WidenedRows: T::Lane => R::Acc, x => R::of(x), (all, _) => all;
    /// The columns of windows.
    Columns: R::Acc => T::Lane, x => x, (all, count) => R::finish(all, count);
}

impl<T: Element, R: Reduce<T>> Body for AtOnce<T, R> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(job: Job) {
        let Job { k, row, columns: [first, end], channels, .. } = job;
        let along = k.input_strides[1];
        for column in first..end {
            let span = k.columns[column];
            let at = (span.first as isize).wrapping_sub(job.from as isize).wrapping_mul(along);
            let from = job.input.cast::<T>().wrapping_offset(at);
            let to = job.to.cast::<T::Lane>().wrapping_offset((column - first) as isize * job.stride);
            let steps = [job.down, along.wrapping_mul(k.dilation[1] as isize)];
            // SAFETY: guaranteed by the caller.
            unsafe { fold::<Self>(from, steps, [row.len, span.len], to, channels, divisor(row, span)) };
        }
    }
}

/// Reduces the rows of all columns that are covered.
///
/// # Safety
///
/// As for [`Body::run`].
#[inline(always)]
unsafe fn reduce_rows<S: Step>(job: Job) {
    for run in 0..job.runs {
        let from = job.input.cast::<S::From>().wrapping_offset(run as isize * job.apart);
        let to = job.line.cast::<S::To>().wrapping_add(run * job.run);
        // SAFETY: guaranteed by the caller.
        unsafe { fold::<S>(from, [job.down, 0], [job.row.len, 1], to, job.run, 1.0) };
    }
}

impl<T: Element, R: Reduce<T>> Body for Rows<T, R> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(job: Job) {
        // SAFETY: guaranteed by the caller.
        unsafe { reduce_rows::<Self>(job) };
    }
}

impl<T: Element, R: Reduce<T>> Body for WidenedRows<T, R> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(job: Job) {
        // SAFETY: guaranteed by the caller.
        unsafe { reduce_rows::<Self>(job) };
    }
}

impl<T: Element, R: Reduce<T>> Body for Columns<T, R> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(job: Job) {
        let Job { k, row, columns: [first, end], channels, .. } = job;
        let step = (k.dilation[1] * channels) as isize;
        let mut column = first;
        while column < end {
            let span = k.columns[column];
            // Equal windows next to each other, whose results are too, are reduced together.
            let mut together = 1;
            if k.stride == 1 && job.stride == channels as isize {
                let equal = |other: &Span| other.len == span.len && other.count == span.count;
                let follows = |other: &Span, by: usize| other.first == span.first + by;
                while column + together < end
                    && equal(&k.columns[column + together])
                    && follows(&k.columns[column + together], together)
                {
                    together += 1;
                }
            }
            let from = span.first.wrapping_sub(job.from).wrapping_mul(channels);
            let from = job.line.cast::<R::Acc>().cast_const().wrapping_add(from);
            let to = job.to.cast::<T::Lane>().wrapping_offset((column - first) as isize * job.stride);
            // SAFETY: guaranteed by the caller.
            unsafe {
                fold::<Self>(from, [step, 0], [span.len, 1], to, together * channels, divisor(row, span))
            };
            column += together;
        }
    }
}

/// The number of elements that a mean counts; the sum of none is zero.
#[inline(always)]
fn divisor(row: Span, column: Span) -> f64 {
    (row.count * column.count).max(1) as f64
}

/// Combines elements that are steps apart, for each of `len` neighbours.
///
/// # Safety
///
/// All of them can be read, and the results written; elements need not be aligned.
#[inline(always)]
unsafe fn fold<S: Step>(
    from: *const S::From,
    steps: [isize; 2],
    taps: [usize; 2],
    to: *mut S::To,
    len: usize,
    count: f64,
) {
    let mut at = 0;
    // SAFETY: guaranteed by the caller.
    unsafe {
        while at + 32 <= len {
            chunk::<S, 32>(from.wrapping_add(at), steps, taps, to.add(at), count);
            at += 32;
        }
        while at + 8 <= len {
            chunk::<S, 8>(from.wrapping_add(at), steps, taps, to.add(at), count);
            at += 8;
        }
        while at < len {
            chunk::<S, 1>(from.wrapping_add(at), steps, taps, to.add(at), count);
            at += 1;
        }
    }
}

/// As [`fold`], for a number of neighbours that is known when it is compiled.
///
/// # Safety
///
/// As for that.
#[inline(always)]
unsafe fn chunk<S: Step, const N: usize>(
    from: *const S::From,
    steps: [isize; 2],
    taps: [usize; 2],
    to: *mut S::To,
    count: f64,
) {
    let mut all = [S::start(); N];
    let mut row = 0;
    while row < taps[0] {
        let end = taps[0].min(row + RUN);
        let mut some = [S::start(); N];
        while row < end {
            for column in 0..taps[1] {
                let at = (row as isize).wrapping_mul(steps[0]);
                let at = at.wrapping_add((column as isize).wrapping_mul(steps[1]));
                let from = from.wrapping_offset(at);
                for (i, sum) in some.iter_mut().enumerate() {
                    // SAFETY: guaranteed by the caller.
                    *sum = S::join(*sum, S::widen(unsafe { from.add(i).read_unaligned() }));
                }
            }
            row += 1;
        }
        for (all, some) in all.iter_mut().zip(some) {
            *all = S::join(*all, some);
        }
    }
    for (i, all) in all.into_iter().enumerate() {
        // SAFETY: guaranteed by the caller.
        unsafe { to.add(i).write_unaligned(S::finish(all, count)) };
    }
}

#[cfg(test)]
mod tests;
