//! Runs scatters: the input is copied, then every element of the result belongs to one task, which applies its updates in the
//! order of picks. So results depend neither on the number of threads nor on how work is split.

use max_core::kernel::{Access, Combine, Instr, Loop, Reg, Scatter, Slot};
use max_core::scalar::Lane;
use max_core::{DType, Element, Result, bail, dispatch};

use crate::indexed::{Along, BLOCK, Failures, Finder};
use crate::loops::PreparedLoop;
use crate::simd::{Isa, versions};
use crate::{Memory, Pool, scratch};

/// Roughly how many updates a task applies.
const TASK: usize = 1 << 15;

/// The fewest neighbouring inner positions that are updated together.
const TOGETHER: usize = 16;

/// How many inner positions a task has where each has its own indices: few enough that what it updates stays in a cache.
const NARROW: usize = 64;

/// The most inner positions that a task has where all have the same indices.
const WIDE: usize = 4096;

/// Up to this many elements of a line stay in a cache, and are updated by one task.
const CACHED: isize = 1 << 16;

/// The most tasks that share one line: each looks at all of its indices.
const MOST_RANGES: usize = 8;

/// How many tasks rows are split into if there are enough.
const SHARES: usize = 16;

/// A scatter that is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedScatter {
    /// Outer, picks and inner.
    sizes: [usize; 3],
    finder: Finder,
    copy: PreparedLoop,
    /// The memory of the input and of the result.
    slots: [Slot; 2],
    /// The bytes of a contiguous line, if they are, and the input along outer.
    line: usize,
    input: Along<1>,
    /// Along outer and inner.
    out: Along<2>,
    updates: Along<3>,
    spread: Spread,
    spread_some: SpreadSome,
    add_row: AddRow,
}

/// Combines some of the updates at a distance from each other, given their numbers, into elements at places after an address.
type SpreadSome = unsafe fn(to: *mut u8, updates: (*const u8, isize), numbers: &[usize], places: &[isize]);

/// Combines updates into elements at places after an address: from updates at a distance from each other, to positions that
/// are moved on by a step from one to the next.
type Spread = unsafe fn(to: (*mut u8, isize), updates: (*const u8, isize), places: &[isize]);

/// Combines a number of updates into as many elements, each at their distance.
type AddRow = unsafe fn(row: Row);

/// Some elements and their updates, each with its distance.
#[derive(Clone, Copy)]
struct Row {
    to: (*mut u8, isize),
    updates: (*const u8, isize),
    count: usize,
}

impl PreparedScatter {
    pub(crate) fn new(k: &Scatter<i64>) -> Result<PreparedScatter> {
        let (dtype, space) = (k.out.dtype, &k.space);
        if k.input.dtype != dtype || k.updates.dtype != dtype {
            bail!(internal, "a scatter of {} over {} into {dtype}", k.updates.dtype, k.input.dtype);
        }
        let finder = Finder::new(space, &k.out)?;
        let numbered = |access: &Access<i64>, slot| Access { slot: Slot(slot), ..access.clone() };
        let copy = Loop {
            shape: [&[space.outer], &space.sizes[..], &[space.inner]].concat(),
            reduce: None,
            accesses: vec![numbered(&k.input, 0), numbered(&k.out, 1)],
            code: vec![Instr::Load(0), Instr::Store(1, Reg(0))],
        };
        let (spread, spread_some, add_row) = functions(dtype, k.combine);
        Ok(PreparedScatter {
            sizes: [space.outer, *space.picks(), space.inner].map(|size| size as usize),
            finder,
            copy: PreparedLoop::new(&copy)?,
            slots: [k.input.slot, k.out.slot],
            line: match space.sizes[..] {
                [size] if space.inner == 1 && k.input.strides[1] == 1 && k.out.strides[1] == 1 => {
                    size as usize * dtype.size_in_bytes()
                }
                _ => 0,
            },
            input: Along::new(&k.input, [0]),
            out: Along::new(&k.out, [0, space.sizes.len() + 1]),
            updates: Along::new(&k.updates, [0, 1, 2]),
            spread,
            spread_some,
            add_row,
        })
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        let [outer, picks, inner] = self.sizes;
        let [input, out] = self.slots.map(|slot| memory[slot.0 as usize]);
        // SAFETY: guaranteed by the caller, here and below.
        unsafe {
            let copies = input.ptr() != out.ptr();
            if copies && outer > 1 && picks > 0 && self.line > 0 && !self.finder.is_shared() {
                return self.each_line(memory, pool, true);
            }
            if copies {
                self.copy.run(&[input, out], pool)?;
            }
            if outer == 0 || picks == 0 || inner == 0 {
                return self.finder.check(memory, pool);
            }
            let (low, high) = self.finder.range();
            if outer * inner == 1 && picks >= TASK && high - low > CACHED && pool.threads() > 1 {
                return self.one_line(memory, pool);
            }
            if outer * inner == 1 || !self.finder.is_shared() {
                return match inner < TOGETHER {
                    true => self.each_line(memory, pool, false),
                    false => self.each_strip(memory, pool),
                };
            }
            scratch::with(picks * size_of::<isize>(), |places| {
                let places = places.cast::<isize>();
                self.finder.table(memory, pool, 1, places)?;
                let places = std::slice::from_raw_parts(places, picks);
                match inner < TOGETHER {
                    true => self.same_for_lines(memory, pool, places),
                    false => self.same_for_rows(memory, pool, places),
                }
                Ok(())
            })
        }
    }

    /// One long line: every task looks at all indices and updates the elements of its range. Which ranges there are does not
    /// show in the result, so there are as many as threads.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    unsafe fn one_line(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        let picks = self.sizes[1];
        let (low, high) = self.finder.range();
        let ranges = pool.threads().min(MOST_RANGES);
        let width = ((high - low) as usize).div_ceil(ranges) as isize;
        let failures = Failures::default();
        pool.run(ranges, &|range| {
            let start = low + range as isize * width;
            let to = self.out.at(memory, [0, 0]);
            let (mut room, mut numbers, mut own) = ([0; BLOCK], [0; BLOCK], [0; BLOCK]);
            for first in (0..picks).step_by(BLOCK) {
                let places = &mut room[..BLOCK.min(picks - first)];
                // SAFETY: the memory was checked, places are in bounds, and no other task has those of this range.
                unsafe {
                    if let Err(bad) = self.finder.picks(memory, [0, first, 0], places) {
                        return failures.note(first, bad);
                    }
                    let mut count = 0;
                    for (number, &place) in places.iter().enumerate() {
                        (numbers[count], own[count]) = (number, place);
                        count += usize::from(((place - start) as usize) < width as usize);
                    }
                    let updates = self.updates.at(memory, [0, first, 0]).cast_const();
                    let updates = (updates, self.updates.strides[1]);
                    (self.spread_some)(to, updates, &numbers[..count], &own[..count]);
                }
            }
        });
        failures.result(&self.finder)
    }

    /// Lines with indices of their own, one after the other, each copied first if need be.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    unsafe fn each_line(&self, memory: &[Memory], pool: &Pool, copies: bool) -> Result<()> {
        let [outer, picks, inner] = self.sizes;
        let failures = Failures::default();
        in_tasks(pool, outer * inner, picks, &|line| {
            let (o, i) = (line / inner, line % inner);
            let mut room = [0; BLOCK];
            if copies {
                let (from, to) = (self.input.at(memory, [o]), self.out.at(memory, [o, 0]));
                // SAFETY: the memory was checked, lines are contiguous, and no other task has this one.
                unsafe { std::ptr::copy_nonoverlapping(from, to, self.line) };
            }
            for pick in (0..picks).step_by(BLOCK) {
                let places = &mut room[..BLOCK.min(picks - pick)];
                let to = (self.out.at(memory, [o, i]), 0);
                let updates = (self.updates.at(memory, [o, pick, i]).cast_const(), self.updates.strides[1]);
                // SAFETY: the memory was checked, places are in bounds, and no other task has this line.
                unsafe {
                    if let Err(bad) = self.finder.picks(memory, [o, pick, i], places) {
                        return failures.note(line, bad);
                    }
                    (self.spread)(to, updates, places);
                }
            }
        });
        failures.result(&self.finder)
    }

    /// Strips of neighbouring lines with indices of their own, pick after pick.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    unsafe fn each_strip(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        let [outer, picks, inner] = self.sizes;
        let strips = inner.div_ceil(NARROW);
        let failures = Failures::default();
        in_tasks(pool, outer * strips, picks * NARROW, &|strip| {
            let (o, i) = (strip / strips, strip % strips * NARROW);
            let mut room = [0; NARROW];
            let places = &mut room[..NARROW.min(inner - i)];
            let to = (self.out.at(memory, [o, i]), self.out.strides[1]);
            for pick in 0..picks {
                let updates = (self.updates.at(memory, [o, pick, i]).cast_const(), self.updates.strides[2]);
                // SAFETY: the memory was checked, places are in bounds, and no other task has these lines.
                unsafe {
                    if let Err(bad) = self.finder.across(memory, [o, pick, i], places) {
                        return failures.note(strip, bad);
                    }
                    (self.spread)(to, updates, places);
                }
            }
        });
        failures.result(&self.finder)
    }

    /// Lines that have the same places.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, and the places are in bounds.
    unsafe fn same_for_lines(&self, memory: &[Memory], pool: &Pool, places: &[isize]) {
        let [outer, picks, inner] = self.sizes;
        in_tasks(pool, outer * inner, picks, &|line| {
            let (o, i) = (line / inner, line % inner);
            let to = (self.out.at(memory, [o, i]), 0);
            let updates = (self.updates.at(memory, [o, 0, i]).cast_const(), self.updates.strides[1]);
            // SAFETY: guaranteed by the caller, and no other task has this line.
            unsafe { (self.spread)(to, updates, places) };
        });
    }

    /// Rows of neighbouring lines that have the same places. If there are few, each task has a share of the places.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, and the places are in bounds.
    unsafe fn same_for_rows(&self, memory: &[Memory], pool: &Pool, places: &[isize]) {
        let [outer, picks, inner] = self.sizes;
        let width = inner.min(WIDE);
        let rows = outer * inner.div_ceil(width);
        // Every share looks at all places, which must take less time than the updates.
        let shares = (SHARES / rows.min(SHARES)).min(picks * width / TASK).min(inner / TOGETHER).max(1);
        in_tasks(pool, rows * shares, picks * width / shares, &|part| {
            let (row, share) = (part / shares, part % shares);
            let (o, i) = (row / inner.div_ceil(width), row % inner.div_ceil(width) * width);
            let out = self.out.at(memory, [o, i]);
            for (pick, &place) in places.iter().enumerate() {
                if shares > 1 && share_of(place, shares) != share {
                    continue;
                }
                let row = Row {
                    to: (self.out.after(out, place), self.out.strides[1]),
                    updates: (self.updates.at(memory, [o, pick, i]).cast_const(), self.updates.strides[2]),
                    count: width.min(inner - i),
                };
                // SAFETY: guaranteed by the caller, and no other task has this part of the places and lines.
                unsafe { (self.add_row)(row) };
            }
        });
    }
}

/// Which of some tasks a place belongs to.
fn share_of(place: isize, shares: usize) -> usize {
    ((place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % shares
}

/// Calls a function for each of some parts, in tasks of several parts if they have few updates each.
fn in_tasks(pool: &Pool, parts: usize, updates: usize, f: &(dyn Fn(usize) + Sync)) {
    let together = (TASK / updates.max(1)).max(1);
    pool.run(parts.div_ceil(together), &|task| {
        (task * together..parts.min((task + 1) * together)).for_each(f);
    });
}

/// The functions for a dtype.
fn functions(dtype: DType, combine: Combine) -> (Spread, SpreadSome, AddRow) {
    fn of<T: Copy, C: Combined<T>>() -> (Spread, SpreadSome, AddRow) {
        (spread::<T, C>, spread_some::<T, C>, version::<Rows<T, C>>(Isa::best()))
    }
    match combine {
        Combine::Assign => match dtype.size_in_bytes() {
            1 => of::<u8, Assign>(),
            2 => of::<u16, Assign>(),
            4 => of::<u32, Assign>(),
            _ => of::<u64, Assign>(),
        },
        Combine::Add => dispatch!(dtype, T => of::<T, Add>()),
        Combine::Mul => dispatch!(dtype, T => of::<T, Mul>()),
        Combine::Min => dispatch!(dtype, T => of::<T, Min>()),
        Combine::Max => dispatch!(dtype, T => of::<T, Max>()),
    }
}

/// What an element becomes by an update.
trait Combined<T> {
    fn of(element: T, update: T) -> T;
}

struct Assign;

impl<T> Combined<T> for Assign {
    #[inline(always)]
    fn of(_: T, update: T) -> T {
        update
    }
}

macro_rules! combined {
    ($($name:ident $op:ident;)*) => {$(
        struct $name;

        impl<T: Element> Combined<T> for $name {
            #[inline(always)]
            fn of(element: T, update: T) -> T {
                T::from_lane(element.to_lane().$op(update.to_lane()))
            }
        }
    )*};
}

combined! {
    Add add;
    Mul mul;
    Min min;
    Max max;
}

/// # Safety
///
/// The updates can be read, and the elements at the places, each moved on by its number of steps, read and written.
unsafe fn spread<T: Copy, C: Combined<T>>(
    to: (*mut u8, isize),
    updates: (*const u8, isize),
    places: &[isize],
) {
    let ((to, step), (updates, distance)) = ((to.0.cast::<T>(), to.1), (updates.0.cast::<T>(), updates.1));
    for (i, &place) in places.iter().enumerate() {
        let i = i as isize;
        // SAFETY: guaranteed by the caller. Elements need not be aligned.
        unsafe {
            let element = to.wrapping_offset(place + i * step);
            let update = updates.wrapping_offset(i * distance).read_unaligned();
            element.write_unaligned(C::of(element.read_unaligned(), update));
        }
    }
}

/// # Safety
///
/// The updates with these numbers can be read, and the elements at the places read and written.
unsafe fn spread_some<T: Copy, C: Combined<T>>(
    to: *mut u8,
    (updates, distance): (*const u8, isize),
    numbers: &[usize],
    places: &[isize],
) {
    let (to, updates) = (to.cast::<T>(), updates.cast::<T>());
    for (&number, &place) in numbers.iter().zip(places) {
        // SAFETY: guaranteed by the caller. Elements need not be aligned.
        unsafe {
            let element = to.wrapping_offset(place);
            let update = updates.wrapping_offset(number as isize * distance).read_unaligned();
            element.write_unaligned(C::of(element.read_unaligned(), update));
        }
    }
}

trait Body {
    /// # Safety
    ///
    /// The updates can be read, and the elements read and written.
    unsafe fn run<const FMA: bool>(row: Row);
}

versions!(version: Body, fn(row: Row));

/// Combines rows of a type.
struct Rows<T, C>(std::marker::PhantomData<(T, C)>);

impl<T: Copy, C: Combined<T>> Body for Rows<T, C> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(row: Row) {
        // SAFETY: guaranteed by the caller. The distances are known when the first is compiled.
        unsafe {
            match (row.to.1, row.updates.1) {
                (1, 1) => combine_row::<T, C>(row, 1, 1),
                (step, distance) => combine_row::<T, C>(row, step, distance),
            }
        }
    }
}

/// # Safety
///
/// As for [`Body::run`].
#[inline(always)]
unsafe fn combine_row<T: Copy, C: Combined<T>>(row: Row, step: isize, distance: isize) {
    let (to, updates) = (row.to.0.cast::<T>(), row.updates.0.cast::<T>());
    for i in 0..row.count as isize {
        // SAFETY: guaranteed by the caller. Elements need not be aligned.
        unsafe {
            let element = to.wrapping_offset(i * step);
            let update = updates.wrapping_offset(i * distance).read_unaligned();
            element.write_unaligned(C::of(element.read_unaligned(), update));
        }
    }
}

#[cfg(test)]
mod tests {
    use max_core::ErrorKind;
    use max_core::kernel::{Indexed, Kernel};
    use max_driver::Buffer;

    use super::*;
    use crate::prepare;

    fn access(slot: u32, dtype: DType, strides: &[i64]) -> Access<i64> {
        Access { slot: Slot(slot), dtype, offset: 0, strides: strides.to_vec() }
    }

    fn row_major(slot: u32, dtype: DType, shape: [i64; 3]) -> Access<i64> {
        access(slot, dtype, &[shape[1] * shape[2], shape[2], 1])
    }

    /// Along one axis of `[outer, size, inner]`, with indices that vary along the axes whose strides are not zero.
    fn kernel(
        dtype: DType,
        combine: Combine,
        shape: [i64; 3],
        picks: i64,
        strides: [i64; 3],
    ) -> Scatter<i64> {
        let [outer, size, inner] = shape;
        let indices = access(1, DType::Int32, &[strides[0], strides[1], strides[2], 0]);
        Scatter {
            space: Indexed {
                outer,
                sizes: vec![size],
                inner,
                axis: 1,
                indices,
                index_shape: [outer, picks, inner, 1],
            },
            combine,
            input: row_major(0, dtype, shape),
            updates: row_major(2, dtype, [outer, picks, inner]),
            out: row_major(3, dtype, shape),
        }
    }

    fn run<T: Element>(
        k: &Scatter<i64>,
        input: &[T],
        indices: &[i32],
        updates: &[T],
        threads: usize,
    ) -> Result<Vec<T>> {
        let kernel = prepare(&Kernel::Scatter(k.clone()))?;
        let [input, updates] = [input, updates].map(|elements| Buffer::from(elements.to_vec()));
        let (indices, out) =
            (Buffer::from(indices.to_vec()), Buffer::from(vec![T::from_i128(77); input.num_elements()]));
        let memory =
            [Memory::of(&input)?, Memory::of(&indices)?, Memory::of(&updates)?, Memory::of_mut(&out)?];
        kernel.run(&memory, &Pool::new(threads))?;
        // The same in place.
        let memory = [Memory::of(&input)?, memory[1], memory[2], Memory::of_mut(&input)?];
        kernel.run(&memory, &Pool::new(threads))?;
        let (result, in_place) = (out.to_vec::<T>()?, input.to_vec::<T>()?);
        assert_eq!(bytes(&result), bytes(&in_place));
        Ok(result)
    }

    fn bytes<T: Element>(elements: &[T]) -> &[u8] {
        bytemuck::cast_slice(elements)
    }

    fn check<T: Element>(combine: Combine, shape: [i64; 3], picks: i64, varies: [bool; 3]) {
        let [outer, size, inner] = shape;
        let by = [if varies[0] { outer } else { 1 }, picks, if varies[2] { inner } else { 1 }];
        let strides = [if varies[0] { picks * by[2] } else { 0 }, by[2], if varies[2] { 1 } else { 0 }];
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as i64
        };
        let mut some = |count: i64| -> Vec<T> {
            (0..count).map(|_| T::from_double((random() % 1000) as f64 / 37.0)).collect()
        };
        let (input, updates) = (some(outer * size * inner), some(outer * picks * inner));
        let indices: Vec<i32> = (0..by.iter().product::<i64>())
            .map(|i| ((i * 7919 + i / 3) % (2 * size) - size) as i32)
            .collect();
        let mut expected = input.clone();
        for at in 0..outer * picks * inner {
            let (o, p, i) = (at / inner / picks, at / inner % picks, at % inner);
            let index = i64::from(indices[(o * strides[0] + p * strides[1] + i * strides[2]) as usize]);
            let target = ((o * size + (index + size) % size) * inner + i) as usize;
            let (a, b) = (expected[target].to_lane(), updates[at as usize].to_lane());
            expected[target] = match combine {
                Combine::Assign => updates[at as usize],
                Combine::Add => T::from_lane(a.add(b)),
                Combine::Mul => T::from_lane(a.mul(b)),
                Combine::Min => T::from_lane(a.min(b)),
                Combine::Max => T::from_lane(a.max(b)),
            };
        }
        let k = kernel(T::DTYPE, combine, shape, picks, strides);
        for threads in [1, 2, 8] {
            let got = run(&k, &input, &indices, &updates, threads).unwrap();
            assert_eq!(bytes(&got), bytes(&expected), "{combine:?} {shape:?} {picks} {varies:?} {threads}");
        }
    }

    #[test]
    fn updates_are_applied_in_order_on_any_number_of_threads() {
        let shapes = [
            ([1, 50, 1], 40_000),
            ([1, 70_000, 1], 40_000),
            ([1, 1, 1], 9),
            ([70, 9, 1], 1000),
            ([3, 5, 7], 40),
            ([2, 40, 300], 200),
            ([1, 64, 5000], 90),
            ([1, 9, 33], 3000),
            ([2, 3, 4], 0),
            ([0, 3, 4], 5),
            ([2, 3, 0], 5),
        ];
        let varies = [[true; 3], [false, true, false], [true, true, false], [false, true, true]];
        for (shape, picks) in shapes {
            for varies in varies {
                check::<f32>(Combine::Add, shape, picks, varies);
                check::<f32>(Combine::Assign, shape, picks, varies);
                dispatch!(DType::BFloat16, T => check::<T>(Combine::Add, shape, picks, varies));
                check::<i8>(Combine::Mul, shape, picks, varies);
                check::<f64>(Combine::Min, shape, picks, varies);
                check::<u16>(Combine::Max, shape, picks, varies);
                check::<max_core::Bool>(Combine::Add, shape, picks, varies);
            }
        }
    }

    #[test]
    fn bad_indices_are_named() {
        // The first of a line, whichever task finds one first.
        for (shape, strides) in [([9, 4, 1], [5, 1, 0]), ([1, 4, 40], [0, 1, 0]), ([1, 4, 1], [0, 1, 0])] {
            let k = kernel(DType::Float32, Combine::Add, shape, 5, strides);
            let count = shape.iter().product::<i64>() as usize;
            let (input, updates) = (vec![1f32; count], vec![1f32; 5 * count / 4]);
            let mut indices = vec![0; 45];
            indices[3] = 4;
            indices[4] = -7;
            let error = run(&k, &input, &indices, &updates, 2).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Index);
            assert_eq!(error.message(), "index 4 is out of range for axis 1 with size 4");
        }
        // Also where nothing is updated.
        let mut k = kernel(DType::Float32, Combine::Add, [1, 4, 0], 2, [0, 1, 0]);
        k.space.index_shape[2] = 1;
        assert!(run::<f32>(&k, &[], &[0, 3], &[], 2).is_ok());
        assert!(run::<f32>(&k, &[], &[0, -5], &[], 2).is_err());
    }
}
