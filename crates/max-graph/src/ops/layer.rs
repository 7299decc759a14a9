//! What layers compute: functions of an input and of weights, which the layers of Rust and of Python call.
//!
//! Weights follow the input: one that is on another device is moved to the input's.

use std::str::FromStr;

use max_core::{
    ConvInputLayout, DType, DeviceRef, Dim, Error, FilterLayout, QuantizationConfig, QuantizationEncoding,
    Result, Shape, bail,
};

use crate::operand::Operand;
use crate::ops;
use crate::ops::cast::cast_value;
use crate::ops::conv::ConvOptions;
use crate::ops::conv3d::Conv3dOptions;
use crate::ops::reshape::reshape_value;
use crate::registry::{Arg, FromArg, op_fns};
use crate::value::TensorValue;

op_fns! {
    /// `x @ weight.T + bias` along the last axis, with the elements of the weight limited to a magnitude, if there is one.
    pub fn linear(
        x: Operand, weight: Operand, bias: Option<Operand> = Arg::None, clip: Option<f64> = Arg::None,
    ) -> TensorValue {
        let x = x.tensor()?;
        let mut weight = ops::transfer_to(weight, x.device())?;
        if weight.rank() != 2 {
            bail!(value, "a linear layer has a weight [out, in]; got the shape {}", weight.shape());
        }
        if let Some(clip) = clip {
            if clip.is_nan() || clip < 0.0 {
                bail!(value, "weights are clipped to a magnitude of at least zero; got {clip}");
            }
            weight = ops::clamp(&weight, Operand::from(-clip), Operand::from(clip))?;
        }
        with_bias(ops::matmul(x, ops::transpose(weight, 0, 1)?)?, bias)
    }

    /// `x @ dequantize(weight).T + bias` along the last axis: see `qmatmul`. The order belongs to the columns of GPTQ weights.
    pub fn quantized_linear(
        x: Operand, weight: Operand, encoding: QuantizationEncoding, config: Option<QuantizationConfig> = Arg::None,
        order: Option<Operand> = Arg::None, bias: Option<Operand> = Arg::None,
    ) -> TensorValue {
        let x = x.tensor()?;
        let right = [Some(weight), order].into_iter().flatten().map(|part| ops::transfer_to(part, x.device()));
        let right = right.collect::<Result<Vec<_>>>()?;
        with_bias(ops::qmatmul(encoding, config, x, right)?, bias)
    }

    /// `x @ weight.T + bias` along the last axis, with scaled float8 weights and an input that is quantized to float8: with a
    /// given scale, or else with scales of its own for each token, or each `block[1]` elements of one.
    pub fn float8_linear(
        x: Operand, weight: Operand, weight_scale: Operand, input_scale: Option<Operand> = Arg::None,
        bias: Option<Operand> = Arg::None, block: Vec<i64> = Arg::List(vec![]), scale_ub: Option<f64> = Arg::None,
    ) -> TensorValue {
        let x = x.tensor()?;
        let weight = ops::transfer_to(weight, x.device())?;
        let ([outer @ .., k], [n, _]) = (&x.shape()[..], &weight.shape()[..]) else {
            bail!(
                value,
                "a linear layer takes an input of rank 1 or more and a weight [out, in]; got the shapes {} and {}",
                x.shape(),
                weight.shape()
            );
        };
        let result = Shape::from([outer, std::slice::from_ref(n)].concat());
        let tokens = Shape::from(outer.to_vec()).num_elements()?;
        let rows = reshape_value(&x, Shape::from([&tokens, k]))?;
        let (rows, scales) = match input_scale {
            Some(scale) => {
                let scale = scale.tensor()?;
                let rows = ops::quantize_static_float8(rows, &scale, false, weight.dtype())?;
                (rows, scale)
            }
            None => {
                let group = block.get(1).copied().unwrap_or(-1);
                let bound = scale_ub.unwrap_or(f64::from(f32::MAX));
                let parts = ops::quantize_dynamic_float8(rows, group, bound, 1, weight.dtype(), DType::Float32)?;
                let [rows, scales] = <[TensorValue; 2]>::try_from(parts)
                    .map_err(|_| Error::internal("quantized tokens without scales"))?;
                (rows, ops::transpose(scales, 0, 1)?)
            }
        };
        let product = ops::scaled_matmul(rows, weight, scales, columns(weight_scale)?, block, x.dtype())?;
        with_bias(reshape_value(&product, result)?, bias)
    }

    /// `activation(gate) * up`, the middle of a gated multi-layer perceptron.
    pub fn gated(gate: Operand, up: Operand, activation: Activation = "silu") -> TensorValue {
        ops::mul(activate(gate, activation)?, up)
    }

    /// An activation function, by its name.
    pub fn activate(x: Operand, activation: Activation) -> TensorValue {
        match activation {
            Activation::Silu => ops::silu(x),
            Activation::Gelu => ops::gelu(x),
            Activation::GeluTanh => ops::gelu_tanh(x),
            Activation::GeluQuick => ops::gelu_quick(x),
            Activation::Relu => ops::relu(x),
            Activation::Tanh => ops::tanh(x),
            Activation::Sigmoid => ops::sigmoid(x),
        }
    }

    /// Rows of a table, `[vocab, dim]`, by their numbers, on a device. Rows of blocks are decoded to the dtype.
    pub fn embedding(
        indices: Operand, weight: Operand, device: DeviceRef, encoding: Option<QuantizationEncoding> = Arg::None,
        dtype: DType = "float32",
    ) -> TensorValue {
        let table = ops::transfer_to(weight, device)?;
        if table.rank() != 2 {
            bail!(value, "an embedding has a table [vocab, dim]; got the shape {}", table.shape());
        }
        let rows = ops::gather(table, ops::transfer_to(indices, device)?, 0)?;
        match encoding {
            Some(encoding) => cast_value(&ops::dequantize(encoding, rows)?, dtype),
            None => Ok(rows),
        }
    }

    /// Layer normalization with a weight and a bias that may be missing.
    pub fn affine_layer_norm(
        x: Operand, weight: Option<Operand> = Arg::None, bias: Option<Operand> = Arg::None, epsilon: f64 = 1e-5,
    ) -> TensorValue {
        let x = x.tensor()?;
        let Some(size) = x.shape().last() else { bail!(value, "layer_norm needs at least one axis") };
        let [weight, bias] = affine(&x, size, weight, bias)?;
        ops::layer_norm(&x, weight, bias, epsilon)
    }

    /// Group normalization with a weight and a bias that may be missing.
    pub fn affine_group_norm(
        x: Operand, num_groups: i64, weight: Option<Operand> = Arg::None, bias: Option<Operand> = Arg::None,
        epsilon: f64 = 1e-5,
    ) -> TensorValue {
        let x = x.tensor()?;
        let Some(size) = x.shape().get(1) else {
            bail!(value, "group_norm needs an input [N, C, ..]; got shape {}", x.shape());
        };
        let [weight, bias] = affine(&x, size, weight, bias)?;
        ops::group_norm(&x, weight, bias, num_groups, epsilon)
    }

    /// A convolution over one, two or three axes, with a filter `[sizes.., in / groups, out]` and channels last; or, if it is
    /// permuted, a filter `[out, in / groups, sizes..]` and channels before the other axes, as in PyTorch.
    #[expect(clippy::too_many_arguments, reason = "what a convolution has")]
    pub fn convolution(
        x: Operand, filter: Operand, bias: Option<Operand> = Arg::None, stride: Vec<i64> = Arg::List(vec![]),
        dilation: Vec<i64> = Arg::List(vec![]), padding: Vec<i64> = Arg::List(vec![]), groups: i64 = 1,
        permute: bool = false,
    ) -> TensorValue {
        let x = x.tensor()?;
        let filter = ops::transfer_to(filter, x.device())?;
        let bias = bias.map(|bias| ops::transfer_to(bias, x.device()).map(Operand::from)).transpose()?;
        let axes = filter.rank().saturating_sub(2);
        if !(1..=3).contains(&axes) || x.rank() != filter.rank() {
            bail!(
                value,
                "a convolution over one to three axes takes an input and a filter of rank 3 to 5; got the shapes {} and {}",
                x.shape(),
                filter.shape()
            );
        }
        let per_axis = |name: &str, given: &[i64], count: usize, default: i64| match given {
            [] => Ok(vec![default; count]),
            _ if given.len() == count => Ok(given.to_vec()),
            _ => bail!(value, "a convolution over {axes} axes takes {count} numbers as {name}; got {given:?}"),
        };
        let stride = per_axis("stride", &stride, axes, 1)?;
        let dilation = per_axis("dilation", &dilation, axes, 1)?;
        let padding = per_axis("padding", &padding, 2 * axes, 0)?;
        let input_layout = if permute { ConvInputLayout::NCHW } else { ConvInputLayout::NHWC };
        match (&stride[..], &dilation[..], &padding[..]) {
            (&[stride], &[dilation], &[before, after]) => {
                let axis = if permute { 2 } else { 1 };
                let height = if permute { 2 } else { 0 };
                let options = ConvOptions {
                    stride: [1, stride],
                    dilation: [1, dilation],
                    padding: [0, 0, before, after],
                    groups,
                    input_layout,
                    filter_layout: if permute { FilterLayout::FCRS } else { FilterLayout::RSCF },
                };
                let image = ops::unsqueeze(x, axis)?;
                let y = ops::conv2d(image, ops::unsqueeze(filter, height)?, bias, options)?;
                ops::squeeze(y, axis)
            }
            (&[down, across], &[dilation_down, dilation_across], &[top, bottom, left, right]) => {
                let options = ConvOptions {
                    stride: [down, across],
                    dilation: [dilation_down, dilation_across],
                    padding: [top, bottom, left, right],
                    groups,
                    input_layout,
                    filter_layout: if permute { FilterLayout::FCRS } else { FilterLayout::RSCF },
                };
                ops::conv2d(x, filter, bias, options)
            }
            _ => {
                // The depth of a filter in PyTorch's order comes third; volumes have their channels last.
                let (to, back) = (vec![0, 2, 3, 4, 1], vec![0, 4, 1, 2, 3]);
                let (x, filter) = match permute {
                    true => (ops::permute(x, to)?, ops::permute(filter, vec![2, 3, 4, 1, 0])?),
                    false => (x, filter),
                };
                let wrong = || Error::internal("a convolution over three axes with other options");
                let options = Conv3dOptions {
                    stride: stride.try_into().map_err(|_| wrong())?,
                    dilation: dilation.try_into().map_err(|_| wrong())?,
                    padding: padding.try_into().map_err(|_| wrong())?,
                    groups,
                    input_layout: ConvInputLayout::NHWC,
                    filter_layout: FilterLayout::QRSCF,
                };
                let y = ops::conv3d(x, filter, bias, options)?;
                if permute { ops::permute(y, back) } else { Ok(y) }
            }
        }
    }
}

/// The activation functions that configurations of models name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    #[default]
    Silu,
    /// The exact gelu.
    Gelu,
    /// The tanh approximation of gelu.
    GeluTanh,
    /// The sigmoid approximation of gelu.
    GeluQuick,
    /// `max(x, 0)`.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
    /// The logistic function.
    Sigmoid,
}

impl FromStr for Activation {
    type Err = Error;

    fn from_str(name: &str) -> Result<Activation> {
        Ok(match name {
            "silu" | "swish" => Activation::Silu,
            "gelu" => Activation::Gelu,
            "gelu_tanh" | "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
            "gelu_quick" | "quick_gelu" => Activation::GeluQuick,
            "relu" => Activation::Relu,
            "tanh" => Activation::Tanh,
            "sigmoid" => Activation::Sigmoid,
            _ => bail!(
                value,
                "unknown activation function '{name}'; expected silu, gelu, gelu_tanh, gelu_quick, relu, tanh or sigmoid"
            ),
        })
    }
}

impl FromArg for Activation {
    fn from_arg(arg: Arg) -> Result<Activation> {
        String::from_arg(arg)?.parse()
    }
}

/// A product with a bias added, in the dtype of the product.
fn with_bias(product: TensorValue, bias: Option<Operand>) -> Result<TensorValue> {
    match bias {
        None => Ok(product),
        Some(bias) => {
            let bias = ops::transfer_to(bias.like(&product)?, product.device())?;
            let dtype = product.dtype();
            ops::add(product, if bias.dtype().is_float() { cast_value(&bias, dtype)? } else { bias })
        }
    }
}

/// A weight and a bias `[size]` where the input is; ones and zeros if they are missing.
fn affine(
    x: &TensorValue,
    size: &Dim,
    weight: Option<Operand>,
    bias: Option<Operand>,
) -> Result<[TensorValue; 2]> {
    let or = |given: Option<Operand>, number: f64| match given {
        Some(given) => ops::transfer_to(given.like(x)?, x.device()),
        None => ops::broadcast_to(Operand::from(number).like(x)?, Shape::from([size])),
    };
    Ok([or(weight, 1.0)?, or(bias, 0.0)?])
}

/// The scales of weights as a matrix: one of a vector belongs to a row.
fn columns(scales: Operand) -> Result<TensorValue> {
    let scales = scales.tensor()?;
    if scales.rank() == 1 { ops::unsqueeze(scales, 1) } else { Ok(scales) }
}
