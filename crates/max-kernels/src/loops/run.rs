//! Runs the program of a loop on memory, tile by tile.
//!
//! A [`Walk`] is one thread's position in a loop. Values are found through a table of addresses in scratch memory: most
//! stay where the plan put them, loads may point into the user's memory instead, and kept values move along.

use std::ops::Range;

use super::best::{Indices, Offer};
use super::plan::Plan;
use super::program::{Accumulator, Entry, Kind, Op, Region, Stage};
use crate::scratch;
use crate::simd::{LINE, prefetch};
use crate::tile::{self, Arg, GROUP, LoadFn, StoreFn, merged};
use crate::{Memory, Pool};

/// Where the elements of a view are for a unit. Strides are in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Base {
    pub(super) ptr: *mut u8,
    /// The address in the user's memory, where `ptr` is in staged memory.
    pub(super) origin: *mut u8,
    /// The end of what may be read beyond the tile.
    pub(super) limit: *const u8,
    pub(super) size: isize,
    pub(super) row: isize,
    pub(super) col: isize,
    pub(super) along: isize,
}

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

    /// Goes to an index of the outer axes (flattened) and a row and a column.
    pub(super) fn go(&mut self, outer: usize, row: usize, col: usize) {
        let plan = self.plan;
        let col = if plan.space.horizontal { 0 } else { col as isize };
        for &view in &plan.used {
            let seen = &plan.space.views[view];
            let size = seen.dtype.size_in_bytes() as isize;
            let mut at = seen.offset + row as isize * seen.row + col * seen.col;
            let mut rest = outer;
            for (axis, (&len, &stride)) in plan.space.outer.iter().zip(&seen.outer).enumerate().rev() {
                let (next, index) = if axis == 0 { (0, rest) } else { (rest / len, rest % len) };
                at += index as isize * stride;
                rest = next;
            }
            // A view that only names positions has no memory: it counts from address zero.
            let memory = self.memory.get(seen.slot).copied().unwrap_or(Memory::EMPTY);
            let ptr = memory.ptr().wrapping_offset(at * size);
            let limit = if plan.constant[view] { memory.end() } else { std::ptr::null() };
            let (row, col, along) = (seen.row, seen.col, seen.along);
            self.set_base(view, Base { ptr, origin: ptr, limit, size, row, col, along });
        }
    }

    /// Goes to a unit.
    fn place(&mut self, unit: usize) {
        let (space, [rows, cols]) = (&self.plan.space, self.plan.block);
        let [down, right] = self.plan.blocks;
        let (outer, inner) = divide(unit, down * right);
        // Neighbouring tasks share pages on the side that is read.
        let (i, j) = match space.transposed {
            true => {
                let (j, i) = divide(inner, down);
                (i, j)
            }
            false => divide(inner, right),
        };
        let (row, col) = (i * rows, j * cols);
        self.resize(rows.min(space.rows - row), cols.min(space.cols - col));
        self.go(outer, row, col);
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

    /// Whether a row of this many columns can be used in place, up to the end of its last group.
    fn fits(&self, cols: usize) -> bool {
        let bytes = |base: Base| cols.next_multiple_of(GROUP) * base.size as usize;
        let fits = |base: Base| {
            base.col != 1 || self.start_of(base).wrapping_add(bytes(base)).cast_const() <= base.limit
        };
        cols.is_multiple_of(GROUP)
            || self.plan.used.iter().all(|&view| !self.plan.reads[view] || fits(self.base(view)))
    }

    /// Moves by this many columns.
    fn shift(&mut self, cols: usize) {
        let plan = self.plan;
        for &view in &plan.used {
            let (base, seen) = (self.base(view), &plan.space.views[view]);
            let ptr = base.origin.wrapping_offset(cols as isize * seen.col * base.size);
            let (row, col, along) = (seen.row, seen.col, seen.along);
            self.set_base(view, Base { ptr, origin: ptr, row, col, along, ..base });
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

    /// Transposes what is contiguous along the steps, so that each step has its tile.
    ///
    /// # Safety
    ///
    /// The walk is at a tile of the plan.
    unsafe fn stage_in(&mut self) {
        let (plan, rows, cols, steps) = (self.plan, self.rows, self.cols, self.plan.space.steps);
        for staged in &plan.staged {
            let base = self.base(staged.view);
            let to = self.scratch.wrapping_add(staged.start);
            for row in (0..rows).filter(|_| staged.read) {
                let from = base.ptr.wrapping_offset(row as isize * base.row * base.size);
                let to = to.wrapping_add(row * cols * base.size as usize);
                // SAFETY: the elements are those of the unit; the plan has room for a tile per step.
                unsafe { tile::transpose(base.size as usize, to, plan.tile, from, base.col, cols, steps) };
            }
            let (row, along) = (cols as isize, plan.tile as isize);
            self.set_base(staged.view, Base { ptr: to, row, col: 1, along, ..base });
        }
    }

    /// Writes back what was stored where [`Walk::stage_in`] pointed.
    ///
    /// # Safety
    ///
    /// As for [`Walk::stage_in`].
    unsafe fn stage_out(&mut self) {
        let (plan, rows, cols, steps) = (self.plan, self.rows, self.cols, self.plan.space.steps);
        for staged in &plan.staged {
            let (base, seen) = (self.base(staged.view), &plan.space.views[staged.view]);
            let size = base.size as usize;
            for row in (0..rows).filter(|_| staged.written) {
                let from = base.ptr.wrapping_add(row * cols * size);
                let to = base.origin.wrapping_offset(row as isize * seen.row * base.size);
                // SAFETY: the elements are those of the unit.
                unsafe {
                    tile::transpose(size, to, seen.col as usize, from, plan.tile as isize, steps, cols)
                };
            }
        }
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

    /// Where the tile begins in memory.
    fn start_of(&self, base: Base) -> *mut u8 {
        base.ptr.wrapping_offset(self.along as isize * base.along * base.size)
    }

    /// Brings a tile of memory into register form, at `home` if it cannot be used in place.
    ///
    /// # Safety
    ///
    /// The memory was checked, and `home` has room for a tile.
    unsafe fn load(
        &self,
        f: LoadFn,
        view: usize,
        home: *mut u8,
        register: usize,
        direct: bool,
        whole: bool,
    ) -> Arg {
        let base = self.base(view);
        let from = self.start_of(base);
        let (rows, cols, count) = (self.rows, self.cols, self.rows * self.cols);
        let at_home = Arg { ptr: home, repeat: false };
        let one_row = rows == 1;
        let size = base.size as usize;
        let contiguous = base.col == 1 && (one_row || base.row == cols as isize);
        // SAFETY: the caller's promise; raw memory has room for a tile too.
        unsafe {
            if base.col == 0 && (one_row || base.row == 0) {
                // After the tile, where nothing that is computed in place overwrites it.
                let group =
                    if self.plan.space.horizontal { home } else { home.add(self.plan.tile * register) };
                f(group, from, 0, GROUP);
                return Arg { ptr: group, repeat: true };
            }
            let end = from.wrapping_add(count.next_multiple_of(GROUP) * size).cast_const();
            if contiguous && direct && (whole || end <= base.limit || base.ptr != base.origin) {
                return Arg { ptr: from, repeat: false };
            }
            if contiguous || one_row {
                f(home, from, base.col, count);
                return at_home;
            }
            if cols >= GROUP && base.row != 1 {
                for row in 0..rows {
                    let from = from.wrapping_offset(row as isize * base.row * base.size);
                    f(home.add(row * cols * register), from, base.col, cols);
                }
                return at_home;
            }
            let raw = if direct { home } else { self.scratch.add(self.plan.raw) };
            if base.row == 1 && base.col != 0 {
                if self.plan.far {
                    ask_below(from, base, rows, cols);
                }
                tile::transpose(size, raw, cols, from, base.col, cols, rows);
            } else {
                gather(raw, from, base, rows, cols);
            }
            if !direct {
                f(home, raw, 1, count);
            }
            at_home
        }
    }

    /// Writes a tile to memory.
    ///
    /// # Safety
    ///
    /// The memory was checked, and `src` holds a tile.
    unsafe fn store(&self, f: StoreFn, view: usize, src: Arg, register: usize, direct: bool) {
        let base = self.base(view);
        let to = self.start_of(base);
        let contiguous = base.col == 1 && base.row == self.cols as isize;
        let (rows, cols) = if contiguous { (1, self.rows * self.cols) } else { (self.rows, self.cols) };
        // SAFETY: the caller's promise.
        unsafe {
            if rows > 1 && base.row == 1 && base.col > 1 && direct && !src.repeat {
                let size = base.size as usize;
                return tile::transpose(size, to, base.col as usize, src.ptr, cols as isize, rows, cols);
            }
            for row in 0..rows {
                let to = to.wrapping_offset(row as isize * base.row * base.size);
                if !src.repeat {
                    f(to, base.col, src.ptr.add(row * cols * register), cols);
                    continue;
                }
                for col in (0..cols).step_by(GROUP) {
                    let to = to.wrapping_offset(col as isize * base.col * base.size);
                    f(to, base.col, src.ptr, GROUP.min(cols - col));
                }
            }
        }
    }
}

/// The quotient and the remainder; skips the division where the result is known without it.
fn divide(number: usize, by: usize) -> (usize, usize) {
    match by {
        1 => (number, 0),
        _ if number < by => (0, number),
        _ => (number / by, number % by),
    }
}

/// Prefetches the tile of transposed memory right below, `rows` rows further down.
fn ask_below(from: *const u8, base: Base, rows: usize, cols: usize) {
    let bytes = rows * base.size as usize;
    for col in 0..cols {
        let run = from.wrapping_offset(col as isize * base.col * base.size).wrapping_add(bytes);
        (0..bytes).step_by(LINE).for_each(|at| prefetch(run.wrapping_add(at)));
    }
}

/// Gathers the elements of short rows.
///
/// # Safety
///
/// They can be read, and `to` has room for them.
unsafe fn gather(to: *mut u8, from: *const u8, base: Base, rows: usize, cols: usize) {
    unsafe fn of<T: Copy>(to: *mut T, from: *const T, base: Base, rows: usize, cols: usize) {
        for row in 0..rows {
            let from = from.wrapping_offset(row as isize * base.row);
            for col in 0..cols {
                // SAFETY: the caller's promise.
                unsafe {
                    let element = from.wrapping_offset(col as isize * base.col).read_unaligned();
                    to.add(row * cols + col).write_unaligned(element);
                }
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        match base.size {
            1 => of::<u8>(to, from, base, rows, cols),
            2 => of::<u16>(to.cast(), from.cast(), base, rows, cols),
            4 => of::<u32>(to.cast(), from.cast(), base, rows, cols),
            _ => of::<u64>(to.cast(), from.cast(), base, rows, cols),
        }
    }
}
