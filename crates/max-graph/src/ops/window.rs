//! Band matrices and window functions.

use max_core::{DType, DeviceRef, Dim, Result, Shape, bail};

use crate::graph::record_one;
use crate::operand::Operand;
use crate::ops;
use crate::ops::cast::cast_value;
use crate::ops::index::Index;
use crate::registry::{Arg, op_fns};
use crate::value::TensorValue;

op_fns! {
    /// Sets the matrices of the last two axes to zero outside a band around the diagonal: `num_lower` diagonals below
    /// it and `num_upper` above it, or all if not given; with `exclude`, inside the band.
    pub fn band_part(
        x: Operand, num_lower: Option<i64> = Arg::None, num_upper: Option<i64> = Arg::None, exclude: bool = false,
    ) -> TensorValue {
        let x = x.tensor()?;
        let [.., rows, cols] = &x.shape()[..] else {
            bail!(value, "band_part needs a tensor of rank 2 or more; got shape {}", x.shape());
        };
        for (name, number, size) in [("num_lower", num_lower, rows), ("num_upper", num_upper, cols)] {
            let Some(number) = number else { continue };
            if number < 0 || size.as_static().is_some_and(|size| number > 0 && number >= size) {
                bail!(value, "band_part {name} {number} is out of bounds for dimension size {size} of {}", x.shape());
            }
        }
        let position = |shape: [&Dim; 2]| -> Result<TensorValue> {
            record_one(Index { shape: shape.into(), device: x.device() }, [])
        };
        let [row, col] = [position([rows, &Dim::Static(1)])?, position([&Dim::Static(1), cols])?];
        let below = num_lower.map(|most| ops::greater_equal(most, ops::sub(&row, &col)));
        let above = num_upper.map(|most| ops::greater_equal(most, ops::sub(&col, &row)));
        let inside = match (below, above) {
            (Some(below), Some(above)) => ops::logical_and(below, above)?,
            (Some(band), None) | (None, Some(band)) => band?,
            (None, None) => ops::constant(true, DType::Bool, x.device())?,
        };
        let zero = ops::constant(0i64, x.dtype(), x.device())?;
        let kept = if exclude { ops::where_(inside, zero, &x) } else { ops::where_(inside, &x, zero) };
        ops::broadcast_to(kept, x.shape())
    }

    /// The Hann window `(1 - cos(2 pi n / (N - 1))) / 2`; a periodic one divides by `N` instead of `N - 1`.
    pub fn hann_window(
        window_length: i64, device: DeviceRef, periodic: bool = true, dtype: DType = Arg::DType(DType::Float32),
    ) -> TensorValue {
        if window_length < 0 {
            bail!(value, "hann_window needs a non-negative length; got {window_length}");
        }
        if !dtype.is_float() {
            bail!(value, "hann_window is a float tensor, not {dtype}");
        }
        if window_length == 1 {
            let one = ops::constant(1i64, dtype, device)?;
            return ops::broadcast_to(one, [1]);
        }
        let steps = if periodic { window_length } else { window_length - 1 };
        let positions = record_one(Index { shape: Shape::from([window_length]), device }, [])?;
        let angle = ops::mul(cast_value(&positions, DType::Float64)?, std::f64::consts::TAU / steps as f64)?;
        let window = ops::mul(ops::sub(1.0, ops::cos(angle))?, 0.5)?;
        cast_value(&window, dtype)
    }
}
