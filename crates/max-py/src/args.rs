//! Python objects as the arguments that native code takes.

use std::sync::Arc;

use max::driver::Buffer;
use max::dtype::{DType, Number};
use max::graph::registry::Arg;
use max::graph::{Dim, Shape};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{self, PyBool, PyFloat, PyInt, PyList, PySlice, PyString, PyTuple};

use crate::array;
use crate::custom::PyCustomOp;
use crate::driver::{PyBuffer, PyDevice};
use crate::error::Raise;
use crate::graph::{PyGraph, PyValue, PyWeight};
use crate::interrupt::call;
use crate::quantization::PyQuantizationEncoding;
use crate::tensor::PyTensor;
use crate::types::{PyDType, PyDeviceRef, PyDim, PyShape, PyType};

/// The native object behind a Python wrapper, or the object itself.
pub fn native<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let inner = object.getattr_opt(intern!(object.py(), "_native"))?;
    Ok(inner.unwrap_or_else(|| object.clone()))
}

fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "an object".into(), |name| name.to_string())
}

/// What is accepted as a dtype.
const DTYPES: &str = "a DType, a NumPy dtype or scalar type, or a name such as 'float32'";

/// An argument that is a dtype or stands for one.
pub struct DTypeLike(pub DType);

impl FromPyObject<'_, '_> for DTypeLike {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<DTypeLike> {
        if let Ok(dtype) = native(&object)?.cast::<PyDType>() {
            return Ok(DTypeLike(dtype.get().0));
        }
        if let Ok(name) = object.cast::<PyString>() {
            return name.to_cow()?.parse().map(DTypeLike).raise();
        }
        match array::dtype_like(&object)? {
            Some(dtype) => Ok(DTypeLike(dtype)),
            None => Err(PyTypeError::new_err(format!("a dtype is {DTYPES}; got {}", object.repr()?))),
        }
    }
}

/// A symbolic dim. Beyond ASCII, Python's own regular expressions decide which characters `\w` matches.
fn symbolic(name: &Bound<'_, PyString>) -> PyResult<Dim> {
    let text = name.to_cow()?;
    let matches = || name.call_method1("replace", ("_", ""))?.call_method0("isalnum")?.is_truthy();
    if !text.is_ascii() && !matches()? {
        let shown: String = text.chars().take(60).collect();
        return Err(PyValueError::new_err(format!(
            "Invalid name for symbolic dimension: {shown:?} has characters other than letters, digits and underscores"
        )));
    }
    Dim::symbolic(&text).raise()
}

/// A dim from an int, a name or a `Dim`.
pub fn dim(object: &Bound<'_, PyAny>) -> PyResult<Dim> {
    if let Ok(name) = object.cast::<PyString>() {
        return symbolic(name);
    }
    let object = native(object)?;
    if let Ok(dim) = object.cast::<PyDim>() {
        return Ok(dim.get().0.clone());
    }
    match index(&object)? {
        Some(size) => Ok(Dim::Static(size)),
        None => Err(PyTypeError::new_err(format!(
            "a dimension is an int, a name or a Dim; got {}",
            type_name(&object)
        ))),
    }
}

/// A shape from dims.
pub fn shape(object: &Bound<'_, PyAny>) -> PyResult<Shape> {
    if let Ok(shape) = object.cast::<PyShape>() {
        return Ok(shape.get().0.clone());
    }
    object.try_iter()?.map(|item| dim(&item?)).collect()
}

/// Sizes from non-negative ints.
pub fn sizes(object: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    let sizes = object.try_iter()?.map(|item| {
        let item = item?;
        let size = match native(&item)?.cast::<PyDim>() {
            Ok(dim) => dim.get().0.as_static(),
            Err(_) => index(&item)?,
        };
        let size =
            size.ok_or_else(|| PyTypeError::new_err(format!("a size is an int, got {}", type_name(&item))))?;
        usize::try_from(size).map_err(|_| PyValueError::new_err(format!("a size cannot be negative: {size}")))
    });
    sizes.collect()
}

/// The value of an integer object, by the `__index__` protocol; `None` for other objects.
pub fn index(object: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    let py = object.py();
    if !object.is_instance_of::<PyInt>() && !object.hasattr(intern!(py, "__index__"))? {
        return Ok(None);
    }
    match object.extract::<i64>() {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.is_instance_of::<PyOverflowError>(py) => {
            Err(PyValueError::new_err(format!("{} exceeds 64 bits", object.str()?)))
        }
        Err(e) => Err(e),
    }
}

/// The value of a Python number or NumPy scalar; `None` for other objects.
pub fn number(object: &Bound<'_, PyAny>) -> PyResult<Option<Number>> {
    let py = object.py();
    if let Ok(b) = object.cast::<PyBool>() {
        return Ok(Some(Number::Bool(b.is_true())));
    }
    if object.is_instance_of::<PyInt>() {
        let value = object.extract::<i128>();
        let value =
            value.map_err(|_| PyValueError::new_err(format!("the number {object} exceeds 128 bits")))?;
        return Ok(Some(Number::Int(value)));
    }
    if let Ok(f) = object.cast::<PyFloat>() {
        return Ok(Some(Number::Float(f.value())));
    }
    if array::is_numpy_scalar(object)? {
        let item = object.call_method0(intern!(py, "item"))?;
        if !item.get_type().is(object.get_type()) {
            return number(&item);
        }
    }
    Ok(None)
}

/// The deepest nesting of lists in an argument. Without a limit, lists that share members would unfold forever.
const MAX_DEPTH: usize = 6;

/// Any argument of an op function.
pub fn arg(object: &Bound<'_, PyAny>) -> PyResult<Arg> {
    Reader::default().arg(object)
}

/// Reads the arguments of a call.
#[derive(Default)]
pub struct Reader {
    /// Whether arrays may be read in place, because the call has finished its work when it returns.
    pub share_arrays: bool,
    /// Whether any argument was a tensor.
    pub met_tensor: bool,
}

impl Reader {
    /// Any argument of an op function.
    pub fn arg(&mut self, object: &Bound<'_, PyAny>) -> PyResult<Arg> {
        nested_arg(self, object, MAX_DEPTH)
    }

    /// The data of an array: a copy, unless it is consumed before anybody can write to the array.
    fn array(&self, buffer: &Buffer) -> PyResult<Arg> {
        // A single element may be cached beyond the call.
        let shared = self.share_arrays && buffer.is_contiguous() && buffer.rank() > 0;
        if shared { array::shared_tensor(buffer) } else { array::host_tensor(buffer) }.map(Arg::Array)
    }
}

fn nested_arg(reader: &mut Reader, object: &Bound<'_, PyAny>, depth: usize) -> PyResult<Arg> {
    let py = object.py();
    let Some(depth) = depth.checked_sub(1) else {
        return Err(PyTypeError::new_err(format!("an argument is nested more than {MAX_DEPTH} deep")));
    };
    // Cheap checks first: looking up a missing attribute costs more than running a small op.
    if object.is_none() {
        return Ok(Arg::None);
    }
    if let Ok(number) = object.cast_exact::<PyFloat>() {
        return Ok(Arg::Number(Number::Float(number.value())));
    }
    if let Some(array) = array::as_numpy(object)? {
        return reader.array(&array::from_numpy(array)?);
    }
    if object.is_exact_instance_of::<PyInt>()
        && let Some(number) = number(object)?
    {
        return Ok(Arg::Number(number));
    }
    if let Some(dtype) = array::dtype_like(object)? {
        return Ok(Arg::DType(dtype));
    }
    // A class has the attributes that are looked up below, but is not an instance of anything they stand for.
    if object.is_instance_of::<types::PyType>() {
        return Err(PyTypeError::new_err(format!(
            "{} cannot be an argument of an op; a dtype is {DTYPES}",
            object.repr()?
        )));
    }
    if let Some(inner) = object.getattr_opt(intern!(py, "_native"))? {
        return native_arg(reader, &inner);
    }
    if let Some(number) = number(object)? {
        return Ok(Arg::Number(number));
    }
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(Arg::Str(text.to_cow()?.into_owned()));
    }
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        return Ok(Arg::List(
            object.try_iter()?.map(|item| nested_arg(reader, &item?, depth)).collect::<PyResult<_>>()?,
        ));
    }
    if object.is_instance_of::<PySlice>() {
        let mut part = |name| nested_arg(reader, &object.getattr(name)?, depth);
        let parts = [part(intern!(py, "start"))?, part(intern!(py, "stop"))?, part(intern!(py, "step"))?];
        return Ok(Arg::Slice(Box::new(parts)));
    }
    if object.is(py.Ellipsis()) {
        return Ok(Arg::Ellipsis);
    }
    if let Some(convert) = object.getattr_opt(intern!(py, "__tensorvalue__"))? {
        // Outside any context nobody has entered the scope of the op, but the conversion may call ops of its own.
        let value = if reader.share_arrays {
            let converted = py.import(intern!(py, "max.experimental._regions"))?.getattr("converted")?;
            call(&converted, &PyTuple::new(py, [convert])?, None)?
        } else {
            call(&convert, &PyTuple::empty(py), None)?
        };
        return nested_arg(reader, &value, depth);
    }
    if object.hasattr(intern!(py, "__dlpack__"))? {
        return reader.array(&array::from_dlpack(object)?);
    }
    if let Some(value) = index(object)? {
        return Ok(Arg::Number(Number::Int(value.into())));
    }
    native_arg(reader, object)
}

fn native_arg(reader: &mut Reader, object: &Bound<'_, PyAny>) -> PyResult<Arg> {
    macro_rules! try_classes {
        ($($class:ty => |$x:ident| $arg:expr;)*) => {
            $(if let Ok(bound) = object.cast::<$class>() {
                let $x = bound.get();
                return $arg;
            })*
        };
    }
    if let Ok(tensor) = object.cast::<PyTensor>() {
        reader.met_tensor = true;
        return Ok(Arg::Object((&tensor.get().0).into()));
    }
    try_classes! {
        PyValue => |v| Ok(Arg::Value(v.0.clone()));
        PyWeight => |w| Ok(Arg::Object(Arc::new(w.0.clone())));
        PyDim => |d| Ok(Arg::Dim(d.0.clone()));
        PyShape => |s| Ok(Arg::Shape(s.0.clone()));
        PyDType => |d| Ok(Arg::DType(d.0));
        PyDeviceRef => |d| Ok(Arg::Device(d.0));
        PyDevice => |d| Ok(Arg::Device((&d.0).into()));
        PyType => |t| Ok(Arg::Type(t.0.clone()));
        PyCustomOp => |op| Ok(Arg::Custom(op.0.clone()));
        PyBuffer => |b| reader.array(&b.0);
        PyGraph => |g| Ok(Arg::Graph(g.0.clone()));
        PyQuantizationEncoding => |e| Ok(Arg::Str(e.0.name().into()));
    }
    Err(PyTypeError::new_err(format!(
        "an object of type {} cannot be an argument of an op",
        type_name(object)
    )))
}
