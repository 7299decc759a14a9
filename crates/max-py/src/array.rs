//! Arrays of other libraries: NumPy's directly, all others through DLPack.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use max::driver::{Access, Buffer, Device, dlpack};
use max::dtype::DType;
use max::graph::HostTensor;
use numpy::npyffi::flags::NPY_ARRAY_WRITEABLE;
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyDict, PyTuple, PyType};

use crate::driver::find_libraries;
use crate::error::Raise;
use crate::interrupt::call;
use crate::tensor::PyTensor;

/// The dtype of a NumPy dtype; extension types such as bfloat16 are recognised by name.
pub fn numpy_dtype(descr: &Bound<'_, PyArrayDescr>) -> PyResult<DType> {
    if descr.is_native_byteorder() == Some(false) {
        return Err(PyValueError::new_err(format!(
            "the NumPy dtype {} has the byte order of another machine; convert with .astype(dtype.newbyteorder('='))",
            descr.repr()?
        )));
    }
    let dtype = match (descr.kind(), descr.itemsize()) {
        (b'b', 1) => Some(DType::Bool),
        (b'i', 1) => Some(DType::Int8),
        (b'i', 2) => Some(DType::Int16),
        (b'i', 4) => Some(DType::Int32),
        (b'i', 8) => Some(DType::Int64),
        (b'u', 1) => Some(DType::UInt8),
        (b'u', 2) => Some(DType::UInt16),
        (b'u', 4) => Some(DType::UInt32),
        (b'u', 8) => Some(DType::UInt64),
        (b'f', 2) => Some(DType::Float16),
        (b'f', 4) => Some(DType::Float32),
        (b'f', 8) => Some(DType::Float64),
        (b'V', 1 | 2) | (b'f', 1) => descr.getattr("name")?.extract::<String>()?.parse().ok(),
        _ => None,
    };
    dtype.ok_or_else(|| PyValueError::new_err(format!("the NumPy dtype {descr} is not supported")))
}

/// The dtype for a NumPy dtype or scalar type, such as `np.float32`; `None` for any other object.
pub fn dtype_like(object: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
    let scalars = numpy_scalars(object.py())?;
    if let Ok(descr) = object.cast::<PyArrayDescr>() {
        return numpy_dtype(descr).map(Some);
    }
    match object.cast::<PyType>() {
        Ok(class) if class.is_subclass(scalars)? => {
            numpy_dtype(&PyArrayDescr::new(object.py(), class)?).map(Some)
        }
        _ => Ok(None),
    }
}

/// The object as a NumPy array, if it is one.
pub fn as_numpy<'a, 'py>(object: &'a Bound<'py, PyAny>) -> PyResult<Option<&'a Bound<'py, PyUntypedArray>>> {
    numpy_scalars(object.py())?;
    Ok(object.cast().ok())
}

/// Whether an object is a NumPy scalar such as `np.float32(1)`.
pub fn is_numpy_scalar(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    object.is_instance(numpy_scalars(object.py())?)
}

/// The base class of all NumPy scalars. Every use of NumPy goes through here first: its API panics where NumPy cannot
/// be imported, and this returns an error instead.
fn numpy_scalars(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static GENERIC: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    GENERIC.import(py, "numpy", "generic")
}

/// A NumPy array as a buffer that shares its memory, strides and writability and keeps it alive.
pub fn from_numpy(array: &Bound<'_, PyUntypedArray>) -> PyResult<Buffer> {
    let dtype = numpy_dtype(&array.dtype())?;
    let Some(strides) = element_strides(array, dtype) else {
        // A field of a record array: the distance between elements is not a multiple of their size.
        let copy = array.py().import("numpy")?.call_method1("ascontiguousarray", (array,))?;
        return from_numpy(copy.cast::<PyUntypedArray>()?);
    };
    // SAFETY: the pointer is to a live array object, and only its public header is read.
    let (data, flags) = unsafe {
        let header = &*numpy::npyffi::_PyArray_GET_ITEM_DATA(array.as_array_ptr().cast_const());
        (header.data, header.flags)
    };
    let access = if flags & NPY_ARRAY_WRITEABLE != 0 { Access::ReadWrite } else { Access::ReadOnly };
    let owner: Box<Py<PyUntypedArray>> = Box::new(array.clone().unbind());
    // SAFETY: shape and strides are the array's own, and its memory lives as long as the array object.
    unsafe {
        Buffer::from_raw(data.cast(), dtype, array.shape(), Some(&strides), &Device::cpu(), access, owner)
            .raise()
    }
}

/// The strides of an array in elements, if they are whole numbers; the stride of an axis of size 0 or 1 does not
/// matter.
pub fn element_strides(array: &Bound<'_, PyUntypedArray>, dtype: DType) -> Option<Vec<isize>> {
    let size = dtype.size_in_bytes() as isize;
    let axes = array.strides().iter().zip(array.shape());
    axes.map(|(stride, &len)| if len <= 1 { Some(0) } else { (stride % size == 0).then_some(stride / size) })
        .collect()
}

/// A buffer for any array. NumPy arrays may be strided, tensors of this package already have a buffer, and all others
/// are imported through DLPack.
pub fn from_any(object: &Bound<'_, PyAny>) -> PyResult<Option<Buffer>> {
    if let Ok(tensor) = object.cast::<PyTensor>() {
        return tensor.get().read(object.py()).map(Some);
    }
    if let Some(array) = as_numpy(object)? {
        return from_numpy(array).map(Some);
    }
    if object.hasattr(intern!(object.py(), "__dlpack__"))? {
        return from_dlpack(object).map(Some);
    }
    Ok(None)
}

const VERSIONED: &CStr = c"dltensor_versioned";
const UNVERSIONED: &CStr = c"dltensor";

/// An array of another library as a buffer that shares its memory, through the DLPack protocol. A capsule is taken as it is:
/// whoever made it has made GPU memory ready on the default stream of its device.
pub fn from_dlpack(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
    let py = object.py();
    if let Ok(capsule) = object.cast::<PyCapsule>() {
        return consume(capsule);
    }
    if !object.hasattr(intern!(py, "__dlpack__"))? {
        let name = object.get_type().name()?;
        return Err(PyTypeError::new_err(format!("{name} is not an array: it has no __dlpack__ method")));
    }
    // A torch tensor that requires gradients exports its data only after being detached.
    let needs_grad = object.getattr_opt(intern!(py, "requires_grad"))?;
    if needs_grad.is_some_and(|flag| flag.is_truthy().unwrap_or(false)) {
        let detach = object.getattr(intern!(py, "detach"))?;
        return import(&call(&detach, &PyTuple::empty(py), None)?);
    }
    import(object)
}

fn import(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
    let py = object.py();
    let method = object.getattr(intern!(py, "__dlpack__"))?;
    let options = PyDict::new(py);
    if let Some(stream) = consuming_stream(object)? {
        options.set_item("stream", stream)?;
    }
    options.set_item("max_version", (dlpack::VERSION.major, dlpack::VERSION.minor))?;
    let produce = || call(&method, &PyTuple::empty(py), Some(&options));
    let capsule = match produce() {
        // Producers older than DLPack 1.0 do not know the argument.
        Err(e) if e.is_instance_of::<PyTypeError>(py) => {
            options.del_item("max_version")?;
            produce()?
        }
        result => result?,
    };
    consume(capsule.cast::<PyCapsule>()?)
}

fn consume(capsule: &Bound<'_, PyCapsule>) -> PyResult<Buffer> {
    if let Ok(tensor) = capsule.pointer_checked(Some(VERSIONED)) {
        mark_used(capsule, c"used_dltensor_versioned")?;
        // SAFETY: the capsule's name says what it holds, and its new name marks it as consumed by us.
        return unsafe { dlpack::import_versioned(tensor.as_ptr().cast()) }.raise();
    }
    let Ok(tensor) = capsule.pointer_checked(Some(UNVERSIONED)) else {
        return Err(PyValueError::new_err("the DLPack capsule holds no tensor, or was already consumed"));
    };
    mark_used(capsule, c"used_dltensor")?;
    // SAFETY: as above.
    unsafe { dlpack::import(tensor.as_ptr().cast()) }.raise()
}

/// The stream on which a GPU array will be used, so that its producer can make it ready there; `None` on the host.
fn consuming_stream(object: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    let py = object.py();
    let Some(method) = object.getattr_opt(intern!(py, "__dlpack_device__"))? else { return Ok(None) };
    let (device_type, device_id) = call(&method, &PyTuple::empty(py), None)?.extract::<(i32, i32)>()?;
    let place = dlpack::DLDevice { device_type, device_id };
    if !place.is_cuda() {
        return Ok(None);
    }
    find_libraries(py)?;
    Ok(py.detach(|| Device::try_from(place)).raise()?.default_stream().handle())
}

/// Makes a buffer on a GPU ready for its consumer's stream, numbered as in the protocol.
pub fn hand_over(buffer: &Buffer, stream: Option<i64>) -> PyResult<()> {
    let handle = match stream {
        None => Some(LEGACY_STREAM),
        Some(-1) => None,
        Some(handle @ 1..) => Some(handle as u64),
        Some(other) => {
            return Err(PyValueError::new_err(format!(
                "{other} is not a DLPack stream: expected -1 for none, 1 or 2 for the default streams, or a handle"
            )));
        }
    };
    // SAFETY: by the protocol, the number is the handle of a stream of the buffer's device.
    unsafe { buffer.release_to(handle) }.raise()
}

/// The stream that a consumer means when it names none.
const LEGACY_STREAM: u64 = 1;

fn mark_used(capsule: &Bound<'_, PyCapsule>, name: &'static CStr) -> PyResult<()> {
    // SAFETY: the capsule is alive and the name is static.
    match unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), name.as_ptr()) } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(capsule.py())),
    }
}

/// A capsule through which another library takes over a buffer.
pub fn to_dlpack<'py>(
    py: Python<'py>,
    buffer: &Buffer,
    versioned: bool,
    copied: bool,
) -> PyResult<Bound<'py, PyCapsule>> {
    let (tensor, name): (*mut c_void, _) = if versioned {
        (dlpack::export_versioned(buffer, copied).cast(), VERSIONED)
    } else {
        let tensor = dlpack::export(buffer).map_err(|e| PyBufferError::new_err(e.to_string()))?;
        (tensor.cast(), UNVERSIONED)
    };
    let tensor =
        NonNull::new(tensor).ok_or_else(|| PyBufferError::new_err("the buffer could not be exported"))?;
    // SAFETY: the pointer is a managed tensor of the kind that the name says; the destructor frees it if nobody
    // consumes it.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, tensor, name, Some(release)) }
}

/// Frees an exported tensor that no consumer has taken.
unsafe extern "C" fn release(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule that is being destroyed. Its name tells which kind of tensor it still
    // holds; a consumer that took the tensor has changed the name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            let tensor: *mut dlpack::DLManagedTensorVersioned =
                ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast();
            if let Some(deleter) = (*tensor).deleter {
                deleter(tensor);
            }
        } else if ffi::PyCapsule_IsValid(capsule, UNVERSIONED.as_ptr()) == 1 {
            let tensor: *mut dlpack::DLManagedTensor =
                ffi::PyCapsule_GetPointer(capsule, UNVERSIONED.as_ptr()).cast();
            if let Some(deleter) = (*tensor).deleter {
                deleter(tensor);
            }
        }
    }
}

/// The data of a contiguous buffer, in place.
pub fn shared_tensor(buffer: &Buffer) -> PyResult<HostTensor> {
    HostTensor::new(buffer.dtype(), buffer.shape(), buffer.host_bytes().raise()?).raise()
}

/// The data of a buffer for a graph: a copy, because its memory may be written through other handles.
pub fn host_tensor(buffer: &Buffer) -> PyResult<HostTensor> {
    let copy = buffer.copy(None).raise()?;
    HostTensor::new(copy.dtype(), copy.shape(), copy.host_bytes().raise()?).raise()
}
