//! The one place where errors become Python exceptions.

use max::{Error, ErrorKind};
use pyo3::PyErr;
use pyo3::exceptions::{
    PyIndexError, PyKeyError, PyLookupError, PyMemoryError, PyNotImplementedError, PyRuntimeError,
    PyTypeError, PyValueError, PyZeroDivisionError,
};

use crate::custom::with_cause;

/// The exception for an error.
pub fn raise(error: Error) -> PyErr {
    let text = error.to_string();
    let exception = match error.kind() {
        ErrorKind::Value => PyValueError::new_err(text.clone()),
        ErrorKind::Type => PyTypeError::new_err(text.clone()),
        ErrorKind::Index => PyIndexError::new_err(text.clone()),
        ErrorKind::Key => PyKeyError::new_err(text.clone()),
        ErrorKind::Lookup => PyLookupError::new_err(text.clone()),
        ErrorKind::ZeroDivision => PyZeroDivisionError::new_err(text.clone()),
        ErrorKind::NotImplemented => PyNotImplementedError::new_err(text.clone()),
        ErrorKind::Memory => PyMemoryError::new_err(text.clone()),
        ErrorKind::Runtime | ErrorKind::Internal => PyRuntimeError::new_err(text.clone()),
    };
    with_cause(exception, &text)
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
