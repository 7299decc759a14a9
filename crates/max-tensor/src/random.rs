//! Random tensors. The seed of each draw follows from the global seed and the number of draws since it was set; an element
//! follows from the seed of its draw and its position, so that threads and fusion do not change it.
//!
//! ```
//! use max_tensor::random;
//!
//! random::set_seed(7);
//! let first = random::uniform([2, 3], 0.0, 1.0)?;
//! random::set_seed(7);
//! let again = random::uniform([2, 3], 0.0, 1.0)?;
//! assert_eq!(first.to_vec::<f32>()?, again.to_vec::<f32>()?);
//! # Ok::<(), max_core::Error>(())
//! ```

use std::sync::Mutex;

use max_core::{Result, Shape, TensorType};

use crate::defaults::defaults;
use crate::functions as F;
use crate::lock;
use crate::tensor::Tensor;

struct Draws {
    seed: u64,
    count: u64,
}

static DRAWS: Mutex<Draws> = Mutex::new(Draws { seed: 0, count: 0 });

/// Numbers uniformly distributed from `low` up to, but not including, `high`.
#[track_caller]
pub fn uniform(shape: impl Into<Shape>, low: f64, high: f64) -> Result<Tensor> {
    let (dtype, device) = defaults();
    F::random_uniform(TensorType::new(dtype, shape, device), low, high, Some(next_seed().into()))
}

/// Numbers normally distributed around `mean` with the standard deviation `std`.
#[track_caller]
pub fn gaussian(shape: impl Into<Shape>, mean: f64, std: f64) -> Result<Tensor> {
    let (dtype, device) = defaults();
    F::random_gaussian(TensorType::new(dtype, shape, device), mean, std, Some(next_seed().into()))
}

/// Restarts the sequence of seeds: the same seed gives the same tensors from here on.
pub fn set_seed(seed: u64) {
    *lock(&DRAWS) = Draws { seed, count: 0 };
}

/// The seed of the next random tensor.
pub fn next_seed() -> u64 {
    let mut draws = lock(&DRAWS);
    draws.count += 1;
    mix(draws.seed ^ mix(draws.count))
}

/// Mixes a number into all 64 bits; different numbers stay different.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
