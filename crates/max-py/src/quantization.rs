//! Quantization encodings, and arrays to and from their blocks.

use max::dtype::Element;
use max::graph::QuantizationEncoding;
use numpy::{PyArray1, PyArrayDyn, PyArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::array;
use crate::error::Raise;

/// A quantization encoding.
#[pyclass(frozen, name = "QuantizationEncoding", module = "max._core")]
pub struct PyQuantizationEncoding(pub QuantizationEncoding);

#[pymethods]
impl PyQuantizationEncoding {
    #[new]
    fn new(name: &str) -> PyResult<PyQuantizationEncoding> {
        name.parse().map(PyQuantizationEncoding).raise()
    }

    #[staticmethod]
    fn all() -> Vec<&'static str> {
        QuantizationEncoding::ALL.iter().map(|e| e.name()).collect()
    }

    #[getter]
    fn is_gguf(&self) -> bool {
        self.0.is_gguf()
    }

    fn block_parameters(&self) -> PyResult<(usize, usize)> {
        let block = self.0.block_parameters().raise()?;
        Ok((block.elements_per_block, block.block_size))
    }

    fn quantize<'py>(&self, array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArrayDyn<u8>>> {
        let (elements, bytes) = self.block_parameters()?;
        converted(array, "quantize", [elements, bytes], |values| self.0.quantize(values))
    }

    fn dequantize<'py>(&self, array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArrayDyn<f32>>> {
        let (elements, bytes) = self.block_parameters()?;
        converted(array, "dequantize", [bytes, elements], |blocks| self.0.dequantize(blocks))
    }
}

/// An array of which the last axis is converted block by block, from a size to another.
fn converted<'py, T: Element, U: numpy::Element>(
    array: &Bound<'py, PyAny>,
    name: &str,
    [from, to]: [usize; 2],
    convert: impl Fn(&[T]) -> max::Result<Vec<U>> + Sync,
) -> PyResult<Bound<'py, PyArrayDyn<U>>> {
    let py = array.py();
    let wrong = |got: String| PyTypeError::new_err(format!("{name} takes a {} array; got {got}", T::DTYPE));
    let Some(array) = array::as_numpy(array)? else { return Err(wrong(array.get_type().to_string())) };
    let buffer = array::from_numpy(array)?;
    if buffer.dtype() != T::DTYPE {
        return Err(wrong(buffer.dtype().to_string()));
    }
    let mut shape = buffer.shape().to_vec();
    let Some(last) = shape.last_mut() else {
        return Err(PyValueError::new_err(format!("{name} needs at least one axis; got a scalar")));
    };
    let Some(size) = (*last / from).checked_mul(to).filter(|_| last.is_multiple_of(from)) else {
        return Err(PyValueError::new_err(format!(
            "last dimension ({last}) not divisible by block size ({from})"
        )));
    };
    *last = size;
    // A copy, as others may write to the array meanwhile.
    let result = py.detach(|| convert(&buffer.to_vec::<T>()?)).raise()?;
    PyArray1::from_vec(py, result).reshape(shape)
}
