//! Files of weights: safetensors, GGUF and PyTorch checkpoints.
//!
//! Files are mapped, so loading takes no time and no memory for the data: a weight becomes resident when it is used. What
//! a file says is never trusted. Headers are read (not mapped), their lengths and counts are checked against the size of
//! the file before they are used, and every tensor is known to lie inside its file before its name can be asked for.
//!
//! ```
//! use std::collections::BTreeMap;
//! use max_driver::Buffer;
//! use max_weights::{WeightData, load_weights, save_weights};
//!
//! let path = std::env::temp_dir().join(format!("max-weights-{}.safetensors", std::process::id()));
//! let scale = WeightData::from(Buffer::from_slice(&[1f32, 2.0, 3.0, 4.0], &[2, 2])?);
//! save_weights(&path, &BTreeMap::from([("layer.scale".into(), scale)]), &BTreeMap::new())?;
//!
//! let weights = load_weights(&[&path])?;
//! assert_eq!(weights.names().collect::<Vec<_>>(), ["layer.scale"]);
//! assert_eq!(weights.info("layer.scale")?.shape, [2, 2]);
//! assert_eq!(weights.get("layer.scale")?.data.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
//! # std::fs::remove_file(&path).ok();
//! # Ok::<(), max_core::Error>(())
//! ```

#![forbid(unsafe_code)]

mod contents;
mod convert;
mod format;
mod gguf;
mod index;
mod inspect;
mod metadata;
pub mod names;
mod pytorch;
mod safetensors;
mod save;
mod source;
mod weight_data;
mod weights;

pub use convert::{Conversion, Progress, Target, convert};
pub use format::{WeightsFormat, weights_format};
pub use inspect::{FileKind, GraphSummary, Inspection, Size, TensorSummary, inspect};
pub use metadata::{Metadata, MetadataArray, MetadataValue};
pub use save::save_weights;
pub use weight_data::WeightData;
pub use weights::{WeightInfo, Weights, load_weights};
