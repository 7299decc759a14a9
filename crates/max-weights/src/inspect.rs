//! What is in a file of weights or of a graph, as data to be shown.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use max_core::{Dim, Error, Result, Type};
use max_driver::Buffer;
use max_graph::encode;
use max_graph::ir::Body;
use max_graph::op::OpKind;
use serde::Serialize;

use crate::format::is_index;
use crate::weights::about;
use crate::{Metadata, Weights, WeightsFormat, load_weights};

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// Weights in GGUF.
    Gguf,
    /// Weights in safetensors.
    Safetensors,
    /// Weights in a checkpoint of PyTorch.
    Pytorch,
    /// A saved graph.
    Graph,
}

/// What is in a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// What the file is.
    pub kind: FileKind,
    /// The files: one, unless it is an index.
    pub files: Vec<PathBuf>,
    /// The size of the files in bytes.
    pub file_bytes: u64,
    /// The tensors in the order of the files; those that a graph needs when it is loaded.
    pub tensors: Vec<TensorSummary>,
    /// What the file says about itself.
    pub metadata: Metadata,
    /// What the graph is, if it is one.
    pub graph: Option<GraphSummary>,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorSummary {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub dtype: String,
    /// How its elements are encoded, if they are.
    pub encoding: Option<String>,
    /// Its sizes; the last one counts bytes if the elements are encoded.
    pub shape: Vec<Size>,
    /// Its size in bytes, if that is known.
    pub num_bytes: Option<u64>,
}

/// The size of an axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Size {
    /// A number.
    Static(u64),
    /// An expression of symbols.
    Symbolic(String),
}

/// A graph.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GraphSummary {
    /// Its name.
    pub name: String,
    /// The types of its inputs.
    pub inputs: Vec<String>,
    /// The types of its outputs.
    pub outputs: Vec<String>,
    /// How many ops of each kind it has, branches and loop bodies included.
    pub ops: BTreeMap<String, usize>,
    /// How many bytes of constants it has.
    pub constant_bytes: u64,
}

/// Describes a file of weights, an index of such files, or a saved graph. The beginning of the file tells what it is.
///
/// The data of weights is not touched. A graph is read completely, and its checksums are compared.
pub fn inspect(path: impl AsRef<Path>) -> Result<Inspection> {
    let path = path.as_ref();
    if is_index(path) {
        return of_weights(&load_weights(&[path])?);
    }
    let beginning = beginning(path).map_err(|error| about(path, error))?;
    if beginning.starts_with(b"MAXGRAPH") {
        return of_graph(path).map_err(|error| about(path, error));
    }
    let format = match &beginning[..] {
        [b'G', b'G', b'U', b'F', ..] => WeightsFormat::Gguf,
        [b'P', b'K', ..] => WeightsFormat::Pytorch,
        [_, _, _, _, _, _, _, _, b'{'] => WeightsFormat::Safetensors,
        _ => WeightsFormat::of_path(path)?,
    };
    of_weights(&Weights::open(path, format)?)
}

fn beginning(path: &Path) -> Result<Vec<u8>> {
    let source = crate::source::Source::open(path)?;
    source.read(0, source.len().min(9))
}

fn of_weights(weights: &Weights) -> Result<Inspection> {
    let kind = match weights.format() {
        WeightsFormat::Gguf => FileKind::Gguf,
        WeightsFormat::Safetensors => FileKind::Safetensors,
        WeightsFormat::Pytorch => FileKind::Pytorch,
    };
    let tensors = weights.names().map(|name| {
        let info = weights.info(name)?;
        Ok(TensorSummary {
            name: name.into(),
            dtype: info.dtype.name().into(),
            encoding: info.quantization_encoding.map(|encoding| encoding.name().into()),
            shape: info.shape.iter().map(|&size| Size::Static(size as u64)).collect(),
            num_bytes: Some(info.num_bytes as u64),
        })
    });
    Ok(Inspection {
        kind,
        tensors: tensors.collect::<Result<_>>()?,
        files: weights.files().collect(),
        file_bytes: weights.file_bytes(),
        metadata: weights.metadata().clone(),
        graph: None,
    })
}

fn of_graph(path: &Path) -> Result<Inspection> {
    let unreadable = |error: std::io::Error| Error::runtime(format!("the file cannot be read: {error}"));
    let file = File::open(path).map_err(unreadable)?;
    let len = file.metadata().map_err(unreadable)?.len();
    let size = usize::try_from(len).map_err(|_| Error::memory(format!("it has {len} bytes")))?;
    let body = encode::decode(&Buffer::from_reader(file.take(len), size)?.host_bytes()?)?.take_body();
    let types = |values: &[_]| body.types_of(values).map(Type::to_string).collect();
    let mut graph = GraphSummary {
        name: body.name.clone(),
        inputs: types(&body.block.arguments),
        outputs: types(body.block.results.as_deref().unwrap_or_default()),
        ..GraphSummary::default()
    };
    let mut tensors = Vec::new();
    count(&body, &mut graph, &mut tensors);
    Ok(Inspection {
        kind: FileKind::Graph,
        files: vec![path.into()],
        file_bytes: len,
        tensors,
        metadata: Metadata::new(),
        graph: Some(graph),
    })
}

/// Adds the ops and the weights of a body and of the regions in it.
fn count(body: &Body, graph: &mut GraphSummary, tensors: &mut Vec<TensorSummary>) {
    for op in body.ops() {
        *graph.ops.entry(op.kind.name().into()).or_default() += 1;
        match &op.kind {
            OpKind::Constant(constant) => graph.constant_bytes += constant.value.bytes().len() as u64,
            OpKind::ConstantExternal(weight) => {
                let size = |dim: &Dim| match dim.as_static().and_then(|size| u64::try_from(size).ok()) {
                    Some(size) => Size::Static(size),
                    None => Size::Symbolic(dim.to_string()),
                };
                let sizes = weight.shape.iter().map(|dim| dim.as_static()?.try_into().ok());
                let sizes: Option<Vec<usize>> = sizes.collect();
                let num_bytes =
                    sizes.and_then(|sizes| max_graph::host::byte_count(weight.dtype, &sizes).ok());
                tensors.push(TensorSummary {
                    name: weight.name.clone(),
                    dtype: weight.dtype.name().into(),
                    encoding: None,
                    shape: weight.shape.iter().map(size).collect(),
                    num_bytes: num_bytes.map(|bytes| bytes as u64),
                });
            }
            _ => {}
        }
        for region in op.kind.regions() {
            count(region.body(), graph, tensors);
        }
    }
}
