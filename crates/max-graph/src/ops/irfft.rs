//! The inverse Fourier transform of the spectra of real signals.

use std::f64::consts::TAU;

use max_core::kernel::Normalization;
use max_core::{DType, Dim, Element, Result, Type, bail, dispatch};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::{HostTensor, allocate, byte_count};
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::cast::cast_value;
use crate::ops::{axis_dim, tensors};
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::{Arg, op_fns};
use crate::value::TensorValue;

op_struct! {
    /// Real signals of size `n` from the first halves of their spectra, along an axis. With `complex`, the last axis has the
    /// real and the imaginary part of each element.
    Irfft = "irfft" { n: Dim, axis: usize, normalization: Normalization, complex: bool }
}

op_fns! {
    /// The inverse Fourier transform of spectra of real signals: of each, the axis has the first half and one more element.
    ///
    /// The spectra are padded with zeros or cut to `n / 2 + 1` elements, for signals of size `n`, which is twice the size of
    /// the axis less two by default. Without `input_is_complex` the spectra are real; with it, the last axis has real and
    /// imaginary parts, and is not among those that `axis` counts. The imaginary parts of the constant and, if `n` is even,
    /// of the highest frequency are ignored. No persistent buffer is needed, whatever `buffer_size_mb` is.
    pub fn irfft(
        input_tensor: Operand, n: Option<i64> = Arg::None, axis: i64 = -1,
        normalization: Normalization = "backward", input_is_complex: bool = false, buffer_size_mb: i64 = 512,
    ) -> TensorValue {
        let x = input_tensor.tensor()?;
        if !x.dtype().is_float() {
            bail!(value, "irfft needs floats; got {}", x.dtype());
        }
        if buffer_size_mb < 0 {
            bail!(value, "irfft buffer_size_mb must not be negative; got {buffer_size_mb}");
        }
        let mut dims = x.shape().to_vec();
        if input_is_complex && dims.pop() != Some(Dim::Static(2)) {
            bail!(value, "irfft of an interleaved complex tensor needs a last dimension of 2; got shape {}", x.shape());
        }
        let Some(axis) = max_core::shape::resolve_axis(axis, dims.len()) else {
            bail!(value, "irfft axis {axis} is out of range for a tensor with {} axes and shape {}", dims.len(), x.shape());
        };
        let n = match n {
            Some(n) => Dim::Static(n),
            None => dims[axis].sub(&Dim::Static(1))?.mul(&Dim::Static(2))?,
        };
        let op = Irfft { n, axis, normalization, complex: input_is_complex };
        // Narrow floats are computed as float32.
        let wide = if x.dtype() == DType::Float64 { DType::Float64 } else { DType::Float32 };
        cast_value(&record_one(op, [&cast_value(&x, wide)?])?, x.dtype())
    }
}

impl Operation for Irfft {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [x] = tensors(operands)?;
        if !matches!(x.dtype, DType::Float32 | DType::Float64) {
            bail!(value, "irfft is computed in float32 or float64, not in {}", x.dtype);
        }
        axis_dim(x, self.axis)?;
        let mut dims = x.shape.to_vec();
        if self.complex && (dims.pop() != Some(Dim::Static(2)) || self.axis == dims.len()) {
            bail!(value, "irfft along axis {} of {}, whose last axis has two parts", self.axis, x.shape);
        }
        if self.n.as_static().is_some_and(|n| n < 1) {
            bail!(value, "irfft needs a size of at least 1; got n = {} for the shape {}", self.n, x.shape);
        }
        dims[self.axis] = self.n.clone();
        Ok(vec![x.with_shape(dims).into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            // A size that is not known may turn out to be too small.
            checks: self.n.as_static().is_none(),
            form: Form::Whole,
            folding: Folding::Never,
            heavy: true,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        let n = self.n.evaluate(run.bindings)?;
        let Some(n) = usize::try_from(n).ok().filter(|&n| n > 0) else {
            bail!(value, "irfft needs a size of at least 1; got n = {n}");
        };
        dispatch!(operands[0].dtype(), T => self.eval_as::<T>(&operands[0], n))
    }
}

impl Irfft {
    /// Each element of a signal as the sum over all frequencies.
    fn eval_as<T: Element>(&self, x: &HostTensor, n: usize) -> Result<Vec<HostTensor>> {
        let spectra = x.elements::<T>()?;
        let parts = if self.complex { 2 } else { 1 };
        let mut sizes = x.shape()[..x.shape().len() - usize::from(self.complex)].to_vec();
        let bins = sizes[self.axis];
        let inner: usize = sizes[self.axis + 1..].iter().product();
        sizes[self.axis] = n;
        let count = byte_count(T::DTYPE, &sizes)? / size_of::<T>();
        let mut results = allocate::<T>(count)?;
        for at in 0..count {
            let (line, i, column) = (at / inner / n, at / inner % n, at % inner);
            let term = |k: usize| {
                let element = ((line * bins + k) * inner + column) * parts;
                let real = spectra[element].to_f64();
                let twice = k > 0 && 2 * k != n;
                let imaginary = if self.complex && twice { spectra[element + 1].to_f64() } else { 0.0 };
                // Only the remainder counts, and it is exact.
                let angle = TAU * ((k as u128 * i as u128) % n as u128) as f64 / n as f64;
                (real * angle.cos() - imaginary * angle.sin()) * if twice { 2.0 } else { 1.0 }
            };
            let sum: f64 = (0..bins.min(n / 2 + 1)).map(term).sum();
            results.push(T::from_double(sum * self.normalization.scale(n)));
        }
        Ok(vec![HostTensor::from_vec(sizes, results)?])
    }
}
