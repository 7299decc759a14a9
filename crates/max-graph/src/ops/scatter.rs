//! Scatters: updates combined into the elements of a tensor that indices select.

use max_core::kernel::Combine;
use max_core::scalar::Lane;
use max_core::{Element, Result, TensorType, Type, bail, dispatch};

use crate::attr::{Attr, AttrType, op_struct};
use crate::graph::record_one;
use crate::host::{HostTensor, allocate};
use crate::op::{Operation, Run};
use crate::operand::{Operand, same_device};
use crate::ops;
use crate::ops::gather::{IndexSize, position, product};
use crate::ops::rebind::{advice, assert_dim};
use crate::ops::slice::part;
use crate::ops::{axis_dim, check_alike, tensors};
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::TensorValue;

op_struct! {
    /// The first operand with each element of the second combined into it: the third says where along an axis.
    Scatter = "scatter" { axis: usize, combine: Combine }
}

op_struct! {
    /// The first operand with slices of the second combined into it: the vectors in the last axis of the third say where.
    ScatterNd = "scatter_nd" { combine: Combine }
}

impl AttrType for Combine {
    fn to_attr(&self) -> Attr {
        Attr::Str(self.name().into())
    }

    fn from_attr(attr: Attr) -> Option<Self> {
        let name = String::from_attr(attr)?;
        Combine::ALL.into_iter().find(|combine| combine.name() == name)
    }
}

op_fns! {
    /// The input with elements replaced along an axis: `updates[i, j, ..]` goes to the position `indices[i, j, ..]` of the
    /// axis, and to `i, j, ..` along the others. Updates of one element are applied in order, so the last one stays.
    pub fn scatter(input: Operand, updates: Operand, indices: Operand, axis: i64 = -1) -> TensorValue {
        scatter_by(Combine::Assign, input, updates, indices, axis)
    }

    /// As [`scatter()`], but updates are added to the elements.
    pub fn scatter_add(input: Operand, updates: Operand, indices: Operand, axis: i64 = -1) -> TensorValue {
        scatter_by(Combine::Add, input, updates, indices, axis)
    }

    /// As [`scatter()`], but elements are multiplied by updates.
    pub fn scatter_mul(input: Operand, updates: Operand, indices: Operand, axis: i64 = -1) -> TensorValue {
        scatter_by(Combine::Mul, input, updates, indices, axis)
    }

    /// As [`scatter()`], but the lesser of element and update stays; NaN wins.
    pub fn scatter_min(input: Operand, updates: Operand, indices: Operand, axis: i64 = -1) -> TensorValue {
        scatter_by(Combine::Min, input, updates, indices, axis)
    }

    /// As [`scatter()`], but the greater of element and update stays; NaN wins.
    pub fn scatter_max(input: Operand, updates: Operand, indices: Operand, axis: i64 = -1) -> TensorValue {
        scatter_by(Combine::Max, input, updates, indices, axis)
    }

    /// The input with slices replaced: each vector in the last axis of the indices is a position along the first axes of
    /// the input, and the slice there is replaced by that of the updates. Updates of one element are applied in order.
    pub fn scatter_nd(input: Operand, updates: Operand, indices: Operand) -> TensorValue {
        scatter_nd_by(Combine::Assign, input, updates, indices)
    }

    /// As [`scatter_nd()`], but updates are added to the elements.
    pub fn scatter_nd_add(input: Operand, updates: Operand, indices: Operand) -> TensorValue {
        scatter_nd_by(Combine::Add, input, updates, indices)
    }

    /// As [`scatter_nd()`], but elements are multiplied by updates.
    pub fn scatter_nd_mul(input: Operand, updates: Operand, indices: Operand) -> TensorValue {
        scatter_nd_by(Combine::Mul, input, updates, indices)
    }

    /// As [`scatter_nd()`], but the lesser of element and update stays; NaN wins.
    pub fn scatter_nd_min(input: Operand, updates: Operand, indices: Operand) -> TensorValue {
        scatter_nd_by(Combine::Min, input, updates, indices)
    }

    /// As [`scatter_nd()`], but the greater of element and update stays; NaN wins.
    pub fn scatter_nd_max(input: Operand, updates: Operand, indices: Operand) -> TensorValue {
        scatter_nd_by(Combine::Max, input, updates, indices)
    }
}

/// The operands as tensors on one device. Updates that are numbers or arrays take the dtype of the input.
fn operands(input: Operand, updates: Operand, indices: Operand) -> Result<[TensorValue; 3]> {
    let input = input.tensor()?;
    let updates = updates.like(&input)?;
    let indices = indices.on(input.device())?;
    same_device([&input, &updates, &indices])?;
    Ok([input, updates, indices])
}

fn scatter_by(
    combine: Combine,
    input: Operand,
    updates: Operand,
    indices: Operand,
    axis: i64,
) -> Result<TensorValue> {
    let [input, updates, mut indices] = operands(input, updates, indices)?;
    let axis = input.shape().axis(axis)?;
    if indices.rank() == updates.rank() {
        for (at, dim) in updates.shape().iter().enumerate() {
            indices = assert_dim(indices, at, dim.clone(), "scatter indices and updates")?;
        }
    }
    scatter_into(Scatter { axis, combine }, &input, &updates, &indices)
}

/// Where updates do not cover the whole of an axis, its beginning is updated, and the rest follows as it is.
fn scatter_into(
    op: Scatter,
    input: &TensorValue,
    updates: &TensorValue,
    indices: &TensorValue,
) -> Result<TensorValue> {
    let dims = input.shape().iter().zip(updates.shape().iter());
    let partial = dims.enumerate().find(|(at, (own, given))| *at != op.axis && own != given);
    let (at, covered) = match partial {
        Some((at, (_, given))) if input.rank() == updates.rank() && updates.shape() == indices.shape() => {
            (at, given.clone())
        }
        _ => return record_one(op, [input, updates, indices]),
    };
    let size = &input.shape()[at];
    if let (Some(own), Some(given)) = (size.as_static(), covered.as_static())
        && given > own
    {
        bail!(
            value,
            "scatter updates have the shape {}, which is larger than the input {} along axis {at}",
            updates.shape(),
            input.shape()
        );
    }
    let first = part(input, at, None, Some(covered.clone()))?;
    let rest = part(input, at, Some(covered), None)?;
    ops::concat([&scatter_into(op, &first, updates, indices)?, &rest], at as i64)
}

fn scatter_nd_by(
    combine: Combine,
    input: Operand,
    updates: Operand,
    indices: Operand,
) -> Result<TensorValue> {
    let [input, mut updates, indices] = operands(input, updates, indices)?;
    let IndexSize { before, axes } = IndexSize::of("scatter_nd", indices.tensor_type(), input.rank())?;
    let wanted = [before, &input.shape()[axes..]].concat();
    if wanted.len() == updates.rank() {
        for (at, dim) in wanted.into_iter().enumerate() {
            updates = assert_dim(updates, at, dim, "scatter_nd updates")?;
        }
    }
    record_one(ScatterNd { combine }, [&input, &updates, &indices])
}

/// Checks the dtypes and devices of input, updates and indices.
fn check(op: &str, [input, updates, indices]: [&TensorType; 3]) -> Result<()> {
    if updates.dtype != input.dtype {
        bail!(value, "The input dtype {} and updates dtype {} must match", input.dtype, updates.dtype);
    }
    if !indices.dtype.is_integral() {
        bail!(value, "{op} indices must be integral; got {}", indices.dtype);
    }
    check_alike(&[input, updates, &indices.cast(input.dtype)])
}

fn properties() -> Properties {
    Properties {
        effects: Effects::NONE,
        checks: true,
        form: Form::Whole,
        folding: Folding::Exactly,
        heavy: false,
        rounds_operands: false,
    }
}

impl Operation for Scatter {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [input, updates, indices] = tensors(operands)?;
        check("scatter", [input, updates, indices])?;
        axis_dim(input, self.axis)?;
        if updates.shape != indices.shape || updates.shape.rank() != input.shape.rank() {
            bail!(
                value,
                "scatter updates and indices must have the same shape, with the rank of the input; got updates {}, indices {} \
                 and input {}{}",
                updates.shape,
                indices.shape,
                input.shape,
                advice(updates.shape.iter().chain(indices.shape.iter()))
            );
        }
        for (axis, (own, given)) in input.shape.iter().zip(updates.shape.iter()).enumerate() {
            if axis != self.axis && own != given {
                bail!(
                    value,
                    "scatter updates {} do not fit input {} along axis {axis}",
                    updates.shape,
                    input.shape
                );
            }
        }
        Ok(vec![input.with_shape(&input.shape).into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        properties()
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let [input, updates, indices] = operands else { return Ok(vec![]) };
        let (size, picks) = (input.shape()[self.axis], updates.shape()[self.axis]);
        let inner = product(&input.shape()[self.axis + 1..]);
        let targets = indices.to_integers()?.into_iter().enumerate().map(|(at, index)| {
            let place = position(&[index], &[size], self.axis)?;
            Ok((at / inner / picks * size + place) * inner + at % inner)
        });
        combined(self.combine, input, updates, targets.collect::<Result<Vec<_>>>()?)
    }
}

impl Operation for ScatterNd {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [input, updates, indices] = tensors(operands)?;
        check("scatter_nd", [input, updates, indices])?;
        let IndexSize { before, axes } = IndexSize::of("scatter_nd", indices, input.shape.rank())?;
        let wanted = [before, &input.shape[axes..]].concat();
        if updates.shape[..] != wanted {
            bail!(
                value,
                "scatter_nd updates must have the shape {}, for input {} and indices {}; got {}{}",
                max_core::Shape::from(wanted.as_slice()),
                input.shape,
                indices.shape,
                updates.shape,
                advice(updates.shape.iter().chain(&wanted))
            );
        }
        Ok(vec![input.with_shape(&input.shape).into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        properties()
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let [input, updates, indices] = operands else { return Ok(vec![]) };
        let axes = indices.shape().last().copied().unwrap_or(0);
        let picks = product(&indices.shape()[..indices.shape().len() - 1]);
        let (sizes, inner) = (&input.shape()[..axes], product(&input.shape()[axes..]));
        let indices = indices.to_integers()?;
        // Without axes every pick is the whole input; there may be any number of them if it is empty.
        let picks = if axes == 0 && inner == 0 { 0 } else { picks };
        let places = (0..picks).map(|pick| position(&indices[pick * axes..][..axes], sizes, 0));
        let places = places.collect::<Result<Vec<_>>>()?;
        let targets = places.into_iter().flat_map(|place| place * inner..(place + 1) * inner);
        combined(self.combine, input, updates, targets)
    }
}

/// The input with each update combined into its target, in order. Every result is rounded to the dtype.
fn combined(
    combine: Combine,
    input: &HostTensor,
    updates: &HostTensor,
    targets: impl IntoIterator<Item = usize>,
) -> Result<Vec<HostTensor>> {
    dispatch!(input.dtype(), T => {
        let (elements, updates) = (input.elements::<T>()?, updates.elements::<T>()?);
        let mut results = allocate::<T>(elements.len())?;
        results.extend_from_slice(&elements);
        for (target, &update) in targets.into_iter().zip(updates.iter()) {
            results[target] = combine_two(combine, results[target], update);
        }
        Ok(vec![HostTensor::from_vec(input.shape(), results)?])
    })
}

fn combine_two<T: Element>(combine: Combine, element: T, update: T) -> T {
    let (a, b) = (element.to_lane(), update.to_lane());
    T::from_lane(match combine {
        Combine::Assign => return update,
        Combine::Add => a.add(b),
        Combine::Mul => a.mul(b),
        Combine::Min => a.min(b),
        Combine::Max => a.max(b),
    })
}
