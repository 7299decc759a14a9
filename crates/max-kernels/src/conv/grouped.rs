//! Convolutions of many small groups: every filter has few channels of its own.
//!
//! Filters are side by side in registers, and so are their inputs: channels as they are if every channel has one
//! filter, or rotated within their registers if groups have as many filters as channels; otherwise channels are spread
//! in a band, repeated once per filter.

use std::ops::Range;

use max_core::Element;

use super::PreparedConv;
use super::band::{Axis, Band, Left};
use super::gemm::{Packed, SHARED};
use super::tile::{Room, Tile, Tiled, Tiles, place};
use crate::matmul::{Cut, Matrix, pack};
use crate::scratch::{bytes, pieces};
use crate::{Memory, Pool};

/// Roughly how many filters and columns a task computes, and the most elements of its band.
const FILTERS: usize = 256;
const COLUMNS: usize = 224;
const BAND: usize = 1 << 16;

/// The fewest rows of a task when rows are split to give every thread something to do.
const ROWS: usize = 4;

/// The longest windows.
const DEPTH: usize = 600;

/// Whether groups are so small that their filters do not fill registers of `lanes` lanes.
pub(super) fn suits(k: &PreparedConv, lanes: usize) -> bool {
    let depth = k.filter_size[0] * k.filter_size[1] * k.channels;
    k.groups > 1 && 2 * k.filters <= lanes && (1..=DEPTH).contains(&depth)
}

/// How filters read the channels of their group.
#[derive(Clone, Copy)]
enum ChannelAccess<L: 'static> {
    /// Each filter has one channel to itself.
    Own,
    /// A group has as many channels as filters, and registers are rotated so that each filter meets all of them.
    Rotated(&'static [Tile<L>]),
    /// Channels are repeated in memory, once per filter.
    Spread,
}

/// A running convolution.
struct Grouped<'a, L: 'static> {
    k: &'a PreparedConv,
    tiles: &'static Tiles<L>,
    memory: &'a [Memory<'a>],
    access: ChannelAccess<L>,
    in_place: bool,
    /// The filters, packed, if tasks share them.
    packed: Option<Packed<L>>,
}

/// # Safety
///
/// The memory was checked for the kernel, whose operands have type `T`, and [`suits`] holds.
pub(super) unsafe fn run<T: Element>(k: &PreparedConv, memory: &[Memory], pool: &Pool)
where
    T::Lane: Tiled,
{
    let tiles = T::Lane::tiles();
    let access = match (k.channels, k.filters) {
        (1, 1) => ChannelAccess::Own,
        (channels, filters) if channels == filters => {
            T::Lane::rotated(filters).map_or(ChannelAccess::Spread, ChannelAccess::Rotated)
        }
        _ => ChannelAccess::Spread,
    };
    let [images, lines, long, total] = k.out;
    let aligned = total.is_multiple_of(tiles.lanes) && !matches!(access, ChannelAccess::Spread);
    let in_place = aligned && k.reads_lanes::<T>(memory);
    let mut task = Grouped { k, tiles, memory, access, in_place, packed: None };
    let width = 2 * tiles.lanes;
    let unit = if width.is_multiple_of(k.filters) { width } else { width * k.filters };
    let filters = Cut::new(total, (FILTERS / task.spread()).max(unit), unit);
    let band = |rows: usize, columns: usize| {
        let (rows, columns) = (task.axis(0, &(0..rows)), task.axis(1, &(0..columns)));
        let pixels = rows.len().saturating_mul(columns.len());
        pixels.saturating_mul(task.spread() * filters.range(0).len())
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
    let elements = task.depth() * total.next_multiple_of(tiles.lanes);
    let share = elements <= SHARED;
    pieces(bytes::<T::Lane>(if share { elements } else { 0 }), |scratch| {
        if share {
            let packed = scratch.take::<T::Lane>(elements);
            for part in 0..filters.parts() {
                let some = filters.range(part);
                // SAFETY: guaranteed by the caller; there is room for all filters.
                unsafe { task.pack::<T>(packed.add(some.start * task.depth()), &some) };
            }
            task.packed = Some(Packed(packed));
        }
        let parts = [rows.parts(), columns.parts(), filters.parts()];
        pool.run(images * parts[0] * parts[1] * parts[2], &|number| {
            let (number, filters) = (number / parts[2], filters.range(number % parts[2]));
            let (number, columns) = (number / parts[1], columns.range(number % parts[1]));
            let (image, rows) = (number / parts[0], rows.range(number % parts[0]));
            // SAFETY: guaranteed by the caller; no other task writes this block.
            unsafe { task.block::<T>(image, [rows, columns], filters) };
        });
    });
}

impl<L: Tiled> Grouped<'_, L> {
    fn axis(&self, axis: usize, positions: &Range<usize>) -> Axis {
        Axis::new(self.k, axis, positions, &(0..self.k.filter_size[axis]))
    }

    /// The number of elements of a band's pixel per filter.
    fn spread(&self) -> usize {
        if matches!(self.access, ChannelAccess::Spread) { self.k.channels } else { 1 }
    }

    /// The number of rotations of an element of a band, each with its own weight.
    fn rotations(&self) -> usize {
        if matches!(self.access, ChannelAccess::Rotated(_)) { self.k.channels } else { 1 }
    }

    /// The number of weights of a filter.
    fn depth(&self) -> usize {
        self.k.filter_size[0] * self.k.filter_size[1] * self.k.channels
    }

    /// Computes a block of positions and filters.
    ///
    /// # Safety
    ///
    /// As for `run`; no other task writes this block, and its filters start at the start of a group.
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
        let axes = [0, 1].map(|axis| self.axis(axis, &positions[axis]));
        let band = Band::new(axes[0], axes[1], self.spread() * stride, size_of::<L>());
        let source = Band::new(axes[0], axes[1], channels.len(), size_of::<L>());
        let sizes = [
            if self.in_place { 0 } else { band.len() },
            if matches!(self.access, ChannelAccess::Spread) { source.len() } else { 0 },
            if self.packed.is_some() { 0 } else { self.depth() * stride },
            columns.len() * stride,
        ];
        pieces(sizes.map(bytes::<L>).iter().sum(), |scratch| {
            let [room, unspread, weights, sums] = sizes.map(|size| scratch.take::<L>(size));
            let input = k.input.at(memory, image).cast::<T>().cast_const();
            // SAFETY: the caller guarantees the operands and the destinations; scratch memory has the requested sizes.
            unsafe {
                let weights = match self.packed {
                    Some(packed) => packed.address().add(filters.start * self.depth()),
                    None => {
                        self.pack::<T>(weights, &filters);
                        weights
                    }
                };
                let left = if self.in_place {
                    k.in_place(input, &positions, &k.taps(), &(channels.start..channels.start + 1))
                } else {
                    if let ChannelAccess::Spread = self.access {
                        source.fill::<T>(k, unspread, input, channels);
                        let pixels = (0..band.pixels())
                            .map(|i| (room.add(i * band.pixel), unspread.add(i * source.pixel).cast_const()));
                        spread(pixels, [groups.len(), k.channels, k.filters], stride);
                    } else {
                        band.fill::<T>(k, room, input, channels);
                    }
                    band.left(room.cast_const(), self.spread())
                };
                for row in rows.clone() {
                    let outer = image * k.out[1] + row;
                    let place = k.result.place::<L>(memory, outer, [columns.start, filters.start]);
                    let to = place.unwrap_or((sums, stride as isize));
                    let (left, before) =
                        left.below(row - rows.start, &k.taps_in_bounds(0, row, &(0..k.filter_size[0])));
                    let weights = (weights.add(before * self.rotations() * stride).cast_const(), stride);
                    self.line(&left, columns, weights, filters.len(), to);
                    let product = (sums.cast_const(), stride);
                    k.result.finish(memory, outer, columns.clone(), filters.clone(), product);
                }
            }
        });
    }

    /// Packs some filters side by side, for each tap and channel.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, whose operands have type `T`, and there is room for the filters.
    unsafe fn pack<T: Element<Lane = L>>(&self, to: *mut L, filters: &Range<usize>) {
        let [down, along, deep, across] = self.k.filter_strides;
        let filter = self.k.filter.at(self.memory, 0).cast::<T>().cast_const();
        let [height, width] = self.k.filter_size;
        let (group, rotations) = (self.k.filters, self.rotations());
        let stride = filters.len().next_multiple_of(self.tiles.lanes);
        for (row, column) in (0..height).flat_map(|row| (0..width).map(move |column| (row, column))) {
            let here = row as isize * down + column as isize * along + filters.start as isize * across;
            let start = filter.wrapping_offset(here);
            let tap = to.wrapping_add((row * width + column) * self.k.channels * stride);
            // SAFETY: guaranteed by the caller.
            unsafe {
                if rotations == 1 {
                    let size = [self.k.channels, filters.len()];
                    pack(tap, stride, Matrix { start, strides: [deep, across], size });
                    continue;
                }
                for by in 0..rotations {
                    for i in 0..filters.len() {
                        let channel = (i + by) % group;
                        let weight = start.offset(channel as isize * deep + i as isize * across);
                        tap.add(by * stride + i).write(weight.read_unaligned().to_lane());
                    }
                }
            }
        }
    }

    /// Computes positions side by side.
    ///
    /// # Safety
    ///
    /// Windows and weights can be read as whole registers; the destination can be written.
    unsafe fn line(
        &self,
        left: &Left<L>,
        columns: &Range<usize>,
        (weights, step): (*const L, usize),
        filters: usize,
        (to, stride): (*mut L, isize),
    ) {
        let k = self.k;
        // At the edges of an image the taps in bounds differ from position to position; a band has zeros there.
        let inner = if self.in_place { k.interior(1, columns) } else { columns.clone() };
        let most = self.tiles.own[0].len();
        let strips = inner.len().div_ceil(most);
        let strip =
            |i: usize| inner.start + i * inner.len() / strips..inner.start + (i + 1) * inner.len() / strips;
        let edges =
            (columns.start..inner.start).chain(inner.end..columns.end).map(|column| column..column + 1);
        for some in edges.chain((0..strips).map(strip)) {
            let at = some.start - columns.start;
            let whole = 0..k.filter_size[1];
            let in_bounds = if self.in_place { k.taps_in_bounds(1, some.start, &whole) } else { whole };
            let (left, before) = left.beside(at, &in_bounds);
            let weights = (weights.wrapping_add(before * self.rotations() * step), step as isize);
            let to = (to.wrapping_offset(at as isize * stride), stride);
            // SAFETY: guaranteed by the caller.
            unsafe { self.strip(&left, some.len(), weights, filters, to) };
        }
    }

    /// Computes up to as many positions side by side as a tile has.
    ///
    /// # Safety
    ///
    /// As for `line`.
    unsafe fn strip(
        &self,
        left: &Left<L>,
        positions: usize,
        (weights, step): (*const L, isize),
        filters: usize,
        (to, stride): (*mut L, isize),
    ) {
        let lanes = self.tiles.lanes;
        let width = if matches!(self.access, ChannelAccess::Rotated(_)) { lanes } else { 2 * lanes };
        for column in (0..filters).step_by(width) {
            let taken = width.min(filters - column);
            let registers = taken.div_ceil(lanes);
            let tile = match self.access {
                ChannelAccess::Rotated(tiles) => tiles[positions - 1],
                _ => self.tiles.own[registers - 1][positions - 1],
            };
            let from = (left.start.wrapping_add(column), left.position);
            let (weights, to) = ((weights.wrapping_add(column), step), (to.wrapping_add(column), stride));
            // SAFETY: guaranteed by the caller; a tile that exceeds the destination is computed in a temporary.
            unsafe {
                if taken == registers * lanes {
                    tile(&left.window, from, weights, to, false);
                } else {
                    let mut room = Room::default();
                    let aside = room.lanes::<L>();
                    tile(&left.window, from, weights, (aside, width as isize), false);
                    place(to, (aside, width), [positions, taken], false);
                }
            }
        }
    }
}

/// Spreads pixels: for each channel of a group, the inputs of the filters of all groups.
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
            // SAFETY: guaranteed by the caller.
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

/// Writes each of `count` elements `N` times.
///
/// # Safety
///
/// The elements can be read, and all copies written.
#[inline(always)]
unsafe fn copies<L: Copy, const N: usize>(to: *mut L, from: *const L, count: usize, apart: usize) {
    for i in 0..count {
        // SAFETY: guaranteed by the caller.
        unsafe { to.add(i * N).cast::<[L; N]>().write([*from.add(i * apart); N]) };
    }
}
