//! Weights: named tensors whose values are supplied when a graph is loaded.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use max_core::{DType, DeviceRef, QuantizationEncoding, Result, Shape, TensorType, bail};

use crate::graph::{Graph, unique_identity};
use crate::operand::HasTensorValue;
use crate::ops::shard::ShardingStrategy;
use crate::ops::transfer_to;
use crate::value::TensorValue;

/// A value that is loaded later. It is created outside any graph and added to the current one when it is used.
///
/// A clone is another handle on the same weight: it shares the name, and a graph takes the two for one.
#[derive(Clone)]
pub struct Weight {
    name: Arc<RwLock<Arc<str>>>,
    ty: TensorType,
    identity: u64,
    /// What it is a part of, if it is one.
    part: Option<Arc<Part>>,
    /// The quantization encoding of its elements, if they have one.
    pub quantization_encoding: Option<QuantizationEncoding>,
    /// The alignment its bytes need, if different from that of its dtype.
    pub align: Option<usize>,
}

/// The shard of a weight for one of several devices.
struct Part {
    whole: Weight,
    strategy: ShardingStrategy,
    index: usize,
}

impl Weight {
    /// A weight with a name and a type.
    pub fn new(
        name: impl Into<String>,
        dtype: DType,
        shape: impl Into<Shape>,
        device: impl Into<DeviceRef>,
    ) -> Result<Weight> {
        let ty = TensorType::new(dtype, shape, device);
        ty.validate()?;
        Ok(Weight {
            name: Arc::new(RwLock::new(name.into().into())),
            ty,
            identity: unique_identity(),
            part: None,
            quantization_encoding: None,
            align: None,
        })
    }

    /// The name under which its value is looked up.
    pub fn name(&self) -> Arc<str> {
        self.name.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives it, and all handles on it, another name; graphs that it is in keep the old one.
    pub fn rename(&self, name: impl Into<String>) {
        *self.name.write().unwrap_or_else(PoisonError::into_inner) = name.into().into();
    }

    /// Its type.
    pub fn tensor_type(&self) -> &TensorType {
        &self.ty
    }

    /// A number that only handles on this weight share.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// The weight that it is a part of, if it is a shard.
    pub fn whole(&self) -> Option<&Weight> {
        self.part.as_ref().map(|part| &part.whole)
    }

    /// Its parts for as many devices as the strategy is for. They can be used like weights; what is loaded is the whole.
    pub fn shard(&self, strategy: &ShardingStrategy, devices: &[DeviceRef]) -> Result<Vec<Weight>> {
        if self.part.is_some() {
            bail!(value, "weight '{}' is a shard, which cannot be sharded further", self.name());
        }
        if devices.len() != strategy.num_devices {
            bail!(
                value,
                "weight '{}' is sharded over {} devices, but {} were given",
                self.name(),
                strategy.num_devices,
                devices.len()
            );
        }
        let shards = devices.iter().enumerate().map(|(index, device)| {
            let shape = strategy
                .shape(&self.ty.shape, index)
                .map_err(|e| e.context(format!("for weight '{}'", self.name())))?;
            let part = Part { whole: self.clone(), strategy: strategy.clone(), index };
            Ok(Weight {
                ty: TensorType { shape, device: *device, ..self.ty.clone() },
                part: Some(Arc::new(part)),
                ..self.clone()
            })
        });
        shards.collect()
    }

    /// Its value in the current graph.
    #[track_caller]
    pub fn value(&self) -> Result<TensorValue> {
        if let Some(part) = &self.part {
            return transfer_to(part.strategy.cut(&part.whole.value()?, part.index)?, self.ty.device);
        }
        match Graph::current() {
            Ok(graph) => graph.add_weight(self),
            Err(_) => bail!(
                value,
                "weight '{}' has no parent graph: weights can only be used while a graph is being built",
                self.name()
            ),
        }
    }
}

impl HasTensorValue for Weight {
    fn tensor_value(self: Arc<Self>) -> Result<TensorValue> {
        self.value()
    }
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TensorType { dtype, shape, device, .. } = &self.ty;
        write!(f, "Weight({}, DType.{dtype}, {shape:?}, {device})", self.name())
    }
}
