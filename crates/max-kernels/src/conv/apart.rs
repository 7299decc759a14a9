//! Convolutions of many small groups: every filter sees few channels of its own.
//!
//! Filters lie side by side in registers, and beside them in a band of the image what each of them sees: as they are
//! where every channel has one filter, and otherwise spread, a channel once for each of its filters.

use std::ops::Range;

use max_core::Element;

use super::PreparedConv;
use super::band::{Axis, Band, Left};
use super::products::{Room, place};
use super::tile::{TILE_BYTES, Tiled, Tiles};
use crate::matmul::{Cut, Matrix, pack};
use crate::scratch::{bytes, pieces};
use crate::{Memory, Pool};

/// About how many filters and columns a task computes, and the most elements of its band.
const FILTERS: usize = 256;
const COLUMNS: usize = 224;
const BAND: usize = 1 << 16;

/// The fewest rows that are cut to give every thread something to do.
const ROWS: usize = 4;

/// The longest windows.
const DEPTH: usize = 600;

/// Whether groups are so small that their filters do not fill registers of so many lanes.
pub(super) fn suits(k: &PreparedConv, lanes: usize) -> bool {
    let depth = k.filter_size[0] * k.filter_size[1] * k.channels;
    k.groups > 1 && 2 * k.filters <= lanes && (1..=DEPTH).contains(&depth)
}

/// A convolution that runs.
struct Apart<'a, L: 'static> {
    k: &'a PreparedConv,
    tiles: &'static Tiles<L>,
    memory: &'a [Memory],
    in_place: bool,
}

/// # Safety
///
/// The memory was checked for the kernel, whose operands have this type, and which suits.
pub(super) unsafe fn run<T: Element>(k: &PreparedConv, memory: &[Memory], pool: &Pool)
where
    T::Lane: Tiled,
{
    let tiles = T::Lane::tiles();
    let [images, lines, long, total] = k.out;
    let width = 2 * tiles.lanes;
    let unit = if width.is_multiple_of(k.filters) { width } else { width * k.filters };
    let filters = Cut::new(total, (FILTERS / k.channels).max(unit), unit);
    let plain = k.filters == 1 && k.channels == 1;
    let in_place = plain && total.is_multiple_of(tiles.lanes) && k.reads_lanes::<T>(memory);
    let task = Apart { k, tiles, memory, in_place };
    let band = |rows: usize, columns: usize| {
        let (rows, columns) = (task.axis(0, &(0..rows)), task.axis(1, &(0..columns)));
        let pixels = rows.len().saturating_mul(columns.len());
        pixels.saturating_mul(k.channels * filters.range(0).len())
    };
    let mut across = COLUMNS.min(long);
    while across > 1 && band(1, across) > BAND {
        across = across.div_ceil(2);
    }
    let columns = Cut::new(long, across, 1);
    let others = images * columns.parts() * filters.parts();
    let mut down = lines.div_ceil((3 * pool.threads()).div_ceil(others)).clamp(ROWS.min(lines), lines);
    while down > 1 && band(down, across) > BAND {
        down -= 1;
    }
    let rows = Cut::new(lines, down, 1);
    let parts = [rows.parts(), columns.parts(), filters.parts()];
    pool.run(images * parts[0] * parts[1] * parts[2], &|number| {
        let (number, filters) = (number / parts[2], filters.range(number % parts[2]));
        let (number, columns) = (number / parts[1], columns.range(number % parts[1]));
        let (image, rows) = (number / parts[0], rows.range(number % parts[0]));
        // SAFETY: the caller vouches; no other task has this block.
        unsafe { task.block::<T>(image, [rows, columns], filters) };
    });
}

impl<L: Tiled> Apart<'_, L> {
    fn axis(&self, axis: usize, positions: &Range<usize>) -> Axis {
        Axis::new(self.k, axis, positions, &(0..self.k.filter_size[axis]))
    }

    /// Computes a block of positions and filters.
    ///
    /// # Safety
    ///
    /// As for `run`; nobody else has this block, whose filters begin with a group.
    unsafe fn block<T: Element<Lane = L>>(
        &self,
        image: usize,
        positions: [Range<usize>; 2],
        filters: Range<usize>,
    ) {
        let (k, memory) = (self.k, self.memory);
        let [rows, columns] = &positions;
        let stride = filters.len().next_multiple_of(self.tiles.lanes);
        let groups = filters.start / k.filters..filters.end / k.filters;
        let channels = groups.start * k.channels..groups.end * k.channels;
        let plain = k.filters == 1 && k.channels == 1;
        let axes = [0, 1].map(|axis| self.axis(axis, &positions[axis]));
        let band = Band::new(axes[0], axes[1], k.channels * stride, size_of::<L>());
        let source = Band::new(axes[0], axes[1], channels.len(), size_of::<L>());
        let sizes = [
            if self.in_place { 0 } else { band.len() },
            if plain { 0 } else { source.len() },
            k.filter_size[0] * k.filter_size[1] * k.channels * stride,
            columns.len() * stride,
        ];
        pieces(sizes.map(bytes::<L>).iter().sum(), |scratch| {
            let [room, unspread, weights, sums] = sizes.map(|size| scratch.take::<L>(size));
            let input = k.input.at(memory, image).cast::<T>().cast_const();
            // SAFETY: the caller vouches for the operands and the places; scratch memory has the sizes asked for.
            unsafe {
                self.pack::<T>((weights, stride), &filters);
                let left = if self.in_place {
                    k.in_place(input, &positions, &k.taps(), &(channels.start..channels.start + 1))
                } else {
                    if plain {
                        band.fill::<T>(k, room, input, channels);
                    } else {
                        source.fill::<T>(k, unspread, input, channels);
                        let pixels = (0..band.pixels())
                            .map(|i| (room.add(i * band.pixel), unspread.add(i * source.pixel).cast_const()));
                        spread(pixels, [groups.len(), k.channels, k.filters], stride);
                    }
                    band.left(room.cast_const(), k.channels)
                };
                for row in rows.clone() {
                    let outer = image * k.out[1] + row;
                    let place = k.ending.place::<L>(memory, outer, [columns.start, filters.start]);
                    let (left, before) =
                        left.below(row - rows.start, &k.seen(0, row, &(0..k.filter_size[0])));
                    let weights = (weights.add(before * stride).cast_const(), stride);
                    let to = place.unwrap_or((sums, stride as isize));
                    // What is seen from the edges of an image differs from position to position; a band has zeros.
                    let inner = if self.in_place { k.inner(1, columns) } else { columns.clone() };
                    for column in (columns.start..inner.start).chain(inner.end..columns.end) {
                        let at = column - columns.start;
                        let (left, before) = left.beside(at, &k.seen(1, column, &(0..k.filter_size[1])));
                        let weights = (weights.0.add(before * stride), stride);
                        let to = (to.0.wrapping_offset(at as isize * to.1), to.1);
                        self.line(&left, 1, weights, filters.len(), to);
                    }
                    let at = inner.start - columns.start;
                    let (left, _) = left.beside(at, &(0..k.filter_size[1]));
                    let to = (to.0.wrapping_offset(at as isize * to.1), to.1);
                    self.line(&left, inner.len(), weights, filters.len(), to);
                    let product = (sums.cast_const(), stride);
                    k.ending.finish(memory, outer, columns.clone(), filters.clone(), product);
                }
            }
        });
    }

    /// Packs some filters side by side, for each tap and channel.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, whose operands have this type, and the filters fit.
    unsafe fn pack<T: Element<Lane = L>>(&self, (to, stride): (*mut L, usize), filters: &Range<usize>) {
        let [down, along, deep, across] = self.k.filter_strides;
        let filter = self.k.filter.at(self.memory, 0).cast::<T>().cast_const();
        let [height, width] = self.k.filter_size;
        for (row, column) in (0..height).flat_map(|row| (0..width).map(move |column| (row, column))) {
            let here = row as isize * down + column as isize * along + filters.start as isize * across;
            let matrix = Matrix {
                start: filter.wrapping_offset(here),
                strides: [deep, across],
                size: [self.k.channels, filters.len()],
            };
            // SAFETY: the caller vouches.
            unsafe { pack(to.add((row * width + column) * self.k.channels * stride), stride, matrix) };
        }
    }

    /// Computes positions side by side.
    ///
    /// # Safety
    ///
    /// Windows and weights can be read, also as whole registers; the place can be written.
    unsafe fn line(
        &self,
        left: &Left<L>,
        positions: usize,
        (weights, step): (*const L, usize),
        filters: usize,
        (to, stride): (*mut L, isize),
    ) {
        let lanes = self.tiles.lanes;
        let strips = positions.div_ceil(self.tiles.apart[1].len());
        for column in (0..filters).step_by(2 * lanes) {
            let taken = (2 * lanes).min(filters - column);
            let registers = taken.div_ceil(lanes);
            let weights = (weights.wrapping_add(column), step as isize);
            for strip in 0..strips {
                let some = strip * positions / strips..(strip + 1) * positions / strips;
                let tile = self.tiles.apart[registers - 1][some.len() - 1];
                let start = left.start.wrapping_offset(some.start as isize * left.position);
                let left_ = (start.wrapping_add(column), left.position);
                let to = (to.wrapping_offset(some.start as isize * stride).wrapping_add(column), stride);
                // SAFETY: the caller vouches; a tile that would stick out is computed aside.
                unsafe {
                    if taken == registers * lanes {
                        tile(&left.window, left_, weights, to, false);
                    } else {
                        let mut room = Room([0; TILE_BYTES]);
                        let aside = room.0.as_mut_ptr().cast::<L>();
                        tile(&left.window, left_, weights, (aside, 2 * lanes as isize), false);
                        place(to, (aside, 2 * lanes), [some.len(), taken], false);
                    }
                }
            }
        }
    }
}

/// Spreads pixels: channel by channel of a group, what the filters of all groups see.
///
/// # Safety
///
/// Pixels can be read and written.
unsafe fn spread<L: Copy>(
    pixels: impl Iterator<Item = (*mut L, *const L)>,
    [groups, channels, filters]: [usize; 3],
    stride: usize,
) {
    for (to, from) in pixels {
        for channel in 0..channels {
            // SAFETY: the caller vouches.
            unsafe {
                let (to, from) = (to.add(channel * stride), from.add(channel));
                match filters {
                    1 => copies::<L, 1>(to, from, groups, channels),
                    2 => copies::<L, 2>(to, from, groups, channels),
                    4 => copies::<L, 4>(to, from, groups, channels),
                    8 => copies::<L, 8>(to, from, groups, channels),
                    _ => {
                        for i in 0..groups * filters {
                            to.add(i).write(*from.add(i / filters * channels));
                        }
                    }
                }
            }
        }
    }
}

/// Writes each of some elements so many times.
///
/// # Safety
///
/// The elements can be read, and all copies written.
#[inline(always)]
unsafe fn copies<L: Copy, const N: usize>(to: *mut L, from: *const L, count: usize, apart: usize) {
    for i in 0..count {
        // SAFETY: the caller vouches.
        unsafe { to.add(i * N).cast::<[L; N]>().write([*from.add(i * apart); N]) };
    }
}
