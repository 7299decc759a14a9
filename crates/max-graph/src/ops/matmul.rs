//! Matrix multiplication over the last two axes, with broadcasting of the others.

use max_core::{Element, Result, Shape, Type, bail, dispatch};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::{HostTensor, allocate, broadcast_layout, byte_count, dot};
use crate::op::{Operation, Run};
use crate::operand::{Operand, promote};
use crate::ops::elementwise::{broadcast_shapes, broadcast_sizes, mul};
use crate::ops::rebind::advice;
use crate::ops::reshape::{squeeze, unsqueeze};
use crate::ops::{check_alike, tensors};
use crate::properties::{Effects, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::TensorValue;

op_struct! {
    /// `[.., m, k] x [.., k, n] -> [.., m, n]`.
    Matmul = "matmul" {}
}

op_fns! {
    /// The matmul of two tensors; a vector on the left is a row, on the right a column, and its axis is dropped again.
    pub fn matmul(lhs: Operand, rhs: Operand) -> TensorValue {
        let (lhs, rhs) = (lhs.strong("lhs")?, rhs.strong("rhs")?);
        let [lhs, rhs] = promote([lhs.into(), rhs.into()])?;
        if lhs.rank() == 0 || rhs.rank() == 0 {
            bail!(value, "matmul needs tensors of rank 1 or more; got {} and {}", lhs.shape(), rhs.shape());
        }
        let (row, column) = (lhs.rank() == 1, rhs.rank() == 1);
        check_inner(lhs.shape(), rhs.shape())?;
        let left = if row { unsqueeze(&lhs, 0)? } else { lhs };
        let right = if column { unsqueeze(&rhs, 1)? } else { rhs };
        let mut product = record_one(Matmul {}, [&left, &right])?;
        if column {
            product = squeeze(&product, -1)?;
        }
        if row {
            product = squeeze(&product, if column { -1 } else { -2 })?;
        }
        Ok(product)
    }

    /// The outer product of two vectors.
    pub fn outer(lhs: Operand, rhs: Operand) -> TensorValue {
        let [lhs, rhs] = promote([lhs, rhs])?;
        if lhs.rank() != 1 || rhs.rank() != 1 {
            bail!(value, "outer expected 1d-tensors as inputs; got shapes {} and {}", lhs.shape(), rhs.shape());
        }
        mul(unsqueeze(&lhs, 1)?, &rhs)
    }
}

/// Checks that the inner dims match: the last on the left, and the second to last, or a vector's only one, on the
/// right.
fn check_inner(lhs: &Shape, rhs: &Shape) -> Result<()> {
    let (left, right) = (lhs.last(), rhs.get(rhs.rank().saturating_sub(2)));
    if left == right {
        return Ok(());
    }
    bail!(
        value,
        "matmul inner dims must match: the last of {lhs}, the second to last of {rhs}{}",
        advice(left.into_iter().chain(right))
    )
}

impl Operation for Matmul {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [lhs, rhs] = tensors(operands)?;
        check_alike(&[lhs, rhs])?;
        let ([left @ .., m, _], [right @ .., _, n]) = (&lhs.shape[..], &rhs.shape[..]) else {
            bail!(value, "matmul operands must have rank 2 or more; got {} and {}", lhs.shape, rhs.shape);
        };
        check_inner(&lhs.shape, &rhs.shape)?;
        let batch = broadcast_shapes([&Shape::from(left), &Shape::from(right)])?;
        Ok(vec![lhs.with_shape([&batch, [m.clone(), n.clone()].as_slice()].concat()).into()])
    }

    fn properties(&self, signature: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: false,
            form: Form::Kernel,
            folding: signature.rounded(),
            heavy: true,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let ([lhs_batch @ .., m, k], [rhs_batch @ .., _, n]) = (operands[0].shape(), operands[1].shape())
        else {
            return Ok(vec![]);
        };
        let (m, k, n) = (*m, *k, *n);
        dispatch!(operands[0].dtype(), T => {
            let (lhs, rhs) = (operands[0].elements::<T>()?, operands[1].elements::<T>()?);
            let batch = broadcast_sizes(&[lhs_batch, rhs_batch])?;
            let sizes = [batch.as_slice(), &[m, n]].concat();
            let count = byte_count(T::DTYPE, &sizes)? / size_of::<T>();
            let mut results = allocate::<T>(count)?;
            // Broadcasting the batch indices gives the pairs of matrices to multiply; an empty result has none.
            let matrices = (broadcast_layout(lhs_batch, &batch), broadcast_layout(rhs_batch, &batch));
            for (i, j) in matrices.0.positions().zip(matrices.1.positions()).take(count) {
                multiply(&lhs[i * m * k..][..m * k], &rhs[j * k * n..][..k * n], [m, k, n], &mut results)?;
            }
            Ok(vec![HostTensor::from_vec(sizes, results)?])
        })
    }
}

/// Appends the matmul of two matrices. Floats are summed in f64, a row at a time and in the same order as in [`dot`].
fn multiply<T: Element>(lhs: &[T], rhs: &[T], [m, k, n]: [usize; 3], results: &mut Vec<T>) -> Result<()> {
    if !T::DTYPE.is_float() {
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            results.push(dot((0..k).map(|l| (lhs[i * k + l], rhs[l * n + j]))));
        }
        return Ok(());
    }
    let mut wide = allocate::<f64>(rhs.len())?;
    wide.extend(rhs.iter().map(|e| e.to_f64()));
    let mut row = allocate::<f64>(n)?;
    row.resize(n, 0.0);
    for i in 0..m {
        row.fill(0.0);
        for (l, a) in lhs[i * k..][..k].iter().enumerate() {
            let a = a.to_f64();
            row.iter_mut().zip(&wide[l * n..][..n]).for_each(|(sum, b)| *sum += a * b);
        }
        results.extend(row.iter().map(|&sum| T::from_double(sum)));
    }
    Ok(())
}
