//! Passes over a row of logits: the largest, the k largest in order, and sums of exponentials.
//!
//! A vocabulary has some hundred thousand tokens and a step has little time, so that what looks at every token is a plain
//! loop over lanes, and what is sorted is small.

use max_core::{Result, bail};

/// Logits are looked at in blocks of this many.
const BLOCK: usize = 64;
const LANES: usize = 16;

/// A token with its logit as one number: the smaller it is, the larger the logit, and among equal logits the smaller the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate(u64);

impl Candidate {
    pub(super) fn new(token: usize, logit: f32) -> Self {
        // Adding zero makes one zero of both; the bits of floats that are not negative are in order, the others in reverse.
        let bits = (logit + 0.0).to_bits();
        let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
        Candidate(u64::from(!ascending) << 32 | token as u64)
    }

    pub(super) fn token(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn logit(self) -> f32 {
        let ascending = !((self.0 >> 32) as u32);
        f32::from_bits(if ascending >> 31 == 1 { ascending ^ 1 << 31 } else { !ascending })
    }
}

/// The largest of a block, and whether one is NaN.
#[inline(always)]
fn peak(block: &[f32; BLOCK]) -> (f32, bool) {
    let (chunks, _) = block.as_chunks::<LANES>();
    let mut largest = [f32::NEG_INFINITY; LANES];
    let mut nan = [false; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            largest[lane] = larger(largest[lane], chunk[lane]);
            nan[lane] |= chunk[lane].is_nan();
        }
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            largest[lane] = larger(largest[lane], largest[lane + width]);
        }
    }
    (largest[0], nan != [false; LANES])
}

/// The end of a row as a whole block.
fn last_block(rest: &[f32]) -> [f32; BLOCK] {
    let mut block = [f32::NEG_INFINITY; BLOCK];
    block[..rest.len()].copy_from_slice(rest);
    block
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// The largest logit with the lowest id.
pub(super) fn largest(logits: &[f32]) -> Result<Candidate> {
    let mut best = f32::NEG_INFINITY;
    let mut at = 0;
    let mut unordered = false;
    let (blocks, rest) = logits.as_chunks::<BLOCK>();
    for (index, block) in blocks.iter().chain([&last_block(rest)]).enumerate() {
        let (top, nan) = peak(block);
        unordered |= nan;
        if top > best {
            (best, at) = (top, index);
        }
    }
    check(logits, best, unordered)?;
    let start = at * BLOCK;
    let token = start + logits[start..].iter().position(|&x| x == best).unwrap_or(0);
    Ok(Candidate::new(token, best))
}

/// The `k` largest logits above minus infinity, largest first; of equal ones those with the lowest ids.
pub(super) fn top_k(logits: &[f32], k: usize, found: &mut Vec<Candidate>) -> Result<()> {
    found.clear();
    let k = k.clamp(1, logits.len().max(1));
    let room = 2 * k.max(BLOCK);
    // A later token must be strictly larger than the k-th found so far.
    let mut bar = f32::NEG_INFINITY;
    let mut best = f32::NEG_INFINITY;
    let mut unordered = false;
    let (blocks, rest) = logits.as_chunks::<BLOCK>();
    for (index, block) in blocks.iter().chain([&last_block(rest)]).enumerate() {
        let (top, nan) = peak(block);
        unordered |= nan;
        if top <= bar {
            continue;
        }
        best = best.max(top);
        let first = index * BLOCK;
        let above = block.iter().enumerate().filter(|&(_, &x)| x > bar);
        found.extend(above.map(|(at, &x)| Candidate::new(first + at, x)));
        if found.len() >= room {
            found.select_nth_unstable(k - 1);
            found.truncate(k);
            bar = found[k - 1].logit();
        }
    }
    check(logits, best, unordered)?;
    if found.len() > k {
        found.select_nth_unstable(k - 1);
        found.truncate(k);
    }
    found.sort_unstable();
    Ok(())
}

/// Fails where nothing can be chosen by logits of which `best` is the largest.
fn check(logits: &[f32], best: f32, unordered: bool) -> Result<()> {
    if logits.is_empty() {
        bail!(value, "there are no logits to sample from");
    }
    if unordered {
        let token = logits.iter().position(|x| x.is_nan()).unwrap_or(0);
        bail!(runtime, "the logit of token {token} is NaN, so no token can be chosen");
    }
    if best == f32::NEG_INFINITY {
        bail!(runtime, "all {} logits are -inf, so no token can be chosen", logits.len());
    }
    if best == f32::INFINITY {
        let token = logits.iter().position(|&x| x == best).unwrap_or(0);
        bail!(runtime, "the logit of token {token} is infinite, so no token can be chosen");
    }
    Ok(())
}

/// The sum of `exp((logit - largest) * scale)` over each block of logits.
pub(super) fn exponential_sums(logits: &[f32], largest: f32, scale: f32) -> impl Iterator<Item = f64> {
    let (blocks, rest) = logits.as_chunks::<BLOCK>();
    blocks.iter().copied().chain([last_block(rest)]).map(move |block| {
        let (chunks, _) = block.as_chunks::<LANES>();
        let mut sums = [0.0_f32; LANES];
        for chunk in chunks {
            for lane in 0..LANES {
                sums[lane] += exponential((chunk[lane] - largest) * scale);
            }
        }
        sums.into_iter().map(f64::from).sum()
    })
}

/// The token at which the running sum of `exp((logit - largest) * scale)` passes `target`.
pub(super) fn token_at(logits: &[f32], largest: f32, scale: f32, mut target: f64) -> u32 {
    let mut block = 0;
    let mut last = 0;
    for (index, sum) in exponential_sums(logits, largest, scale).enumerate() {
        if sum > 0.0 {
            last = index;
        }
        block = index;
        if target < sum {
            break;
        }
        target -= sum;
        block = last;
    }
    let start = block * BLOCK;
    let mut chosen = start;
    for (at, &x) in logits[start..].iter().take(BLOCK).enumerate() {
        let weight = f64::from(exponential((x - largest) * scale));
        if weight > 0.0 {
            chosen = start + at;
            if target < weight {
                break;
            }
            target -= weight;
        }
    }
    chosen as u32
}

/// `exp(x)` of a number that is not positive, within two units in the last place; zero where the result would be
/// subnormal. Branch-free, so that loops over it are vectorized, and with the same bits on every machine.
#[inline(always)]
fn exponential(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts, the first of which has few bits, so that its product with a small integer is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Adding this rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LEAST: f32 = -87.0;

    let clamped = if x > LEAST { x } else { LEAST };
    let rounded = clamped * LOG2_E + ROUND;
    let power = rounded - ROUND;
    let r = clamped - power * LN_2_HIGH - power * LN_2_LOW;
    let mut series = 1.0 / 5040.0;
    for factor in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * r + factor;
    }
    let scale = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    if x > LEAST { series * scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use max_core::random::Distribution;
    use proptest::prelude::*;

    fn row(len: usize, seed: u64, spread: f32) -> Vec<f32> {
        (0..len).map(|at| spread * Distribution::Normal.draw::<f32>(seed, at as u64)).collect()
    }

    #[test]
    fn candidates_are_in_order() {
        let logits = [f32::MAX, 3.5, 1e-40, 0.0, -0.0, -1e-40, -2.0, f32::MIN, f32::NEG_INFINITY];
        let candidates = logits.iter().enumerate().map(|(at, &x)| Candidate::new(at, x)).collect::<Vec<_>>();
        assert!(candidates.is_sorted());
        for (candidate, &logit) in candidates.iter().zip(&logits) {
            assert_eq!(candidate.logit(), logit);
        }
        assert!(Candidate::new(5, 1.0) > Candidate::new(4, 1.0));
        // Both zeros are one value, so the lower id wins.
        assert!(Candidate::new(4, -0.0) < Candidate::new(5, 0.0));
    }

    #[test]
    fn the_exponential_is_close() {
        for at in 0..100_000 {
            let x = -(at as f32) * 1e-3;
            let (result, expected) = (exponential(x), f64::from(x).exp());
            if x > -87.0 {
                assert!((f64::from(result) / expected - 1.0).abs() < 2.5e-7, "exp({x}) = {result}");
            } else {
                assert_eq!(result, 0.0);
            }
        }
        assert_eq!((exponential(0.0), exponential(f32::NEG_INFINITY), exponential(-1e30)), (1.0, 0.0, 0.0));
    }

    #[test]
    fn what_cannot_be_chosen_from_is_an_error() {
        for len in [1, 63, 64, 65, 300] {
            for (value, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "infinite"), (f32::NEG_INFINITY, "all")]
            {
                let mut logits = vec![if word == "all" { value } else { 0.5 }; len];
                logits[len - 1] = value;
                for error in [largest(&logits).unwrap_err(), top_k(&logits, 3, &mut Vec::new()).unwrap_err()]
                {
                    assert!(error.to_string().contains(word), "{error}");
                }
            }
        }
        assert!(largest(&[]).is_err() && top_k(&[], 1, &mut Vec::new()).is_err());
    }

    #[test]
    fn a_nan_is_found_behind_the_bar() {
        let mut logits = vec![-5.0; 1000];
        logits[..500].fill(5.0);
        logits[999] = f32::NAN;
        let error = top_k(&logits, 4, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("token 999 is NaN"), "{error}");
    }

    #[test]
    fn sums_and_draws_agree() {
        let logits = row(1000, 5, 3.0);
        let best = largest(&logits).unwrap().logit();
        let total = exponential_sums(&logits, best, 0.5).sum::<f64>();
        let expected = logits.iter().map(|&x| (f64::from(x - best) * 0.5).exp()).sum::<f64>();
        assert!((total / expected - 1.0).abs() < 1e-6);
        let mut before = 0.0;
        for (token, &x) in logits.iter().enumerate() {
            let weight = (f64::from(x - best) * 0.5).exp();
            if weight > 1e-3 * total {
                assert_eq!(token_at(&logits, best, 0.5, before + 0.5 * weight), token as u32);
            }
            before += weight;
        }
        // Rounding may leave a target beyond the end: the last token with any probability is meant.
        let masked = [0.0, 1.0, f32::NEG_INFINITY];
        assert_eq!(token_at(&masked, 1.0, 1.0, 5.0), 1);
        let mut far = vec![f32::NEG_INFINITY; 300];
        far[70] = 1.0;
        assert_eq!(token_at(&far, 1.0, 1.0, 5.0), 70);
    }

    proptest! {
        #[test]
        fn the_largest_are_those_of_a_sort(
            len in 1_usize..700, k in 1_usize..800, seed: u64, spread in prop_oneof![Just(0.3_f32), Just(5.0)], ties: bool,
        ) {
            let mut logits = row(len, seed, spread);
            if ties {
                logits.iter_mut().for_each(|x| *x = x.round());
            }
            let mut all = logits.iter().enumerate().map(|(at, &x)| Candidate::new(at, x)).collect::<Vec<_>>();
            all.sort();
            prop_assert_eq!(largest(&logits).unwrap(), all[0]);
            let mut found = Vec::new();
            top_k(&logits, k, &mut found).unwrap();
            all.truncate(k);
            prop_assert_eq!(found, all);
        }
    }
}
