//! Attention to all places of the pages of sequences, for what the kernel of attention in pages does not know: masks of chunks,
//! ALiBi, sinks, and keys of other sequences than those of the queries.

use max_core::{DType, Dim, Result, Shape, bail};

use super::CacheLayer;
use crate::operand::Operand;
use crate::ops;
use crate::ops::attention::Attention;
use crate::ops::cast::cast_value;
use crate::ops::flash_attention::{MaskVariant, attend_with, slopes};
use crate::ops::ragged::Rows;
use crate::ops::rebind::assert_dim;
use crate::ops::reshape::reshape_value;
use crate::ops::slice::part;
use crate::value::TensorValue;

const ONE: Dim = Dim::Static(1);

/// What queries see of keys.
pub(crate) struct Rule {
    pub(crate) mask: MaskVariant,
    pub(crate) window: i64,
    pub(crate) scale: f64,
}

impl Rule {
    /// Which keys are seen, by the positions of queries and keys in their sequences.
    pub(crate) fn seen(&self, query: &TensorValue, key: &TensorValue) -> Result<Option<TensorValue>> {
        let up_to = || ops::greater_equal(query, key);
        Ok(match self.mask {
            MaskVariant::Null => None,
            MaskVariant::Causal | MaskVariant::CausalAlibi => Some(up_to()?),
            MaskVariant::ChunkedCausal => {
                let size = checked_window(self.mask, self.window)?;
                let same = ops::equal(ops::floor_div(query, size)?, ops::floor_div(key, size)?)?;
                Some(ops::logical_and(same, up_to()?)?)
            }
            MaskVariant::SlidingWindowCausal => {
                let size = checked_window(self.mask, self.window)?;
                let near = ops::greater(size, ops::sub(query, key)?)?;
                Some(ops::logical_and(near, up_to()?)?)
            }
        })
    }
}

/// All places of the pages of sequences, one after the other, as keys.
pub(crate) struct Keys {
    /// The pages, `[sequences, pages]`; where a sequence has none, the first one of the cache.
    pages: TensorValue,
    /// The sequence of each key.
    sequence: TensorValue,
    /// Its position there.
    position: TensorValue,
    /// Whether there is a token.
    used: TensorValue,
}

impl Keys {
    /// Those of sequences with new tokens from `new[i]` to `new[i + 1]`.
    pub(crate) fn new(place: &CacheLayer, new: &TensorValue) -> Result<Keys> {
        let (table, page, device) = (&place.lookup_table, place.page(), place.cache.device());
        let (sequences, most) = (&table.shape()[0], &table.shape()[1]);
        let count = ops::sub(part(new, 0, Some(ONE), None)?, part(new, 0, None, Some(sequences.clone()))?)?;
        let ends = ops::add(&place.cache_lengths, assert_dim(count, 0, sequences.clone(), "new tokens")?)?;
        let column = ops::range(0, most.clone(), 1, None, DType::Int64, device)?;
        let has = ops::greater(ops::unsqueeze(&ends, 1)?, ops::mul(column, page.clone())?)?;
        let room = most.mul(page)?;
        let all = sequences.mul(&room)?;
        let number = ops::range(0, all.clone(), 1, None, DType::Int64, device)?;
        let sequence = ops::floor_div(&number, room.clone())?;
        let position = ops::mod_(number, room)?;
        let used = ops::greater(ops::gather(ends, &sequence, 0)?, &position)?;
        Ok(Keys { pages: ops::where_(has, table, 0)?, sequence, position, used })
    }

    /// What a part of the cache has for them, `[1, keys, heads, depth]` in float32. There are zeros where no token is.
    pub(crate) fn part(&self, place: &CacheLayer, number: i64) -> Result<TensorValue> {
        let found = cast_value(&place.at(std::slice::from_ref(&self.pages), number)?, DType::Float32)?;
        let keys = &self.used.shape()[0];
        let found = reshape_value(&found, [&ONE, keys, place.heads(), &place.depth()?].into())?;
        // A weight of zero hides no NaN.
        ops::where_(reshape_value(&self.used, [&ONE, keys, &ONE, &ONE].into())?, found, 0)
    }

    /// Attention of queries `[tokens, heads, depth]` to keys with values, `[1, keys, key heads, ..]`. A query that sees none
    /// gives zeros.
    pub(crate) fn attend(
        &self,
        place: &CacheLayer,
        q: &TensorValue,
        [mut k, mut v]: [TensorValue; 2],
        rule: Rule,
        sinks: Option<Operand>,
    ) -> Result<TensorValue> {
        if !rule.scale.is_finite() {
            bail!(value, "the scale of attention must be finite; got {}", rule.scale);
        }
        let [tokens, heads, _] = &q.shape()[..] else { bail!(internal, "queries without heads") };
        let (Rows { sequence, .. }, position) = place.places(tokens)?;
        let [own, query] = [sequence, position].map(|x| ops::unsqueeze(x, 1));
        let query = query?;
        let mut seen = ops::logical_and(ops::equal(own?, &self.sequence)?, &self.used)?;
        if let Some(rule) = rule.seen(&query, &self.position)? {
            seen = ops::logical_and(seen, rule)?;
        }
        let any = ops::any(&seen, 1)?;
        let keys = &self.used.shape()[0];
        let mut mask = reshape_value(&seen, [&ONE, &ONE, tokens, keys].into())?;
        if rule.mask == MaskVariant::CausalAlibi || sinks.is_some() {
            let bias = match rule.mask {
                MaskVariant::CausalAlibi => {
                    let distance = cast_value(&ops::sub(&self.position, &query)?, DType::Float32)?;
                    ops::mul(slopes(heads, q.device())?, distance)?
                }
                _ => Operand::from(0.0).weak(DType::Float32, q.device())?,
            };
            mask = ops::where_(mask, bias, f64::NEG_INFINITY)?;
        }
        if let Some(sinks) = sinks {
            // A key of zeros whose score is the sink, and whose value is zero.
            let sinks = cast_value(&ops::transfer_to(sinks, q.device())?, DType::Float32)?;
            if sinks.rank() != 1 || sinks.shape()[0].differs(heads) {
                bail!(value, "there is a sink for each of {heads} heads; got the shape {}", sinks.shape());
            }
            let sinks = assert_dim(sinks, 0, heads.clone(), "a sink for each head")?;
            let sinks = reshape_value(&sinks, [&ONE, heads, &ONE, &ONE].into())?;
            let mask_shape = Shape::from([&ONE, heads, tokens, keys]);
            let more = ops::broadcast_to(sinks, Shape::from([&ONE, heads, tokens, &ONE]))?;
            mask = ops::concat([ops::broadcast_to(mask, mask_shape)?, more], -1)?;
            let with_zeros = |x: &TensorValue| -> Result<TensorValue> {
                let zero = Operand::from(0.0).weak(DType::Float32, q.device())?;
                let row = ops::broadcast_to(zero, Shape::from([&ONE, &ONE, &x.shape()[2], &x.shape()[3]]))?;
                ops::concat([x, &row], 1)
            };
            (k, v) = (with_zeros(&k)?, with_zeros(&v)?);
        }
        let queries = ops::unsqueeze(cast_value(q, DType::Float32)?, 0)?;
        let kind = Attention { scale: rule.scale, causal: false, window: 0 };
        let result = ops::squeeze(attend_with(kind, &queries, &k, &v, Some(mask))?, 0)?;
        let rows = reshape_value(&any, [tokens, &ONE, &ONE].into())?;
        cast_value(&ops::where_(rows, result, 0)?, q.dtype())
    }
}

/// The size of a window that a mask needs.
pub(super) fn checked_window(mask: MaskVariant, window: i64) -> Result<i64> {
    match window {
        1.. => Ok(window),
        _ => bail!(
            value,
            "a mask of chunks or of a sliding window needs a positive window; got {window} for {mask:?}"
        ),
    }
}
