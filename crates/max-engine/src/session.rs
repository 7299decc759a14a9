//! The session: devices, threads, and how a graph becomes a model.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use max_compiler::{Options, Program, Target, compile};
use max_core::memory::require_memory;
use max_core::{Bindings, Error, Result, TensorType, bail};
use max_driver::{Buffer, Device};
use max_graph::{Body, Graph, KernelLibrary};
use max_kernels::{Pool, cuda};

use crate::cache::{self, Key};
use crate::dump;
use crate::file::read_graph_in;
use crate::model::Model;
use crate::run::{Config, Keep};
use crate::settings::{AssertLevel, LogLevel, ProfilingMode, Settings, SplitKReductionPrecision};
use crate::threads::physical_cores;

/// The values of weights, by name.
pub type WeightsRegistry = HashMap<String, Buffer>;

/// What can be loaded.
pub enum Source {
    /// A graph.
    Graph(Graph),
    /// A file with a saved graph.
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
    settings: Arc<Settings>,
    /// Where the custom ops of saved graphs are found.
    library: KernelLibrary,
}

impl InferenceSession {
    /// A session on devices, always including the host. The default number of threads is that of physical cores.
    pub fn new(devices: impl IntoIterator<Item = Device>) -> InferenceSession {
        let mut all: Vec<Device> = Vec::new();
        for device in devices.into_iter().chain([Device::cpu()]) {
            if !all.contains(&device) {
                all.push(device);
            }
        }
        let settings = Arc::new(Settings::from_environment());
        InferenceSession {
            devices: all,
            num_threads: physical_cores(),
            pool: OnceLock::new(),
            settings,
            library: KernelLibrary::new(),
        }
    }

    /// The same session with another number of threads.
    pub fn with_num_threads(mut self, num_threads: usize) -> Result<InferenceSession> {
        if num_threads == 0 {
            bail!(value, "num_threads must be at least 1");
        }
        self.num_threads = num_threads;
        Ok(self)
    }

    /// The same session, which finds the custom ops of saved graphs in a library.
    pub fn with_library(mut self, library: &KernelLibrary) -> InferenceSession {
        self.library = library.clone();
        self
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

    /// Compiles a graph or a saved graph that needs no weights.
    pub fn load(&self, model: impl Into<Source>) -> Result<Model> {
        self.load_with(model, &WeightsRegistry::new())
    }

    /// Compiles a graph or a saved graph with the values of its weights.
    pub fn load_with(&self, model: impl Into<Source>, weights: &WeightsRegistry) -> Result<Model> {
        let graph = match model.into() {
            Source::Graph(graph) => graph,
            Source::Path(path) => read_graph_in(&path, &self.library)?,
        };
        let program = self.compile(&graph)?;
        self.model(program, weights, Keep::Arenas)
    }

    /// Compiles a graph without weights, given as data, bypassing the program cache: for callers that keep many models
    /// themselves, of graphs that differ in their constants. Such a model releases the memory of its temporaries after each
    /// execution.
    pub fn load_body(&self, body: Body) -> Result<Model> {
        require_memory_for(body.block.ops.len())?;
        let mut target = self.target();
        target.options.fold_exactly = true;
        let program = self.compile_new(body, &target)?;
        self.model(program, &WeightsRegistry::new(), Keep::Little)
    }

    fn model(&self, program: Arc<Program>, weights: &WeightsRegistry, keep: Keep) -> Result<Model> {
        let bound = program.weights.iter().map(|(name, ty)| bind_weight(name, ty, weights));
        let weights = bound.collect::<Result<Vec<_>>>()?;
        let check_plans = matches!(self.settings.assert_level(), AssertLevel::Safe | AssertLevel::All);
        let cuda = cuda::Options { tf32: self.settings.allow_tf32() };
        let config = Config { pool: self.pool(), keep, check_plans, cuda };
        Model::new(program, &weights, self.devices.clone(), self.settings.clone(), config)
    }

    fn target(&self) -> Target {
        let devices = self.devices.iter().map(Device::device_ref).collect();
        // With value checks on, every op is a kernel, so that the op that made a value is known.
        let fuse = matches!(self.settings.assert_level(), AssertLevel::None | AssertLevel::Safe);
        let nccl = self.devices.iter().any(|device| device.gpu().is_some());
        Target { devices, options: Options { fuse, fold_exactly: false, nccl } }
    }

    /// The program of a graph: from the cache, or compiled now.
    fn compile(&self, graph: &Graph) -> Result<Arc<Program>> {
        require_memory_for(graph.num_ops())?;
        let (body, target) = (graph.body(), self.target());
        let key = Key::of(&body, &target);
        if !dump::is_wanted()
            && let Some(program) = cache::find(&key)
        {
            return Ok(program);
        }
        let program = self.compile_new(body, &target)?;
        cache::keep(key, &program);
        Ok(program)
    }

    fn compile_new(&self, body: Body, target: &Target) -> Result<Arc<Program>> {
        let (name, ops, start) = (body.name.clone(), body.block.ops.len(), Instant::now());
        let program = Arc::new(compile(body, target, &mut |stage, text| dump::dump(&name, stage, text))?);
        self.settings.log(LogLevel::Info, || {
            let kernels = program.steps.len();
            format!("compiled '{name}': {ops} ops to {kernels} kernels in {:?}", start.elapsed())
        });
        self.settings.log(LogLevel::Debug, || program.to_string());
        Ok(program)
    }

    /// Sets how much is logged to standard error.
    pub fn set_mojo_log_level(&self, level: LogLevel) {
        self.settings.set_log_level(level);
    }

    /// How much is logged to standard error.
    pub fn log_level(&self) -> LogLevel {
        self.settings.log_level()
    }

    /// Sets how much models that are loaded from now on check.
    pub fn set_mojo_assert_level(&self, level: AssertLevel) {
        self.settings.set_assert_level(level);
    }

    /// How much models check.
    pub fn assert_level(&self) -> AssertLevel {
        self.settings.assert_level()
    }

    /// Sets the precision in which the parts of long sums are combined.
    pub fn set_split_k_reduction_precision(&self, precision: SplitKReductionPrecision) {
        self.settings.set_split_k(precision);
    }

    /// The precision in which the parts of long sums are combined.
    pub fn split_k_reduction_precision(&self) -> SplitKReductionPrecision {
        self.settings.split_k()
    }

    /// Sets whether models that are loaded from now on may round the operands of float32 matmuls to TF32 (19 bits) on GPUs,
    /// which is much faster. The default comes from the environment variable `MAX_ALLOW_TF32`.
    pub fn set_allow_tf32(&self, allow: bool) {
        self.settings.set_allow_tf32(allow);
    }

    /// Whether float32 matmuls may round their operands to TF32 on GPUs.
    pub fn allows_tf32(&self) -> bool {
        self.settings.allow_tf32()
    }

    /// Sets whether kernels of models that are loaded from now on are timed. The default comes from the environment variable
    /// `MODULAR_ENABLE_PROFILING`.
    pub fn gpu_profiling(&self, mode: ProfilingMode) {
        self.settings.set_profiling(mode);
    }

    /// Whether kernels are timed.
    pub fn profiling(&self) -> ProfilingMode {
        self.settings.profiling()
    }

    /// Selects the old top-k kernel, unless the mode is "false", "off", "no" or "0".
    pub fn use_old_top_k_kernel(&self, mode: &str) {
        let off = ["false", "off", "no", "0"].contains(&mode.to_lowercase().as_str());
        self.settings.set_old_top_k(!off);
    }

    /// Whether the old top-k kernel is selected.
    pub fn uses_old_top_k_kernel(&self) -> bool {
        self.settings.old_top_k()
    }
}

/// An error unless there is memory for a copy of a graph with this many ops, for its text, and for compiling it.
pub(crate) fn require_memory_for(ops: usize) -> Result<()> {
    /// Roughly what an op takes that becomes a kernel of its own.
    const BYTES_PER_OP: usize = 4 << 10;
    require_memory(ops.saturating_mul(BYTES_PER_OP), &format!("a graph of {ops} ops"))
}

/// The value of a weight, checked against its type; symbolic dims accept any size.
fn bind_weight(name: &str, ty: &TensorType, weights: &WeightsRegistry) -> Result<Buffer> {
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
    Ok(value.clone())
}
