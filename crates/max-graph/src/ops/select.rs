//! Where: picks elements from one of two tensors by a condition.

use max_core::{Bool, DType, Result, TensorType, Type, bail, dispatch};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::{HostTensor, allocate, byte_count};
use crate::op::{Operation, Run};
use crate::operand::{Operand, promote_on, same_device};
use crate::ops::elementwise::{broadcast_shapes, broadcast_sizes};
use crate::ops::{check_alike, tensors};
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::TensorValue;

op_struct! {
    /// `condition ? x : y`, elementwise with broadcasting.
    Where = "where" {}
}

op_fns! {
    /// Elements of `x` where the condition is true, else of `y`.
    pub fn where_(condition: Operand, x: Operand, y: Operand) -> TensorValue as "where" {
        let condition = condition.tensor()?;
        let [x, y] = promote_on([x, y], condition.device())?;
        same_device([&condition, &x, &y])?;
        record_one(Where {}, [&condition, &x, &y])
    }
}

impl Operation for Where {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [condition, x, y] = tensors(operands)?;
        if condition.dtype != DType::Bool {
            bail!(value, "Expected condition to be a boolean tensor; got {}", condition.dtype);
        }
        check_alike(&[x, y])?;
        check_alike(&[&condition.cast(x.dtype), x])?;
        let shape = broadcast_shapes([&condition.shape, &x.shape, &y.shape])?;
        Ok(vec![TensorType::new(x.dtype, shape, x.device).into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: false,
            form: Form::Elementwise,
            folding: Folding::Exactly,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let [condition, x, y] = operands else { return Ok(vec![]) };
        let sizes = broadcast_sizes(&[condition, x, y].map(HostTensor::shape))?;
        byte_count(x.dtype(), &sizes)?;
        let layouts = [condition, x, y].map(|t| t.broadcast_layout(&sizes));
        let [at_condition, at_x, at_y] = layouts.each_ref().map(|l| l.positions());
        dispatch!(x.dtype(), T => {
            let (condition, x, y) = (condition.elements::<Bool>()?, x.elements::<T>()?, y.elements::<T>()?);
            let mut results = allocate(layouts[0].num_elements())?;
            results.extend(at_condition.zip(at_x.zip(at_y)).map(|(c, (i, j))| if condition[c].get() { x[i] } else { y[j] }));
            Ok(vec![HostTensor::from_vec(sizes, results)?])
        })
    }
}
