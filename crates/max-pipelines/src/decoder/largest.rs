//! The largest logits of each sequence, found where they were computed: samplers rarely need more, and all logits of a large
//! vocabulary take long to copy.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use max_core::{DType, DeviceRef, Result, TensorType, ViewIndex, bail};
use max_driver::{Buffer, CPU};
use max_engine::{InferenceSession, Model};
use max_graph::{Graph, ops};

use crate::text::sampling::{Logits, Wanted};

/// How many logits of a sequence are looked for at most: more are copied as they are.
const MOST: usize = 256;

/// What finds the largest logits, by how many of them.
#[derive(Default)]
pub struct Largest(Mutex<HashMap<usize, Arc<Model>>>);

impl Largest {
    /// What is wanted of each row of `[sequences, vocab]`, in host memory.
    pub fn of(&self, session: &InferenceSession, logits: &Buffer, wanted: &[Wanted]) -> Result<Vec<Logits>> {
        let &[rows, vocab_size] = logits.shape() else {
            bail!(internal, "logits of the shape {:?}", logits.shape())
        };
        if rows != wanted.len() {
            bail!(internal, "{rows} rows of logits for {} sequences", wanted.len());
        }
        let whole = |row: usize| logits.index(&[ViewIndex::At(row as i64)])?.to(&CPU())?.to_vec::<f32>();
        if vocab_size == 0 {
            bail!(value, "a model without tokens has no logits");
        }
        let counts = wanted.iter().filter_map(|wanted| match wanted {
            Wanted::Largest(count) if *count <= MOST => Some(*count),
            _ => None,
        });
        let found = match counts.max().filter(|_| !logits.device().runs_on_host()) {
            Some(count) => self.find(session, logits, if count <= 1 { 1 } else { MOST }.min(vocab_size))?,
            None => vec![Vec::new(); rows],
        };
        let of_row = |row: usize, wanted: &Wanted, found: Vec<(u32, f32)>| match wanted {
            Wanted::Nothing => Ok(Logits::Largest(Vec::new())),
            // Where nothing can be chosen, all logits tell why.
            Wanted::Largest(count)
                if *count <= MOST && found.first().is_some_and(|(_, best)| best.is_finite()) =>
            {
                Ok(Logits::Largest(found.into_iter().take(*count).collect()))
            }
            _ => whole(row).map(Logits::All),
        };
        let rows = wanted.iter().zip(found).enumerate();
        rows.map(|(row, (wanted, found))| of_row(row, wanted, found)).collect()
    }

    /// The largest logits of all rows.
    fn find(
        &self,
        session: &InferenceSession,
        logits: &Buffer,
        count: usize,
    ) -> Result<Vec<Vec<(u32, f32)>>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&count).cloned();
        let model = match known {
            Some(model) => model,
            None => {
                let model = Arc::new(session.load(&graph(count, logits.device().device_ref())?)?);
                let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                all.entry(count).or_insert(model).clone()
            }
        };
        let Some(found) = model.execute(std::slice::from_ref(logits))?.into_iter().next() else {
            bail!(internal, "no largest logits")
        };
        let found = found.to(&CPU())?.to_vec::<f64>()?;
        let pairs: Vec<(u32, f32)> =
            found.as_chunks::<2>().0.iter().map(|&[token, logit]| (token as u32, logit as f32)).collect();
        Ok(pairs.chunks(count).map(<[_]>::to_vec).collect())
    }
}

/// From logits `[sequences, vocab]` to the largest of each sequence and the tokens that have them, `[sequences, count, 2]`:
/// tokens and logits are one tensor, so that one copy brings them to the host. All float32 and all tokens are exact in float64.
fn graph(count: usize, device: DeviceRef) -> Result<Graph> {
    let graph = Graph::new("largest", [TensorType::new(DType::Float32, ("sequences", "vocab"), device)])?;
    {
        let _scope = graph.enter();
        let logits = graph.input(0)?;
        let [values, tokens] = match count {
            1 => [ops::reduce_max(&logits, -1)?, ops::argmax(&logits, -1)?],
            _ => {
                let found = ops::top_k(&logits, count as i64, -1)?;
                let Ok(found) = <[_; 2]>::try_from(found) else { bail!(internal, "top_k has two results") };
                found
            }
        };
        let [tokens, values] = [tokens, values].map(|x| ops::cast(x, DType::Float64));
        graph.output(ops::stack([tokens?, values?], -1)?)?;
    }
    Ok(graph)
}

#[cfg(test)]
mod tests {
    use max_core::random::Distribution;

    use super::*;

    /// What a sort of a row gives.
    fn expected(row: &[f32], count: usize) -> Vec<(u32, f32)> {
        let mut all: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
        all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap());
        all.truncate(count);
        all
    }

    #[test]
    fn the_largest_are_those_of_a_sort() {
        let (rows, vocab_size) = (3, 1000);
        let draw = |at: usize| (Distribution::Normal.draw::<f32>(3, at as u64) * 16.0).round() / 8.0;
        let logits: Vec<f32> = (0..rows * vocab_size).map(draw).collect();
        let buffer = Buffer::from_slice(&logits, &[rows, vocab_size]).unwrap();
        let session = InferenceSession::new([CPU()]);
        let largest = Largest::default();
        for count in [1, 2, MOST] {
            let found = largest.find(&session, &buffer, count).unwrap();
            let expected: Vec<_> = logits.chunks(vocab_size).map(|row| expected(row, count)).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn nothing_hides_what_cannot_be_chosen_from() {
        let session = InferenceSession::new([CPU()]);
        for value in [f32::NAN, f32::INFINITY] {
            let mut logits = vec![0.5f32; 600];
            logits[451] = value;
            let buffer = Buffer::from_slice(&logits, &[2, 300]).unwrap();
            for count in [1, 5] {
                let found = Largest::default().find(&session, &buffer, count).unwrap();
                assert_eq!(found[0][0], (0, 0.5));
                assert_eq!((found[1][0].0, found[1][0].1.to_bits()), (151, value.to_bits()));
            }
        }
    }

    #[test]
    fn rows_are_what_is_wanted_of_them() {
        let session = InferenceSession::new([CPU()]);
        let buffer = Buffer::from_slice(&[1.0f32, 3.0, 2.0, 0.0, 5.0, 4.0], &[2, 3]).unwrap();
        let wanted = [Wanted::Nothing, Wanted::All];
        let found = Largest::default().of(&session, &buffer, &wanted).unwrap();
        assert_eq!(found, [Logits::Largest(vec![]), Logits::All(vec![0.0, 5.0, 4.0])]);
        assert!(Largest::default().of(&session, &buffer, &wanted[..1]).is_err());
    }
}
