//! Log probabilities of tokens under the logits that the model gave, before anything that sampling does to them.

use max_core::{Result, bail};

use super::select::{Candidate, exponential_sums, top_k};

/// A token's log probability beside those of the most probable ones.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogProbability {
    /// The token.
    pub token: u32,
    /// Its log probability.
    pub log_probability: f32,
    /// As many of the most probable tokens as were asked for, most probable first, then the token itself if it is not
    /// among them.
    pub top: Vec<(u32, f32)>,
}

/// The log probabilities of tokens that follow each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogProbabilities {
    /// Of each token.
    pub token_log_probabilities: Vec<f32>,
    /// Of the most probable tokens at each place, as in [`TokenLogProbability::top`].
    pub top_log_probabilities: Vec<Vec<(u32, f32)>>,
}

impl LogProbabilities {
    /// Adds the next token's.
    pub fn push(&mut self, next: TokenLogProbability) {
        self.token_log_probabilities.push(next.log_probability);
        self.top_log_probabilities.push(next.top);
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.token_log_probabilities.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.token_log_probabilities.is_empty()
    }
}

impl TokenLogProbability {
    /// The log probability of a token under a row of logits, and those of the `top_n` most probable tokens.
    pub fn new(logits: &[f32], token: u32, top_n: usize) -> Result<TokenLogProbability> {
        let Some(&logit) = logits.get(token as usize) else {
            bail!(index, "token {token} has no logit: there are {}", logits.len());
        };
        let mut most = Vec::new();
        top_k(logits, top_n.max(1), &mut most)?;
        let largest = most[0].logit();
        let log_sum = libm::log(exponential_sums(logits, largest, 1.0).sum::<f64>());
        let log_probability = |logit: f32| (f64::from(logit) - f64::from(largest) - log_sum) as f32;
        most.truncate(top_n);
        let mut top = most.iter().map(|c| (c.token(), log_probability(c.logit()))).collect::<Vec<_>>();
        let own = log_probability(logit);
        if most.binary_search(&Candidate::new(token as usize, logit)).is_err() {
            top.push((token, own));
        }
        Ok(TokenLogProbability { token, log_probability: own, top })
    }
}

/// The log probabilities of a sequence: `logits` has a row for each of `tokens`, which tells what follows it. With `echo`,
/// there is an entry for each token but the first, and then for `sampled`; without it, for `sampled` alone, which the last
/// row tells. None are computed where `top_n` is zero.
pub fn log_probabilities(
    logits: &[f32],
    tokens: &[u32],
    sampled: u32,
    top_n: usize,
    echo: bool,
) -> Result<Option<LogProbabilities>> {
    if top_n == 0 {
        return Ok(None);
    }
    let rows = if echo { tokens.len() } else { 1 };
    if rows == 0 || logits.is_empty() || !logits.len().is_multiple_of(rows) {
        bail!(value, "{} logits are not one row for each of {rows} tokens", logits.len());
    }
    let followers = if echo { &tokens[1..] } else { &[] };
    let mut all = LogProbabilities::default();
    for (row, &token) in logits.chunks_exact(logits.len() / rows).zip(followers.iter().chain([&sampled])) {
        all.push(TokenLogProbability::new(row, token, top_n)?);
    }
    Ok(Some(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three rows of logits that are log probabilities already.
    fn rows() -> Vec<f32> {
        [[0.5_f32, 0.25, 0.125, 0.125], [0.125, 0.125, 0.25, 0.5], [0.25, 0.5, 0.125, 0.125]]
            .concat()
            .iter()
            .map(|p| p.ln() + 3.0)
            .collect()
    }

    fn close(a: f32, p: f32) -> bool {
        (a - p.ln()).abs() < 1e-6
    }

    #[test]
    fn the_chosen_token_is_always_among_the_top() {
        let row = &rows()[..4];
        let result = TokenLogProbability::new(row, 3, 1).unwrap();
        assert!(close(result.log_probability, 0.125));
        assert_eq!(result.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 3]);
        let result = TokenLogProbability::new(row, 1, 3).unwrap();
        assert_eq!(result.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(close(result.top[0].1, 0.5) && close(result.top[2].1, 0.125));
        // More than there are tokens: all of them.
        assert_eq!(TokenLogProbability::new(row, 1, 100).unwrap().top.len(), 4);
        let only = TokenLogProbability::new(row, 2, 0).unwrap();
        assert_eq!(only.top.iter().map(|t| t.0).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn an_echo_begins_with_the_second_token() {
        let logits = rows();
        let all = log_probabilities(&logits, &[0, 2, 3], 1, 2, true).unwrap().unwrap();
        assert_eq!(all.len(), 3);
        for (result, p) in all.token_log_probabilities.iter().zip([0.125, 0.5, 0.5]) {
            assert!(close(*result, p));
        }
        let one = log_probabilities(&logits[8..], &[0, 2, 3], 1, 2, false).unwrap().unwrap();
        assert_eq!(one.top_log_probabilities[0], all.top_log_probabilities[2]);
        assert_eq!(log_probabilities(&logits, &[0, 2, 3], 1, 0, true).unwrap(), None);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        assert!(TokenLogProbability::new(&[0.0, 1.0], 2, 1).is_err());
        assert!(TokenLogProbability::new(&[0.0, f32::NAN], 0, 1).is_err());
        assert!(log_probabilities(&rows()[..11], &[0, 2, 3], 1, 2, true).is_err());
        assert!(log_probabilities(&[], &[0], 0, 1, true).is_err());
        assert!(log_probabilities(&[], &[], 0, 1, true).is_err());
    }

    #[test]
    fn a_masked_token_has_no_probability() {
        let result = TokenLogProbability::new(&[0.0, f32::NEG_INFINITY], 1, 2).unwrap();
        assert_eq!(result.log_probability, f32::NEG_INFINITY);
        assert_eq!(result.top, [(0, 0.0), (1, f32::NEG_INFINITY)]);
    }
}
