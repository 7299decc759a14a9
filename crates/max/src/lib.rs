//! The MAX framework in Rust: record a model as a graph, compile it, run it.
//!
//! The modules and names are those of the Python package `max`.
//!
//! ```
//! use max::driver::{Buffer, CPU};
//! use max::dtype::DType;
//! use max::engine::InferenceSession;
//! use max::graph::{Graph, TensorType, ops};
//!
//! let cpu = CPU();
//! let input_type = TensorType::new(DType::Float32, [5], &cpu);
//! let graph = Graph::build("relu_graph", [input_type], |x| ops::relu(&x[0]))?;
//!
//! let session = InferenceSession::new([cpu]);
//! let model = session.load(&graph)?;
//!
//! let input_data = Buffer::from([1.0f32, -2.0, 3.0, -4.0, 5.0]);
//! let result = model.execute(&[input_data])?;
//! assert_eq!(result[0].to_string(), "[1. 0. 3. 0. 5.]");
//! # Ok::<(), max::Error>(())
//! ```
//!
//! Operators on values return a `Result` and accept one, so an expression needs a single `?`:
//!
//! ```
//! # use max::graph::{DeviceRef, Graph, TensorType, ops};
//! # use max::dtype::DType;
//! let t = TensorType::new(DType::Float32, ("batch", 3), DeviceRef::CPU);
//! let graph = Graph::build("norm", [t.clone(), t], |x| {
//!     let (a, b) = (x[0].tensor()?, x[1].tensor()?);
//!     let sum = ((&a + &b) * &a)?;
//!     ops::softmax(sum / 2.0, -1)
//! })?;
//! assert_eq!(graph.output_types()?[0].to_string(), "float32[batch, 3]");
//! # Ok::<(), max::Error>(())
//! ```

#![forbid(unsafe_code)]

pub use max_core::{Error, ErrorKind, FileName, Location, Result};

/// Element types.
pub mod dtype {
    pub use max_core::{Bool, DType, Element, Number, bf16, f16};
}

/// Devices and their memory.
pub mod driver {
    pub use max_core::ViewIndex;
    pub use max_driver::*;
}

/// Graphs and the ops that build them.
pub mod graph {
    pub use max_core::{
        BlockParameters, BufferType, ConvInputLayout, DeviceKind, DeviceRef, Dim, FilterLayout, OpSignature,
        Parameter, Parameters, QuantizationConfig, QuantizationEncoding, Shape, TensorType, Type,
    };
    pub use max_graph::graph::{located, unlocated};
    pub use max_graph::ops::print::set_writer;
    pub use max_graph::ops::slice::{Bound, Index, Indices};
    pub use max_graph::{
        BufferValue, CustomOp, Graph, HasTensorValue, HostTensor, KernelLibrary, OpaqueValue, Operand,
        Operands, TensorValue, Value, Weight, custom, ops, registry, text,
    };
}

/// Sessions and models.
pub mod engine {
    pub use max_engine::*;
}

/// Layers and modules.
pub mod nn {
    pub use max_nn::*;
}

/// Models from files: text generators, sentence encoders, architectures, and where models are found.
pub mod pipelines {
    pub use max_pipelines::*;
}

/// Eager tensors.
pub mod tensor {
    pub use max_tensor::*;
}

/// Files of weights.
pub mod weights {
    pub use max_weights::*;
}

/// The Rust code of the README, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The Rust code of the tour of tensors, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tensors.md")]
struct Tensors;

/// The Rust code of the page about layers, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/layers.md")]
struct Layers;

/// The Rust code of the page about files of weights, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/weights.md")]
struct Weights;

/// The Rust code of the page about text generation, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/generate.md")]
struct Generate;
