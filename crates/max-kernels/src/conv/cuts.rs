//! How a GEMM is split: sums into chunks, by shape alone, and results into blocks, depending on the number of threads.

use std::ops::Range;

use super::PreparedConv;
use super::band::Axis;
use super::tile::Tiled;
use crate::matmul::Cut;

/// Roughly how many products a chunk of a sum has.
const DEPTH: usize = 600;

/// The fewest channels of a chunk: a cache line of the most common type.
const CHANNELS: usize = 16;

/// Roughly the most elements of a band and of the results of a task.
const BAND: usize = 1 << 16;
const RESULTS: usize = 1 << 17;

/// With fewer positions than this, tiles take no less time.
const FEW: usize = 6;

/// Roughly the most positions of a task in a row.
const COLUMNS: usize = 448;

/// How the sums of a convolution are split.
#[derive(Clone, Copy)]
pub(super) struct Chunks {
    rows: Cut,
    columns: Cut,
    channels: Cut,
    /// The taps of a filter.
    taps: [usize; 2],
}

/// A part of the windows: some taps of some channels, and how many products come before it.
pub(super) struct Chunk {
    pub(super) taps: [Range<usize>; 2],
    pub(super) channels: Range<usize>,
    pub(super) before: usize,
}

impl Chunks {
    pub(super) fn new(k: &PreparedConv) -> Chunks {
        let taps = k.filter_size;
        let channels = Cut::new(k.channels, (DEPTH / (taps[0] * taps[1]).max(1)).max(CHANNELS), CHANNELS);
        let left = (DEPTH / channels.range(0).len().max(1)).max(1);
        let columns = Cut::new(taps[1], left, 1);
        let rows = Cut::new(taps[0], (left / columns.range(0).len().max(1)).max(1), 1);
        Chunks { rows, columns, channels, taps }
    }

    pub(super) fn parts(&self) -> usize {
        self.rows.parts() * self.columns.parts() * self.channels.parts()
    }

    pub(super) fn get(&self, number: usize) -> Chunk {
        let (number, column) = (number / self.columns.parts(), number % self.columns.parts());
        let (channel, row) = (number / self.rows.parts(), number % self.rows.parts());
        let (channels, rows, columns) =
            (self.channels.range(channel), self.rows.range(row), self.columns.range(column));
        let [height, width] = self.taps;
        let above = rows.start * width + rows.len() * columns.start;
        let before = channels.start * height * width + channels.len() * above;
        Chunk { taps: [rows, columns], channels, before }
    }
}

impl Chunk {
    pub(super) fn depth(&self) -> usize {
        self.taps[0].len() * self.taps[1].len() * self.channels.len()
    }
}

/// Splits rows, columns and filters so that threads have equal work and little is copied twice.
pub(super) fn cuts<L: Tiled>(
    k: &PreparedConv,
    chunks: &Chunks,
    in_place: bool,
    threads: usize,
) -> (Cut, Cut, Cut) {
    let tiles = L::tiles();
    let (height, width) = (tiles.shared[1].len(), 2 * tiles.lanes);
    let [images, lines, long, _] = k.out;
    let first = (chunks.parts() > 0).then(|| chunks.get(0));
    let band = |rows: usize, columns: usize| match &first {
        Some(chunk) if !in_place => {
            let axis = |axis: usize, positions: usize| Axis::new(k, axis, &(0..positions), &chunk.taps[axis]);
            axis(0, rows).len().saturating_mul(axis(1, columns).len()).saturating_mul(chunk.channels.len())
        }
        _ => 0,
    };
    let mut across = COLUMNS.min(long);
    while across > height && band(1, across) > BAND {
        across = across.div_ceil(2);
    }
    let columns = Cut::new(long, across, if across < long { height } else { 1 });
    let across = columns.range(0).len();
    let depth = k.filter_size[0] as f64 * k.filter_size[1] as f64 * k.channels as f64;
    let edges = long - k.interior(1, &(0..long)).len();
    let (mut best, mut least) = ((1, width), f64::INFINITY);
    let mut rows = lines.min(2048 / across + 1);
    loop {
        let mut parts = 1;
        loop {
            let filters = k.filters.div_ceil(parts).next_multiple_of(width).min(k.filters);
            let (band, results) = (band(rows, across), rows * across * filters);
            let fits = (band <= BAND && results <= RESULTS) || (rows == 1 && filters <= width);
            if fits {
                let uses = images * lines.div_ceil(rows) * columns.parts();
                let tasks = uses as f64 * k.groups as f64 * k.filters.div_ceil(filters) as f64;
                let copied = band as f64 * chunks.parts() as f64 / 4.0;
                let packed = if uses == 1 { depth * filters as f64 / 4.0 } else { 0.0 };
                let registers = filters.div_ceil(tiles.lanes) as f64;
                let edges = if in_place { edges * FEW.saturating_sub(rows) } else { 0 };
                let positions = (rows * across + edges) as f64;
                let task = positions * registers * depth + copied + packed + 3000.0;
                let all = depth * k.filters as f64 * k.groups as f64 / 4.0;
                let shared = if uses == 1 { 0.0 } else { all / threads as f64 };
                // The last tasks end at different times: smaller ones waste less.
                let time = ((tasks / threads as f64).ceil() + 0.25) * task + shared;
                if time < least {
                    (best, least) = ((rows, filters), time);
                }
            }
            if filters <= width {
                break;
            }
            parts *= 2;
        }
        if rows == 1 {
            break;
        }
        rows = lines.div_ceil(lines.div_ceil(rows) + 1).min(rows - 1);
    }
    (Cut::new(lines, best.0, 1), columns, Cut::new(k.filters, best.1, width))
}
