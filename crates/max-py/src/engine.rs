//! Sessions and models.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use max::driver::{Buffer, Device};
use max::engine::{InferenceSession, Model, TensorSpec, WeightsRegistry};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::args::{self, native};
use crate::array;
use crate::driver::{PyBuffer, PyDevice};
use crate::error::Raise;
use crate::graph::PyGraph;
use crate::types::{PyDType, PyDeviceRef};

/// A set of devices on which models run.
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
        for (name, value) in weights.iter() {
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
}

/// The value of a weight; it stays where it is.
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

    fn execute(&self, py: Python<'_>, inputs: &Bound<'_, PyAny>) -> PyResult<Vec<PyBuffer>> {
        let mut specs = self.0.input_metadata().iter();
        let inputs =
            inputs.try_iter()?.map(|item| input(&item?, specs.next())).collect::<PyResult<Vec<_>>>()?;
        let (outputs, interrupt) = py.detach(|| {
            let interrupt = Interrupt::default();
            let outputs = self.0.execute_until(&inputs, &|| interrupt.check());
            (outputs, interrupt.raised.into_inner())
        });
        match interrupt {
            Some(exception) => Err(exception),
            None => Ok(outputs.raise()?.into_iter().map(PyBuffer).collect()),
        }
    }
}

/// Lets Ctrl-C end an execution: looks for signals from time to time, and keeps the exception of one.
struct Interrupt {
    looked: Cell<Instant>,
    raised: RefCell<Option<PyErr>>,
}

impl Default for Interrupt {
    fn default() -> Interrupt {
        Interrupt { looked: Cell::new(Instant::now()), raised: RefCell::new(None) }
    }
}

impl Interrupt {
    const PAUSE: Duration = Duration::from_millis(20);

    fn check(&self) -> max::Result<()> {
        if self.looked.get().elapsed() < Interrupt::PAUSE {
            return Ok(());
        }
        self.looked.set(Instant::now());
        Python::attach(|py| py.check_signals()).map_err(|exception| {
            self.raised.replace(Some(exception));
            max::Error::runtime("interrupted")
        })
    }
}

/// An input of a model: an array of any kind, or a number in the dtype the model wants.
fn input(object: &Bound<'_, PyAny>, spec: Option<&TensorSpec>) -> PyResult<Buffer> {
    let object = native(object)?;
    if let Ok(buffer) = object.cast::<PyBuffer>() {
        return Ok(buffer.get().0.clone());
    }
    if let Some(number) = args::number(&object)? {
        let dtype = spec.map_or(number.natural_dtype(), |spec| spec.dtype);
        return Buffer::scalar(number, dtype, &Device::cpu()).raise();
    }
    match array::from_any(&object)? {
        Some(buffer) => Ok(buffer),
        None => {
            let name = spec.map_or("an input", |spec| &spec.name);
            Err(PyTypeError::new_err(format!(
                "{name} must be an array or a number, got {}",
                object.get_type()
            )))
        }
    }
}
