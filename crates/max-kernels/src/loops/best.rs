//! Positions of the largest and the smallest elements: a best value and its index for each lane.
//!
//! The first of equal elements wins, and NaN beats everything. A negative index marks an empty lane.

use max_core::kernel::Reduction;
use max_core::scalar::{Lane, MaskLane};
use max_core::{Bool, DType, Element, dispatch};

use crate::tile::{Arg, GROUP};

/// Elements and their indices, to be compared with the best of lanes.
#[derive(Clone, Copy)]
pub(super) struct Offer {
    pub(super) values: Arg,
    pub(super) indices: Indices,
}

/// The indices of offered elements.
#[derive(Clone, Copy)]
pub(super) enum Indices {
    /// The same index for all.
    Same(i64),
    /// Consecutive indices; the first one goes to the first lane.
    From(i64),
    /// One index per element.
    Given(*const i64),
}

/// The functions for one dtype.
#[derive(Clone, Copy, Debug)]
pub(super) struct Best {
    /// Offers elements to lanes: element `i` to lane `i` modulo the number of lanes.
    pub(super) offer: unsafe fn(values: *mut u8, indices: *mut i64, lanes: usize, offer: Offer, count: usize),
    /// Broadcasts the best of a group of lanes to all of them.
    pub(super) finish: unsafe fn(values: *mut u8, indices: *mut i64),
}

/// The functions for elements in registers.
pub(super) fn best(kind: Reduction, register: DType) -> Best {
    dispatch!(register, T => match kind {
        Reduction::ArgMin => Best { offer: offer::<T, true>, finish: finish::<T, true> },
        _ => Best { offer: offer::<T, false>, finish: finish::<T, false> },
    })
}

/// Whether a new element replaces the best one so far.
#[inline(always)]
fn wins<T: Element, const MIN: bool>(best: (T, i64), new: (T, i64)) -> bool {
    let (old, value) = (best.0.to_lane(), new.0.to_lane());
    let (same, is_nan) = (value.eq(old), value.eq(value).not());
    let beats = if MIN { value.lt(old) } else { old.lt(value) };
    let earlier = Bool::from(new.1 < best.1);
    let among_numbers = beats.or(is_nan).or(same.and(earlier));
    let old_is_nan = old.eq(old).not();
    best.1 < 0 || if old_is_nan.get() { is_nan.and(earlier).get() } else { among_numbers.get() }
}

/// # Safety
///
/// Both arrays have `lanes` lanes, a multiple of [`GROUP`]; the offer has `count` elements.
unsafe fn offer<T: Element, const MIN: bool>(
    values: *mut u8,
    indices: *mut i64,
    lanes: usize,
    offer: Offer,
    count: usize,
) {
    let (best, source) = (values.cast::<T>(), offer.values.ptr.cast::<T>());
    for at in 0..count {
        let lane = at % lanes;
        let from = if offer.values.repeat { at % GROUP } else { at };
        // SAFETY: the lane is one of `lanes`; the caller guarantees the offer.
        unsafe {
            let index = match offer.indices {
                Indices::Same(index) => index,
                Indices::From(first) => first + at as i64,
                Indices::Given(given) => *given.add(at),
            };
            let new = (source.add(from).read_unaligned(), index);
            if index >= 0 && wins::<T, MIN>((*best.add(lane), *indices.add(lane)), new) {
                (*best.add(lane), *indices.add(lane)) = new;
            }
        }
    }
}

/// # Safety
///
/// Both arrays have a group of lanes.
unsafe fn finish<T: Element, const MIN: bool>(values: *mut u8, indices: *mut i64) {
    // SAFETY: guaranteed by the caller; the two arrays do not overlap.
    let (values, indices) = unsafe {
        (
            std::slice::from_raw_parts_mut(values.cast::<T>(), GROUP),
            std::slice::from_raw_parts_mut(indices, GROUP),
        )
    };
    let mut best = (values[0], indices[0]);
    for new in values.iter().copied().zip(indices.iter().copied()).skip(1) {
        if new.1 >= 0 && wins::<T, MIN>(best, new) {
            best = new;
        }
    }
    values.fill(best.0);
    indices.fill(best.1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_wins_and_nan_beats_all() {
        let row = |kind, elements: &[f32]| {
            let best = best(kind, DType::Float32);
            let (mut values, mut indices) = ([0f32; GROUP], [-1i64; GROUP]);
            let offer = Offer {
                values: Arg { ptr: elements.as_ptr().cast(), repeat: false },
                indices: Indices::From(0),
            };
            // SAFETY: there is one group of lanes, and the offers have as many elements as stated.
            unsafe {
                (best.offer)(values.as_mut_ptr().cast(), indices.as_mut_ptr(), GROUP, offer, elements.len());
                (best.finish)(values.as_mut_ptr().cast(), indices.as_mut_ptr());
            }
            indices[GROUP - 1]
        };
        let long: Vec<f32> = (0..200).map(|i| (i % 70) as f32).collect();
        assert_eq!(row(Reduction::ArgMax, &long), 69);
        assert_eq!(row(Reduction::ArgMin, &long), 0);
        assert_eq!(row(Reduction::ArgMax, &[1.0, f32::NAN, 2.0, f32::NAN]), 1);
        assert_eq!(row(Reduction::ArgMin, &[1.0, f32::NAN, 0.0]), 1);
        assert_eq!(row(Reduction::ArgMax, &[]), -1);
    }
}
