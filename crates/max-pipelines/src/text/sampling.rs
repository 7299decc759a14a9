//! Sampling: from a row of logits to the next token of one request.
//!
//! [`SamplingParams`] are what a request asks for, with the documented names and defaults; [`Sampler`] is the state of
//! one request. A row of logits goes through these steps, in this order:
//!
//! 1. log probabilities, where asked for, are those of the logits as the model gave them;
//! 2. `logit_bias` is added;
//! 3. `repetition_penalty` divides positive logits and multiplies negative ones, for tokens of the prompt and of the answer;
//!    then `frequency_penalty` times the count, and `presence_penalty`, are subtracted for tokens of the answer;
//! 4. until `min_new_tokens` are there, tokens that would end the answer are masked;
//! 5. with a `temperature` of zero, or a `top_k` of one, the largest logit wins, and among equals the lowest id;
//! 6. logits are divided by the `temperature`, the `top_k` largest are kept, of these the smallest set whose
//!    probability is at least `top_p`, and of these what is at least `min_p` times as probable as the first;
//! 7. one is drawn by its probability.
//!
//! Most requests look at the largest logits only, and nothing else has to leave the device that computes them:
//! [`Sampler::wanted`].
//!
//! The random number of a draw depends on the seed and on the number of the token in its answer, and on nothing else:
//! neither on other requests of the batch nor on threads.

mod probabilities;
mod sampler;
mod select;
mod suggested;

use std::collections::BTreeMap;

use max_core::{Result, bail};

pub use probabilities::{LogProbabilities, TokenLogProbability, log_probabilities};
pub use sampler::{Sampled, Sampler};

/// How many of the most probable tokens are considered where `top_k` is -1.
pub const DEFAULT_TOP_K: usize = 255;

/// What a request needs to know of the logits after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Nothing: more tokens follow.
    Nothing,
    /// So many of the largest.
    Largest(usize),
    /// All of them.
    All,
}

/// The logits after a token, as far as they are known.
#[derive(Clone, Debug, PartialEq)]
pub enum Logits {
    /// Tokens with the largest logits, the largest first, and of equal ones the lowest id first.
    Largest(Vec<(u32, f32)>),
    /// The logits of all tokens.
    All(Vec<f32>),
}

/// What a request asks of sampling and of the length of its answer.
///
/// ```
/// # use max_pipelines::text::sampling::SamplingParams;
/// let params = SamplingParams { temperature: 0.7, top_p: 0.95, seed: Some(1), ..SamplingParams::default() };
/// params.validate()?;
/// let wrong = SamplingParams { top_p: f32::NAN, ..SamplingParams::default() };
/// assert!(wrong.validate().unwrap_err().to_string().contains("top_p"));
/// # Ok::<(), max_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// How many of the most probable tokens to consider: 1 is greedy, -1 (or 0) the documented default of 255, and any
    /// number from the size of the vocabulary on means all tokens.
    pub top_k: i64,
    /// The probability that the considered tokens must have together, of the `top_k` tokens.
    pub top_p: f32,
    /// The least probability of a token, as a share of the most probable token's.
    pub min_p: f32,
    /// Logits are divided by this; 0 is greedy.
    pub temperature: f32,
    /// Subtracted from a token's logit for each of its appearances in the answer.
    pub frequency_penalty: f32,
    /// Subtracted from a token's logit if it appears in the answer.
    pub presence_penalty: f32,
    /// A token's logit is divided by this, or multiplied if negative, if it appears in the prompt or the answer.
    pub repetition_penalty: f32,
    /// The largest number of new tokens; without it, what the context has room for.
    pub max_new_tokens: Option<usize>,
    /// The least number of new tokens: until then nothing ends the answer but a lack of room.
    pub min_new_tokens: usize,
    /// Whether to go on after a token that ends a sequence.
    pub ignore_eos: bool,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// Tokens that end the answer; their text is not part of it.
    pub stop_token_ids: Vec<u32>,
    /// Whether to turn tokens into text.
    pub detokenize: bool,
    /// The seed of the random numbers; without one, a seed is drawn and reported by [`Sampler::seed`].
    pub seed: Option<u64>,
    /// What to add to the logits of tokens.
    pub logit_bias: BTreeMap<u32, f32>,
    /// How many of the most probable tokens to report with their log probabilities, beside the chosen one; without it,
    /// no log probabilities are computed.
    pub logprobs: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            top_k: -1,
            top_p: 1.0,
            min_p: 0.0,
            temperature: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            max_new_tokens: None,
            min_new_tokens: 0,
            ignore_eos: false,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            detokenize: true,
            seed: None,
            logit_bias: BTreeMap::new(),
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// The most probable token at every step.
    pub fn greedy() -> Self {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// Fails with the name of the first parameter that has an unacceptable value.
    pub fn validate(&self) -> Result<()> {
        if self.top_k < -1 {
            bail!(value, "top_k must be -1 or a number of tokens, not {}", self.top_k);
        }
        for (name, share) in [("top_p", self.top_p), ("min_p", self.min_p)] {
            if !(0.0..=1.0).contains(&share) {
                bail!(value, "{name} must be from 0 to 1, not {share}");
            }
        }
        if !self.temperature.is_finite() || self.temperature < 0.0 {
            bail!(
                value,
                "temperature must be 0 (greedy) or a positive finite number, not {}",
                self.temperature
            );
        }
        for (name, penalty) in
            [("frequency_penalty", self.frequency_penalty), ("presence_penalty", self.presence_penalty)]
        {
            if !penalty.is_finite() {
                bail!(value, "{name} must be a finite number, not {penalty}");
            }
        }
        if !self.repetition_penalty.is_finite() || self.repetition_penalty <= 0.0 {
            bail!(
                value,
                "repetition_penalty must be a positive finite number, not {}",
                self.repetition_penalty
            );
        }
        if let Some(most) = self.max_new_tokens
            && self.min_new_tokens > most
        {
            bail!(
                value,
                "min_new_tokens is {}, which is more than max_new_tokens, {most}",
                self.min_new_tokens
            );
        }
        if self.stop.iter().any(String::is_empty) {
            bail!(value, "stop has an empty string, which would end every answer before it begins");
        }
        if let Some((token, bias)) = self.logit_bias.iter().find(|(_, bias)| !bias.is_finite()) {
            bail!(value, "logit_bias of token {token} must be a finite number, not {bias}");
        }
        Ok(())
    }

    /// Whether the most probable token is chosen without drawing.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_documented_ones() {
        let params = SamplingParams::default();
        assert_eq!((params.top_k, params.top_p, params.min_p, params.temperature), (-1, 1.0, 0.0, 1.0));
        assert_eq!(
            (params.frequency_penalty, params.presence_penalty, params.repetition_penalty),
            (0.0, 0.0, 1.0)
        );
        assert_eq!((params.max_new_tokens, params.min_new_tokens, params.ignore_eos), (None, 0, false));
        assert!(params.detokenize && params.validate().is_ok());
    }

    #[test]
    fn an_error_names_the_parameter() {
        type Change = fn(&mut SamplingParams, f32);
        let floats: [(&str, Change, &[f32]); 7] = [
            ("top_p", |p, x| p.top_p = x, &[-0.1, 1.1]),
            ("min_p", |p, x| p.min_p = x, &[-0.1, 1.1]),
            ("temperature", |p, x| p.temperature = x, &[-1.0]),
            ("frequency_penalty", |p, x| p.frequency_penalty = x, &[]),
            ("presence_penalty", |p, x| p.presence_penalty = x, &[]),
            ("repetition_penalty", |p, x| p.repetition_penalty = x, &[0.0, -1.0]),
            ("logit_bias", |p, x| p.logit_bias = BTreeMap::from([(3, x)]), &[]),
        ];
        for (name, change, wrong) in floats {
            for &value in wrong.iter().chain(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]) {
                let mut params = SamplingParams::default();
                change(&mut params, value);
                let error = params.validate().unwrap_err().to_string();
                assert!(error.contains(name), "{name} = {value}: {error}");
            }
        }
        let wrong = |change: fn(&mut SamplingParams)| {
            let mut params = SamplingParams::default();
            change(&mut params);
            params.validate().unwrap_err().to_string()
        };
        assert!(wrong(|p| p.top_k = -2).contains("top_k"));
        assert!(wrong(|p| p.stop = vec!["end".into(), String::new()]).contains("stop"));
        let error = wrong(|p| (p.min_new_tokens, p.max_new_tokens) = (5, Some(3)));
        assert!(error.contains("min_new_tokens") && error.contains("max_new_tokens"));
    }
}
