//! The one place where errors become Python exceptions.

use max::{Error, ErrorKind};
use pyo3::PyErr;
use pyo3::exceptions::{
    PyIndexError, PyKeyError, PyLookupError, PyMemoryError, PyNotImplementedError, PyRuntimeError,
    PyTypeError, PyValueError, PyZeroDivisionError,
};

/// The exception for an error.
pub fn raise(error: Error) -> PyErr {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::Value => PyValueError::new_err(text),
        ErrorKind::Type => PyTypeError::new_err(text),
        ErrorKind::Index => PyIndexError::new_err(text),
        ErrorKind::Key => PyKeyError::new_err(text),
        ErrorKind::Lookup => PyLookupError::new_err(text),
        ErrorKind::ZeroDivision => PyZeroDivisionError::new_err(text),
        ErrorKind::NotImplemented => PyNotImplementedError::new_err(text),
        ErrorKind::Memory => PyMemoryError::new_err(text),
        ErrorKind::Runtime | ErrorKind::Internal => PyRuntimeError::new_err(text),
    }
}

/// Results as Python needs them.
pub trait Raise<T> {
    /// The value, or the exception for the error.
    fn raise(self) -> pyo3::PyResult<T>;
}

impl<T> Raise<T> for max::Result<T> {
    fn raise(self) -> pyo3::PyResult<T> {
        self.map_err(raise)
    }
}
