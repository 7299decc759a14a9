//! Weights: named tensors whose values are supplied when a graph is loaded.

use std::fmt;
use std::sync::Arc;

use max_core::{DType, DeviceRef, QuantizationEncoding, Result, Shape, TensorType, bail};

use crate::graph::{Graph, unique_identity};
use crate::operand::HasTensorValue;
use crate::value::TensorValue;

/// A value that is loaded later. It is created outside any graph and added to the current one when it is used.
#[derive(Clone)]
pub struct Weight {
    name: String,
    ty: TensorType,
    identity: u64,
    /// The quantization encoding of its elements, if they have one.
    pub quantization_encoding: Option<QuantizationEncoding>,
    /// The alignment its bytes need, if different from that of its dtype.
    pub align: Option<usize>,
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
            name: name.into(),
            ty,
            identity: unique_identity(),
            quantization_encoding: None,
            align: None,
        })
    }

    /// The name under which its value is looked up.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its type.
    pub fn tensor_type(&self) -> &TensorType {
        &self.ty
    }

    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    /// Its value in the current graph.
    #[track_caller]
    pub fn value(&self) -> Result<TensorValue> {
        match Graph::current() {
            Ok(graph) => graph.add_weight(self),
            Err(_) => bail!(
                value,
                "weight '{}' has no parent graph: weights can only be used while a graph is being built",
                self.name
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
        write!(f, "Weight({}, DType.{dtype}, {shape:?}, {device})", self.name)
    }
}
