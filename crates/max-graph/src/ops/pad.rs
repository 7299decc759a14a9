//! Padding: a tensor with more elements before and after it along its axes.

use max_core::{DType, Dim, Number, Result, Shape, bail};

use crate::graph::record_one;
use crate::operand::Operand;
use crate::ops;
use crate::ops::cast::cast_value;
use crate::ops::slice::Slice;
use crate::registry::op_fns;
use crate::value::TensorValue;

/// How many axes are padded at once with elements of the tensor, so that its own are copied once: the parts are three to
/// the power of that.
const TOGETHER: usize = 3;

op_fns! {
    /// Adds elements before and after each axis; `paddings` has both numbers for each axis in turn.
    ///
    /// In the mode "constant" these are a value, in the mode "reflect" those of the tensor mirrored at its first and last
    /// one, and in the mode "edge" (or "replicate") the first and last ones repeated.
    pub fn pad(input: Operand, paddings: Vec<i64>, mode: String = "constant", value: Operand = 0) -> TensorValue {
        let x = input.tensor()?;
        if paddings.len() != 2 * x.rank() {
            bail!(
                value,
                "pad needs two values for each of the {} axes of {}; got {paddings:?}", x.rank(), x.shape()
            );
        }
        if paddings.iter().any(|&size| size < 0) {
            bail!(value, "padding values must be non-negative but given {paddings:?}");
        }
        let ends = paddings.chunks_exact(2).enumerate().map(|(axis, ends)| Ends { axis, sizes: [ends[0], ends[1]] });
        let ends: Vec<Ends> = ends.filter(|ends| ends.sizes != [0, 0]).collect();
        let (source, together) = match mode.as_str() {
            "constant" => (Source::Value(filling(value, &x)?), ends.len().max(1)),
            "reflect" => (Source::Mirror, TOGETHER),
            "edge" | "replicate" => (Source::Edge, TOGETHER),
            other => bail!(value, "unsupported padding mode '{other}'; expected 'constant', 'reflect', or 'edge'"),
        };
        ends.chunks(together).try_fold(x, |x, ends| padded(&x, ends, &source))
    }
}

/// How many elements are added before and after an axis.
#[derive(Clone, Copy)]
struct Ends {
    axis: usize,
    sizes: [i64; 2],
}

/// What the added elements are.
enum Source {
    Value(TensorValue),
    Mirror,
    Edge,
}

/// The scalar that a tensor is padded with.
fn filling(value: Operand, x: &TensorValue) -> Result<TensorValue> {
    let value = match value.as_number() {
        Some(Number::Int(number @ 0..=1)) if x.dtype() == DType::Bool => {
            Operand::number(Number::Bool(number == 1))
        }
        _ => value,
    };
    let value = value.like(x)?;
    if value.rank() != 0 {
        bail!(value, "pad value must be a scalar; got the shape {}", value.shape());
    }
    if !value.dtype().fits(x.dtype()) {
        bail!(value, "Unsafe cast: a {} tensor cannot be padded with {}", x.dtype(), value.dtype());
    }
    cast_value(&value, x.dtype())
}

/// The tensor with elements added along axes, the first of which is the outermost: the parts along an axis are padded along
/// the others before they are joined, so that each element is computed in its final place.
fn padded(x: &TensorValue, ends: &[Ends], source: &Source) -> Result<TensorValue> {
    let Some((&Ends { axis, sizes: [before, after] }, rest)) = ends.split_first() else {
        return Ok(x.clone());
    };
    let middle = padded(x, rest, source)?;
    let size = &x.shape()[axis];
    let part = |count: i64, last: bool| -> Result<Option<TensorValue>> {
        if count == 0 {
            return Ok(None);
        }
        let part = match source {
            Source::Value(value) => {
                let mut shape = middle.shape().to_vec();
                shape[axis] = Dim::Static(count);
                ops::broadcast_to(value, Shape::from(shape))?
            }
            Source::Mirror => {
                if size.as_static().is_some_and(|size| count >= size) {
                    bail!(
                        value,
                        "pad by reflection needs less padding than elements; got {count} for axis {axis} of {}",
                        x.shape()
                    );
                }
                let start = if last { size.sub(&Dim::Static(2))? } else { Dim::Static(count) };
                padded(&slice(x, axis, start, count, -1)?, rest, source)?
            }
            Source::Edge => {
                if *size == Dim::Static(0) {
                    bail!(
                        value,
                        "pad by repetition needs at least one element along axis {axis} of {}",
                        x.shape()
                    );
                }
                let start = if last { size.sub(&Dim::Static(1))? } else { Dim::Static(0) };
                let edge = padded(&slice(x, axis, start, 1, 1)?, rest, source)?;
                let mut shape = edge.shape().to_vec();
                shape[axis] = Dim::Static(count);
                ops::broadcast_to(edge, Shape::from(shape))?
            }
        };
        Ok(Some(part))
    };
    let parts = [part(before, false)?, Some(middle.clone()), part(after, true)?];
    ops::concat(parts.into_iter().flatten().collect::<Vec<_>>(), axis as i64)
}

/// Some elements along an axis, from a position in steps.
pub(crate) fn slice(
    x: &TensorValue,
    axis: usize,
    start: Dim,
    count: impl Into<Dim>,
    step: i64,
) -> Result<TensorValue> {
    let (mut starts, mut sizes) = (vec![Dim::Static(0); x.rank()], x.shape().to_vec());
    let mut steps = vec![1; x.rank()];
    (starts[axis], sizes[axis], steps[axis]) = (start, count.into(), step);
    record_one(Slice { starts: starts.into(), sizes: sizes.into(), steps }, [x])
}
