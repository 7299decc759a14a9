//! Root-mean-square normalization over the last axis.

use max_core::{Element, Result, Shape, Type, bail, dispatch};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::{HostTensor, allocate};
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::layer_norm::parameter;
use crate::ops::{check_alike, tensors};
use crate::properties::{Effects, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::TensorValue;

op_struct! {
    /// Divides rows by their root mean square, then scales by the weight plus an offset. The quotient is rounded to the
    /// dtype before it is scaled, unless `multiply_before_cast` is set.
    RmsNorm = "rms_norm" { epsilon: f64, weight_offset: f64, multiply_before_cast: bool }
}

op_fns! {
    /// `x / sqrt(mean(x * x) + epsilon) * (weight + weight_offset)` over the last axis.
    pub fn rms_norm(input: Operand, weight: Operand, epsilon: f64, weight_offset: f64 = 0.0, multiply_before_cast: bool = false) -> TensorValue {
        let input = input.tensor()?;
        let weight = parameter("rms_norm", weight, &input)?;
        record_one(RmsNorm { epsilon, weight_offset, multiply_before_cast }, [&input, &weight])
    }
}

impl Operation for RmsNorm {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [input, weight] = tensors(operands)?;
        check_alike(&[input, weight])?;
        let Some(last) = input.shape.last() else { bail!(value, "rms_norm needs at least one axis") };
        if weight.shape != Shape::from([last]) {
            bail!(
                value,
                "Weight size {} does not match dimension of reduction {last} of {}",
                weight.shape,
                input.shape
            );
        }
        if self.epsilon.is_nan() || self.epsilon < 0.0 {
            bail!(value, "rms_norm epsilon must not be negative; got {}", self.epsilon);
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
            let (elements, weight) = (x.elements::<T>()?, operands[1].elements::<T>()?);
            let mut results = allocate(elements.len())?;
            for row in elements.chunks(len.max(1)) {
                let square = row.iter().map(|e| e.to_f64().powi(2)).sum::<f64>() / len as f64;
                let scale = 1.0 / (square + self.epsilon).sqrt();
                results.extend(row.iter().zip(weight.iter()).map(|(e, w)| {
                    let exact = e.to_f64() * scale;
                    let normal = if self.multiply_before_cast { exact } else { T::from_double(exact).to_f64() };
                    T::from_double(normal * (w.to_f64() + self.weight_offset))
                }));
            }
            Ok(vec![HostTensor::from_vec(x.shape(), results)?])
        })
    }
}

#[cfg(test)]
mod tests {
    use max_core::{Element, f16};

    use crate::text::parse;
    use crate::{HostTensor, interpret};

    #[test]
    fn divides_by_the_root_of_the_mean_square() {
        let run = |attrs: &str| {
            let text = format!(
                "graph \"g\"(%0: float16[2, 2], %1: float16[2]) {{
                %2 = rms_norm(%0, %1) {{{attrs}}} : float16[2, 2] return %2 }}"
            );
            let [x, w] = [[1.0, 7.0, 3.0, -4.0].as_slice(), &[3.0, 0.5]]
                .map(|numbers| numbers.iter().map(|&n| f16::from_f32(n)).collect::<Vec<_>>());
            let inputs = [HostTensor::from_vec([2, 2], x).unwrap(), HostTensor::from_vec([2], w).unwrap()];
            let results = interpret(&parse(&text)?, &inputs, &())?;
            Ok::<_, max_core::Error>(
                results[0].elements::<f16>()?.iter().map(|e| e.to_f32()).collect::<Vec<_>>(),
            )
        };
        // The mean squares are 25 and 12.5.
        let round = |x: f64| f64::from(f16::from_double(x));
        let one = run("epsilon = 0.0, weight_offset = 0.0, multiply_before_cast = true").unwrap();
        assert_eq!(one[..2], [f16::from_double(0.2 * 3.0), f16::from_double(1.4 * 0.5)].map(f16::to_f32));
        let two = run("epsilon = 0.0, weight_offset = 1.0, multiply_before_cast = false").unwrap();
        assert_eq!(two[..2], [round(0.2) * 4.0, round(1.4) * 1.5].map(|x| f16::from_double(x).to_f32()));
        let shifted = run("epsilon = 12.5, weight_offset = 0.0, multiply_before_cast = false").unwrap();
        assert_eq!(shifted[2..], [round(0.6) * 3.0, round(-0.8) * 0.5].map(|x| f16::from_double(x).to_f32()));
        assert!(run("epsilon = -1.0, weight_offset = 0.0, multiply_before_cast = false").is_err());
    }
}
