//! Attention without a cache: of a batch of equally long sequences, and of sequences one after the other.

use std::str::FromStr;

use max_core::{DType, DeviceRef, Dim, Error, Result, Shape, bail};

use crate::graph::record_one;
use crate::host::HostTensor;
use crate::operand::{Operand, same_device};
use crate::ops;
use crate::ops::attention::Attention;
use crate::ops::cast::cast_value;
use crate::ops::permute::permute_value;
use crate::ops::ragged::{Rows, offsets};
use crate::ops::rebind::assert_dim;
use crate::ops::reshape::reshape_value;
use crate::registry::{Arg, FromArg, op_fns};
use crate::value::TensorValue;

/// Which keys of its sequence a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskVariant {
    /// All of them.
    Null,
    /// Those up to its own position.
    Causal,
    /// As `Causal`, with scores that decrease with the distance, by a slope for each head (ALiBi).
    CausalAlibi,
    /// As `Causal`, but only those in its own chunk of the window's size.
    ChunkedCausal,
    /// As `Causal`, but only as many of the last ones as the window has.
    SlidingWindowCausal,
}

impl MaskVariant {
    const ALL: [(&'static str, MaskVariant); 5] = [
        ("null", MaskVariant::Null),
        ("causal", MaskVariant::Causal),
        ("causal_alibi", MaskVariant::CausalAlibi),
        ("chunked_causal", MaskVariant::ChunkedCausal),
        ("sliding_window_causal", MaskVariant::SlidingWindowCausal),
    ];
}

impl FromStr for MaskVariant {
    type Err = Error;

    fn from_str(name: &str) -> Result<MaskVariant> {
        match MaskVariant::ALL.iter().find(|(own, _)| *own == name) {
            Some((_, variant)) => Ok(*variant),
            None => {
                bail!(value, "unknown mask '{name}'; there are {:?}", MaskVariant::ALL.map(|(name, _)| name))
            }
        }
    }
}

impl FromArg for MaskVariant {
    fn from_arg(arg: Arg) -> Result<MaskVariant> {
        String::from_arg(arg)?.parse()
    }
}

op_fns! {
    /// Attention of queries `[batch, tokens, heads, depth]` to keys `[batch, tokens, key heads, depth]` with values `[batch,
    /// tokens, key heads, width]`: each key head is that of equally many heads. There may be more or fewer keys than queries
    /// if the mask is null.
    ///
    /// With lengths, one for each sequence of the batch, tokens from there on do not count: they are seen by none and give
    /// zeros. The window is that of chunks and of sliding windows.
    pub fn flash_attention(
        q: Operand, k: Operand, v: Operand, mask: MaskVariant, scale: f64, window: i64 = -1,
        valid_length: Option<Operand> = Arg::None,
    ) -> TensorValue {
        let [q, mut k, mut v] = operands("flash_attention", [q, k, v], 4)?;
        let (batch, tokens) = (q.shape()[0].clone(), q.shape()[1].clone());
        if mask != MaskVariant::Null || valid_length.is_some() {
            k = fitted(k, 1, &tokens, "as many keys as queries")?;
            v = fitted(v, 1, &tokens, "as many keys as queries")?;
        }
        let position = ops::range(0, k.shape()[1].clone(), 1, None, DType::Int64, q.device())?;
        let Some(lengths) = valid_length else {
            return attend(&q, &k, &v, Mask { variant: mask, window, scale, position, seen: None });
        };
        let lengths = lengths.tensor()?;
        if lengths.rank() != 1 || !lengths.dtype().is_integral() {
            bail!(value, "valid_length must be a vector of integers, `[batch]`; got {}", lengths.tensor_type());
        }
        let lengths = fitted(lengths, 0, &batch, "a length for each sequence of the batch")?;
        let lengths = cast_value(&ops::transfer_to(lengths, q.device())?, DType::Int64)?;
        let valid = ops::greater(ops::unsqueeze(lengths, 1)?, &position)?;
        let one = Dim::Static(1);
        let rows = reshape_value(&valid, [&batch, &tokens, &one, &one].into())?;
        // A weight of zero hides no NaN.
        let v = ops::where_(&rows, &v, 0)?;
        // A query before the end sees only keys before it, unless it sees all of them.
        let seen = match mask {
            MaskVariant::Null => Some(reshape_value(&valid, [&batch, &one, &one, &tokens].into())?),
            _ => None,
        };
        let result = attend(&q, &k, &v, Mask { variant: mask, window, scale, position, seen })?;
        ops::where_(rows, result, 0)
    }

    /// As [`flash_attention()`], of sequences one after the other: queries `[tokens, heads, depth]`, keys and values alike.
    /// The tokens from `row_offsets[i]` to `row_offsets[i + 1]` are a sequence and see no others. Tokens in no sequence give
    /// zeros.
    pub fn ragged_flash_attention(
        q: Operand, k: Operand, v: Operand, row_offsets: Operand, mask: MaskVariant, scale: f64, window: i64 = -1,
    ) -> TensorValue {
        let [q, k, v] = operands("ragged_flash_attention", [q, k, v], 3)?;
        let tokens = q.shape()[0].clone();
        let [k, v] = [k, v].map(|x| fitted(x, 0, &tokens, "as many keys as queries"));
        let starts = offsets("the offsets of sequences", row_offsets, &q)?;
        let Rows { sequence, position, inside } = Rows::new(&starts, &tokens)?;
        let same = ops::equal(ops::unsqueeze(&sequence, 1)?, ops::unsqueeze(&sequence, 0)?)?;
        let one = Dim::Static(1);
        let seen = Some(reshape_value(&same, [&one, &one, &tokens, &tokens].into())?);
        let [q, k, v] = [Ok(q), k, v].map(|x| ops::unsqueeze(x?, 0));
        let result = attend(&q?, &k?, &v?, Mask { variant: mask, window, scale, position, seen })?;
        let rows = reshape_value(&inside, [&tokens, &one, &one].into())?;
        ops::where_(rows, ops::squeeze(result, 0)?, 0)
    }
}

/// What queries see, and how much of it.
struct Mask {
    variant: MaskVariant,
    window: i64,
    scale: f64,
    /// The position of each key in its sequence; queries have the same ones, except if the variant is null.
    position: TensorValue,
    /// Which keys a query may see at all, `[batch or 1, 1, queries or 1, keys]`.
    seen: Option<TensorValue>,
}

/// Queries, keys and values of one rank, dtype and device, whose heads and depths fit.
fn operands(name: &str, operands: [Operand; 3], rank: usize) -> Result<[TensorValue; 3]> {
    let [q, k, v] = operands.map(|operand| operand.tensor());
    let (q, k, v) = (q?, k?, v?);
    let all = [&q, &k, &v];
    same_device(all)?;
    if let Some(other) = all.iter().find(|x| x.rank() != rank) {
        bail!(value, "{name} takes queries, keys and values of rank {rank}; got the shape {}", other.shape());
    }
    if !q.dtype().is_float() || k.dtype() != q.dtype() || v.dtype() != q.dtype() {
        bail!(
            type_,
            "{name} takes queries, keys and values of one float dtype; got {}, {} and {}",
            q.dtype(),
            k.dtype(),
            v.dtype()
        );
    }
    let mut k = fitted(k, rank - 1, &q.shape()[rank - 1], "keys as deep as queries")?;
    if rank == 4 {
        k = fitted(k, 0, &q.shape()[0], "the same batch for queries and keys")?;
    }
    let v =
        (0..rank - 1).try_fold(v, |v, axis| fitted(v, axis, &k.shape()[axis], "as many keys as values"))?;
    Ok([q, k, v])
}

/// A tensor with a size along an axis, as attention needs it.
fn fitted(x: TensorValue, axis: usize, size: &Dim, need: &str) -> Result<TensorValue> {
    if x.shape()[axis].differs(size) {
        bail!(value, "attention needs {need}: {size} along axis {axis}, but the shape is {}", x.shape());
    }
    assert_dim(x, axis, size.clone(), need)
}

/// Attention of `[batch, tokens, heads, depth]`.
fn attend(q: &TensorValue, k: &TensorValue, v: &TensorValue, mask: Mask) -> Result<TensorValue> {
    let dtype = q.dtype();
    let Mask { variant, window, scale, position, seen } = mask;
    if !scale.is_finite() {
        bail!(value, "the scale of attention must be finite; got {scale}");
    }
    let needs_window = matches!(variant, MaskVariant::ChunkedCausal | MaskVariant::SlidingWindowCausal);
    if needs_window && window < 1 {
        bail!(value, "a mask of chunks or of a sliding window needs a positive window; got {window}");
    }
    let (causal, heads) = (variant != MaskVariant::Null, &q.shape()[2]);
    let kind = |window: usize| Attention { scale, causal, window };
    let and = |own: TensorValue| match &seen {
        Some(seen) => ops::logical_and(seen, own),
        None => Ok(own),
    };
    match variant {
        MaskVariant::Null | MaskVariant::Causal => attend_with(kind(0), q, k, v, seen),
        MaskVariant::SlidingWindowCausal => {
            let window = usize::try_from(window).map_err(|_| Error::value("a window exceeds memory"))?;
            attend_with(kind(window), q, k, v, seen)
        }
        MaskVariant::ChunkedCausal => {
            let chunk = ops::floor_div(position, window)?;
            let same = ops::equal(ops::unsqueeze(&chunk, 1)?, ops::unsqueeze(&chunk, 0)?)?;
            let rank = Shape::from([&Dim::Static(1), &Dim::Static(1), &same.shape()[0], &same.shape()[1]]);
            attend_with(kind(0), q, k, v, Some(and(reshape_value(&same, rank)?)?))
        }
        MaskVariant::CausalAlibi => {
            // The same number added to all scores of a query changes nothing, so distances from the first key do.
            let slopes = slopes(heads, q.device())?;
            let bias = ops::mul(slopes, cast_value(&position, DType::Float32)?)?;
            let bias = match &seen {
                Some(seen) => ops::where_(seen, bias, f64::NEG_INFINITY)?,
                None => bias,
            };
            let wide = if dtype == DType::Float64 { dtype } else { DType::Float32 };
            let [q, k, v, bias] = [q, k, v, &bias].map(|x| cast_value(x, wide));
            cast_value(&attend_with(kind(0), &q?, &k?, &v?, Some(bias?))?, dtype)
        }
    }
}

/// Attention with a mask `[batch or 1, heads or 1, queries or 1, keys]`.
pub(crate) fn attend_with(
    kind: Attention,
    q: &TensorValue,
    k: &TensorValue,
    v: &TensorValue,
    mask: Option<TensorValue>,
) -> Result<TensorValue> {
    let (heads, key_heads) = (&q.shape()[2], &k.shape()[2]);
    let record = |operands: [TensorValue; 3], mask: Option<TensorValue>| {
        record_one(kind, &operands.into_iter().chain(mask).collect::<Vec<_>>())
    };
    let turned = |x: &TensorValue| permute_value(x, vec![0, 2, 1, 3]);
    if heads == key_heads {
        return turned(&record([turned(q)?, turned(k)?, turned(v)?], mask)?);
    }
    let shared = match (heads.as_static(), key_heads.as_static()) {
        (Some(heads), Some(keys)) if keys > 0 && heads % keys == 0 => Dim::Static(heads / keys),
        _ => bail!(
            value,
            "the number of heads must be a multiple of that of key heads; got {heads} and {key_heads}"
        ),
    };
    // The heads that share keys get an axis of their own, along which keys and values are broadcast.
    let [batch, tokens, _, depth] = &q.shape()[..] else { bail!(internal, "queries without heads") };
    let q = reshape_value(q, [batch, tokens, key_heads, &shared, depth].into())?;
    let [k, v] = [k, v].map(|x| ops::unsqueeze(turned(x)?, 2));
    let mask = mask.map(|mask| {
        let [batch, own, queries, keys] = &mask.shape()[..] else { bail!(internal, "a mask without heads") };
        let one = &Dim::Static(1);
        let [outer, inner] = if own == one { [one, one] } else { [key_heads, &shared] };
        reshape_value(&mask, [batch, outer, inner, queries, keys].into())
    });
    let result = record([permute_value(&q, vec![0, 2, 3, 1, 4])?, k?, v?], mask.transpose()?)?;
    let width = result.shape()[4].clone();
    let result = permute_value(&result, vec![0, 3, 1, 2, 4])?;
    reshape_value(&result, [batch, tokens, heads, &width].into())
}

/// The slopes of ALiBi, `[1, heads, 1, 1]`: a geometric sequence for a power of two, else that of the next lower one and
/// every other one of the next higher.
pub(crate) fn slopes(heads: &Dim, device: DeviceRef) -> Result<TensorValue> {
    let Some(count) = heads.as_static().and_then(|heads| u32::try_from(heads).ok()) else {
        bail!(value, "ALiBi needs a static number of heads; got {heads}");
    };
    let power = 1u32.checked_shl(count.checked_ilog2().unwrap_or(0)).unwrap_or(1);
    let slope = |i: u32, n: u32| 2f64.powf(-8.0 * f64::from(i) / f64::from(n)) as f32;
    let own = (1..=power).map(|i| slope(i, power));
    let others = (0..count.saturating_sub(power)).map(|i| slope(2 * i + 1, 2 * power));
    let slopes: Vec<f32> = own.chain(others).take(count as usize).collect();
    let slopes = HostTensor::from_vec([1, slopes.len(), 1, 1], slopes)?;
    Operand::from(slopes).on(device)
}

#[cfg(test)]
mod tests;
