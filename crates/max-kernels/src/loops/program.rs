//! The code of a loop as a list of calls on tiles.
//!
//! A value is constant, per row or per element. Constants are computed here, once. What remains runs in stages: the
//! per-row code of a stage uses the results of the reductions of earlier stages, then a pass over the elements feeds
//! its own reductions. A per-element value that a later stage needs is kept for the whole row, or recomputed if that
//! would take too much memory; loads and positions are always repeated. All stores wait for the last stage, after
//! every use of a load of that stage, so that a loop may write where it reads.
//!
//! Where tiles go along the reduced axis, a per-row value is a group of equal elements; where they go across it, it
//! is a tile like any other.

mod build;

pub(super) use build::build;

use max_core::kernel::Instr;

use super::best::Best;
use crate::scratch::Line;
use crate::tile::{IndexFn, LoadFn, ReduceFn, Reducer, StoreFn, TileFn};

/// Names a place for a value: a position in [`Program::placements`].
pub(super) type Entry = u32;

/// Where a value is stored: its offset in the region, in bytes per element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placement {
    pub(super) region: Region,
    pub(super) start: usize,
}

/// The kinds of memory that hold values. All values of a region have the same number of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Region {
    /// Constants: a group.
    Image,
    /// Per-row values: a group or a tile.
    Row,
    /// The results of reductions, and the rest of their stacks: level after level, each with the same layout.
    Total,
    /// Tiles of a pass.
    Tile,
    /// Destination tiles of loads that are mostly used in place.
    Home,
    /// Values of whole rows, kept for later stages.
    Wide,
}

pub(super) const REGIONS: usize = 6;

/// A call on a tile.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Apply {
        f: TileFn,
        dst: Entry,
        args: [Entry; 3],
    },
    Load {
        f: LoadFn,
        dst: Entry,
        view: u32,
        size: u32,
        direct: bool,
        padded: bool,
    },
    /// The positions that a view names.
    Index {
        f: IndexFn,
        dst: Entry,
        view: u32,
    },
    /// Moves a kept value to the tile of the pass; elements have this many bytes.
    Seat {
        entry: Entry,
        size: u32,
    },
    Add {
        f: ReduceFn,
        acc: Entry,
        src: Entry,
    },
    Offer {
        best: Best,
        acc: [Entry; 2],
        src: Entry,
    },
    Store {
        f: StoreFn,
        src: Entry,
        view: u32,
        size: u32,
        direct: bool,
    },
}

/// One pass over the elements of a row.
#[derive(Clone, Debug, Default)]
pub(super) struct Stage {
    /// Before the pass, once per row.
    pub(super) row: Vec<Op>,
    /// The pass.
    pub(super) element: Vec<Op>,
    pub(super) accumulators: Vec<Accumulator>,
}

/// The state of a reduction: its values, and the indices of `ArgMax` and `ArgMin` second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accumulator {
    pub(super) entries: [Entry; 2],
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Along a row: lanes that are combined at its end.
    Lanes { reducer: Reducer, combine: TileFn },
    /// Across rows: a tile that elements are combined with.
    Tile { identity: Entry, copy: TileFn, combine: TileFn },
    /// Positions.
    Best(Best),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) image: Vec<Line>,
    pub(super) placements: Vec<Placement>,
    pub(super) stages: Vec<Stage>,
    /// After the last stage, once per row.
    pub(super) tail: Vec<Op>,
    /// The bytes per element of each region.
    pub(super) widths: [usize; REGIONS],
    /// The bytes per element of everything that a pass touches in scratch memory.
    pub(super) live: usize,
    /// Whether anything is computed besides loads and stores.
    pub(super) computes: bool,
}

/// What is decided about a loop before its code is generated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choices {
    pub(super) horizontal: bool,
    /// Whether values are kept for later stages.
    pub(super) keep: bool,
    pub(super) streaming: bool,
}

/// Which instructions have an effect.
pub(crate) fn live(code: &[Instr<i64>]) -> Vec<bool> {
    let mut live = vec![false; code.len()];
    for (at, instr) in code.iter().enumerate().rev() {
        live[at] |= matches!(instr, Instr::Store(..));
        if live[at] {
            instr.args().iter().for_each(|arg| live[arg.0 as usize] = true);
        }
    }
    live
}
