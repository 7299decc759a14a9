//! Indices of gathers and scatters: each is read once, checked, and becomes the place of an element. Nothing but these places
//! is used afterwards, because another thread may change the indices meanwhile.

use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

use max_core::kernel::{Access, Indexed, Slot};
use max_core::{Element, Result, bail, dispatch};

use crate::matmul::count;
use crate::simd::{Isa, versions};
use crate::{Memory, Pool};

/// Roughly how many indices a task reads.
const TASK: usize = 1 << 14;

/// How many places are found at once where they are not kept.
pub(crate) const BLOCK: usize = 256;

/// An access along some axes of its space: the offset and the strides are in elements, of a size in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Along<const N: usize> {
    slot: Slot,
    size: usize,
    offset: isize,
    pub(crate) strides: [isize; N],
}

impl<const N: usize> Along<N> {
    /// An access along these axes.
    pub(crate) fn new(access: &Access<i64>, axes: [usize; N]) -> Along<N> {
        Along {
            slot: access.slot,
            size: access.dtype.size_in_bytes(),
            offset: access.offset as isize,
            strides: axes.map(|axis| access.strides[axis] as isize),
        }
    }

    /// The address of an element.
    pub(crate) fn at(&self, memory: &[Memory], index: [usize; N]) -> *mut u8 {
        let steps = index.iter().zip(self.strides).map(|(&i, stride)| i as isize * stride);
        let element = self.offset + steps.sum::<isize>();
        memory[self.slot.0 as usize].ptr().wrapping_offset(element * self.size as isize)
    }

    /// An address some elements further on.
    pub(crate) fn after(&self, address: *mut u8, elements: isize) -> *mut u8 {
        address.wrapping_offset(elements * self.size as isize)
    }
}

/// Finds the places that indices mean in an array.
#[derive(Debug)]
pub(crate) struct Finder {
    /// How many indices there are: outer, picks and inner.
    counts: [usize; 3],
    indices: Along<4>,
    /// The sizes of the indexed axes, and the distances between their elements in the array.
    sizes: Vec<i64>,
    strides: Vec<isize>,
    axis: usize,
    find: Find,
    adjacent: unsafe fn(&mut Block),
}

/// Finds places, given the address of the first index and the distance to the next one.
type Find = unsafe fn(&Finder, (*const u8, isize), &mut [isize]) -> Found;

/// Whether all indices are in range.
pub(crate) type Found = Result<(), OutOfRange>;

/// An index out of range, and the indexed axis it was meant for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutOfRange {
    index: i128,
    axis: usize,
}

impl Finder {
    /// For an array, which is walked over the outer size, the indexed axes and the inner size.
    pub(crate) fn new(space: &Indexed<i64>, array: &Access<i64>) -> Result<Finder> {
        let Indexed { outer, sizes, inner, index_shape, indices, axis } = space;
        let [by_outer, picks, by_inner, coordinates] = *index_shape;
        let fits = |by: i64, all: i64| by == 1 || by == all;
        if !indices.dtype.is_integral()
            || coordinates != sizes.len() as i64
            || array.strides.len() != sizes.len() + 2
            || !fits(by_outer, *outer)
            || !fits(by_inner, *inner)
        {
            bail!(internal, "{} indices of the shape {index_shape:?} for the sizes {sizes:?}", indices.dtype);
        }
        for sizes in
            [&[*outer, picks, *inner][..], &index_shape[..3], &[&[*outer, *inner], &sizes[..]].concat()]
        {
            if !sizes.contains(&0) {
                count(sizes)?;
            }
        }
        let mut along = Along::new(indices, [0, 1, 2, 3]);
        for (axis, by) in [(0, by_outer), (2, by_inner)] {
            if by == 1 {
                along.strides[axis] = 0;
            }
        }
        Ok(Finder {
            counts: [by_outer, picks, by_inner].map(|size| size as usize),
            indices: along,
            sizes: sizes.clone(),
            strides: array.strides[1..=sizes.len()].iter().map(|&stride| stride as isize).collect(),
            axis: *axis,
            find: dispatch!(indices.dtype, T => match sizes.len() {
                1 => find_one::<T>,
                _ => find_all::<T>,
            }),
            adjacent: dispatch!(indices.dtype, T => version::<Indices<T>>(Isa::best())),
        })
    }

    /// The places that indices may have: the first one, and the end.
    pub(crate) fn range(&self) -> (isize, isize) {
        let reach =
            self.sizes.iter().zip(&self.strides).map(|(&size, &stride)| (size - 1).max(0) as isize * stride);
        reach.fold((0, 1), |(low, high), reach| (low + reach.min(0), high + reach.max(0)))
    }

    /// Whether every outer and inner position has the same indices.
    pub(crate) fn is_shared(&self) -> bool {
        self.indices.strides[0] == 0 && self.indices.strides[2] == 0
    }

    /// Finds the places of neighbouring picks of a line.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, and the picks exist.
    pub(crate) unsafe fn picks(
        &self,
        memory: &[Memory],
        [outer, pick, inner]: [usize; 3],
        places: &mut [isize],
    ) -> Found {
        let first = self.indices.at(memory, [outer, pick, inner, 0]).cast_const();
        // SAFETY: guaranteed by the caller.
        unsafe { (self.find)(self, (first, self.indices.strides[1]), places) }
    }

    /// Finds the places of a pick at neighbouring inner positions.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, and the positions exist.
    pub(crate) unsafe fn across(
        &self,
        memory: &[Memory],
        [outer, pick, inner]: [usize; 3],
        places: &mut [isize],
    ) -> Found {
        let first = self.indices.at(memory, [outer, pick, inner, 0]).cast_const();
        // SAFETY: guaranteed by the caller.
        unsafe { (self.find)(self, (first, self.indices.strides[2]), places) }
    }

    /// Finds the places of all picks, one outer position after the other; the indices are the same for all of inner.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, there is room for the places of this many outer positions, and nobody else
    /// uses it.
    pub(crate) unsafe fn table(
        &self,
        memory: &[Memory],
        pool: &Pool,
        lines: usize,
        places: *mut isize,
    ) -> Result<()> {
        let places = Room(places);
        self.in_tasks(pool, lines, &|line, pick, count| {
            let first = places.at(line * self.counts[1] + pick);
            // SAFETY: guaranteed by the caller; every task has places of its own.
            unsafe { self.picks(memory, [line, pick, 0], std::slice::from_raw_parts_mut(first, count)) }
        })
    }

    /// Checks all indices.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn check(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        let [outer, _, inner] = self.counts;
        if self.counts.contains(&0) || self.sizes.is_empty() {
            return Ok(());
        }
        self.in_tasks(pool, outer * inner, &|line, pick, count| {
            let mut room = [0; BLOCK];
            (pick..pick + count).step_by(BLOCK).try_for_each(|first| {
                let some = BLOCK.min(pick + count - first);
                // SAFETY: guaranteed by the caller.
                unsafe { self.picks(memory, [line / inner, first, line % inner], &mut room[..some]) }
            })
        })
    }

    /// Calls a function with a line, its first pick and a number of picks, for all picks of some lines.
    fn in_tasks(
        &self,
        pool: &Pool,
        lines: usize,
        f: &(dyn Fn(usize, usize, usize) -> Found + Sync),
    ) -> Result<()> {
        let picks = self.counts[1];
        let failures = Failures::default();
        pool.run((lines * picks).div_ceil(TASK), &|task| {
            let mut at = task * TASK;
            let end = (lines * picks).min(at + TASK);
            while at < end {
                let (line, pick) = (at / picks, at % picks);
                let some = (picks - pick).min(end - at);
                if let Err(bad) = f(line, pick, some) {
                    return failures.note(task, bad);
                }
                at += some;
            }
        });
        failures.result(self)
    }
}

/// Room for places, of which each task uses its own.
struct Room(*mut isize);

// SAFETY: the places of a task are its own.
unsafe impl Sync for Room {}

impl Room {
    fn at(&self, place: usize) -> *mut isize {
        self.0.wrapping_add(place)
    }
}

/// The failure of the first task that failed, whichever ran first.
#[derive(Default)]
pub(crate) struct Failures(Mutex<Option<(usize, OutOfRange)>>);

impl Failures {
    pub(crate) fn note(&self, task: usize, bad: OutOfRange) {
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none_or(|(other, _)| task < other) {
            *first = Some((task, bad));
        }
    }

    pub(crate) fn result(self, finder: &Finder) -> Result<()> {
        let Some((_, OutOfRange { index, axis })) =
            self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
        else {
            return Ok(());
        };
        let (size, axis) = (finder.sizes[axis], finder.axis + axis);
        bail!(index, "index {index} is out of range for axis {axis} with size {size}")
    }
}

/// The position that an index names along an axis; negative indices count from the end.
#[inline(always)]
fn position<T: Element>(index: T, size: i64, axis: usize) -> Result<i64, OutOfRange> {
    let wide = index.to_i128();
    let near = i64::try_from(wide).unwrap_or(i64::MAX);
    let position = if near < 0 { near + size } else { near };
    if (0..size).contains(&position) { Ok(position) } else { Err(OutOfRange { index: wide, axis }) }
}

/// Some adjacent indices along one axis, and room for their places.
struct Block {
    indices: *const u8,
    places: *mut isize,
    count: usize,
    size: i64,
    stride: isize,
    /// Whether all of them are in range.
    good: bool,
}

trait Body {
    /// Finds the places of a block; those of indices out of range are anything.
    ///
    /// # Safety
    ///
    /// The indices can be read, and the places written.
    unsafe fn run<const FMA: bool>(block: &mut Block);
}

versions!(version: Body, fn(block: &mut Block));

struct Indices<T>(PhantomData<T>);

impl<T: Element> Body for Indices<T> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(block: &mut Block) {
        let Block { indices, places, count, size, stride, .. } = *block;
        let (indices, size, mut bad) = (indices.cast::<T>(), size as u64, false);
        for i in 0..count {
            // SAFETY: guaranteed by the caller; indices need not be aligned.
            unsafe {
                let index = indices.add(i).read_unaligned().to_i128() as u64;
                let behind = T::DTYPE.is_signed_integral() && (index as i64) < 0;
                let position = index.wrapping_add(if behind { size } else { 0 });
                bad |= position >= size;
                places.add(i).write((position as isize).wrapping_mul(stride));
            }
        }
        block.good = !bad;
    }
}

/// # Safety
///
/// As many indices of type `T` as there are places can be read.
unsafe fn find_one<T: Element>(finder: &Finder, indices: (*const u8, isize), places: &mut [isize]) -> Found {
    let ((first, step), size, stride) = (indices, finder.sizes[0], finder.strides[0]);
    if step == 1 {
        let (count, good) = (places.len(), false);
        let mut block = Block { indices: first, places: places.as_mut_ptr(), count, size, stride, good };
        // SAFETY: guaranteed by the caller.
        unsafe { (finder.adjacent)(&mut block) };
        if block.good {
            return Ok(());
        }
    }
    for (i, place) in places.iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller; indices need not be aligned.
        let index = unsafe { first.cast::<T>().wrapping_offset(i as isize * step).read_unaligned() };
        *place = position(index, size, 0)? as isize * stride;
    }
    Ok(())
}

/// # Safety
///
/// As many indices of type `T` as there are places, for every axis, can be read.
unsafe fn find_all<T: Element>(finder: &Finder, indices: (*const u8, isize), places: &mut [isize]) -> Found {
    let (first, step) = indices;
    for (i, place) in places.iter_mut().enumerate() {
        let mut sum = 0;
        for (axis, (&size, &stride)) in finder.sizes.iter().zip(&finder.strides).enumerate() {
            let at = i as isize * step + axis as isize * finder.indices.strides[3];
            // SAFETY: guaranteed by the caller; indices need not be aligned.
            let index = unsafe { first.cast::<T>().wrapping_offset(at).read_unaligned() };
            sum += position(index, size, axis)? as isize * stride;
        }
        *place = sum;
    }
    Ok(())
}
