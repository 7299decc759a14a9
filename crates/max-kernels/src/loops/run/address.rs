//! Where a walk finds its elements: the addresses of views, and tiles between the user's memory and register form.

use super::Walk;
use crate::Memory;
use crate::simd::{LINE, prefetch};
use crate::tile::{self, Arg, GROUP, LoadFn, StoreFn};

/// Where the elements of a view are for a unit. Strides are in elements.
#[derive(Clone, Copy, Debug)]
pub(in crate::loops) struct Base {
    pub(in crate::loops) ptr: *mut u8,
    /// The address in the user's memory, where `ptr` is in staged memory.
    pub(in crate::loops) origin: *mut u8,
    /// The end of what may be read beyond the tile.
    pub(in crate::loops) limit: *const u8,
    pub(in crate::loops) size: isize,
    pub(in crate::loops) row: isize,
    pub(in crate::loops) col: isize,
    pub(in crate::loops) along: isize,
}

impl Walk<'_> {
    /// Goes to an index of the outer axes (flattened) and a row and a column.
    pub(in crate::loops) fn go(&mut self, outer: usize, row: usize, col: usize) {
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
    pub(super) fn place(&mut self, unit: usize) {
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

    /// Whether a row of this many columns can be used in place, up to the end of its last group.
    pub(super) fn fits(&self, cols: usize) -> bool {
        let bytes = |base: Base| cols.next_multiple_of(GROUP) * base.size as usize;
        let fits = |base: Base| {
            base.col != 1 || self.start_of(base).wrapping_add(bytes(base)).cast_const() <= base.limit
        };
        cols.is_multiple_of(GROUP)
            || self.plan.used.iter().all(|&view| !self.plan.reads[view] || fits(self.base(view)))
    }

    /// Moves by this many columns.
    pub(super) fn shift(&mut self, cols: usize) {
        let plan = self.plan;
        for &view in &plan.used {
            let (base, seen) = (self.base(view), &plan.space.views[view]);
            let ptr = base.origin.wrapping_offset(cols as isize * seen.col * base.size);
            let (row, col, along) = (seen.row, seen.col, seen.along);
            self.set_base(view, Base { ptr, origin: ptr, row, col, along, ..base });
        }
    }

    /// Transposes what is contiguous along the steps, so that each step has its tile.
    ///
    /// # Safety
    ///
    /// The walk is at a tile of the plan.
    pub(super) unsafe fn stage_in(&mut self) {
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
    pub(super) unsafe fn stage_out(&mut self) {
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

    /// Where the tile begins in memory.
    pub(super) fn start_of(&self, base: Base) -> *mut u8 {
        base.ptr.wrapping_offset(self.along as isize * base.along * base.size)
    }

    /// Brings a tile of memory into register form, at `home` if it cannot be used in place.
    ///
    /// # Safety
    ///
    /// The memory was checked, and `home` has room for a tile.
    pub(super) unsafe fn load(
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
    pub(super) unsafe fn store(&self, f: StoreFn, view: usize, src: Arg, register: usize, direct: bool) {
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
