//! Graphs: how a model is recorded, checked, printed, stored and run by a reference interpreter.
//!
//! Pure: no files, no devices. The ops live in [`ops`], one file each; [`Graph`] records them; [`ir::Body`]
//! is the recorded graph as data; [`text`] and [`encode`] serialize it; [`interpret()`] defines its meaning.

#![forbid(unsafe_code)]

pub mod attr;
pub mod custom;
pub mod encode;
pub mod graph;
pub mod host;
pub mod interpret;
pub mod ir;
pub mod op;
pub mod operand;
mod operators;
pub mod ops;
pub mod properties;
pub mod region;
pub mod registry;
pub mod text;
pub mod value;
pub mod verify;
pub mod weight;

pub use custom::{CustomOp, KernelLibrary};
pub use graph::Graph;
pub use host::HostTensor;
pub use interpret::{Environment, interpret};
pub use ir::{Body, OpId, ValueId};
pub use op::OpKind;
pub use operand::{HasTensorValue, Operand, Operands};
pub use properties::Properties;
pub use region::Region;
pub use value::{BufferValue, OpaqueValue, TensorValue, Value};
pub use verify::verify;
pub use weight::Weight;
