//! Constants: data in the graph, data supplied when it is loaded, and shapes as data.

use max_core::{DType, DeviceRef, Dim, FilterLayout, Number, Result, Shape, TensorType, Type, bail};

use crate::attr::op_struct;
use crate::graph::{Graph, record_one};
use crate::host::HostTensor;
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::tensors;
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::{Arg, FromArg, op_fns};
use crate::value::TensorValue;

op_struct! {
    /// Data that is part of the graph.
    Constant = "constant" { value: HostTensor, device: DeviceRef }
}

op_struct! {
    /// Data that is looked up by name when the graph is loaded.
    ConstantExternal = "constant_external" {
        name: String,
        dtype: DType,
        shape: Shape,
        device: DeviceRef,
        layout: Option<FilterLayout>,
    }
}

op_struct! {
    /// The sizes of dims as int64 data: a vector, or, for a single dim, a scalar if `scalar` is set.
    ShapeToTensor = "shape_to_tensor" { dims: Shape, scalar: bool }
}

/// What a constant is made from.
pub enum Data {
    /// A number.
    Number(Number),
    /// An array, which has a dtype.
    Array(HostTensor),
    /// A list of numbers, which take any dtype that can hold them.
    List(HostTensor),
}

impl From<HostTensor> for Data {
    fn from(array: HostTensor) -> Data {
        Data::Array(array)
    }
}

macro_rules! data_from_numbers {
    ($($type:ty: $kind:ident)*) => {$(
        impl From<$type> for Data {
            fn from(number: $type) -> Data {
                Data::Number(Number::$kind(number.into()))
            }
        }
    )*};
}
data_from_numbers!(bool: Bool i32: Int i64: Int f32: Float f64: Float);

/// A list arrives as a list that contains one array of its numbers.
impl FromArg for Data {
    fn from_arg(arg: Arg) -> Result<Data> {
        match arg {
            Arg::Number(number) => Ok(Data::Number(number)),
            Arg::Array(array) => Ok(Data::Array(array)),
            Arg::List(list) => match <[Arg; 1]>::try_from(list) {
                Ok([Arg::Array(array)]) => Ok(Data::List(array)),
                _ => bail!(type_, "a constant is made from a number, an array or a list of numbers"),
            },
            _ => bail!(
                type_,
                "a constant is made from a number, an array or a list of numbers, not from a graph value"
            ),
        }
    }
}

/// Whether an array of one dtype may become a constant of another. The dtypes that arrays have by default convert to
/// any float; the floats that NumPy arrays cannot have are made from other floats.
fn converts(from: DType, to: DType) -> bool {
    let unchosen = matches!(from, DType::Float64 | DType::Int64);
    let unavailable = to == DType::BFloat16 || to.is_small_float();
    from == to || to.is_float() && (unchosen || unavailable && from.is_float())
}

op_fns! {
    /// A constant from an array, or from numbers with a given dtype and device.
    pub fn constant(value: Data, dtype: Option<DType> = Arg::None, device: Option<DeviceRef> = Arg::None) -> TensorValue {
        let value = match (value, dtype, device) {
            (Data::Number(number), Some(dtype), Some(_)) => HostTensor::scalar(number, dtype)?,
            (Data::List(array), Some(dtype), Some(_)) => array.cast_checked(dtype)?,
            (Data::Number(_) | Data::List(_), ..) => bail!(
                type_,
                "Literal constants must explicitly set a dtype and device; only arrays have a dtype of their own"
            ),
            (Data::Array(array), None, _) => array,
            (Data::Array(array), Some(dtype), _) => {
                if !converts(array.dtype(), dtype) {
                    bail!(
                        value,
                        "DType must match: the array is {} but {dtype} was requested; convert it first",
                        array.dtype()
                    );
                }
                array.cast_checked(dtype)?
            }
        };
        record_one(Constant { value, device: device.unwrap_or(DeviceRef::CPU) }, [])
    }

    /// A weight by name; the same name and type mean the same weight.
    pub fn constant_external(name: String, tensor_type: TensorType) -> TensorValue {
        Graph::current()?.weight_value(&name, &tensor_type, 0, true)
    }

    /// The sizes of a shape as a vector of int64.
    pub fn shape_to_tensor(shape: Shape) -> TensorValue {
        record_one(ShapeToTensor { dims: shape, scalar: false }, [])
    }

    /// Converts anything tensor-like to a tensor value.
    pub fn tensor(value: Operand) -> TensorValue {
        value.tensor()
    }
}

impl Operation for Constant {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [] = tensors(operands)?;
        let shape: Shape = self.value.shape().iter().copied().collect();
        Ok(vec![TensorType::new(self.value.dtype(), shape, self.device).into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: false,
            form: Form::Source,
            folding: Folding::Never,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, _: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        Ok(vec![self.value.clone()])
    }
}

impl Operation for ConstantExternal {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [] = tensors(operands)?;
        let (dtype, shape, device) = (self.dtype, self.shape.clone(), self.device);
        Ok(vec![TensorType { dtype, shape, device, layout: self.layout }.into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: self.shape.as_static().is_none(),
            form: Form::Source,
            folding: Folding::Never,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, _: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        Ok(vec![run.environment.weight(&self.name)?])
    }
}

impl Operation for ShapeToTensor {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [] = tensors(operands)?;
        self.dims.iter().try_for_each(Dim::validate)?;
        let rank = self.dims.rank() as i64;
        if self.scalar && rank != 1 {
            bail!(value, "a scalar needs exactly one dim; got {}", self.dims);
        }
        let shape = if self.scalar { Shape::default() } else { [rank].into() };
        Ok(vec![TensorType::new(DType::Int64, shape, DeviceRef::CPU).into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: false,
            form: Form::Source,
            folding: Folding::Exactly,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, _: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        let sizes = self.dims.iter().map(|d| d.evaluate(run.bindings)).collect::<Result<Vec<i64>>>()?;
        let shape = if self.scalar { vec![] } else { vec![sizes.len()] };
        Ok(vec![HostTensor::from_vec(shape, sizes)?])
    }
}
