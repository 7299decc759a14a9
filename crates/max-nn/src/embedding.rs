//! Embedding tables.

use max_core::{DType, DeviceRef, Dim, QuantizationEncoding, Result, Shape, bail};
use max_graph::ops::{self, Sharding, ShardingStrategy};
use max_graph::{BufferValue, Operand, TensorValue, Weight};

use crate::{Module, Path, module};

/// Rows of a table by their numbers.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// The table, `[vocab, hidden]`, or its encoded rows.
    pub weight: Weight,
    /// Where rows are looked up.
    pub device: DeviceRef,
}

module!(Embedding { weight });

/// What an embedding is made from.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingConfig {
    /// The number of rows.
    pub vocab_size: usize,
    /// The elements of a row.
    pub hidden_dim: usize,
    /// The dtype of the table, unless it is encoded.
    pub dtype: DType,
    /// How rows are encoded, if they are.
    pub encoding: Option<QuantizationEncoding>,
}

impl EmbeddingConfig {
    fn weight(&self, device: DeviceRef) -> Result<Weight> {
        let (dtype, length) = match self.encoding {
            None => (self.dtype, self.hidden_dim),
            Some(encoding) => {
                let block = encoding.block_parameters()?;
                if !self.hidden_dim.is_multiple_of(block.elements_per_block) {
                    bail!(
                        value,
                        "rows of {} elements have no whole number of {} blocks of {}",
                        self.hidden_dim,
                        encoding.name(),
                        block.elements_per_block
                    );
                }
                (DType::UInt8, self.hidden_dim / block.elements_per_block * block.block_size)
            }
        };
        let mut weight = Weight::new("weight", dtype, Shape::from([self.vocab_size, length]), device)?;
        weight.quantization_encoding = self.encoding;
        Ok(weight)
    }
}

impl Embedding {
    /// A table on a device.
    pub fn new(config: EmbeddingConfig, device: impl Into<DeviceRef>) -> Result<Embedding> {
        let device = device.into();
        Ok(Embedding { weight: config.weight(device)?, device })
    }

    /// The rows with these numbers; encoded ones as float32.
    #[track_caller]
    pub fn forward(&self, indices: impl Into<Operand>) -> Result<TensorValue> {
        let encoding = self.weight.quantization_encoding;
        ops::embedding(indices, &self.weight, self.device, encoding, DType::Float32)
    }
}

/// An embedding whose rows are divided among devices.
#[derive(Clone, Debug)]
pub struct VocabParallelEmbedding {
    weight: Weight,
    shards: Vec<Embedding>,
    /// The first row of each device.
    starts: Vec<i64>,
}

impl Module for VocabParallelEmbedding {
    fn visit(&self, path: &Path, each: &mut dyn FnMut(&Path, &Weight)) {
        each(&Path::Field(path, "weight"), &self.weight);
    }
}

impl VocabParallelEmbedding {
    /// A table on devices.
    pub fn new(config: EmbeddingConfig, devices: &[DeviceRef]) -> Result<VocabParallelEmbedding> {
        let weight = config.weight(DeviceRef::CPU)?;
        let strategy = ShardingStrategy::new(devices.len(), Sharding::Rowwise)?;
        let shards = weight.shard(&strategy, devices)?;
        let mut starts = Vec::new();
        let mut start = 0;
        for shard in &shards {
            starts.push(start);
            start += shard.tensor_type().shape[0].as_static().unwrap_or_default();
        }
        let shards = shards.into_iter().zip(devices);
        let shards = shards.map(|(weight, &device)| Embedding { weight, device }).collect();
        Ok(VocabParallelEmbedding { weight, shards, starts })
    }

    /// The rows with these numbers, on every device.
    #[track_caller]
    pub fn forward(
        &self,
        indices: impl Into<Operand>,
        signal_buffers: Vec<BufferValue>,
    ) -> Result<Vec<TensorValue>> {
        let indices = indices.into().tensor()?;
        let parts = self.shards.iter().zip(&self.starts).map(|(shard, &start)| {
            let rows = &shard.weight.tensor_type().shape[0];
            let own = ops::sub(ops::transfer_to(&indices, shard.device)?, start)?;
            let size = rows.as_static().unwrap_or_default();
            let is_own =
                ops::logical_and(ops::greater_equal(&own, 0)?, ops::greater(Dim::Static(size), &own)?)?;
            if size == 0 {
                let shape = [&indices.shape()[..], &shard.weight.tensor_type().shape[1..]].concat();
                let zero = ops::constant(0.0, self.weight.tensor_type().dtype, shard.device)?;
                return ops::broadcast_to(zero, Shape::from(shape)).map(Operand::from);
            }
            let inside = ops::clamp(&own, Operand::from(0), Operand::from(size - 1))?;
            let found = shard.forward(inside)?;
            ops::where_(ops::unsqueeze(is_own, -1)?, found, 0.0).map(Operand::from)
        });
        ops::allreduce_sum(parts.collect::<Result<Vec<_>>>()?, signal_buffers)
    }
}
