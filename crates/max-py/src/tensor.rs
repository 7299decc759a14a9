//! Tensors and regions.

use std::path::PathBuf;

use max::driver::Buffer;
use max::graph::registry::{Arg, Output};
use max::graph::{Type, Value, located, unlocated};
use max::tensor::{self, Realization, Region, RegionKind, Tensor, Trace, is_tracing};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::args::native;
use crate::array;
use crate::caller::caller;
use crate::driver::{PyBuffer, PyDevice, check_convertible, python_number};
use crate::error::Raise;
use crate::graph::PyValue;
use crate::interrupt::interruptible;
use crate::shell;
use crate::types::{PyDType, PyType};

/// Where ops on tensors are recorded before they run.
#[pyclass(frozen, name = "Region", module = "max._core")]
pub struct PyRegion(Region);

#[pymethods]
impl PyRegion {
    #[new]
    fn new(kind: &str) -> PyResult<PyRegion> {
        let kind = match kind {
            "bare" => RegionKind::Bare,
            "eager" => RegionKind::Eager,
            "lazy" => RegionKind::Lazy,
            other => {
                return Err(PyValueError::new_err(format!("there are no regions of the kind '{other}'")));
            }
        };
        Ok(PyRegion(Region::new(kind)))
    }

    #[getter]
    fn kind(&self) -> &'static str {
        match self.0.kind() {
            RegionKind::Bare => "bare",
            RegionKind::Eager => "eager",
            RegionKind::Lazy => "lazy",
        }
    }

    #[getter]
    fn pending(&self) -> Vec<PyTensor> {
        self.0.pending().into_iter().map(PyTensor).collect()
    }

    fn realize_all(&self, py: Python<'_>) -> PyResult<()> {
        realizing(py, |checkpoint| self.0.realize_all_until(checkpoint))
    }
}

impl PyRegion {
    /// Whether an op has run by the time its call returns.
    pub fn is_bare(&self) -> bool {
        self.0.kind() == RegionKind::Bare
    }

    /// Calls an op function by name.
    pub fn call<'py>(&self, py: Python<'py>, name: &str, args: Vec<Arg>) -> PyResult<Bound<'py, PyAny>> {
        let location = if is_tracing() { Some(caller(py)?) } else { None };
        let output = interruptible(py, |checkpoint| {
            let call = || self.0.call_until(name, args, checkpoint);
            Ok(match location {
                Some(location) => located(name, location, call),
                None => unlocated(name, call),
            })
        })?;
        let output = match output {
            // The exception itself shows where a bare op was called.
            Err(error) if !self.is_bare() => Err(error.at(caller(py)?)),
            output => output,
        };
        let object = |tensor| shell::TENSOR.wrap(py, PyTensor(tensor));
        match output.raise()? {
            Output::None => Ok(py.None().into_bound(py)),
            Output::One(tensor) => object(tensor),
            Output::Many(tensors) => {
                let objects = tensors.into_iter().map(object).collect::<PyResult<Vec<_>>>()?;
                Ok(PyList::new(py, objects)?.into_any())
            }
        }
    }
}

/// A tensor.
#[pyclass(frozen, name = "Tensor", module = "max._core")]
pub struct PyTensor(pub Tensor);

impl PyTensor {
    /// Its memory; computes the tensor first if necessary.
    pub fn read(&self, py: Python<'_>) -> PyResult<Buffer> {
        self.realize(py)?;
        self.0.buffer().raise()
    }
}

#[pymethods]
impl PyTensor {
    #[staticmethod]
    fn from_buffer(buffer: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        let buffer = native(buffer)?;
        if let Ok(buffer) = buffer.cast::<PyBuffer>() {
            return Ok(PyTensor(Tensor::from_buffer(buffer.get().0.clone())));
        }
        match array::from_any(&buffer)? {
            Some(buffer) => Ok(PyTensor(Tensor::from_buffer(buffer))),
            None => {
                Err(PyTypeError::new_err(format!("a tensor is made of a buffer, got {}", buffer.get_type())))
            }
        }
    }

    #[staticmethod]
    fn from_value(value: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        let value = native(value)?;
        let Ok(value) = value.cast::<PyValue>() else {
            return Err(PyTypeError::new_err(format!("expected a graph value, got {}", value.get_type())));
        };
        value.get().0.tensor().map(Tensor::from_value).map(PyTensor).raise()
    }

    #[getter]
    fn r#type(&self) -> PyType {
        PyType(Type::Tensor(self.0.tensor_type().clone()))
    }

    #[getter]
    fn dtype(&self) -> PyDType {
        PyDType(self.0.dtype())
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        match self.0.shape().as_static() {
            Some(sizes) => PyTuple::new(py, sizes),
            None => Err(PyTypeError::new_err(format!("the sizes of {} are not known yet", self.0.shape()))),
        }
    }

    #[getter]
    fn rank(&self) -> usize {
        self.0.rank()
    }

    #[getter]
    fn device(&self) -> PyResult<PyDevice> {
        max::driver::Device::from_ref(self.0.device()).map(PyDevice).raise()
    }

    #[getter]
    fn state(&self) -> &'static str {
        match (self.0.is_real(), self.0.value()) {
            (true, _) => "real",
            (false, None) => "pending",
            (false, Some(_)) => "value",
        }
    }

    fn realize(&self, py: Python<'_>) -> PyResult<()> {
        if self.0.is_real() {
            return Ok(());
        }
        realizing(py, |checkpoint| self.0.realize_until(checkpoint).map(|_| ()))
    }

    #[getter]
    fn buffer(&self) -> Option<PyBuffer> {
        self.0.storage().map(PyBuffer)
    }

    #[getter]
    fn value(&self) -> Option<PyValue> {
        self.0.value().map(|value| PyValue(Value::from(value)))
    }

    fn item<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.realize(py)?;
        python_number(py, py.detach(|| self.0.item()).raise()?)
    }

    fn convert<'py>(&self, py: Python<'py>, to: &str) -> PyResult<Bound<'py, PyAny>> {
        check_convertible("tensor", &self.read(py)?, to)?;
        self.item(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        if self.0.value().is_none() {
            self.realize(py)?;
        }
        Ok(py.detach(|| self.0.to_string()))
    }
}

/// Computes something, and blames the line of the user's program that asked for it.
fn realizing(
    py: Python<'_>,
    work: impl FnOnce(&dyn Fn() -> max::Result<()>) -> max::Result<()> + Send,
) -> PyResult<()> {
    match is_tracing() {
        true => {
            let location = caller(py)?;
            interruptible(py, |checkpoint| located("realize", location, || work(checkpoint)))
        }
        false => interruptible(py, work),
    }
}

/// Records every realization from when it is created until it is stopped.
#[pyclass(frozen, name = "Trace", module = "max._core")]
pub struct PyTrace(Trace);

/// A realization: why, where, how many ops and tensors, whether compiled, seconds to prepare and to run, kernels.
type Record = (String, Option<(String, u32)>, usize, usize, bool, f64, f64, Vec<String>);

#[pymethods]
impl PyTrace {
    #[new]
    fn new() -> PyTrace {
        PyTrace(Trace::start())
    }

    fn stop(&self) {
        self.0.stop();
    }

    #[getter]
    fn realizations(&self) -> Vec<Record> {
        self.0.realizations().iter().map(record).collect()
    }

    fn text(&self) -> String {
        self.0.text()
    }

    fn html(&self) -> String {
        self.0.html()
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.0.save(path)).raise()
    }
}

fn record(realization: &Realization) -> Record {
    let Realization { reason, location, ops, tensors, compiled, preparing, running, model } = realization;
    let location = location.as_ref().map(|location| (location.file.to_string(), location.line));
    let kernels = model.kernel_summaries().into_iter().map(|kernel| kernel.name).collect();
    let (preparing, running) = (preparing.as_secs_f64(), running.as_secs_f64());
    (reason.to_string(), location, *ops, *tensors, *compiled, preparing, running, kernels)
}

/// The hits, the misses and the size of the cache of compiled regions.
#[pyfunction]
pub fn tensor_cache_stats() -> (u64, u64, usize) {
    let stats = tensor::cache_stats();
    (stats.hits, stats.misses, stats.size)
}

/// Clears the cache of compiled regions.
#[pyfunction]
pub fn clear_tensor_cache() {
    tensor::clear_cache();
}

/// The seed of the next random tensor.
#[pyfunction]
pub fn next_seed() -> u64 {
    tensor::random::next_seed()
}

/// Restarts the sequence of seeds.
#[pyfunction]
pub fn set_seed(seed: &Bound<'_, PyAny>) -> PyResult<()> {
    let bits = seed.extract::<u64>().map_err(|_| {
        PyValueError::new_err(format!("a seed is a whole number from 0 to 2**64 - 1; got {seed}"))
    })?;
    tensor::random::set_seed(bits);
    Ok(())
}
