//! Libraries of custom ops, and custom ops that are Python functions.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use max::driver::Buffer;
use max::engine::custom::{self, CustomSource, Execute, GridSize, Work};
use max::engine::load_custom_ops;
use max::graph::custom::{CustomOp, KernelLibrary};
use max::graph::registry::FromArg;
use max::graph::{Operand, Parameter, Parameters, TensorValue, Value};
use max::{Error, ErrorKind};
use pyo3::exceptions::{
    PyException, PyIndexError, PyKeyError, PyLookupError, PyMemoryError, PyNotImplementedError, PyTypeError,
    PyValueError, PyZeroDivisionError,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::args::{self, native};
use crate::array;
use crate::driver::PyBuffer;
use crate::error::Raise;
use crate::graph::PyValue;
use crate::interrupt::{attached, call};
use crate::shell;

/// A custom op.
#[pyclass(frozen, name = "CustomOp", module = "max._core")]
pub struct PyCustomOp(pub Arc<CustomOp>);

#[pymethods]
impl PyCustomOp {
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    #[getter]
    fn library(&self) -> &str {
        self.0.library()
    }

    /// The number of its results; `None` if it has no signature.
    #[getter]
    fn num_results(&self) -> Option<usize> {
        self.0.signature().map(|signature| signature.num_results())
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// Custom ops by name.
#[pyclass(frozen, name = "KernelLibrary", module = "max._core")]
pub struct PyKernelLibrary(pub KernelLibrary);

#[pymethods]
impl PyKernelLibrary {
    #[new]
    fn new() -> PyKernelLibrary {
        PyKernelLibrary(KernelLibrary::new())
    }

    fn load(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.0.extend(&load_custom_ops(&path)?)).raise()
    }

    fn extend(&self, other: &PyKernelLibrary) -> PyResult<()> {
        self.0.extend(&other.0).raise()
    }

    fn find(&self, name: &str) -> PyResult<PyCustomOp> {
        self.0.find(name).map(PyCustomOp).raise()
    }

    fn ops(&self) -> Vec<PyCustomOp> {
        self.0.ops().into_iter().map(PyCustomOp).collect()
    }

    fn register(&self, name: &str, signature: Option<&str>, function: Py<PyAny>) -> PyResult<PyCustomOp> {
        let function = PythonFunction { function };
        self.add(custom::function(name, signature, function))
    }

    fn register_body(
        &self,
        name: &str,
        signature: Option<&str>,
        function: Py<PyAny>,
    ) -> PyResult<PyCustomOp> {
        let body = move |values: &[TensorValue], parameters: &Parameters| {
            attached(|py| inline(py, &function, values, parameters).map_err(|e| failure(py, e, None)))
        };
        let op = || {
            let signature = signature.map(str::parse).transpose()?;
            Ok(CustomOp::body(name, body).with_signature(signature))
        };
        self.add(op())
    }

    #[expect(clippy::too_many_arguments, reason = "a declaration has as many parts")]
    fn register_cuda(
        &self,
        name: String,
        code: String,
        signature: &str,
        threads: Option<&str>,
        blocks: Option<&str>,
        block: u32,
        function: Option<String>,
        parameters: Vec<String>,
    ) -> PyResult<PyCustomOp> {
        let grid = match (threads, blocks) {
            (Some(threads), None) => GridSize::Threads(threads.parse().raise()?),
            (None, Some(blocks)) => GridSize::Blocks(blocks.parse().raise()?),
            _ => return Err(PyValueError::new_err("one of threads and blocks says how large the grid is")),
        };
        let (function, signature) = (function.unwrap_or_else(|| name.clone()), signature.parse().raise()?);
        self.add(custom::cuda(CustomSource { name, function, code, signature, grid, block, parameters }))
    }
}

impl PyKernelLibrary {
    fn add(&self, op: max::Result<CustomOp>) -> PyResult<PyCustomOp> {
        op.and_then(|op| self.0.add(op)).map(PyCustomOp).raise()
    }
}

/// Calls the function that a custom op stands for with values of the graph that is being built on this thread.
fn inline(
    py: Python<'_>,
    function: &Py<PyAny>,
    values: &[TensorValue],
    parameters: &Parameters,
) -> PyResult<Vec<TensorValue>> {
    let values = values.iter().map(|value| shell::VALUE.wrap(py, PyValue(Value::from(value))));
    let values = PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)?;
    let inlined = py.import("max.graph.kernel_library")?.getattr("_inlined")?;
    let args = (function, values, keywords(py, parameters)?).into_pyobject(py)?;
    let results = call(&inlined, &args, None)?;
    let tensor = |item: PyResult<Bound<'_, PyAny>>| {
        let arg = args::arg(&item?)?;
        Operand::from_arg(arg).and_then(Operand::tensor).raise()
    };
    results.try_iter()?.map(tensor).collect()
}

/// Parameters as keyword arguments.
fn keywords<'py>(py: Python<'py>, parameters: &Parameters) -> PyResult<Bound<'py, PyDict>> {
    let keywords = PyDict::new(py);
    for (name, value) in parameters.iter() {
        match value {
            Parameter::Bool(value) => keywords.set_item(name, value)?,
            Parameter::Int(value) => keywords.set_item(name, value)?,
            Parameter::Str(value) => keywords.set_item(name, value)?,
            Parameter::DType(value) => {
                let dtype = py.import("max.dtype")?.getattr("DType")?;
                keywords.set_item(name, dtype.call1((*value as i32,))?)?;
            }
        }
    }
    Ok(keywords)
}

/// A Python function on buffers.
struct PythonFunction {
    function: Py<PyAny>,
}

impl Execute for PythonFunction {
    fn execute(&self, work: &Work) -> max::Result<()> {
        attached(|py| self.call(py, work).map_err(|e| failure(py, e, Some(ErrorKind::Runtime))))
    }
}

impl PythonFunction {
    fn call(&self, py: Python<'_>, work: &Work) -> PyResult<()> {
        let mut buffers = Vec::with_capacity(work.operands.len() + work.results.len());
        for (buffer, mutable) in work.operands.iter().zip(work.mutable) {
            let view =
                if *mutable || !buffer.is_host() { buffer.clone() } else { buffer.read_only().raise()? };
            buffers.push(shell::BUFFER.wrap(py, PyBuffer(view))?);
        }
        for result in work.results {
            buffers.push(shell::BUFFER.wrap(py, PyBuffer(result.clone()))?);
        }
        let keywords = keywords(py, work.parameters)?;
        let returned = call(self.function.bind(py), &PyTuple::new(py, buffers)?, Some(&keywords))?;
        if returned.is_none() {
            return Ok(());
        }
        let many = returned.is_instance_of::<PyTuple>() || returned.is_instance_of::<PyList>();
        let values: Vec<_> =
            if many { returned.try_iter()?.collect::<PyResult<_>>()? } else { vec![returned] };
        if values.len() != work.results.len() {
            return Err(PyValueError::new_err(format!(
                "it returned {} values for {} results: return None after filling the results, or one array for each",
                values.len(),
                work.results.len()
            )));
        }
        let results = values.iter().zip(work.results).enumerate();
        results.into_iter().try_for_each(|(number, (value, result))| fill(number, result, value))
    }
}

/// Copies what a function returned to a result.
fn fill(number: usize, result: &Buffer, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let value = native(value)?;
    let buffer = match value.cast::<PyBuffer>() {
        Ok(buffer) => Some(buffer.get().0.clone()),
        Err(_) => array::from_any(&value)?,
    };
    let Some(buffer) = buffer else {
        return Err(PyTypeError::new_err(format!(
            "it returned {} for result {number}: return None after filling the results, or one array for each",
            value.get_type()
        )));
    };
    if buffer.dtype() != result.dtype() || buffer.shape() != result.shape() {
        return Err(PyValueError::new_err(format!(
            "it returned {} of shape {:?} for result {number}, which is {} of shape {:?}",
            buffer.dtype(),
            buffer.shape(),
            result.dtype(),
            result.shape()
        )));
    }
    result.inplace_copy_from(&buffer).raise()
}

thread_local! {
    /// The last exception that a Python function called by native code raised on this thread, and the message of the error
    /// that it became.
    static CAUSE: RefCell<Option<(String, PyErr)>> = const { RefCell::new(None) };
}

type Is = fn(&PyErr, Python<'_>) -> bool;

/// The kinds of errors by their exceptions, classes before their bases.
const KINDS: [(ErrorKind, Is); 8] = [
    (ErrorKind::Value, PyErr::is_instance_of::<PyValueError>),
    (ErrorKind::Type, PyErr::is_instance_of::<PyTypeError>),
    (ErrorKind::Index, PyErr::is_instance_of::<PyIndexError>),
    (ErrorKind::Key, PyErr::is_instance_of::<PyKeyError>),
    (ErrorKind::Lookup, PyErr::is_instance_of::<PyLookupError>),
    (ErrorKind::ZeroDivision, PyErr::is_instance_of::<PyZeroDivisionError>),
    (ErrorKind::NotImplemented, PyErr::is_instance_of::<PyNotImplementedError>),
    (ErrorKind::Memory, PyErr::is_instance_of::<PyMemoryError>),
];

/// The error for an exception, by default of the same kind; the exception is kept for [`cause_of`].
fn failure(py: Python<'_>, exception: PyErr, kind: Option<ErrorKind>) -> Error {
    let same = || KINDS.iter().find(|(_, is)| is(&exception, py)).map(|(kind, _)| *kind);
    let kind = kind.or_else(same).unwrap_or(ErrorKind::Runtime);
    let message = exception.to_string();
    CAUSE.replace(Some((message.clone(), exception)));
    Error::new(kind, message)
}

/// An exception for an error, with the one that caused the error, if one did. Ctrl-C and the like are raised as they are.
pub fn with_cause(exception: PyErr, text: &str) -> PyErr {
    match CAUSE.take() {
        Some((message, cause)) if text.contains(&message) => attached(|py| {
            if !cause.is_instance_of::<PyException>(py) {
                return cause;
            }
            exception.set_cause(py, Some(cause));
            exception
        }),
        _ => exception,
    }
}
