//! Convolutions as implicit GEMMs: windows are the rows of a matrix, filters the columns of another.
//!
//! Windows are read in place, in the image or in a band of it; they overlap and are never copied one by one. Filters
//! are packed as panels of a tile's width, once for all tasks, or by the task itself if only one needs them. Long sums
//! are split into chunks of taps and channels, by shape alone; all other splits do not affect results.

use std::ops::Range;

use max_core::Element;

use super::PreparedConv;
use super::band::{Axis, Band, Left};
use super::cuts::{Chunk, Chunks, cuts};
use super::tile::{Room, Tiled, Tiles, place};
use crate::matmul::{Cut, Matrix, pack_right_rows};
use crate::scratch::{bytes, pieces};
use crate::{Memory, Pool};

/// Roughly how many panels of filters are multiplied with the same windows: they stay in the L2 cache.
const PANELS: usize = 4;

/// The most elements of packed filters that all tasks share. Larger ones are packed by tasks, chunk by chunk.
pub(super) const SHARED: usize = 1 << 22;

/// Below this many elements, one thread packs all filters.
const SMALL: usize = 1 << 14;

/// Positions a multiple of this many bytes apart share one set of the L1 cache.
const CONFLICT: isize = 4096;

/// Positions at the edges of an image have fewer taps in bounds and are computed down the rows, unless the interior is
/// narrower than a tile by more than this: then the image is copied.
const EDGES: usize = 2;

/// A running convolution: how it is split, and its memory.
struct ImplicitGemm<'a, L: 'static> {
    k: &'a PreparedConv,
    tiles: &'static Tiles<L>,
    memory: &'a [Memory<'a>],
    chunks: Chunks,
    rows: Cut,
    columns: Cut,
    filters: Cut,
    /// Whether windows are read in the image.
    in_place: bool,
    /// The filters of all groups, packed.
    packed: Option<Packed<L>>,
}

/// An address that threads share.
#[derive(Clone, Copy)]
pub(super) struct Packed<L>(pub(super) *mut L);

impl<L> Packed<L> {
    pub(super) fn address(self) -> *mut L {
        self.0
    }
}

// SAFETY: it is only an address; tasks write separate parts, and read after everything has been written.
unsafe impl<L> Send for Packed<L> {}
// SAFETY: as above.
unsafe impl<L> Sync for Packed<L> {}

/// # Safety
///
/// The memory was checked for the kernel, whose operands have type `T`.
pub(super) unsafe fn run<T: Element>(k: &PreparedConv, memory: &[Memory], pool: &Pool)
where
    T::Lane: Tiled,
{
    let tiles = T::Lane::tiles();
    let apart = k.input_strides[1].wrapping_mul(k.stride[1] as isize).wrapping_mul(size_of::<T>() as isize);
    let inner = k.interior(1, &(0..k.out[2])).len();
    let in_place = k.reads_lanes::<T>(memory)
        && (inner == k.out[2] || inner >= tiles.shared[1].len() - EDGES)
        && apart % CONFLICT != 0;
    let chunks = Chunks::new(k);
    let (rows, columns, filters) = cuts::<T::Lane>(k, &chunks, in_place, pool.threads());
    let mut gemm = ImplicitGemm { k, tiles, memory, chunks, rows, columns, filters, in_place, packed: None };
    let elements = k.groups.saturating_mul(gemm.group());
    let tasks_per_filter = k.out[0] * rows.parts() * columns.parts();
    // SAFETY: guaranteed by the caller; scratch memory has the requested size.
    unsafe {
        if tasks_per_filter == 1 || elements > SHARED {
            return gemm.tasks::<T>(pool);
        }
        pieces(bytes::<T::Lane>(elements), |scratch| {
            gemm.packed = Some(Packed(scratch.take::<T::Lane>(elements)));
            gemm.pack_all::<T>(pool);
            gemm.tasks::<T>(pool);
        });
    }
}

impl<L: Tiled> ImplicitGemm<'_, L> {
    /// The number of filters of a panel.
    fn width(&self) -> usize {
        2 * self.tiles.lanes
    }

    fn panels(&self) -> usize {
        self.k.filters.div_ceil(self.width())
    }

    /// The number of elements of the packed filters of a group.
    fn group(&self) -> usize {
        let depth = self.k.filter_size[0] * self.k.filter_size[1] * self.k.channels;
        depth.saturating_mul(self.panels() * self.width())
    }

    /// Packs some panels of a chunk of a group's filters.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, whose operands have type `T`, and there is room for the panels.
    unsafe fn pack<T: Element<Lane = L>>(
        &self,
        to: *mut L,
        group: usize,
        chunk: &Chunk,
        panels: Range<usize>,
    ) {
        let (k, width, depth) = (self.k, self.width(), chunk.depth());
        let [down, along, deep, across] = k.filter_strides;
        let filter = k.filter.at(self.memory, 0).cast::<T>().cast_const();
        let first = panels.start * width;
        let size = [chunk.channels.len(), k.filters.min(panels.end * width) - first];
        let mut top = 0;
        for row in chunk.taps[0].clone() {
            for column in chunk.taps[1].clone() {
                let here = row as isize * down
                    + column as isize * along
                    + chunk.channels.start as isize * deep
                    + (group * k.filters + first) as isize * across;
                let matrix = Matrix { start: filter.wrapping_offset(here), strides: [deep, across], size };
                // SAFETY: guaranteed by the caller.
                unsafe { pack_right_rows(L::kernels(), (to, depth, top), matrix) };
                top += size[0];
            }
        }
    }

    /// The offset of the panel of a chunk among all packed filters.
    fn offset(&self, group: usize, chunk: &Chunk, panel: usize) -> usize {
        let before = self.panels() * chunk.before + panel * chunk.depth();
        group * self.group() + before * self.width()
    }

    /// Packs the filters of all groups.
    ///
    /// # Safety
    ///
    /// As for `pack`; there is room for all.
    unsafe fn pack_all<T: Element<Lane = L>>(&self, pool: &Pool) {
        let Some(packed) = self.packed else { return };
        let (panels, chunks) = (self.panels(), self.chunks.parts());
        let all = |task: usize| {
            let (task, panel) = (task / panels, task % panels);
            let (group, chunk) = (task / chunks, self.chunks.get(task % chunks));
            // SAFETY: guaranteed by the caller; no other task packs this panel.
            unsafe {
                let to = packed.address().add(self.offset(group, &chunk, panel));
                self.pack::<T>(to, group, &chunk, panel..panel + 1);
            }
        };
        let tasks = self.k.groups * panels * chunks;
        if self.k.groups * self.group() <= SMALL { (0..tasks).for_each(all) } else { pool.run(tasks, &all) }
    }

    /// # Safety
    ///
    /// The memory was checked for the kernel, whose operands have type `T`; packed filters are packed.
    unsafe fn tasks<T: Element<Lane = L>>(&self, pool: &Pool) {
        let (rows, columns, filters) = (self.rows.parts(), self.columns.parts(), self.filters.parts());
        pool.run(self.k.out[0] * rows * columns * self.k.groups * filters, &|task| {
            let (task, filter) = (task / filters, self.filters.range(task % filters));
            let (task, group) = (task / self.k.groups, task % self.k.groups);
            let (task, column) = (task / columns, self.columns.range(task % columns));
            let (image, row) = (task / rows, self.rows.range(task % rows));
            // SAFETY: guaranteed by the caller; no other task writes this block.
            unsafe { self.block::<T>(image, group, [row, column], filter) };
        });
    }

    /// Computes a block of positions and filters of a group.
    ///
    /// # Safety
    ///
    /// As for `tasks`; no other task writes this block.
    unsafe fn block<T: Element<Lane = L>>(
        &self,
        image: usize,
        group: usize,
        positions: [Range<usize>; 2],
        filters: Range<usize>,
    ) {
        let (k, memory, width) = (self.k, self.memory, self.width());
        let [rows, columns] = &positions;
        let band = |chunk: &Chunk| {
            let axis = |axis: usize| Axis::new(k, axis, &positions[axis], &chunk.taps[axis]);
            Band::new(axis(0), axis(1), chunk.channels.len(), size_of::<L>())
        };
        let chunks = || (0..self.chunks.parts()).map(|number| self.chunks.get(number));
        let band_size =
            if self.in_place { 0 } else { chunks().map(|chunk| band(&chunk).len()).max().unwrap_or(0) };
        let deepest = chunks().map(|chunk| chunk.depth()).max().unwrap_or(0);
        let together = (PANELS * width).min(filters.len().next_multiple_of(width));
        let stride = filters.len().next_multiple_of(width);
        let global = group * k.filters + filters.start..group * k.filters + filters.end;
        let place =
            |row: usize| k.result.place::<L>(memory, image * k.out[1] + row, [columns.start, global.start]);
        let sums_size = if place(rows.start).is_some() { 0 } else { rows.len() * columns.len() * stride };
        let sizes = [band_size, if self.packed.is_some() { 0 } else { deepest * together }, sums_size];
        pieces(sizes.map(bytes::<L>).iter().sum(), |scratch| {
            let [left_room, right_room, sums] = sizes.map(|size| scratch.take::<L>(size));
            let input = k.input.at(memory, image).cast::<T>().cast_const();
            let to = |row: usize| {
                let aside = sums.wrapping_add((row - rows.start) * columns.len() * stride);
                place(row).unwrap_or((aside, stride as isize))
            };
            // SAFETY: the caller guarantees the operands and the destinations; scratch memory has the requested sizes.
            unsafe {
                for (number, chunk) in chunks().enumerate() {
                    let first = group * k.channels;
                    let channels = first + chunk.channels.start..first + chunk.channels.end;
                    let left = if self.in_place {
                        k.in_place(input, &positions, &chunk.taps, &channels)
                    } else {
                        let band = band(&chunk);
                        band.fill::<T>(k, left_room, input, channels);
                        band.left(left_room.cast_const(), chunk.channels.len())
                    };
                    for from in filters.clone().step_by(together) {
                        let some = from..filters.end.min(from + together);
                        let panel = from / width;
                        let right = match self.packed {
                            Some(packed) => packed.address().add(self.offset(group, &chunk, panel)),
                            None => {
                                let panels = panel..some.end.div_ceil(width);
                                self.pack::<T>(right_room, group, &chunk, panels);
                                right_room
                            }
                        };
                        let panel = chunk.depth() * width;
                        let right = Right { start: right.cast_const(), panel, filters: some.len() };
                        let shift = from - filters.start;
                        let to = |row: usize| (to(row).0.wrapping_add(shift), to(row).1);
                        self.lines(&left, &positions, &chunk.taps, &right, &to, number > 0);
                    }
                }
                for row in rows.clone() {
                    let product =
                        (sums.wrapping_add((row - rows.start) * columns.len() * stride).cast_const(), stride);
                    k.result.finish(memory, image * k.out[1] + row, columns.clone(), global.clone(), product);
                }
            }
        });
    }

    /// Multiplies the windows of some positions with some panels.
    ///
    /// # Safety
    ///
    /// Windows and panels can be read; the destinations of rows can be written.
    unsafe fn lines(
        &self,
        left: &Left<L>,
        [rows, columns]: &[Range<usize>; 2],
        taps: &[Range<usize>; 2],
        right: &Right<L>,
        to: &dyn Fn(usize) -> (*mut L, isize),
        add: bool,
    ) {
        let k = self.k;
        let inner = if self.in_place { k.interior(1, columns) } else { columns.clone() };
        let in_bounds = |axis: usize, position: usize| {
            let (in_bounds, first) = (k.taps_in_bounds(axis, position, &taps[axis]), taps[axis].start);
            in_bounds.start - first..in_bounds.end - first
        };
        let ((first, stride), count) = (to(rows.start), inner.len());
        // Rows are evenly spaced if all are `down` bytes apart.
        let (down, size) =
            (to(rows.start + 1).0.addr().wrapping_sub(first.addr()) as isize, size_of::<L>() as isize);
        let even = |row: usize| {
            let here = first.wrapping_byte_offset((row - rows.start) as isize * down);
            down % size == 0 && to(row).0 == here
        };
        // Rows that are contiguous and have the same taps in bounds are one long row.
        let joined = left.line == left.position * count as isize
            && count == columns.len()
            && down == stride * count as isize * size
            && rows.clone().all(|row| even(row) && in_bounds(0, row) == in_bounds(0, rows.start));
        let (lines, count) = if joined { (1, rows.len() * count) } else { (rows.len(), count) };
        // SAFETY: guaranteed by the caller.
        unsafe {
            for line in 0..lines {
                let row = rows.start + line;
                let (left, before) = left.below(line, &in_bounds(0, row));
                let (left, _) = left.beside(inner.start - columns.start, &(0..taps[1].len()));
                let to = to(row).0.wrapping_offset((inner.start - columns.start) as isize * stride);
                self.strips(&left.joined(), count, &right.from(before * self.width()), (to, stride), add);
            }
            // At the edges, consecutive rows with the same taps in bounds are computed together.
            let mut start = if inner.len() == columns.len() { rows.end } else { rows.start };
            while start < rows.end {
                let like =
                    |row: &usize| even(start) && even(*row) && in_bounds(0, *row) == in_bounds(0, start);
                let end = start + 1 + (start + 1..rows.end).take_while(like).count();
                let (left, above) = left.below(start - rows.start, &in_bounds(0, start));
                for column in (columns.start..inner.start).chain(inner.end..columns.end) {
                    let (left, before) = left.beside(column - columns.start, &in_bounds(1, column));
                    let left = Left { position: left.line, ..left.joined() };
                    let right = right.from((above + before) * self.width());
                    let to = to(start).0.wrapping_offset((column - columns.start) as isize * stride);
                    self.strips(&left, end - start, &right, (to, down / size), add);
                }
                start = end;
            }
        }
    }

    /// Multiplies the windows of positions side by side with some panels.
    ///
    /// # Safety
    ///
    /// Windows and panels can be read; the destination can be written.
    unsafe fn strips(
        &self,
        left: &Left<L>,
        positions: usize,
        right: &Right<L>,
        (to, stride): (*mut L, isize),
        add: bool,
    ) {
        let (width, strips) = (self.width(), positions.div_ceil(self.tiles.shared[1].len()));
        for strip in 0..strips {
            let some = strip * positions / strips..(strip + 1) * positions / strips;
            let from = (left.start.wrapping_offset(some.start as isize * left.position), left.position);
            let to = to.wrapping_offset(some.start as isize * stride);
            for column in (0..right.filters).step_by(width) {
                let taken = width.min(right.filters - column);
                let registers = taken.div_ceil(self.tiles.lanes);
                let tile = self.tiles.shared[registers - 1][some.len() - 1];
                let right = (right.start.wrapping_add(column / width * right.panel), width as isize);
                let to = (to.wrapping_add(column), stride);
                // SAFETY: guaranteed by the caller; a tile that exceeds the destination is computed in a temporary.
                unsafe {
                    if taken == registers * self.tiles.lanes {
                        tile(&left.window, from, right, to, add);
                    } else {
                        let mut room = Room::default();
                        let aside = room.lanes::<L>();
                        tile(&left.window, from, right, (aside, width as isize), false);
                        place(to, (aside, width), [some.len(), taken], add);
                    }
                }
            }
        }
    }
}

/// Panels of filters: their start, the distance between them, and the number of filters.
struct Right<L> {
    start: *const L,
    panel: usize,
    filters: usize,
}

impl<L> Right<L> {
    /// The same without their first elements.
    fn from(&self, before: usize) -> Right<L> {
        Right { start: self.start.wrapping_add(before), ..*self }
    }
}
