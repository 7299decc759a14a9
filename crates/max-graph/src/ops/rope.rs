//! Rotary position embeddings: pairs of elements turned by angles that grow with the position.
//!
//! A table holds the cosines and sines of the angles, `[positions, pairs, 2]`. Made by [`rope_table`] it is a function of
//! positions, of which only the rows that are used are computed.

mod argument;
mod scaling;

use max_core::{DType, DeviceRef, Dim, Number, Result, Shape, bail};

pub use scaling::RopeScaling;

use crate::graph::record_one;
use crate::host::HostTensor;
use crate::operand::Operand;
use crate::ops;
use crate::ops::cast::cast_value;
use crate::ops::constant::Constant;
use crate::ops::index::Limit;
use crate::ops::rebind::assert_dim;
use crate::ops::reshape::reshape_value;
use crate::ops::slice::{Bound, Index, part};
use crate::registry::{Arg, FromArg, op_fns};
use crate::value::TensorValue;

const ONE: Dim = Dim::Static(1);
const TWO: Dim = Dim::Static(2);

/// Where the positions of a sequence are in a table.
#[derive(Clone)]
pub enum Positions {
    /// One after the other, from a row on.
    From(Bound),
    /// The row of each position.
    At(TensorValue),
}

impl From<i64> for Positions {
    fn from(start: i64) -> Positions {
        Dim::Static(start).into()
    }
}

impl From<Dim> for Positions {
    fn from(start: Dim) -> Positions {
        Positions::From(Bound::Dim(start))
    }
}

/// A scalar is where the sequence starts.
impl From<&TensorValue> for Positions {
    fn from(positions: &TensorValue) -> Positions {
        match positions.rank() {
            0 => Positions::From(Bound::Tensor(positions.clone())),
            _ => Positions::At(positions.clone()),
        }
    }
}

impl FromArg for Positions {
    fn from_arg(arg: Arg) -> Result<Positions> {
        match arg {
            Arg::None => Ok(0.into()),
            arg @ (Arg::Number(Number::Int(_)) | Arg::Dim(_) | Arg::Str(_)) => {
                Dim::from_arg(arg).map(Positions::from)
            }
            arg => Operand::from_arg(arg)?.tensor().map(|positions| (&positions).into()),
        }
    }
}

op_fns! {
    /// The cosines and sines of the angles of a rotary position embedding, `[length, dim / 2, 2]`, in float32.
    ///
    /// The angles at position `p` are `p` times frequencies that fall from 1 to nearly `1 / theta`, scaled as models with
    /// longer contexts need it. Where the scaling depends on the length of the sequence, this is the length of the table,
    /// unless `sequence`, an integer scalar, says another.
    pub fn rope_table(
        scaling: RopeScaling, dim: i64, theta: f64, length: Dim, device: DeviceRef = "cpu",
        sequence: Option<Operand> = Arg::None,
    ) -> TensorValue {
        scaling.validate(dim, theta)?;
        if length.as_static().is_some_and(|length| length < 0) {
            bail!(value, "rope_table length must not be negative; got {length}");
        }
        let one = Limit::from(1);
        let positions = ops::range(0, length.clone(), one, None, DType::Float32, device)?;
        let positions = reshape_value(&positions, [&length, &ONE].into())?;
        let sequence = sequence.map(|sequence| Sequence::new(sequence, device)).transpose()?;
        turns(&scaling, dim, theta, &positions, sequence)
    }

    /// As [`rope_table()`], for some positions, `[tokens]`: the rows `[tokens, dim / 2, 2]`. Each token has the length of its
    /// sequence in `lengths`, `[tokens]`, which matters where the scaling depends on it.
    pub fn rope_rows(
        scaling: RopeScaling, dim: i64, theta: f64, positions: Operand, lengths: Operand,
    ) -> TensorValue {
        scaling.validate(dim, theta)?;
        let positions = positions.tensor()?;
        let lengths = lengths.on(positions.device())?;
        let column = |x: &TensorValue| -> Result<TensorValue> {
            if x.rank() != 1 || !x.dtype().is_integral() {
                bail!(value, "rope_rows takes vectors of integers; got {}", x.tensor_type());
            }
            cast_value(&ops::unsqueeze(x, 1)?, DType::Float32)
        };
        turns(&scaling, dim, theta, &column(&positions)?, Some(Sequence::Tensor(column(&lengths)?)))
    }

    /// Turns pairs along the last axis of `[.., sequence, heads, head_dim]` by the angles of their positions.
    ///
    /// The rows of the table are those from a start on (an int, a dim or a scalar), or those of a tensor of positions,
    /// `[sequence]` or `[.., sequence]`. Pairs are neighbours, or elements of the first and of the second half. If the table
    /// has fewer pairs, only as many elements are turned, the first ones. The angles are applied in float32.
    pub fn rope(x: Operand, table: Operand, positions: Positions = 0, interleaved: bool = true) -> TensorValue {
        let x = x.tensor()?;
        let table = table.on(x.device())?;
        let (rotary, rest) = rotary_part(&x, &table)?;
        let rows = rows(&x, &table, positions)?;
        let turned = turn(&rotary, &rows, interleaved)?;
        match rest {
            Some(rest) => ops::concat([turned, rest], -1),
            None => Ok(turned),
        }
    }
}

/// The cosines and sines of the angles at a column of positions.
fn turns(
    scaling: &RopeScaling,
    dim: i64,
    theta: f64,
    positions: &TensorValue,
    sequence: Option<Sequence>,
) -> Result<TensorValue> {
    let angles = ops::mul(positions, frequencies(scaling, dim, theta, positions, sequence)?)?;
    let factor = scaling.attention_factor();
    let sides = [ops::cos(&angles)?, ops::sin(&angles)?];
    let scaled = |side: &TensorValue| if factor == 1.0 { Ok(side.clone()) } else { ops::mul(side, factor) };
    ops::stack([scaled(&sides[0])?, scaled(&sides[1])?], -1)
}

/// The frequencies of pairs, or of pairs and positions, as a tensor that broadcasts with a column of positions.
fn frequencies(
    scaling: &RopeScaling,
    dim: i64,
    theta: f64,
    positions: &TensorValue,
    sequence: Option<Sequence>,
) -> Result<TensorValue> {
    let (length, device) = (&positions.shape()[0], positions.device());
    let constant = |values: Vec<f32>| -> Result<TensorValue> {
        record_one(Constant { value: HostTensor::from_vec(vec![values.len()], values)?, device }, [])
    };
    let of_length = |length: i64| constant(scaling.inverse_frequencies(dim, theta, length)?);
    let sequence = match sequence {
        Some(Sequence::Known(length)) => return of_length(length),
        Some(Sequence::Tensor(length)) => Some(length),
        None => None,
    };
    match (scaling, sequence) {
        (RopeScaling::Dynamic { factor, original }, Some(sequence)) => {
            let ratio = ops::div(ops::max(sequence, *original as f64)?, *original as f64)?;
            let stretch = ops::sub(ops::mul(ratio, *factor)?, factor - 1.0)?;
            let exponents = (0..dim / 2).map(|pair| (-2 * pair) as f32 / (dim - 2) as f32).collect();
            let shrink = ops::exp(ops::mul(ops::log(stretch)?, constant(exponents)?)?)?;
            ops::mul(of_length(*original)?, shrink)
        }
        (RopeScaling::Dynamic { .. }, None) => match length.as_static() {
            Some(length) => of_length(length),
            None => bail!(
                value,
                "a rope_table of {length} rows that is scaled dynamically needs the length of the sequence"
            ),
        },
        (RopeScaling::LongRope { original_max_position: original, .. }, sequence) => {
            let (short, long) = (*original, original.saturating_add(1));
            if sequence.is_none() && length.as_static().is_some_and(|length| length <= *original) {
                return of_length(short);
            }
            let is_long = match sequence {
                Some(sequence) => ops::greater(sequence, *original as f64)?,
                None => ops::greater_equal(positions, *original as f64)?,
            };
            ops::where_(is_long, of_length(long)?, of_length(short)?)
        }
        _ => of_length(0),
    }
}

/// The length of a sequence.
enum Sequence {
    Known(i64),
    /// A float32 scalar where the table is, or a column with one for each position.
    Tensor(TensorValue),
}

impl Sequence {
    fn new(length: Operand, device: DeviceRef) -> Result<Sequence> {
        if let Some(length) = length.as_size() {
            return length.map(Sequence::Known);
        }
        let length = length.on(device)?;
        if length.rank() != 0 || !length.dtype().is_integral() {
            bail!(
                value,
                "the length of a sequence must be an integer scalar; got {} of shape {}",
                length.dtype(),
                length.shape()
            );
        }
        cast_value(&ops::transfer_to(length, device)?, DType::Float32).map(Sequence::Tensor)
    }
}

/// What a table turns, and the elements after it, if there are any.
fn rotary_part(x: &TensorValue, table: &TensorValue) -> Result<(TensorValue, Option<TensorValue>)> {
    let pairs = match &table.shape()[..] {
        [_, pairs, last] if *last == TWO => pairs,
        _ => bail!(value, "a table of rope has the shape [positions, pairs, 2]; got {}", table.shape()),
    };
    let [.., _, _, head_dim] = &x.shape()[..] else {
        bail!(value, "rope takes [.., sequence, heads, head_dim]; got the shape {}", x.shape());
    };
    if !x.dtype().is_float() || !table.dtype().is_float() {
        bail!(type_, "rope takes floats; got {} and a table of {}", x.dtype(), table.dtype());
    }
    let (last, width) = (x.rank() - 1, pairs.mul(&TWO)?);
    match (head_dim.as_static(), width.as_static()) {
        _ if *head_dim == width => Ok((x.clone(), None)),
        (Some(head_dim), Some(width)) if width < head_dim => {
            let at = Some(Dim::Static(width));
            Ok((part(x, last, None, at.clone())?, Some(part(x, last, at, None)?)))
        }
        (Some(head_dim), Some(width)) => bail!(
            value,
            "a table of rope for {width} elements is too wide for a head_dim of {head_dim} in {}",
            x.shape()
        ),
        _ => {
            let message = "the elements that a table of rope is for";
            Ok((assert_dim(x.clone(), last, width, message)?, None))
        }
    }
}

/// The rows of a table for the positions of `x`, as `[.., sequence, 1, pairs, 2]`.
fn rows(x: &TensorValue, table: &TensorValue, positions: Positions) -> Result<TensorValue> {
    let outer = &x.shape()[..x.rank() - 2];
    let sequence = &outer[outer.len() - 1];
    let rows = match positions {
        Positions::From(Bound::Natural) => part(table, 0, None, Some(sequence.clone()))?,
        Positions::From(Bound::Dim(start)) => {
            if start.as_static().is_some_and(|start| start < 0) {
                bail!(value, "rope starts at a position of the table; got {start}");
            }
            let stop = start.add(sequence)?;
            part(table, 0, Some(start), Some(stop))?
        }
        Positions::From(Bound::Tensor(start)) => {
            let stop = ops::add(&start, sequence.clone())?;
            let (start, stop) = (Bound::Tensor(start), Bound::Tensor(stop));
            let rows = Index::Slice { start, stop, step: 1, out_dim: Some(sequence.clone()) };
            ops::slice_tensor(table, vec![rows])?
        }
        Positions::At(positions) => ops::gather(table, fitted(positions, outer)?, 0)?,
    };
    let [before @ .., pairs, two] = &rows.shape()[..] else { bail!(internal, "rows of rope without pairs") };
    let shape = [before, &[ONE, pairs.clone(), two.clone()]].concat();
    reshape_value(&rows, shape.into())
}

/// Positions whose dims are those of `outer`, or one.
fn fitted(positions: TensorValue, outer: &[Dim]) -> Result<TensorValue> {
    let wrong = |positions: &TensorValue| -> Result<TensorValue> {
        let outer = Shape::from(outer);
        bail!(
            value,
            "the positions of rope must fit {outer}, the axes before the heads; got {}",
            positions.shape()
        )
    };
    let Some(missing) = outer.len().checked_sub(positions.rank()) else { return wrong(&positions) };
    let mut fitted = positions;
    for (axis, dim) in outer[missing..].iter().enumerate() {
        if fitted.shape()[axis] == ONE {
            continue;
        }
        if fitted.shape()[axis].differs(dim) {
            return wrong(&fitted);
        }
        fitted = assert_dim(fitted, axis, dim.clone(), "the positions of rope")?;
    }
    Ok(fitted)
}

/// Pairs along the last axis, multiplied as complex numbers by rows of cosines and sines.
fn turn(x: &TensorValue, rows: &TensorValue, interleaved: bool) -> Result<TensorValue> {
    let double = [x, rows].iter().any(|operand| operand.dtype() == DType::Float64);
    let wide = if double { DType::Float64 } else { DType::Float32 };
    let [outer @ .., _] = &x.shape()[..] else { bail!(internal, "rope of a scalar") };
    let pairs = rows.shape()[rows.rank() - 2].clone();
    let (split, axis) = if interleaved { ([pairs, TWO], -1) } else { ([TWO, pairs], -2) };
    let split = reshape_value(x, [outer, &split].concat().into())?;
    // Casts of parts, not parts of casts: so everything is one loop.
    let of_pair = |at: i64| {
        let part = match interleaved {
            true => ops::slice_tensor(&split, vec![Index::Ellipsis, at.into()]),
            false => ops::slice_tensor(&split, vec![Index::Ellipsis, at.into(), Index::from(..)]),
        };
        cast_value(&part?, wide)
    };
    let of_row = |at: i64| cast_value(&ops::slice_tensor(rows, vec![Index::Ellipsis, at.into()])?, wide);
    let ([a, b], [cos, sin]) = ([of_pair(0)?, of_pair(1)?], [of_row(0)?, of_row(1)?]);
    let first = ops::sub(ops::mul(&a, &cos), ops::mul(&b, &sin))?;
    let second = ops::add(ops::mul(&a, &sin), ops::mul(&b, &cos))?;
    let sides = [cast_value(&first, x.dtype())?, cast_value(&second, x.dtype())?];
    reshape_value(&ops::stack(sides, axis)?, x.shape().clone())
}

#[cfg(test)]
mod tests {
    use max_core::{TensorType, Type};

    use super::*;
    use crate::{Graph, interpret};

    /// The results of a graph of one tensor and a scalar.
    fn run(
        x: HostTensor,
        start: i64,
        build: impl Fn(&TensorValue, &TensorValue) -> Result<TensorValue>,
    ) -> Result<Vec<f32>> {
        let shape: Shape = x.shape().iter().copied().collect();
        let types: [Type; 2] = [
            TensorType::new(DType::Float32, shape, DeviceRef::CPU).into(),
            TensorType::new(DType::Int64, Shape::default(), DeviceRef::CPU).into(),
        ];
        let graph = Graph::new("rope", types)?;
        {
            let _scope = graph.enter();
            graph.output(build(&graph.input(0)?, &graph.input(1)?)?)?;
        }
        let start = HostTensor::from_vec(vec![], vec![start])?;
        Ok(interpret(&graph.body(), &[x, start], &())?.remove(0).elements::<f32>()?.to_vec())
    }

    fn ones(shape: &[usize]) -> HostTensor {
        HostTensor::from_vec(shape.to_vec(), vec![1.0f32; shape.iter().product()]).unwrap()
    }

    fn table(length: i64) -> Result<TensorValue> {
        rope_table(RopeScaling::None, 2, 10000.0, Dim::Static(length), DeviceRef::CPU, None)
    }

    #[test]
    fn pairs_are_turned_by_their_position() {
        let close = |found: Vec<f32>, angle: f32| {
            let expected = [angle.cos() - angle.sin(), angle.sin() + angle.cos()];
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?} {expected:?}");
        };
        close(run(ones(&[1, 1, 2]), 0, |x, _| rope(x, table(4)?, 3, true)).unwrap(), 3.0);
        close(run(ones(&[1, 1, 2]), 2, |x, start| rope(x, table(4)?, start, false)).unwrap(), 2.0);
        close(
            run(ones(&[1, 1, 2]), 1, |x, at| rope(x, table(4)?, &ops::reshape(at, [1])?, true)).unwrap(),
            1.0,
        );
    }

    #[test]
    fn the_rest_is_kept() {
        let found = run(ones(&[2, 1, 5]), 0, |x, _| rope(x, table(4)?, 0, true)).unwrap();
        assert_eq!([&found[..5], &found[7..]].concat(), [1.0; 8]);
        assert!(found[5..7].iter().all(|&turned| turned != 1.0));
    }

    #[test]
    fn nothing_is_turned_where_there_is_nothing() {
        for shape in [[0, 1, 2], [1, 0, 2]] {
            assert_eq!(run(ones(&shape), 0, |x, _| rope(x, table(1)?, 0, true)).unwrap(), [0f32; 0]);
        }
        assert_eq!(run(ones(&[0, 1, 2]), 0, |x, _| rope(x, table(0)?, 0, true)).unwrap(), [0f32; 0]);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let fails = |shape: &[usize],
                     start: i64,
                     build: fn(&TensorValue, &TensorValue) -> Result<TensorValue>,
                     says: &str| {
            let error = run(ones(shape), start, build).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        };
        fails(&[5, 1, 2], 0, |x, _| rope(x, table(4)?, 0, true), "out of range");
        fails(&[1, 1, 2], 4, |x, start| rope(x, table(4)?, start, true), "out of range");
        fails(&[1, 1, 2], 4, |x, at| rope(x, table(4)?, &ops::reshape(at, [1])?, true), "out of range");
        fails(
            &[1, 1, 2],
            0,
            |x, _| rope(x, table(4)?, -1, true),
            "starts at a position of the table; got -1",
        );
        fails(&[1, 1, 1], 0, |x, _| rope(x, table(4)?, 0, true), "too wide for a head_dim of 1");
        fails(&[1, 2], 0, |x, _| rope(x, table(4)?, 0, true), "takes [.., sequence, heads, head_dim]");
        fails(&[2, 1, 2], 0, |x, at| rope(x, table(4)?, &ops::broadcast_to(at, [3])?, true), "must fit [2]");
        fails(&[1, 1, 4], 0, |x, _| rope(x, x, 0, true), "a table of rope has the shape");
        fails(&[1, 1, 2], 0, |_, _| table(-1), "length must not be negative; got -1");
    }
}
