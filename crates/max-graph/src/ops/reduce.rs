//! Reductions along one axis, which is kept with size one.

use max_core::scalar::Lane;
use max_core::{DType, Dim, Element, Result, Shape, TensorType, Type, bail, dispatch};

use crate::attr::{Attr, AttrType, op_struct};
use crate::graph::record_one;
use crate::host::{HostTensor, allocate};
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::cast::cast_value;
use crate::ops::{axis_dim, tensors};
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
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

op_fns! {
    /// The sum along an axis.
    pub fn sum(x: Operand, axis: i64 = -1) -> TensorValue {
        reduce(ReduceKind::Sum, x, axis)
    }

    /// The product along an axis.
    pub fn prod(x: Operand, axis: i64 = -1) -> TensorValue {
        reduce(ReduceKind::Prod, x, axis)
    }

    /// The mean along an axis; of integers, truncated.
    pub fn mean(x: Operand, axis: i64 = -1) -> TensorValue {
        reduce(ReduceKind::Mean, x, axis)
    }

    /// The largest element along an axis; NaN wins.
    pub fn reduce_max(x: Operand, axis: i64 = -1) -> TensorValue {
        reduce(ReduceKind::Max, x, axis)
    }

    /// The smallest element along an axis; NaN wins.
    pub fn reduce_min(x: Operand, axis: i64 = -1) -> TensorValue {
        reduce(ReduceKind::Min, x, axis)
    }

    /// The index of the first largest element along an axis, as int64.
    pub fn argmax(x: Operand, axis: i64 = -1) -> TensorValue {
        reduce(ReduceKind::ArgMax, x, axis)
    }

    /// The index of the first smallest element along an axis, as int64.
    pub fn argmin(x: Operand, axis: i64 = -1) -> TensorValue {
        reduce(ReduceKind::ArgMin, x, axis)
    }

    /// The population variance along an axis.
    pub fn var(x: Operand, axis: i64 = -1) -> TensorValue {
        deviation(x, axis, Ok)
    }

    /// The population standard deviation along an axis.
    pub fn stdev(x: Operand, axis: i64 = -1) -> TensorValue {
        deviation(x, axis, |variance| crate::ops::sqrt(variance))
    }
}

fn reduce(kind: ReduceKind, x: Operand, axis: i64) -> Result<TensorValue> {
    let x = x.tensor()?;
    record_one(Reduce { kind, axis: x.shape().axis(axis)? }, [&x])
}

/// A function of the variance; integers and narrow floats are computed in a wider dtype and rounded once.
fn deviation(
    x: Operand,
    axis: i64,
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
    let deviation = (&w - mean(&w, axis))?;
    let variance = mean(&deviation * &deviation, axis)?;
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
                T::from_f64(pairwise(row, 0.0, |a, b| a + b) / x.shape()[self.axis] as f64)
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
        return fold(x, axis, |row| T::from_f64(pairwise::<T>(row, identity as f64, &real)));
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
