//! Constants: data in the graph, data that comes when it is loaded, and shapes as data.

use max_core::{DType, DeviceRef, Dim, Result, Shape, TensorType, Type, bail};

use crate::attr::op_struct;
use crate::door::{Arg, op_fns};
use crate::graph::{Graph, record_one};
use crate::host::HostTensor;
use crate::op::{Operation, Run};
use crate::operand::{Literal, Operand};
use crate::ops::tensors;
use crate::value::TensorValue;

op_struct! {
    /// Data that is part of the graph.
    Constant = "constant" { value: HostTensor, device: DeviceRef }
}

op_struct! {
    /// Data that is looked up by name when the graph is loaded.
    ConstantExternal = "constant_external" { name: String, dtype: DType, shape: Shape, device: DeviceRef }
}

op_struct! {
    /// The sizes of dims as int64 data: a vector, or the only one as a scalar.
    ShapeToTensor = "shape_to_tensor" { dims: Shape, scalar: bool }
}

op_fns! {
    /// Data as a value of the graph: a number of a dtype and device, or an array of a dtype that fits.
    pub fn constant(value: Operand, dtype: Option<DType> = Arg::None, device: Option<DeviceRef> = Arg::None) -> TensorValue {
        let value = match (value.into_literal()?, dtype, device) {
            (Literal::Number(number), Some(dtype), Some(_)) => HostTensor::scalar(number, dtype)?,
            (Literal::Number(number), ..) => {
                bail!(value, "Literal constants must explicitly set a dtype and device; got the number {number}")
            }
            (Literal::Array(array), dtype, _) => {
                let (own, asked) = (array.dtype(), dtype.unwrap_or(array.dtype()));
                if own != asked && !asked.is_float() {
                    bail!(value, "DType must match: the array is {own} and {asked} was asked for; convert it first");
                }
                array.cast_checked(asked)?
            }
        };
        record_one(Constant { value, device: device.unwrap_or(DeviceRef::CPU) }, [])
    }

    /// Data without a dtype of its own, such as a list: it takes any dtype that holds its values.
    pub fn weak_constant(value: Operand, dtype: Option<DType> = Arg::None, device: Option<DeviceRef> = Arg::None) -> TensorValue {
        let value = match (value.into_literal()?, dtype) {
            (Literal::Array(array), Some(dtype)) => array.cast_checked(dtype)?.into(),
            (Literal::Array(array), None) => array.into(),
            (Literal::Number(number), _) => Operand::from(number),
        };
        constant(value, dtype, device)
    }

    /// A weight by name; the same name with the same type is the same weight.
    pub fn constant_external(name: String, tensor_type: TensorType) -> TensorValue {
        Graph::current()?.weight_value(&name, &tensor_type, 0, true)
    }

    /// The sizes of a shape as a vector of int64.
    pub fn shape_to_tensor(shape: Shape) -> TensorValue {
        record_one(ShapeToTensor { dims: shape, scalar: false }, [])
    }

    /// Anything tensor-like as a value of the graph.
    pub fn tensor(value: Operand) -> TensorValue {
        value.tensor()
    }
}

impl Operation for Constant {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [] = tensors(operands)?;
        let dims = self.value.shape().iter().map(|&size| Dim::try_from(size)).collect::<Result<Vec<_>>>()?;
        Ok(vec![TensorType::new(self.value.dtype(), dims, self.device).into()])
    }

    fn eval(&self, _: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        Ok(vec![self.value.clone()])
    }
}

impl Operation for ConstantExternal {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [] = tensors(operands)?;
        Ok(vec![TensorType::new(self.dtype, &self.shape, self.device).into()])
    }

    fn eval(&self, _: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        Ok(vec![(run.weight)(&self.name)?])
    }
}

impl Operation for ShapeToTensor {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [] = tensors(operands)?;
        let rank = self.dims.rank() as i64;
        if self.scalar && rank != 1 {
            bail!(value, "one dim makes a scalar; got {}", self.dims);
        }
        let shape = if self.scalar { Shape::default() } else { [rank].into() };
        Ok(vec![TensorType::new(DType::Int64, shape, DeviceRef::CPU).into()])
    }

    fn eval(&self, _: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        let sizes = self.dims.iter().map(|d| d.evaluate(run.bindings)).collect::<Result<Vec<i64>>>()?;
        let shape = if self.scalar { vec![] } else { vec![sizes.len()] };
        Ok(vec![HostTensor::from_vec(shape, sizes)?])
    }
}
