//! Gather: slices of a tensor along an axis, picked by index.

use max_core::{HostBytes, Result, Type, bail};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::{HostTensor, allocate, byte_count};
use crate::op::{Operation, Run};
use crate::operand::{Operand, same_device};
use crate::ops::{axis_dim, tensors};
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::TensorValue;

op_struct! {
    /// The axis is replaced by the axes of the indices; negative indices count from the end.
    Gather = "gather" { axis: usize }
}

op_fns! {
    /// Picks slices along an axis by index.
    pub fn gather(input: Operand, indices: Operand, axis: i64 = -1) -> TensorValue {
        let input = input.tensor()?;
        let indices = indices.on(input.device())?;
        same_device([&input, &indices])?;
        record_one(Gather { axis: input.shape().axis(axis)? }, [&input, &indices])
    }
}

impl Operation for Gather {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [input, indices] = tensors(operands)?;
        if !indices.dtype.is_integral() {
            bail!(value, "gather indices must be integral; got {}", indices.dtype);
        }
        axis_dim(input, self.axis)?;
        let (before, after) = (&input.shape[..self.axis], &input.shape[self.axis + 1..]);
        Ok(vec![input.with_shape([before, &indices.shape, after].concat()).into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: true,
            form: Form::Whole,
            folding: Folding::Exactly,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let (input, indices) = (&operands[0], &operands[1]);
        let size = input.shape()[self.axis];
        let picks = indices.to_integers()?.into_iter().map(|index| {
            let at = if index < 0 { index + size as i64 } else { index };
            if at < 0 || at >= size as i64 {
                bail!(index, "index {index} is out of range for axis {} with size {size}", self.axis);
            }
            Ok(at as usize)
        });
        let picks: Vec<usize> = picks.collect::<Result<_>>()?;
        let rows: usize = input.shape()[..self.axis].iter().product();
        let inner: usize = input.shape()[self.axis + 1..].iter().product();
        let sizes = [&input.shape()[..self.axis], indices.shape(), &input.shape()[self.axis + 1..]].concat();
        let slice = inner * input.dtype().size_in_bytes();
        let total = byte_count(input.dtype(), &sizes)?;
        let mut bytes = allocate::<u8>(total)?;
        for row in 0..if total == 0 { 0 } else { rows } {
            for &pick in &picks {
                bytes.extend_from_slice(&input.bytes()[(row * size + pick) * slice..][..slice]);
            }
        }
        Ok(vec![HostTensor::new(input.dtype(), sizes, HostBytes::from_vec(bytes))?])
    }
}
