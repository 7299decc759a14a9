//! Runs two-dimensional convolutions.
//!
//! A window is the input that the taps of a filter read for one output position, in the order of rows, columns and
//! channels, with zeros in the padding. Convolutions are implicit GEMMs of windows and filters (`gemm`), or, if groups
//! are too small for that, sums over taps for filters side by side (`grouped`). Both read windows in place: in the
//! image if possible, else in bands of it (`band`), with the tiles of `tile`.

mod band;
mod cuts;
mod gemm;
mod grouped;
mod result;
#[cfg(target_arch = "x86_64")]
mod rotate;
mod tile;

use std::any::TypeId;
use std::ops::Range;

use max_core::kernel::Conv2d;
use max_core::scalar::Lane;
use max_core::{Element, Result, bail, dispatch};

use crate::matmul::{Places, count};
use crate::{Memory, Pool};
use band::Left;
pub(crate) use result::Outcome;
use tile::{Tiled, Window};

/// How many empty sums are delivered together.
const ZEROS: usize = 1024;

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
    result: Outcome,
    run: unsafe fn(&PreparedConv, &[Memory], &Pool),
}

impl PreparedConv {
    pub(crate) fn new(k: &Conv2d<i64>) -> Result<PreparedConv> {
        let dtype = k.input.dtype;
        let (groups, channels) = (k.groups as i64, k.input_size[2]);
        let divides = groups > 0 && k.depth.checked_mul(groups) == Some(channels) && k.out[3] % groups == 0;
        if k.filter.dtype != dtype || !divides || k.stride.contains(&0) || k.dilation.contains(&0) {
            bail!(internal, "an invalid convolution: {k:?}");
        }
        for axis in 0..2 {
            // The input position of the last tap at the last output position must not overflow.
            let reach = |at: i64, step: usize| i128::from(Ord::max(at, 1) - 1) * step as i128;
            let last = reach(k.out[axis + 1], k.stride[axis]) + reach(k.filter_size[axis], k.dilation[axis]);
            if last > i128::from(i64::MAX) || k.padding[axis] > i64::MAX as usize {
                bail!(internal, "the input positions of a convolution overflow: {k:?}");
            }
        }
        count(&k.out)?;
        count(&[k.filter_size[0], k.filter_size[1], channels])?;
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
            result: Outcome::new(&k.epilogue, dtype)?,
            run: dispatch!(dtype, T => run::<T>),
        })
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

    /// All taps.
    fn taps(&self) -> [Range<usize>; 2] {
        self.filter_size.map(|size| 0..size)
    }

    /// Those of some taps that are not in the padding at a position.
    fn taps_in_bounds(&self, axis: usize, position: usize, taps: &Range<usize>) -> Range<usize> {
        let (padding, at) = (self.padding[axis] as isize, (position * self.stride[axis]) as isize);
        let before = |edge: isize| usize::try_from(edge).map_or(0, |edge| edge.div_ceil(self.dilation[axis]));
        let from = before(padding - at).clamp(taps.start, taps.end);
        let to = before((self.input_size[axis] as isize).saturating_add(padding) - at);
        from..to.clamp(from, taps.end)
    }

    /// Those of some positions at which no tap is in the padding.
    fn interior(&self, axis: usize, positions: &Range<usize>) -> Range<usize> {
        let (padding, stride) = (self.padding[axis], self.stride[axis]);
        let reach = (self.filter_size[axis].max(1) - 1) * self.dilation[axis];
        let from = padding.div_ceil(stride).clamp(positions.start, positions.end);
        let to = (padding + self.input_size[axis]).saturating_sub(reach).div_ceil(stride);
        from..to.clamp(from, positions.end)
    }

    /// Whether channels can be read directly from the image: contiguous, aligned and without widening.
    fn reads_lanes<T: Element>(&self, memory: &[Memory]) -> bool {
        TypeId::of::<T>() == TypeId::of::<T::Lane>()
            && self.input_strides[2] == 1
            && self.input.at(memory, 0).addr().is_multiple_of(align_of::<T::Lane>())
    }

    /// The windows of some taps and channels at some positions, in the image; rows and runs in the padding must not be
    /// read.
    fn in_place<T: Element>(
        &self,
        image: *const T,
        positions: &[Range<usize>; 2],
        taps: &[Range<usize>; 2],
        channels: &Range<usize>,
    ) -> Left<T::Lane> {
        let [down, along, deep] = self.input_strides;
        let at = |axis: usize| {
            let padded = positions[axis].start * self.stride[axis] + taps[axis].start * self.dilation[axis];
            padded as isize - self.padding[axis] as isize
        };
        let here = at(0)
            .wrapping_mul(down)
            .wrapping_add(at(1).wrapping_mul(along))
            .wrapping_add((channels.start as isize).wrapping_mul(deep));
        let window = Window {
            rows: taps[0].len(),
            row: down.wrapping_mul(self.dilation[0] as isize),
            runs: taps[1].len(),
            run: along.wrapping_mul(self.dilation[1] as isize),
            depth: channels.len(),
            skip: 0,
        };
        Left {
            start: image.wrapping_offset(here).cast(),
            position: along.wrapping_mul(self.stride[1] as isize),
            line: down.wrapping_mul(self.stride[0] as isize),
            window,
        }
    }
}

/// # Safety
///
/// The memory was checked for the kernel, whose operands have type `T`.
unsafe fn run<T: Element>(k: &PreparedConv, memory: &[Memory], pool: &Pool)
where
    T::Lane: Tiled,
{
    // SAFETY: guaranteed by the caller.
    unsafe {
        match grouped::suits(k, T::Lane::tiles().lanes) {
            _ if k.filter_size.contains(&0) || k.channels == 0 => zeros::<T>(k, memory, pool),
            true => grouped::run::<T>(k, memory, pool),
            false => gemm::run::<T>(k, memory, pool),
        }
    }
}

/// Runs the epilogue on empty sums.
///
/// # Safety
///
/// The memory was checked for the kernel, whose operands have type `T`.
unsafe fn zeros<T: Element>(k: &PreparedConv, memory: &[Memory], pool: &Pool) {
    let [images, lines, long, filters] = k.out;
    pool.run(images * lines, &|outer| {
        let pixel = vec![T::Lane::splat(0.0); filters.min(ZEROS)];
        for (column, first) in (0..long).flat_map(|i| (0..filters).step_by(ZEROS).map(move |j| (i, j))) {
            let (columns, filters) = (column..column + 1, first..filters.min(first + ZEROS));
            // SAFETY: guaranteed by the caller; there are at least as many zeros as filters.
            unsafe { k.result.deliver(memory, outer, columns, filters, (pixel.as_ptr(), ZEROS)) };
        }
    });
}

#[cfg(test)]
mod tests;
