//! Mixtures of experts: each token goes through the perceptrons of a few experts, whose results are added with weights.

use max_core::quantization::Storage;
use max_core::{DType, Dim, QuantizationEncoding, Result, Shape, bail};

use crate::operand::Operand;
use crate::ops;
use crate::ops::cast::cast_value;
use crate::ops::layer::Activation;
use crate::ops::reshape::reshape_value;
use crate::registry::{Arg, op_fns};
use crate::value::TensorValue;

op_fns! {
    /// What gated perceptrons of experts, `down(activation(gate(x)) * up(x))`, make of tokens `[tokens, hidden]`: for each
    /// token the sum over its `k` experts, `ids`, `[tokens, k]`, with the weights `scores`, `[tokens, k]`.
    ///
    /// The weights of all experts are `gate` and `up`, `[experts, length, hidden]`, and `down`, `[experts, hidden, length]`.
    /// Those of an encoding have rows of blocks. What is weighted is each result, or each input if `weigh_inputs` is set. An
    /// expert that does not exist gives zeros.
    #[expect(clippy::too_many_arguments, reason = "tokens, their experts and three matrices of each")]
    pub fn mixture(
        x: Operand, ids: Operand, scores: Operand, gate: Operand, up: Operand, down: Operand,
        activation: Activation = "silu", weigh_inputs: bool = false, encoding: Option<QuantizationEncoding> = Arg::None,
    ) -> TensorValue {
        let x = x.tensor()?;
        let [ids, scores, gate, up, down] = [ids, scores, gate, up, down].map(|part| ops::transfer_to(part, x.device()));
        let (ids, scores, gate, up, down) = (ids?, scores?, gate?, up?, down?);
        let sizes = Sizes::new(&x, &ids, &scores, [&gate, &up, &down])?;
        let flat = |tensor: &TensorValue| reshape_value(tensor, Shape::from([sizes.copies.clone()]));
        let parts = ops::moe_create_indices(flat(&ids)?, sizes.experts)?;
        let [order, starts, restored, experts] = &parts[..4] else { bail!(internal, "groups without their parts") };
        let [order, restored] = [order, restored].map(|places| cast_value(places, DType::Int64));
        let (order, restored) = (order?, restored?);
        let sorted_scores = || ops::unsqueeze(ops::gather(flat(&scores)?, &order, 0)?, 1);
        let mut sent = ops::gather(&x, ops::floor_div(&order, sizes.chosen)?, 0)?;
        if weigh_inputs {
            sent = cast_value(&ops::mul(&sent, sorted_scores()?)?, x.dtype())?;
        }
        let product = |rows: &TensorValue, weights: &TensorValue| match encoding {
            Some(encoding) => {
                let groups = [starts, experts].map(|group| Some(Operand::from(group)));
                let [starts, experts] = groups;
                ops::quantized_matmul(rows, weights, Storage::Blocks(encoding), None, starts, experts)
            }
            None => ops::grouped_matmul(rows, weights, starts, experts),
        };
        let middle = ops::gated(product(&sent, &gate)?, product(&sent, &up)?, activation)?;
        let results = ops::gather(product(&middle, &down)?, &restored, 0)?;
        let [tokens, hidden] = &x.shape()[..] else { bail!(internal, "tokens that are no matrix") };
        let chosen = Dim::Static(sizes.chosen);
        let results = reshape_value(&results, Shape::from([tokens, &chosen, hidden]))?;
        let wide = |tensor: &TensorValue| cast_value(tensor, DType::Float32);
        let mut terms = wide(&results)?;
        if !weigh_inputs {
            terms = ops::mul(terms, ops::unsqueeze(wide(&scores)?, 2)?)?;
        }
        let sum = reshape_value(&ops::sum(terms, 1)?, Shape::from([tokens, hidden]))?;
        cast_value(&sum, x.dtype())
    }
}

/// The sizes of a mixture that are known.
struct Sizes {
    /// The number of experts.
    experts: i64,
    /// The number of experts of a token.
    chosen: i64,
    /// The number of times that a token goes through an expert.
    copies: Dim,
}

impl Sizes {
    /// Checks that operands fit together.
    fn new(
        x: &TensorValue,
        ids: &TensorValue,
        scores: &TensorValue,
        weights: [&TensorValue; 3],
    ) -> Result<Sizes> {
        if x.rank() != 2 || ids.rank() != 2 || scores.rank() != 2 || weights.iter().any(|w| w.rank() != 3) {
            bail!(
                value,
                "a mixture takes tokens, ids and scores of rank 2 and weights of rank 3; got the shapes {}, {}, {} and {}, {}, {}",
                x.shape(),
                ids.shape(),
                scores.shape(),
                weights[0].shape(),
                weights[1].shape(),
                weights[2].shape()
            );
        }
        if !ids.dtype().is_integral() || !scores.dtype().is_float() {
            bail!(
                type_,
                "a mixture takes integers as ids and floats as scores; got {} and {}",
                ids.dtype(),
                scores.dtype()
            );
        }
        if ids.shape() != scores.shape() || ids.shape()[0] != x.shape()[0] {
            bail!(
                value,
                "each token has ids and scores: for tokens of shape {} got the shapes {} and {}",
                x.shape(),
                ids.shape(),
                scores.shape()
            );
        }
        let (Some(experts), Some(chosen)) = (weights[0].shape()[0].as_static(), ids.shape()[1].as_static())
        else {
            bail!(
                value,
                "the numbers of experts and of those of a token must be static; got the shapes {} and {}",
                weights[0].shape(),
                ids.shape()
            );
        };
        if chosen < 1 {
            bail!(value, "each token goes to at least one expert; got ids of shape {}", ids.shape());
        }
        let other = weights.iter().find(|other| other.shape()[0].differs(&weights[0].shape()[0]));
        if let Some(other) = other {
            bail!(value, "{experts} experts have gates, but there are weights of shape {}", other.shape());
        }
        Ok(Sizes { experts, chosen, copies: ids.shape().num_elements()? })
    }
}

#[cfg(test)]
mod tests {
    use max_core::{DType, DeviceRef, TensorType};

    use crate::ops::layer::Activation;
    use crate::{Graph, HostTensor, interpret, ops};

    /// A mixture of two experts whose gate, up and down matrices are one number each.
    fn run(weigh_inputs: bool) -> Vec<f32> {
        let ty = |dtype, shape: &[i64]| TensorType::new(dtype, shape.to_vec(), DeviceRef::CPU);
        let one = || ty(DType::Float32, &[2, 1, 1]);
        let scores = ty(DType::Float32, &[3, 2]);
        let types = [ty(DType::Float32, &[3, 1]), ty(DType::Int64, &[3, 2]), scores, one(), one(), one()];
        let graph = Graph::build("mixture", types, |v| {
            ops::mixture(&v[0], &v[1], &v[2], &v[3], &v[4], &v[5], Activation::Relu, weigh_inputs, None)
                .unwrap()
        });
        let floats =
            |shape: &[usize], numbers: &[f32]| HostTensor::from_vec(shape, numbers.to_vec()).unwrap();
        let inputs = [
            floats(&[3, 1], &[1.0, 2.0, -1.0]),
            HostTensor::from_vec([3, 2], vec![1i64, 0, 0, 5, 1, 1]).unwrap(),
            floats(&[3, 2], &[0.5, 0.25, 1.0, 1.0, 2.0, 1.0]),
            floats(&[2, 1, 1], &[1.0, -2.0]),
            floats(&[2, 1, 1], &[3.0, -1.0]),
            floats(&[2, 1, 1], &[0.5, 2.0]),
        ];
        interpret(&graph.unwrap().body(), &inputs, &()).unwrap()[0].elements::<f32>().unwrap().to_vec()
    }

    #[test]
    fn tokens_go_through_their_experts() {
        // Expert 0 gives 1.5 x^2 for x > 0, expert 1 gives 4 x^2 for x < 0; expert 5 does not exist.
        assert_eq!(run(false), [0.25 * 1.5, 6.0, 2.0 * 4.0 + 4.0]);
        assert_eq!(run(true), [0.0625 * 1.5, 6.0, 4.0 * 4.0 + 4.0]);
    }
}
