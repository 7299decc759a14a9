//! The peak rates of this machine: copy bandwidth, and multiply-adds per second.
//!
//! A kernel is judged by the share of these that it reaches, measured in the same run on the same threads.

use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::Pool;

/// How often each measurement is repeated; the median counts.
const ROUNDS: usize = 15;

/// Bytes read and written per second by a copy between arrays that fit in no cache.
pub fn copy_bandwidth(pool: &Pool) -> f64 {
    const LEN: usize = 1 << 24;
    let (from, mut to) = (vec![1f32; LEN], vec![0f32; LEN]);
    // Pieces within a cache and pieces beyond it: a large copy may bypass the caches, and either may be faster.
    let rates = [1 << 16, LEN / pool.threads()].map(|piece| {
        let pieces: Vec<_> = to.chunks_mut(piece).zip(from.chunks(piece)).map(Mutex::new).collect();
        let copy = |task: usize| {
            let mut pair = pieces[task].lock().unwrap_or_else(PoisonError::into_inner);
            let (to, from) = &mut *pair;
            to.copy_from_slice(from);
        };
        2.0 * size_of_val(&from[..]) as f64 / seconds(|| pool.run(pieces.len(), &copy))
    });
    black_box(&to);
    rates[0].max(rates[1])
}

/// Bytes read per second from an array that fits in no cache.
pub fn read_bandwidth(pool: &Pool) -> f64 {
    const LEN: usize = 1 << 25;
    const PIECE: usize = 1 << 16;
    let from = vec![1f32; LEN];
    let read = |task: usize| {
        black_box(sum(&from[task * PIECE..][..PIECE]));
    };
    size_of_val(&from[..]) as f64 / seconds(|| pool.run(LEN / PIECE, &read))
}

/// Enough sums for the compiler to keep up with any memory.
fn sum(values: &[f32]) -> [u32; 32] {
    let mut sums = [0u32; 32];
    for values in values.chunks_exact(sums.len()) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum ^= value.to_bits();
        }
    }
    sums
}

/// Float32 operations per second, where a multiply-add counts as two.
pub fn peak_flops(pool: &Pool) -> f64 {
    const STEPS: usize = 1 << 18;
    let (kernel, flops_a_step) = multiply_add();
    // Several tasks per thread, so that a thread that starts late does not keep others waiting.
    let tasks = 8 * pool.threads();
    let run = |_| {
        black_box(kernel(black_box(STEPS)));
    };
    (tasks * STEPS * flops_a_step) as f64 / seconds(|| pool.run(tasks, &run))
}

/// The median time of several runs, after a warm-up.
fn seconds(mut run: impl FnMut()) -> f64 {
    run();
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2].max(f64::MIN_POSITIVE)
}

/// Independent sums: enough to hide the latency of an addition, few enough to stay in registers.
const SUMS: usize = 12;

/// A loop of multiply-adds in registers of the widest vector unit, and the number of operations per step.
fn multiply_add() -> (fn(usize) -> f32, usize) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the features that the function needs were just detected.
            return (|steps| unsafe { x86::avx512(steps) }, 2 * 16 * SUMS);
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the features that the function needs were just detected.
            return (|steps| unsafe { x86::avx2(steps) }, 2 * 8 * SUMS);
        }
    }
    (portable, 2 * 4 * SUMS)
}

fn portable(steps: usize) -> f32 {
    let [scale, shift] = black_box([0.5f32, 0.25]);
    let mut sums = [[black_box(1f32); 4]; SUMS];
    for _ in 0..steps {
        sums.as_flattened_mut().iter_mut().for_each(|sum| *sum = *sum * scale + shift);
    }
    black_box(sums).iter().map(|sum| sum[0]).sum()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::SUMS;

    /// # Safety
    /// The machine has AVX-512.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn avx512(steps: usize) -> f32 {
        let [scale, shift] = black_box([0.5, 0.25]).map(|x| _mm512_set1_ps(x));
        let mut sums = [_mm512_set1_ps(black_box(1.0)); SUMS];
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, scale, shift);
            }
        }
        black_box(sums).into_iter().map(|sum| _mm512_cvtss_f32(sum)).sum()
    }

    /// # Safety
    /// The machine has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn avx2(steps: usize) -> f32 {
        let [scale, shift] = black_box([0.5, 0.25]).map(|x| _mm256_set1_ps(x));
        let mut sums = [_mm256_set1_ps(black_box(1.0)); SUMS];
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, scale, shift);
            }
        }
        black_box(sums).into_iter().map(|sum| _mm256_cvtss_f32(sum)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_plausible() {
        let pool = Pool::new(1);
        let (bytes, flops) = (copy_bandwidth(&pool), peak_flops(&pool));
        assert!((1e6..1e13).contains(&bytes), "{bytes} bytes per second");
        assert!((1e6..1e14).contains(&flops), "{flops} operations per second");
    }

    #[test]
    fn sums_converge_to_the_fixed_point() {
        // 0.5 x + 0.25 has the fixed point 0.5, and one lane of each sum is added up.
        assert_eq!(multiply_add().0(1000), SUMS as f32 / 2.0);
        assert_eq!(portable(1000), SUMS as f32 / 2.0);
    }
}
