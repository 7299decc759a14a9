//! Reductions along an axis, several or all of them. They are kept with size one, unless they are dropped.

use std::ops::Range;

use max_core::scalar::Lane;
use max_core::{DType, Dim, Element, Result, Shape, TensorType, Type, bail, dispatch};

use crate::attr::{Attr, AttrType, op_struct};
use crate::graph::record_one;
use crate::host::{HostTensor, allocate};
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::cast::cast_value;
use crate::ops::reshape::reshape_value;
use crate::ops::{axis_dim, tensors};
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::{Arg, FromArg, op_fns};
use crate::value::TensorValue;

/// What a reduction computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum ReduceKind {
    Sum,
    Prod,
    Mean,
    Max,
    Min,
    ArgMax,
    ArgMin,
}

impl ReduceKind {
    const ALL: [(ReduceKind, &'static str); 7] = [
        (ReduceKind::Sum, "sum"),
        (ReduceKind::Prod, "prod"),
        (ReduceKind::Mean, "mean"),
        (ReduceKind::Max, "max"),
        (ReduceKind::Min, "min"),
        (ReduceKind::ArgMax, "argmax"),
        (ReduceKind::ArgMin, "argmin"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    fn gives_index(self) -> bool {
        matches!(self, ReduceKind::ArgMax | ReduceKind::ArgMin)
    }

    /// Whether the reduction of zero elements is defined.
    fn has_identity(self) -> bool {
        matches!(self, ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Mean)
    }

    /// Checks that the reduction of an axis of a given size is defined.
    pub fn check_size(self, size: i64) -> Result<()> {
        match size {
            0 if !self.has_identity() => bail!(value, "{} of an axis of size 0 is not defined", self.name()),
            _ => Ok(()),
        }
    }
}

impl AttrType for ReduceKind {
    fn to_attr(&self) -> Attr {
        Attr::Str(self.name().into())
    }

    fn from_attr(attr: Attr) -> Option<Self> {
        let name = String::from_attr(attr)?;
        Self::ALL.iter().find(|(_, n)| *n == name).map(|(kind, _)| *kind)
    }
}

op_struct! {
    /// Reduces an axis to size one.
    Reduce = "reduce" { kind: ReduceKind, axis: usize }
}

/// The axes of a reduction: one, several or all of them.
#[derive(Clone, Debug)]
pub struct Axes {
    which: Which,
    keep: bool,
}

#[derive(Clone, Debug)]
enum Which {
    All,
    One(i64),
    Several(Vec<i64>),
}

impl Axes {
    /// All axes.
    pub fn all() -> Axes {
        Which::All.into()
    }

    /// The same axes, which the result does not have.
    pub fn dropped(self) -> Axes {
        Axes { keep: false, ..self }
    }

    /// The same axes, which the result has with size one.
    fn kept(&self) -> Axes {
        self.which.clone().into()
    }

    /// Their numbers in a shape, in ascending order.
    fn resolve(&self, shape: &Shape) -> Result<Vec<usize>> {
        let axes = match &self.which {
            Which::All => return Ok((0..shape.rank()).collect()),
            Which::One(axis) => return Ok(vec![shape.axis(*axis)?]),
            Which::Several(axes) => axes,
        };
        let mut found = axes.iter().map(|&axis| shape.axis(axis)).collect::<Result<Vec<_>>>()?;
        found.sort_unstable();
        if let Some(twice) = found.windows(2).find(|pair| pair[0] == pair[1]) {
            bail!(
                value,
                "Invalid axis: {} is given twice in {axes:?} for a tensor of shape {shape}",
                twice[0]
            );
        }
        Ok(found)
    }
}

impl From<Which> for Axes {
    fn from(which: Which) -> Axes {
        Axes { which, keep: true }
    }
}

impl From<i32> for Axes {
    fn from(axis: i32) -> Axes {
        Which::One(axis.into()).into()
    }
}

impl From<i64> for Axes {
    fn from(axis: i64) -> Axes {
        Which::One(axis).into()
    }
}

impl From<Vec<i64>> for Axes {
    fn from(axes: Vec<i64>) -> Axes {
        Which::Several(axes).into()
    }
}

impl<const N: usize> From<[i64; N]> for Axes {
    fn from(axes: [i64; N]) -> Axes {
        axes.to_vec().into()
    }
}

/// Axes that are not kept arrive as a pair of the axes and "dropped".
impl FromArg for Axes {
    fn from_arg(arg: Arg) -> Result<Axes> {
        match arg {
            Arg::None => Ok(Axes::all()),
            Arg::List(mut list) => match list.as_slice() {
                [_, Arg::Str(word)] if word == "dropped" => {
                    Axes::from_arg(list.swap_remove(0)).map(Axes::dropped)
                }
                _ => Vec::from_arg(Arg::List(list)).map(Axes::from),
            },
            arg => i64::from_arg(arg).map(Axes::from),
        }
    }
}

op_fns! {
    /// The sum along axes.
    pub fn sum(x: Operand, axis: Axes = -1) -> TensorValue {
        reduce(ReduceKind::Sum, x, axis)
    }

    /// The product along axes.
    pub fn prod(x: Operand, axis: Axes = -1) -> TensorValue {
        reduce(ReduceKind::Prod, x, axis)
    }

    /// The mean along axes; of integers, truncated.
    pub fn mean(x: Operand, axis: Axes = -1) -> TensorValue {
        reduce(ReduceKind::Mean, x, axis)
    }

    /// The largest element along axes; NaN wins.
    pub fn reduce_max(x: Operand, axis: Axes = -1) -> TensorValue {
        reduce(ReduceKind::Max, x, axis)
    }

    /// The smallest element along axes; NaN wins.
    pub fn reduce_min(x: Operand, axis: Axes = -1) -> TensorValue {
        reduce(ReduceKind::Min, x, axis)
    }

    /// The index of the first largest element along an axis, as int64; along all axes, the index in row-major order.
    pub fn argmax(x: Operand, axis: Axes = -1) -> TensorValue {
        reduce(ReduceKind::ArgMax, x, axis)
    }

    /// The index of the first smallest element along an axis, as int64; along all axes, the index in row-major order.
    pub fn argmin(x: Operand, axis: Axes = -1) -> TensorValue {
        reduce(ReduceKind::ArgMin, x, axis)
    }

    /// Whether any element along axes is true, or not zero.
    pub fn any(x: Operand, axis: Axes = -1) -> TensorValue {
        reduce(ReduceKind::Sum, truth(x)?.into(), axis)
    }

    /// Whether all elements along axes are true, or not zero.
    pub fn all(x: Operand, axis: Axes = -1) -> TensorValue {
        reduce(ReduceKind::Prod, truth(x)?.into(), axis)
    }

    /// The population variance along axes.
    pub fn var(x: Operand, axis: Axes = -1) -> TensorValue {
        deviation(x, axis, Ok)
    }

    /// The population standard deviation along axes.
    pub fn stdev(x: Operand, axis: Axes = -1) -> TensorValue {
        deviation(x, axis, |variance| crate::ops::sqrt(variance))
    }
}

fn reduce(kind: ReduceKind, x: Operand, axes: Axes) -> Result<TensorValue> {
    let x = x.tensor()?;
    let found = axes.resolve(x.shape())?;
    match (&axes.which, found.as_slice(), axes.keep) {
        (_, &[axis], true) => return record_one(Reduce { kind, axis }, [&x]),
        (Which::Several(several), [] | [_, _, ..], _) if kind.gives_index() => bail!(
            value,
            "Invalid axis: {} gives one index, so it takes one axis, or None for all of them; got {several:?}",
            kind.name()
        ),
        _ => {}
    }
    let mut dims = x.shape().to_vec();
    found.iter().for_each(|&axis| dims[axis] = Dim::Static(1));
    if !axes.keep {
        dims = (0..dims.len()).filter(|axis| !found.contains(axis)).map(|axis| dims[axis].clone()).collect();
    }
    // Adjacent axes are one axis of a reshaped tensor. The last run is reduced first, so that others keep their numbers.
    let mut runs: Vec<Range<usize>> = Vec::new();
    for &axis in &found {
        match runs.last_mut() {
            Some(run) if run.end == axis => run.end += 1,
            _ => runs.push(axis..axis + 1),
        }
    }
    let wide = match x.dtype() {
        _ if runs.len() < 2 => x.dtype(),
        dtype if dtype.is_integral() && kind == ReduceKind::Mean => DType::Float64,
        dtype if dtype.is_float() && dtype.size_in_bytes() < 4 => DType::Float32,
        dtype => dtype,
    };
    let mut y = cast_value(&x, wide)?;
    if runs.is_empty() {
        runs.push(x.rank()..x.rank()); // no axes are one of size one
    }
    for run in runs.into_iter().rev() {
        let merged = Shape::from(&y.shape()[run.clone()]).num_elements()?;
        let shape = [&y.shape()[..run.start], &[merged], &y.shape()[run.end..]].concat();
        y = record_one(Reduce { kind, axis: run.start }, [&reshape_value(&y, shape.into())?])?;
    }
    let dtype = if kind.gives_index() { DType::Int64 } else { x.dtype() };
    reshape_value(&cast_value(&y, dtype)?, dims.into())
}

/// Which elements are not zero. The sum of bools is their disjunction, and the product their conjunction.
fn truth(x: Operand) -> Result<TensorValue> {
    let x = x.tensor()?;
    if x.dtype() == DType::Bool { Ok(x) } else { crate::ops::not_equal(&x, 0) }
}

/// A function of the variance; integers and narrow floats are computed in a wider dtype and rounded once.
fn deviation(
    x: Operand,
    axes: Axes,
    finish: impl FnOnce(TensorValue) -> Result<TensorValue>,
) -> Result<TensorValue> {
    let x = x.tensor()?;
    let wide = match x.dtype() {
        DType::Bool => bail!(type_, "the variance of a bool tensor is not defined; cast it first"),
        dtype if dtype.is_integral() => DType::Float64,
        dtype if dtype.size_in_bytes() < 4 => DType::Float32,
        dtype => dtype,
    };
    let w = cast_value(&x, wide)?;
    let deviation = (&w - mean(&w, axes.kept()))?;
    let variance = mean(&deviation * &deviation, axes)?;
    cast_value(&finish(variance)?, x.dtype())
}

impl Operation for Reduce {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [x] = tensors(operands)?;
        axis_dim(x, self.axis)?;
        let mut dims = x.shape.to_vec();
        dims[self.axis] = Dim::Static(1);
        let dtype = if self.kind.gives_index() { DType::Int64 } else { x.dtype };
        Ok(vec![TensorType::new(dtype, Shape::from(dims), x.device).into()])
    }

    fn properties(&self, signature: Signature) -> Properties {
        let folding = match self.kind {
            ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Mean => signature.rounded(),
            ReduceKind::Max | ReduceKind::Min | ReduceKind::ArgMax | ReduceKind::ArgMin => Folding::Exactly,
        };
        Properties {
            effects: Effects::NONE,
            // The maximum of nothing is an error only where it is used.
            checks: false,
            form: Form::Kernel,
            folding,
            heavy: false,
            rounds_operands: self.kind.gives_index(),
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let x = &operands[0];
        self.kind.check_size(x.shape()[self.axis] as i64)?;
        let result = dispatch!(x.dtype(), T => match self.kind {
            ReduceKind::Sum => accumulate::<T>(x, self.axis, 0, |a, b| a + b, Lane::add),
            ReduceKind::Prod => accumulate::<T>(x, self.axis, 1, |a, b| a * b, Lane::mul),
            ReduceKind::Mean => fold(x, self.axis, |row: &mut dyn Iterator<Item = T>| {
                T::from_double(pairwise(row, 0.0, |a, b| a + b) / x.shape()[self.axis] as f64)
            }),
            ReduceKind::Max => lanes::<T>(x, self.axis, Lane::max),
            ReduceKind::Min => lanes::<T>(x, self.axis, Lane::min),
            ReduceKind::ArgMax => best::<T>(x, self.axis, |best, new| best.lt(new).get()),
            ReduceKind::ArgMin => best::<T>(x, self.axis, |best, new| new.lt(best).get()),
        });
        Ok(vec![result?])
    }
}

/// Applies a function to each row along an axis.
fn fold<T: Element, O: Element>(
    x: &HostTensor,
    axis: usize,
    f: impl Fn(&mut dyn Iterator<Item = T>) -> O,
) -> Result<HostTensor> {
    let elements = x.elements::<T>()?;
    let mut sizes = x.shape().to_vec();
    let len = std::mem::replace(&mut sizes[axis], 1);
    let inner: usize = sizes[axis..].iter().product();
    let rows: usize = sizes.iter().product();
    let mut results = allocate(rows)?;
    for row in 0..rows {
        let start = row / inner * len * inner + row % inner;
        results.push(f(&mut (0..len).map(|i| elements[start + i * inner])));
    }
    HostTensor::from_vec(sizes, results)
}

/// Combines a row in f64, pairwise: rounding errors grow with the logarithm of its length, so that sums of float64 are at
/// least as exact as those of kernels.
fn pairwise<T: Element>(
    row: &mut dyn Iterator<Item = T>,
    identity: f64,
    combine: impl Fn(f64, f64) -> f64,
) -> f64 {
    // Results of 2^n elements each, the longest first.
    let mut stack: Vec<f64> = Vec::new();
    for (number, element) in row.enumerate() {
        let mut result = element.to_f64();
        for _ in 0..number.trailing_ones() {
            result = combine(stack.pop().unwrap_or(identity), result);
        }
        stack.push(result);
    }
    combine(
        identity,
        stack.into_iter().rev().reduce(|later, earlier| combine(earlier, later)).unwrap_or(identity),
    )
}

/// Sums or products: floats are computed in f64 and rounded once, others use their own arithmetic.
fn accumulate<T: Element>(
    x: &HostTensor,
    axis: usize,
    identity: i128,
    real: impl Fn(f64, f64) -> f64,
    lane: impl Fn(T::Lane, T::Lane) -> T::Lane,
) -> Result<HostTensor> {
    if T::DTYPE.is_float() {
        return fold(x, axis, |row| T::from_double(pairwise::<T>(row, identity as f64, &real)));
    }
    let start = T::from_i128(identity).to_lane();
    fold(x, axis, |row| T::from_lane(row.fold(start, |acc, e: T| lane(acc, e.to_lane()))))
}

/// Combines the lanes of each row; rows are not empty.
fn lanes<T: Element>(
    x: &HostTensor,
    axis: usize,
    combine: impl Fn(T::Lane, T::Lane) -> T::Lane,
) -> Result<HostTensor> {
    fold(x, axis, |row: &mut dyn Iterator<Item = T>| {
        row.map(T::to_lane).reduce(&combine).map_or(T::from_i128(0), T::from_lane)
    })
}

/// The index of the first element that no other beats; NaN beats everything.
fn best<T: Element>(
    x: &HostTensor,
    axis: usize,
    beats: impl Fn(T::Lane, T::Lane) -> bool,
) -> Result<HostTensor> {
    let is_nan = |lane: T::Lane| !lane.eq(lane).get();
    fold(x, axis, |row: &mut dyn Iterator<Item = T>| {
        let winner = row.map(T::to_lane).enumerate().reduce(|best, new| {
            let wins = is_nan(new.1) && !is_nan(best.1) || beats(best.1, new.1) && !is_nan(best.1);
            if wins { new } else { best }
        });
        winner.map_or(0, |(index, _)| index as i64)
    })
}
