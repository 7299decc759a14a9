//! Gathers: slices of a tensor, picked by indices along one axis or along several.

use max_core::{Dim, HostBytes, Result, TensorType, Type, bail};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::{HostTensor, allocate, byte_count};
use crate::op::{Operation, Run};
use crate::operand::{Operand, same_device};
use crate::ops::rebind::assert_dim;
use crate::ops::{axis_dim, tensors};
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::TensorValue;

op_struct! {
    /// The axis is replaced by the axes of the indices; negative indices count from the end.
    Gather = "gather" { axis: usize }
}

op_struct! {
    /// The vectors in the last axis of the indices pick slices by their positions along the axes after the first
    /// `batch_dims`, which both operands share.
    GatherNd = "gather_nd" { batch_dims: usize }
}

op_fns! {
    /// Picks slices along an axis by index.
    pub fn gather(input: Operand, indices: Operand, axis: i64 = -1) -> TensorValue {
        let input = input.tensor()?;
        let indices = indices.on(input.device())?;
        same_device([&input, &indices])?;
        record_one(Gather { axis: input.shape().axis(axis)? }, [&input, &indices])
    }

    /// Picks slices by index along several axes at once.
    ///
    /// The first `batch_dims` axes of both operands are the same. The last axis of the indices holds positions along the
    /// axes of the input that follow them; what remains of the input is taken whole.
    pub fn gather_nd(input: Operand, indices: Operand, batch_dims: i64 = 0) -> TensorValue {
        let input = input.tensor()?;
        let mut indices = indices.on(input.device())?;
        same_device([&input, &indices])?;
        let Ok(batch_dims) = usize::try_from(batch_dims) else {
            bail!(value, "gather_nd batch_dims must be non-negative; got {batch_dims}");
        };
        if batch_dims < indices.rank() && batch_dims <= input.rank() {
            for at in 0..batch_dims {
                indices = assert_dim(indices, at, input.shape()[at].clone(), "gather_nd batch_dims")?;
            }
        }
        record_one(GatherNd { batch_dims }, [&input, &indices])
    }
}

/// The shape of indices whose vectors, in the last axis, are positions along several axes.
pub(crate) struct IndexSize<'a> {
    /// The other axes.
    pub(crate) before: &'a [Dim],
    /// How many axes there is a position for.
    pub(crate) axes: usize,
}

impl IndexSize<'_> {
    /// Of the indices of an op, for a number of axes.
    pub(crate) fn of<'a>(op: &str, indices: &'a TensorType, most: usize) -> Result<IndexSize<'a>> {
        let Some((last, before)) = indices.shape.split_last() else {
            bail!(value, "{op} indices must have at least one axis, the positions; got a scalar");
        };
        let Some(axes) = last.as_static().and_then(|size| usize::try_from(size).ok()) else {
            bail!(value, "the last dimension of {op} indices must be static; got {}", indices.shape);
        };
        if axes > most {
            bail!(
                value,
                "Not enough dims in the input of {op} for indices {}: they are positions along {axes} axes, of which there are \
                 {most}",
                indices.shape
            );
        }
        Ok(IndexSize { before, axes })
    }
}

/// A product of sizes, which may be of any size where there are no elements.
pub(crate) fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |product, &size| product.saturating_mul(size))
}

/// The element of a row-major array that indices name, for the axes from a given one on; negative ones count from the end.
pub(crate) fn position(indices: &[i64], sizes: &[usize], first: usize) -> Result<usize> {
    let mut place = 0;
    for (axis, (&index, &size)) in indices.iter().zip(sizes).enumerate() {
        let at = if index < 0 { index + size as i64 } else { index };
        if at < 0 || at >= size as i64 {
            bail!(index, "index {index} is out of range for axis {} with size {size}", first + axis);
        }
        place = place * size + at as usize;
    }
    Ok(place)
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
        let picks = indices.to_integers()?.into_iter().map(|index| position(&[index], &[size], self.axis));
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

impl Operation for GatherNd {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [input, indices] = tensors(operands)?;
        if !indices.dtype.is_integral() {
            bail!(value, "gather_nd indices must be integral; got {}", indices.dtype);
        }
        let Some(most) = input.shape.rank().checked_sub(self.batch_dims) else {
            bail!(value, "Not enough dims in the input {} for batch_dims={}", input.shape, self.batch_dims);
        };
        let IndexSize { before, axes } = IndexSize::of("gather_nd", indices, most)?;
        let Some((batch, picks)) = before.split_at_checked(self.batch_dims) else {
            bail!(
                value,
                "Not enough dims in the indices {} for batch_dims={}",
                indices.shape,
                self.batch_dims
            );
        };
        if *batch != input.shape[..self.batch_dims] {
            bail!(
                value,
                "input {} and indices {} of gather_nd must match up to batch_dims={}",
                input.shape,
                indices.shape,
                self.batch_dims
            );
        }
        let rest = &input.shape[self.batch_dims + axes..];
        Ok(vec![input.with_shape([batch, picks, rest].concat()).into()])
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
        let (batch, shape) = (self.batch_dims, indices.shape());
        let axes = shape.last().copied().unwrap_or(0);
        let picked = &shape[..shape.len() - 1];
        let (sizes, rest) = input.shape()[batch..].split_at(axes);
        let vectors = indices.to_integers()?;
        let slice = product(rest).saturating_mul(input.dtype().size_in_bytes());
        let line = product(sizes).saturating_mul(slice);
        let result = [picked, rest].concat();
        let total = byte_count(input.dtype(), &result)?;
        let mut bytes = allocate::<u8>(total)?;
        let picks = product(&picked[batch..]);
        // Without axes every pick is whole; there may be any number of them if that is empty.
        let count = if axes == 0 && total == 0 { 0 } else { product(picked) };
        for pick in 0..count {
            let place = position(&vectors[pick * axes..][..axes], sizes, batch)?;
            if total > 0 {
                bytes.extend_from_slice(&input.bytes()[pick / picks * line + place * slice..][..slice]);
            }
        }
        Ok(vec![HostTensor::new(input.dtype(), result, HostBytes::from_vec(bytes))?])
    }
}
