//! Softmax over blocks of keys: the contribution of a block to each row, and how contributions are combined.

use std::marker::PhantomData;

use super::weight::{Real, Slope};
use crate::matmul::ROW;
use crate::simd::{Isa, versions};

/// Elements that are computed together; rows of scores have room for whole groups.
pub(super) const GROUP: usize = 64;

/// The most elements in a register of the widest vector unit.
const LANES: usize = 16;

/// The most rows whose scores are turned into weights together.
pub(super) const LINES: usize = 16;

/// The mask of scores, in rows [`ROW`] apart.
#[derive(Clone, Copy)]
pub(super) enum Mask<L> {
    None,
    /// Added to the score; negative infinity hides any score, also NaN.
    Add(*const L),
    /// Nonzero where a score is kept.
    Keep(*const L),
}

/// Scales that can be applied while computing weights: multiplying by them neither overflows nor underflows.
const SCALES: std::ops::RangeInclusive<f64> = 1e-20..=1e20;

/// How scores become weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weighing<L> {
    /// The factor of scores before they are compared; `None` if the scale is applied while computing weights.
    scale: Option<L>,
    slope: Slope<L>,
}

impl<L: Real> Weighing<L> {
    /// For scores with a scale; `adds` says whether a mask is added to them.
    pub(super) fn new(scale: f64, adds: bool) -> Weighing<L> {
        if adds || !SCALES.contains(&scale) {
            return Weighing { scale: Some(L::splat(scale)), slope: L::slope(1.0) };
        }
        Weighing { scale: None, slope: L::slope(scale) }
    }
}

/// The running state of some rows: the greatest score, the sum of weights, and the weighted sums of values, in rows
/// `stride` apart.
#[derive(Clone, Copy)]
pub(super) struct State<L> {
    pub(super) greatest: *mut L,
    pub(super) totals: *mut L,
    pub(super) sums: *mut L,
    pub(super) stride: usize,
}

impl<L: Real> State<L> {
    /// The state of a group of rows, where each group before it has `rows` rows.
    pub(super) fn group(self, number: usize, rows: usize) -> State<L> {
        State {
            greatest: self.greatest.wrapping_add(number * LINES),
            totals: self.totals.wrapping_add(number * LINES),
            sums: self.sums.wrapping_add(number * rows * self.stride),
            stride: self.stride,
        }
    }

    /// Initializes the state of `rows` rows in `groups` groups, before any block.
    ///
    /// # Safety
    ///
    /// There is room for the rows.
    pub(super) unsafe fn clear(self, rows: usize, groups: usize) {
        // SAFETY: guaranteed by the caller.
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
    /// The range of computed scores; its start is a multiple of [`GROUP`].
    pub(super) keys: [usize; 2],
    /// The range of keys that each row sees.
    pub(super) visible: [[usize; 2]; LINES],
    pub(super) mask: Mask<L>,
    pub(super) weighing: Weighing<L>,
    /// Where the greatest score and the sum of weights of each row go.
    pub(super) state: State<L>,
}

trait Body {
    /// # Safety
    ///
    /// `of` points to the argument type of the body, and its pointers are valid.
    unsafe fn run<const FMA: bool>(of: *const u8);
}

versions!(version: Body, fn(of: *const u8));

struct Weigh<L>(PhantomData<L>);

/// One vector per row.
type Lines<L> = [[L; LANES]; LINES];

impl<L: Real> Body for Weigh<L> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(scores: *const u8) {
        let lowest = L::splat(f64::NEG_INFINITY);
        let mut lines = [[lowest; LANES]; LINES];
        // SAFETY: guaranteed by the caller.
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
                // If nothing is visible, all weights are zero.
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

/// Turns scores into weights relative to the greatest of their row, and writes that and the sum of weights to the
/// state.
///
/// # Safety
///
/// The pointers are valid for the rows, those to scores and masks for whole groups of elements.
pub(super) unsafe fn weigh<L: Real>(scores: &Scores<L>) {
    // SAFETY: guaranteed by the caller, and this version is one for this machine.
    unsafe { version::<Weigh<L>>(Isa::best())(std::ptr::from_ref(scores).cast()) };
}

/// Scores that become `cap * tanh(score * scale / cap)`.
struct Bound<L> {
    scores: *mut L,
    rows: usize,
    keys: [usize; 2],
    slope: Slope<L>,
    cap: L,
}

impl<L: Real> Body for Bound<L> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(of: *const u8) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let Bound { scores, rows, keys, slope, cap } = &*of.cast::<Bound<L>>();
            let (zero, one) = (L::zeroed(), L::splat(1.0));
            for row in 0..*rows {
                let line = scores.add(row * ROW);
                for i in keys[0]..keys[1].next_multiple_of(GROUP) {
                    let x = line.add(i).read();
                    let is_negative = x < zero;
                    // The exponential of twice the distance from zero, downwards.
                    let fall = (if is_negative { x } else { zero - x }).weight::<FMA>(*slope);
                    let size = *cap * (one - fall) * (one + fall).reciprocal();
                    line.add(i).write(if is_negative { zero - size } else { size });
                }
            }
        }
    }
}

/// Scales the scores of some rows and keeps them below a bound.
///
/// # Safety
///
/// The scores of whole groups of elements can be read and written.
pub(super) unsafe fn bound<L: Real>(scores: *mut L, rows: usize, keys: [usize; 2], scale: f64, cap: f64) {
    let slope = L::slope(2.0 * scale / cap);
    let bound = Bound { scores, rows, keys, slope, cap: L::splat(cap) };
    // SAFETY: guaranteed by the caller, and this version is one for this machine.
    unsafe { version::<Bound<L>>(Isa::best())(std::ptr::from_ref(&bound).cast()) };
}

/// Multiplies the scores of a row by their scale and hides what is masked or not visible. Plain loops here and below,
/// because closures would not be compiled for the instruction set of the version around them.
///
/// # Safety
///
/// As for [`weigh`]; the row exists.
#[inline(always)]
unsafe fn hide_row<L: Real, const FMA: bool>(scores: &Scores<L>, row: usize) {
    let lowest = L::splat(f64::NEG_INFINITY);
    let scale = scores.weighing.scale.unwrap_or(L::splat(1.0));
    let [first, last] = [scores.keys[0], scores.keys[1].next_multiple_of(GROUP)];
    let [from, to] = scores.visible[row];
    // SAFETY: guaranteed by the caller.
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

/// The greatest score of a row in each lane.
///
/// # Safety
///
/// As for [`weigh`]; the row exists.
#[inline(always)]
unsafe fn greatest_of_row<L: Real>(scores: &Scores<L>, row: usize, to: &mut [L; LANES]) {
    let lowest = [L::splat(f64::NEG_INFINITY); LANES];
    let [mut a, mut b, mut c, mut d] = [lowest; GROUP / LANES];
    // SAFETY: guaranteed by the caller.
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

/// Turns the scores of a row into weights, after subtracting `shift`, and sums them in each lane.
///
/// # Safety
///
/// As for [`weigh`]; the row exists.
#[inline(always)]
unsafe fn weigh_row<L: Real, const FMA: bool>(scores: &Scores<L>, row: usize, shift: L, to: &mut [L; LANES]) {
    let slope = scores.weighing.slope;
    let [mut a, mut b, mut c, mut d] = [[L::zeroed(); LANES]; GROUP / LANES];
    // SAFETY: guaranteed by the caller.
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
/// The scores can be read and written.
#[inline(always)]
unsafe fn weigh_lanes<L: Real, const FMA: bool>(
    at: *mut [L; LANES],
    shift: L,
    slope: Slope<L>,
) -> [L; LANES] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut x = at.read();
        for x in &mut x {
            *x = (*x - shift).weight::<FMA>(slope);
        }
        at.write(x);
        x
    }
}

/// Reduces each line to its maximum or sum in the first element, by combining halves until one element is left.
#[inline(always)]
fn reduce<L: Real, const MAX: bool>(lines: &mut Lines<L>, rows: usize) {
    for line in &mut lines[..rows] {
        let x = halves::<L, MAX, 8>(line);
        let x = halves::<L, MAX, 4>(&x);
        let x = halves::<L, MAX, 2>(&x);
        line[0] = halves::<L, MAX, 1>(&x)[0];
    }
}

/// Combines the halves of a vector.
#[inline(always)]
fn halves<L: Real, const MAX: bool, const N: usize>(x: &[L]) -> [L; N] {
    let (mut low, mut high) = ([x[0]; N], [x[0]; N]);
    low.copy_from_slice(&x[..N]);
    high.copy_from_slice(&x[N..2 * N]);
    both::<L, MAX, N>(low, high)
}

/// The elementwise maximum (the second operand if they cannot be compared) or sum of two vectors.
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

/// The contribution of a block to be folded into the state of up to [`LINES`] rows.
struct Fold<L> {
    rows: usize,
    weighing: Weighing<L>,
    to: State<L>,
    part: State<L>,
}

impl<L: Real> Body for Fold<L> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(fold: *const u8) {
        // SAFETY: guaranteed by the caller.
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

/// Folds the contribution of a block into the state of up to [`LINES`] rows.
///
/// # Safety
///
/// Both states hold these rows, with the same stride.
pub(super) unsafe fn fold<L: Real>(weighing: Weighing<L>, rows: usize, to: State<L>, part: State<L>) {
    let fold = Fold { rows, weighing, to, part };
    // SAFETY: guaranteed by the caller, and this version is one for this machine.
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
        // SAFETY: guaranteed by the caller; results need not be aligned.
        unsafe {
            let Divide { sums, total, count, to } = *divide.cast::<Divide<L>>();
            let factor = total.reciprocal();
            for i in 0..count {
                to.add(i).write_unaligned(sums.add(i).read() * factor);
            }
        }
    }
}

/// Divides `count` sums by a total; the results may replace the sums.
///
/// # Safety
///
/// The sums can be read and the results written.
pub(super) unsafe fn divide<L: Real>(sums: *const L, total: L, count: usize, to: *mut L) {
    let divide = Divide { sums, total, count, to };
    // SAFETY: guaranteed by the caller, and this version is one for this machine.
    unsafe { version::<Divide<L>>(Isa::best())(std::ptr::from_ref(&divide).cast()) };
}
