//! Runs two-dimensional convolutions.
//!
//! A convolution is a product of patches and filters: a patch is what the taps of a filter see from one position, in
//! the order of rows, columns and channels, with zeros where they look into the padding. A task packs the patches of
//! some positions and some filters, block by block along the patch, and multiplies them as matrices. Where every
//! channel has one filter of its own, channels lie side by side instead and each tap is multiplied with all.

use std::marker::PhantomData;
use std::ops::Range;

use max_core::kernel::Conv2d;
use max_core::{Element, Result, bail, dispatch};

use crate::matmul::{
    Cut, DEPTH, Ending, Kernels, Matrix, Micro, Places, ROW, count, multiply, pack, pack_right_rows,
};
use crate::scratch::{bytes, pieces};
use crate::simd::{Isa, versions};
use crate::{Memory, Pool};

/// About how many positions and filters a task computes.
const POSITIONS: usize = 168;
const FILTERS: usize = 128;

/// How many channels with a filter of their own a task computes.
const CHANNELS: usize = 64;

/// A convolution that is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedConv {
    /// Batch, height, width and filters.
    out: [usize; 4],
    /// Height and width.
    input_size: [usize; 2],
    filter_size: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    padding: [usize; 2],
    groups: usize,
    /// Channels and filters of a group.
    channels: usize,
    filters: usize,
    /// The images, and the strides of height, width and channels.
    input: Places,
    input_strides: [isize; 3],
    filter: Places,
    filter_strides: [isize; 4],
    ending: Ending,
    run: unsafe fn(&PreparedConv, &[Memory], &Pool),
}

impl PreparedConv {
    pub(crate) fn new(k: &Conv2d<i64>) -> Result<PreparedConv> {
        let dtype = k.input.dtype;
        let (groups, channels) = (k.groups as i64, k.input_size[2]);
        let divides = groups > 0 && channels % groups == 0 && k.out[3] % groups == 0;
        if k.filter.dtype != dtype || !divides || k.stride.contains(&0) || k.dilation.contains(&0) {
            bail!(internal, "a convolution that cannot be: {k:?}");
        }
        for axis in 0..2 {
            // Where the last tap of the last position looks.
            let reach = |at: i64, step: usize| i128::from(Ord::max(at, 1) - 1) * step as i128;
            let last = reach(k.out[axis + 1], k.stride[axis]) + reach(k.filter_size[axis], k.dilation[axis]);
            if last > i128::from(i64::MAX) || k.padding[axis] > i64::MAX as usize {
                bail!(internal, "a convolution reaches too far: {k:?}");
            }
        }
        count(&k.out)?;
        count(&[k.filter_size[0], k.filter_size[1], channels])?;
        let depthwise = channels == groups && k.out[3] == groups;
        Ok(PreparedConv {
            out: k.out.map(|size| size as usize),
            input_size: [k.input_size[0] as usize, k.input_size[1] as usize],
            filter_size: k.filter_size.map(|size| size as usize),
            stride: k.stride,
            dilation: k.dilation,
            padding: k.padding,
            groups: k.groups,
            channels: (channels / groups) as usize,
            filters: (k.out[3] / groups) as usize,
            input: Places::new(&k.input, &k.out[..1]),
            input_strides: std::array::from_fn(|axis| k.input.strides[axis + 1] as isize),
            filter: Places::new(&k.filter, &[]),
            filter_strides: std::array::from_fn(|axis| k.filter.strides[axis] as isize),
            ending: Ending::new(&k.epilogue, dtype)?,
            run: dispatch!(dtype, T => if depthwise { run_depthwise::<T> } else { run::<T> }),
        })
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        if !self.out.contains(&0) {
            // SAFETY: the caller vouches.
            unsafe { (self.run)(self, memory, pool) };
        }
        Ok(())
    }

    /// What a tap sees along an axis from a position, if it is not in the padding.
    fn source(&self, axis: usize, at: usize, tap: usize) -> Option<usize> {
        let padded = at * self.stride[axis] + tap * self.dilation[axis];
        padded.checked_sub(self.padding[axis]).filter(|&i| i < self.input_size[axis])
    }

    /// Those of some columns from which a tap does not look into the padding.
    fn valid(&self, columns: &Range<usize>, tap: usize) -> Range<usize> {
        let (ahead, stride) = (tap * self.dilation[1], self.stride[1]);
        let from = self.padding[1].saturating_sub(ahead).div_ceil(stride);
        let to = (self.padding[1] + self.input_size[1]).saturating_sub(ahead).div_ceil(stride);
        let from = from.clamp(columns.start, columns.end);
        from..to.clamp(from, columns.end)
    }

    /// Packs what a tap sees of some channels from positions side by side, as rows some distance apart.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, whose operands have this type, and the rows fit.
    unsafe fn pack_tap<T: Element>(
        &self,
        (to, distance): (*mut T::Lane, usize),
        input: *const T,
        (row, columns): (usize, &Range<usize>),
        tap: [usize; 2],
        channels: Range<usize>,
    ) {
        let [down, along, deep] = self.input_strides;
        let source = self.source(0, row, tap[0]);
        let valid = if source.is_some() { self.valid(columns, tap[1]) } else { columns.start..columns.start };
        let zero = |columns_: Range<usize>| {
            for column in columns_ {
                // SAFETY: the caller vouches for the rows.
                unsafe { to.add((column - columns.start) * distance).write_bytes(0, channels.len()) };
            }
        };
        zero(columns.start..valid.start);
        zero(valid.end..columns.end);
        if !valid.is_empty()
            && let (Some(y), Some(x)) = (source, self.source(1, valid.start, tap[1]))
        {
            let at = y as isize * down + x as isize * along + channels.start as isize * deep;
            let matrix = Matrix {
                start: input.wrapping_offset(at),
                strides: [self.stride[1] as isize * along, deep],
                size: [valid.len(), channels.len()],
            };
            // SAFETY: the caller vouches for the rows; what is valid lies inside the input.
            unsafe { pack(to.add((valid.start - columns.start) * distance), distance, matrix) };
        }
    }

    /// The parts of a patch from a place on: tap, channels, and where they lie in the block.
    fn parts(&self, block: Range<usize>) -> impl Iterator<Item = ([usize; 2], Range<usize>, usize)> {
        let (channels, width) = (self.channels, self.filter_size[1]);
        let taps = block.start / channels..block.end.div_ceil(channels);
        taps.map(move |tap| {
            let start = block.start.max(tap * channels);
            let end = block.end.min((tap + 1) * channels);
            let inside = start - tap * channels..end - tap * channels;
            ([tap / width, tap % width], inside, start - block.start)
        })
    }
}

/// How the positions of a result are cut: several short rows or a part of a long one.
struct Positions {
    rows: Cut,
    columns: Cut,
}

impl Positions {
    fn new(k: &PreparedConv, about: usize, unit: usize) -> Positions {
        let [_, height, width, _] = k.out;
        Positions {
            rows: Cut::new(height, (about / width).max(1), 1),
            columns: Cut::new(width, about, if width > about { unit } else { 1 }),
        }
    }

    fn parts(&self) -> usize {
        self.rows.parts() * self.columns.parts()
    }

    fn ranges(&self, number: usize) -> [Range<usize>; 2] {
        let columns = self.columns.parts();
        [self.rows.range(number / columns), self.columns.range(number % columns)]
    }
}

/// # Safety
///
/// The memory was checked for the kernel, whose operands have this type.
unsafe fn run<T: Element>(k: &PreparedConv, memory: &[Memory], pool: &Pool)
where
    T::Lane: Micro,
{
    let kernels = T::Lane::kernels();
    let positions = Positions::new(k, POSITIONS, kernels.tiles.len());
    let filters = Cut::new(k.filters, FILTERS, kernels.width);
    let (parts, columns) = (positions.parts(), filters.parts());
    pool.run(k.out[0] * parts * k.groups * columns, &|task| {
        let (task, filter) = (task / columns, filters.range(task % columns));
        let (task, group) = (task / k.groups, task % k.groups);
        let positions = positions.ranges(task % parts);
        // SAFETY: the caller vouches for the memory; no other task has this block.
        unsafe { block::<T>(k, kernels, memory, task / parts, group, positions, filter) };
    });
}

/// Computes a block of positions and filters of a group.
///
/// # Safety
///
/// As for `run`; nobody else has this block.
unsafe fn block<T: Element>(
    k: &PreparedConv,
    kernels: &Kernels<T::Lane>,
    memory: &[Memory],
    image: usize,
    group: usize,
    [rows, columns]: [Range<usize>; 2],
    filters: Range<usize>,
) where
    T::Lane: Micro,
{
    let positions = rows.len() * columns.len();
    let stride = filters.len().next_multiple_of(kernels.width);
    let depth = k.filter_size[0] * k.filter_size[1] * k.channels;
    let sizes = [positions * ROW, DEPTH * stride, positions * stride];
    pieces(sizes.map(bytes::<T::Lane>).iter().sum(), |scratch| {
        let [left, right, sums] = sizes.map(|size| scratch.take::<T::Lane>(size));
        let input = k.input.at(memory, image).cast::<T>();
        let filter = k.filter.at(memory, 0).cast::<T>();
        let [down, along, deep, across] = k.filter_strides;
        let filters = group * k.filters + filters.start..group * k.filters + filters.end;
        // SAFETY: the caller vouches for the operands; scratch memory has the sizes asked for.
        unsafe {
            if depth == 0 {
                sums.write_bytes(0, positions * stride);
            }
            for start in (0..depth).step_by(DEPTH) {
                let taken = DEPTH.min(depth - start);
                for (tap, channels, at) in k.parts(start..start + taken) {
                    let here = tap[0] as isize * down
                        + tap[1] as isize * along
                        + channels.start as isize * deep
                        + filters.start as isize * across;
                    let matrix = Matrix {
                        start: filter.wrapping_offset(here).cast_const(),
                        strides: [deep, across],
                        size: [channels.len(), filters.len()],
                    };
                    pack_right_rows(kernels, (right, taken, at), matrix);
                    let first = group * k.channels;
                    for (number, row) in rows.clone().enumerate() {
                        let to = left.add(number * columns.len() * ROW + at);
                        let channels = first + channels.start..first + channels.end;
                        k.pack_tap((to, ROW), input, (row, &columns), tap, channels);
                    }
                }
                let size = [positions, taken, filters.len()];
                let (left, right) =
                    ((left.cast_const(), ROW as isize), (right.cast_const(), taken * kernels.width));
                multiply(kernels, size, left, right, (sums, stride as isize), start > 0);
            }
            for (number, row) in rows.enumerate() {
                let product = (sums.add(number * columns.len() * stride).cast_const(), stride);
                let outer = image * k.out[1] + row;
                k.ending.deliver(memory, outer, columns.clone(), filters.clone(), product);
            }
        }
    });
}

/// # Safety
///
/// The memory was checked for the kernel, whose operands have this type and whose groups have one channel and one
/// filter each.
unsafe fn run_depthwise<T: Element>(k: &PreparedConv, memory: &[Memory], pool: &Pool)
where
    T::Lane: Micro,
{
    let positions = Positions::new(k, POSITIONS, 1);
    let channels = Cut::new(k.groups, CHANNELS, CHANNELS);
    let (parts, columns) = (positions.parts(), channels.parts());
    let add = version::<AddProducts<T::Lane>>(Isa::best());
    pool.run(k.out[0] * parts * columns, &|task| {
        let (task, channels) = (task / columns, channels.range(task % columns));
        let (image, [rows, columns]) = (task / parts, positions.ranges(task % parts));
        let sizes = [columns.len() * CHANNELS, CHANNELS, columns.len() * CHANNELS];
        pieces(sizes.map(bytes::<T::Lane>).iter().sum(), |scratch| {
            let [left, right, sums] = sizes.map(|size| scratch.take::<T::Lane>(size));
            let input = k.input.at(memory, image).cast::<T>();
            let filter = k.filter.at(memory, 0).cast::<T>();
            let [down, along, _, across] = k.filter_strides;
            for row in rows {
                // SAFETY: the caller vouches for the operands; scratch memory has the sizes asked for.
                unsafe {
                    sums.write_bytes(0, sizes[2]);
                    for tap in 0..k.filter_size[0] * k.filter_size[1] {
                        let tap = [tap / k.filter_size[1], tap % k.filter_size[1]];
                        let here = tap[0] as isize * down
                            + tap[1] as isize * along
                            + channels.start as isize * across;
                        let weights = Matrix {
                            start: filter.wrapping_offset(here).cast_const(),
                            strides: [0, across],
                            size: [1, channels.len()],
                        };
                        pack(right, CHANNELS, weights);
                        k.pack_tap((left, CHANNELS), input, (row, &columns), tap, channels.clone());
                        add(sums.cast(), left.cast_const().cast(), right.cast_const().cast(), columns.len());
                    }
                    let product = (sums.cast_const(), CHANNELS);
                    let outer = image * k.out[1] + row;
                    k.ending.deliver(memory, outer, columns.clone(), channels.clone(), product);
                }
            }
        });
    });
}

trait Body {
    /// Adds to rows of [`CHANNELS`] sums the products of rows and one row of weights.
    ///
    /// # Safety
    ///
    /// The pieces of memory hold the rows.
    unsafe fn run<const FMA: bool>(sums: *mut u8, rows: *const u8, weights: *const u8, count: usize);
}

versions!(version: Body, fn(sums: *mut u8, rows: *const u8, weights: *const u8, count: usize));

struct AddProducts<L>(PhantomData<L>);

impl<L: Micro> Body for AddProducts<L> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(sums: *mut u8, rows: *const u8, weights: *const u8, count: usize) {
        let (sums, rows) = (sums.cast::<[L; CHANNELS]>(), rows.cast::<[L; CHANNELS]>());
        // SAFETY: the caller vouches.
        unsafe {
            let weights = weights.cast::<[L; CHANNELS]>().read();
            for i in 0..count {
                let (mut sum, row) = (sums.add(i).read(), rows.add(i).read());
                for j in 0..CHANNELS {
                    sum[j] = sum[j].add(row[j].mul(weights[j]));
                }
                sums.add(i).write(sum);
            }
        }
    }
}

#[cfg(test)]
mod tests;
