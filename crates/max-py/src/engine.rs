//! Sessions and models.

use std::path::PathBuf;
use std::str::FromStr;

use max::driver::cuda::nvtx;
use max::driver::{Buffer, Device};
use max::engine::{self, InferenceSession, Model, ProfilingMode, TensorSpec, WeightsRegistry};
use max::graph::DeviceRef;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyString, PyTuple};

use crate::args::{self, native};
use crate::array;
use crate::driver::{PyBuffer, PyDevice};
use crate::error::Raise;
use crate::graph::PyGraph;
use crate::interrupt::interruptible;
use crate::shell;
use crate::types::{PyDType, PyDeviceRef};

/// The devices on which models run, and how.
#[pyclass(frozen, name = "Session", module = "max._core")]
pub struct PySession(InferenceSession);

#[pymethods]
impl PySession {
    #[new]
    fn new(devices: &Bound<'_, PyAny>, num_threads: Option<i64>) -> PyResult<PySession> {
        let devices = devices.try_iter()?.map(|item| {
            let device = native(&item?)?;
            match device.cast::<PyDevice>() {
                Ok(device) => Ok(device.get().0.clone()),
                Err(_) => Err(PyTypeError::new_err(format!("expected a Device, got {}", device.get_type()))),
            }
        });
        let session = InferenceSession::new(devices.collect::<PyResult<Vec<Device>>>()?);
        let session = match num_threads {
            None => session,
            Some(n) => {
                let threads = usize::try_from(n).ok().filter(|&n| n <= 1 << 16);
                let threads = threads.ok_or_else(|| {
                    PyValueError::new_err(format!("num_threads must be from 1 to 65536, got {n}"))
                })?;
                session.with_num_threads(threads).raise()?
            }
        };
        Ok(PySession(session))
    }

    #[getter]
    fn devices(&self) -> Vec<PyDevice> {
        self.0.devices().iter().cloned().map(PyDevice).collect()
    }

    #[getter]
    fn num_threads(&self) -> usize {
        self.0.num_threads()
    }

    fn load(
        &self,
        py: Python<'_>,
        model: &Bound<'_, PyAny>,
        weights: &Bound<'_, PyDict>,
    ) -> PyResult<PyModel> {
        let mut registry = WeightsRegistry::new();
        // Iterates over a copy: reading an array may run code that changes the dict.
        for item in weights.items() {
            let (name, value) = item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
            registry.insert(name.extract()?, weight(&name.str()?, &value)?);
        }
        let model = native(model)?;
        if let Ok(graph) = model.cast::<PyGraph>() {
            let graph = &graph.get().0;
            return py.detach(|| self.0.load_with(graph, &registry)).map(PyModel).raise();
        }
        let Ok(path) = model.extract::<PathBuf>() else {
            return Err(PyTypeError::new_err(format!(
                "a model is a Graph, or the path of a saved one; got {}",
                model.get_type()
            )));
        };
        py.detach(|| self.0.load_with(path.as_path(), &registry)).map(PyModel).raise()
    }

    fn set_log_level(&self, level: &Bound<'_, PyAny>) -> PyResult<()> {
        named(level, "a LogLevel").map(|level| self.0.set_mojo_log_level(level))
    }

    fn set_assert_level(&self, level: &Bound<'_, PyAny>) -> PyResult<()> {
        named(level, "an AssertLevel").map(|level| self.0.set_mojo_assert_level(level))
    }

    fn set_split_k_reduction_precision(&self, precision: &Bound<'_, PyAny>) -> PyResult<()> {
        let precision = named(precision, "a SplitKReductionPrecision")?;
        self.0.set_split_k_reduction_precision(precision);
        Ok(())
    }

    fn set_profiling(&self, mode: &Bound<'_, PyAny>) -> PyResult<()> {
        named(mode, "a GPUProfilingMode").map(|mode| self.0.gpu_profiling(mode))
    }

    fn set_allow_tf32(&self, allow: bool) {
        self.0.set_allow_tf32(allow);
    }

    fn use_old_top_k_kernel(&self, mode: &str) {
        self.0.use_old_top_k_kernel(mode);
    }
}

/// A setting by its name; members of the enum are strings too.
fn named<T: FromStr<Err = max::Error>>(object: &Bound<'_, PyAny>, class: &str) -> PyResult<T> {
    match object.cast::<PyString>() {
        Ok(name) => name.to_cow()?.parse().raise(),
        Err(_) => Err(PyTypeError::new_err(format!("expected {class} or a str, got {}", object.get_type()))),
    }
}

/// The hits, the misses and the size of the cache of compiled programs.
#[pyfunction]
pub fn program_cache_stats() -> (u64, u64, usize) {
    let stats = engine::program_cache_stats();
    (stats.hits, stats.misses, stats.size)
}

/// Clears the cache of compiled programs.
#[pyfunction]
pub fn clear_program_cache() {
    engine::clear_program_cache();
}

/// The value of a weight, without a copy.
fn weight(name: &Bound<'_, PyString>, value: &Bound<'_, PyAny>) -> PyResult<Buffer> {
    let value = native(value)?;
    if let Ok(buffer) = value.cast::<PyBuffer>() {
        return Ok(buffer.get().0.clone());
    }
    match array::from_any(&value)? {
        Some(buffer) => Ok(buffer),
        None => {
            Err(PyTypeError::new_err(format!("weight '{name}' must be an array, got {}", value.get_type())))
        }
    }
}

/// A loaded model.
#[pyclass(frozen, name = "Model", module = "max._core")]
pub struct PyModel(Model);

type Spec = (String, Vec<Option<i64>>, PyDType, PyDeviceRef);

fn spec(spec: &TensorSpec) -> Spec {
    (spec.name.clone(), spec.shape.clone(), PyDType(spec.dtype), PyDeviceRef(spec.device))
}

#[pymethods]
impl PyModel {
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    #[getter]
    fn devices(&self) -> Vec<PyDevice> {
        self.0.devices().iter().cloned().map(PyDevice).collect()
    }

    #[getter]
    fn inputs(&self) -> Vec<Spec> {
        self.0.input_metadata().iter().map(spec).collect()
    }

    #[getter]
    fn outputs(&self) -> Vec<Spec> {
        self.0.output_metadata().iter().map(spec).collect()
    }

    fn execute<'py>(&self, inputs: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyList>> {
        let outputs = self.run("execute", inputs, Model::execute_until)?;
        wrap(inputs.py(), outputs)
    }

    fn capture<'py>(
        &self,
        key: &Bound<'_, PyAny>,
        inputs: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyList>> {
        let key = graph_key(key)?;
        let capture = |model: &Model, inputs: &[Buffer], check: &dyn Fn() -> max::Result<()>| {
            model.capture_until(key, inputs, check)
        };
        let outputs = self.run("capture", inputs, capture)?;
        wrap(inputs.py(), outputs)
    }

    fn replay(&self, key: &Bound<'_, PyAny>, inputs: &Bound<'_, PyTuple>) -> PyResult<()> {
        let key = graph_key(key)?;
        self.run("replay", inputs, |model, inputs, check| model.replay_until(key, inputs, check))
    }

    fn debug_verify_replay(&self, key: &Bound<'_, PyAny>, inputs: &Bound<'_, PyTuple>) -> PyResult<()> {
        let key = graph_key(key)?;
        self.run("debug_verify_replay", inputs, |model, inputs, check| {
            model.debug_verify_replay_until(key, inputs, check)
        })
    }

    fn release_captured_graph(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.release_captured_graph(graph_key(key)?).raise()
    }

    #[getter]
    fn kernels(&self) -> Vec<(String, &'static str, Vec<String>, String)> {
        let summaries = self.0.kernel_summaries().into_iter();
        summaries.map(|kernel| (kernel.name, kernel.kind, kernel.ops, kernel.text)).collect()
    }

    fn memory_report(&self, inputs: &Bound<'_, PyTuple>) -> PyResult<(usize, usize, usize)> {
        let buffers = self.inputs_from(inputs)?;
        let report = inputs.py().detach(|| self.0.memory_report(&buffers)).raise()?;
        Ok((report.peak_bytes, report.bytes_without_reuse, report.packed_bytes))
    }

    fn picture(&self, py: Python<'_>) -> String {
        py.detach(|| self.0.picture())
    }

    fn fusion_summary(&self) -> String {
        self.0.fusion_summary()
    }

    fn profile_table(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.0.profile_table()).raise()
    }

    fn save_trace(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.0.save_trace(&path)).raise()
    }
}

impl PyModel {
    fn inputs_from(&self, inputs: &Bound<'_, PyTuple>) -> PyResult<Vec<Buffer>> {
        let mut specs = self.0.input_metadata().iter();
        inputs.iter().map(|item| input(&item, specs.next())).collect()
    }

    /// Runs the model without the GIL until it is done or Ctrl-C interrupts it. With detailed profiling, NVIDIA's
    /// profilers show the whole call as one range.
    fn run<T: Send>(
        &self,
        method: &str,
        inputs: &Bound<'_, PyTuple>,
        work: impl FnOnce(&Model, &[Buffer], &dyn Fn() -> max::Result<()>) -> max::Result<T> + Send,
    ) -> PyResult<T> {
        let detailed = self.0.profiling() == ProfilingMode::Detailed;
        let _range = detailed.then(|| nvtx::range(&format!("Model.{method}({})", self.0.name())));
        let mut buffers = self.inputs_from(inputs)?;
        interruptible(inputs.py(), |checkpoint| {
            let result = work(&self.0, &buffers, checkpoint);
            // Drops GPU inputs while the GIL is released: returning memory to the library that owns it waits for the
            // GPU.
            buffers.retain(Buffer::is_host);
            result
        })
    }
}

fn wrap(py: Python<'_>, buffers: Vec<Buffer>) -> PyResult<Bound<'_, PyList>> {
    let buffers = buffers.into_iter().map(|buffer| shell::BUFFER.wrap(py, PyBuffer(buffer)));
    PyList::new(py, buffers.collect::<PyResult<Vec<_>>>()?)
}

/// The key of a capture: an int, not a bool, that fits an unsigned 64-bit integer.
fn graph_key(key: &Bound<'_, PyAny>) -> PyResult<u64> {
    let no_integer = || PyTypeError::new_err(format!("graph_key must be an int, got {}", key.get_type()));
    if key.is_instance_of::<PyBool>() {
        return Err(no_integer());
    }
    key.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(key.py()) {
            PyValueError::new_err(format!("graph_key must be from 0 to 2**64 - 1, got {key}"))
        } else if error.is_instance_of::<PyTypeError>(key.py()) {
            no_integer()
        } else {
            error
        }
    })
}

/// An input of a model: an array of any kind, or a number in the dtype that the model expects. Numbers and host arrays
/// are copied to the device of the input; a buffer is taken as it is.
fn input(object: &Bound<'_, PyAny>, spec: Option<&TensorSpec>) -> PyResult<Buffer> {
    // Cheap checks first: looking up a missing attribute costs more than running a small model.
    if let Some(array) = array::as_numpy(object)? {
        return placed(array.py(), array::from_numpy(array)?, spec);
    }
    let object = native(object)?;
    if let Ok(buffer) = object.cast::<PyBuffer>() {
        return Ok(buffer.get().0.clone());
    }
    if let Some(number) = args::number(&object)? {
        if let Some(spec) = spec.filter(|spec| spec.mutable) {
            return Err(PyTypeError::new_err(format!(
                "{} is written in place by the model, so it must be an array or a Buffer; got a number",
                spec.name
            )));
        }
        let dtype = spec.map_or(number.natural_dtype(), |spec| spec.dtype);
        return placed(object.py(), Buffer::scalar(number, dtype, &Device::cpu()).raise()?, spec);
    }
    match array::from_any(&object)? {
        Some(buffer) => placed(object.py(), buffer, spec),
        None => {
            let name = spec.map_or("an input", |spec| &spec.name);
            Err(PyTypeError::new_err(format!(
                "{name} must be an array or a number, got {}",
                object.get_type()
            )))
        }
    }
}

/// A host buffer on the device of the input; other buffers as they are.
fn placed(py: Python<'_>, buffer: Buffer, spec: Option<&TensorSpec>) -> PyResult<Buffer> {
    match spec {
        Some(spec) if spec.device != DeviceRef::CPU && buffer.is_host() && spec.mutable => {
            Err(PyValueError::new_err(format!(
                "{} is written in place by the model on {}, so an array on the host cannot be given for it: make a Buffer there",
                spec.name, spec.device
            )))
        }
        Some(spec) if spec.device != DeviceRef::CPU && buffer.is_host() => {
            py.detach(|| buffer.to(&Device::from_ref(spec.device)?)).raise()
        }
        _ => Ok(buffer),
    }
}
