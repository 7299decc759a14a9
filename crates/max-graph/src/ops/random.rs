//! Random numbers, each a function of a seed, its position and its distribution; see [`max_core::random`].

use max_core::{DType, DeviceRef, Distribution, Error, Number, Result, Shape, TensorType, Type, bail};

use crate::attr::{Attr, AttrType, op_struct};
use crate::graph::{Graph, record_one};
use crate::host::{HostTensor, allocate, broadcast_layout, byte_count};
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::cast::cast_value;
use crate::ops::constant::Constant;
use crate::ops::elementwise::{broadcast_shapes, broadcast_sizes};
use crate::ops::index::Index;
use crate::ops::reshape::reshape_value;
use crate::ops::transfer::transfer_to;
use crate::ops::{self, tensors};
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::{Arg, op_fns};
use crate::value::TensorValue;

op_struct! {
    /// Random numbers as float32 or float64, from seeds (int64 or uint64) and positions (int64), with broadcasting.
    Random = "random" { distribution: Distribution, dtype: DType }
}

impl AttrType for Distribution {
    fn to_attr(&self) -> Attr {
        Attr::Str(self.name().into())
    }

    fn from_attr(attr: Attr) -> Option<Self> {
        let name = String::from_attr(attr)?;
        Distribution::ALL.into_iter().find(|distribution| distribution.name() == name)
    }
}

op_fns! {
    /// Random numbers uniformly distributed from `low` up to but excluding `high`.
    pub fn random_uniform(
        like: TensorType, low: Operand, high: Operand, seed: Option<Operand> = Arg::None,
    ) -> TensorValue {
        let wide = wide(&like)?;
        if let (Some(low), Some(high)) = (low.as_number(), high.as_number()) {
            let [from, to] = [held(low, like.dtype)?, held(high, like.dtype)?];
            let length = (to - from).is_finite() && HostTensor::scalar(Number::Float(to - from), wide).is_ok();
            if !(from < to && from.is_finite() && to.is_finite() && length) {
                bail!(value, "random.uniform needs a finite range from low to a greater high; got {low} to {high}");
            }
        }
        let [low, high] = [parameter(low, "low", &like)?, parameter(high, "high", &like)?];
        let x = draw(Distribution::Uniform, &like, wide, seed)?;
        let [from, to] = [cast_value(&low, wide)?, cast_value(&high, wide)?];
        let x = cast_value(&ops::add(&from, ops::mul(x, ops::sub(&to, &from)?))?, like.dtype)?;
        // What rounds up to `high` wraps around to `low`, so that all numbers stay equally likely.
        ops::where_(ops::greater_equal(&x, &high), &low, &x)
    }

    /// Random numbers normally distributed around `mean` with standard deviation `std`.
    pub fn random_gaussian(
        like: TensorType, mean: Operand, std: Operand, seed: Option<Operand> = Arg::None,
    ) -> TensorValue {
        let wide = wide(&like)?;
        if let Some(number) = std.as_number() {
            let deviation = held(number, like.dtype)?;
            if !(deviation > 0.0 && deviation.is_finite()) {
                bail!(value, "random.gaussian needs a positive std; got {number}");
            }
        }
        let [mean, std] = [parameter(mean, "mean", &like)?, parameter(std, "std", &like)?];
        let x = draw(Distribution::Normal, &like, wide, seed)?;
        let [mean, std] = [cast_value(&mean, wide)?, cast_value(&std, wide)?];
        cast_value(&ops::add(&mean, ops::mul(x, &std))?, like.dtype)
    }

    /// Sets the seed for the graph's draws that follow.
    pub fn random_set_seed(seed: Operand) -> () {
        let seed = seed_value(seed)?;
        Graph::current()?.set_seed(&seed)
    }
}

/// The dtype that numbers are drawn in.
fn wide(like: &TensorType) -> Result<DType> {
    match like.dtype {
        DType::Float64 => Ok(DType::Float64),
        dtype if dtype.is_float() => Ok(DType::Float32),
        dtype => bail!(value, "random numbers are floats; got type {like} of {dtype}"),
    }
}

/// A number rounded to a dtype.
fn held(number: Number, dtype: DType) -> Result<f64> {
    match HostTensor::scalar(number, dtype)?.cast(DType::Float64)?.elements::<f64>()?.first() {
        Some(&value) => Ok(value),
        None => Err(Error::internal("a scalar without a value")),
    }
}

/// A parameter of a distribution: a scalar in the dtype and on the device of what is drawn.
fn parameter(operand: Operand, name: &str, like: &TensorType) -> Result<TensorValue> {
    if let Some(number) = operand.as_number() {
        let value = HostTensor::scalar(number, like.dtype)?;
        return record_one(Constant { value, device: like.device }, []);
    }
    let value = operand.tensor()?;
    if value.rank() != 0 || !value.dtype().fits(like.dtype) {
        bail!(value, "{name} must be a scalar of {}; got {}", like.dtype, value.tensor_type());
    }
    transfer_to(cast_value(&value, like.dtype)?, like.device)
}

/// The type of a graph input that is a seed, which can differ between executions.
pub fn seed_type(device: impl Into<DeviceRef>) -> TensorType {
    TensorType::new(DType::UInt64, [1], device)
}

/// Converts a seed to a 64-bit scalar.
fn seed_value(seed: Operand) -> Result<TensorValue> {
    if let Some(number) = seed.as_number() {
        let value = HostTensor::scalar(number, DType::UInt64).map_err(|_| {
            Error::value(format!("a seed is a whole number from 0 to 2**64 - 1; got {number}"))
        })?;
        return record_one(Constant { value, device: DeviceRef::CPU }, []);
    }
    let seed = seed.tensor()?;
    let single = seed.rank() == 0 || *seed.shape() == Shape::from([1]);
    if !single || !seed.dtype().is_integral() {
        bail!(
            value,
            "a seed is a whole number, or a tensor of one such as {}; got {}",
            seed_type(seed.device()),
            seed.tensor_type()
        );
    }
    let seed = reshape_value(&seed, Shape::default())?;
    if seed.dtype() == DType::UInt64 { Ok(seed) } else { cast_value(&seed, DType::Int64) }
}

/// Standard random numbers for the shape of a type.
fn draw(
    distribution: Distribution,
    like: &TensorType,
    dtype: DType,
    seed: Option<Operand>,
) -> Result<TensorValue> {
    let seed = match seed {
        Some(seed) => seed_value(seed)?,
        None => Graph::current()?.next_seed()?,
    };
    let seed = transfer_to(seed, like.device)?;
    let positions = record_one(Index { shape: like.shape.clone(), device: like.device }, [])?;
    record_one(Random { distribution, dtype }, [&seed, &positions])
}

impl Operation for Random {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [seed, positions] = tensors(operands)?;
        if !matches!(seed.dtype, DType::Int64 | DType::UInt64) || positions.dtype != DType::Int64 {
            bail!(value, "random needs a 64-bit seed and int64 positions; got {seed} and {positions}");
        }
        if !matches!(self.dtype, DType::Float32 | DType::Float64) {
            bail!(value, "random numbers are float32 or float64, not {}", self.dtype);
        }
        if seed.device != positions.device {
            bail!(
                value,
                "Input values must be on the same device; got {} and {}",
                seed.device,
                positions.device
            );
        }
        let shape = broadcast_shapes([&seed.shape, &positions.shape])?;
        Ok(vec![TensorType::new(self.dtype, shape, seed.device).into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: false,
            form: Form::Elementwise,
            // Random numbers only have the same bits everywhere if a kernel always draws them.
            folding: Folding::Never,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let sizes = broadcast_sizes(&[operands[0].shape(), operands[1].shape()])?;
        byte_count(self.dtype, &sizes)?;
        // A seed is its bits; the sign does not matter.
        let seeds = operands[0].cast(DType::UInt64)?;
        let (seeds, positions) = (seeds.elements::<u64>()?, operands[1].elements::<i64>()?);
        let [at_seed, at_position] = [0, 1].map(|side| broadcast_layout(operands[side].shape(), &sizes));
        let pairs = at_seed.positions().zip(at_position.positions());
        let pairs = pairs.map(|(i, j)| (seeds[i], positions[j] as u64));
        let count = sizes.iter().product();
        let result = match self.dtype {
            DType::Float64 => {
                let mut drawn = allocate(count)?;
                drawn.extend(pairs.map(|(seed, at)| self.distribution.draw::<f64>(seed, at)));
                HostTensor::from_vec(sizes, drawn)
            }
            _ => {
                let mut drawn = allocate(count)?;
                drawn.extend(pairs.map(|(seed, at)| self.distribution.draw::<f32>(seed, at)));
                HostTensor::from_vec(sizes, drawn)
            }
        };
        Ok(vec![result?])
    }
}
