//! Bands: the part of an image that some positions read, copied to scratch memory with zeros for the padding of rows.
//! Rows that are all padding have space in the band but are never read.
//!
//! In a band the windows of neighbouring positions overlap as they do in the image, unless gaps would take more space
//! than that saves (large strides, large dilations); then every position has its taps side by side.

use std::any::TypeId;
use std::ops::Range;

use max_core::Element;

use super::PreparedConv;
use super::tile::Window;
use crate::matmul::{Matrix, pack};
use crate::tile;

/// One axis of a band: some positions and some taps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    positions: usize,
    taps: usize,
    stride: usize,
    dilation: usize,
    /// The input index of the first tap at the first position; negative in the padding.
    start: isize,
    /// The size of the image.
    size: usize,
    overlapping: bool,
}

/// Entries of an axis that are evenly spaced in the band and in the image.
struct Strand {
    first: usize,
    step: usize,
    count: usize,
    source: isize,
    source_step: usize,
}

impl Strand {
    /// The entries that are not in the padding of an image of this size.
    fn valid(&self, size: usize) -> Range<usize> {
        let before = |end: isize| usize::try_from(end).map_or(0, |end| end.div_ceil(self.source_step));
        let from = before(self.source.saturating_neg()).min(self.count);
        from..before((size as isize).saturating_sub(self.source)).clamp(from, self.count)
    }

    /// The index in the image of an entry that is not in the padding.
    fn source(&self, i: usize) -> isize {
        self.source + (i * self.source_step) as isize
    }
}

impl Axis {
    pub(super) fn new(k: &PreparedConv, axis: usize, positions: &Range<usize>, taps: &Range<usize>) -> Axis {
        let (stride, dilation) = (k.stride[axis], k.dilation[axis]);
        let (count, depth) = (positions.len(), taps.len());
        let reach = (count.max(1) - 1) * stride + (depth.max(1) - 1) * dilation;
        Axis {
            positions: count,
            taps: depth,
            stride,
            dilation,
            start: (positions.start * stride + taps.start * dilation) as isize - k.padding[axis] as isize,
            size: k.input_size[axis],
            overlapping: reach < count.saturating_mul(depth),
        }
    }

    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        match self.overlapping {
            true => (self.positions - 1) * self.stride + (self.taps - 1) * self.dilation + 1,
            false => self.positions.saturating_mul(self.taps),
        }
    }

    /// The distance between neighbouring positions.
    fn step(&self) -> usize {
        if self.overlapping { self.stride } else { self.taps }
    }

    /// The distance between neighbouring taps.
    fn hop(&self) -> usize {
        if self.overlapping { self.dilation } else { 1 }
    }

    fn strands(&self) -> impl Iterator<Item = Strand> {
        let axis = *self;
        (0..if axis.overlapping { 1 } else { axis.taps }).map(move |tap| match axis.overlapping {
            true => Strand { first: 0, step: 1, count: axis.len(), source: axis.start, source_step: 1 },
            false => Strand {
                first: tap,
                step: axis.taps,
                count: axis.positions,
                source: axis.start + (tap * axis.dilation) as isize,
                source_step: axis.stride,
            },
        })
    }
}

/// A band and the layout of its pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Band {
    rows: Axis,
    columns: Axis,
    /// The distance between pixels.
    pub(super) pixel: usize,
}

/// Windows in memory: the start of the first one, and the distances to those of the next position and of the next row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left<L> {
    pub(super) start: *const L,
    pub(super) position: isize,
    pub(super) line: isize,
    pub(super) window: Window,
}

impl Band {
    /// A band whose pixels are at least `pixel` elements apart: a little more if that keeps positions out of each
    /// other's cache sets.
    pub(super) fn new(rows: Axis, columns: Axis, pixel: usize, element: usize) -> Band {
        let apart = (columns.step() * pixel).saturating_mul(element);
        let crowded = apart.is_multiple_of(CROWDED);
        Band { rows, columns, pixel: if crowded { pixel + LINE / element } else { pixel } }
    }

    /// The number of pixels of the band.
    pub(super) fn pixels(&self) -> usize {
        self.rows.len().saturating_mul(self.columns.len())
    }

    /// The number of elements of the band.
    pub(super) fn len(&self) -> usize {
        self.pixels().saturating_mul(self.pixel)
    }

    /// The windows, with `depth` elements per pixel.
    pub(super) fn left<L>(&self, start: *const L, depth: usize) -> Left<L> {
        let line = (self.columns.len() * self.pixel) as isize;
        Left {
            start,
            position: (self.columns.step() * self.pixel) as isize,
            line: self.rows.step() as isize * line,
            window: Window {
                rows: self.rows.taps,
                row: self.rows.hop() as isize * line,
                runs: self.columns.taps,
                run: (self.columns.hop() * self.pixel) as isize,
                depth,
                skip: 0,
            },
        }
    }

    /// Copies some channels of an image, widened. Rows in the padding are left as they are.
    ///
    /// # Safety
    ///
    /// The image is that of the kernel, whose operands have type `T`, and there is room for the band.
    pub(super) unsafe fn fill<T: Element>(
        &self,
        k: &PreparedConv,
        to: *mut T::Lane,
        image: *const T,
        channels: Range<usize>,
    ) {
        let line = self.columns.len() * self.pixel;
        for strand in self.rows.strands() {
            for i in strand.valid(self.rows.size) {
                // SAFETY: guaranteed by the caller; valid rows are inside the image.
                unsafe {
                    let to = to.add((strand.first + i * strand.step) * line);
                    let down = strand.source(i).wrapping_mul(k.input_strides[0]);
                    self.fill_row::<T>(k, to, image.wrapping_offset(down), &channels);
                }
            }
        }
    }

    /// # Safety
    ///
    /// As for `fill`, with a row of the image.
    unsafe fn fill_row<T: Element>(
        &self,
        k: &PreparedConv,
        to: *mut T::Lane,
        row: *const T,
        channels: &Range<usize>,
    ) {
        let [_, along, deep] = k.input_strides;
        for strand in self.columns.strands() {
            let valid = strand.valid(self.columns.size);
            let apart = strand.step * self.pixel;
            // SAFETY: guaranteed by the caller; valid columns are inside the row.
            unsafe {
                let to = to.add(strand.first * self.pixel);
                for i in (0..valid.start).chain(valid.end..strand.count) {
                    to.add(i * apart).write_bytes(0, self.pixel);
                }
                if valid.is_empty() {
                    continue;
                }
                let here = strand
                    .source(valid.start)
                    .wrapping_mul(along)
                    .wrapping_add((channels.start as isize).wrapping_mul(deep));
                let (start, to) = (row.wrapping_offset(here), to.add(valid.start * apart));
                let along = along.wrapping_mul(strand.source_step as isize);
                let (count, depth) = (valid.len(), channels.len());
                // Contiguous pixels are one long run.
                let whole = (deep == 1 || depth == 1) && along == depth as isize && apart == depth;
                let wide = TypeId::of::<T>() == TypeId::of::<T::Lane>();
                match (whole, along == 1 && wide) {
                    (true, _) => pack(to, apart, Matrix { start, strides: [0, 1], size: [1, count * depth] }),
                    (_, true) => {
                        tile::transpose(size_of::<T>(), to.cast(), apart, start.cast(), deep, depth, count)
                    }
                    _ => pack(to, apart, Matrix { start, strides: [along, deep], size: [count, depth] }),
                }
            }
        }
    }
}

impl<L: Copy> Left<L> {
    /// The windows of the positions `lines` rows below, restricted to some of their rows, and how many weights come
    /// before those.
    pub(super) fn below(&self, lines: usize, rows: &Range<usize>) -> (Left<L>, usize) {
        let down = (lines as isize).wrapping_mul(self.line);
        let down = down.wrapping_add((rows.start as isize).wrapping_mul(self.window.row));
        let window = Window { rows: rows.len(), ..self.window };
        let before = rows.start * (window.runs * window.depth + window.skip);
        (Left { start: self.start.wrapping_offset(down), window, ..*self }, before)
    }

    /// The windows of the positions `columns` further on, restricted to some of their runs, and how many weights come
    /// before those.
    pub(super) fn beside(&self, columns: usize, runs: &Range<usize>) -> (Left<L>, usize) {
        let along = (columns as isize).wrapping_mul(self.position);
        let along = along.wrapping_add((runs.start as isize).wrapping_mul(self.window.run));
        let skip = (self.window.runs - runs.len()) * self.window.depth;
        let window = Window { runs: runs.len(), skip, ..self.window };
        (Left { start: self.start.wrapping_offset(along), window, ..*self }, runs.start * window.depth)
    }

    /// The same windows, with the runs of a row merged if they are contiguous.
    pub(super) fn joined(mut self) -> Left<L> {
        let window = &mut self.window;
        if window.run == window.depth as isize {
            (window.depth, window.runs) = (window.depth * window.runs, 1);
        }
        self
    }
}

/// Positions a multiple of this many bytes apart share few sets of the L1 cache.
pub(super) const CROWDED: usize = 2048;

/// The bytes of a cache line.
const LINE: usize = 64;
