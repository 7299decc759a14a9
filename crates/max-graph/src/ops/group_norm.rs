//! Group normalization: layer normalization over groups of channels.

use max_core::{DType, Dim, Shape, bail};

use crate::operand::Operand;
use crate::ops;
use crate::ops::cast::cast_value;
use crate::ops::layer_norm::parameter;
use crate::ops::reshape::reshape_value;
use crate::registry::op_fns;
use crate::value::TensorValue;

op_fns! {
    /// Normalizes an input `[N, C, ..]` over groups of channels and all axes after them: subtracts the mean, divides by
    /// the standard deviation, then scales each channel by `gamma` and shifts it by `beta`.
    pub fn group_norm(
        input: Operand, gamma: Operand, beta: Operand, num_groups: i64, epsilon: f64,
    ) -> TensorValue {
        let input = input.tensor()?;
        let [batch, channels, inner @ ..] = &input.shape()[..] else {
            bail!(value, "group_norm needs an input [N, C, ..]; got shape {}", input.shape());
        };
        if !input.dtype().is_float() {
            bail!(value, "group_norm needs floats; got {}", input.dtype());
        }
        if num_groups < 1 {
            bail!(value, "group_norm needs at least one group; got {num_groups}");
        }
        let groups = Dim::Static(num_groups);
        let share = channels.floor_div(&groups)?;
        if share.mul(&groups)? != *channels {
            bail!(value, "group_norm cannot divide {channels} channels into {num_groups} groups");
        }
        let [gamma, beta] = [parameter("group_norm", gamma, &input)?, parameter("group_norm", beta, &input)?];
        for (name, own) in [("gamma", &gamma), ("beta", &beta)] {
            if *own.shape() != Shape::from([channels]) {
                bail!(value, "group_norm {name} has the shape {}; the input has {channels} channels", own.shape());
            }
        }
        let wide = if input.dtype() == DType::Float64 { DType::Float64 } else { DType::Float32 };
        let row = Shape::from([std::slice::from_ref(&share), inner].concat()).num_elements()?;
        let rows = reshape_value(&cast_value(&input, wide)?, [batch, &groups, &row].into())?;
        // The normalization itself neither scales nor shifts; that is done per channel afterwards.
        let plain = |number: f64| ops::broadcast_to(Operand::from(number).like(&rows)?, [&row]);
        let normal = ops::layer_norm(&rows, plain(1.0)?, plain(0.0)?, epsilon)?;
        let normal = reshape_value(&normal, input.shape().clone())?;
        let ones = vec![Dim::Static(1); inner.len()];
        let by_channel = |x: &TensorValue| {
            let shape = [std::slice::from_ref(channels), &ones].concat();
            reshape_value(&cast_value(x, wide)?, shape.into())
        };
        let scaled = ops::add(ops::mul(normal, by_channel(&gamma)?), by_channel(&beta)?)?;
        cast_value(&scaled, input.dtype())
    }
}
