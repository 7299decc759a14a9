//! Resizing: the axes of a tensor are resampled one after the other, two neighbouring ones at a time.

use max_core::resample::settled;
use max_core::{Coordinates, DType, Element, Interpolation, Result, Shape, Type, bail, dispatch};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::{HostTensor, allocate, byte_count};
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::tensors;
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::{Arg, FromArg, op_fns};
use crate::value::TensorValue;

op_struct! {
    /// Resamples one axis, or two neighbouring ones, to other sizes. Results are rounded once; those of integers are
    /// truncated.
    Resample = "resample" { axis: usize, sizes: Shape, interpolation: Interpolation, coordinates: Coordinates }
}

/// How images are resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterpolationMode {
    /// The nearest element.
    Nearest,
    /// Between the two neighbours along each axis.
    Bilinear,
    /// By cubic convolution of four neighbours along each axis.
    Bicubic,
}

impl FromArg for InterpolationMode {
    fn from_arg(arg: Arg) -> Result<InterpolationMode> {
        match String::from_arg(arg)?.as_str() {
            "nearest" => Ok(InterpolationMode::Nearest),
            "bilinear" => Ok(InterpolationMode::Bilinear),
            "bicubic" => Ok(InterpolationMode::Bicubic),
            other => {
                bail!(value, "'{other}' is not an InterpolationMode; expected nearest, bilinear or bicubic")
            }
        }
    }
}

op_fns! {
    /// Resizes images `[batch, channels, height, width]` to a shape; every axis whose size changes is resampled. The
    /// centres of elements are half an element from their borders.
    pub fn resize(input: Operand, shape: Shape, interpolation: InterpolationMode = "bilinear") -> TensorValue {
        let x = input.tensor()?;
        if x.rank() != 4 {
            bail!(
                value,
                "Input tensor must have rank 4 (NCHW format) for resize operation, but got rank {}",
                x.rank()
            );
        }
        if shape.rank() != 4 {
            bail!(
                value,
                "shape must have 4 elements for NCHW format (batch, channels, height, width), but got {} elements",
                shape.rank()
            );
        }
        let interpolation = match interpolation {
            InterpolationMode::Nearest => Interpolation::NearestHalfDown,
            InterpolationMode::Bilinear => Interpolation::Linear,
            InterpolationMode::Bicubic => Interpolation::Cubic,
        };
        resized(x, &shape, interpolation, Coordinates::HalfPixel)
    }

    /// Resizes images `[batch, channels, height, width]` to a shape by cubic convolution with the coefficient -0.75; the
    /// centres of elements are half an element from their borders.
    pub fn resize_bicubic(input: Operand, size: Shape) -> TensorValue {
        let x = input.tensor()?;
        if x.rank() != 4 {
            bail!(value, "resize_bicubic requires rank-4 (NCHW) input, got rank {}", x.rank());
        }
        if size.rank() != 4 {
            bail!(value, "size must have 4 elements for NCHW format, got {}", size.rank());
        }
        resized(x, &size, Interpolation::Cubic, Coordinates::HalfPixel)
    }

    /// Resizes every axis to the given size by linear interpolation.
    ///
    /// The mode says where results are on the source: 0 for half pixels, 1 for aligned corners, 2 for asymmetric, 3 for
    /// half pixels unless the axis gets a single element. With `antialias`, axes that shrink are averaged over all elements
    /// that are nearer than a step of the result.
    pub fn resize_linear(input: Operand, size: Shape, coordinate_transform_mode: i64 = 0, antialias: bool = false) -> TensorValue {
        let x = input.tensor()?;
        let interpolation = if antialias { Interpolation::LinearAntialias } else { Interpolation::Linear };
        let coordinates = mode("coordinate_transform_mode", coordinate_transform_mode, Coordinates::ALL)?;
        of_same_rank(&x, &size)?;
        resized(x, &size, interpolation, coordinates)
    }

    /// Resizes every axis to the given size; each result is the nearest element.
    ///
    /// Coordinates are those of [`resize_linear`]. The other mode says how they are rounded: 0 to the nearest, halves down;
    /// 1 to the nearest, halves up; 2 down; 3 up.
    pub fn resize_nearest(input: Operand, size: Shape, coordinate_transform_mode: i64 = 0, round_mode: i64 = 0) -> TensorValue {
        let x = input.tensor()?;
        let coordinates = mode("coordinate_transform_mode", coordinate_transform_mode, Coordinates::ALL)?;
        use Interpolation::*;
        let roundings = [NearestHalfDown, NearestHalfUp, NearestFloor, NearestCeil];
        let interpolation = mode("round_mode", round_mode, &roundings)?;
        of_same_rank(&x, &size)?;
        resized(x, &size, interpolation, coordinates)
    }
}

/// A mode by its number.
fn mode<T: Copy>(name: &str, number: i64, all: &[T]) -> Result<T> {
    match usize::try_from(number).ok().and_then(|number| all.get(number)) {
        Some(&mode) => Ok(mode),
        None => bail!(value, "{name} must be 0-{}, got {number}", all.len() - 1),
    }
}

fn of_same_rank(x: &TensorValue, size: &Shape) -> Result<()> {
    if size.rank() != x.rank() {
        bail!(value, "size must have the same rank as input ({}), got {}", x.rank(), size.rank());
    }
    Ok(())
}

/// A tensor with every axis resampled that has another size in a shape of the same rank; neighbouring axes go together.
fn resized(
    mut x: TensorValue,
    shape: &Shape,
    interpolation: Interpolation,
    coordinates: Coordinates,
) -> Result<TensorValue> {
    let mut end = x.rank();
    while let Some(last) = (0..end).rev().find(|&axis| shape[axis] != x.shape()[axis]) {
        let axis = if last > 0 && shape[last - 1] != x.shape()[last - 1] { last - 1 } else { last };
        let sizes = Shape::from(&shape[axis..=last]);
        x = record_one(Resample { axis, sizes, interpolation, coordinates }, [&x])?;
        end = axis;
    }
    Ok(x)
}

impl Resample {
    /// The error for an axis without elements.
    pub fn check_size(size: i64) -> Result<()> {
        if size < 1 {
            bail!(value, "an axis of {size} elements cannot be resized");
        }
        Ok(())
    }
}

impl Operation for Resample {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [x] = tensors(operands)?;
        let (rank, count) = (x.shape.rank(), self.sizes.rank());
        if !(1..=2).contains(&count) || self.axis.checked_add(count).is_none_or(|end| end > rank) {
            bail!(value, "{count} axes from axis {} cannot be resampled in {}", self.axis, x.shape);
        }
        let nearest = self.interpolation.is_nearest();
        if x.dtype == DType::Bool && !nearest {
            bail!(type_, "a bool tensor cannot be interpolated; cast it first");
        }
        let mut shape = x.shape.to_vec();
        for (dim, size) in shape[self.axis..].iter_mut().zip(self.sizes.iter()) {
            if let Some(size) = dim.as_static() {
                Resample::check_size(size)?;
            }
            *dim = size.clone();
        }
        Ok(vec![x.with_shape(shape).into()])
    }

    fn properties(&self, signature: Signature) -> Properties {
        let own = |shape: &Shape| {
            shape[self.axis..].iter().take(self.sizes.rank()).any(|d| d.as_static().is_none())
        };
        Properties {
            effects: Effects::NONE,
            checks: signature.computes_sizes() || signature.shape(0).is_some_and(own),
            form: Form::Whole,
            folding: if self.interpolation.is_nearest() { Folding::Exactly } else { signature.rounded() },
            heavy: true,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        let (x, axes) = (&operands[0], self.axis..self.axis + self.sizes.rank());
        let mut shape = x.shape().to_vec();
        let (mut sizes, mut counts) = ([1; 2], [1; 2]);
        for (i, axis) in axes.clone().rev().enumerate() {
            let count = self.sizes[axis - self.axis].evaluate(run.bindings)?;
            Resample::check_size(shape[axis] as i64)?;
            let Ok(count) = usize::try_from(count) else {
                bail!(value, "cannot resize an axis to {count} elements")
            };
            (sizes[1 - i], counts[1 - i], shape[axis]) = (shape[axis], count, count);
        }
        let inner: usize = shape[axes.end..].iter().product();
        dispatch!(x.dtype(), T => {
            let x = x.elements::<T>()?;
            let total = byte_count(T::DTYPE, &shape)? / size_of::<T>();
            let mut results = allocate::<T>(total)?;
            // An empty result may have an axis of any length.
            let counts = if total == 0 { [0; 2] } else { counts };
            let [rows, columns] = [0, 1].map(|axis| self.all_taps([sizes[axis], counts[axis]]));
            for at in 0..total {
                let (i, rest) = (at % inner, at / inner);
                let (column, rest) = (&columns[rest % counts[1]], rest / counts[1]);
                let (row, o) = (&rows[rest % counts[0]], rest / counts[0]);
                let place = |y: usize, z: usize| ((o * sizes[0] + y) * sizes[1] + z) * inner + i;
                results.push(match self.interpolation.is_nearest() {
                    true => x[place(row.0, column.0)],
                    false => {
                        let along = |y: usize| -> f64 {
                            let terms = column.1.iter().enumerate().filter(|(_, weight)| **weight != 0.0);
                            terms.map(|(k, weight)| weight * x[place(y, column.0 + k)].to_f64()).sum()
                        };
                        let terms = row.1.iter().enumerate().filter(|(_, weight)| **weight != 0.0);
                        let sum: f64 = terms.map(|(k, weight)| weight * along(row.0 + k)).sum();
                        T::from_double(if T::DTYPE.is_float() { sum } else { settled(sum) })
                    }
                });
            }
            Ok(vec![HostTensor::from_vec(shape, results)?])
        })
    }
}

impl Resample {
    /// The first element and the weights of each result along an axis.
    fn all_taps(&self, [size, count]: [usize; 2]) -> Vec<(usize, Vec<f64>)> {
        let taps = |at: usize| {
            let mut weights = Vec::new();
            let first = self.interpolation.taps(self.coordinates, [size, count], at, &mut weights);
            (first, weights)
        };
        (0..count).map(taps).collect()
    }
}
