//! Positions as data, and ranges of numbers computed from them.

use max_core::{DType, DeviceRef, Dim, Error, Number, Result, Shape, TensorType, Type, bail, dispatch};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::{HostTensor, allocate, byte_count, number};
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::broadcast::Target;
use crate::ops::cast::cast_value;
use crate::ops::constant::Constant;
use crate::ops::transfer::transfer_to;
use crate::ops::{self, tensors};
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::{Arg, FromArg, op_fns};
use crate::value::TensorValue;

op_struct! {
    /// The position of each element in row-major order, as int64.
    Index = "index" { shape: Shape, device: DeviceRef }
}

/// The start, the stop or the step of a range.
#[derive(Clone)]
pub enum Limit {
    /// A number.
    Number(Number),
    /// A size.
    Dim(Dim),
    /// A scalar known at run time.
    Tensor(TensorValue),
}

macro_rules! limit_from {
    ($($type:ty: $x:ident => $limit:expr;)*) => {$(
        impl From<$type> for Limit {
            fn from($x: $type) -> Limit {
                $limit
            }
        }
    )*};
}

limit_from! {
    i32: i => Limit::Number(Number::Int(i.into()));
    i64: i => Limit::Number(Number::Int(i.into()));
    f64: f => Limit::Number(Number::Float(f));
    Dim: dim => Limit::of(dim);
    &TensorValue: t => Limit::Tensor(t.clone());
}

impl FromArg for Limit {
    fn from_arg(arg: Arg) -> Result<Limit> {
        match arg {
            Arg::Number(number) => Ok(Limit::Number(number)),
            Arg::Dim(dim) => Ok(Limit::of(dim)),
            Arg::Array(array) if array.shape().is_empty() => {
                dispatch!(array.dtype(), T => match array.elements::<T>()?.first() {
                    Some(&element) => Ok(Limit::Number(number(element))),
                    None => bail!(internal, "a scalar without a value"),
                })
            }
            other => Operand::from_arg(other)?.tensor().map(Limit::Tensor),
        }
    }
}

impl Limit {
    fn of(dim: Dim) -> Limit {
        match dim {
            Dim::Static(size) => Limit::Number(Number::Int(size.into())),
            dim => Limit::Dim(dim),
        }
    }

    fn is(&self, wanted: i128) -> bool {
        matches!(self, Limit::Number(Number::Int(i)) if *i == wanted)
    }

    /// Converts it to a dim, if it is an integer or a dim.
    fn dim(&self) -> Option<Dim> {
        match self {
            Limit::Number(Number::Int(i)) => i64::try_from(*i).ok().map(Dim::Static),
            Limit::Number(Number::Float(f)) if f.fract() == 0.0 && f.abs() < 2f64.powi(53) => {
                Some(Dim::Static(*f as i64))
            }
            Limit::Dim(dim) => Some(dim.clone()),
            _ => None,
        }
    }

    /// Converts it to a scalar of a dtype on a device. Integers wrap if `wraps` is set.
    fn scalar(self, dtype: DType, device: DeviceRef, wraps: bool) -> Result<TensorValue> {
        let value = match self {
            Limit::Number(Number::Int(i)) if wraps && dtype.is_integral() => {
                let wide = HostTensor::scalar(Number::Int(i), DType::Int64)?;
                return record_one(Constant { value: wide.cast(dtype)?, device }, []);
            }
            Limit::Number(number) => {
                return record_one(Constant { value: HostTensor::scalar(number, dtype)?, device }, []);
            }
            // Sizes are known on every device, so they are put on the target device before any computation.
            Limit::Dim(dim) => cast_value(&transfer_to(Operand::from(dim), device)?, dtype)?,
            Limit::Tensor(tensor) => {
                if tensor.rank() != 0 {
                    bail!(value, "range between tensors needs scalars; got shape {}", tensor.shape());
                }
                if tensor.device() != DeviceRef::CPU {
                    bail!(value, "Range input values must be on CPU; got a scalar on {}", tensor.device());
                }
                if !tensor.dtype().fits(dtype) {
                    bail!(value, "Unsafe cast: a range of {dtype} between {}", tensor.dtype());
                }
                cast_value(&tensor, dtype)?
            }
        };
        transfer_to(&value, device)
    }
}

op_fns! {
    /// The numbers from `start` up to but excluding `stop`, in steps of `step`. If one of the three is a tensor,
    /// `out_dim` names how many there are.
    pub fn range(
        start: Limit, stop: Limit, step: Limit = 1, out_dim: Option<Dim> = Arg::None,
        dtype: Option<DType> = Arg::None, device: Option<DeviceRef> = Arg::None,
    ) -> TensorValue {
        sequence([start, stop, step], out_dim, dtype, device.unwrap_or(DeviceRef::CPU))
    }
}

fn sequence(
    limits: [Limit; 3],
    out_dim: Option<Dim>,
    dtype: Option<DType>,
    device: DeviceRef,
) -> Result<TensorValue> {
    let tensor = limits.iter().find_map(|limit| match limit {
        Limit::Tensor(tensor) => Some(tensor.dtype()),
        _ => None,
    });
    let dtype = dtype.or(tensor).unwrap_or(DType::Float32);
    if dtype == DType::Bool {
        bail!(value, "a range of bool is not defined");
    }
    // Narrow floats cannot represent all positions.
    let wide = if dtype.is_float() && dtype.size_in_bytes() < 4 { DType::Float32 } else { dtype };
    let positions = |size: &Dim| -> Result<TensorValue> {
        cast_value(&record_one(Index { shape: [size].into(), device }, [])?, wide)
    };
    if tensor.is_some() {
        let Some(size) = out_dim else {
            bail!(value, "a range between tensors needs out_dim, the dim of its result");
        };
        let [start, stop, step] = limits;
        let start = start.scalar(wide, DeviceRef::CPU, false)?;
        // A negative step wraps in an unsigned dtype, but the count needs its sign.
        let signed = matches!(step, Limit::Number(Number::Int(_))) && wide.is_integral();
        let counted = step.clone().scalar(if signed { DType::Int64 } else { wide }, DeviceRef::CPU, false)?;
        let step = step.scalar(wide, device, true)?;
        // The broadcast binds the dim to its size, so it comes before everything that uses the dim.
        let sizes = ops::reshape(count_at_run_time(&start, stop, &counted)?, [1])?;
        let start = transfer_to(&start, device)?;
        let start = ops::broadcast_to(&start, Target::Sizes((&sizes).into(), [&size].into()))?;
        return cast_value(&ops::add(start, ops::mul(positions(&size)?, step))?, dtype);
    }
    let size = count(&limits)?;
    let [start, _, step] = limits;
    check_last(&start, &step, &size, dtype)?;
    let mut x = positions(&size)?;
    if !step.is(1) {
        x = ops::mul(x, step.scalar(wide, device, true)?)?;
    }
    if !start.is(0) {
        x = ops::add(start.scalar(wide, device, false)?, x)?;
    }
    let x = cast_value(&x, dtype)?;
    match out_dim {
        Some(dim) if size != dim => ops::rebind(&x, [dim], "range size"),
        _ => Ok(x),
    }
}

/// How many numbers a range has whose limits are not tensors.
fn count(limits: &[Limit; 3]) -> Result<Dim> {
    if let [Limit::Number(start), Limit::Number(stop), Limit::Number(step)] = limits {
        return count_numbers(*start, *stop, *step).map(Dim::Static);
    }
    let [Some(start), Some(stop), Some(step)] = limits.each_ref().map(Limit::dim) else {
        bail!(
            value,
            "a range between symbolic dims needs its other limits to be whole numbers of at most 64 bits"
        );
    };
    let (down, one) = (step.as_static().is_some_and(|step| step < 0), Dim::Static(1));
    let (distance, step) = if down { (start.sub(&stop)?, step.neg()?) } else { (stop.sub(&start)?, step) };
    if step == Dim::Static(0) {
        bail!(value, "range step cannot be zero");
    }
    distance.sub(&one)?.floor_div(&step)?.add(&one)
}

fn count_numbers(start: Number, stop: Number, step: Number) -> Result<i64> {
    let [from, to, by] = [start, stop, step].map(|number| match number {
        Number::Bool(b) => f64::from(u8::from(b)),
        Number::Int(i) => i as f64,
        Number::Float(f) => f,
    });
    if ![from, to, by].iter().all(|number| number.is_finite()) {
        bail!(value, "range from {start} to {stop} in steps of {step} has no last number");
    }
    if by == 0.0 {
        bail!(value, "range step cannot be zero");
    }
    if from != to && (to < from) != (by < 0.0) {
        bail!(
            value,
            "range from {start} to {stop} in steps of {step} never ends: stop - start must be zero or have the sign of step"
        );
    }
    let many = || Error::value(format!("range from {start} to {stop} in steps of {step} exceeds 64 bits"));
    if let (Number::Int(start), Number::Int(stop), Number::Int(step)) = (start, stop, step) {
        let distance = stop.checked_sub(start).and_then(i128::checked_abs).ok_or_else(many)?;
        let step = step.checked_abs().ok_or_else(many)?;
        let count = distance / step + i128::from(distance % step != 0);
        return i64::try_from(count).map_err(|_| many());
    }
    let count = ((to - from) / by).ceil();
    // The bound is a power of two and therefore exact.
    if count < 2f64.powi(63) { Ok(count as i64) } else { Err(many()) }
}

/// Checks that a dtype can hold the last number of a range, if that is known.
fn check_last(start: &Limit, step: &Limit, count: &Dim, dtype: DType) -> Result<()> {
    let (Limit::Number(Number::Int(start)), Limit::Number(Number::Int(step))) = (start, step) else {
        return Ok(());
    };
    let Some(count) = count.as_static().filter(|&count| count > 0) else { return Ok(()) };
    let last = i128::from(count - 1).checked_mul(*step).and_then(|reach| start.checked_add(reach));
    let last = last.ok_or_else(|| Error::value(format!("a range from {start} exceeds 128 bits")))?;
    if dtype.is_integral() {
        HostTensor::scalar(Number::Int(last), dtype)
            .map_err(|e| e.context(format!("for the last number of a range of {dtype}")))?;
    }
    Ok(())
}

/// How many numbers a range between scalars has; negative if the step is zero or leads away from the stop, or if one
/// of them is NaN.
fn count_at_run_time(start: &TensorValue, stop: Limit, step: &TensorValue) -> Result<TensorValue> {
    let dtype = start.dtype();
    let stop = stop.scalar(dtype, DeviceRef::CPU, false)?;
    let exact = if dtype.is_float() { DType::Float64 } else { DType::Int64 };
    let [start, stop, step] =
        [cast_value(start, exact)?, cast_value(&stop, exact)?, cast_value(step, exact)?];
    let count = match exact {
        DType::Float64 => ops::ceil(ops::div(ops::sub(&stop, &start), &step)),
        // The quotient rounded up.
        _ => ops::negate(ops::floor_div(ops::sub(&start, &stop), &step)),
    };
    let count = count?;
    let none = ops::logical_or(ops::equal(&step, 0)?, ops::is_nan(&count)?)?;
    cast_value(&ops::where_(none, -1, count)?, DType::Int64)
}

impl Operation for Index {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [] = tensors(operands)?;
        Ok(vec![TensorType::new(DType::Int64, self.shape.clone(), self.device).into()])
    }

    fn properties(&self, signature: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: signature.computes_sizes(),
            form: Form::Source,
            folding: Folding::Exactly,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, _: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        let sizes = run.sizes(&self.shape)?;
        byte_count(DType::Int64, &sizes)?;
        let count: usize = sizes.iter().product();
        let mut positions = allocate(count)?;
        positions.extend(0..count as i64);
        Ok(vec![HostTensor::from_vec(sizes, positions)?])
    }
}
