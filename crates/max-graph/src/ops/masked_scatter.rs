//! Masked scatter: updates written where a mask is true.

use max_core::{DType, DeviceRef, Dim, Result, Shape, bail};

use crate::operand::{Operand, same_device};
use crate::ops;
use crate::ops::broadcast::Target;
use crate::ops::rebind::assert_dim;
use crate::ops::slice::part;
use crate::ops::transfer::transfer_to;
use crate::registry::op_fns;
use crate::value::TensorValue;

op_fns! {
    /// The input with updates, in row-major order, written where the mask is true. `out_dim` is the number of elements for
    /// which it is, which is bound or checked at run time; there must be at least as many updates.
    pub fn masked_scatter(input: Operand, mask: Operand, updates: Operand, out_dim: Dim) -> TensorValue {
        let input = input.tensor()?;
        let mask = mask.weak(DType::Bool, input.device())?;
        let updates = updates.like(&input)?;
        same_device([&input, &mask, &updates])?;
        if mask.dtype() != DType::Bool {
            bail!(value, "Expected mask to be a boolean tensor; got {}", mask.dtype());
        }
        if updates.dtype() != input.dtype() {
            bail!(value, "The input dtype {} and updates dtype {} must match", input.dtype(), updates.dtype());
        }
        let mask = spread(mask, input.shape())?;
        let (flat, updates) = (ops::flatten(&mask, 0, -1)?, ops::flatten(&updates, 0, -1)?);
        let ones = ops::cast(&flat, DType::Int64)?;
        bind(&ops::sum(&ones, 0)?, &out_dim)?;
        let Some(given) = updates.shape().first() else { bail!(internal, "a flat tensor has one axis") };
        if let (Some(given), Some(needed)) = (given.as_static(), out_dim.as_static()) && given < needed {
            bail!(value, "masked_scatter has {given} updates for {needed} elements");
        }
        let taken = part(&updates, 0, None, Some(out_dim))?;
        // One more, for elements after the last that is written.
        let spare = Operand::from(0i64).weak(input.dtype(), input.device())?;
        let table = ops::concat([&taken, &ops::reshape(&spare, [1])?], 0)?;
        let picked = ops::gather(&table, ops::cumsum(&ones, 0, true, false)?, 0)?;
        ops::where_(&mask, ops::reshape(&picked, input.shape())?, &input)
    }
}

/// A mask repeated to a shape. Where that needs sizes to be equal that are not known to be, this is asserted at run time.
fn spread(mut mask: TensorValue, shape: &Shape) -> Result<TensorValue> {
    let Some(missing) = shape.rank().checked_sub(mask.rank()) else {
        bail!(value, "a mask of shape {} does not fit the input {shape}", mask.shape());
    };
    for axis in 0..mask.rank() {
        if mask.shape()[axis] != Dim::Static(1) {
            mask = assert_dim(mask, axis, shape[missing + axis].clone(), "masked_scatter mask")?;
        }
    }
    ops::broadcast_to(&mask, shape)
}

/// Binds a dim to a number that is known at run time, or checks that it is this number. A negative one is an error.
pub(crate) fn bind(count: &TensorValue, dim: &Dim) -> Result<()> {
    let sizes = ops::reshape(transfer_to(count, DeviceRef::CPU)?, [1])?;
    let nothing = Operand::from(false).tensor()?;
    ops::broadcast_to(&nothing, Target::Sizes((&sizes).into(), [dim].into()))?;
    Ok(())
}
