//! Which texts run together.

use std::ops::Range;

/// What starting a batch costs, in tokens: reading all weights takes as long as computing about this many.
const START: usize = 32;

/// The most tokens of a batch of several texts, padding included.
const MOST_TOKENS: usize = 16_384;

/// A batch of texts in the order of their lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Which of them.
    pub texts: Range<usize>,
    /// The tokens of the longest.
    pub length: usize,
}

/// Divides texts, whose lengths ascend, into batches of at most so many, such that the tokens to compute are the fewest: those
/// of texts, their padding, and the price of each batch.
pub fn batches(lengths: &[usize], most_texts: usize) -> Vec<Batch> {
    // For each number of texts the fewest tokens to compute, and where the last batch starts.
    let mut fewest = vec![(0usize, 0usize)];
    for (at, &length) in lengths.iter().enumerate() {
        let fits = |start: &usize| *start == at || (at + 1 - start).saturating_mul(length) <= MOST_TOKENS;
        let earliest = (at + 1).saturating_sub(most_texts.max(1));
        let cost = |start: usize| {
            let own = (at + 1 - start).saturating_mul(length);
            (fewest[start].0.saturating_add(START).saturating_add(own), start)
        };
        let best = (earliest..=at).rev().take_while(fits).map(cost).min();
        fewest.push(best.unwrap_or((usize::MAX, at)));
    }
    let mut end = lengths.len();
    let mut batches = Vec::new();
    while end > 0 {
        let start = fewest[end].1;
        batches.push(Batch { texts: start..end, length: lengths[end - 1] });
        end = start;
    }
    batches.reverse();
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(lengths: &[usize], most: usize) -> Vec<(Range<usize>, usize)> {
        batches(lengths, most).into_iter().map(|batch| (batch.texts, batch.length)).collect()
    }

    #[test]
    fn batches_cover_all_texts_in_order() {
        assert!(batches(&[], 32).is_empty());
        assert_eq!(divided(&[7], 32), [(0..1, 7)]);
        assert_eq!(divided(&[0, 0], 0), [(0..1, 0), (1..2, 0)]);
        assert_eq!(divided(&[5; 64], 32), [(0..32, 5), (32..64, 5)]);
        let lengths: Vec<usize> = (0..1000).map(|at| at / 2).collect();
        let all = batches(&lengths, 32);
        assert!(all.iter().flat_map(|batch| batch.texts.clone()).eq(0..1000));
        assert!(all.iter().all(|batch| batch.texts.len() <= 32));
        assert!(all.iter().all(|batch| lengths[batch.texts.end - 1] == batch.length));
    }

    #[test]
    fn padding_is_weighed_against_batches() {
        assert_eq!(divided(&[3, 5, 8, 9], 32), [(0..4, 9)]);
        assert_eq!(divided(&[3, 400], 32), [(0..1, 3), (1..2, 400)]);
        assert_eq!(divided(&[8, 8, 8, 8, 60, 64], 32), [(0..4, 8), (4..6, 64)]);
    }

    #[test]
    fn long_texts_make_small_batches() {
        assert_eq!(divided(&[8192; 5], 32).len(), 3);
        assert_eq!(divided(&[usize::MAX, usize::MAX], 32).len(), 2);
    }
}
