//! Softmax over blocks of keys: what a block gives each row, and how blocks add up.

use std::marker::PhantomData;

use super::weight::{Real, Slope};
use crate::matmul::ROW;
use crate::simd::{Isa, versions};

/// Elements that are computed together; rows of scores have room for whole groups.
pub(super) const GROUP: usize = 64;

/// As many elements as one register of the widest vectors holds at most.
const LANES: usize = 16;

/// The most rows that are weighed together.
pub(super) const LINES: usize = 16;

/// What is done to scores, from rows [`ROW`] apart.
#[derive(Clone, Copy)]
pub(super) enum Mask<L> {
    None,
    /// Added; negative infinity hides whatever the score is.
    Add(*const L),
    /// Not zero where a score is kept.
    Keep(*const L),
}

/// Scales that can be left to the weights: products with them neither overflow nor vanish.
const SCALES: std::ops::RangeInclusive<f64> = 1e-20..=1e20;

/// How scores become weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weighing<L> {
    /// What scores are multiplied with before they are compared; nothing where that is left to the weights.
    scale: Option<L>,
    slope: Slope<L>,
}

impl<L: Real> Weighing<L> {
    /// For scores with a scale, to which numbers are added or not.
    pub(super) fn new(scale: f64, adds: bool) -> Weighing<L> {
        if adds || !SCALES.contains(&scale) {
            return Weighing { scale: Some(L::splat(scale)), slope: L::slope(1.0) };
        }
        Weighing { scale: None, slope: L::slope(scale) }
    }
}

/// What is known of some rows: the greatest score, the sum of weights, and the sums of weighted values, rows so far apart.
#[derive(Clone, Copy)]
pub(super) struct State<L> {
    pub(super) greatest: *mut L,
    pub(super) totals: *mut L,
    pub(super) sums: *mut L,
    pub(super) stride: usize,
}

impl<L: Real> State<L> {
    /// The state of the rows of a group, of which each before has so many.
    pub(super) fn group(self, number: usize, rows: usize) -> State<L> {
        State {
            greatest: self.greatest.wrapping_add(number * LINES),
            totals: self.totals.wrapping_add(number * LINES),
            sums: self.sums.wrapping_add(number * rows * self.stride),
            stride: self.stride,
        }
    }

    /// Rows that have seen nothing, in so many groups.
    ///
    /// # Safety
    ///
    /// There is room for the rows.
    pub(super) unsafe fn clear(self, rows: usize, groups: usize) {
        // SAFETY: the caller vouches.
        unsafe {
            for i in 0..groups * LINES {
                self.greatest.add(i).write(L::splat(f64::NEG_INFINITY));
            }
            self.totals.write_bytes(0, groups * LINES);
            self.sums.write_bytes(0, rows * self.stride);
        }
    }
}

/// The scores of up to [`LINES`] rows with a block of keys.
pub(super) struct Scores<L> {
    /// [`ROW`] apart; they become weights.
    pub(super) scores: *mut L,
    pub(super) rows: usize,
    /// The scores that there are, from a whole group on.
    pub(super) keys: [usize; 2],
    /// From where to where each row sees them.
    pub(super) visible: [[usize; 2]; LINES],
    pub(super) mask: Mask<L>,
    pub(super) weighing: Weighing<L>,
    /// Where the greatest score and the sum of weights of each row go.
    pub(super) state: State<L>,
}

trait Body {
    /// # Safety
    ///
    /// The address is that of what the body works on, which is valid.
    unsafe fn run<const FMA: bool>(of: *const u8);
}

versions!(version: Body, fn(of: *const u8));

struct Weigh<L>(PhantomData<L>);

/// A vector of each row.
type Lines<L> = [[L; LANES]; LINES];

impl<L: Real> Body for Weigh<L> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(scores: *const u8) {
        let lowest = L::splat(f64::NEG_INFINITY);
        let mut lines = [[lowest; LANES]; LINES];
        // SAFETY: the caller vouches.
        unsafe {
            let scores = &*scores.cast::<Scores<L>>();
            let rows = scores.rows.min(LINES);
            let whole = scores.weighing.scale.is_none() && matches!(scores.mask, Mask::None);
            for (row, line) in lines[..rows].iter_mut().enumerate() {
                let [from, to] = scores.visible[row];
                if !(whole && from <= scores.keys[0] && scores.keys[1].next_multiple_of(GROUP) <= to) {
                    hide_row::<L, FMA>(scores, row);
                }
                greatest_of_row(scores, row, line);
            }
            reduce::<L, true>(&mut lines, rows);
            for (row, line) in lines[..rows].iter_mut().enumerate() {
                let greatest = line[0];
                scores.state.greatest.add(row).write(greatest);
                // Where nothing is seen, all weights are zero.
                let shift = if greatest == lowest { L::zeroed() } else { greatest };
                weigh_row::<L, FMA>(scores, row, shift, line);
            }
            reduce::<L, false>(&mut lines, rows);
            for (row, line) in lines[..rows].iter().enumerate() {
                scores.state.totals.add(row).write(line[0]);
            }
        }
    }
}

/// Turns scores into weights relative to the greatest of their row, and notes that and the sum of weights.
///
/// # Safety
///
/// The pieces of memory are valid for the rows, and rows of scores and masks for whole groups.
pub(super) unsafe fn weigh<L: Real>(scores: &Scores<L>) {
    // SAFETY: the caller vouches, and the version is one for this machine.
    unsafe { version::<Weigh<L>>(Isa::best())(std::ptr::from_ref(scores).cast()) };
}

/// Multiplies the scores of a row with their scale and hides what is masked or not seen. Plain loops here and below,
/// because closures would not be compiled for the instructions of the version around them.
///
/// # Safety
///
/// As for [`weigh`]; there is such a row.
#[inline(always)]
unsafe fn hide_row<L: Real, const FMA: bool>(scores: &Scores<L>, row: usize) {
    let lowest = L::splat(f64::NEG_INFINITY);
    let scale = scores.weighing.scale.unwrap_or(L::splat(1.0));
    let [first, last] = [scores.keys[0], scores.keys[1].next_multiple_of(GROUP)];
    let [from, to] = scores.visible[row];
    // SAFETY: the caller vouches.
    unsafe {
        let line = scores.scores.add(row * ROW);
        match scores.mask {
            Mask::None => {
                for i in first..last {
                    line.add(i).write(line.add(i).read() * scale);
                }
            }
            Mask::Add(mask) => {
                let mask = mask.add(row * ROW);
                for i in first..last {
                    let (x, mask) = (line.add(i).read(), mask.add(i).read());
                    let sum = x.mul_add::<FMA>(scale, mask);
                    line.add(i).write(if mask == lowest { lowest } else { sum });
                }
            }
            Mask::Keep(mask) => {
                let mask = mask.add(row * ROW);
                for i in first..last {
                    let (x, mask) = (line.add(i).read() * scale, mask.add(i).read());
                    line.add(i).write(if mask == L::zeroed() { lowest } else { x });
                }
            }
        }
        for i in first..from.min(last) {
            line.add(i).write(lowest);
        }
        for i in to.max(first)..last {
            line.add(i).write(lowest);
        }
    }
}

/// The greatest scores of a row in each lane.
///
/// # Safety
///
/// As for [`weigh`]; there is such a row.
#[inline(always)]
unsafe fn greatest_of_row<L: Real>(scores: &Scores<L>, row: usize, to: &mut [L; LANES]) {
    let lowest = [L::splat(f64::NEG_INFINITY); LANES];
    let [mut a, mut b, mut c, mut d] = [lowest; GROUP / LANES];
    // SAFETY: the caller vouches.
    unsafe {
        let line = scores.scores.add(row * ROW).cast::<[L; LANES]>();
        for group in scores.keys[0] / GROUP..scores.keys[1].div_ceil(GROUP) {
            let x = line.add(group * (GROUP / LANES));
            a = both::<L, true, LANES>(x.read(), a);
            b = both::<L, true, LANES>(x.add(1).read(), b);
            c = both::<L, true, LANES>(x.add(2).read(), c);
            d = both::<L, true, LANES>(x.add(3).read(), d);
        }
    }
    *to = both::<L, true, LANES>(both::<L, true, LANES>(a, b), both::<L, true, LANES>(c, d));
}

/// Turns the scores of a row into weights, given what to subtract, and sums these in each lane.
///
/// # Safety
///
/// As for [`weigh`]; there is such a row.
#[inline(always)]
unsafe fn weigh_row<L: Real, const FMA: bool>(scores: &Scores<L>, row: usize, shift: L, to: &mut [L; LANES]) {
    let slope = scores.weighing.slope;
    let [mut a, mut b, mut c, mut d] = [[L::zeroed(); LANES]; GROUP / LANES];
    // SAFETY: the caller vouches.
    unsafe {
        let line = scores.scores.add(row * ROW).cast::<[L; LANES]>();
        for group in scores.keys[0] / GROUP..scores.keys[1].div_ceil(GROUP) {
            let x = line.add(group * (GROUP / LANES));
            a = both::<L, false, LANES>(a, weigh_lanes::<L, FMA>(x, shift, slope));
            b = both::<L, false, LANES>(b, weigh_lanes::<L, FMA>(x.add(1), shift, slope));
            c = both::<L, false, LANES>(c, weigh_lanes::<L, FMA>(x.add(2), shift, slope));
            d = both::<L, false, LANES>(d, weigh_lanes::<L, FMA>(x.add(3), shift, slope));
        }
    }
    *to = both::<L, false, LANES>(both::<L, false, LANES>(a, b), both::<L, false, LANES>(c, d));
}

/// Turns a vector of scores into weights.
///
/// # Safety
///
/// They can be read and written.
#[inline(always)]
unsafe fn weigh_lanes<L: Real, const FMA: bool>(
    at: *mut [L; LANES],
    shift: L,
    slope: Slope<L>,
) -> [L; LANES] {
    // SAFETY: the caller vouches.
    unsafe {
        let mut x = at.read();
        for x in &mut x {
            *x = (*x - shift).weight::<FMA>(slope);
        }
        at.write(x);
        x
    }
}

/// The greatest of each line's elements, or their sum, in the first: halves with each other until one is left.
#[inline(always)]
fn reduce<L: Real, const MAX: bool>(lines: &mut Lines<L>, rows: usize) {
    for line in &mut lines[..rows] {
        let x = halves::<L, MAX, 8>(line);
        let x = halves::<L, MAX, 4>(&x);
        let x = halves::<L, MAX, 2>(&x);
        line[0] = halves::<L, MAX, 1>(&x)[0];
    }
}

/// The halves of a vector with each other.
#[inline(always)]
fn halves<L: Real, const MAX: bool, const N: usize>(x: &[L]) -> [L; N] {
    let (mut low, mut high) = ([x[0]; N], [x[0]; N]);
    low.copy_from_slice(&x[..N]);
    high.copy_from_slice(&x[N..2 * N]);
    both::<L, MAX, N>(low, high)
}

/// The greater ones of two vectors (where they cannot be compared, those of the second), or their sum.
#[inline(always)]
fn both<L: Real, const MAX: bool, const N: usize>(mut a: [L; N], b: [L; N]) -> [L; N] {
    for i in 0..N {
        a[i] = match MAX {
            true if a[i] > b[i] => a[i],
            true => b[i],
            false => a[i] + b[i],
        };
    }
    a
}

/// A block to be added to what is known of up to [`LINES`] rows.
struct Fold<L> {
    rows: usize,
    weighing: Weighing<L>,
    to: State<L>,
    part: State<L>,
}

impl<L: Real> Body for Fold<L> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(fold: *const u8) {
        // SAFETY: the caller vouches.
        unsafe {
            let Fold { rows, weighing: Weighing { slope, .. }, to, part } = *fold.cast::<Fold<L>>();
            let lowest = L::splat(f64::NEG_INFINITY);
            let (before, added) = (to.greatest.cast::<[L; LINES]>(), part.greatest.cast::<[L; LINES]>());
            let (mut old, mut new) = (before.read(), added.read());
            let (mut totals, part_totals) =
                (to.totals.cast::<[L; LINES]>().read(), part.totals.cast::<[L; LINES]>().read());
            let mut greatest = old;
            for i in 0..LINES {
                greatest[i] = if new[i] > old[i] { new[i] } else { old[i] };
                let shift = if greatest[i] == lowest { L::zeroed() } else { greatest[i] };
                old[i] = (old[i] - shift).weight::<FMA>(slope);
                new[i] = (new[i] - shift).weight::<FMA>(slope);
                totals[i] = totals[i].mul_add::<FMA>(old[i], part_totals[i] * new[i]);
            }
            before.write(greatest);
            to.totals.cast::<[L; LINES]>().write(totals);
            for row in 0..rows {
                let (sums, part) = (to.sums.add(row * to.stride), part.sums.add(row * part.stride));
                for i in 0..to.stride {
                    let sum = sums.add(i).read().mul_add::<FMA>(old[row], part.add(i).read() * new[row]);
                    sums.add(i).write(sum);
                }
            }
        }
    }
}

/// Adds what a block gave up to [`LINES`] rows to what is known of them.
///
/// # Safety
///
/// Both states hold these rows, with one stride.
pub(super) unsafe fn fold<L: Real>(weighing: Weighing<L>, rows: usize, to: State<L>, part: State<L>) {
    let fold = Fold { rows, weighing, to, part };
    // SAFETY: the caller vouches, and the version is one for this machine.
    unsafe { version::<Fold<L>>(Isa::best())(std::ptr::from_ref(&fold).cast()) };
}

/// The sums of a row to be divided by a total.
struct Divide<L> {
    sums: *const L,
    total: L,
    count: usize,
    to: *mut L,
}

impl<L: Real> Body for Divide<L> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(divide: *const u8) {
        // SAFETY: the caller vouches; results need not be aligned.
        unsafe {
            let Divide { sums, total, count, to } = *divide.cast::<Divide<L>>();
            let factor = total.reciprocal();
            for i in 0..count {
                to.add(i).write_unaligned(sums.add(i).read() * factor);
            }
        }
    }
}

/// Divides so many sums by a total; they may stay where they are.
///
/// # Safety
///
/// The sums can be read and the results written.
pub(super) unsafe fn divide<L: Real>(sums: *const L, total: L, count: usize, to: *mut L) {
    let divide = Divide { sums, total, count, to };
    // SAFETY: the caller vouches, and the version is one for this machine.
    unsafe { version::<Divide<L>>(Isa::best())(std::ptr::from_ref(&divide).cast()) };
}
