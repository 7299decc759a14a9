//! Layer normalization over the last axis.

use max_core::{Element, Result, Shape, Type, bail, dispatch};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::{HostTensor, allocate};
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::cast::cast_value;
use crate::ops::{check_alike, tensors};
use crate::properties::{Effects, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::TensorValue;

op_struct! {
    /// Subtracts the mean of each row, divides by its standard deviation, then scales and shifts.
    LayerNorm = "layer_norm" { epsilon: f64 }
}

op_fns! {
    /// `(x - mean) / sqrt(var + epsilon) * gamma + beta` over the last axis.
    pub fn layer_norm(input: Operand, gamma: Operand, beta: Operand, epsilon: f64) -> TensorValue {
        let input = input.tensor()?;
        let gamma = parameter("layer_norm", gamma, &input)?;
        let beta = parameter("layer_norm", beta, &input)?;
        record_one(LayerNorm { epsilon }, [&input, &gamma, &beta])
    }
}

/// A parameter cast to the dtype of the input. Any float converts to any other, as models often store parameters with
/// another width.
pub(crate) fn parameter(op: &str, operand: Operand, input: &TensorValue) -> Result<TensorValue> {
    let parameter = operand.like(input)?;
    let (own, asked) = (parameter.dtype(), input.dtype());
    let converts = own.fits(asked) || own.is_float() && asked.is_float();
    if !converts {
        bail!(value, "Unsafe cast: {op} of {asked} with a parameter of type {own}; insert an explicit cast");
    }
    cast_value(&parameter, asked)
}

impl Operation for LayerNorm {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [input, gamma, beta] = tensors(operands)?;
        check_alike(&[input, gamma, beta])?;
        let Some(last) = input.shape.last() else { bail!(value, "layer_norm needs at least one axis") };
        for (name, parameter) in [("Gamma", gamma), ("Beta", beta)] {
            if parameter.shape != Shape::from([last]) {
                bail!(
                    value,
                    "{name} size {} does not match dimension of reduction {last} of {}",
                    parameter.shape,
                    input.shape
                );
            }
        }
        if self.epsilon.is_nan() || self.epsilon <= 0.0 {
            bail!(value, "layer_norm epsilon must be positive; got {}", self.epsilon);
        }
        Ok(vec![input.with_shape(&input.shape).into()])
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
        let len = x.shape().last().copied().unwrap_or(1);
        dispatch!(x.dtype(), T => {
            let (elements, gamma, beta) = (x.elements::<T>()?, operands[1].elements::<T>()?, operands[2].elements::<T>()?);
            let mut results = allocate(elements.len())?;
            for row in elements.chunks(len.max(1)) {
                let mean = row.iter().map(|e| e.to_f64()).sum::<f64>() / len as f64;
                let variance = row.iter().map(|e| (e.to_f64() - mean).powi(2)).sum::<f64>() / len as f64;
                let scale = 1.0 / (variance + self.epsilon).sqrt();
                let parameters = gamma.iter().zip(beta.iter());
                results.extend(row.iter().zip(parameters).map(|(e, (g, b))| {
                    T::from_double((e.to_f64() - mean) * scale * g.to_f64() + b.to_f64())
                }));
            }
            Ok(vec![HostTensor::from_vec(x.shape(), results)?])
        })
    }
}
