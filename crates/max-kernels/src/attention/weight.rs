//! Weights of scores: exponentials of their distance from the greatest, element by element and without branches.

use std::ops::{Add, Mul, Sub};

use crate::matmul::Micro;

/// A type of scores.
pub(super) trait Real:
    Micro + Sync + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self>
{
    /// `self * factor + term`, rounded once where the machine has FMA.
    fn mul_add<const FMA: bool>(self, factor: Self, term: Self) -> Self;

    /// The slope for scores that are multiplied by a scale, which is positive and of moderate size.
    fn slope(scale: f64) -> Slope<Self>;

    /// The weight of a score from its distance to the greatest, which is at most zero. NaN gives NaN.
    fn weight<const FMA: bool>(self, slope: Slope<Self>) -> Self;

    /// One divided by the value.
    fn reciprocal(self) -> Self;
}

/// How weights fall with scores: a weight is the exponential of the distance times the factor; below the lowest
/// distance it is zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slope<L> {
    factor: L,
    lowest: L,
}

impl Real for f32 {
    #[inline(always)]
    fn mul_add<const FMA: bool>(self, factor: f32, term: f32) -> f32 {
        if FMA { self.mul_add(factor, term) } else { self * factor + term }
    }

    fn slope(scale: f64) -> Slope<f32> {
        let factor = (scale * std::f64::consts::LOG2_E) as f32;
        Slope { factor, lowest: -127.0 / factor }
    }

    /// A power of two whose error is below 2 units in the last place of the greatest weight. Subnormal results become
    /// zero.
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

    fn slope(scale: f64) -> Slope<f64> {
        Slope { factor: scale, lowest: -708.0 / scale }
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
        // The series of e^r, where r is at most half of ln 2.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check<L: Real>(to_f64: impl Fn(L) -> f64, unit: f64) {
        for scale in [1.0, 0.125, 3.0] {
            let slope = L::slope(scale);
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
            let slope = f32::slope(1.0);
            assert!(f32::from_bits(bits).weight::<true>(slope).is_nan());
        }
    }
}
