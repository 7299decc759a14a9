//! Running sums along an axis.

use max_core::scalar::Lane;
use max_core::{DType, Element, Result, Type, bail, dispatch};

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
    /// The sums of the elements up to each position, with or without its own, from the start of the axis or from its end.
    Cumsum = "cumsum" { axis: usize, exclusive: bool, reverse: bool }
}

op_fns! {
    /// The running sum along an axis: each result is the sum of the elements up to its position.
    ///
    /// With `exclusive` a result does not include its own element, so the first one is zero. With `reverse` sums run from
    /// the end of the axis to its start.
    pub fn cumsum(x: Operand, axis: i64 = -1, exclusive: bool = false, reverse: bool = false) -> TensorValue {
        let x = x.tensor()?;
        record_one(Cumsum { axis: x.shape().axis(axis)?, exclusive, reverse }, [&x])
    }
}

impl Operation for Cumsum {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [x] = tensors(operands)?;
        axis_dim(x, self.axis)?;
        if x.dtype == DType::Bool {
            bail!(type_, "the running sum of a bool tensor is not defined; cast it first");
        }
        Ok(vec![x.with_shape(&x.shape).into()])
    }

    fn properties(&self, signature: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: false,
            form: Form::Whole,
            folding: signature.rounded(),
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        dispatch!(operands[0].dtype(), T => self.eval_as::<T>(&operands[0]))
    }
}

impl Cumsum {
    /// Floats are summed in f64 and rounded once, others use their own arithmetic.
    fn eval_as<T: Element>(&self, x: &HostTensor) -> Result<Vec<HostTensor>> {
        match T::DTYPE.is_float() {
            true => self.sums(x, 0.0, |sum, x: T| sum + x.to_f64(), T::from_double),
            false => {
                let zero = T::from_i128(0).to_lane();
                self.sums(x, zero, |sum: T::Lane, x: T| sum.add(x.to_lane()), T::from_lane)
            }
        }
    }

    fn sums<T: Element, S: Copy>(
        &self,
        x: &HostTensor,
        zero: S,
        add: impl Fn(S, T) -> S,
        round: impl Fn(S) -> T,
    ) -> Result<Vec<HostTensor>> {
        let elements = x.elements::<T>()?;
        let mut results = allocate::<T>(elements.len())?;
        results.extend_from_slice(&elements);
        let len = x.shape()[self.axis];
        let inner: usize = x.shape()[self.axis + 1..].iter().product();
        for row in 0..elements.len().checked_div(len).unwrap_or(0) {
            let start = row / inner * len * inner + row % inner;
            let mut sum = zero;
            for i in 0..len {
                let at = start + inner * if self.reverse { len - 1 - i } else { i };
                let next = add(sum, elements[at]);
                results[at] = round(if self.exclusive { sum } else { next });
                sum = next;
            }
        }
        Ok(vec![HostTensor::from_vec(x.shape(), results)?])
    }
}
