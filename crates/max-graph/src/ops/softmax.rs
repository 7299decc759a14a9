//! Softmax and its logarithm along an axis.

use max_core::scalar::FloatLane;
use max_core::{Element, Result, Type, dispatch};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::{HostTensor, allocate};
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::{axis_dim, tensors};
use crate::properties::{Effects, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::TensorValue;

op_struct! {
    /// Exponentials along an axis divided by their sum, or the logarithm of that.
    Softmax = "softmax" { axis: usize, log: bool }
}

op_fns! {
    /// `exp(x) / sum(exp(x))` along an axis.
    pub fn softmax(x: Operand, axis: i64 = -1) -> TensorValue {
        along(x, axis, false)
    }

    /// The logarithm of the softmax along an axis.
    pub fn logsoftmax(x: Operand, axis: i64 = -1) -> TensorValue {
        along(x, axis, true)
    }
}

fn along(x: Operand, axis: i64, log: bool) -> Result<TensorValue> {
    let x = x.tensor()?;
    record_one(Softmax { axis: x.shape().axis(axis)?, log }, [&x])
}

impl Operation for Softmax {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [x] = tensors(operands)?;
        axis_dim(x, self.axis)?;
        Ok(vec![x.with_shape(&x.shape).into()])
    }

    fn properties(&self, signature: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: false,
            form: Form::Kernel,
            folding: signature.rounded(),
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let x = &operands[0];
        let len = x.shape()[self.axis];
        let inner: usize = x.shape()[self.axis + 1..].iter().product();
        dispatch!(x.dtype(), T => {
            let elements = x.elements::<T>()?;
            let mut results = allocate::<T>(elements.len())?;
            results.extend_from_slice(&elements);
            for row in 0..elements.len().checked_div(len).unwrap_or(0) {
                let start = row / inner * len * inner + row % inner;
                let at = |i: usize| start + i * inner;
                let max = (0..len).map(|i| elements[at(i)].to_f64()).fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = (0..len).map(|i| FloatLane::exp(elements[at(i)].to_f64() - max)).sum();
                for i in 0..len {
                    let shifted = elements[at(i)].to_f64() - max;
                    results[at(i)] = T::from_double(if self.log { shifted - FloatLane::log(sum) } else { FloatLane::exp(shifted) / sum });
                }
            }
            Ok(vec![HostTensor::from_vec(x.shape(), results)?])
        })
    }
}
