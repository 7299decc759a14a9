//! Attention to latent vectors (MLA), which take the place of keys in a cache of one head.
//!
//! The first elements of a latent vector stand for the keys and values of all heads, which weights make of them; the last ones
//! are a part of the keys that was turned by the position and that all heads share.

use max_core::{DType, Dim, Error, Result, bail};

use crate::operand::Operand;
use crate::ops;
use crate::ops::cached::{CacheLayer, Keys, Rule};
use crate::ops::cast::cast_value;
use crate::ops::flash_attention::MaskVariant;
use crate::ops::ragged::Rows;
use crate::ops::rebind::assert_dim;
use crate::ops::reshape::reshape_value;
use crate::ops::slice::part;
use crate::registry::{Arg, op_fns};
use crate::value::TensorValue;

const ONE: Dim = Dim::Static(1);

/// Below all scores.
const LOWEST: f64 = -3.0e38;

op_fns! {
    /// Attention of queries `[tokens, heads, depth]` to the latent vectors of their sequences, whose first `depth - rope_dim`
    /// elements are the values.
    pub fn latent_attention(
        q: Operand, place: CacheLayer, mask: MaskVariant, scale: f64, rope_dim: i64 = 64,
    ) -> TensorValue {
        let (q, depth) = (q.tensor()?, place.depth()?);
        if q.rank() != 3 || q.shape()[2] != depth || *place.heads() != ONE {
            bail!(
                value,
                "attention to a cache of one head of latent vectors takes queries [tokens, heads, {depth}]; got {} and {} heads",
                q.tensor_type(),
                place.heads()
            );
        }
        let width = values(&depth, rope_dim)?;
        let all = Keys::new(&place, &place.row_offsets)?;
        let k = all.part(&place, 0)?;
        let v = part(&k, 3, None, Some(width))?;
        all.attend(&place, &q, [k, v], Rule { mask, window: -1, scale }, None)
    }

    /// Divides the tokens of all sequences, those in the cache and new ones, into chunks of `size` tokens: where those of each
    /// sequence start in each chunk, and the last ones end, `[chunks, sequences + 1]`; which token of its sequence is the first
    /// one there, `[chunks, sequences]`; and how many tokens each chunk has, `[chunks]`.
    pub fn latent_plan(place: CacheLayer, size: i64, chunks: i64 = 16) -> Vec<TensorValue> {
        if size < 1 || chunks < 1 {
            bail!(value, "a plan has chunks of at least one token; got {chunks} chunks of {size} tokens");
        }
        let (starts, lengths) = (&place.row_offsets, &place.cache_lengths);
        let sequences = &lengths.shape()[0];
        let new = ops::sub(part(starts, 0, Some(ONE), None)?, part(starts, 0, None, Some(sequences.clone()))?)?;
        let all = ops::add(lengths, assert_dim(new, 0, sequences.clone(), "new tokens")?)?;
        let ends = ops::cumsum(&all, 0, false, false)?;
        let zero = ops::mul(part(starts, 0, None, Some(ONE))?, 0)?;
        let first = ops::concat([&zero, &ends], 0)?;
        let chunk = ops::mul(ops::range(0, chunks, 1, None, DType::Int64, starts.device())?, size)?;
        let chunk = ops::unsqueeze(chunk, 1)?;
        let offsets = clipped(ops::sub(&first, &chunk)?, size)?;
        let own = part(&first, 0, None, Some(sequences.clone()))?;
        let own = assert_dim(own, 0, sequences.clone(), "sequences")?;
        let tokens = ops::min(ops::max(ops::sub(chunk, own)?, 0)?, &all)?;
        let counts = ops::squeeze(part(&offsets, 1, Some(Dim::Static(-1)), None)?, 1)?;
        Ok(vec![
            cast_value(&offsets, DType::UInt32)?,
            cast_value(&tokens, DType::UInt32)?,
            cast_value(&counts, DType::Int32)?,
        ])
    }

    /// The latent vectors of a chunk times transposed weights, `[size, n]`; zeros where the chunk has no token. The place has
    /// the offsets of the chunk as row offsets, and the first tokens of sequences there as cache lengths: see
    /// [`latent_plan()`].
    pub fn latent_keys(place: CacheLayer, weight: Operand, size: i64) -> TensorValue {
        let weight = ops::transfer_to(weight, place.cache.device())?;
        if size < 0 {
            bail!(value, "a chunk has room for some tokens; got {size}");
        }
        let size = Dim::Static(size);
        let [_, width] = &weight.shape()[..] else {
            bail!(value, "the weights of latent vectors are a matrix; got {}", weight.tensor_type());
        };
        let depth = place.depth()?;
        let narrow = width.as_static().zip(depth.as_static()).is_some_and(|(own, all)| own <= all);
        if *place.heads() != ONE || !narrow {
            bail!(
                value,
                "weights {} do not fit latent vectors of {depth} elements in a cache of one head; it has {}",
                weight.shape(),
                place.heads()
            );
        }
        let rows = ops::squeeze(place.rows(&size, 0)?, 1)?;
        let (rows, inside) = (part(&rows, 1, None, Some(width.clone()))?, place.places(&size)?.0.inside);
        let rows = ops::where_(ops::unsqueeze(inside, 1)?, cast_value(&rows, weight.dtype())?, 0)?;
        ops::matmul(rows, ops::transpose(weight, 0, 1)?)
    }

    /// Attention of queries `[tokens, heads, depth]` to a chunk: keys `[size, heads, depth - rope_dim]`, whose other elements
    /// are the last ones of the latent vectors, and values `[size, heads, width]`. The chunk is a place as in
    /// [`latent_keys()`].
    ///
    /// Returns the results so far, `[tokens, heads, width]`, and the largest score and the sum of weights behind each,
    /// `[tokens, heads, 2]`. Both of the chunk before are continued, if they are given.
    #[expect(clippy::too_many_arguments, reason = "queries, keys and values, two places, and what attention has")]
    pub fn latent_prefill(
        q: Operand, k: Operand, v: Operand, place: CacheLayer, chunk: CacheLayer, mask: MaskVariant, scale: f64,
        rope_dim: i64 = 64, output: Option<Operand> = Arg::None, info: Option<Operand> = Arg::None,
    ) -> Vec<TensorValue> {
        let (q, k, v) = (q.tensor()?, k.tensor()?, v.tensor()?);
        let ([tokens, heads, depth], [size, ..], [_, _, width]) = (&q.shape()[..], &k.shape()[..], &v.shape()[..])
        else {
            bail!(
                value,
                "attention to a chunk takes [tokens, heads, depth]; got the shapes {}, {} and {}",
                q.shape(),
                k.shape(),
                v.shape()
            );
        };
        let nope = values(depth, rope_dim)?;
        let fits = |x: &TensorValue, last: &Dim| x.shape() == &[size, heads, last].into();
        if !fits(&k, &nope) || !fits(&v, width) || *place.heads() != ONE {
            bail!(
                value,
                "a chunk has keys [{size}, {heads}, {nope}] and as many values, in a cache of one head; got {}, {} and {}",
                k.shape(),
                v.shape(),
                place.heads()
            );
        }
        if !scale.is_finite() {
            bail!(value, "the scale of attention must be finite; got {scale}");
        }
        let wide = |x: &TensorValue| cast_value(x, DType::Float32);
        // Keys are [heads, depth, size], queries [heads, tokens, depth].
        let start = place.depth()?.sub(&Dim::Static(rope_dim))?;
        let shared = part(&chunk.rows(size, 0)?, 2, Some(start), None)?;
        let shared = ops::broadcast_to(wide(&shared)?, vec![size.clone(), heads.clone(), Dim::Static(rope_dim)])?;
        let (Rows { sequence: of_key, inside, .. }, key) = chunk.places(size)?;
        let keys = ops::permute(ops::concat([wide(&k)?, shared], -1)?, vec![1, 2, 0])?;
        let scores = ops::mul(ops::matmul(ops::permute(wide(&q)?, vec![1, 0, 2])?, keys)?, scale)?;
        let (Rows { sequence, .. }, query) = place.places(tokens)?;
        let [sequence, query] = [sequence, query].map(|x| ops::unsqueeze(x, 1));
        let mut seen = ops::logical_and(ops::equal(sequence?, of_key)?, &inside)?;
        if let Some(rule) = (Rule { mask, window: -1, scale }).seen(&query?, &key)? {
            seen = ops::logical_and(seen, rule)?;
        }
        if mask == MaskVariant::CausalAlibi {
            bail!(value, "attention to chunks has no ALiBi");
        }
        let scores = ops::where_(&seen, scores, LOWEST)?;
        let mut most = ops::reduce_max(&scores, -1)?;
        let column = [heads, tokens, &ONE];
        let before = match (output, info) {
            (Some(output), Some(info)) => {
                let info = ops::permute(wide(&info.tensor()?)?, vec![1, 0, 2])?;
                let [largest, total] = <[TensorValue; 2]>::try_from(ops::split(info, vec![ONE, ONE], -1)?)
                    .map_err(|_| Error::internal("a score and a sum are two"))?;
                most = ops::max(most, assert_shape(largest.clone(), &column)?)?;
                let factor = ops::mul(ops::exp(ops::sub(largest, &most)?)?, total)?;
                let output = ops::permute(wide(&output.tensor()?)?, vec![1, 0, 2])?;
                Some((ops::mul(output, &factor)?, factor))
            }
            (None, None) => None,
            _ => bail!(value, "what a chunk continues is a result and its softmax info; got only one of them"),
        };
        let weights = ops::where_(&seen, ops::exp(ops::sub(scores, &most)?)?, 0)?;
        let mut total = ops::sum(&weights, -1)?;
        // A value in no sequence may be NaN, which a weight of zero does not hide.
        let inside = reshape_value(&inside, [size, &ONE, &ONE].into())?;
        let v = ops::permute(ops::where_(inside, wide(&v)?, 0)?, vec![1, 0, 2])?;
        let mut result = ops::matmul(weights, v)?;
        if let Some((output, sum)) = before {
            (result, total) = (ops::add(result, output)?, ops::add(total, sum)?);
        }
        let divisor = ops::where_(ops::greater(&total, 0)?, &total, 1)?;
        let result = ops::permute(ops::div(result, divisor)?, vec![1, 0, 2])?;
        let info = ops::permute(ops::concat([most, total], -1)?, vec![1, 0, 2])?;
        Ok(vec![cast_value(&result, q.dtype())?, info])
    }
}

/// The elements of a vector before those that positions turn.
fn values(depth: &Dim, rope_dim: i64) -> Result<Dim> {
    match depth.as_static() {
        Some(depth) if (0..depth).contains(&rope_dim) => Ok(Dim::Static(depth - rope_dim)),
        _ => bail!(value, "{rope_dim} of {depth} elements cannot be those that positions turn"),
    }
}

fn clipped(x: TensorValue, most: i64) -> Result<TensorValue> {
    ops::min(ops::max(x, 0)?, most)
}

fn assert_shape(x: TensorValue, dims: &[&Dim]) -> Result<TensorValue> {
    (0..dims.len())
        .try_fold(x, |x, axis| assert_dim(x, axis, dims[axis].clone(), "the softmax info of tokens"))
}
