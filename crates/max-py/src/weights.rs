//! Files of weights.

use std::path::PathBuf;

use max::weights::{MetadataArray, MetadataValue, Weights, WeightsFormat};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::driver::PyBuffer;
use crate::error::Raise;
use crate::types::PyDType;

/// All weights of one or several files.
#[pyclass(frozen, name = "WeightFiles", module = "max._core")]
pub struct PyWeightFiles(Weights);

#[pymethods]
impl PyWeightFiles {
    #[new]
    fn new(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<PyWeightFiles> {
        py.detach(|| max::weights::load_weights(&paths)).map(PyWeightFiles).raise()
    }

    #[getter]
    fn format(&self) -> &'static str {
        self.0.format().name()
    }

    fn names(&self) -> Vec<&str> {
        self.0.names().collect()
    }

    fn contains(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// The dtype, the sizes and the name of the encoding of a weight.
    fn info(&self, name: &str) -> PyResult<(PyDType, Vec<usize>, Option<&'static str>)> {
        let info = self.0.info(name).raise()?;
        Ok((PyDType(info.dtype), info.shape, info.quantization_encoding.map(|encoding| encoding.name())))
    }

    fn get(&self, py: Python<'_>, name: &str) -> PyResult<PyBuffer> {
        py.detach(|| self.0.get(name)).map(|value| PyBuffer(value.data)).raise()
    }

    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let metadata = PyDict::new(py);
        for (key, value) in self.0.metadata() {
            metadata.set_item(key, python(py, value)?)?;
        }
        Ok(metadata)
    }
}

/// The name of the format of files.
#[pyfunction]
#[pyo3(signature = (paths, /))]
pub fn weights_format(paths: Vec<PathBuf>) -> PyResult<&'static str> {
    max::weights::weights_format(&paths).map(WeightsFormat::name).raise()
}

/// A value of metadata as an object.
fn python<'py>(py: Python<'py>, value: &MetadataValue) -> PyResult<Bound<'py, PyAny>> {
    match value {
        MetadataValue::UInt8(value) => value.into_bound_py_any(py),
        MetadataValue::Int8(value) => value.into_bound_py_any(py),
        MetadataValue::UInt16(value) => value.into_bound_py_any(py),
        MetadataValue::Int16(value) => value.into_bound_py_any(py),
        MetadataValue::UInt32(value) => value.into_bound_py_any(py),
        MetadataValue::Int32(value) => value.into_bound_py_any(py),
        MetadataValue::UInt64(value) => value.into_bound_py_any(py),
        MetadataValue::Int64(value) => value.into_bound_py_any(py),
        MetadataValue::Float32(value) => value.into_bound_py_any(py),
        MetadataValue::Float64(value) => value.into_bound_py_any(py),
        MetadataValue::Bool(value) => value.into_bound_py_any(py),
        MetadataValue::String(value) => value.into_bound_py_any(py),
        MetadataValue::Array(values) => list(py, values),
    }
}

fn list<'py>(py: Python<'py>, values: &MetadataArray) -> PyResult<Bound<'py, PyAny>> {
    let items = values.iter().map(|value| python(py, &value)).collect::<PyResult<Vec<_>>>()?;
    Ok(PyList::new(py, items)?.into_any())
}
