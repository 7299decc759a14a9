//! Softmax over blocks of keys: what a block gives each row, and how blocks add up.

use std::marker::PhantomData;
use std::ops::{Add, Mul, Sub};

use crate::matmul::{Micro, ROW};
use crate::simd::{Isa, versions};

/// Elements that are computed together; rows of scores have room for whole groups.
pub(super) const GROUP: usize = 64;

/// As many elements as one register of the widest vectors holds at most.
const LANES: usize = 16;

/// The most rows that are weighed together.
pub(super) const LINES: usize = 16;

/// A type of scores.
pub(super) trait Real:
    Micro + Sync + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self>
{
    /// The sum with a product, in one rounding where the machine has that.
    fn mul_add<const FMA: bool>(self, factor: Self, term: Self) -> Self;

    /// How weights fall with scores that are multiplied with a scale, if that can be left to the weights.
    fn slope(scale: f64) -> Option<Slope<Self>>;

    /// The weight of a score that is so far from the greatest, at most zero. NaN gives NaN.
    fn weight<const FMA: bool>(self, slope: Slope<Self>) -> Self;

    /// One through the value.
    fn reciprocal(self) -> Self;
}

/// How weights fall with scores: a weight is a power of the distance times the factor; below the lowest distance it
/// is zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slope<L> {
    factor: L,
    lowest: L,
}

/// Scales that can be left to the weights: products with them neither overflow nor vanish.
const SCALES: std::ops::RangeInclusive<f64> = 1e-20..=1e20;

impl Real for f32 {
    #[inline(always)]
    fn mul_add<const FMA: bool>(self, factor: f32, term: f32) -> f32 {
        if FMA { self.mul_add(factor, term) } else { self * factor + term }
    }

    fn slope(scale: f64) -> Option<Slope<f32>> {
        let factor = (scale * std::f64::consts::LOG2_E) as f32;
        SCALES.contains(&scale).then(|| Slope { factor, lowest: -127.0 / factor })
    }

    /// A power of two whose error is below 2 units in the last place of the greatest weight. What would be
    /// below the normal numbers is zero.
    #[inline(always)]
    fn weight<const FMA: bool>(self, slope: Slope<f32>) -> f32 {
        // Adding it rounds to a whole number n and leaves n + 127 in the low bits, the exponent of 2 to the n; for the
        // lowest n these bits are those of zero.
        const ROUNDER: f32 = 12_582_912.0 + 127.0;
        let x = if self < slope.lowest { slope.lowest } else { self };
        let shifted = Real::mul_add::<FMA>(x, slope.factor, ROUNDER);
        let n = shifted - ROUNDER;
        let power = f32::from_bits(shifted.to_bits() << 23);
        let r = Real::mul_add::<FMA>(x, slope.factor, -n);
        let mut q = 1.545_316_3e-4;
        for c in [1.339_086_3e-3, 9.618_083e-3, 5.550_357e-2, 0.240_226_5, std::f32::consts::LN_2] {
            q = Real::mul_add::<FMA>(q, r, c);
        }
        Real::mul_add::<FMA>(q * r, power, power)
    }

    #[inline(always)]
    fn reciprocal(self) -> f32 {
        1.0 / self
    }
}

impl Real for f64 {
    #[inline(always)]
    fn mul_add<const FMA: bool>(self, factor: f64, term: f64) -> f64 {
        if FMA { self.mul_add(factor, term) } else { self * factor + term }
    }

    fn slope(scale: f64) -> Option<Slope<f64>> {
        SCALES.contains(&scale).then_some(Slope { factor: scale, lowest: -708.0 / scale })
    }

    #[inline(always)]
    fn weight<const FMA: bool>(self, slope: Slope<f64>) -> f64 {
        /// ln 2 in two parts; whole numbers of up to 11 bits times the first are exact.
        const LN_2: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];
        const ROUNDER: f64 = 6_755_399_441_055_744.0 + 1023.0;
        let below = self < slope.lowest;
        let x = if below { slope.lowest } else { self } * slope.factor;
        let shifted = Real::mul_add::<FMA>(x, std::f64::consts::LOG2_E, ROUNDER);
        let n = shifted - ROUNDER;
        let power = f64::from_bits(shifted.to_bits() << 52);
        let r = Real::mul_add::<FMA>(n, -LN_2[1], Real::mul_add::<FMA>(n, -LN_2[0], x));
        // The series of e to the r, which is at most half of ln 2.
        let mut q = 1.0 / 6_227_020_800.0;
        for factorial in [
            479_001_600.0,
            39_916_800.0,
            3_628_800.0,
            362_880.0,
            40_320.0,
            5_040.0,
            720.0,
            120.0,
            24.0,
            6.0,
            2.0,
            1.0,
        ] {
            q = Real::mul_add::<FMA>(q, r, 1.0 / factorial);
        }
        let weight = Real::mul_add::<FMA>(q * r, power, power);
        if below { 0.0 } else { weight }
    }

    #[inline(always)]
    fn reciprocal(self) -> f64 {
        1.0 / self
    }
}

/// What is done to scores, from rows [`ROW`] apart.
#[derive(Clone, Copy)]
pub(super) enum Mask<L> {
    None,
    /// Added; negative infinity hides whatever the score is.
    Add(*const L),
    /// Not zero where a score is kept.
    Keep(*const L),
}

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
        let plain = Slope { factor: L::splat(1.0), lowest: L::splat(f64::NEG_INFINITY) };
        match L::slope(scale).filter(|_| !adds) {
            Some(slope) => Weighing { scale: None, slope },
            None => Weighing { scale: Some(L::splat(scale)), slope: L::slope(1.0).unwrap_or(plain) },
        }
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
    pub(super) seen: [[usize; 2]; LINES],
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
                let [from, to] = scores.seen[row];
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
    let [from, to] = scores.seen[row];
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check<L: Real>(to_f64: impl Fn(L) -> f64, unit: f64) {
        for scale in [1.0, 0.125, 3.0] {
            let slope = L::slope(scale).unwrap();
            for i in 0..40_000 {
                let x = L::splat(-f64::from(i) / 400.0 / scale);
                let exact = (to_f64(x) * scale).exp();
                for weight in [x.weight::<true>(slope), x.weight::<false>(slope)] {
                    let error = (to_f64(weight) - exact).abs();
                    assert!(error <= unit * exact.sqrt(), "{} for {exact}", to_f64(weight));
                }
            }
            for (x, weight) in [(0.0, 1.0), (f64::NEG_INFINITY, 0.0), (-1e30, 0.0)] {
                assert_eq!(to_f64(L::splat(x).weight::<true>(slope)), weight);
                assert_eq!(to_f64(L::splat(x).weight::<false>(slope)), weight);
            }
            assert!(to_f64(L::splat(f64::NAN).weight::<true>(slope)).is_nan());
        }
    }

    #[test]
    fn weights_are_powers() {
        check::<f32>(f64::from, 1.2e-7);
        check::<f64>(|x| x, 2.3e-16);
        for bits in [0x7fc0_0001, 0xffc1_2345u32] {
            let slope = f32::slope(1.0).unwrap();
            assert!(f32::from_bits(bits).weight::<true>(slope).is_nan());
        }
    }
}
