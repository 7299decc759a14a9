//! Counter-based random numbers: a number depends only on a seed, a position and a distribution.
//!
//! The position of an element in its tensor, in row-major order, is the counter of a Philox 4x32 block with ten rounds
//! (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011), and the 64 bits of the seed
//! are its key. Each element has its own block, so it is the same wherever and in whatever order it is computed.
//! A float32 is made from the first two words, a float64 from all four.

use crate::scalar::FloatLane;

/// How random numbers are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// Uniformly from zero up to but excluding one.
    Uniform,
    /// Normally, with mean zero and standard deviation one.
    Normal,
}

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

/// The high and the low word of the product.
#[inline(always)]
fn multiply(a: u32, b: u32) -> [u32; 2] {
    let product = u64::from(a) * u64::from(b);
    [(product >> 32) as u32, product as u32]
}

/// The words of a block of Philox 4x32 with ten rounds.
#[inline(always)]
pub fn philox(mut key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let mut block = counter;
    for _ in 0..ROUNDS {
        let [first, second] = [multiply(MULTIPLIERS[0], block[0]), multiply(MULTIPLIERS[1], block[2])];
        block = [second[0] ^ block[1] ^ key[0], second[1], first[0] ^ block[3] ^ key[1], first[1]];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    block
}

/// A lane that random words can fill.
pub trait UnitLane: FloatLane {
    /// Two uniform numbers from zero up to but excluding one, with as many bits as the lane can hold exactly.
    fn units(block: [u32; 4]) -> [Self; 2];
}

/// 24 bits of a word; signed, because that is what vector units convert.
#[inline(always)]
fn unit_f32(word: u32) -> f32 {
    (word >> 8) as i32 as f32 * (1.0 / 16_777_216.0)
}

/// 53 bits of two words.
#[inline(always)]
fn unit_f64(high: u32, low: u32) -> f64 {
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    bits as i64 as f64 * (1.0 / 9_007_199_254_740_992.0)
}

/// The low and the high word.
#[inline(always)]
fn words(bits: u64) -> [u32; 2] {
    [bits as u32, (bits >> 32) as u32]
}

impl UnitLane for f32 {
    #[inline(always)]
    fn units([a, b, _, _]: [u32; 4]) -> [f32; 2] {
        [unit_f32(a), unit_f32(b)]
    }
}

impl UnitLane for f64 {
    #[inline(always)]
    fn units([a, b, c, d]: [u32; 4]) -> [f64; 2] {
        [unit_f64(a, b), unit_f64(c, d)]
    }
}

impl Distribution {
    /// All of them.
    pub const ALL: [Distribution; 2] = [Distribution::Uniform, Distribution::Normal];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Distribution::Uniform => "uniform",
            Distribution::Normal => "normal",
        }
    }

    /// The random number for a seed and a position.
    #[inline(always)]
    pub fn draw<L: UnitLane>(self, seed: u64, position: u64) -> L {
        let [low, high] = words(position);
        let [u, v] = L::units(philox(words(seed), [low, high, 0, 0]));
        match self {
            Distribution::Uniform => u,
            // The Box-Muller transform: a uniform angle, and the radius of a normal distribution in the plane.
            Distribution::Normal => {
                let radius = L::splat(-2.0).mul(L::splat(1.0).sub(u).log()).sqrt();
                radius.mul(L::splat(std::f64::consts::TAU).mul(v).cos())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_of_the_published_generator() {
        assert_eq!(philox([0; 2], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 2], [u32::MAX; 4]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0xa409_3822, 0x299f_31d0], [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn units_are_below_one() {
        assert_eq!(f32::units([0, u32::MAX, 0, 0]), [0.0, 1.0 - f32::EPSILON / 2.0]);
        assert_eq!(f64::units([0, 0, u32::MAX, u32::MAX]), [0.0, 1.0 - f64::EPSILON / 2.0]);
    }

    /// Mean and variance are within six standard deviations of what is expected for this many draws.
    #[test]
    fn mean_and_variance_are_as_expected() {
        const COUNT: usize = 100_000;
        for (distribution, mean, variance, spread) in
            [(Distribution::Uniform, 0.5, 1.0 / 12.0, 0.08), (Distribution::Normal, 0.0, 1.0, 1.5)]
        {
            let wide = (0..COUNT).map(|at| distribution.draw::<f64>(7, at as u64)).collect::<Vec<_>>();
            let narrow = (0..COUNT).map(|at| f64::from(distribution.draw::<f32>(7, at as u64)));
            for draws in [wide, narrow.collect()] {
                let average = draws.iter().sum::<f64>() / COUNT as f64;
                let moment = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / COUNT as f64;
                let allowed = 6.0 / (COUNT as f64).sqrt();
                assert!(
                    (average - mean).abs() < allowed * variance.sqrt(),
                    "{distribution:?}: mean {average}"
                );
                assert!((moment - variance).abs() < allowed * spread, "{distribution:?}: variance {moment}");
            }
        }
    }

    #[test]
    fn seeds_and_positions_count_in_all_their_bits() {
        let first = Distribution::Uniform.draw::<f64>(0, 0);
        for bit in 0..64 {
            assert_ne!(Distribution::Uniform.draw::<f64>(1 << bit, 0), first);
            assert_ne!(Distribution::Uniform.draw::<f64>(0, 1 << bit), first);
        }
    }
}
