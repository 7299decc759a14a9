//! Sorting along an axis, and what follows from it: the largest and the smallest elements, and where a tensor is not zero.

use std::cmp::Ordering;

use max_core::{DType, DeviceRef, Dim, Element, Result, Shape, TensorType, Type, bail, dispatch};

use crate::attr::op_struct;
use crate::graph::record;
use crate::host::{HostTensor, allocate, byte_count};
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::cast::cast_value;
use crate::ops::reshape::reshape_value;
use crate::ops::slice::{Bound, Index};
use crate::ops::{self, axis_dim, tensors};
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::{TensorValue, Value};

op_struct! {
    /// The first elements of each line along an axis in sorted order, and their positions as int64. Equal elements keep
    /// their order. NaN is the largest number, all NaNs are equal, and so are both zeros.
    Sort = "sort" { axis: usize, count: Dim, descending: bool }
}

op_fns! {
    /// The `k` largest elements along an axis, the largest first, and their positions as int64.
    ///
    /// Of equal elements the first one comes first, and NaN is the largest number.
    pub fn top_k(input: Operand, k: i64, axis: i64 = -1) -> Vec<TensorValue> {
        first(&input.tensor()?, k, axis, true)
    }

    /// The `k` smallest elements along an axis, the smallest first, and their positions as int64.
    ///
    /// Of equal elements the first one comes first, and NaN is the largest number.
    pub fn bottom_k(input: Operand, k: i64, axis: i64 = -1) -> Vec<TensorValue> {
        first(&input.tensor()?, k, axis, false)
    }

    /// The positions of the elements of a vector in sorted order, as int64.
    ///
    /// Equal elements keep their order in both directions, and NaN is the largest number.
    pub fn argsort(x: Operand, ascending: bool = true) -> TensorValue {
        let x = x.tensor()?;
        if x.rank() != 1 {
            bail!(value, "argsort only implemented for input tensors of rank 1; got shape {}", x.shape());
        }
        positions(&x, !ascending)
    }

    /// The positions of the elements that are not zero, as int64 `[out_dim, rank]` in row-major order.
    ///
    /// `out_dim` is the dim for their number, which is known only at run time. NaN is not zero.
    pub fn nonzero(x: Operand, out_dim: Dim) -> TensorValue {
        let x = x.tensor()?;
        if x.rank() == 0 {
            bail!(value, "nonzero: Scalar inputs not supported; reshape the tensor to [1] first");
        }
        where_nonzero(&x, out_dim)
    }
}

/// Checks that a line has as many elements as are taken of it.
pub fn check_count(axis: usize, size: i64, count: i64) -> Result<()> {
    if count > size {
        bail!(value, "k ({count}) cannot be larger than dimension size along axis {axis}, which is {size}");
    }
    if count < 0 {
        bail!(value, "k ({count}) must not be negative");
    }
    Ok(())
}

fn first(x: &TensorValue, k: i64, axis: i64, descending: bool) -> Result<Vec<TensorValue>> {
    let axis = x.shape().axis(axis)?;
    sort(x, Sort { axis, count: Dim::Static(k), descending })
}

fn sort(x: &TensorValue, op: Sort) -> Result<Vec<TensorValue>> {
    record(op, &[x.into()])?.iter().map(Value::tensor).collect()
}

/// The positions of the elements of a vector in sorted order.
fn positions(x: &TensorValue, descending: bool) -> Result<TensorValue> {
    match sort(x, Sort { axis: 0, count: x.shape()[0].clone(), descending })?.pop() {
        Some(indices) => Ok(indices),
        None => bail!(internal, "a sort without results"),
    }
}

/// A stable sort by whether an element is zero puts the positions of the others first, in order.
fn where_nonzero(x: &TensorValue, out_dim: Dim) -> Result<TensorValue> {
    let flat = reshape_value(x, [x.shape().num_elements()?].into())?;
    let zero = match x.dtype() {
        DType::Bool => ops::logical_not(&flat)?,
        _ => ops::equal(&flat, 0)?,
    };
    let count = ops::sum(cast_value(&ops::logical_not(&zero)?, DType::Int64)?, 0)?;
    let count = ops::transfer_to(reshape_value(&count, Shape::default())?, DeviceRef::CPU)?;
    let (start, stop) = (Bound::Natural, Bound::Tensor(count));
    let index = Index::Slice { start, stop, step: 1, out_dim: Some(out_dim) };
    let mut rest = ops::slice_tensor(&positions(&zero, false)?, vec![index])?;
    // The coordinates of a position, the last one first.
    let mut coordinates = Vec::with_capacity(x.rank());
    for dim in x.shape()[1..].iter().rev() {
        let size = ops::transfer_to(Operand::from(dim.clone()), x.device())?;
        let before = ops::floor_div(&rest, &size)?;
        coordinates.push(ops::sub(&rest, ops::mul(&before, &size)?)?);
        rest = before;
    }
    coordinates.push(rest);
    coordinates.reverse();
    ops::stack(coordinates, 1)
}

impl Operation for Sort {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [x] = tensors(operands)?;
        let size = axis_dim(x, self.axis)?;
        match (size.as_static(), self.count.as_static()) {
            (Some(size), Some(count)) => check_count(self.axis, size, count)?,
            (None, Some(count)) if count < 0 => bail!(value, "k ({count}) must not be negative"),
            _ => {}
        }
        let mut dims = x.shape.to_vec();
        dims[self.axis] = self.count.clone();
        let values = x.with_shape(dims);
        let indices = TensorType { dtype: DType::Int64, ..values.clone() };
        Ok(vec![values.into(), indices.into()])
    }

    fn properties(&self, signature: Signature) -> Properties {
        let size = signature.shape(0).and_then(|shape| shape.get(self.axis));
        let known = size.is_some_and(|size| {
            *size == self.count || size.as_static().and(self.count.as_static()).is_some()
        });
        Properties {
            effects: Effects::NONE,
            checks: !known,
            form: Form::Kernel,
            folding: Folding::Exactly,
            heavy: true,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        let (x, count) = (&operands[0], self.count.evaluate(run.bindings)?);
        check_count(self.axis, x.shape()[self.axis] as i64, count)?;
        dispatch!(x.dtype(), T => self.eval_as::<T>(x, count as usize))
    }
}

impl Sort {
    fn eval_as<T: Element>(&self, x: &HostTensor, count: usize) -> Result<Vec<HostTensor>> {
        let elements = x.elements::<T>()?;
        let len = x.shape()[self.axis];
        let inner: usize = x.shape()[self.axis + 1..].iter().product();
        let mut shape = x.shape().to_vec();
        shape[self.axis] = count;
        byte_count(DType::Int64, &shape)?;
        let total: usize = shape.iter().product();
        let (mut values, mut indices) = (allocate::<T>(total)?, allocate::<i64>(total)?);
        values.resize(total, T::from_i128(0));
        indices.resize(total, 0);
        let mut line = allocate::<u64>(len)?;
        for row in 0..elements.len().checked_div(len).unwrap_or(0) {
            let (outer, column) = (row / inner, row % inner);
            let element = |at: u64| elements[(outer * len + at as usize) * inner + column];
            line.clear();
            line.extend(0..len as u64);
            line.sort_by(|&a, &b| {
                let order = compare(element(a), element(b));
                if self.descending { order.reverse() } else { order }
            });
            for (at, &index) in line[..count].iter().enumerate() {
                let place = (outer * count + at) * inner + column;
                (values[place], indices[place]) = (element(index), index as i64);
            }
        }
        Ok(vec![HostTensor::from_vec(shape.clone(), values)?, HostTensor::from_vec(shape, indices)?])
    }
}

fn compare<T: Element>(a: T, b: T) -> Ordering {
    if !T::DTYPE.is_float() {
        return a.to_i128().cmp(&b.to_i128());
    }
    let (a, b) = (a.to_f64(), b.to_f64());
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Graph;

    fn sorted<T: Element>(elements: Vec<T>, count: i64, descending: bool) -> (Vec<T>, Vec<i64>) {
        let op = Sort { axis: 0, count: Dim::Static(count), descending };
        let x = HostTensor::from_vec([elements.len()], elements).unwrap();
        let results = op.eval_as::<T>(&x, count as usize).unwrap();
        (results[0].elements().unwrap().to_vec(), results[1].elements().unwrap().to_vec())
    }

    #[test]
    fn nan_is_the_largest_and_equal_elements_keep_their_order() {
        let x = vec![0.0, f32::NAN, -1.0, f32::INFINITY, -0.0, f32::NAN, f32::NEG_INFINITY, -1.0];
        assert_eq!(sorted(x.clone(), 8, false).1, [6, 2, 7, 0, 4, 3, 1, 5]);
        assert_eq!(sorted(x.clone(), 8, true).1, [1, 5, 3, 0, 4, 2, 7, 6]);
        assert!(sorted(x, 1, true).0[0].is_nan());
        assert_eq!(
            sorted(vec![u64::MAX, 0, u64::MAX - 1], 2, true),
            (vec![u64::MAX, u64::MAX - 1], vec![0, 2])
        );
        assert_eq!(sorted(vec![i64::MIN, 5, -1], 0, true), (vec![], vec![]));
    }

    #[test]
    fn counts_are_checked_where_sizes_are_known() {
        let ty = |dims: &[Dim]| TensorType::new(DType::Float32, Shape::from(dims), DeviceRef::CPU);
        let types = [ty(&["n".into(), 4.into()]), ty(&[])];
        let graph = Graph::new("g", types).unwrap();
        let _entered = graph.enter();
        let (x, scalar) = (graph.inputs()[0].tensor().unwrap(), graph.inputs()[1].tensor().unwrap());
        let error = |result: Result<Vec<TensorValue>>| result.err().unwrap().to_string();
        assert!(error(top_k(&x, 5, -1)).contains("k (5) cannot be larger than dimension size along axis 1"));
        assert!(error(bottom_k(&x, -1, 0)).contains("k (-1) must not be negative"));
        assert!(error(top_k(&scalar, 1, -1)).contains("Invalid axis"));
        assert!(argsort(&x, true).is_err() && nonzero(&scalar, "m").is_err());
        let results = top_k(&x, 5, 0).unwrap();
        assert_eq!((results[0].dtype(), results[1].dtype()), (DType::Float32, DType::Int64));
        assert_eq!((results[0].shape(), results[1].shape()), (&Shape::from([5, 4]), &Shape::from([5, 4])));
        assert_eq!(nonzero(&x, "m").unwrap().shape(), &Shape::from([Dim::from("m"), 2.into()]));
    }
}
