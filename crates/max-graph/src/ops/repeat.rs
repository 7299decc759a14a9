//! Ops that repeat tensors as a whole or element by element.

use max_core::{Dim, Error, Shape, bail};

use crate::operand::Operand;
use crate::ops;
use crate::ops::reshape::reshape_value;
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

    /// Repeats each element a given number of times along an axis; without an axis, of the flattened tensor.
    pub fn repeat_interleave(
        x: Operand, repeats: i64, axis: Option<i64> = Arg::None, out_dim: Option<Dim> = Arg::None,
    ) -> TensorValue {
        let x = x.tensor()?;
        if repeats <= 0 {
            bail!(value, "repeat_interleave repeats must be positive; got {repeats}");
        }
        let (x, axis) = match axis {
            Some(axis) => (x, axis),
            None => (ops::flatten(&x, 0, -1)?, 0),
        };
        let axis = max_core::shape::resolve_axis(axis, x.rank()).ok_or_else(|| {
            Error::value(format!("repeat_interleave axis {axis} is out of range for a tensor of rank {}", x.rank()))
        })?;
        let (before, after) = (&x.shape()[..axis], &x.shape()[axis + 1..]);
        let size = &x.shape()[axis];
        let pairs = |count: i64| Shape::from([before, &[size.clone(), Dim::Static(count)], after].concat());
        let spread = ops::broadcast_to(reshape_value(&x, pairs(1))?, pairs(repeats))?;
        let whole = |size: Dim| Shape::from([before, &[size], after].concat());
        let y = reshape_value(&spread, whole(size.mul(&Dim::Static(repeats))?))?;
        match out_dim {
            Some(dim) if y.shape()[axis] != dim => ops::rebind(&y, whole(dim), "repeat_interleave size"),
            _ => Ok(y),
        }
    }
}
