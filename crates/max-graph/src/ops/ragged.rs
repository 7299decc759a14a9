//! Ragged tensors: rows of several sequences one after the other, and offsets that say where each starts.
//!
//! There is one offset more than there are sequences. The first one is 0, and the last one is the number of rows.

use max_core::{DType, Dim, Result, bail};

use crate::operand::Operand;
use crate::ops;
use crate::ops::cast::cast_value;
use crate::ops::rebind::assert_dim;
use crate::ops::reshape::reshape_value;
use crate::ops::slice::part;
use crate::registry::op_fns;
use crate::value::TensorValue;

op_fns! {
    /// Joins each sequence of a ragged tensor with that of another one: the merged rows, and their offsets.
    pub fn merge_ragged_tensors(
        a: Operand, a_row_offsets: Operand, b: Operand, b_row_offsets: Operand,
    ) -> Vec<TensorValue> {
        let (a, b) = (a.tensor()?, b.tensor()?);
        let (Some(a_rows), Some(b_rows)) = (a.shape().first(), b.shape().first()) else {
            bail!(value, "ragged tensors have an axis of rows; got the shapes {} and {}", a.shape(), b.shape());
        };
        let dtype = a_row_offsets.clone().tensor()?.dtype();
        let a_offsets = offsets("a_row_offsets", a_row_offsets, &a)?;
        let b_offsets = offsets("b_row_offsets", b_row_offsets, &a)?;
        if a_offsets.shape()[0].differs(&b_offsets.shape()[0]) {
            bail!(
                value,
                "ragged tensors must have equally many sequences; got offsets of shape {} and {}",
                a_offsets.shape(),
                b_offsets.shape()
            );
        }
        let b_offsets = assert_dim(b_offsets, 0, a_offsets.shape()[0].clone(), "the offsets of ragged tensors")?;
        let merged = ops::add(&a_offsets, &b_offsets)?;
        let Rows { sequence, position, .. } = Rows::new(&merged, &a_rows.add(b_rows)?)?;
        let end = ops::gather(part(&a_offsets, 0, Some(Dim::Static(1)), None)?, &sequence, 0)?;
        let in_a = ops::add(ops::gather(&a_offsets, &sequence, 0)?, &position)?;
        let after = ops::add(ops::gather(&b_offsets, &sequence, 0)?, ops::sub(&in_a, &end)?)?;
        let in_b = ops::add(after, a_rows.clone())?;
        let source = ops::where_(ops::greater(&end, &in_a)?, &in_a, in_b)?;
        let rows = ops::gather(ops::concat([&a, &b], 0)?, source, 0)?;
        Ok(vec![rows, cast_value(&merged, dtype)?])
    }
}

/// Where the rows of a ragged tensor belong.
pub(crate) struct Rows {
    /// The sequence of each row, as int64: -1 before the first one, and their number after the last one.
    pub(crate) sequence: TensorValue,
    /// The place of each row in its sequence, as int64.
    pub(crate) position: TensorValue,
    /// Whether a row is in a sequence at all.
    pub(crate) inside: TensorValue,
}

impl Rows {
    /// Of a number of rows. The offsets are those that [`offsets`] gives.
    pub(crate) fn new(offsets: &TensorValue, count: &Dim) -> Result<Rows> {
        let row = ops::range(0, count.clone(), 1, None, DType::Int64, offsets.device())?;
        let started = ops::greater_equal(ops::unsqueeze(&row, 1)?, ops::unsqueeze(offsets, 0)?)?;
        let started = ops::sum(cast_value(&started, DType::Int64)?, 1)?;
        let sequence = ops::sub(reshape_value(&started, [count].into())?, 1)?;
        let first = ops::max(&sequence, 0)?;
        let position = ops::sub(row, ops::gather(offsets, first, 0)?)?;
        let sequences = offsets.shape()[0].sub(&Dim::Static(1))?;
        let inside =
            ops::logical_and(ops::greater_equal(&sequence, 0)?, ops::greater(sequences, &sequence)?)?;
        Ok(Rows { sequence, position, inside })
    }

    /// The entry of a table for each row, and another value for rows in no sequence. The table has one entry per sequence.
    pub(crate) fn pick(&self, table: &TensorValue, other: i64) -> Result<TensorValue> {
        let spare = Operand::from(other).weak(table.dtype(), table.device())?;
        let table = ops::concat([table, &reshape_value(&spare, [1].into())?], 0)?;
        let last = table.shape()[0].sub(&Dim::Static(1))?;
        ops::gather(table, ops::where_(&self.inside, &self.sequence, last)?, 0)
    }
}

/// Offsets as an int64 vector where a tensor is.
pub(crate) fn offsets(name: &str, offsets: Operand, x: &TensorValue) -> Result<TensorValue> {
    let offsets = offsets.tensor()?;
    let empty = offsets.shape().first().is_some_and(|size| *size == Dim::Static(0));
    if offsets.rank() != 1 || !offsets.dtype().is_integral() || empty {
        bail!(
            value,
            "{name} must be a vector of integers, one more than there are sequences; got {}",
            offsets.tensor_type()
        );
    }
    cast_value(&ops::transfer_to(offsets, x.device())?, DType::Int64)
}

#[cfg(test)]
mod tests {
    use max_core::{DeviceRef, Shape, TensorType};

    use super::*;
    use crate::host::HostTensor;
    use crate::{Graph, interpret};

    fn ints(elements: &[i32]) -> HostTensor {
        HostTensor::from_vec([elements.len()], elements.to_vec()).unwrap()
    }

    fn merge(inputs: [HostTensor; 4], names: [&str; 4]) -> Result<[Vec<i32>; 2]> {
        let types = inputs.iter().zip(names).map(|(x, name)| {
            let dims = [Dim::from(name)]
                .into_iter()
                .chain(x.shape()[1..].iter().map(|&size| Dim::Static(size as i64)));
            TensorType::new(x.dtype(), dims.collect::<Shape>(), DeviceRef::CPU)
        });
        let graph = Graph::build("g", types, |x| merge_ragged_tensors(&x[0], &x[1], &x[2], &x[3]))?;
        let results = interpret(&graph.body(), &inputs, &())?;
        Ok([results[0].elements::<i32>()?.to_vec(), results[1].elements::<i32>()?.to_vec()])
    }

    const NAMES: [&str; 4] = ["a", "s", "b", "s"];

    #[test]
    fn sequences_are_joined_in_order() {
        let a = [ints(&[1, 2, 3, 4, 5, 6]), ints(&[0, 2, 6]), ints(&[7, 8, 9, 10]), ints(&[0, 3, 4])];
        let merged = merge(a.clone(), NAMES).unwrap();
        assert_eq!(merged, [vec![1, 2, 7, 8, 9, 3, 4, 5, 6, 10], vec![0, 5, 10]]);
        // Also if the numbers of sequences are known to be equal only at run time.
        assert_eq!(merge(a, ["a", "s", "b", "t"]).unwrap(), merged);
        let rows = |elements: &[i32]| ints(elements).reshaped([elements.len() / 2, 2]).unwrap();
        let merged =
            merge([rows(&[1, 2]), ints(&[0, 0, 1, 1]), rows(&[3, 4, 5, 6]), ints(&[0, 1, 1, 2])], NAMES);
        assert_eq!(merged.unwrap(), [vec![3, 4, 1, 2, 5, 6], vec![0, 1, 2, 3]]);
    }

    #[test]
    fn there_may_be_no_rows_and_no_sequences() {
        assert_eq!(merge([ints(&[]), ints(&[0]), ints(&[]), ints(&[0])], NAMES).unwrap(), [vec![], vec![0]]);
        let one = merge([ints(&[]), ints(&[0, 0]), ints(&[4, 5]), ints(&[0, 2])], NAMES).unwrap();
        assert_eq!(one, [vec![4, 5], vec![0, 2]]);
    }

    #[test]
    fn rows_in_no_sequence_are_an_error() {
        let result = merge([ints(&[1, 2]), ints(&[0, 1]), ints(&[3]), ints(&[0, 1])], NAMES);
        assert!(result.unwrap_err().to_string().contains("out of range"));
    }
}
