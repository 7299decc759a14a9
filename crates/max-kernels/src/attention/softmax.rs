//! The softmax of a block of scores, as part of longer rows.

use std::marker::PhantomData;
use std::ops::{Add, Div, Mul, Sub};

use crate::math;
use crate::matmul::{Micro, ROW};
use crate::simd::{Isa, versions};

/// Elements that are computed together; rows of scores have room for whole groups.
const GROUP: usize = 64;

/// A type of scores.
pub(super) trait Real:
    Micro + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// e to the power of the value.
    fn exp<const FMA: bool>(self) -> Self;
}

impl Real for f32 {
    #[inline(always)]
    fn exp<const FMA: bool>(self) -> f32 {
        math::exp::<FMA>(self)
    }
}

impl Real for f64 {
    #[inline(always)]
    fn exp<const FMA: bool>(self) -> f64 {
        libm::exp(self)
    }
}

/// What is done to scores, from rows [`ROW`] apart.
#[derive(Clone, Copy)]
pub(super) enum Mask<L> {
    None,
    Add(*const L),
    /// Not zero where a score is kept.
    Keep(*const L),
}

/// The scores of some rows with a block of keys, and what is known of the rows.
pub(super) struct Scores<L> {
    /// [`ROW`] apart; they become weights.
    pub(super) scores: *mut L,
    pub(super) rows: usize,
    pub(super) keys: usize,
    /// How many of the keys the first row sees (it may be negative, or more than there are) and by how many more each
    /// row sees than the one before.
    pub(super) seen: [isize; 2],
    pub(super) scale: L,
    pub(super) mask: Mask<L>,
    /// The greatest score and the sum of weights of each row so far.
    pub(super) greatest: *mut L,
    pub(super) totals: *mut L,
    /// The weighted values of each row so far, as many as rows are apart.
    pub(super) sums: (*mut L, usize),
}

trait Body {
    /// # Safety
    ///
    /// As for [`weigh`].
    unsafe fn run<const FMA: bool>(scores: *const u8);
}

versions!(version: Body, fn(scores: *const u8));

struct Rows<L>(PhantomData<L>);

impl<L: Real> Body for Rows<L> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(scores: *const u8) {
        // SAFETY: the caller vouches.
        unsafe {
            let scores = &*scores.cast::<Scores<L>>();
            for row in 0..scores.rows {
                weigh_row::<L, FMA>(scores, row);
            }
        }
    }
}

/// Turns scores into weights relative to the greatest score so far, and scales what was summed to that.
///
/// # Safety
///
/// The pieces of memory are valid for the rows, and rows of scores and masks for whole groups.
pub(super) unsafe fn weigh<L: Real>(scores: &Scores<L>) {
    // SAFETY: the caller vouches, and the version is one for this machine.
    unsafe { version::<Rows<L>>(Isa::best())(std::ptr::from_ref(scores).cast()) };
}

/// Plain loops, because closures would not be compiled for the instructions of the version around them.
///
/// # Safety
///
/// As for [`weigh`]; there is such a row.
#[inline(always)]
unsafe fn weigh_row<L: Real, const FMA: bool>(scores: &Scores<L>, row: usize) {
    let lowest = L::splat(f64::NEG_INFINITY);
    let Scores { scale, mask, keys, .. } = *scores;
    let seen = scores.seen[0].saturating_add(row as isize * scores.seen[1]).clamp(0, keys as isize) as usize;
    let groups = keys.div_ceil(GROUP);
    // SAFETY: the caller vouches.
    unsafe {
        let line = scores.scores.add(row * ROW).cast::<[L; GROUP]>();
        let mut lanes = [lowest; GROUP];
        for group in 0..groups {
            let at = line.add(group);
            let masked = |mask: *const L| mask.add(row * ROW).cast::<[L; GROUP]>().add(group).read();
            let mut x = at.read();
            for x in &mut x {
                *x = *x * scale;
            }
            match mask {
                Mask::None => {}
                Mask::Add(mask) => {
                    let mask = masked(mask);
                    for i in 0..GROUP {
                        x[i] = x[i] + mask[i];
                    }
                }
                Mask::Keep(mask) => {
                    let mask = masked(mask);
                    for i in 0..GROUP {
                        x[i] = if mask[i] != L::zeroed() { x[i] } else { lowest };
                    }
                }
            }
            let end = seen.saturating_sub(group * GROUP).min(GROUP);
            for x in &mut x[end..] {
                *x = lowest;
            }
            for i in 0..GROUP {
                lanes[i] = if x[i] > lanes[i] { x[i] } else { lanes[i] };
            }
            at.write(x);
        }
        let before = scores.greatest.add(row).read();
        let mut greatest = before;
        for lane in lanes {
            greatest = if lane > greatest { lane } else { greatest };
        }
        scores.greatest.add(row).write(greatest);
        // Where nothing is seen yet, all weights are zero.
        let shift = if greatest == lowest { L::zeroed() } else { greatest };
        let mut lanes = [L::zeroed(); GROUP];
        for group in 0..groups {
            let at = line.add(group);
            let mut x = at.read();
            for x in &mut x {
                *x = (*x - shift).exp::<FMA>();
            }
            for i in 0..GROUP {
                lanes[i] = lanes[i] + x[i];
            }
            at.write(x);
        }
        let mut half = GROUP / 2;
        while half > 0 {
            for i in 0..half {
                lanes[i] = lanes[i] + lanes[i + half];
            }
            half /= 2;
        }
        let factor = (before - shift).exp::<FMA>();
        let total = scores.totals.add(row);
        total.write(total.read() * factor + lanes[0]);
        if factor != L::splat(1.0) {
            let (sums, stride) = scores.sums;
            for i in row * stride..(row + 1) * stride {
                sums.add(i).write(sums.add(i).read() * factor);
            }
        }
    }
}
