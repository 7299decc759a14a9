//! The session: devices, threads, and how a graph becomes a model.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use max_compiler::{Options, Target, compile};
use max_core::{Bindings, Error, Result, TensorType, bail};
use max_driver::{Buffer, Device};
use max_graph::{Graph, HostTensor};
use max_kernels::Pool;

use crate::file::read_graph;
use crate::model::Model;

/// Values of weights by name.
pub type WeightsRegistry = HashMap<String, Buffer>;

/// What can be loaded.
pub enum Source {
    /// A graph.
    Graph(Graph),
    /// A file that a graph was saved to.
    Path(PathBuf),
}

impl From<&Graph> for Source {
    fn from(graph: &Graph) -> Source {
        Source::Graph(graph.clone())
    }
}

impl From<&Path> for Source {
    fn from(path: &Path) -> Source {
        Source::Path(path.into())
    }
}

impl From<&str> for Source {
    fn from(path: &str) -> Source {
        Source::Path(path.into())
    }
}

/// A set of devices on which models run.
#[derive(Debug)]
pub struct InferenceSession {
    devices: Vec<Device>,
    num_threads: usize,
    pool: OnceLock<Arc<Pool>>,
}

impl InferenceSession {
    /// A session on devices; the host is always among them. Threads default to the machine's cores.
    pub fn new(devices: impl IntoIterator<Item = Device>) -> InferenceSession {
        let mut all: Vec<Device> = Vec::new();
        for device in devices.into_iter().chain([Device::cpu()]) {
            if !all.contains(&device) {
                all.push(device);
            }
        }
        let num_threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        InferenceSession { devices: all, num_threads, pool: OnceLock::new() }
    }

    /// The same session with a number of threads.
    pub fn with_num_threads(mut self, num_threads: usize) -> Result<InferenceSession> {
        if num_threads == 0 {
            bail!(value, "num_threads must be at least 1");
        }
        self.num_threads = num_threads;
        Ok(self)
    }

    /// The devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The number of threads models may use.
    pub fn num_threads(&self) -> usize {
        self.num_threads
    }

    /// Its threads, which its models share.
    fn pool(&self) -> Arc<Pool> {
        self.pool.get_or_init(|| Arc::new(Pool::new(self.num_threads))).clone()
    }

    /// Compiles a graph, or a saved one, that needs no weights.
    pub fn load(&self, model: impl Into<Source>) -> Result<Model> {
        self.load_with(model, &WeightsRegistry::new())
    }

    /// Compiles a graph, or a saved one, with the values of its weights.
    pub fn load_with(&self, model: impl Into<Source>, weights: &WeightsRegistry) -> Result<Model> {
        let graph = match model.into() {
            Source::Graph(graph) => graph,
            Source::Path(path) => read_graph(&path)?,
        };
        let devices = self.devices.iter().map(Device::device_ref).collect();
        let target = Target { devices, options: Options { fuse: true } };
        let program = compile(&graph, &target)?;
        let bound = program.weights.iter().map(|(name, ty)| bind_weight(name, ty, weights));
        let bound = bound.collect::<Result<Vec<_>>>()?;
        Model::new(Arc::new(program), bound, self.devices.clone(), self.pool())
    }
}

/// The value of a weight, checked against its type; symbolic dims take any size.
fn bind_weight(name: &str, ty: &TensorType, weights: &WeightsRegistry) -> Result<HostTensor> {
    let Some(value) = weights.get(name) else {
        let known: Vec<_> = weights.keys().take(8).cloned().collect();
        let known = if known.is_empty() { "nothing".into() } else { known.join(", ") };
        bail!(value, "weight '{name}' ({ty}) is missing from the weights registry, which has {known}");
    };
    let wrong = |what: &str| {
        Error::value(format!(
            "weight '{name}' has the wrong {what}: expected {ty}, got {} {:?}",
            value.dtype(),
            value.shape()
        ))
    };
    if value.dtype() != ty.dtype {
        return Err(wrong("dtype"));
    }
    let mut bindings = Bindings::new();
    let fits = ty.shape.rank() == value.shape().len()
        && ty.shape.iter().zip(value.shape()).all(|(dim, &size)| {
            let bound = dim.bind(size as i64, &mut bindings);
            bound.is_ok() && dim.evaluate(&bindings).is_ok_and(|expected| expected == size as i64)
        });
    if !fits {
        return Err(wrong("shape"));
    }
    HostTensor::new(ty.dtype, value.shape(), value.host_bytes()?)
}
