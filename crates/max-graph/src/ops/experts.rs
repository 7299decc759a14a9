//! Mixtures of experts: tokens in the order of the experts that they were sent to.

use max_core::{DType, Dim, Shape, bail};

use crate::operand::Operand;
use crate::ops;
use crate::ops::cast::cast_value;
use crate::ops::reshape::reshape_value;
use crate::registry::op_fns;
use crate::value::TensorValue;

op_fns! {
    /// Groups tokens by expert, as `grouped_matmul` takes them: which token comes at each place (those of an expert keep their
    /// order), where each group starts and the last one ends, the place of each token, the expert of each group, and the most
    /// tokens of an expert with the number of active ones.
    ///
    /// There are as many groups as experts. Those of active experts come first, in ascending order; the others are empty and
    /// have the id -1. Tokens of an expert that does not exist come last, in no group.
    pub fn moe_create_indices(topk_ids: Operand, num_local_experts: i64) -> Vec<TensorValue> {
        let ids = topk_ids.tensor()?;
        if ids.rank() != 1 || !ids.dtype().is_integral() {
            bail!(value, "topk_ids must be a vector of integers, an expert for each token; got {}", ids.tensor_type());
        }
        if num_local_experts < 1 {
            bail!(value, "there must be at least one expert; got {num_local_experts}");
        }
        let (device, tokens, experts) = (ids.device(), ids.shape()[0].clone(), Dim::Static(num_local_experts));
        // What has no expert is sorted as if there were one more.
        let ids = cast_value(&ids, DType::Int64)?;
        let exists = ops::logical_and(ops::greater_equal(&ids, 0)?, ops::greater(num_local_experts, &ids)?)?;
        let ids = ops::where_(exists, &ids, num_local_experts)?;
        let order = ops::argsort(&ids, true)?;
        let range = |size: &Dim| ops::range(0, size.clone(), 1, None, DType::Int64, device);
        let expert = range(&experts)?;
        let sent = ops::equal(ops::unsqueeze(&expert, 1)?, ops::unsqueeze(&ids, 0)?)?;
        let counts = reshape_value(&ops::sum(cast_value(&sent, DType::Int64)?, 1)?, [&experts].into())?;
        let idle = ops::equal(&counts, 0)?;
        let groups = ops::argsort(&idle, true)?;
        let ends = ops::cumsum(ops::gather(&counts, &groups, 0)?, 0, false, false)?;
        let zero = reshape_value(&Operand::from(0i64).weak(DType::Int64, device)?, [1].into())?;
        let starts = ops::concat([&zero, &ends], 0)?;
        let expert_ids = ops::where_(ops::gather(&idle, &groups, 0)?, -1, &groups)?;
        let places = range(&tokens)?;
        let restored = ops::scatter(&places, &places, &order, 0)?;
        let active = cast_value(&ops::logical_not(&idle)?, DType::Int64)?;
        let usage = ops::concat([ops::reduce_max(&counts, 0)?, ops::sum(active, 0)?], 0)?;
        let usage = reshape_value(&usage, Shape::from([2]))?;
        let unsigned = |x: &TensorValue| cast_value(x, DType::UInt32);
        Ok(vec![
            unsigned(&order)?,
            unsigned(&starts)?,
            unsigned(&restored)?,
            cast_value(&expert_ids, DType::Int32)?,
            unsigned(&usage)?,
        ])
    }
}

#[cfg(test)]
mod tests {
    use max_core::{DeviceRef, Result, TensorType};

    use super::*;
    use crate::host::HostTensor;
    use crate::{Graph, interpret};

    fn indices(ids: &[i32], experts: i64) -> Result<Vec<Vec<i64>>> {
        let ids = HostTensor::from_vec([ids.len()], ids.to_vec())?;
        let ty = TensorType::new(DType::Int32, ["tokens"], DeviceRef::CPU);
        let graph = Graph::build("g", [ty], |x| moe_create_indices(&x[0], experts))?;
        let dtypes: Vec<DType> = graph.output_types()?.iter().filter_map(|ty| Some(ty.array()?.0)).collect();
        assert_eq!(dtypes, [DType::UInt32, DType::UInt32, DType::UInt32, DType::Int32, DType::UInt32]);
        interpret(&graph.body(), &[ids], &())?.iter().map(HostTensor::to_integers).collect()
    }

    #[test]
    fn tokens_are_grouped_by_expert() {
        let [order, starts, restored, ids, usage] = &indices(&[3, 1, 3, 0, 1, 3], 5).unwrap()[..] else {
            panic!()
        };
        assert_eq!(order, &[3, 1, 4, 0, 2, 5]);
        assert_eq!(starts, &[0, 1, 3, 6, 6, 6]);
        assert_eq!(restored, &[3, 1, 4, 0, 2, 5]);
        assert_eq!(ids, &[0, 1, 3, -1, -1]);
        assert_eq!(usage, &[3, 3]);
    }

    #[test]
    fn restoring_undoes_the_order() {
        let tokens: Vec<i32> = (0..97).map(|i| i * i % 11 - 1).collect();
        let [order, _, restored, _, _] = &indices(&tokens, 8).unwrap()[..] else { panic!() };
        for (token, &place) in restored.iter().enumerate() {
            assert_eq!(order[place as usize], token as i64);
        }
    }

    #[test]
    fn tokens_of_no_expert_are_in_no_group() {
        let [order, starts, _, ids, usage] = &indices(&[7, 1, -2, 1, 2], 2).unwrap()[..] else { panic!() };
        assert_eq!((&order[..], &starts[..]), (&[1, 3, 0, 2, 4][..], &[0, 2, 2][..]));
        assert_eq!((&ids[..], &usage[..]), (&[1, -1][..], &[2, 1][..]));
    }

    #[test]
    fn there_may_be_no_tokens_but_not_no_experts() {
        let empty = indices(&[], 2).unwrap();
        assert_eq!(empty, [vec![], vec![0, 0, 0], vec![], vec![-1, -1], vec![0, 0]]);
        assert!(indices(&[], 0).unwrap_err().to_string().contains("at least one expert"));
    }
}
