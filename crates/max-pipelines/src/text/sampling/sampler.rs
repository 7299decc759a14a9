//! The sampler of one request.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use max_core::random::Distribution;
use max_core::{Result, bail};

use super::select::{Candidate, exponential_sums, largest, token_at, top_k};
use super::{DEFAULT_TOP_K, SamplingParams, TokenLogProbability, Wanted};

/// Chooses the tokens of one request: see the [module](super).
///
/// ```
/// # use max_pipelines::text::sampling::{Sampler, SamplingParams};
/// let mut sampler = Sampler::new(&SamplingParams::greedy(), &[1, 2], &[])?;
/// assert_eq!(sampler.sample(&mut [0.5, 2.5, -1.0])?.token, 1);
/// # Ok::<(), max_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    seed: u64,
    step: u64,
    /// How often a token appears in the answer; zero if it only appears in the prompt. Empty where nothing is penalized.
    seen: HashMap<u32, u32>,
    /// What is masked until there are enough tokens.
    ending: Vec<u32>,
    candidates: Vec<Candidate>,
    weights: Vec<f64>,
    /// The logits before they are changed, where they are needed.
    original: Vec<f32>,
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its log probability and those of the most probable tokens, where asked for.
    pub log_probability: Option<TokenLogProbability>,
}

impl Sampler {
    /// The sampler of a request with this prompt, whose answer may be ended by any of the tokens `ending`.
    pub fn new(params: &SamplingParams, prompt: &[u32], ending: &[u32]) -> Result<Sampler> {
        params.validate()?;
        let mut sampler = Sampler {
            params: params.clone(),
            seed: params.seed.unwrap_or_else(system_seed),
            step: 0,
            seen: HashMap::new(),
            ending: ending.to_vec(),
            candidates: Vec::new(),
            weights: Vec::new(),
            original: Vec::new(),
        };
        if params.repetition_penalty != 1.0 {
            sampler.seen.extend(prompt.iter().map(|&token| (token, 0)));
        }
        Ok(sampler)
    }

    /// The seed of the random numbers: the one of the parameters, or the one that was drawn.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// How many tokens were chosen.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Chooses the next token by its logits, which are changed on the way.
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<Sampled> {
        if self.params.logprobs.is_some() {
            self.original.clear();
            self.original.extend_from_slice(logits);
        }
        self.adjust(logits)?;
        let token = if self.params.is_greedy() { largest(logits)?.token() } else { self.draw(logits)? };
        let log_probability = match self.params.logprobs {
            Some(top_n) => Some(TokenLogProbability::new(&self.original, token, top_n)?),
            None => None,
        };
        self.step += 1;
        if self.penalizes() {
            let count = self.seen.entry(token).or_default();
            *count = count.saturating_add(1);
        }
        Ok(Sampled { token, log_probability })
    }

    /// What the next token depends on, of a vocabulary of some size.
    pub fn wanted(&self, vocab_size: usize) -> Wanted {
        let changes = !self.params.logit_bias.is_empty() || self.penalizes() || self.masks();
        match self.count(vocab_size) {
            Some(count) if !changes && self.params.logprobs.is_none() => Wanted::Largest(count),
            _ => Wanted::All,
        }
    }

    /// Chooses the next token by the largest logits, at least as many as [`wanted`](Sampler::wanted), in order. It is the token
    /// that all logits give.
    pub fn sample_largest(&mut self, largest: &[(u32, f32)]) -> Result<Sampled> {
        let Some(&(_, best)) = largest.first().filter(|(_, best)| best.is_finite()) else {
            bail!(runtime, "no token can be chosen by the logits {largest:?}");
        };
        let Wanted::Largest(count) = self.wanted(usize::MAX) else {
            bail!(internal, "a request that needs all logits was given {} of them", largest.len());
        };
        debug_assert!(best >= largest[largest.len() - 1].1);
        let known = largest.iter().take(count).filter(|(_, logit)| *logit > f32::NEG_INFINITY);
        self.candidates.clear();
        self.candidates.extend(known.map(|&(token, logit)| Candidate::new(token as usize, logit)));
        let token = match self.params.is_greedy() {
            true => self.candidates[0].token(),
            false => self.draw_of_candidates(self.number()),
        };
        self.step += 1;
        Ok(Sampled { token, log_probability: None })
    }

    /// How many of the largest logits a choice depends on, if not on all of a vocabulary.
    fn count(&self, vocab_size: usize) -> Option<usize> {
        let count = match usize::try_from(self.params.top_k) {
            _ if self.params.is_greedy() => 1,
            Ok(0) | Err(_) => DEFAULT_TOP_K,
            Ok(count) => count,
        };
        (count < vocab_size || vocab_size <= DEFAULT_TOP_K).then_some(count)
    }

    /// Whether some tokens cannot be chosen yet.
    fn masks(&self) -> bool {
        self.step < self.params.min_new_tokens as u64 && !self.ending.is_empty()
    }

    fn penalizes(&self) -> bool {
        let params = &self.params;
        params.repetition_penalty != 1.0 || params.frequency_penalty != 0.0 || params.presence_penalty != 0.0
    }

    /// Bias, penalties, and the mask of what would end the answer too early.
    fn adjust(&self, logits: &mut [f32]) -> Result<()> {
        let params = &self.params;
        for (&token, &bias) in &params.logit_bias {
            let Some(logit) = logits.get_mut(token as usize) else {
                bail!(value, "logit_bias names token {token}, but the model has {} tokens", logits.len());
            };
            *logit += bias;
        }
        for (&token, &count) in &self.seen {
            // A token of the prompt may be one that the model only reads.
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            *logit = if *logit > 0.0 {
                *logit / params.repetition_penalty
            } else {
                *logit * params.repetition_penalty
            };
            if count > 0 {
                *logit -= params.frequency_penalty * count as f32 + params.presence_penalty;
            }
        }
        if self.masks() {
            for &token in &self.ending {
                if let Some(logit) = logits.get_mut(token as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        Ok(())
    }

    /// Draws a token from those that `top_k`, `top_p` and `min_p` leave.
    fn draw(&mut self, logits: &[f32]) -> Result<u32> {
        let number = self.number();
        match self.count(logits.len()) {
            Some(count) => {
                top_k(logits, count, &mut self.candidates)?;
                Ok(self.draw_of_candidates(number))
            }
            None => self.draw_of_all(logits, number),
        }
    }

    /// The random number of the next draw.
    fn number(&self) -> f64 {
        Distribution::Uniform.draw::<f64>(self.seed, self.step)
    }

    /// Draws from the candidates, which are all that `top_k` leaves.
    fn draw_of_candidates(&mut self, number: f64) -> u32 {
        self.weigh();
        let total = self.weights.iter().sum();
        let kept = self.nucleus(total).unwrap_or(self.candidates.len());
        self.pick(kept, number)
    }

    /// Draws from the whole vocabulary, which is only put in order as far as needed.
    fn draw_of_all(&mut self, logits: &[f32], number: f64) -> Result<u32> {
        let best = largest(logits)?.logit();
        let scale = (1.0 / f64::from(self.params.temperature)).min(f64::from(f32::MAX)) as f32;
        let total = exponential_sums(logits, best, scale).sum::<f64>();
        if self.params.top_p == 1.0 && self.params.min_p == 0.0 {
            return Ok(token_at(logits, best, scale, number * total));
        }
        let mut k = DEFAULT_TOP_K;
        loop {
            top_k(logits, k, &mut self.candidates)?;
            self.weigh();
            match self.nucleus(total) {
                Some(kept) => return Ok(self.pick(kept, number)),
                None if k >= logits.len() => return Ok(self.pick(self.candidates.len(), number)),
                None => k = k.saturating_mul(16),
            }
        }
    }

    /// The probabilities of the candidates, as shares of the first.
    fn weigh(&mut self) {
        let temperature = f64::from(self.params.temperature);
        let best = f64::from(self.candidates[0].logit());
        let share = |candidate: &Candidate| libm::exp((f64::from(candidate.logit()) - best) / temperature);
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(share));
    }

    /// How many of the first candidates `top_p` and `min_p` keep, if that can be told from these candidates.
    fn nucleus(&self, total: f64) -> Option<usize> {
        let enough = f64::from(self.params.top_p) * total;
        let least = f64::from(self.params.min_p);
        let mut sum = 0.0;
        for (at, &weight) in self.weights.iter().enumerate() {
            if at > 0 && weight < least {
                return Some(at);
            }
            sum += weight;
            if sum >= enough {
                return Some(at + 1);
            }
        }
        None
    }

    /// Draws one of the first `kept` candidates.
    fn pick(&self, kept: usize, number: f64) -> u32 {
        let weights = &self.weights[..kept];
        let mut target = number * weights.iter().sum::<f64>();
        let mut chosen = 0;
        for (at, &weight) in weights.iter().enumerate() {
            // Rounding may carry the target past the end: then the last one with any probability is meant.
            if weight > 0.0 {
                chosen = at;
            }
            if target < weight {
                break;
            }
            target -= weight;
        }
        self.candidates[chosen].token()
    }
}

/// A seed from the system's randomness, which the standard library keys its hash maps with.
fn system_seed() -> u64 {
    RandomState::new().hash_one(std::time::SystemTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn sampler(change: impl FnOnce(&mut SamplingParams)) -> Sampler {
        let mut params = SamplingParams { seed: Some(7), ..SamplingParams::default() };
        change(&mut params);
        Sampler::new(&params, &[0, 2], &[3]).unwrap()
    }

    fn tokens(sampler: &mut Sampler, logits: &[f32], count: usize) -> Vec<u32> {
        (0..count).map(|_| sampler.sample(&mut logits.to_vec()).unwrap().token).collect()
    }

    /// How often each token was drawn in 20,000 draws, as shares.
    fn shares(sampler: &mut Sampler, logits: &[f32]) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        for token in tokens(sampler, logits, 20_000) {
            counts[token as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    fn softmax(logits: &[f32], temperature: f32) -> Vec<f64> {
        let weights = logits.iter().map(|&x| f64::from(x / temperature).exp()).collect::<Vec<_>>();
        let total = weights.iter().sum::<f64>();
        weights.iter().map(|w| w / total).collect()
    }

    fn assert_close(drawn: &[f64], expected: &[f64]) {
        for (drawn, expected) in drawn.iter().zip(expected) {
            assert!((drawn - expected).abs() < 0.02, "{drawn} is not {expected}");
            assert_eq!(*drawn == 0.0, *expected == 0.0);
        }
    }

    #[test]
    fn greedy_takes_the_lowest_of_equal_ids() {
        let logits = [1.0, 4.0, 2.0, 4.0];
        assert_eq!(tokens(&mut sampler(|p| p.temperature = 0.0), &logits, 3), [1, 1, 1]);
        assert_eq!(tokens(&mut sampler(|p| p.top_k = 1), &logits, 3), [1, 1, 1]);
    }

    #[test]
    fn draws_follow_probabilities() {
        let logits = [0.0, 1.0, 2.0, -1.0, 0.5];
        for temperature in [0.5, 1.0, 2.0] {
            let expected = softmax(&logits, temperature);
            for top_k in [-1, 0, 5, i64::MAX] {
                let drawn =
                    shares(&mut sampler(|p| (p.temperature, p.top_k) = (temperature, top_k)), &logits);
                assert_close(&drawn, &expected);
            }
        }
    }

    #[test]
    fn sets_are_cut_by_count_mass_and_share() {
        // Probabilities 0.4, 0.3, 0.2, 0.1.
        let logits = [0.1_f32, 0.4, 0.2, 0.3].map(f32::ln);
        let two = [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0];
        let three = [0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0];
        assert_close(&shares(&mut sampler(|p| p.top_k = 2), &logits), &two);
        assert_close(&shares(&mut sampler(|p| p.top_p = 0.65), &logits), &two);
        assert_close(&shares(&mut sampler(|p| p.top_p = 0.75), &logits), &three);
        assert_close(&shares(&mut sampler(|p| p.min_p = 0.7), &logits), &two);
        assert_close(&shares(&mut sampler(|p| p.top_p = 0.0), &logits), &[0.0, 1.0, 0.0, 0.0]);
        assert_close(&shares(&mut sampler(|p| p.min_p = 1.0), &logits), &[0.0, 1.0, 0.0, 0.0]);
        // top_p is a share of what top_k leaves: 0.4 of 0.7 is less than 0.6, but 0.4 of 0.4 + 0.3 is 0.57.
        assert_close(&shares(&mut sampler(|p| (p.top_k, p.top_p) = (2, 0.6)), &logits), &two);
        assert_close(
            &shares(&mut sampler(|p| (p.top_k, p.top_p) = (2, 0.55)), &logits),
            &[0.0, 1.0, 0.0, 0.0],
        );
    }

    #[test]
    fn large_vocabularies_are_cut_alike() {
        // A peak of 600 tokens of falling probability in a flat tail of many.
        let mut logits = vec![-12.0_f32; 40_000];
        for at in 0..600 {
            logits[at * 50] = -(at as f32) / 100.0;
        }
        let mut sorted = softmax(&logits, 1.0);
        sorted.sort_by(|a, b| b.total_cmp(a));
        let all = i64::MAX;
        for (top_k, top_p, min_p) in
            [(all, 0.5, 0.0), (all, 0.97, 0.0), (all, 1.0, 0.05), (1000, 0.9, 0.0), (-1, 1.0, 0.0)]
        {
            let (mut count, mut mass) = (0, 0.0);
            let k = if top_k < 0 { 255 } else { top_k.min(40_000) as usize };
            let total = sorted[..k].iter().sum::<f64>();
            while count < k
                && mass < f64::from(top_p) * total
                && sorted[count] >= f64::from(min_p) * sorted[0]
            {
                mass += sorted[count];
                count += 1;
            }
            let mut sampler = sampler(|p| (p.top_k, p.top_p, p.min_p) = (top_k, top_p, min_p));
            let drawn = tokens(&mut sampler, &logits, 3000);
            let rank = |token: u32| {
                if token.is_multiple_of(50) && token < 30_000 { token as usize / 50 } else { 600 }
            };
            let last = drawn.iter().map(|&token| rank(token)).max().unwrap();
            assert!(last < count, "a token of rank {last} of {count}");
            assert!(last * 10 > count.min(600) * 8, "ranks up to {last} of {count}");
        }
    }

    #[test]
    fn a_tiny_temperature_is_nearly_greedy() {
        for top_k in [-1, i64::MAX] {
            for temperature in [f32::MIN_POSITIVE, 1e-45, 1e-9] {
                let mut sampler = sampler(|p| (p.temperature, p.top_k) = (temperature, top_k));
                let mut logits = vec![-3.0; 300];
                logits[17] = 4.0;
                assert_eq!(tokens(&mut sampler, &logits, 20), [17; 20]);
            }
        }
    }

    #[test]
    fn a_draw_depends_on_seed_and_step_only() {
        let logits = (0..1000).map(|at| (at as f32 * 0.7).sin()).collect::<Vec<_>>();
        let all = tokens(&mut sampler(|_| ()), &logits, 50);
        assert_eq!(tokens(&mut sampler(|_| ()), &logits, 50), all);
        assert_ne!(tokens(&mut sampler(|p| p.seed = Some(8)), &logits, 50), all);
        let drawn = Sampler::new(&SamplingParams::default(), &[], &[]).unwrap();
        let other = Sampler::new(&SamplingParams::default(), &[], &[]).unwrap();
        assert_ne!(drawn.seed(), other.seed());
        let mut first = drawn.clone();
        let expected = tokens(&mut first, &logits, 20);
        assert_eq!(tokens(&mut sampler(|p| p.seed = Some(drawn.seed())), &logits, 20), expected);
    }

    #[test]
    fn penalties_are_those_of_the_original() {
        // The prompt is 0 and 2; token 1 is chosen twice, then token 4.
        let mut sampler = sampler(|p| {
            (p.temperature, p.frequency_penalty, p.presence_penalty, p.repetition_penalty) =
                (0.0, 0.5, 0.25, 2.0);
        });
        for best in [1, 1, 4] {
            let mut logits = [0.0; 5];
            logits[best] = 100.0;
            assert_eq!(sampler.sample(&mut logits).unwrap().token, best as u32);
        }
        let mut logits = [3.0, -1.0, -2.0, 2.0, 3.0];
        sampler.sample(&mut logits).unwrap();
        assert_eq!(logits, [1.5, -3.25, -4.0, 2.0, 0.75]);
    }

    #[test]
    fn a_bias_is_added_first() {
        let mut biased = sampler(|p| {
            p.temperature = 0.0;
            p.repetition_penalty = 2.0;
            p.logit_bias = BTreeMap::from([(2, 10.0), (1, -1.0)]);
        });
        let mut logits = [1.0, 2.0, 0.0, 0.0];
        assert_eq!(biased.sample(&mut logits).unwrap().token, 2);
        assert_eq!(logits, [0.5, 1.0, 5.0, 0.0]);
        let mut wrong = sampler(|p| p.logit_bias = BTreeMap::from([(4, 1.0)]));
        let error = wrong.sample(&mut logits).unwrap_err().to_string();
        assert!(error.contains("logit_bias") && error.contains('4'), "{error}");
    }

    #[test]
    fn an_end_waits_for_enough_tokens() {
        let mut sampler = sampler(|p| (p.temperature, p.min_new_tokens) = (0.0, 2));
        assert_eq!(tokens(&mut sampler, &[0.0, 1.0, 0.5, 9.0], 4), [1, 1, 3, 3]);
        // Nothing but the end is left.
        let mut stuck =
            Sampler::new(&SamplingParams { min_new_tokens: 1, ..SamplingParams::greedy() }, &[], &[0])
                .unwrap();
        let error = stuck.sample(&mut [1.0]).unwrap_err().to_string();
        assert!(error.contains("-inf"), "{error}");
    }

    #[test]
    fn probabilities_are_those_of_the_model() {
        let mut sampler = sampler(|p| {
            (p.temperature, p.logprobs) = (0.0, Some(2));
            p.logit_bias = BTreeMap::from([(2, 100.0)]);
        });
        let logits = [0.5_f32, 0.25, 0.25].map(f32::ln);
        let sampled = sampler.sample(&mut logits.clone()).unwrap();
        let logprob = sampled.log_probability.unwrap();
        assert_eq!((sampled.token, logprob.token), (2, 2));
        assert!((logprob.log_probability - 0.25_f32.ln()).abs() < 1e-6);
        assert_eq!(logprob.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn the_largest_logits_give_the_token_of_all() {
        let logits = |step: u64| -> Vec<f32> {
            // With ties, and with tokens that are impossible.
            let draw = |at| Distribution::Normal.draw::<f32>(step, at);
            let tied = |x: f32| if x < -1.5 { f32::NEG_INFINITY } else { (x * 8.0).round() / 4.0 };
            (0..900).map(|at| tied(draw(at))).collect()
        };
        type Change = fn(&mut SamplingParams);
        let changes: [Change; 6] = [
            |p| p.temperature = 0.0,
            |p| p.top_k = 1,
            |_| (),
            |p| p.top_k = 40,
            |p| (p.temperature, p.top_p) = (1.5, 0.8),
            |p| (p.temperature, p.min_p, p.top_k) = (0.7, 0.1, 3),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let (mut all, mut some) = (sampler(change), sampler(change));
            for step in 0..200 {
                let logits = logits(step);
                let Wanted::Largest(count) = some.wanted(logits.len()) else { panic!("case {number}") };
                let mut order: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
                // Both zeros are equal, as they are for the sampler.
                order.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap());
                // More than what is wanted changes nothing.
                order.truncate(count + step as usize % 2 * 7);
                let token = all.sample(&mut logits.clone()).unwrap().token;
                assert_eq!(some.sample_largest(&order).unwrap().token, token, "case {number}, step {step}");
            }
        }
    }

    #[test]
    fn what_changes_logits_needs_all_of_them() {
        type Change = fn(&mut SamplingParams);
        let changes: [Change; 7] = [
            |p| p.logit_bias = BTreeMap::from([(1, 1.0)]),
            |p| p.repetition_penalty = 1.1,
            |p| p.frequency_penalty = 0.1,
            |p| p.presence_penalty = -0.1,
            |p| p.min_new_tokens = 1,
            |p| p.logprobs = Some(0),
            |p| p.top_k = 1000,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert_eq!(sampler(change).wanted(1000), Wanted::All, "case {number}");
        }
        let wanted = |change: Change, vocab_size| sampler(change).wanted(vocab_size);
        assert_eq!(wanted(|_| (), 1000), Wanted::Largest(DEFAULT_TOP_K));
        assert_eq!(wanted(|p| p.top_k = 999, 1000), Wanted::Largest(999));
        assert_eq!(wanted(|p| p.temperature = 0.0, 1000), Wanted::Largest(1));
        // The mask goes with the first token.
        let mut masked = sampler(|p| p.min_new_tokens = 1);
        masked.sample(&mut [1.0, 2.0]).unwrap();
        assert_eq!(masked.wanted(1000), Wanted::Largest(DEFAULT_TOP_K));
        let mut penalized = sampler(|p| p.presence_penalty = 1.0);
        assert!(penalized.sample_largest(&[(0, 1.0)]).is_err());
        for logit in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(sampler(|_| ()).sample_largest(&[(0, logit)]).is_err());
        }
        assert!(sampler(|_| ()).sample_largest(&[]).is_err());
    }

    #[test]
    fn errors_leave_the_sampler_usable() {
        let mut sampler = sampler(|_| ());
        assert!(sampler.sample(&mut [f32::NAN, 1.0]).is_err());
        assert!(sampler.sample(&mut []).is_err());
        assert_eq!(sampler.step(), 0);
        assert!(sampler.sample(&mut [0.0, 1.0]).is_ok());
        assert!(
            Sampler::new(&SamplingParams { top_p: -1.0, ..SamplingParams::default() }, &[], &[]).is_err()
        );
    }
}
