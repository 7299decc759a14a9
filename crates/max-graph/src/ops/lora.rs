//! Products with the low-rank adapters (LoRA) of groups of rows.

use max_core::{DType, Dim, Result, bail};

use crate::operand::Operand;
use crate::ops;
use crate::ops::cast::cast_value;
use crate::ops::ragged::{Rows, offsets};
use crate::ops::rebind::assert_dim;
use crate::registry::{Arg, op_fns};
use crate::value::TensorValue;

op_fns! {
    /// The product of each group of rows with the transposed matrix of its adapter, `[adapters, n, k]`: the rows from
    /// `row_offsets[i]` to `row_offsets[i + 1]` have adapter `ids[i]`. Other rows, and those of a negative id, give zeros.
    ///
    /// A bias, `[n]` or `[adapters, n]`, is added to the rows that have an adapter.
    pub fn sgmv(
        input: Operand, lora: Operand, ids: Operand, row_offsets: Operand, bias: Option<Operand> = Arg::None,
    ) -> TensorValue {
        let (input, lora) = (input.tensor()?, lora.tensor()?);
        let groups = Groups::new(&input, ids, row_offsets)?;
        groups.biased(&groups.product(&input, &lora)?, bias)
    }

    /// The product of each group of rows with both matrices of its adapter: first with those of `lora_a`, `[adapters, max
    /// rank, k]`, then with those of `lora_b`, `[adapters, n, max rank]`. Of what is between them, columns from `ranks[i]` on
    /// do not count for group `i`. Everything else is as in [`sgmv()`].
    pub fn sgmv_lora(
        input: Operand, lora_a: Operand, lora_b: Operand, ids: Operand, ranks: Operand, row_offsets: Operand,
        bias: Option<Operand> = Arg::None,
    ) -> TensorValue {
        let (input, a, b) = (input.tensor()?, lora_a.tensor()?, lora_b.tensor()?);
        let groups = Groups::new(&input, ids, row_offsets)?;
        let low = groups.product(&input, &a)?;
        let ranks = groups.vector("lora_ranks", ranks)?;
        let ranks = ops::unsqueeze(groups.rows.pick(&ranks, 0)?, 1)?;
        let column = ops::range(0, low.shape()[1].clone(), 1, None, DType::Int64, low.device())?;
        let low = ops::where_(ops::greater(ranks, column)?, &low, 0)?;
        groups.biased(&groups.product(&low, &b)?, bias)
    }
}

/// Groups of rows, each with an adapter.
struct Groups {
    /// Where they start, and the last one ends.
    starts: TensorValue,
    /// The adapter of each group.
    ids: TensorValue,
    /// The group of each row.
    rows: Rows,
}

impl Groups {
    fn new(input: &TensorValue, ids: Operand, row_offsets: Operand) -> Result<Groups> {
        let [count, _] = &input.shape()[..] else {
            bail!(value, "adapters are for a matrix of rows; got the shape {}", input.shape());
        };
        let ids = vector("lora_ids", ids, input)?;
        let starts = offsets("the offsets of groups", row_offsets, input)?;
        let expected = ids.shape()[0].add(&Dim::Static(1))?;
        if starts.shape()[0].differs(&expected) {
            bail!(
                value,
                "there must be one offset more than there are groups; got offsets of shape {} and ids of shape {}",
                starts.shape(),
                ids.shape()
            );
        }
        let starts = assert_dim(starts, 0, expected, "the offsets of groups of rows")?;
        let rows = Rows::new(&starts, count)?;
        Ok(Groups { starts, ids, rows })
    }

    /// An int64 vector with an element for each group.
    fn vector(&self, name: &str, operand: Operand) -> Result<TensorValue> {
        let values = vector(name, operand, &self.starts)?;
        let count = &self.ids.shape()[0];
        if values.shape()[0].differs(count) {
            bail!(value, "{name} must have an element for each of {count} groups; got {}", values.shape());
        }
        assert_dim(values, 0, count.clone(), name)
    }

    fn product(&self, x: &TensorValue, weights: &TensorValue) -> Result<TensorValue> {
        if x.device().is_cpu() {
            return ops::grouped_matmul(x, weights, &self.starts, &self.ids);
        }
        // GPUs have no product with a matrix of floats per group, so there is one with each, and rows pick theirs.
        let ([_, _, k], [_, depth]) = (&weights.shape()[..], &x.shape()[..]) else {
            bail!(value, "adapters have the shape `[adapters, n, k]`; got {}", weights.shape());
        };
        if k.differs(depth) {
            bail!(
                value,
                "adapters must be as deep as rows; got the shapes {} and {}",
                weights.shape(),
                x.shape()
            );
        }
        let x = assert_dim(x.clone(), 1, k.clone(), "the depth of adapters")?;
        let weights = ops::transpose(cast_value(weights, x.dtype())?, 1, 2)?;
        let all = ops::transpose(ops::matmul(ops::unsqueeze(&x, 0)?, weights)?, 0, 1)?;
        let id = ops::unsqueeze(self.rows.pick(&self.ids, -1)?, 1)?;
        let own = ops::gather_nd(all, ops::max(&id, 0)?, 1)?;
        ops::where_(ops::greater_equal(id, 0)?, own, 0)
    }

    /// The result with a bias added to the rows that have an adapter.
    fn biased(&self, x: &TensorValue, bias: Option<Operand>) -> Result<TensorValue> {
        let Some(bias) = bias else { return Ok(x.clone()) };
        let bias = bias.like(x)?;
        let id = self.rows.pick(&self.ids, -1)?;
        let has = ops::greater_equal(&id, 0)?;
        let bias = match bias.rank() {
            1 => bias,
            2 => ops::gather(bias, ops::max(&id, 0)?, 0)?,
            _ => bail!(
                value,
                "a bias is a vector, or has one for each adapter; got the shape {}",
                bias.shape()
            ),
        };
        let sum = ops::add(x, cast_value(&bias, x.dtype())?)?;
        let biased = ops::where_(ops::unsqueeze(has, 1)?, sum, x)?;
        if biased.shape() != x.shape() {
            bail!(value, "a bias of shape {} does not fit the result {}", bias.shape(), x.shape());
        }
        Ok(biased)
    }
}

/// Integers as an int64 vector where a tensor is.
fn vector(name: &str, operand: Operand, x: &TensorValue) -> Result<TensorValue> {
    let values = operand.tensor()?;
    if values.rank() != 1 || !values.dtype().is_integral() {
        bail!(value, "{name} must be a vector of integers; got {}", values.tensor_type());
    }
    cast_value(&ops::transfer_to(values, x.device())?, DType::Int64)
}

#[cfg(test)]
mod tests {
    use max_core::{DeviceRef, Shape, TensorType};

    use super::*;
    use crate::host::HostTensor;
    use crate::{Graph, interpret};

    fn numbers(shape: &[usize], seed: usize) -> HostTensor {
        let draw = |i: usize| ((i * 7919 + seed * 104729) % 31) as f32 / 8.0 - 2.0;
        HostTensor::from_vec(shape, (0..shape.iter().product()).map(draw).collect::<Vec<f32>>()).unwrap()
    }

    fn ints(elements: &[i32]) -> HostTensor {
        HostTensor::from_vec([elements.len()], elements.to_vec()).unwrap()
    }

    fn run(
        inputs: &[HostTensor],
        device: DeviceRef,
        build: impl Fn(&[crate::Value]) -> Result<TensorValue>,
    ) -> Result<Vec<f32>> {
        let types = inputs.iter().map(|x| {
            let dims = x.shape().iter().map(|&size| Dim::Static(size as i64)).collect::<Shape>();
            TensorType::new(x.dtype(), dims, device)
        });
        let graph = Graph::build("g", types, build)?;
        Ok(interpret(&graph.body(), inputs, &())?[0].elements::<f32>()?.to_vec())
    }

    fn at(x: &HostTensor, place: usize) -> f32 {
        x.elements::<f32>().unwrap()[place]
    }

    /// The rows of the inputs below: which group they are in, if any.
    const GROUPS: [Option<usize>; 7] = [Some(0), Some(0), Some(1), Some(3), Some(3), None, None];
    const IDS: [i32; 4] = [2, -1, 1, 0];
    const RANKS: [i32; 4] = [3, 2, 1, 2];

    fn inputs() -> Vec<HostTensor> {
        vec![
            numbers(&[7, 4], 1),
            numbers(&[3, 3, 4], 2),
            numbers(&[3, 5, 3], 3),
            ints(&IDS),
            ints(&RANKS),
            ints(&[0, 2, 3, 3, 5]),
            numbers(&[3, 5], 4),
            numbers(&[3], 5),
        ]
    }

    #[test]
    fn each_group_has_the_matrix_of_its_adapter() {
        let inputs = inputs();
        let actual = |device| {
            run(&inputs, device, |x| sgmv(&x[0], &x[1], &x[3], &x[5], Operand::from(&x[7]))).unwrap()
        };
        assert_eq!(actual(DeviceRef::gpu(0)), actual(DeviceRef::CPU));
        for (place, actual) in actual(DeviceRef::CPU).into_iter().enumerate() {
            let (row, column) = (place / 3, place % 3);
            let adapter = GROUPS[row].and_then(|group| usize::try_from(IDS[group]).ok());
            let expected = adapter.map_or(0.0, |adapter| {
                let terms = (0..4)
                    .map(|k| at(&inputs[0], row * 4 + k) * at(&inputs[1], (adapter * 3 + column) * 4 + k));
                terms.sum::<f32>() + at(&inputs[7], column)
            });
            assert_eq!(actual, expected, "{row} {column}");
        }
    }

    #[test]
    fn columns_beyond_the_rank_do_not_count() {
        let inputs = inputs();
        let actual = |device| {
            run(&inputs, device, |x| {
                sgmv_lora(&x[0], &x[1], &x[2], &x[3], &x[4], &x[5], Operand::from(&x[6]))
            })
            .unwrap()
        };
        assert_eq!(actual(DeviceRef::gpu(0)), actual(DeviceRef::CPU));
        for (place, actual) in actual(DeviceRef::CPU).into_iter().enumerate() {
            let (row, column) = (place / 5, place % 5);
            let expected = GROUPS[row].filter(|&group| IDS[group] >= 0).map_or(0.0, |group| {
                let adapter = IDS[group] as usize;
                let low = |rank: usize| -> f32 {
                    (0..4)
                        .map(|k| at(&inputs[0], row * 4 + k) * at(&inputs[1], (adapter * 3 + rank) * 4 + k))
                        .sum()
                };
                let terms = (0..RANKS[group] as usize)
                    .map(|rank| low(rank) * at(&inputs[2], (adapter * 5 + column) * 3 + rank));
                terms.sum::<f32>() + at(&inputs[6], adapter * 5 + column)
            });
            assert!((actual - expected).abs() < 1e-4, "{row} {column}: {actual} {expected}");
        }
    }

    #[test]
    fn groups_are_checked() {
        let inputs = inputs();
        let error = |build: fn(&[crate::Value]) -> Result<TensorValue>| {
            run(&inputs, DeviceRef::CPU, build).unwrap_err().to_string()
        };
        let message = error(|x| sgmv(&x[0], &x[1], &x[3], &x[4], None));
        assert!(message.contains("one offset more than there are groups"), "{message}");
        let message = error(|x| sgmv(&x[0], &x[1], &x[3], &x[5], Operand::from(&x[0])));
        assert!(message.contains("broadcast"), "{message}");
    }
}
