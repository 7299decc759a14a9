//! Convolutions.

use max_core::{DType, DeviceRef, Dim, Result, Shape, bail};
use max_graph::ops;
use max_graph::{Operand, TensorValue, Weight};

use crate::module;

/// A convolution over one, two or three axes.
#[derive(Clone, Debug)]
pub struct Conv {
    /// The filter: `[sizes.., in / groups, out]`, or in PyTorch's order if it is permuted.
    pub filter: Weight,
    /// The bias, `[out]`.
    pub bias: Option<Weight>,
    /// What it was made from.
    pub config: ConvConfig,
}

module!(Conv { filter, bias });

/// What a convolution is made from. Lists have a number per axis; empty ones are ones, or zeros for the padding.
#[derive(Clone, Debug)]
pub struct ConvConfig {
    /// The sizes of the filter, one to three.
    pub kernel_size: Vec<usize>,
    /// The channels of the input.
    pub in_channels: usize,
    /// The channels of the result.
    pub out_channels: usize,
    /// The dtype of the filter and the bias.
    pub dtype: DType,
    /// Where it is computed.
    pub device: DeviceRef,
    /// The steps of the filter.
    pub stride: Vec<i64>,
    /// The distances between its taps.
    pub dilation: Vec<i64>,
    /// Zeros before and after each axis.
    pub padding: Vec<i64>,
    /// The number of independent groups that the channels are divided into.
    pub num_groups: usize,
    /// Whether there is a bias.
    pub has_bias: bool,
    /// Whether channels come before the other axes and the filter is in PyTorch's order.
    pub permute: bool,
}

impl ConvConfig {
    /// A convolution with steps of one, no padding and no bias.
    pub fn new(
        kernel_size: &[usize],
        in_channels: usize,
        out_channels: usize,
        dtype: DType,
        device: impl Into<DeviceRef>,
    ) -> ConvConfig {
        ConvConfig {
            kernel_size: kernel_size.to_vec(),
            in_channels,
            out_channels,
            dtype,
            device: device.into(),
            stride: vec![],
            dilation: vec![],
            padding: vec![],
            num_groups: 1,
            has_bias: false,
            permute: false,
        }
    }

    /// The layer.
    pub fn build(self) -> Result<Conv> {
        let ConvConfig { in_channels, out_channels, num_groups, dtype, device, .. } = self;
        let divides = |channels: usize| num_groups > 0 && channels.is_multiple_of(num_groups);
        if !divides(in_channels) || !divides(out_channels) {
            bail!(
                value,
                "{in_channels} input and {out_channels} output channels cannot be divided into {num_groups} groups"
            );
        }
        if !(1..=3).contains(&self.kernel_size.len()) {
            bail!(value, "a convolution is over one to three axes, not {}", self.kernel_size.len());
        }
        let inputs = in_channels / num_groups;
        let sizes = match self.permute {
            true => [&[out_channels, inputs], &self.kernel_size[..]].concat(),
            false => [&self.kernel_size[..], &[inputs, out_channels]].concat(),
        };
        let shape: Shape = sizes.into_iter().map(Dim::from).collect();
        let bias =
            if self.has_bias { Some(Weight::new("bias", dtype, [out_channels], device)?) } else { None };
        Ok(Conv { filter: Weight::new("weight", dtype, shape, device)?, bias, config: self })
    }
}

impl Conv {
    /// The layer on an input.
    #[track_caller]
    pub fn forward(&self, x: impl Into<Operand>) -> Result<TensorValue> {
        let ConvConfig { stride, dilation, padding, num_groups, permute, device, .. } = &self.config;
        let x = ops::transfer_to(x, *device)?;
        let bias = self.bias.as_ref().map(Operand::from);
        let (stride, dilation, padding) = (stride.clone(), dilation.clone(), padding.clone());
        ops::convolution(x, &self.filter, bias, stride, dilation, padding, *num_groups as i64, *permute)
    }
}
