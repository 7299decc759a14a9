//! Attention with a cache of keys and values in pages, and what is stored in it.
//!
//! A cache is a buffer `[pages, parts, layers, tokens of a page, heads, depth]`, whose parts are keys and values. The tokens of
//! sequences follow each other: `row_offsets` says where those of each sequence start and end, `cache_lengths` how many tokens
//! of it are in the cache already, and a row of `lookup_table` which pages it has. All of that is data, so that an execution
//! with other lengths and pages needs no other sizes.

use max_core::kernel::{Limits, Placed, Tables};
use max_core::{
    DType, DeviceRef, Dim, Element, HostBytes, QuantizationEncoding, Result, TensorType, Type, bail, dispatch,
};

use crate::attr::op_struct;
use crate::graph::{record, record_one};
use crate::host::{HostTensor, allocate};
use crate::op::{Operation, Run};
use crate::operand::{Operand, same_device};
use crate::ops;
use crate::ops::cast::cast_value;
use crate::ops::permute::permute_value;
use crate::ops::ragged::{Rows, offsets};
use crate::ops::rebind::assert_dim;
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::{BufferValue, TensorValue};

op_struct! {
    /// `softmax(query · keysᵀ * scale) · values` for queries `[heads, tokens, depth]`, with keys and values in a cache: the
    /// other operands are the contents of the cache, row offsets, lengths, pages and the layer, int64 but for the cache. If it
    /// is causal, a token attends to the tokens of its sequence up to itself, and with a window only to the last `window` of
    /// these. Scores are kept below `softcap` if that is positive.
    PagedAttention = "paged_attention" { scale: f64, causal: bool, window: usize, softcap: f64 }
}

op_struct! {
    /// Stores `[tokens, heads, depth]` in a part of a cache, after the tokens that their sequences have there. The other
    /// operands are those of `paged_attention`.
    PagedStore = "paged_store" { part: usize }
}

op_fns! {
    /// Attention of queries `[tokens, heads, depth]` to the tokens of their sequences in a layer of a cache, which must have
    /// those of the queries already. The heads share those of the cache equally.
    ///
    /// If it is causal, a token sees the tokens of its sequence up to itself, and with a positive window only as many of the
    /// last ones. With a positive softcap scores become `softcap * tanh(score / softcap)`.
    #[expect(clippy::too_many_arguments, reason = "queries, the cache with its tables, and what attention has")]
    pub fn paged_attention(
        q: Operand, cache: BufferValue, row_offsets: Operand, cache_lengths: Operand, lookup_table: Operand,
        layer: Operand, scale: f64, causal: bool = true, window: i64 = -1, softcap: f64 = 0.0,
    ) -> TensorValue {
        let q = q.tensor()?;
        let places = places(&q, &cache, [row_offsets, cache_lengths, lookup_table, layer])?;
        let dtype = q.dtype();
        if q.rank() != 3 || !dtype.is_float() {
            bail!(value, "paged_attention takes float queries [tokens, heads, depth]; got {}", q.tensor_type());
        }
        let window = usize::try_from(window.max(0)).unwrap_or(usize::MAX);
        let query = permute_value(&floats(&q)?, vec![1, 0, 2])?;
        let contents = ops::buffer_load(cache)?;
        let [starts, lengths, table, layer] = &places;
        let operands = [&query, &contents, starts, lengths, table, layer];
        let result = record_one(PagedAttention { scale, causal, window, softcap }, operands)?;
        cast_value(&permute_value(&result, vec![1, 0, 2])?, dtype)
    }

    /// Stores keys (part 0) or values (part 1) of tokens, `[tokens, heads, depth]`, in a layer of a cache, after the tokens that
    /// their sequences have there.
    pub fn paged_store(
        cache: BufferValue, x: Operand, row_offsets: Operand, cache_lengths: Operand, lookup_table: Operand,
        layer: Operand, part: i64,
    ) -> () {
        let x = x.tensor()?;
        let places = places(&x, &cache, [row_offsets, cache_lengths, lookup_table, layer])?;
        let Ok(part) = usize::try_from(part) else { bail!(value, "part {part} of a cache") };
        let mut operands = vec![cache.value().clone(), floats(&x)?.into()];
        operands.extend(places.into_iter().map(Into::into));
        record(PagedStore { part }, &operands)?;
        Ok(())
    }

    /// The position of each token in its sequence, `[tokens]` in int64: how many tokens of it are in the cache, and are
    /// before it now.
    pub fn ragged_positions(x: Operand, row_offsets: Operand, cache_lengths: Operand) -> TensorValue {
        let x = x.tensor()?;
        let Some(tokens) = x.shape().first() else { bail!(value, "tokens have an axis; got a scalar") };
        let starts = offsets("row_offsets", row_offsets, &x)?;
        let Rows { sequence, position, .. } = Rows::new(&starts, tokens)?;
        let lengths = integers("cache_lengths", cache_lengths, &x, 1)?;
        ops::add(ops::gather(lengths, sequence, 0)?, position)
    }

    /// The length of the sequence of each token, `[tokens]` in int64: how many tokens of it are in the cache, and are computed
    /// now.
    pub fn ragged_lengths(x: Operand, row_offsets: Operand, cache_lengths: Operand) -> TensorValue {
        let x = x.tensor()?;
        let Some(tokens) = x.shape().first() else { bail!(value, "tokens have an axis; got a scalar") };
        let starts = offsets("row_offsets", row_offsets, &x)?;
        let Rows { sequence, .. } = Rows::new(&starts, tokens)?;
        let lengths = integers("cache_lengths", cache_lengths, &x, 1)?;
        let (start, end) =
            (ops::gather(&starts, &sequence, 0)?, ops::gather(&starts, ops::add(&sequence, 1)?, 0)?);
        ops::add(ops::gather(lengths, sequence, 0)?, ops::sub(end, start)?)
    }
}

/// Tokens in a dtype that kernels read: on a GPU 16-bit floats are read as they are.
fn floats(x: &TensorValue) -> Result<TensorValue> {
    let dtype = if is_read(x.dtype(), x.device()) { x.dtype() } else { DType::Float32 };
    cast_value(x, dtype)
}

/// Whether kernels on a device read tokens in a dtype.
fn is_read(dtype: DType, device: DeviceRef) -> bool {
    dtype == DType::Float32 || dtype.is_half() && device.is_gpu()
}

/// A tensor of integers of some rank as int64 where another one is.
fn integers(name: &str, operand: Operand, like: &TensorValue, rank: usize) -> Result<TensorValue> {
    let tensor = operand.on(like.device())?;
    if tensor.rank() != rank || !tensor.dtype().is_integral() {
        bail!(value, "{name} must be integers of rank {rank}; got {}", tensor.tensor_type());
    }
    cast_value(&tensor, DType::Int64)
}

/// Row offsets, lengths, pages and the layer, for tokens of a cache.
fn places(x: &TensorValue, cache: &BufferValue, operands: [Operand; 4]) -> Result<[TensorValue; 4]> {
    if x.device() != cache.device() {
        bail!(
            value,
            "Input values must be on the same device; got a cache on {} and tokens on {}",
            cache.device(),
            x.device()
        );
    }
    let [starts, lengths, table, layer] = operands;
    let (starts, lengths) =
        (integers("row_offsets", starts, x, 1)?, integers("cache_lengths", lengths, x, 1)?);
    let (table, layer) = (integers("lookup_table", table, x, 2)?, integers("layer", layer, x, 0)?);
    same_device([&starts, &lengths, &table, &layer, x])?;
    let sequences = lengths.shape()[0].clone();
    let starts =
        assert_dim(starts, 0, sequences.add(&Dim::Static(1))?, "an offset more than there are sequences")?;
    let table = assert_dim(table, 0, sequences, "the pages of each sequence")?;
    Ok([starts, lengths, table, layer])
}

/// The number of elements of a head in a cache.
pub(crate) fn depth(cache: &TensorType) -> Result<Dim> {
    let [_, _, _, _, _, length] = &cache.shape[..] else {
        bail!(
            value,
            "a cache has the shape [pages, parts, layers, tokens of a page, heads, depth]; got {}",
            cache.shape
        );
    };
    match cache.dtype {
        DType::Float32 | DType::Float16 | DType::BFloat16 => Ok(length.clone()),
        DType::UInt8 => {
            let block = QuantizationEncoding::Q8_0.block_parameters()?;
            let (bytes, elements) = (block.block_size as i64, block.elements_per_block as i64);
            match length.as_static() {
                Some(length) if length % bytes == 0 => Ok(Dim::Static(length / bytes * elements)),
                _ => bail!(value, "a cache of bytes has blocks of Q8_0, of {bytes} bytes; got {length}"),
            }
        }
        other => bail!(value, "a cache has float32, float16, bfloat16 or Q8_0 blocks; got {other}"),
    }
}

/// Checks the types of a cache, of tokens with heads and depth, and of tables. All sizes but the numbers of pages, tokens and
/// sequences are known.
fn check(cache: &TensorType, [heads, depths]: [&Dim; 2], tables: &[&Type]) -> Result<()> {
    let own = depth(cache)?;
    if own != *depths || own.as_static().is_none() {
        bail!(value, "a cache of heads with {own} elements does not fit heads with {depths} elements");
    }
    if let Some(dim) = cache.shape[1..].iter().find(|dim| dim.as_static().is_none()) {
        bail!(value, "only the number of pages of a cache may be symbolic; got {dim} in {}", cache.shape);
    }
    match (heads.as_static(), cache.shape[4].as_static()) {
        (Some(heads), Some(shared)) if shared > 0 && heads % shared == 0 => {}
        (_, shared) => {
            bail!(value, "{heads} heads do not share {} heads of a cache equally", shared.unwrap_or(0))
        }
    }
    for (at, (table, rank)) in tables.iter().zip([1, 1, 2, 0]).enumerate() {
        match table {
            Type::Tensor(table) if table.dtype == DType::Int64 && table.shape.rank() == rank => {}
            other => bail!(value, "table {at} of a cache must be int64 of rank {rank}; got {other}"),
        }
    }
    let [Type::Tensor(starts), Type::Tensor(lengths), Type::Tensor(table), _] = tables else {
        bail!(value, "a cache has four tables, got {}", tables.len());
    };
    if starts.shape[0] != lengths.shape[0].add(&Dim::Static(1))? || table.shape[0] != lengths.shape[0] {
        bail!(
            value,
            "row offsets, lengths and pages of sequences have the shapes [sequences + 1], [sequences] and [sequences, \
             pages]; got {}, {} and {}",
            starts.shape,
            lengths.shape,
            table.shape
        );
    }
    Ok(())
}

/// Reads tables for a cache and a number of tokens.
fn placed(cache: &[usize], tokens: usize, tables: &[HostTensor]) -> Result<Placed> {
    let [starts, lengths, table, layer] = tables else { bail!(internal, "a cache without tables") };
    let (sequences, most) = (lengths.shape()[0], table.shape()[1]);
    if starts.shape()[0] != sequences + 1 || table.shape()[0] != sequences {
        bail!(
            value,
            "{} row offsets and {} rows of pages for {sequences} sequences",
            starts.shape()[0],
            table.shape()[0]
        );
    }
    let [starts, lengths, table, layer] =
        [starts.to_integers()?, lengths.to_integers()?, table.to_integers()?, layer.to_integers()?];
    let limits = Limits { pages: cache[0], layers: cache[2], page: cache[3], tokens, sequences, most };
    limits.place(&Tables {
        start: &|at| starts[at],
        cached: &|sequence| lengths[sequence],
        page: &|sequence, column| table[sequence * most + column],
        layer: layer[0],
    })
}

/// The elements of a cache.
fn elements(cache: &HostTensor) -> Result<Vec<f64>> {
    if cache.dtype() == DType::UInt8 {
        let values = QuantizationEncoding::Q8_0.dequantize(cache.bytes())?;
        return Ok(values.into_iter().map(f64::from).collect());
    }
    dispatch!(cache.dtype(), T => Ok(cache.elements::<T>()?.iter().map(|x| x.to_f64()).collect()))
}

/// Where the elements of a token's head start.
fn place(cache: &[usize], depth: usize, [page, part, layer, token, head]: [usize; 5]) -> usize {
    let [_, parts, layers, tokens, heads, ..] = cache else { return 0 };
    ((((page * parts + part) * layers + layer) * tokens + token) * heads + head) * depth
}

impl Operation for PagedAttention {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [Type::Tensor(query), Type::Tensor(cache), tables @ ..] = operands else {
            bail!(value, "paged_attention takes queries, a cache and its tables");
        };
        let [heads, _, depth] = &query.shape[..] else {
            bail!(value, "paged_attention takes queries [heads, tokens, depth]; got {}", query.shape);
        };
        if !is_read(query.dtype, query.device) {
            bail!(value, "paged_attention takes float32 queries on {}; got {}", query.device, query.dtype);
        }
        check(cache, [heads, depth], tables)?;
        if cache.shape[1].as_static().is_some_and(|parts| parts != 2) {
            bail!(value, "paged_attention needs a cache of keys and values, 2 parts; got {}", cache.shape);
        }
        if self.window > 0 && !self.causal {
            bail!(
                value,
                "attention with a window of {} keys must be causal; got causal = false",
                self.window
            );
        }
        if !self.scale.is_finite() || !self.softcap.is_finite() || self.softcap < 0.0 {
            bail!(value, "attention with a scale of {} and a softcap of {}", self.scale, self.softcap);
        }
        if self.softcap > 0.0 && self.scale <= 0.0 {
            bail!(value, "attention with a softcap needs a positive scale; got {}", self.scale);
        }
        Ok(vec![TensorType { layout: None, ..query.clone() }.into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: true,
            form: Form::Kernel,
            folding: Folding::Never,
            heavy: true,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let (query, cache) = (&operands[0], &operands[1]);
        let &[heads, tokens, depth] = query.shape() else { bail!(internal, "queries of another rank") };
        let placed = placed(cache.shape(), tokens, &operands[2..])?;
        let (dtype, query) = (query.dtype(), &query.cast(DType::Float32)?);
        let (queries, stored, sizes) = (query.elements::<f32>()?, elements(cache)?, cache.shape());
        let mut results = allocate::<f32>(queries.len())?;
        results.resize(queries.len(), 0.0);
        let (page, shared) = (sizes[3], heads / sizes[4].max(1));
        for sequence in &placed.sequences {
            let pages = &placed.pages[sequence.pages.clone()];
            let row = |part: usize, token: usize, head: usize| {
                let at = [pages[token / page], part, placed.layer, token % page, head / shared.max(1)];
                &stored[place(sizes, depth, at)..][..depth]
            };
            let keys = sequence.cached + sequence.count;
            for (head, token) in
                (0..heads).flat_map(|head| (0..sequence.count).map(move |token| (head, token)))
            {
                let at = (head * tokens + sequence.first + token) * depth;
                let end = if self.causal { sequence.cached + token + 1 } else { keys };
                let start = if self.window > 0 { end.saturating_sub(self.window) } else { 0 };
                let scores = (start..end).map(|key| {
                    let products = queries[at..][..depth].iter().zip(row(0, key, head));
                    let score = products.map(|(a, b)| f64::from(*a) * b).sum::<f64>() * self.scale;
                    if self.softcap > 0.0 { self.softcap * (score / self.softcap).tanh() } else { score }
                });
                let scores: Vec<f64> = scores.collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                let total: f64 = weights.iter().sum();
                for column in 0..depth {
                    let terms = weights.iter().zip(start..end);
                    let sum: f64 =
                        terms.map(|(weight, key)| weight / total * row(1, key, head)[column]).sum();
                    results[at + column] = sum as f32;
                }
            }
        }
        Ok(vec![HostTensor::from_vec(query.shape(), results)?.cast(dtype)?])
    }
}

impl Operation for PagedStore {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [Type::Buffer(cache), Type::Tensor(x), tables @ ..] = operands else {
            bail!(value, "paged_store takes a cache, what to store in it, and tables");
        };
        let [_, heads, depth] = &x.shape[..] else {
            bail!(value, "paged_store takes [tokens, heads, depth]; got {}", x.shape);
        };
        if !is_read(x.dtype, x.device) {
            bail!(value, "paged_store takes float32 on {}; got {}", x.device, x.dtype);
        }
        let cache = cache.as_tensor();
        check(&cache, [heads, depth], tables)?;
        if cache.shape[4] != *heads {
            bail!(value, "a cache of {} heads does not hold {heads} heads", cache.shape[4]);
        }
        match cache.shape[1].as_static() {
            Some(parts) if (self.part as i64) < parts => Ok(vec![]),
            _ => bail!(value, "a cache of the shape {} has no part {}", cache.shape, self.part),
        }
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects { reads: false, writes: true, observable: false },
            checks: true,
            form: Form::Kernel,
            folding: Folding::Never,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let (cache, x) = (&operands[0], &operands[1]);
        let &[tokens, heads, depth] = x.shape() else { bail!(internal, "tokens of another rank") };
        let (placed, sizes) = (placed(cache.shape(), tokens, &operands[2..])?, cache.shape());
        if heads != sizes[4] {
            bail!(value, "a cache of {} heads does not hold {heads} heads", sizes[4]);
        }
        let (x, mut bytes) = (x.cast(DType::Float32)?, cache.bytes().to_vec());
        let values = x.elements::<f32>()?;
        let row_bytes = sizes[5] * cache.dtype().size_in_bytes();
        for sequence in &placed.sequences {
            for (token, head) in
                (0..sequence.count).flat_map(|token| (0..heads).map(move |head| (token, head)))
            {
                let row = &values[((sequence.first + token) * heads + head) * depth..][..depth];
                let encoded = match cache.dtype() {
                    DType::UInt8 => QuantizationEncoding::Q8_0.quantize(row)?,
                    dtype => dispatch!(dtype, T => {
                        row.iter().flat_map(|&x| bytemuck::bytes_of(&<T as Element>::from_double(f64::from(x))).to_vec()).collect()
                    }),
                };
                let position = sequence.cached + token;
                let page = placed.pages[sequence.pages.start + position / sizes[3]];
                let at = place(sizes, row_bytes, [page, self.part, placed.layer, position % sizes[3], head]);
                bytes[at..][..row_bytes].copy_from_slice(&encoded);
            }
        }
        Ok(vec![HostTensor::new(cache.dtype(), sizes, HostBytes::from_vec(bytes))?])
    }
}

#[cfg(test)]
mod tests;
