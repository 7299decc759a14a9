//! Scaled dot-product attention. `flash_attention` records it, and the compiler fuses it from its parts.

use max_core::scalar::FloatLane;
use max_core::{Bool, DType, Element, Result, Shape, Type, bail, dispatch};

use crate::attr::op_struct;
use crate::host::{HostTensor, allocate, broadcast_layout, byte_count};
use crate::op::{Operation, Run};
use crate::ops::elementwise::{broadcast_shapes, broadcast_sizes};
use crate::ops::{all_tensors, check_alike};
use crate::properties::{Effects, Form, Properties, Signature};

op_struct! {
    /// `softmax(query · keyᵀ * scale + mask) · value` for `query [.., q, d]`, `key [.., k, d]`, `value [.., k, w]` and
    /// an optional mask for `[.., q, k]`: numbers to add, or bools that say which scores to keep. If it is causal,
    /// query `i` attends only to the keys up to `i + keys - queries`, and with a window only to the last `window` of
    /// these. A window of zero means no window; a window without `causal` is an error.
    Attention = "attention" { scale: f64, causal: bool, window: usize }
}

impl Operation for Attention {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let all = all_tensors(operands)?;
        let (query, key, value, mask) = match all[..] {
            [query, key, value] => (query, key, value, None),
            [query, key, value, mask] => (query, key, value, Some(mask)),
            _ => bail!(value, "attention takes 3 or 4 operands, got {}", all.len()),
        };
        check_alike(&all[..3])?;
        if self.window > 0 && !self.causal {
            bail!(
                value,
                "attention with a window of {} keys must be causal; got causal = false",
                self.window
            );
        }
        if !query.dtype.is_float() {
            bail!(value, "attention needs floats; got {}", query.dtype);
        }
        let ([query_batch @ .., q, d], [key_batch @ .., k, key_d], [value_batch @ .., value_k, w]) =
            (&query.shape[..], &key.shape[..], &value.shape[..])
        else {
            bail!(
                value,
                "attention operands must have rank 2 or more; got {}, {} and {}",
                query.shape,
                key.shape,
                value.shape
            );
        };
        if d != key_d || k != value_k {
            bail!(
                value,
                "attention needs a query [.., q, d], a key [.., k, d] and a value [.., k, w]; got {}, {} and {}",
                query.shape,
                key.shape,
                value.shape
            );
        }
        let batch = broadcast_shapes([query_batch, key_batch, value_batch].map(Shape::from).iter())?;
        if let Some(mask) = mask {
            let kind = if mask.dtype == DType::Bool { query.dtype } else { mask.dtype };
            check_alike(&[query, &mask.cast(kind)])?;
            let scores = Shape::from([&batch[..], &[q.clone(), k.clone()]].concat());
            if mask.shape.broadcast(&scores).as_ref() != Some(&scores) {
                bail!(value, "an attention mask of shape {} does not broadcast to {scores}", mask.shape);
            }
        }
        Ok(vec![query.with_shape([&batch[..], &[q.clone(), w.clone()]].concat()).into()])
    }

    fn properties(&self, signature: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: false,
            form: Form::Kernel,
            folding: signature.rounded(),
            heavy: true,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let ([query_batch @ .., q, d], [key_batch @ .., k, _], [value_batch @ .., _, w]) =
            (operands[0].shape(), operands[1].shape(), operands[2].shape())
        else {
            return Ok(vec![]);
        };
        let (q, d, k, w) = (*q, *d, *k, *w);
        let batches = [query_batch, key_batch, value_batch];
        let batch = broadcast_sizes(&batches)?;
        let sizes = [batch.as_slice(), &[q, w]].concat();
        dispatch!(operands[0].dtype(), T => {
            let count = byte_count(T::DTYPE, &sizes)? / size_of::<T>();
            let mut results = allocate::<T>(count)?;
            let [query, key, value] =
                [operands[0].elements::<T>()?, operands[1].elements::<T>()?, operands[2].elements::<T>()?];
            let mask = operands.get(3).map(|mask| whole(mask, &batch, [q, k])).transpose()?;
            let (mut keep, mut add) = (None, None);
            match &mask {
                Some(mask) if mask.dtype() == DType::Bool => keep = Some(mask.elements::<Bool>()?),
                Some(mask) => add = Some(mask.elements::<T>()?),
                None => {}
            }
            let matrices = batches.map(|own| broadcast_layout(own, &batch));
            let [queries, keys, values] = matrices.each_ref().map(|layout| layout.positions());
            let mut weights = allocate::<f64>(k)?;
            let numbered = queries.zip(keys.zip(values)).enumerate();
            for (number, (at_query, (at_key, at_value))) in numbered.take(count) {
                for i in 0..q {
                    let row = &query[(at_query * q + i) * d..][..d];
                    weights.clear();
                    weights.extend((0..k).map(|j| {
                        let products = row.iter().zip(&key[(at_key * k + j) * d..][..d]);
                        let score = products.map(|(a, b)| a.to_f64() * b.to_f64()).sum::<f64>() * self.scale;
                        let at = (number * q + i) * k + j;
                        let hidden = self.hides(i + k, j + q) || keep.as_ref().is_some_and(|keep| !keep[at].get());
                        let bias = add.as_ref().map_or(0.0, |add| add[at].to_f64());
                        if hidden { f64::NEG_INFINITY } else { score + bias }
                    }));
                    let max = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    weights.iter_mut().for_each(|weight| *weight = FloatLane::exp(*weight - max));
                    let sum: f64 = weights.iter().sum();
                    results.extend((0..w).map(|column| {
                        let terms = weights.iter().enumerate();
                        T::from_double(terms.map(|(j, p)| p / sum * value[(at_value * k + j) * w + column].to_f64()).sum())
                    }));
                }
            }
            Ok(vec![HostTensor::from_vec(sizes, results)?])
        })
    }
}

impl Attention {
    /// Whether a key is hidden from a query, both counted from the same position.
    fn hides(&self, query: usize, key: usize) -> bool {
        self.causal && (key > query || self.window > 0 && query - key >= self.window)
    }
}

/// A mask broadcast to one element per score.
fn whole(mask: &HostTensor, batch: &[usize], scores: [usize; 2]) -> Result<HostTensor> {
    let sizes = [batch, &scores].concat();
    byte_count(mask.dtype(), &sizes)?;
    mask.gathered(&mask.broadcast_layout(&sizes))
}

#[cfg(test)]
mod tests {
    use crate::text::{Constants, parse, print};
    use crate::{HostTensor, interpret};

    fn numbers(shape: &[usize], seed: usize) -> HostTensor {
        let draw = |i: usize| ((i * 7919 + seed * 104729) % 613) as f32 / 200.0 - 1.5;
        HostTensor::from_vec(shape, (0..shape.iter().product()).map(draw).collect::<Vec<f32>>()).unwrap()
    }

    /// Compares two graphs on the same inputs: attention, and the ops it is fused from.
    fn same(arguments: &str, op: &str, parts: &str, inputs: &[HostTensor]) {
        let run = |ops: &str| {
            let body = parse(&format!("graph \"g\"({arguments}) {{ {ops} }}")).unwrap();
            let text = print(&body, Constants::Full);
            assert_eq!(print(&parse(&text).unwrap(), Constants::Full), text);
            interpret(&body, inputs, &()).unwrap().remove(0)
        };
        let (actual, expected) = (run(op), run(parts));
        assert_eq!(actual.shape(), expected.shape());
        let (actual, expected) = (actual.elements::<f32>().unwrap(), expected.elements::<f32>().unwrap());
        let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5 || a.is_nan() && b.is_nan();
        assert!(actual.iter().zip(expected.iter()).all(close), "{actual:?} {expected:?}");
    }

    #[test]
    fn equals_its_unfused_parts() {
        let inputs =
            [numbers(&[2, 3, 4], 1), numbers(&[2, 5, 4], 2), numbers(&[5, 6], 3), numbers(&[3, 1], 4)];
        same(
            "%0: float32[b, q, 4], %1: float32[b, k, 4], %2: float32[k, 6], %3: float32[q, 1]",
            "%9 = attention(%0, %1, %2, %3) {scale = 0.5, causal = false, window = 0} : float32[b, q, 6] return %9",
            "%4 = permute(%1) {dims = [0, 2, 1]} : float32[b, 4, k]
             %5 = matmul(%0, %4) : float32[b, q, k]
             %6 = constant() {value = dense(float32[], [0.5]), device = \"cpu:0\"} : float32[]
             %7 = mul(%5, %6) : float32[b, q, k]
             %8 = add(%7, %3) : float32[b, q, k]
             %9 = softmax(%8) {axis = 2, log = false} : float32[b, q, k]
             %10 = matmul(%9, %2) : float32[b, q, 6]
             return %10",
            &inputs,
        );
    }

    #[test]
    fn causal_is_a_mask_aligned_at_the_end() {
        let inputs = [numbers(&[2, 4], 1), numbers(&[3, 4], 2), numbers(&[3, 2], 3)];
        same(
            "%0: float32[2, 4], %1: float32[3, 4], %2: float32[3, 2]",
            "%3 = attention(%0, %1, %2) {scale = 1.0, causal = true, window = 0} : float32[2, 2] return %3",
            "%3 = constant() {value = dense(bool[2, 3], [1, 1, 0, 1, 1, 1]), device = \"cpu:0\"} : bool[2, 3]
             %4 = attention(%0, %1, %2, %3) {scale = 1.0, causal = false, window = 0} : float32[2, 2]
             return %4",
            &inputs,
        );
    }

    #[test]
    fn a_window_is_a_band() {
        let inputs = [numbers(&[3, 4], 1), numbers(&[4, 4], 2), numbers(&[4, 2], 3)];
        same(
            "%0: float32[3, 4], %1: float32[4, 4], %2: float32[4, 2]",
            "%3 = attention(%0, %1, %2) {scale = 1.0, causal = true, window = 2} : float32[3, 2] return %3",
            "%3 = constant() {value = dense(bool[3, 4], [1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1]), device = \"cpu:0\"} : \
             bool[3, 4]
             %4 = attention(%0, %1, %2, %3) {scale = 1.0, causal = false, window = 0} : float32[3, 2]
             return %4",
            &inputs,
        );
        let text = "graph \"g\"(%0: float32[3, 4]) {
            %1 = attention(%0, %0, %0) {scale = 1.0, causal = false, window = 2} : float32[3, 4] return %1 }";
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains("a window of 2 keys must be causal"), "{error}");
    }

    #[test]
    fn no_keys_give_zero_and_hidden_keys_nan() {
        let graph = "graph \"g\"(%0: float32[1, 2], %1: float32[k, 2], %2: bool[1, k]) {
            %3 = attention(%0, %1, %1, %2) {scale = 1.0, causal = false, window = 0} : float32[1, 2] return %3 }";
        let run = |keys: usize| {
            let mask = HostTensor::from_vec([1, keys], vec![max_core::Bool::FALSE; keys]).unwrap();
            let inputs = [numbers(&[1, 2], 1), numbers(&[keys, 2], 2), mask];
            interpret(&parse(graph).unwrap(), &inputs, &()).unwrap()[0].elements::<f32>().unwrap().to_vec()
        };
        assert_eq!(run(0), [0.0, 0.0]);
        assert!(run(2).iter().all(|x| x.is_nan()));
    }

    #[test]
    fn wrong_types_are_errors() {
        for (arguments, operands) in [
            ("%0: float32[2, 4], %1: float32[3, 5], %2: float32[3, 2]", "%0, %1, %2"),
            ("%0: float32[2, 4], %1: float32[3, 4], %2: float32[4, 2]", "%0, %1, %2"),
            ("%0: int32[2, 4], %1: int32[3, 4], %2: int32[3, 2]", "%0, %1, %2"),
            ("%0: float32[2, 4], %1: float32[2, 4], %2: float32[7, 2, 2]", "%0, %1, %0, %2"),
            ("%0: float32[2, 4], %1: float32[2, 4], %2: int32[2, 2]", "%0, %1, %0, %2"),
        ] {
            let text = format!(
                "graph \"g\"({arguments}) {{
                %3 = attention({operands}) {{scale = 1.0, causal = true, window = 0}} : float32[2, 2] return %3 }}"
            );
            assert!(parse(&text).is_err(), "{text}");
        }
    }
}
