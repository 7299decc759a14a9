//! Concat joins tensors along an axis, stack along a new one.

use max_core::shape::resolve_axis;
use max_core::{Error, HostBytes, Result, Type, bail};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::{HostTensor, allocate, byte_count};
use crate::op::{Operation, Run};
use crate::operand::{Operands, together};
use crate::ops::reshape::unsqueeze;
use crate::ops::{all_tensors, axis_dim, check_alike};
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::TensorValue;

op_struct! {
    /// Joins operands along an axis.
    Concat = "concat" { axis: usize }
}

op_fns! {
    /// Joins tensors along an axis; their other dims must be equal.
    pub fn concat(original_vals: Operands, axis: i64 = 0) -> TensorValue {
        let values = together(original_vals)?;
        let Some(first) = values.first() else { bail!(value, "concat needs at least one value") };
        record_one(Concat { axis: first.shape().axis(axis)? }, &values)
    }

    /// Joins tensors of the same shape along a new axis.
    pub fn stack(values: Operands, axis: i64 = 0) -> TensorValue {
        let values = together(values)?;
        let Some(first) = values.first() else { bail!(value, "stack needs at least one value") };
        if let Some(other) = values.iter().find(|v| v.shape() != first.shape()) {
            bail!(value, "stack needs equal shapes; got {} and {}", first.shape(), other.shape());
        }
        let axis = resolve_axis(axis, first.rank() + 1)
            .ok_or_else(|| Error::value(format!("Invalid axis {axis} to stack tensors of rank {}", first.rank())))?;
        let values = values.iter().map(|v| unsqueeze(v, axis as i64)).collect::<Result<Vec<_>>>()?;
        record_one(Concat { axis }, &values)
    }
}

impl Operation for Concat {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let tensors = all_tensors(operands)?;
        let Some((first, rest)) = tensors.split_first() else {
            bail!(value, "concat needs at least one value")
        };
        check_alike(&tensors)?;
        axis_dim(first, self.axis)?;
        let mut dims = first.shape.to_vec();
        for other in rest {
            if other.shape.rank() != dims.len() {
                bail!(
                    value,
                    "concat needs operands of the same rank; got {} and {}",
                    first.shape,
                    other.shape
                );
            }
            for (axis, (dim, own)) in dims.iter_mut().zip(other.shape.iter()).enumerate() {
                if axis == self.axis {
                    *dim = dim.add(own)?;
                } else if dim != own {
                    bail!(
                        value,
                        "Concat inputs differ on non-concat axis {axis}: {} and {}",
                        first.shape,
                        other.shape
                    );
                }
            }
        }
        Ok(vec![first.with_shape(dims).into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: false,
            form: Form::Whole,
            folding: Folding::Exactly,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let first = &operands[0];
        let mut sizes = first.shape().to_vec();
        sizes[self.axis] = operands.iter().map(|t| t.shape()[self.axis]).sum();
        let rows: usize = sizes[..self.axis].iter().product();
        let size = byte_count(first.dtype(), &sizes)?;
        let mut bytes = allocate::<u8>(size)?;
        for row in 0..if size == 0 { 0 } else { rows } {
            for operand in operands {
                let len = operand.bytes().len() / rows;
                bytes.extend_from_slice(&operand.bytes()[row * len..][..len]);
            }
        }
        Ok(vec![HostTensor::new(first.dtype(), sizes, HostBytes::from_vec(bytes))?])
    }
}
