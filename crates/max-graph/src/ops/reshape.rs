//! Reshape and the ops that are special cases of it: flatten, squeeze, unsqueeze.

use max_core::shape::resolve_axis;
use max_core::{Dim, Error, Result, Shape, Type, bail};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::HostTensor;
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::rebind::advice;
use crate::ops::tensors;
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::TensorValue;

op_struct! {
    /// The same elements in the same order with another shape.
    Reshape = "reshape" { shape: Shape }
}

op_fns! {
    /// Changes the shape; one dim may be -1 and is then inferred.
    pub fn reshape(x: Operand, shape: Shape) -> TensorValue {
        let x = x.tensor()?;
        let shape = solve(x.shape(), &shape)?;
        reshape_value(&x, shape)
    }

    /// Merges the dims from `start_dim` to `end_dim`, both included.
    pub fn flatten(x: Operand, start_dim: i64 = 0, end_dim: i64 = -1) -> TensorValue {
        let x = x.tensor()?;
        if x.rank() == 0 && [start_dim, end_dim].iter().all(|dim| (-1..=0).contains(dim)) {
            return reshape_value(&x, [1].into());
        }
        let (start, end) = (x.shape().axis(start_dim)?, x.shape().axis(end_dim)?);
        if start > end {
            bail!(value, "start_dim {start_dim} cannot come after end_dim {end_dim}");
        }
        let merged = Shape::from(&x.shape()[start..=end]).num_elements()?;
        let dims = [&x.shape()[..start], &[merged], &x.shape()[end + 1..]].concat();
        reshape_value(&x, dims.into())
    }

    /// Removes a dim of size one.
    pub fn squeeze(x: Operand, axis: i64) -> TensorValue {
        let x = x.tensor()?;
        let axis = x.shape().axis(axis)?;
        let mut dims = x.shape().to_vec();
        match dims.remove(axis) {
            Dim::Static(1) => reshape_value(&x, dims.into()),
            other => bail!(value, "Squeeze dim must be 1; axis {axis} of {} is {other}", x.shape()),
        }
    }

    /// Inserts a dim of size one.
    pub fn unsqueeze(x: Operand, axis: i64) -> TensorValue {
        let x = x.tensor()?;
        let axis = resolve_axis(axis, x.rank() + 1).ok_or_else(|| {
            Error::value(format!("unsqueeze axis out of bounds: {axis} for a tensor of rank {}", x.rank()))
        })?;
        let mut dims = x.shape().to_vec();
        dims.insert(axis, Dim::Static(1));
        reshape_value(&x, dims.into())
    }
}

/// Records a reshape, or nothing if the shape is the same.
pub(crate) fn reshape_value(x: &TensorValue, shape: Shape) -> Result<TensorValue> {
    if *x.shape() == shape { Ok(x.clone()) } else { record_one(Reshape { shape }, [x]) }
}

/// The target shape with its -1 replaced by the dim that makes the numbers of elements equal.
fn solve(from: &Shape, to: &Shape) -> Result<Shape> {
    let unknown = Dim::Static(-1);
    match to.iter().filter(|d| **d == unknown).count() {
        0 => return Ok(to.clone()),
        1 => {}
        _ => bail!(value, "at most one -1 dimension is allowed; got {to}"),
    }
    let known: Shape = to.iter().filter(|d| **d != unknown).collect();
    if known.contains(&Dim::Static(0)) {
        bail!(value, "cannot infer -1 dimension when another dimension is 0: {to}");
    }
    let (rest, known) = from.without_common(&known);
    let solved = rest.num_elements()?.floor_div(&known.num_elements()?)?;
    Ok(to.iter().map(|d| if *d == unknown { &solved } else { d }).collect())
}

impl Operation for Reshape {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [x] = tensors(operands)?;
        let (from, to) = x.shape.without_common(&self.shape);
        if from.num_elements()? != to.num_elements()? {
            bail!(
                value,
                "cannot reshape {} to {}: input and output number of elements must match{}",
                x.shape,
                self.shape,
                advice(from.iter().chain(to.iter()))
            );
        }
        Ok(vec![x.with_shape(&self.shape).into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: false,
            form: Form::View,
            folding: Folding::Exactly,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        Ok(vec![operands[0].reshaped(run.sizes(&self.shape)?)?])
    }
}
