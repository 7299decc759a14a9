//! How a loop is split into tiles, units, tasks, and parts of a reduced axis; and where its values are stored.
//!
//! A unit is what has its own per-row values: one row where tiles go along the reduced axis, otherwise one tile. Every
//! number here comes from the shape of the loop, so that results do not depend on which thread computes them.

use std::collections::BTreeSet;

use max_core::kernel::Loop;
use max_core::{DType, Result};

use super::program::{self, Choices, Program, REGIONS, Region};
use super::run::Base;
use super::space::{Space, View};
use crate::tile::{Arg, GROUP, RUN, levels};

/// How much of the L1 cache the tiles of a pass may take.
const TILES: usize = 20 << 10;
/// The maximum number of elements of a tile.
const LONGEST: usize = 1024;
/// The same where a pass goes across rows, and for transposed memory: longer runs of strided memory.
const LARGEST: usize = 4096;
/// From this many columns on, a tile is a part of one row.
const WIDE: usize = 512;
/// The columns of tiles that are loaded from memory that is contiguous along the rows.
const ACROSS: usize = 64;
/// How much memory values kept for later stages may take.
pub(super) const KEPT: usize = 256 << 10;
/// How much may be staged for a unit.
const STAGED: usize = 128 << 10;
/// Roughly the minimum number of elements per task, and the maximum number of tasks: long runs of memory are read
/// faster than short ones, and this many tasks keep many threads busy.
const TASK: usize = 32 << 10;
const TASKS: usize = 64;
/// Roughly the number of elements per part of a reduced axis, and the maximum number of parts.
const PART: usize = 32 << 10;
const PARTS: usize = 512;
/// With fewer units, the parts of a reduced axis are tasks.
const FEW: usize = 16;
/// Below this many steps of the program, a loop is not worth waking other threads.
const SMALL: usize = 32 << 10;
/// A loop that moves more than this does not find it in the caches of a core.
const FAR: usize = 1 << 20;
/// A loop that moves more than this cannot keep it in the caches anyway.
const STREAM: usize = 16 << 20;

/// Memory that is transposed into scratch memory for a unit, or out of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staged {
    pub(super) view: usize,
    pub(super) read: bool,
    pub(super) written: bool,
    /// Its place in scratch memory.
    pub(super) start: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(super) space: Space,
    pub(super) program: Program,
    /// The views that are used.
    pub(super) used: Vec<usize>,
    /// The size of a tile, in elements.
    pub(super) tile: usize,
    /// The rows and columns of a unit.
    pub(super) block: [usize; 2],
    /// The number of blocks down the rows and across the columns.
    pub(super) blocks: [usize; 2],
    pub(super) units: usize,
    /// The units per task.
    pub(super) task: usize,
    /// The length of a pass, of the runs whose results are combined pairwise, and of parts that are whole subtrees of
    /// that.
    pub(super) along: usize,
    pub(super) run: usize,
    pub(super) part: usize,
    /// Whether the tasks are parts; otherwise they are units.
    pub(super) split: bool,
    /// Whether other threads may help.
    pub(super) shared: bool,
    pub(super) streaming: bool,
    /// Whether the memory of the next tile is prefetched.
    pub(super) far: bool,
    /// The views that are read, and those that nothing the loop writes can change.
    pub(super) reads: Vec<bool>,
    pub(super) constant: Vec<bool>,
    pub(super) staged: Vec<Staged>,
    /// The offset of each value in scratch memory, or in the image.
    pub(super) offsets: Vec<usize>,
    /// Where regions start.
    pub(super) regions: [usize; REGIONS],
    /// The bytes per level of the reduction stacks.
    pub(super) level: usize,
    /// Where memory for loads that are transposed before they are converted starts.
    pub(super) raw: usize,
    pub(super) bytes: usize,
}

/// Which accesses are read, which are written, and which are used for positions only.
pub(super) struct Uses {
    pub(super) read: Vec<bool>,
    pub(super) written: Vec<bool>,
    pub(super) counted: Vec<bool>,
}

impl Uses {
    /// Whether an access touches memory.
    pub(super) fn touches(&self, access: usize) -> bool {
        self.read[access] || self.written[access]
    }

    /// Whether an access is used at all.
    pub(super) fn has(&self, access: usize) -> bool {
        self.touches(access) || self.counted[access]
    }
}

/// Roughly the number of elements per task of a loop.
pub(super) fn task_size(elements: usize) -> usize {
    TASK.max(elements / TASKS)
}

/// Whether parts of a reduced axis are tasks, because there are few units.
pub(super) fn splits(units: usize, elements: usize) -> bool {
    units < FEW && elements >= 4 * PART
}

impl Plan {
    pub(super) fn new(
        loop_: &Loop<i64>,
        dtypes: &[DType],
        live: &[bool],
        uses: &Uses,
        space: Space,
    ) -> Result<Plan> {
        let rows_are_long =
            |(view, written): (&View, &bool)| !written || (view.col == 1 && space.cols >= 2 * GROUP);
        let streaming = moves_much(&space, uses) && space.views.iter().zip(&uses.written).all(rows_are_long);
        let choices = Choices { horizontal: space.horizontal, keep: true, streaming };
        let program = program::build(loop_, dtypes, live, choices)?;
        let kept = program.widths[Region::Wide as usize];
        let plan = Plan::cut(space, program, uses, streaming);
        if kept > 0 && (plan.split || plan.room(Region::Wide).saturating_mul(kept) > KEPT) {
            let program = program::build(loop_, dtypes, live, Choices { keep: false, ..choices })?;
            return Ok(Plan::cut(plan.space, program, uses, streaming));
        }
        Ok(plan)
    }

    fn cut(space: Space, program: Program, uses: &Uses, streaming: bool) -> Plan {
        let used = (0..space.views.len()).filter(|&view| uses.has(view)).collect();
        let mut plan = Plan {
            used,
            tile: 0,
            block: [1, space.cols],
            blocks: [1; 2],
            units: 0,
            task: 1,
            along: if space.horizontal { space.cols } else { space.steps },
            run: if space.horizontal { RUN * GROUP } else { RUN },
            part: 1,
            split: false,
            shared: false,
            streaming,
            far: space.transposed && moved(&space, uses) > FAR,
            reads: uses.read.clone(),
            constant: constant(&space, uses),
            staged: Vec::new(),
            offsets: Vec::new(),
            regions: [0; REGIONS],
            level: 0,
            raw: 0,
            bytes: 0,
            space,
            program,
        };
        plan.choose_tile(uses);
        plan.choose_parts();
        plan.lay_out();
        plan
    }

    fn choose_tile(&mut self, uses: &Uses) {
        let Space { rows, cols, steps, horizontal, transposed, .. } = self.space;
        let widths = &self.program.widths;
        let mut live = self.program.live;
        if !horizontal {
            live += widths[Region::Total as usize];
            let stages = |view: &View| view.along == 1 && view.col > 1;
            let views = self.space.views.iter().enumerate().filter(|(_, view)| stages(view));
            self.staged = views
                .map(|(view, _)| Staged {
                    view,
                    read: uses.read[view],
                    written: uses.written[view],
                    start: 0,
                })
                .filter(|staged| staged.read || staged.written)
                .collect();
        }
        let padded = |elements: usize| elements.div_ceil(GROUP) * GROUP;
        let mut tile = (TILES / live.max(1) / GROUP * GROUP)
            .clamp(GROUP, if transposed || steps > 1 { LARGEST } else { LONGEST });
        let column: usize =
            self.staged.iter().map(|s| self.space.views[s.view].dtype.size_in_bytes() * steps).sum();
        if column > STAGED / GROUP {
            self.staged.clear();
        } else if let Some(fit) = STAGED.checked_div(column) {
            tile = tile.min(fit / GROUP * GROUP);
        }
        tile = tile.min(padded(rows.saturating_mul(cols)));
        self.tile = tile;
        self.block = if horizontal {
            [1, cols]
        } else if transposed {
            let across = cols.min(ACROSS.min(tile));
            [rows.min(tile / across), across]
        } else if cols >= WIDE.min(tile) || !self.program.computes {
            [1, cols.min(tile)]
        } else {
            // Whole groups, so that contiguous memory needs no copy.
            let whole = GROUP >> cols.trailing_zeros().min(GROUP.trailing_zeros());
            let fit = tile / cols;
            [rows.min(if fit >= whole { fit / whole * whole } else { fit }), cols]
        };
    }

    fn choose_parts(&mut self) {
        let Space { rows, cols, horizontal, .. } = self.space;
        let reduces = self.program.stages.iter().any(|stage| !stage.accumulators.is_empty());
        self.blocks = [rows.div_ceil(self.block[0]), cols.div_ceil(self.block[1])];
        let outer = &self.space.outer;
        self.units =
            outer.iter().chain(&self.blocks).fold(1, |product: usize, &size| product.saturating_mul(size));
        let elements = self.space.elements();
        let part = if horizontal { PART } else { PART / self.tile };
        self.part = part.max(self.along.div_ceil(PARTS)).max(self.run).next_power_of_two();
        let ops: usize = self.program.stages.iter().map(|stage| stage.element.len()).sum();
        self.shared = elements.saturating_mul(ops) > SMALL;
        let apart = reduces && self.staged.is_empty() && self.parts() > 1;
        self.split = self.shared && apart && splits(self.units, elements);
        let unit = (self.block[0] * self.block[1]).saturating_mul(self.space.steps).max(1);
        self.task = (task_size(elements) / unit).max(1);
    }

    /// The number of parts of a pass.
    pub(super) fn parts(&self) -> usize {
        self.along.div_ceil(self.part)
    }

    /// The rows and columns of the tiles of a block with this many rows and columns.
    pub(super) fn tiles(&self, rows: usize, cols: usize) -> [usize; 2] {
        if cols >= WIDE.min(self.tile) || !self.program.computes {
            [1, cols.min(self.tile)]
        } else {
            [rows.min(self.tile / cols.max(1)), cols]
        }
    }

    /// The elements of a unit that have their own per-row value.
    pub(super) fn lanes(&self) -> usize {
        if self.space.horizontal { GROUP } else { self.tile }
    }

    /// The elements of a region.
    fn room(&self, region: Region) -> usize {
        match region {
            Region::Image => GROUP,
            Region::Total => self.lanes(),
            Region::Row if self.space.horizontal => GROUP,
            // One more group, since loads of short rows fill the last group of each.
            Region::Row | Region::Tile | Region::Home => self.tile + GROUP,
            Region::Wide if self.space.horizontal => self.space.cols.div_ceil(GROUP).saturating_mul(GROUP),
            Region::Wide => self.space.steps.saturating_mul(self.tile),
        }
    }

    fn lay_out(&mut self) {
        use Region::{Home, Image, Row, Tile, Total, Wide};
        let line = |bytes: usize| bytes.div_ceil(64) * 64;
        let views = self.space.views.len() + 1;
        let table = self.program.placements.len() * size_of::<Arg>() + views * size_of::<Base>();
        let mut at = line(table);
        self.level = self.program.widths[Total as usize] * self.lanes();
        for region in [Image, Row, Total, Tile, Home, Wide] {
            self.regions[region as usize] = at;
            at = at.saturating_add(match region {
                Image => 0,
                Total => self.level * levels(self.along.div_ceil(self.run)),
                _ => self.program.widths[region as usize].saturating_mul(self.room(region)),
            });
        }
        self.raw = at;
        at += self.tile * size_of::<u64>();
        for staged in &mut self.staged {
            staged.start = at;
            let size = self.space.views[staged.view].dtype.size_in_bytes();
            at += line(self.space.steps * self.tile * size);
        }
        self.bytes = at;
        let offset = |place: &program::Placement| match place.region {
            Image => place.start * GROUP,
            region => self.regions[region as usize] + place.start * self.room(region),
        };
        self.offsets = self.program.placements.iter().map(offset).collect();
    }
}

/// Which views nothing the loop writes can change.
fn constant(space: &Space, uses: &Uses) -> Vec<bool> {
    let views = space.views.iter().zip(&uses.written);
    let written: BTreeSet<usize> =
        views.filter(|(_, written)| **written).map(|(view, _)| view.slot).collect();
    space.views.iter().map(|view| !written.contains(&view.slot)).collect()
}

/// Whether a loop moves more than the caches can hold.
pub(super) fn moves_much(space: &Space, uses: &Uses) -> bool {
    moved(space, uses) > STREAM
}

/// Roughly how many bytes a loop reads and writes.
fn moved(space: &Space, uses: &Uses) -> usize {
    let views = space.views.iter().zip(uses.read.iter().zip(&uses.written));
    let bytes = views.map(|(view, (read, written))| {
        let along = if space.horizontal { 0 } else { view.along };
        let strides = view.outer.iter().chain([&view.row, &view.col, &along]);
        let sizes = space.outer.iter().chain([&space.rows, &space.cols, &space.steps]);
        let walked = strides.zip(sizes).filter(|(stride, _)| **stride != 0);
        let elements = walked.fold(1, |product: usize, (_, &size)| product.saturating_mul(size));
        elements.saturating_mul(view.dtype.size_in_bytes() * (usize::from(*read) + usize::from(*written)))
    });
    bytes.fold(0, usize::saturating_add)
}
