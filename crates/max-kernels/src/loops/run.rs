//! Runs the program of a loop on memory, tile by tile.
//!
//! A [`Walk`] is one thread's position in a loop. Values are found through a table of addresses in scratch memory: most
//! stay where the plan put them, loads may point into the user's memory instead, and kept values move along.

mod address;

pub(super) use address::Base;

use std::ops::Range;

use super::best::{Indices, Offer};
use super::plan::Plan;
use super::program::{Accumulator, Entry, Kind, Op, Region, Stage};
use crate::scratch;
use crate::tile::{self, Arg, GROUP, merged};
use crate::{Memory, Pool};

/// See the module.
pub(super) struct Walk<'a> {
    plan: &'a Plan,
    memory: &'a [Memory<'a>],
    scratch: *mut u8,
    table: *mut Arg,
    bases: *mut Base,
    /// The tile: its rows and columns, and where it is along the pass.
    rows: usize,
    cols: usize,
    along: usize,
}

impl Plan {
    /// Runs the loop.
    ///
    /// # Safety
    ///
    /// The memory was checked for the loop.
    pub(super) unsafe fn run(&self, memory: &[Memory], pool: &Pool) {
        if self.split {
            // SAFETY: the caller's promise.
            (0..self.units).for_each(|unit| unsafe { self.run_split(unit, memory, pool) });
            return;
        }
        let task = |task: usize| {
            // SAFETY: the scratch memory is as large as the plan says; the rest is the caller's promise.
            scratch::with(self.bytes, |scratch| unsafe {
                let mut walk = Walk::new(self, memory, scratch);
                let first = task * self.task;
                for unit in first..self.units.min(first + self.task) {
                    walk.unit(unit);
                }
                walk.end();
            });
        };
        let tasks = self.units.div_ceil(self.task);
        if self.shared && tasks > 1 { pool.run(tasks, &task) } else { (0..tasks).for_each(task) }
    }

    /// Runs one unit, each part of a pass as a task.
    ///
    /// # Safety
    ///
    /// The memory was checked for the loop.
    unsafe fn run_split(&self, unit: usize, memory: &[Memory], pool: &Pool) {
        let (total, bytes) = (self.regions[Region::Total as usize], self.level);
        let results = |scratch: *mut u8, partials: *mut u8| {
            let partials = Shared(partials);
            // SAFETY: the scratch memory is as large as the plan says; the rest is the caller's promise.
            let mut walk = unsafe { Walk::new(self, memory, scratch) };
            walk.place(unit);
            for (number, stage) in self.program.stages.iter().enumerate() {
                // SAFETY: as above.
                unsafe { walk.row_code(&stage.row) };
                let state = Shared(scratch);
                let part = |part: usize| {
                    let start = part * self.part;
                    let range = start..self.along.min(start + self.part);
                    // SAFETY: as above; each part has its own piece of the partial results, and nobody changes the
                    // state of the unit meanwhile.
                    scratch::with(self.bytes, |scratch| unsafe {
                        let mut walk = Walk::new(self, memory, scratch);
                        walk.place(unit);
                        walk.resume(number, state.get());
                        walk.pass(stage, range);
                        partials.get().add(part * bytes).copy_from_nonoverlapping(scratch.add(total), bytes);
                        walk.end();
                    });
                };
                if stage.element.is_empty() {
                    continue;
                }
                pool.run(self.parts(), &part);
                for part in 0..self.parts() {
                    // SAFETY: all parts are done, and their results are as large as a level.
                    unsafe {
                        let to = scratch.add(total + part.count_ones() as usize * bytes);
                        to.copy_from_nonoverlapping(partials.get().add(part * bytes), bytes);
                        merged(part, self.parts()).for_each(|level| walk.combine(stage, level));
                    }
                }
                // SAFETY: as above.
                unsafe { walk.finish(stage) };
            }
            // SAFETY: as above.
            unsafe { walk.row_code(&self.program.tail) };
            walk.end();
        };
        scratch::with(self.bytes, |scratch| {
            scratch::with(bytes * self.parts(), |partials| results(scratch, partials));
        });
    }
}

/// An address that tasks share.
#[derive(Clone, Copy)]
struct Shared(*mut u8);

impl Shared {
    fn get(self) -> *mut u8 {
        self.0
    }
}

// SAFETY: an address may be sent to any thread; whoever uses it makes sure that nobody else writes there.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl<'a> Walk<'a> {
    /// # Safety
    ///
    /// The scratch memory has the bytes of the plan, the memory was checked for its loop, and both outlive the walk.
    pub(super) unsafe fn new(plan: &'a Plan, memory: &'a [Memory<'a>], scratch: *mut u8) -> Walk<'a> {
        let table = scratch.cast::<Arg>();
        let count = plan.offsets.len();
        // SAFETY: the plan starts with the table and the bases.
        let bases = unsafe { table.add(count).cast::<Base>() };
        let (image, horizontal) = (plan.program.image.as_ptr().cast::<u8>(), plan.space.horizontal);
        for (at, (place, &offset)) in plan.program.placements.iter().zip(&plan.offsets).enumerate() {
            let arg = match place.region {
                Region::Image => Arg { ptr: image.wrapping_add(offset), repeat: true },
                Region::Row | Region::Total => Arg { ptr: scratch.wrapping_add(offset), repeat: horizontal },
                _ => Arg { ptr: scratch.wrapping_add(offset), repeat: false },
            };
            // SAFETY: the table has an entry for each place.
            unsafe { table.add(at).write(arg) };
        }
        Walk { plan, memory, scratch, table, bases, rows: 1, cols: 1, along: 0 }
    }

    /// Makes non-temporal stores visible to other threads.
    pub(super) fn end(&self) {
        if self.plan.streaming {
            tile::fence();
        }
    }

    fn arg(&self, entry: Entry) -> Arg {
        // SAFETY: the table has an entry for each place.
        unsafe { *self.table.add(entry as usize) }
    }

    fn set(&mut self, entry: Entry, arg: Arg) {
        // SAFETY: the table has an entry for each place.
        unsafe { *self.table.add(entry as usize) = arg };
    }

    /// Where a value has its own memory.
    fn home(&self, entry: Entry) -> *mut u8 {
        self.scratch.wrapping_add(self.plan.offsets[entry as usize])
    }

    fn base(&self, view: usize) -> Base {
        // SAFETY: there is a base per view, and one for what a kernel passes to its epilogue.
        unsafe { *self.bases.add(view) }
    }

    pub(super) fn set_base(&mut self, view: usize, base: Base) {
        // SAFETY: there is a base per view, and one for what a kernel passes to its epilogue.
        unsafe { self.bases.add(view).write(base) };
    }

    /// # Safety
    ///
    /// The unit is one of the plan.
    unsafe fn unit(&mut self, unit: usize) {
        self.place(unit);
        let rest = self.cols % GROUP;
        // SAFETY: the tiles are parts of the unit.
        unsafe {
            if self.plan.space.horizontal || self.rows > 1 || self.cols < GROUP || self.fits(self.cols) {
                return self.tile();
            }
            // The end of a row gets its own tile, so that the rest can be used in place.
            self.cols -= rest;
            self.tile();
            self.shift(self.cols);
            self.cols = rest;
            self.tile();
        }
    }

    /// Runs the whole program on a unit, or on a part of its columns.
    ///
    /// # Safety
    ///
    /// The walk is at a tile of the plan.
    pub(super) unsafe fn tile(&mut self) {
        let plan = self.plan;
        // SAFETY: the caller's promise.
        unsafe {
            self.stage_in();
            for stage in &plan.program.stages {
                self.row_code(&stage.row);
                if stage.element.is_empty() {
                    continue;
                }
                self.pass(stage, 0..plan.along);
                self.finish(stage);
            }
            self.row_code(&plan.program.tail);
            self.stage_out();
        }
    }

    /// Sets the rows and columns of the tiles that follow.
    pub(super) fn resize(&mut self, rows: usize, cols: usize) {
        (self.rows, self.cols) = (rows, cols);
    }

    /// Copies the per-row values of a unit from another walk.
    ///
    /// # Safety
    ///
    /// The state is the scratch memory of a walk at the same unit.
    unsafe fn resume(&mut self, stage: usize, state: *const u8) {
        let start = self.plan.regions[Region::Row as usize];
        let end = self.plan.regions[Region::Total as usize] + self.plan.level;
        // SAFETY: both are scratch memory of the plan.
        unsafe { self.scratch.add(start).copy_from_nonoverlapping(state.add(start), end - start) };
        for stage in &self.plan.program.stages[..=stage] {
            let loads = stage.row.iter().filter(|op| matches!(op, Op::Load { .. }));
            // SAFETY: the walk is at a unit.
            loads.for_each(|op| unsafe { self.row_code(std::slice::from_ref(op)) });
        }
    }

    /// Runs per-row code.
    ///
    /// # Safety
    ///
    /// The walk is at a tile of the plan.
    unsafe fn row_code(&mut self, ops: &[Op]) {
        self.along = 0;
        let cols = self.cols;
        if self.plan.space.horizontal {
            self.cols = 1;
        }
        // SAFETY: the caller's promise.
        unsafe { self.execute(ops) };
        self.cols = cols;
    }

    /// Runs a pass over part of its length, run by run, and combines the results of the runs.
    ///
    /// # Safety
    ///
    /// The walk is at a tile of the plan, and the range is inside the pass.
    unsafe fn pass(&mut self, stage: &Stage, range: Range<usize>) {
        let length = self.plan.run;
        if range.len() <= length || stage.accumulators.is_empty() {
            // SAFETY: the caller's promise.
            return unsafe { self.run(stage, range) };
        }
        let runs = range.len().div_ceil(length);
        for run in 0..runs {
            let start = range.start + run * length;
            self.climb(stage, run.count_ones() as usize);
            // SAFETY: the caller's promise.
            unsafe {
                self.run(stage, start..range.end.min(start + length));
                merged(run, runs).for_each(|level| self.combine(stage, level));
            }
        }
        self.climb(stage, 0);
    }

    /// Goes to a level of the stacks of a stage.
    fn climb(&mut self, stage: &Stage, level: usize) {
        let (distance, repeat) = (level * self.plan.level, self.plan.space.horizontal);
        for entry in stage.accumulators.iter().flat_map(|accumulator| accumulator.entries) {
            self.set(entry, Arg { ptr: self.home(entry).wrapping_add(distance), repeat });
        }
    }

    /// Reduces a run.
    ///
    /// # Safety
    ///
    /// The walk is at a tile of the plan, and the range is inside the pass.
    unsafe fn run(&mut self, stage: &Stage, range: Range<usize>) {
        // SAFETY: the caller's promise.
        unsafe {
            stage.accumulators.iter().for_each(|accumulator| self.start(accumulator));
            if self.plan.space.horizontal {
                self.along_row(stage, range)
            } else {
                self.across_rows(stage, range)
            }
        }
    }

    /// # Safety
    ///
    /// The range is inside the pass.
    unsafe fn along_row(&mut self, stage: &Stage, range: Range<usize>) {
        let cols = self.cols;
        self.along = range.start;
        while self.along < range.end {
            let left = self.plan.tile.min(range.end - self.along);
            self.cols = if left < GROUP || self.fits(left) { left } else { left - left % GROUP };
            // SAFETY: the caller's promise.
            unsafe { self.execute(&stage.element) };
            self.along += self.cols;
        }
        self.cols = cols;
    }

    /// # Safety
    ///
    /// The range is inside the pass.
    unsafe fn across_rows(&mut self, stage: &Stage, range: Range<usize>) {
        for step in range {
            self.along = step;
            // SAFETY: the caller's promise.
            unsafe { self.execute(&stage.element) };
        }
    }

    /// The groups of a per-row value.
    fn row_groups(&self) -> usize {
        if self.plan.space.horizontal { 1 } else { (self.rows * self.cols).div_ceil(GROUP) }
    }

    /// # Safety
    ///
    /// The accumulator belongs to the program.
    unsafe fn start(&self, accumulator: &Accumulator) {
        let [values, indices] = accumulator.entries.map(|entry| self.arg(entry).ptr.cast_mut());
        // SAFETY: the entries have room for a per-row value.
        unsafe {
            match accumulator.kind {
                Kind::Lanes { reducer, .. } => (reducer.start)(values),
                Kind::Tile { identity, copy, .. } => copy(values, [self.arg(identity); 3], self.row_groups()),
                Kind::Best(_) => {
                    std::slice::from_raw_parts_mut(indices.cast::<i64>(), self.plan.lanes()).fill(-1);
                }
            }
        }
    }

    /// Combines the lanes of the results of a pass.
    ///
    /// # Safety
    ///
    /// The stage belongs to the program.
    unsafe fn finish(&self, stage: &Stage) {
        for accumulator in &stage.accumulators {
            let [values, indices] = accumulator.entries.map(|entry| self.home(entry));
            // SAFETY: the entries have room for a per-row value.
            unsafe {
                match accumulator.kind {
                    Kind::Lanes { reducer, .. } => (reducer.finish)(values),
                    Kind::Best(best) if self.plan.space.horizontal => (best.finish)(values, indices.cast()),
                    _ => {}
                }
            }
        }
    }

    /// Combines a level of the stacks of a stage into the one below.
    ///
    /// # Safety
    ///
    /// The stage belongs to the program, and both levels exist.
    unsafe fn combine(&self, stage: &Stage, level: usize) {
        let bytes = self.plan.level;
        for accumulator in &stage.accumulators {
            let below = accumulator.entries.map(|entry| self.home(entry).wrapping_add((level - 1) * bytes));
            let above = below.map(|ptr| ptr.wrapping_add(bytes));
            // SAFETY: the entries have room for a per-row value.
            unsafe {
                match accumulator.kind {
                    Kind::Lanes { combine, .. } | Kind::Tile { combine, .. } => {
                        let [a, b] = [below[0], above[0]].map(|ptr| Arg { ptr, repeat: false });
                        combine(below[0], [a, b, b], self.row_groups());
                    }
                    Kind::Best(best) => {
                        let values = Arg { ptr: above[0], repeat: false };
                        let offer = Offer { values, indices: Indices::Given(above[1].cast_const().cast()) };
                        let count = if self.plan.space.horizontal { GROUP } else { self.rows * self.cols };
                        (best.offer)(below[0], below[1].cast(), self.plan.lanes(), offer, count);
                    }
                }
            }
        }
    }

    /// # Safety
    ///
    /// The walk is at a tile of the plan, and the code belongs to its program.
    unsafe fn execute(&mut self, ops: &[Op]) {
        let count = self.rows * self.cols;
        let groups = count.div_ceil(GROUP);
        for op in ops {
            // SAFETY: the caller's promise: every place has room for a tile.
            unsafe {
                match *op {
                    Op::Apply { f, dst, args } => {
                        f(self.arg(dst).ptr.cast_mut(), args.map(|arg| self.arg(arg)), groups)
                    }
                    Op::Load { f, dst, view, size, direct, padded } => {
                        let whole = !padded || count.is_multiple_of(GROUP);
                        let arg = self.load(f, view as usize, self.home(dst), size as usize, direct, whole);
                        self.set(dst, arg);
                    }
                    Op::Index { f, dst, view } => {
                        let base = self.base(view as usize);
                        let start = self.start_of(base).addr() as i64 / base.size as i64;
                        let strides = [base.row as i64, base.col as i64];
                        f(self.home(dst), start, strides, self.rows, self.cols);
                    }
                    Op::Seat { entry, size } => {
                        let position =
                            if self.plan.space.horizontal { self.along } else { self.along * self.plan.tile };
                        let ptr = self.home(entry).wrapping_add(position * size as usize);
                        self.set(entry, Arg { ptr, repeat: false });
                    }
                    Op::Add { f, acc, src } => f(self.arg(acc).ptr.cast_mut(), self.arg(src), count),
                    Op::Offer { best, acc: [values, indices], src } => {
                        let at = self.along as i64;
                        let horizontal = self.plan.space.horizontal;
                        let indices_offered = if horizontal { Indices::From(at) } else { Indices::Same(at) };
                        let offer = Offer { values: self.arg(src), indices: indices_offered };
                        let indices = self.arg(indices).ptr.cast_mut().cast();
                        (best.offer)(
                            self.arg(values).ptr.cast_mut(),
                            indices,
                            self.plan.lanes(),
                            offer,
                            count,
                        );
                    }
                    Op::Store { f, src, view, size, direct } => {
                        self.store(f, view as usize, self.arg(src), size as usize, direct);
                    }
                }
            }
        }
    }
}
