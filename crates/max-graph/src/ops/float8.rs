//! Products of scaled float8 tensors, and the quantization of floats to float8.
//!
//! What a scaled tensor stands for are its elements times scales in another tensor: one for all of it, one for each row, or
//! one for each block of rows and columns.

use max_core::quantization::Storage;
use max_core::{DType, Dim, Result, Shape, bail};

use crate::operand::Operand;
use crate::ops;
use crate::ops::cast::cast_value;
use crate::ops::qmatmul::quantized_matmul;
use crate::ops::rebind::assert_dim;
use crate::ops::reshape::reshape_value;
use crate::ops::slice::part;
use crate::registry::{Arg, op_fns};
use crate::value::TensorValue;

op_fns! {
    /// The product of a matrix and the transposed of another, `[m, k] x [n, k]^T -> [m, n]`, both with scales: summed in
    /// float32, scaled and then rounded.
    ///
    /// Scales are one element, or `[rows or 1, 1]`. With `block`, the rows and columns of a block of `b`, they have one
    /// column for each block along `k`, those of `b` one row for each block along `n`, and those of `a` maybe more rows than
    /// `a`, which do not count.
    pub fn scaled_matmul(
        a: Operand, b: Operand, a_scales: Operand, b_scales: Operand, block: Vec<i64> = Arg::List(vec![]),
        out_type: DType = "bfloat16",
    ) -> TensorValue {
        let (a, b) = (a.tensor()?, b.tensor()?);
        let [n, k] = &b.shape()[..] else {
            bail!(value, "scaled_matmul takes matrices; got the shapes {} and {}", a.shape(), b.shape());
        };
        let block = Block::new(&block)?;
        let a = left("scaled_matmul", a, k)?;
        floats("scaled_matmul", &[&a, &b], out_type)?;
        let a_scales = scales_of_rows(a_scales, &a, block)?;
        let b_scales = scales_of_blocks(b_scales, &b, block)?;
        let b_scales = if is_one(&b_scales.shape()[0]) { b_scales } else { spread(&b_scales, 0, block.rows, n)? };
        if [&a_scales, &b_scales].iter().all(|scales| is_one(&scales.shape()[1])) {
            let wide = |x: &TensorValue| cast_value(x, DType::Float32);
            let product = ops::matmul(wide(&a)?, wide(&ops::transpose(&b, 0, 1)?)?)?;
            let scaled = ops::mul(ops::mul(product, a_scales)?, ops::transpose(b_scales, 0, 1)?)?;
            return cast_value(&scaled, out_type);
        }
        let a = scaled(&a, &a_scales, block)?;
        let product = match group(&b, &b_scales, block) {
            Some(group) => {
                let a = narrowed(a, out_type)?;
                let scales = ops::broadcast_to(&b_scales, Shape::from([n, &b_scales.shape()[1]]))?;
                let storage = Storage::Floats { dtype: b.dtype(), group };
                quantized_matmul(a, b, storage, Operand::from(scales), None, None)?
            }
            None => ops::matmul(a, ops::transpose(scaled(&b, &b_scales, block)?, 0, 1)?)?,
        };
        cast_value(&product, out_type)
    }

    /// As `scaled_matmul`, with one matrix for each group of rows of `a`: the rows from `starts[i]` to `starts[i + 1]` are
    /// multiplied by matrix `ids[i]` of `b`, `[experts, n, k]`, whose scales have an axis of experts too. Other rows, and
    /// those of a negative id, give zeros.
    #[expect(clippy::too_many_arguments, reason = "two operands with their scales, and the groups")]
    pub fn grouped_scaled_matmul(
        a: Operand, b: Operand, a_scales: Operand, b_scales: Operand, starts: Operand, ids: Operand,
        block: Vec<i64> = Arg::List(vec![]), out_type: DType = "bfloat16",
    ) -> TensorValue {
        let (a, b) = (a.tensor()?, b.tensor()?);
        let [experts, n, k] = &b.shape()[..] else {
            bail!(value, "grouped_scaled_matmul takes weights of rank 3; got the shape {}", b.shape());
        };
        let block = Block::new(&block)?;
        let a = left("grouped_scaled_matmul", a, k)?;
        floats("grouped_scaled_matmul", &[&a, &b], out_type)?;
        let a_scales = scales_of_rows(a_scales, &a, block)?;
        let b_scales = scales_of_blocks(b_scales, &b, block)?;
        let b_scales = if is_one(&b_scales.shape()[1]) { b_scales } else { spread(&b_scales, 1, block.rows, n)? };
        let a = narrowed(scaled(&a, &a_scales, block)?, out_type)?;
        let [starts, ids] = groups(starts, ids, &a)?;
        let product = match group(&b, &b_scales, block) {
            Some(group) => {
                let shape = Shape::from([experts, n, &b_scales.shape()[2]]);
                let scales = ops::broadcast_to(&b_scales, shape)?;
                let storage = Storage::Floats { dtype: b.dtype(), group };
                quantized_matmul(a, b, storage, Operand::from(scales), starts, ids)?
            }
            None => {
                let b = scaled(&b, &b_scales, block)?;
                let storage = Storage::Floats { dtype: b.dtype(), group: 0 };
                quantized_matmul(a, b, storage, None, starts, ids)?
            }
        };
        cast_value(&product, out_type)
    }

    /// The product of each group of rows with the transposed of one of many matrices, `[experts, n, k]`: the rows from
    /// `starts[i]` to `starts[i + 1]` are multiplied by matrix `ids[i]`. Other rows, and those of a negative id, give zeros.
    pub fn grouped_matmul(a: Operand, b: Operand, starts: Operand, ids: Operand) -> TensorValue {
        let (a, b) = (a.tensor()?, b.tensor()?);
        let [_, _, k] = &b.shape()[..] else {
            bail!(value, "grouped_matmul takes weights of rank 3; got the shape {}", b.shape());
        };
        let a = left("grouped_matmul", a, k)?;
        let [starts, ids] = groups(starts, ids, &a)?;
        let storage = Storage::Floats { dtype: b.dtype(), group: 0 };
        quantized_matmul(a, b, storage, None, starts, ids)
    }

    /// Rounds floats divided by a scale (or multiplied, if the scale is a factor) to float8; what is too large becomes the
    /// largest finite number.
    pub fn quantize_static_float8(
        x: Operand, scale: Operand, is_factor: bool = false, out_type: DType = "float8_e4m3fn",
    ) -> TensorValue {
        let x = x.tensor()?;
        let largest = largest(out_type)?;
        let scale = single(scale, &x)?;
        let wide = cast_value(&x, DType::Float32)?;
        let scaled = if is_factor { ops::mul(wide, scale)? } else { ops::div(wide, scale)? };
        saturated(&scaled, largest, out_type)
    }

    /// Quantizes the rows of a matrix to float8 in groups of elements (whole rows, if `group` is -1), each with a scale that
    /// makes its largest magnitude, at most `scale_ub`, the largest finite number.
    ///
    /// The scales are transposed, `[groups, rows]`, with zeros up to a multiple of `multiple` rows.
    pub fn quantize_dynamic_float8(
        x: Operand, group: i64 = -1, scale_ub: f64 = 1200.0, multiple: i64 = 1, out_type: DType = "float8_e4m3fn",
        scales_type: DType = "bfloat16",
    ) -> Vec<TensorValue> {
        let x = x.tensor()?;
        let [rows, k] = &x.shape()[..] else {
            bail!(value, "quantize_dynamic_float8 takes a matrix; got the shape {}", x.shape());
        };
        if !x.dtype().is_float() {
            bail!(type_, "quantize_dynamic_float8 takes floats; got {}", x.dtype());
        }
        if scale_ub.is_nan() || scale_ub <= 0.0 {
            bail!(value, "the upper bound of scales must be positive; got {scale_ub}");
        }
        if multiple < 1 {
            bail!(value, "scales are padded to a multiple of at least 1; got {multiple}");
        }
        let largest = largest(out_type)?;
        let smallest = smallest(scales_type)?;
        let wide = cast_value(&x, DType::Float32)?;
        let grouped = in_groups(&wide, group)?;
        let bound = ops::min(ops::reduce_max(ops::abs(&grouped)?, -1)?, scale_ub.min(f64::from(f32::MAX)))?;
        // Groups of zeros have a scale too, so that nothing is divided by zero.
        let scales = ops::max(ops::div(bound, largest)?, smallest)?;
        let scales = cast_value(&scales, scales_type)?;
        // Elements are divided by the rounded scales, which they are multiplied by later.
        let divided = ops::div(&grouped, cast_value(&scales, DType::Float32)?)?;
        let quantized = saturated(&divided, largest, out_type)?;
        let count = grouped.shape()[1].clone();
        let whole = Shape::from([rows, &count.mul(&grouped.shape()[2])?]);
        let mut quantized = reshape_value(&quantized, whole)?;
        if quantized.shape()[1] != *k {
            quantized = part(&quantized, 1, None, Some(k.clone()))?;
        }
        let scales = ops::transpose(reshape_value(&scales, [rows, &count].into())?, 0, 1)?;
        let padded = ceil_div(rows, multiple)?.mul(&Dim::Static(multiple))?;
        if padded == *rows {
            return Ok(vec![quantized, scales]);
        }
        let zero = Operand::from(0.0).like(&scales)?;
        let zeros = ops::broadcast_to(zero, Shape::from([count.clone(), padded.sub(rows)?]))?;
        let scales = ops::concat(vec![Operand::from(scales), Operand::from(zeros)], 1)?;
        let scales = assert_dim(scales, 1, padded, "the padded scales of float8")?;
        Ok(vec![quantized, scales])
    }

    /// Float8_e4m3fn weights and their scales in the format without negative zero and infinities, whose numbers are half as
    /// large: halved weights and doubled scales.
    pub fn float8_e4m3fnuz(weight: Operand, scales: Operand) -> Vec<TensorValue> {
        let (weight, scales) = (weight.tensor()?, scales.tensor()?);
        if weight.dtype() != DType::Float8E4M3FN {
            bail!(value, "Expected weight dtype to be float8_e4m3fn, but got {}", weight.dtype());
        }
        let half = ops::mul(cast_value(&weight, DType::Float32)?, 0.5)?;
        Ok(vec![cast_value(&half, DType::Float8E4M3FNUZ)?, ops::mul(scales, 2.0)?])
    }
}

/// The rows and columns of the blocks that share a scale.
#[derive(Clone, Copy)]
struct Block {
    /// The rows of a block of `b`.
    rows: i64,
    /// The columns of all blocks; `None` if these are whole rows.
    columns: Option<i64>,
}

impl Block {
    fn new(sizes: &[i64]) -> Result<Block> {
        match *sizes {
            [] => Ok(Block { rows: 1, columns: None }),
            [rows, columns] if rows > 0 && columns > 0 => Ok(Block { rows, columns: Some(columns) }),
            _ => bail!(value, "a block has a positive number of rows and of columns; got {sizes:?}"),
        }
    }
}

fn is_one(dim: &Dim) -> bool {
    *dim == Dim::Static(1)
}

/// The number of parts of a size, the last of which may be shorter.
fn ceil_div(dim: &Dim, part: i64) -> Result<Dim> {
    dim.add(&Dim::Static(part - 1))?.floor_div(&Dim::Static(part))
}

/// The left operand of a product with weights of a depth.
fn left(name: &str, a: TensorValue, k: &Dim) -> Result<TensorValue> {
    let [_, own] = &a.shape()[..] else {
        bail!(value, "{name} takes a matrix of rows; got the shape {}", a.shape());
    };
    if own.differs(k) {
        bail!(value, "{name} inner dims must match; rows of {own} elements, weights of {k}");
    }
    let message = format!("the depth of the weights of a {name}");
    assert_dim(a, 1, k.clone(), &message)
}

fn floats(name: &str, operands: &[&TensorValue], out_type: DType) -> Result<()> {
    let dtypes = operands.iter().map(|operand| operand.dtype()).chain([out_type]);
    if let Some(other) = dtypes.into_iter().find(|dtype| !dtype.is_float()) {
        bail!(type_, "{name} takes and gives floats; got {other}");
    }
    Ok(())
}

/// The starts of groups and the numbers of their matrices, one start more than numbers.
fn groups(starts: Operand, ids: Operand, a: &TensorValue) -> Result<[Operand; 2]> {
    let [starts, ids] = [starts, ids].map(|operand| ops::transfer_to(operand.tensor()?, a.device()));
    let (mut starts, ids) = (starts?, ids?);
    if let (1, 1) = (starts.rank(), ids.rank()) {
        let count = ids.shape()[0].add(&Dim::Static(1))?;
        starts = assert_dim(starts, 0, count, "the starts of groups of rows")?;
    }
    Ok([starts.into(), ids.into()])
}

/// One scale as a float32 scalar, where a tensor is.
fn single(scale: Operand, x: &TensorValue) -> Result<TensorValue> {
    let scale = match scale.as_number() {
        Some(_) => scale.weak(DType::Float32, x.device())?,
        None => scale.tensor()?,
    };
    if !scale.shape().iter().all(is_one) {
        bail!(value, "a scale must be one number; got the shape {}", scale.shape());
    }
    let scale = ops::transfer_to(reshape_value(&scale, Shape::default())?, x.device())?;
    cast_value(&scale, DType::Float32)
}

/// Scales as float32 where their tensor is, with as many axes.
fn scales_like(scales: Operand, x: &TensorValue) -> Result<TensorValue> {
    let scales = match scales.as_number() {
        Some(_) => scales.weak(DType::Float32, x.device())?,
        None => scales.tensor()?,
    };
    if !scales.dtype().is_float() {
        bail!(type_, "scales must be floats; got {}", scales.dtype());
    }
    let scales = if scales.rank() < x.rank() && scales.shape().iter().all(is_one) {
        reshape_value(&scales, vec![Dim::Static(1); x.rank()].into())?
    } else {
        scales
    };
    if scales.rank() != x.rank() {
        bail!(
            value,
            "the scales of a tensor of shape {} must have as many axes; got the shape {}",
            x.shape(),
            scales.shape()
        );
    }
    cast_value(&ops::transfer_to(scales, x.device())?, DType::Float32)
}

/// The scales of rows, `[rows or 1, blocks or 1]`; with blocks there may be more rows of them.
fn scales_of_rows(scales: Operand, a: &TensorValue, block: Block) -> Result<TensorValue> {
    let scales = scales_like(scales, a)?;
    let (rows, own) = (&a.shape()[0], &scales.shape()[0]);
    let scales = match block.columns {
        Some(_) if own != rows && !is_one(own) => {
            if let (Some(rows), Some(own)) = (rows.as_static(), own.as_static())
                && own < rows
            {
                bail!(value, "there are scales of {own} rows for {rows} rows");
            }
            part(&scales, 0, None, Some(rows.clone()))?
        }
        _ => fitted(scales, 0, rows)?,
    };
    let columns = columns(&a.shape()[1], block)?;
    fitted(scales, 1, &columns)
}

/// The scales of blocks of a tensor, `[.., blocks of rows or 1, blocks of columns or 1]`.
fn scales_of_blocks(scales: Operand, b: &TensorValue, block: Block) -> Result<TensorValue> {
    let scales = scales_like(scales, b)?;
    let [outer @ .., n, k] = &b.shape()[..] else { bail!(internal, "weights without rows") };
    let scales =
        outer.iter().enumerate().try_fold(scales, |scales, (axis, size)| fitted(scales, axis, size))?;
    let scales = fitted(scales, outer.len(), &ceil_div(n, block.rows)?)?;
    fitted(scales, outer.len() + 1, &columns(k, block)?)
}

/// The number of blocks along a row.
fn columns(k: &Dim, block: Block) -> Result<Dim> {
    block.columns.map_or(Ok(Dim::Static(1)), |columns| ceil_div(k, columns))
}

/// Scales with a size along an axis, or with one.
fn fitted(scales: TensorValue, axis: usize, size: &Dim) -> Result<TensorValue> {
    let own = &scales.shape()[axis];
    if is_one(own) {
        return Ok(scales);
    }
    if own.differs(size) {
        bail!(value, "scales of shape {} must have 1 or {size} along axis {axis}", scales.shape());
    }
    assert_dim(scales, axis, size.clone(), "the scales of a scaled tensor")
}

/// Repeats each element along an axis, up to a size.
fn spread(scales: &TensorValue, axis: usize, times: i64, size: &Dim) -> Result<TensorValue> {
    let repeated = match times {
        1 => scales.clone(),
        _ => ops::repeat_interleave(scales, times, Some(axis as i64), None)?,
    };
    if repeated.shape()[axis] == *size {
        return Ok(repeated);
    }
    part(&repeated, axis, None, Some(size.clone()))
}

/// What a scaled tensor stands for, in float32. Its scales have a row for each of its rows, or one.
fn scaled(x: &TensorValue, scales: &TensorValue, block: Block) -> Result<TensorValue> {
    let wide = cast_value(x, DType::Float32)?;
    let last = x.rank() - 1;
    let (Some(columns), false) = (block.columns, is_one(&scales.shape()[last])) else {
        return ops::mul(wide, scales);
    };
    let k = &x.shape()[last];
    if k.as_static().is_none_or(|k| k % columns != 0) {
        return ops::mul(wide, spread(scales, last, columns, k)?);
    }
    let split = |x: &TensorValue, last: &[Dim]| Shape::from([&x.shape()[..x.rank() - 1], last].concat());
    let (count, one) = (scales.shape()[last].clone(), Dim::Static(1));
    let blocks = reshape_value(&wide, split(x, &[count.clone(), Dim::Static(columns)]))?;
    let scales = reshape_value(scales, split(scales, &[count, one]))?;
    reshape_value(&ops::mul(blocks, scales)?, x.shape().clone())
}

/// How many elements of weights share a scale, if they can be multiplied as they are stored.
fn group(b: &TensorValue, scales: &TensorValue, block: Block) -> Option<usize> {
    let [.., k] = &b.shape()[..] else { return None };
    let k = usize::try_from(k.as_static()?).ok()?;
    let group = match block.columns {
        Some(columns) if !is_one(scales.shape().last()?) => usize::try_from(columns).ok()?,
        _ => k,
    };
    let storage = Storage::Floats { dtype: b.dtype(), group };
    (b.dtype().is_float8() && group > 0 && storage.elements(k).is_ok()).then_some(group)
}

/// A left operand as a product with stored weights takes it: on a GPU rounded for its tensor cores, unless float32 results
/// are asked for.
fn narrowed(a: TensorValue, out_type: DType) -> Result<TensorValue> {
    if a.device().is_cpu() || !out_type.is_half() { Ok(a) } else { cast_value(&a, DType::BFloat16) }
}

/// A matrix as `[rows, groups, elements]`, with zeros in a last group that is shorter.
fn in_groups(x: &TensorValue, group: i64) -> Result<TensorValue> {
    let (rows, k) = (&x.shape()[0], &x.shape()[1]);
    if group == -1 || k.as_static().is_some_and(|size| group >= size.max(1)) {
        return reshape_value(x, [rows, &Dim::Static(1), k].into());
    }
    if group < 1 {
        bail!(value, "a group has at least one element, or all of a row if it is -1; got {group}");
    }
    let Some(size) = k.as_static() else {
        bail!(value, "groups of {group} elements need rows of a static size; got the shape {}", x.shape());
    };
    let count = ceil_div(k, group)?;
    let x = match size % group {
        0 => x.clone(),
        rest => ops::pad(x, vec![0, 0, 0, group - rest], "constant", 0)?,
    };
    reshape_value(&x, [rows, &count, &Dim::Static(group)].into())
}

/// Rounds to float8 after limiting magnitudes to the largest finite number.
fn saturated(x: &TensorValue, largest: f64, dtype: DType) -> Result<TensorValue> {
    cast_value(&ops::clamp(x, Operand::from(-largest), Operand::from(largest))?, dtype)
}

/// The largest finite number of a float8 type.
fn largest(dtype: DType) -> Result<f64> {
    Ok(match dtype {
        DType::Float8E4M3FN => 448.0,
        DType::Float8E4M3FNUZ => 240.0,
        DType::Float8E5M2 | DType::Float8E5M2FNUZ => 57344.0,
        other => bail!(value, "out_type must be a float8 type; got {other}"),
    })
}

/// The smallest scale of a type that division by it can bear.
fn smallest(dtype: DType) -> Result<f64> {
    Ok(match dtype {
        DType::Float32 | DType::BFloat16 | DType::Float64 => f64::from(f32::MIN_POSITIVE),
        DType::Float16 => 2f64.powi(-24),
        other => bail!(value, "scales must be float32, bfloat16, float16 or float64; got {other}"),
    })
}
