//! Cast: converts elements to another dtype.

use max_core::{DType, Result, Type};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::HostTensor;
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::tensors;
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::TensorValue;

op_struct! {
    /// Converts elements: floats round to nearest, float to integer truncates, integers wrap.
    Cast = "cast" { dtype: DType }
}

op_fns! {
    /// Converts the elements of a tensor to another dtype.
    pub fn cast(x: Operand, dtype: DType) -> TensorValue {
        cast_value(&x.tensor()?, dtype)
    }
}

/// Casts a value to a dtype; returns it unchanged if it has that dtype.
pub(crate) fn cast_value(value: &TensorValue, dtype: DType) -> Result<TensorValue> {
    if value.dtype() == dtype { Ok(value.clone()) } else { record_one(Cast { dtype }, [value]) }
}

impl Operation for Cast {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [x] = tensors(operands)?;
        Ok(vec![x.cast(self.dtype).into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: false,
            form: Form::Elementwise,
            folding: Folding::Exactly,
            heavy: false,
            rounds_operands: true,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        Ok(vec![operands[0].cast(self.dtype)?])
    }
}
