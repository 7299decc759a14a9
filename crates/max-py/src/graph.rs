//! Graphs, values, weights, and calls of ops by name.

use std::io::Write;
use std::path::PathBuf;

use max::engine::{read_graph_in, save_graph};
use max::graph::ops::ShardingStrategy;
use max::graph::registry::{self, FromArg, Output};
use max::graph::text::{self, Constants};
use max::graph::{Graph, Operand, Type, Value, Weight, located};
use max::tensor::Tensor;
use pyo3::exceptions::{PyKeyboardInterrupt, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

use crate::args::{self, DTypeLike, Reader, native};
use crate::caller::caller;
use crate::custom::PyKernelLibrary;
use crate::error::Raise;
use crate::interrupt::{attached, call};
use crate::shell;
use crate::tensor::{PyRegion, PyTensor};
use crate::types::{PyDeviceRef, PyType};

/// A value of a graph.
#[pyclass(frozen, name = "Value", module = "max._core")]
pub struct PyValue(pub Value);

#[pymethods]
impl PyValue {
    #[getter]
    fn r#type(&self) -> PyType {
        PyType(self.0.type_().clone())
    }

    fn is_same(&self, other: &PyValue) -> bool {
        self.0.graph() == other.0.graph() && self.0.id() == other.0.id()
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// A weight, which is added to the current graph when it is used.
#[pyclass(frozen, name = "Weight", module = "max._core")]
pub struct PyWeight(pub Weight);

#[pymethods]
impl PyWeight {
    #[new]
    fn new(
        name: &str,
        dtype: DTypeLike,
        shape: &Bound<'_, PyAny>,
        device: &PyDeviceRef,
    ) -> PyResult<PyWeight> {
        Weight::new(name, dtype.0, args::shape(shape)?, device.0).map(PyWeight).raise()
    }

    #[getter]
    fn name(&self) -> String {
        self.0.name().to_string()
    }

    fn rename(&self, name: String) {
        self.0.rename(name);
    }

    fn shard(
        &self,
        strategy: &Bound<'_, PyAny>,
        devices: Vec<PyRef<'_, PyDeviceRef>>,
    ) -> PyResult<Vec<PyWeight>> {
        let strategy = ShardingStrategy::from_arg(args::arg(strategy)?).raise()?;
        let devices: Vec<_> = devices.iter().map(|device| device.0).collect();
        Ok(self.0.shard(&strategy, &devices).raise()?.into_iter().map(PyWeight).collect())
    }

    #[getter]
    fn r#type(&self) -> PyType {
        PyType(self.0.tensor_type().clone().into())
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

fn input_types_of(types: &Bound<'_, PyAny>) -> PyResult<Vec<Type>> {
    let types = types.try_iter()?.map(|item| {
        let item = native(&item?)?;
        match item.cast::<PyType>() {
            Ok(ty) => Ok(ty.get().0.clone()),
            Err(_) => Err(PyTypeError::new_err(format!("an input type is a Type; got {}", item.get_type()))),
        }
    });
    types.collect()
}

/// A graph being built.
#[pyclass(frozen, name = "Graph", module = "max._core")]
pub struct PyGraph(pub Graph);

#[pymethods]
impl PyGraph {
    #[new]
    fn new(name: String, input_types: &Bound<'_, PyAny>, library: &PyKernelLibrary) -> PyResult<PyGraph> {
        let graph = Graph::new(name, input_types_of(input_types)?).raise()?;
        Ok(PyGraph(graph.with_library(&library.0)))
    }

    fn nested(&self, name: String, input_types: &Bound<'_, PyAny>) -> PyResult<PyGraph> {
        self.0.nested(name, input_types_of(input_types)?).map(PyGraph).raise()
    }

    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf, library: &PyKernelLibrary) -> PyResult<PyGraph> {
        py.detach(|| read_graph_in(&path, &library.0)).map(PyGraph).raise()
    }

    #[staticmethod]
    fn parse(text: &str, library: &PyKernelLibrary) -> PyResult<PyGraph> {
        let body = text::parse_in(text, &library.0).raise()?;
        Ok(PyGraph(Graph::from_body(body).with_library(&library.0)))
    }

    #[getter]
    fn name(&self) -> String {
        self.0.name()
    }

    fn inputs(&self) -> Vec<PyValue> {
        self.0.inputs().into_iter().map(PyValue).collect()
    }

    fn output(&self, py: Python<'_>, outputs: &Bound<'_, PyAny>) -> PyResult<()> {
        let outputs = outputs.try_iter()?.map(|item| args::arg(&item?)).collect::<PyResult<Vec<_>>>()?;
        let set = || {
            let outputs = outputs.into_iter().map(Operand::from_arg).collect::<max::Result<Vec<_>>>()?;
            self.0.output(outputs)
        };
        located("output", caller(py)?, set).raise()
    }

    #[getter]
    fn has_output(&self) -> bool {
        self.0.output_types().is_ok()
    }

    fn output_types(&self) -> PyResult<Vec<PyType>> {
        Ok(self.0.output_types().raise()?.into_iter().map(PyType).collect())
    }

    fn add_weight(&self, py: Python<'_>, weight: &PyWeight) -> PyResult<PyValue> {
        let value = located("add_weight", caller(py)?, || self.0.add_weight(&weight.0)).raise()?;
        Ok(PyValue(value.into()))
    }

    fn merge_device_chains(&self) -> PyResult<()> {
        self.0.merge_device_chains().raise()
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| save_graph(&self.0, &path)).raise()
    }

    fn text(&self) -> String {
        text::print(&self.0.body(), Constants::Full)
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }
}

/// Calls an op function by name, in a graph or in a region.
#[pyfunction]
#[pyo3(signature = (scope, name, args, /))]
pub fn op<'py>(
    scope: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    args: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = name.py();
    let name = name.to_cow()?;
    let region = scope.cast::<PyRegion>().ok().map(|region| region.get());
    let mut reader = Reader { share_arrays: region.is_some_and(PyRegion::is_bare), met_tensor: false };
    let args = args.iter().map(|item| reader.arg(&item)).collect::<PyResult<Vec<_>>>();
    let args =
        args.map_err(|e| if e.is_instance_of::<PyTypeError>(py) { in_op(py, &name, &e) } else { e })?;
    if let Some(region) = region {
        return region.call(py, &name, args);
    }
    let graph = match scope.is_none() {
        true => None,
        false => Some(scope.cast::<PyGraph>()?.get().0.clone()),
    };
    let _scope = graph.as_ref().map(Graph::enter);
    let output = located(&name, caller(py)?, || registry::call(&name, args, Vec::new())).raise()?;
    let object = |value: Value| match reader.met_tensor {
        true => shell::TENSOR.wrap(py, PyTensor(Tensor::from_value(value.tensor().raise()?))),
        false => shell::VALUE.wrap(py, PyValue(value)),
    };
    match output {
        Output::None => Ok(py.None().into_bound(py)),
        Output::One(value) => object(value),
        Output::Many(values) => {
            let values = values.into_iter().map(object).collect::<PyResult<Vec<_>>>()?;
            Ok(PyList::new(py, values)?.into_any())
        }
    }
}

/// An error about an argument, with the name of the op.
fn in_op(py: Python<'_>, name: &str, error: &PyErr) -> PyErr {
    PyTypeError::new_err(format!("{}\n  in {name}", error.value(py)))
}

/// The parameter names of an op function.
#[pyfunction]
pub fn op_params(name: &str) -> PyResult<Vec<&'static str>> {
    let function = registry::find(name).raise()?;
    Ok(function.params.iter().map(|param| param.name).collect())
}

/// Writes a line to where Python's `print` writes; to standard output if Python refuses it.
pub fn write_line(line: &str) {
    let written = attached(|py| -> PyResult<()> {
        let write = || {
            let write = py.import("sys")?.getattr("stdout")?.getattr("write")?;
            call(&write, &PyTuple::new(py, [format!("{line}\n")])?, None)
        };
        match write() {
            // Ctrl-C arrived while Python was writing: raise it again at the execution's next checkpoint.
            Err(e) if e.is_instance_of::<PyKeyboardInterrupt>(py) => {
                // SAFETY: the thread is attached to the interpreter.
                unsafe { ffi::PyErr_SetInterrupt() };
                Ok(())
            }
            result => result.map(|_| ()),
        }
    });
    if written.is_err() {
        // If this fails too, there is nobody left to tell.
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}
