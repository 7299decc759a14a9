//! The seeds of random tensors: each draw has its own, which follows from one seed and the number of draws since.

use std::sync::Mutex;

use crate::lock;

struct Draws {
    seed: u64,
    count: u64,
}

static DRAWS: Mutex<Draws> = Mutex::new(Draws { seed: 0, count: 0 });

/// Starts the sequence of seeds over: the same seed gives the same tensors from here on.
pub fn set_seed(seed: u64) {
    *lock(&DRAWS) = Draws { seed, count: 0 };
}

/// The seed of the next random tensor.
pub fn next_seed() -> i64 {
    let mut draws = lock(&DRAWS);
    draws.count += 1;
    mix(draws.seed ^ mix(draws.count)) as i64
}

/// Spreads a number over all 64 bits; different numbers stay different.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
