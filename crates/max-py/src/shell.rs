//! The Python objects that stand for native ones: instances of a class of the package that hold a native object as
//! `_native`. What is returned most often is wrapped here, because Python code takes longer for it than for a small op.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use pyo3::{PyClass, PyTypeInfo, ffi, intern};

use crate::driver::PyBuffer;
use crate::graph::PyValue;
use crate::tensor::PyTensor;

/// The class whose instances stand for those of a native class.
pub struct Shell(PyOnceLock<Py<PyType>>);

impl Shell {
    const fn new() -> Shell {
        Shell(PyOnceLock::new())
    }

    /// A native object, wrapped.
    pub fn wrap<'py, T>(&self, py: Python<'py>, native: T) -> PyResult<Bound<'py, PyAny>>
    where
        T: PyClass + Into<PyClassInitializer<T>>,
    {
        let native = Bound::new(py, native)?;
        let Some(class) = self.0.get(py) else {
            return Err(PyTypeError::new_err("the Python modules of this package are not loaded"));
        };
        // SAFETY: the thread is attached, and the class is made by a `class` statement that overrides no allocation, so
        // this is what `object.__new__` does.
        let object = unsafe {
            Bound::from_owned_ptr_or_err(py, ffi::PyType_GenericAlloc(class.bind(py).as_type_ptr(), 0))
        }?;
        object.setattr(intern!(py, "_native"), native)?;
        Ok(object)
    }
}

/// The shell of buffers.
pub static BUFFER: Shell = Shell::new();
/// The shell of tensors.
pub static TENSOR: Shell = Shell::new();
/// The shell of graph values that ops return.
pub static VALUE: Shell = Shell::new();

/// Sets the class whose instances stand for those of a native class.
#[pyfunction]
pub fn set_shell(native: &Bound<'_, PyType>, class: Py<PyType>) -> PyResult<()> {
    let py = native.py();
    let shells = [
        (PyBuffer::type_object(py), &BUFFER),
        (PyTensor::type_object(py), &TENSOR),
        (PyValue::type_object(py), &VALUE),
    ];
    match shells.into_iter().find(|(own, _)| own.is(native)) {
        Some((_, shell)) => {
            let _ = shell.0.set(py, class);
            Ok(())
        }
        None => Err(PyTypeError::new_err(format!("nothing wraps {native}"))),
    }
}
