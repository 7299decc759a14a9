//! What samplers of tokens need: a draw from the most likely ones, and penalties for those that came before.

use max_core::{DType, Dim, Distribution, Number, Result, Shape, bail};

use crate::graph::{record, record_one};
use crate::operand::Operand;
use crate::ops;
use crate::ops::cast::cast_value;
use crate::ops::index::Index;
use crate::ops::ragged::{Rows, offsets};
use crate::ops::random::Random;
use crate::ops::rebind::assert_dim;
use crate::ops::reshape::reshape_value;
use crate::ops::slice::part;
use crate::ops::sort::Sort;
use crate::registry::{Arg, op_fns};
use crate::value::{BufferValue, TensorValue, Value};

/// The token of an entry that is still free.
const FREE: i64 = -1;

op_fns! {
    /// Draws a token for each row of logits `[batch, vocabulary]`, as int64 `[batch, 1]`: of the `top_k` largest, those that
    /// come first until their probability reaches `top_p`, at a temperature. A temperature of zero gives the largest.
    ///
    /// Parameters are numbers or scalars, or have one element per row. A draw depends on its row, its parameters and its seed
    /// only. Less than one as `top_k` means all; `max_k` limits it and must be given if it is a tensor. Of equal logits the
    /// first one comes first, and NaN is as unlikely as negative infinity.
    pub fn topk_fused_sampling(
        logits: Operand, top_k: Operand, temperature: Operand = 1.0, max_k: Option<Operand> = Arg::None,
        top_p: Operand = 1.0, seed: Operand = 0,
    ) -> TensorValue {
        let logits = logits.tensor()?;
        let [_, vocabulary] = &logits.shape()[..] else {
            bail!(value, "logits must be a matrix, `[batch, vocabulary]`; got the shape {}", logits.shape());
        };
        if !logits.dtype().is_float() || *vocabulary == Dim::Static(0) {
            bail!(value, "logits must be floats of at least one token; got {}", logits.tensor_type());
        }
        check("temperature", &temperature, |t| t >= 0.0, "not negative")?;
        check("top_p", &top_p, |p| p > 0.0 && p <= 1.0, "above 0 and at most 1")?;
        check("top_k", &top_k, |k| k == -1.0 || k >= 1.0 && k.fract() == 0.0, "-1 or a positive integer")?;
        let largest = f64::from(f32::MAX);
        let x = cast_value(&logits, DType::Float32)?;
        let limited = ops::clamp(&x, Operand::from(-largest), Operand::from(largest))?;
        let x = ops::where_(ops::is_nan(&x)?, -largest, limited)?;
        let known = top_k.as_size().transpose()?;
        if known == Some(1) || matches!(temperature.as_number().map(value), Some(0.0)) {
            return ops::argmax(x, -1);
        }
        let most = match (&max_k, known) {
            (_, Some(k)) => Some(k),
            (Some(max_k), None) => max_k.as_size().transpose()?,
            (None, None) => bail!(value, "max_k is required when top_k is a tensor"),
        };
        let count = match (most.filter(|&k| k > 0), vocabulary.as_static()) {
            (Some(k), Some(size)) => Dim::Static(k.min(size)),
            _ => vocabulary.clone(),
        };
        let temperature = per_row("temperature", temperature, &logits, DType::Float32)?;
        let warm = ops::greater(&temperature, 0)?;
        let limit = |name: &str, k: Operand| {
            let k = per_row(name, k, &logits, DType::Int64)?;
            ops::where_(ops::greater(&k, 0)?, &k, i64::MAX)
        };
        let mut k = limit("top_k", top_k)?;
        if let Some(max_k) = max_k {
            k = ops::min(k, limit("max_k", max_k)?)?;
        }
        let k = ops::where_(&warm, k, 1)?;
        let top_p = per_row("top_p", top_p, &logits, DType::Float32)?;

        let sorted = record(Sort { axis: 1, count: count.clone(), descending: true }, &[x.into()])?;
        let sorted = sorted.iter().map(Value::tensor).collect::<Result<Vec<_>>>()?;
        let [values, tokens] = &sorted[..] else { bail!(internal, "a sort without positions") };
        let best = part(values, 1, None, Some(Dim::Static(1)))?;
        let scaled = ops::div(ops::sub(values, best)?, ops::where_(&warm, &temperature, 1)?)?;
        let place = ops::range(0, count, 1, None, DType::Int64, logits.device())?;
        let weights = ops::where_(ops::greater(k, &place)?, ops::exp(scaled)?, 0)?;
        let before = ops::cumsum(&weights, 1, true, false)?;
        let enough = ops::mul(top_p, ops::sum(&weights, 1)?)?;
        let likely = ops::logical_and(ops::greater(enough, &before)?, ops::greater(&weights, 0)?)?;
        let likely = ops::logical_or(likely, ops::equal(place, 0)?)?;
        let mass = ops::sum(ops::where_(&likely, &weights, 0)?, 1)?;
        let drawn = ops::mul(draw(seed, &logits)?, mass)?;
        // The token in whose share of the mass the number falls is the last one that starts before it.
        let starts = ops::logical_and(likely, ops::greater_equal(drawn, &before)?)?;
        let at = ops::sub(ops::sum(cast_value(&starts, DType::Int64)?, 1)?, 1)?;
        ops::unsqueeze(ops::gather_nd(tokens, at, 1)?, 1)
    }

    /// Lowers the logits `[batch, vocabulary]` of tokens that came before. Their numbers are the entries of each row, a token
    /// and its count: those from `frequency_offsets[i]` to `frequency_offsets[i + 1]` are for row `i`. Entries of tokens that
    /// are not in the vocabulary are skipped.
    ///
    /// The repetition penalty divides positive logits and multiplies others; the frequency penalty is subtracted as often as
    /// the token came before, and the presence penalty once. Penalties are numbers or scalars, or have one element per row.
    pub fn apply_penalties_to_logits(
        logits_buffer: BufferValue, frequency_data: Operand, frequency_offsets: Operand, frequency_penalty: Operand = 0.0,
        presence_penalty: Operand = 0.0, repetition_penalty: Operand = 1.0,
    ) -> () {
        let logits = ops::buffer_load(logits_buffer.clone())?;
        let [rows, vocabulary] = &logits.shape()[..] else {
            bail!(value, "logits must be a matrix, `[batch, vocabulary]`; got the shape {}", logits.shape());
        };
        if !logits.dtype().is_float() {
            bail!(type_, "logits must be floats; got {}", logits.dtype());
        }
        check("repetition_penalty", &repetition_penalty, |p| p > 0.0, "positive")?;
        let data = ops::transfer_to(frequency_data.tensor()?, logits.device())?;
        let Entries { token, count } = Entries::new(&data)?;
        let starts = offsets("frequency_offsets", frequency_offsets, &logits)?;
        let starts = assert_dim(starts, 0, rows.add(&Dim::Static(1))?, "the offsets of rows of logits")?;
        let Rows { sequence, inside, .. } = Rows::new(&starts, &data.shape()[0])?;
        let exists = ops::logical_and(ops::greater_equal(&token, 0)?, ops::greater(vocabulary.clone(), &token)?)?;
        let exists = ops::logical_and(exists, inside)?;
        // One more, where entries go that do not count.
        let size = rows.mul(vocabulary)?;
        let place = ops::add(ops::mul(sequence, vocabulary.clone())?, token)?;
        let place = ops::where_(exists, place, size.clone())?;
        let zero = Operand::from(0i64).weak(DType::Int64, logits.device())?;
        let none = ops::broadcast_to(zero, Shape::from([size.add(&Dim::Static(1))?]))?;
        let counts = part(&ops::scatter_add(none, count, place, 0)?, 0, None, Some(size))?;
        let counts = reshape_value(&counts, logits.shape().clone())?;

        let wide = cast_value(&logits, DType::Float32)?;
        let penalty = |name: &str, penalty: Operand| per_row(name, penalty, &logits, DType::Float32);
        let repetition = penalty("repetition_penalty", repetition_penalty)?;
        let [less, more] = [ops::div(&wide, &repetition)?, ops::mul(&wide, &repetition)?];
        let lowered = ops::where_(ops::greater(&wide, 0)?, less, more)?;
        let often = ops::mul(penalty("frequency_penalty", frequency_penalty)?, cast_value(&counts, DType::Float32)?)?;
        let lowered = ops::sub(ops::sub(lowered, often)?, penalty("presence_penalty", presence_penalty)?)?;
        let lowered = cast_value(&lowered, logits.dtype())?;
        ops::buffer_store(logits_buffer, ops::where_(ops::greater(counts, 0)?, lowered, logits)?)
    }

    /// Counts one more token for each row. Of the entries of a row, tokens and their counts, the first one with that token
    /// counts it; if there is none, the first free entry, whose token is -1, becomes one. Where no entry is left, and for
    /// negative tokens, nothing changes.
    pub fn update_frequency_data(frequency_data: BufferValue, frequency_offsets: Operand, tokens: Operand) -> () {
        let data = ops::buffer_load(frequency_data.clone())?;
        let Entries { token: held, count } = Entries::new(&data)?;
        let starts = offsets("frequency_offsets", frequency_offsets, &data)?;
        let tokens = ops::transfer_to(tokens.tensor()?, data.device())?;
        if !matches!(&tokens.shape()[..], [_] | [_, Dim::Static(1)]) || !tokens.dtype().is_integral() {
            bail!(value, "tokens must be integers, one for each row; got {}", tokens.tensor_type());
        }
        let rows = tokens.shape()[0].clone();
        let tokens = cast_value(&reshape_value(&tokens, [&rows].into())?, DType::Int64)?;
        let starts = assert_dim(starts, 0, rows.add(&Dim::Static(1))?, "the offsets of rows of tokens")?;
        let entries = data.shape()[0].clone();
        let rows_of = Rows::new(&starts, &entries)?;
        let token = rows_of.pick(&tokens, FREE)?;
        let holds = match data.dtype() {
            DType::Int32 => i64::from(i32::MAX),
            _ => i64::MAX,
        };
        let given = ops::logical_and(ops::greater_equal(&token, 0)?, ops::greater_equal(holds, &token)?)?;
        let same = ops::logical_and(&given, ops::equal(&held, &token)?)?;
        let free = ops::logical_and(given, ops::equal(held, FREE)?)?;
        // Entries with the token come before free ones, and both before all others.
        let place = ops::range(0, entries.clone(), 1, None, DType::Int64, data.device())?;
        let none = entries.mul(&Dim::Static(2))?;
        let rank = ops::where_(free, ops::add(&place, entries)?, none.clone())?;
        let rank = ops::where_(&same, place, rank)?;
        let highest = ops::transfer_to(Operand::from(none.clone()), data.device())?;
        let highest = ops::broadcast_to(highest, Shape::from([rows.add(&Dim::Static(1))?]))?;
        let target = ops::where_(&rows_of.inside, &rows_of.sequence, rows.clone())?;
        let first = ops::scatter_min(highest, &rank, &target, 0)?;
        let chosen = ops::logical_and(ops::equal(ops::gather(first, target, 0)?, &rank)?, ops::greater(none, &rank)?)?;
        let raised = ops::where_(same, ops::add(ops::min(&count, holds - 1)?, 1)?, 1)?;
        let new = cast_value(&ops::stack([token, raised], 1)?, data.dtype())?;
        ops::buffer_store(frequency_data, ops::where_(ops::unsqueeze(chosen, 1)?, new, data)?)
    }

    /// Sets elements of a buffer to a number: each vector in the last axis of the indices is the position of one. Negative
    /// positions count from the end; those out of range are an error.
    pub fn scatter_set_constant(data: BufferValue, indices: Operand, fill_val: f64) -> () {
        let contents = ops::buffer_load(data.clone())?;
        let indices = ops::transfer_to(indices.tensor()?, contents.device())?;
        let [outer @ .., axes] = &indices.shape()[..] else {
            bail!(value, "indices have an axis of positions; got the shape {}", indices.shape());
        };
        if *axes != Dim::Static(contents.rank() as i64) {
            bail!(
                value,
                "indices must have a position for each axis of the data {}; got the shape {}",
                contents.shape(),
                indices.shape()
            );
        }
        let fill = Operand::from(fill_val).weak(contents.dtype(), contents.device())?;
        let updates = ops::broadcast_to(fill, Shape::from(outer))?;
        ops::buffer_store(data, ops::scatter_nd(contents, updates, indices)?)
    }
}

/// How often tokens came before, both as int64.
struct Entries {
    token: TensorValue,
    count: TensorValue,
}

impl Entries {
    fn new(data: &TensorValue) -> Result<Entries> {
        let [size, Dim::Static(2)] = &data.shape()[..] else {
            bail!(value, "frequency_data has the shape `[entries, 2]`; got {}", data.shape());
        };
        if !matches!(data.dtype(), DType::Int32 | DType::Int64) {
            bail!(type_, "frequency_data must be int32 or int64; got {}", data.dtype());
        }
        let wide = cast_value(data, DType::Int64)?;
        let column = |at: i64| {
            let column = part(&wide, 1, Some(Dim::Static(at)), Some(Dim::Static(at + 1)))?;
            reshape_value(&column, [size].into())
        };
        Ok(Entries { token: column(0)?, count: column(1)? })
    }
}

fn value(number: Number) -> f64 {
    match number {
        Number::Bool(b) => f64::from(u8::from(b)),
        Number::Int(i) => i as f64,
        Number::Float(f) => f,
    }
}

/// Checks a parameter that is a number.
fn check(name: &str, parameter: &Operand, fits: impl Fn(f64) -> bool, what: &str) -> Result<()> {
    match parameter.as_number().map(value) {
        Some(number) if !fits(number) => bail!(value, "{name} must be {what}; got {number}"),
        _ => Ok(()),
    }
}

/// A parameter as `[rows or 1, 1]`, where the rows are.
fn per_row(name: &str, parameter: Operand, rows: &TensorValue, dtype: DType) -> Result<TensorValue> {
    let parameter = parameter.weak(dtype, rows.device())?;
    if parameter.dtype() == DType::Bool || dtype.is_integral() && !parameter.dtype().is_integral() {
        bail!(
            type_,
            "{name} must be {}; got {}",
            if dtype.is_float() { "numbers" } else { "integers" },
            parameter.dtype()
        );
    }
    let (count, one) = (&rows.shape()[0], Dim::Static(1));
    let parameter = match &parameter.shape()[..] {
        [] => reshape_value(&parameter, [1, 1].into())?,
        [own] if *own == one || !own.differs(count) => {
            let size = if *own == one { one } else { count.clone() };
            ops::unsqueeze(assert_dim(parameter, 0, size, name)?, 1)?
        }
        _ => bail!(
            value,
            "{name} must be a scalar or have an element for each of {count} rows; got the shape {}",
            parameter.shape()
        ),
    };
    cast_value(&ops::transfer_to(parameter, rows.device())?, dtype)
}

/// A number from zero up to but excluding one for each row, or one for all: a function of its seed only.
fn draw(seed: Operand, rows: &TensorValue) -> Result<TensorValue> {
    let seed = match seed.as_number() {
        Some(_) => seed.weak(DType::UInt64, rows.device())?,
        None => seed.tensor()?,
    };
    // A seed is its bits, so int64 and uint64 are as good.
    let dtype = if seed.dtype() == DType::UInt64 { DType::UInt64 } else { DType::Int64 };
    let seed = per_row("seed", seed.into(), rows, dtype)?;
    let position = record_one(Index { shape: [1, 1].into(), device: rows.device() }, [])?;
    record_one(Random { distribution: Distribution::Uniform, dtype: DType::Float32 }, [&seed, &position])
}

#[cfg(test)]
mod tests;
