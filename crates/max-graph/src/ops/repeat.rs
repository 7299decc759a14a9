//! Ops that repeat tensors as a whole or element by element.

use max_core::{DType, Dim, Error, Result, Shape, bail};

use crate::host::HostTensor;
use crate::operand::{Operand, same_device};
use crate::ops;
use crate::ops::masked_scatter::bind;
use crate::ops::rebind::assert_dim;
use crate::ops::reshape::reshape_value;
use crate::ops::slice::part;
use crate::registry::{Arg, op_fns};
use crate::value::TensorValue;

op_fns! {
    /// Repeats the tensor a given number of times along each axis.
    pub fn tile(x: Operand, repeats: Shape) -> TensorValue {
        let x = x.tensor()?;
        if repeats.rank() != x.rank() {
            bail!(
                value,
                "Input rank and number of elements in repeats must match; got shape {} and repeats {repeats}",
                x.shape()
            );
        }
        if let Some(bad) = repeats.iter().find(|repeat| repeat.as_static().is_some_and(|r| r <= 0)) {
            bail!(value, "tile repeats must be positive; got {bad} in {repeats}");
        }
        let (mut ones, mut spread, mut merged) = (Vec::new(), Vec::new(), Vec::new());
        for (size, repeat) in x.shape().iter().zip(repeats.iter()) {
            if *repeat != Dim::Static(1) {
                ones.push(Dim::Static(1));
                spread.push(repeat.clone());
            }
            ones.push(size.clone());
            spread.push(size.clone());
            merged.push(size.mul(repeat)?);
        }
        let spread = ops::broadcast_to(reshape_value(&x, ones.into())?, Shape::from(spread))?;
        reshape_value(&spread, merged.into())
    }

    /// Repeats each element along an axis; without an axis, of the flattened tensor. The number of repeats is the same for
    /// all, or a vector with one for each. The size of the result is then `out_dim`, unless the vector is known.
    pub fn repeat_interleave(
        x: Operand, repeats: Operand, axis: Option<i64> = Arg::None, out_dim: Option<Dim> = Arg::None,
    ) -> TensorValue {
        let x = x.tensor()?;
        let (x, axis) = match axis {
            Some(axis) => (x, axis),
            None => (ops::flatten(&x, 0, -1)?, 0),
        };
        let axis = max_core::shape::resolve_axis(axis, x.rank()).ok_or_else(|| {
            Error::value(format!("repeat_interleave axis {axis} is out of range for a tensor of rank {}", x.rank()))
        })?;
        match repeats.as_size() {
            Some(repeats) => repeat_all(&x, repeats?, axis, out_dim),
            None => repeat_each(&x, repeats, axis, out_dim),
        }
    }
}

/// Every element the same number of times.
fn repeat_all(x: &TensorValue, repeats: i64, axis: usize, out_dim: Option<Dim>) -> Result<TensorValue> {
    if repeats <= 0 {
        bail!(value, "repeat_interleave repeats must be positive; got {repeats}");
    }
    let (before, after) = (&x.shape()[..axis], &x.shape()[axis + 1..]);
    let size = &x.shape()[axis];
    let pairs = |count: i64| Shape::from([before, &[size.clone(), Dim::Static(count)], after].concat());
    let spread = ops::broadcast_to(reshape_value(x, pairs(1))?, pairs(repeats))?;
    let whole = |size: Dim| Shape::from([before, &[size], after].concat());
    let y = reshape_value(&spread, whole(size.mul(&Dim::Static(repeats))?))?;
    match out_dim {
        Some(dim) if y.shape()[axis] != dim => ops::rebind(&y, whole(dim), "repeat_interleave size"),
        _ => Ok(y),
    }
}

/// Every element as often as a vector says.
fn repeat_each(x: &TensorValue, repeats: Operand, axis: usize, out_dim: Option<Dim>) -> Result<TensorValue> {
    let size = x.shape()[axis].clone();
    let known = repeats.as_array().map(|array| known_total(array, &size)).transpose()?;
    let repeats = match repeats.as_array() {
        Some(_) => repeats.weak(DType::Int64, x.device())?,
        None => repeats.tensor()?,
    };
    if !repeats.dtype().is_integral() {
        bail!(value, "repeat_interleave repeats must be integers; got {}", repeats.dtype());
    }
    same_device([x, &repeats])?;
    let one = repeats.shape().iter().all(|dim| *dim == Dim::Static(1));
    if repeats.rank() > 1 || !one && repeats.shape()[0].differs(&size) {
        bail!(
            value,
            "repeat_interleave repeats must be one number, or one for each of the {size} elements along axis {axis}; got shape {}",
            repeats.shape()
        );
    }
    let repeats = match one {
        true => ops::broadcast_to(reshape_value(&repeats, [1].into())?, [&size])?,
        false => assert_dim(repeats, 0, size, "repeat_interleave repeats")?,
    };
    let repeats = ops::cast(&repeats, DType::Int64)?;
    let total = match (known, out_dim.clone()) {
        (Some(total), _) => total,
        (None, Some(dim)) => {
            // A negative number of repeats makes the size negative, which is an error.
            let negative = ops::sum(ops::cast(ops::greater(0, &repeats), DType::Int64), 0)?;
            let count =
                ops::where_(ops::greater(&negative, 0), ops::negate(&negative), ops::sum(&repeats, 0))?;
            bind(&count, &dim)?;
            dim
        }
        (None, None) => bail!(value, "out_dim must be provided for repeats that are a tensor"),
    };
    // Ones where the elements start; elements without repeats start together with the next, or after the end. The number of
    // those that have started is one more than the number of the element.
    let number = |number: i64, count: Dim| {
        let number = Operand::from(number).weak(DType::Int64, x.device())?;
        ops::broadcast_to(&number, [count])
    };
    let starts = ops::cumsum(&repeats, 0, true, false)?;
    let none = number(0, total.add(&Dim::Static(1))?)?;
    let started = ops::scatter_add(none, number(1, repeats.shape()[0].clone())?, starts, 0)?;
    let started = part(&started, 0, None, Some(total))?;
    let y = ops::gather(x, ops::sub(ops::cumsum(&started, 0, false, false), 1), axis as i64)?;
    match out_dim {
        Some(dim) if y.shape()[axis] != dim => {
            let mut dims = y.shape().to_vec();
            dims[axis] = dim;
            ops::rebind(&y, Shape::from(dims), "repeat_interleave size")
        }
        _ => Ok(y),
    }
}

/// The size of the result for repeats that are known, as far as that of the axis is.
fn known_total(repeats: &HostTensor, size: &Dim) -> Result<Dim> {
    let repeats = repeats.to_integers()?;
    if let Some(bad) = repeats.iter().find(|&&count| count < 0) {
        bail!(value, "repeat_interleave repeats must not be negative; got {bad}");
    }
    let total = repeats.iter().try_fold(0i64, |sum, &count| sum.checked_add(count));
    let Some(total) = total.map(Dim::Static) else {
        bail!(value, "repeat_interleave repeats add up to more than 64 bits");
    };
    if repeats.len() == 1 { total.mul(size) } else { Ok(total) }
}
