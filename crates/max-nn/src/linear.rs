//! Linear layers.

use max_core::{DType, DeviceRef, Dim, QuantizationConfig, QuantizationEncoding, Result, Shape, bail};
use max_graph::ops::{self, Sharding, ShardingStrategy};
use max_graph::{BufferValue, Operand, TensorValue, Weight};

use crate::{Module, Path};

/// `x @ weight.T + bias` along the last axis.
#[derive(Clone, Debug)]
pub struct Linear {
    /// The matrix `[out, in]`, or its encoded rows.
    pub weight: Weight,
    /// The bias, `[out]`.
    pub bias: Option<Weight>,
    /// What float8 weights are multiplied by.
    pub weight_scale: Option<Weight>,
    /// What a float8 input is multiplied by, if that is known beforehand.
    pub input_scale: Option<Weight>,
    /// The order of the columns of GPTQ weights.
    pub perm_idx: Option<Weight>,
    /// How the weight is stored.
    pub form: Form,
    /// Where it is computed.
    pub device: DeviceRef,
}

crate::module!(Linear { weight, bias, weight_scale, input_scale, perm_idx });

/// How the weight of a linear layer is stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Form {
    /// As floats.
    #[default]
    Plain,
    /// As floats that are limited to a magnitude.
    Clipped(f64),
    /// Encoded; the config belongs to GPTQ.
    Encoded(QuantizationEncoding, Option<QuantizationConfig>),
    /// As float8 with scales.
    Float8 {
        /// The rows and columns that share a scale; none if a row or the whole does.
        block: Option<[i64; 2]>,
        /// Whether each row has a scale, if there are no blocks.
        rowwise: bool,
        /// Whether the scale of the input is a weight too.
        static_input: bool,
        /// The largest magnitude that scales of the input are for.
        scale_ub: Option<f64>,
    },
}

/// What a linear layer is made from.
#[derive(Clone, Debug)]
pub struct LinearConfig {
    /// The size of the last axis of the input.
    pub in_dim: usize,
    /// The size of the last axis of the result.
    pub out_dim: usize,
    /// The dtype of the weight and the bias.
    pub dtype: DType,
    /// Where it is computed.
    pub device: DeviceRef,
    /// Whether there is a bias.
    pub has_bias: bool,
    /// How the weight is stored.
    pub form: Form,
}

impl LinearConfig {
    /// A layer without a bias, whose weight is stored as floats.
    pub fn new(in_dim: usize, out_dim: usize, dtype: DType, device: impl Into<DeviceRef>) -> LinearConfig {
        LinearConfig { in_dim, out_dim, dtype, device: device.into(), has_bias: false, form: Form::Plain }
    }

    /// With a bias.
    pub fn with_bias(self) -> LinearConfig {
        LinearConfig { has_bias: true, ..self }
    }

    /// With a weight that is stored in another form.
    pub fn with_form(self, form: Form) -> LinearConfig {
        LinearConfig { form, ..self }
    }

    /// The layer.
    pub fn build(&self) -> Result<Linear> {
        let &LinearConfig { in_dim, out_dim, dtype, device, has_bias, ref form } = self;
        let weight = |name: &str, dtype: DType, sizes: &[usize]| {
            let shape: Shape = sizes.iter().map(|&size| Dim::from(size)).collect();
            Weight::new(name, dtype, shape, device)
        };
        let mut linear = Linear {
            weight: weight("weight", dtype, &[out_dim, in_dim])?,
            bias: None,
            weight_scale: None,
            input_scale: None,
            perm_idx: None,
            form: form.clone(),
            device,
        };
        let mut bias_dtype = dtype;
        match form {
            Form::Plain | Form::Clipped(_) => {}
            Form::Encoded(QuantizationEncoding::GPTQ, Some(config)) => {
                bias_dtype = DType::Float32;
                let group = usize::try_from(config.group_size).unwrap_or(in_dim);
                if group == 0 || !in_dim.is_multiple_of(group) {
                    bail!(value, "an input of {in_dim} elements has no whole number of groups of {group}");
                }
                let bytes =
                    (in_dim / 8).saturating_mul(config.bits as usize).saturating_add(2 * (in_dim / group));
                linear.weight = weight("weight", DType::UInt8, &[bytes, out_dim])?;
                linear.weight.quantization_encoding = Some(QuantizationEncoding::GPTQ);
                if config.desc_act {
                    linear.perm_idx = Some(weight("perm_idx", DType::Int32, &[in_dim])?);
                }
            }
            Form::Encoded(encoding, _) => {
                bias_dtype = DType::Float32;
                let block = encoding.block_parameters()?;
                if !in_dim.is_multiple_of(block.elements_per_block) {
                    bail!(
                        value,
                        "an input of {in_dim} elements has no whole number of {} blocks of {}",
                        encoding.name(),
                        block.elements_per_block
                    );
                }
                let bytes = in_dim / block.elements_per_block * block.block_size;
                linear.weight = weight("weight", DType::UInt8, &[out_dim, bytes])?;
                linear.weight.quantization_encoding = Some(*encoding);
            }
            &Form::Float8 { block, rowwise, static_input, .. } => {
                if !dtype.is_float8() {
                    bail!(value, "a float8 layer has weights of a float8 dtype, not {dtype}");
                }
                bias_dtype = DType::BFloat16;
                let scales = match block {
                    Some([rows, columns]) if rows > 0 && columns > 0 => {
                        vec![out_dim.div_ceil(rows as usize), in_dim.div_ceil(columns as usize)]
                    }
                    Some(block) => bail!(value, "a block has positive sizes; got {block:?}"),
                    None if rowwise => vec![out_dim, 1],
                    None => vec![],
                };
                linear.weight_scale = Some(weight("weight_scale", DType::Float32, &scales)?);
                if static_input {
                    linear.input_scale = Some(weight("input_scale", DType::Float32, &[])?);
                }
            }
        }
        if has_bias {
            linear.bias = Some(weight("bias", bias_dtype, &[out_dim])?);
        }
        Ok(linear)
    }
}

impl Linear {
    /// The layer on an input.
    #[track_caller]
    pub fn forward(&self, x: impl Into<Operand>) -> Result<TensorValue> {
        let x = ops::transfer_to(x, self.device)?;
        let weight = Operand::from(&self.weight);
        let bias = self.bias.as_ref().map(Operand::from);
        match (&self.form, &self.weight_scale) {
            (Form::Plain, _) => ops::linear(x, weight, bias, None),
            (Form::Clipped(most), _) => ops::linear(x, weight, bias, *most),
            (Form::Encoded(encoding, config), _) => {
                let order = self.perm_idx.as_ref().map(Operand::from);
                ops::quantized_linear(x, weight, *encoding, config.clone(), order, bias)
            }
            (Form::Float8 { block, scale_ub, .. }, Some(scale)) => {
                let block = block.map_or(vec![], |block| block.to_vec());
                let input_scale = self.input_scale.as_ref().map(Operand::from);
                ops::float8_linear(x, weight, scale, input_scale, bias, block, *scale_ub)
            }
            (Form::Float8 { .. }, None) => bail!(value, "a float8 layer without scales of its weight"),
        }
    }

    /// One layer per device: rows of the weight are outputs, so that results are concatenated, and columns are inputs, so
    /// that results are added up; of the latter only the first has the bias.
    pub fn shard(&self, strategy: &ShardingStrategy, devices: &[DeviceRef]) -> Result<Vec<Linear>> {
        if self.form != Form::Plain && strategy.sharding != Sharding::Replicate {
            bail!(value, "only linear layers with plain weights can be sharded, unless they are replicated");
        }
        let replicate = ShardingStrategy { sharding: Sharding::Replicate, ..strategy.clone() };
        let columns =
            matches!(strategy.sharding, Sharding::Columnwise | Sharding::HeadAwareColumnwise { .. });
        let weights = self.weight.shard(strategy, devices)?;
        let shared = |weight: &Option<Weight>, strategy: &ShardingStrategy| match weight {
            Some(weight) => Ok(weight.shard(strategy, devices)?.into_iter().map(Some).collect()),
            None => Ok::<_, max_core::Error>(vec![None; devices.len()]),
        };
        let biases = shared(&self.bias, if columns { &replicate } else { strategy })?;
        let weight_scales = shared(&self.weight_scale, &replicate)?;
        let input_scales = shared(&self.input_scale, &replicate)?;
        let orders = shared(&self.perm_idx, &replicate)?;
        let parts = weights.into_iter().zip(biases).zip(weight_scales).zip(input_scales).zip(orders);
        let shards = parts.zip(devices).enumerate();
        let shards =
            shards.map(|(at, (((((weight, bias), weight_scale), input_scale), perm_idx), device))| {
                let bias = bias.filter(|_| !columns || at == 0);
                Linear {
                    weight,
                    bias,
                    weight_scale,
                    input_scale,
                    perm_idx,
                    form: self.form.clone(),
                    device: *device,
                }
            });
        Ok(shards.collect())
    }
}

/// A linear layer whose outputs are divided among devices and then gathered on each of them.
#[derive(Clone, Debug)]
pub struct ColumnParallelLinear {
    whole: Linear,
    shards: Vec<Linear>,
}

impl Module for ColumnParallelLinear {
    fn visit(&self, path: &Path, each: &mut dyn FnMut(&Path, &Weight)) {
        self.whole.visit(path, each);
    }
}

impl ColumnParallelLinear {
    /// The layer on devices. The weight may be that of another layer.
    pub fn new(
        config: &LinearConfig,
        devices: &[DeviceRef],
        tied_weight: Option<&Weight>,
    ) -> Result<ColumnParallelLinear> {
        let mut whole = config.build()?;
        if let Some(tied) = tied_weight {
            whole.weight = tied.clone();
        }
        let strategy = ShardingStrategy::new(devices.len(), Sharding::Rowwise)?;
        Ok(ColumnParallelLinear { shards: whole.shard(&strategy, devices)?, whole })
    }

    /// The result on each device, from the input and the signal buffer on each.
    #[track_caller]
    pub fn forward(&self, xs: &[TensorValue], signal_buffers: Vec<BufferValue>) -> Result<Vec<TensorValue>> {
        if xs.len() != self.shards.len() {
            bail!(value, "a layer on {} devices got {} inputs", self.shards.len(), xs.len());
        }
        let parts = self.shards.iter().zip(xs).map(|(shard, x)| shard.forward(x).map(Operand::from));
        ops::allgather(parts.collect::<Result<Vec<_>>>()?, signal_buffers, -1)
    }
}
