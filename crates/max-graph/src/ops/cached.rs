//! What attention layers do with a layer of a cache: they store keys and values there, change those of new tokens, and attend
//! to all of them. [`paged`](super::paged) says how a cache is laid out.

mod keys;

use max_core::{DType, Dim, QuantizationEncoding, Result, bail};

use keys::checked_window;
pub(crate) use keys::{Keys, Rule};

use crate::operand::Operand;
use crate::ops;
use crate::ops::cast::cast_value;
use crate::ops::flash_attention::MaskVariant;
use crate::ops::ragged::Rows;
use crate::ops::rebind::assert_dim;
use crate::ops::reshape::reshape_value;
use crate::ops::slice::part;
use crate::registry::{Arg, FromArg, op_fns};
use crate::value::{BufferValue, TensorValue};

const ONE: Dim = Dim::Static(1);

/// The tokens of sequences, and where a layer of a cache has them: see [`ops::paged_attention`].
#[derive(Clone)]
pub struct CacheLayer {
    /// The cache.
    pub(crate) cache: BufferValue,
    /// `[sequences + 1]`.
    pub(crate) row_offsets: TensorValue,
    /// `[sequences]`.
    pub(crate) cache_lengths: TensorValue,
    /// `[sequences, pages]`.
    pub(crate) lookup_table: TensorValue,
    /// A scalar.
    pub(crate) layer: TensorValue,
}

op_fns! {
    /// Takes keys and values of tokens from the end of each row of `[tokens, (heads + 2 * key heads) * depth]`, stores them, and
    /// returns the queries before them.
    pub fn cache_qkv(x: Operand, place: CacheLayer, heads: i64) -> TensorValue {
        let x = x.tensor()?;
        let (depth, keys) = (place.depth()?, place.width()?);
        let queries = depth.mul(&Dim::Static(heads))?;
        let width = queries.add(&keys.mul(&Dim::Static(2))?)?;
        if x.rank() != 2 || x.shape()[1].differs(&width) || heads < 1 {
            bail!(
                value,
                "queries of {heads} heads with keys and values of {} heads of {depth} elements are [tokens, {width}]; got {}",
                place.heads(),
                x.tensor_type()
            );
        }
        let x = assert_dim(x, 1, width, "queries, keys and values")?;
        cache_kv(part(&x, 1, Some(queries.clone()), None)?, place, 2)?;
        part(&x, 1, None, Some(queries))
    }

    /// Stores `[tokens, parts * key heads * depth]`: keys, and after them values if there are two parts.
    pub fn cache_kv(x: Operand, place: CacheLayer, parts: i64 = 2) -> () {
        let x = x.tensor()?;
        let (keys, width) = (place.width()?, place.width()?.mul(&Dim::Static(parts))?);
        if x.rank() != 2 || x.shape()[1].differs(&width) {
            bail!(
                value,
                "{parts} parts of {} heads of {} elements are [tokens, {width}]; got {}",
                place.heads(),
                place.depth()?,
                x.tensor_type()
            );
        }
        let x = assert_dim(x, 1, width, "keys and values")?;
        for number in 0..parts {
            let start = keys.mul(&Dim::Static(number))?;
            let own = part(&x, 1, Some(start.clone()), Some(start.add(&keys)?))?;
            place.store(&place.split(&own)?, number)?;
        }
        Ok(())
    }

    /// Adds `[tokens, 2 * key heads * depth]` to the keys and values of new tokens: those of the sequences from
    /// `batch_offset` on.
    pub fn cache_add(x: Operand, place: CacheLayer, batch_offset: Operand) -> () {
        let x = x.tensor()?;
        let first = scalar("batch_offset", batch_offset, &place)?;
        let start = ops::gather(&place.row_offsets, first, 0)?;
        let row_offsets = ops::max(ops::sub(&place.row_offsets, start)?, 0)?;
        let place = CacheLayer { row_offsets, ..place };
        let (keys, width) = (place.width()?, place.width()?.mul(&Dim::Static(2))?);
        if x.rank() != 2 || x.shape()[1].differs(&width) {
            bail!(value, "what is added to keys and values is [tokens, {width}]; got {}", x.tensor_type());
        }
        let x = cast_value(&assert_dim(x, 1, width, "keys and values")?, DType::Float32)?;
        let tokens = x.shape()[0].clone();
        for number in 0..2 {
            let start = keys.mul(&Dim::Static(number))?;
            let own = place.split(&part(&x, 1, Some(start.clone()), Some(start.add(&keys)?))?)?;
            let stored = cast_value(&place.rows(&tokens, number)?, DType::Float32)?;
            place.store(&ops::add(stored, own)?, number)?;
        }
        Ok(())
    }

    /// Turns queries `[tokens, heads, depth]` and the keys of new tokens, which are stored already, by the angles of their
    /// positions: see [`ops::rope()`]. A table is `[rows, dim]`, each cosine before its sine. Where it is for fewer elements
    /// than a head has, these are the last ones.
    ///
    /// Positions are those in the sequences, unless they are given, `[sections, tokens]`. Several sections divide the pairs of
    /// a head, each with positions of its own: `sections` says how many pairs each has, or how many elements.
    pub fn cache_rope(
        q: Operand, place: CacheLayer, table: Operand, interleaved: bool = true, positions: Option<Operand> = Arg::None,
        sections: Vec<i64> = Arg::List(vec![]),
    ) -> TensorValue {
        let q = q.tensor()?;
        let [tokens, _, _] = &q.shape()[..] else {
            bail!(value, "rope with a cache takes queries [tokens, heads, depth]; got {}", q.tensor_type());
        };
        let table = pairs(table, &place)?;
        let angles = match positions {
            None => ops::gather(table, place.positions(tokens)?, 0)?,
            Some(positions) => section_angles(&place, &table, positions, &sections, tokens)?,
        };
        let keys = place.rows(tokens, 0)?;
        place.store(&turn_last(&keys, &angles, interleaved)?, 0)?;
        turn_last(&q, &angles, interleaved)
    }

    /// Normalizes the keys of new tokens, which are stored already: see [`ops::rms_norm()`]. Each head on its own, or all heads
    /// of a token together; of their elements the first ones, as many as there are weights.
    pub fn cache_key_norm(
        place: CacheLayer, gamma: Operand, epsilon: f64, tokens: Dim, weight_offset: f64 = 0.0,
        multiply_before_cast: bool = true, per_head: bool = true,
    ) -> () {
        let gamma = ops::transfer_to(gamma, place.cache.device())?;
        let whole = if per_head { place.depth()? } else { place.width()? };
        let fits = |size: &Dim| size.as_static().zip(whole.as_static()).is_some_and(|(size, whole)| size <= whole);
        let [size] = &gamma.shape()[..] else {
            bail!(value, "the weights of a norm are a vector; got {}", gamma.tensor_type());
        };
        if !fits(size) {
            bail!(value, "a norm of {size} elements is too large for keys of {whole} elements");
        }
        let rows = place.rows(&tokens, 0)?;
        let shape = rows.shape().clone();
        let flat = if per_head { rows } else { reshape_value(&rows, [&tokens, &whole].into())? };
        let axis = flat.rank() - 1;
        let own = part(&flat, axis, None, Some(size.clone()))?;
        let weights = cast_value(&gamma, own.dtype())?;
        let normal = ops::rms_norm(own, weights, epsilon, weight_offset, multiply_before_cast)?;
        let all = match *size == whole {
            true => normal,
            false => ops::concat([&normal, &part(&flat, axis, Some(size.clone()), None)?], -1)?,
        };
        place.store(&reshape_value(&all, shape)?, 0)
    }

    /// Attention of queries `[tokens, heads, depth]` or `[tokens, heads * depth]` to the tokens of their sequences in a cache,
    /// which must have those of the queries already. The window is that of chunks and of sliding windows.
    ///
    /// A head may have a sink, a score of `[heads]` whose value is zero. With `key_offsets` the new keys of a sequence are as
    /// many as these say, and not one for each query.
    pub fn cached_attention(
        q: Operand, place: CacheLayer, mask: MaskVariant, scale: f64, window: i64 = -1,
        sinks: Option<Operand> = Arg::None, key_offsets: Option<Operand> = Arg::None,
    ) -> TensorValue {
        let given = q.tensor()?;
        let q = place.queries(&given)?;
        let result = match (mask, &sinks, &key_offsets) {
            (MaskVariant::Causal | MaskVariant::Null, None, None) => {
                place.attention(&q, scale, mask == MaskVariant::Causal, -1)?
            }
            (MaskVariant::SlidingWindowCausal, None, None) => {
                place.attention(&q, scale, true, checked_window(mask, window)?)?
            }
            _ => {
                let new = match key_offsets {
                    Some(offsets) => place.vector("kv_input_row_offsets", offsets)?,
                    None => place.row_offsets.clone(),
                };
                let keys = Keys::new(&place, &new)?;
                let contents = [keys.part(&place, 0)?, keys.part(&place, 1)?];
                keys.attend(&place, &q, contents, Rule { mask, window, scale }, sinks)?
            }
        };
        reshape_value(&result, given.shape().clone())
    }

    /// Attention of tokens to those of their sequences, themselves included: queries `[tokens, heads * depth]`, keys and values
    /// `[tokens, key heads * depth]`, which are stored. With a table, queries and keys are turned by the angles of their
    /// positions, as [`cache_rope()`] does it.
    #[expect(clippy::too_many_arguments, reason = "queries, keys and values, their places, and what attention has")]
    pub fn cached_self_attention(
        q: Operand, k: Operand, v: Operand, place: CacheLayer, scale: f64, table: Option<Operand> = Arg::None,
        interleaved: bool = true, mask: MaskVariant = "causal", window: i64 = -1,
    ) -> TensorValue {
        let (q, k, v) = (q.tensor()?, k.tensor()?, v.tensor()?);
        let width = place.width()?;
        let [tokens, _] = &q.shape()[..] else {
            bail!(value, "queries of tokens are [tokens, heads * depth]; got the shape {}", q.shape());
        };
        if [&k, &v].iter().any(|x| x.rank() != 2 || x.shape()[1] != width) {
            bail!(
                value,
                "keys and values of {} heads of {} elements are [tokens, {width}]; got the shapes {} and {}",
                place.heads(),
                place.depth()?,
                k.shape(),
                v.shape()
            );
        }
        let angles = match table {
            Some(table) => Some(ops::gather(pairs(table, &place)?, place.positions(tokens)?, 0)?),
            None => None,
        };
        let turned = |x: TensorValue| match &angles {
            Some(angles) => turn_last(&x, angles, interleaved),
            None => Ok(x),
        };
        place.store(&turned(place.split(&k)?)?, 0)?;
        place.store(&place.split(&v)?, 1)?;
        let attended = cached_attention(turned(place.queries(&q)?)?, place, mask, scale, window, None, None)?;
        reshape_value(&attended, q.shape().clone())
    }
}

impl CacheLayer {
    /// A layer of a cache `[pages, parts, layers, tokens of a page, heads, depth]` with its tables, which are moved to its device.
    pub fn new(
        cache: &BufferValue,
        row_offsets: impl Into<Operand>,
        cache_lengths: impl Into<Operand>,
        lookup_table: impl Into<Operand>,
        layer: impl Into<Operand>,
    ) -> Result<CacheLayer> {
        if cache.shape().len() != 6 || cache.shape()[1..].iter().any(|dim| dim.as_static().is_none()) {
            bail!(
                value,
                "a cache has the shape [pages, parts, layers, tokens of a page, heads, depth], all but the first static; got {}",
                cache.shape()
            );
        }
        let here = |name: &str, x: Operand, rank: usize| integers(name, x, cache, rank);
        let starts = here("input_row_offsets", row_offsets.into(), 1)?;
        let lengths = here("cache_lengths", cache_lengths.into(), 1)?;
        let table = here("lookup_table", lookup_table.into(), 2)?;
        let layer = here("layer_idx", layer.into(), 0)?;
        let sequences = lengths.shape()[0].clone();
        let ends = sequences.add(&ONE)?;
        if starts.shape()[0].differs(&ends) || table.shape()[0].differs(&sequences) {
            bail!(
                value,
                "{sequences} sequences of a cache have {ends} row offsets and {sequences} rows of pages; got the shapes {} and {}",
                starts.shape(),
                table.shape()
            );
        }
        let row_offsets = assert_dim(starts, 0, ends, "an offset more than there are sequences")?;
        let lookup_table = assert_dim(table, 0, sequences, "the pages of each sequence")?;
        Ok(CacheLayer { cache: cache.clone(), row_offsets, cache_lengths: lengths, lookup_table, layer })
    }

    /// The number of heads of keys and values.
    pub(crate) fn heads(&self) -> &Dim {
        &self.cache.shape()[4]
    }

    fn page(&self) -> &Dim {
        &self.cache.shape()[3]
    }

    /// The number of elements of a head.
    pub(crate) fn depth(&self) -> Result<Dim> {
        super::paged::depth(&self.cache.buffer_type().as_tensor())
    }

    /// The number of elements of all heads.
    fn width(&self) -> Result<Dim> {
        self.heads().mul(&self.depth()?)
    }

    /// `[tokens, heads * depth]` as `[tokens, heads, depth]`.
    fn split(&self, x: &TensorValue) -> Result<TensorValue> {
        reshape_value(x, [&x.shape()[0], self.heads(), &self.depth()?].into())
    }

    fn queries(&self, x: &TensorValue) -> Result<TensorValue> {
        let depth = self.depth()?;
        match &x.shape()[..] {
            [_, _, own] if *own == depth => Ok(x.clone()),
            [tokens, width]
                if width.as_static().zip(depth.as_static()).is_some_and(|(w, d)| d > 0 && w % d == 0) =>
            {
                reshape_value(x, [tokens, &width.floor_div(&depth)?, &depth].into())
            }
            _ => bail!(
                value,
                "attention to a cache of heads of {depth} elements takes queries [tokens, heads, {depth}]; got {}",
                x.tensor_type()
            ),
        }
    }

    fn vector(&self, name: &str, x: Operand) -> Result<TensorValue> {
        let x = integers(name, x, &self.cache, 1)?;
        let size = &self.row_offsets.shape()[0];
        if x.shape()[0].differs(size) {
            bail!(value, "{name} must have {size} elements, as the row offsets have; got {}", x.shape());
        }
        assert_dim(x, 0, size.clone(), name)
    }

    fn store(&self, x: &TensorValue, part: i64) -> Result<()> {
        let CacheLayer { cache, row_offsets, cache_lengths, lookup_table, layer } = self;
        ops::paged_store(cache, x, row_offsets, cache_lengths, lookup_table, layer, part)
    }

    fn attention(&self, q: &TensorValue, scale: f64, causal: bool, window: i64) -> Result<TensorValue> {
        let CacheLayer { cache, row_offsets, cache_lengths, lookup_table, layer } = self;
        ops::paged_attention(
            q,
            cache,
            row_offsets,
            cache_lengths,
            lookup_table,
            layer,
            scale,
            causal,
            window,
            0.0,
        )
    }

    /// The sequence and the position of each token.
    pub(crate) fn places(&self, tokens: &Dim) -> Result<(Rows, TensorValue)> {
        let rows = Rows::new(&self.row_offsets, tokens)?;
        let before = rows.pick(&self.cache_lengths, 0)?;
        let position = ops::add(before, &rows.position)?;
        Ok((rows, position))
    }

    fn positions(&self, tokens: &Dim) -> Result<TensorValue> {
        Ok(self.places(tokens)?.1)
    }

    /// What a part of the cache has for each new token, `[tokens, heads, depth]`, in its dtype. Tokens in no sequence have what
    /// is at the start of the cache.
    pub(crate) fn rows(&self, tokens: &Dim, part: i64) -> Result<TensorValue> {
        let (Rows { sequence, inside, .. }, position) = self.places(tokens)?;
        let (sequences, most) = (&self.lookup_table.shape()[0], &self.lookup_table.shape()[1]);
        let column = ops::floor_div(&position, self.page().clone())?;
        // A token beyond the pages of its sequence is out of range, and not in a page of the next one.
        let all = sequences.mul(most)?;
        let own = ops::add(ops::mul(sequence, most.clone())?, &column)?;
        let own = ops::where_(ops::greater(most.clone(), &column)?, own, all.add(&ONE)?)?;
        let own = ops::where_(&inside, own, all.clone())?;
        let none = Operand::from(0).weak(DType::Int64, self.cache.device())?;
        let pages = [reshape_value(&self.lookup_table, [&all].into())?, reshape_value(&none, [&ONE].into())?];
        let page = ops::gather(ops::concat(pages, 0)?, own, 0)?;
        let slot = ops::mod_(position, self.page().clone())?;
        self.at(&[page, ops::where_(inside, slot, 0)?], part)
    }

    /// What a part of the cache has at pages, or at pages and places there: the first axes are theirs.
    fn at(&self, place: &[TensorValue], part: i64) -> Result<TensorValue> {
        let [page, slot @ ..] = place else { bail!(internal, "a place without a page") };
        let part = Operand::from(part).weak(DType::Int64, self.cache.device())?;
        let same = |x: &TensorValue| ops::broadcast_to(x, page.shape().clone());
        let mut indices = vec![page.clone(), same(&part)?, same(&self.layer)?];
        indices.extend_from_slice(slot);
        let found = ops::gather_nd(ops::buffer_load(&self.cache)?, ops::stack(indices, -1)?, 0)?;
        match self.cache.dtype() {
            DType::UInt8 => ops::dequantize(QuantizationEncoding::Q8_0, found),
            _ => Ok(found),
        }
    }
}

impl FromArg for CacheLayer {
    fn from_arg(arg: Arg) -> Result<CacheLayer> {
        let Arg::List(list) = arg else { bail!(type_, "expected a cache with its tables") };
        let Ok([cache, row_offsets, cache_lengths, lookup_table, layer]) = <[Arg; 5]>::try_from(list) else {
            bail!(type_, "expected a cache, row offsets, lengths, pages and a layer");
        };
        let [row_offsets, cache_lengths, lookup_table, layer] =
            [row_offsets, cache_lengths, lookup_table, layer].map(Operand::from_arg);
        CacheLayer::new(&BufferValue::from_arg(cache)?, row_offsets?, cache_lengths?, lookup_table?, layer?)
    }
}

/// Integers of some rank, as int64 where a cache is.
fn integers(name: &str, x: Operand, cache: &BufferValue, rank: usize) -> Result<TensorValue> {
    let x = ops::transfer_to(x.on(cache.device())?, cache.device())?;
    if x.rank() != rank || !x.dtype().is_integral() {
        bail!(value, "{name} must be integers of rank {rank}; got {}", x.tensor_type());
    }
    cast_value(&x, DType::Int64)
}

fn scalar(name: &str, x: Operand, place: &CacheLayer) -> Result<TensorValue> {
    integers(name, x, &place.cache, 0)
}

/// A table of rope, `[rows, dim]`, as pairs where a cache is.
fn pairs(table: Operand, place: &CacheLayer) -> Result<TensorValue> {
    let table = ops::transfer_to(table, place.cache.device())?;
    let [rows, dim] = &table.shape()[..] else {
        bail!(
            value,
            "a table of rope is [rows, dim], each cosine before its sine; got the shape {}",
            table.shape()
        );
    };
    reshape_value(&table, [rows, &dim.floor_div(&Dim::Static(2))?, &Dim::Static(2)].into())
}

/// Turns the last elements of heads, as many as the angles of each token, `[tokens, pairs, 2]`, are for.
fn turn_last(x: &TensorValue, angles: &TensorValue, interleaved: bool) -> Result<TensorValue> {
    let (last, width) = (x.rank() - 1, angles.shape()[1].mul(&Dim::Static(2))?);
    let (Some(depth), Some(own)) = (x.shape()[last].as_static(), width.as_static()) else {
        bail!(value, "rope with a cache needs static sizes; got {} and {width}", x.shape());
    };
    if own > depth {
        bail!(value, "a table of rope for {own} elements is too wide for heads of {depth} elements");
    }
    if own == depth {
        return ops::rope(x, angles, 0, interleaved);
    }
    let at = Some(Dim::Static(depth - own));
    let turned = ops::rope(part(x, last, at.clone(), None)?, angles, 0, interleaved)?;
    ops::concat([part(x, last, None, at)?, turned], -1)
}

/// The angles of tokens whose positions are given, `[sections, tokens]`.
fn section_angles(
    place: &CacheLayer,
    table: &TensorValue,
    positions: Operand,
    sections: &[i64],
    tokens: &Dim,
) -> Result<TensorValue> {
    let positions = integers("position_ids", positions, &place.cache, 2)?;
    let pairs = &table.shape()[1];
    let count = if sections.is_empty() { 1 } else { sections.len() as i64 };
    if positions.shape()[0].differs(&Dim::Static(count)) || positions.shape()[1].differs(tokens) {
        bail!(
            value,
            "position_ids for {count} sections are [{count}, {tokens}]; got the shape {}, and sections {sections:?}",
            positions.shape()
        );
    }
    let positions = assert_dim(positions, 1, tokens.clone(), "a position for each token")?;
    let of_section =
        |at: i64| ops::squeeze(part(&positions, 0, Some(Dim::Static(at)), Some(Dim::Static(at + 1)))?, 0);
    if sections.is_empty() {
        return ops::gather(table, of_section(0)?, 0);
    }
    let total =
        sections.iter().try_fold(0i64, |sum, &size| (size >= 0).then(|| sum.checked_add(size)).flatten());
    let unit = match (total, pairs.as_static()) {
        (Some(total), Some(pairs)) if total == pairs => 1,
        (Some(total), Some(pairs)) if total == 2 * pairs && sections.iter().all(|size| size % 2 == 0) => 2,
        _ => bail!(
            value,
            "the sections of rope must have {pairs} pairs, or twice as many elements, in all; got {sections:?}"
        ),
    };
    let (mut parts, mut first) = (Vec::new(), 0);
    for (at, size) in (0..).zip(sections.iter().map(|size| size / unit)) {
        let own = part(table, 1, Some(Dim::Static(first)), Some(Dim::Static(first + size)))?;
        parts.push(ops::gather(own, of_section(at)?, 0)?);
        first += size;
    }
    ops::concat(parts, 1)
}

#[cfg(test)]
mod tests;
