//! Layers one after the other.

use max_core::Result;
use max_graph::{Operand, TensorValue, Weight};

use crate::{Module, Path};

/// A layer of one input and one result.
pub trait Layer: Module {
    /// The layer on an input.
    fn call(&self, x: TensorValue) -> Result<TensorValue>;
}

macro_rules! layers {
    ($($type:ty)*) => {$(
        impl Layer for $type {
            fn call(&self, x: TensorValue) -> Result<TensorValue> {
                self.forward(x)
            }
        }
    )*};
}

layers!(
    crate::Linear crate::Mlp crate::Embedding crate::LayerNorm crate::RmsNorm crate::GroupNorm crate::Conv crate::MoE
    Sequential
);

/// Layers, each of which takes the result of the one before it.
#[derive(Default)]
pub struct Sequential {
    /// The layers.
    pub layers: Vec<Box<dyn Layer>>,
}

impl Module for Sequential {
    fn visit(&self, path: &Path, each: &mut dyn FnMut(&Path, &Weight)) {
        let path = Path::Field(path, "layers");
        for (number, layer) in self.layers.iter().enumerate() {
            layer.visit(&Path::Index(&path, number), each);
        }
    }
}

impl Sequential {
    /// Layers with another one at the end.
    pub fn then(mut self, layer: impl Layer + 'static) -> Sequential {
        self.layers.push(Box::new(layer));
        self
    }

    /// The layers on an input.
    #[track_caller]
    pub fn forward(&self, x: impl Into<Operand>) -> Result<TensorValue> {
        self.layers.iter().try_fold(x.into().tensor()?, |x, layer| layer.call(x))
    }
}
