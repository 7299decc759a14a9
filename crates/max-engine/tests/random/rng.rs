//! Random numbers that are the same everywhere: splitmix64, and what is drawn from it.

/// A stream of random numbers.
pub struct Rng(u64);

impl Rng {
    /// The stream for a seed; streams of one seed with different numbers are independent.
    pub fn new(seed: u64, stream: u64) -> Rng {
        Rng(seed.wrapping_mul(0xd1b5_4a32_d192_ed03) ^ stream.wrapping_mul(0x8cb9_2ba7_2f3d_8dd7))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not zero.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as usize) as i64
    }

    /// True with a probability of `percent` in a hundred.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// One of the items, with probabilities proportional to their weights.
    pub fn weighted<'a, T>(&mut self, items: &'a [(usize, T)]) -> &'a T {
        let mut left = self.below(items.iter().map(|(weight, _)| weight).sum());
        let found = items.iter().find(|(weight, _)| match left.checked_sub(*weight) {
            None => true,
            Some(rest) => {
                left = rest;
                false
            }
        });
        &found.unwrap_or(&items[0]).1
    }

    /// A number in [-2, 2]; half of them on a coarse grid, so that ties and equal elements occur.
    pub fn tame(&mut self) -> f64 {
        match self.chance(50) {
            true => self.between(-16, 16) as f64 / 8.0,
            false => (self.next() >> 11) as f64 / (1u64 << 53) as f64 * 4.0 - 2.0,
        }
    }
}
