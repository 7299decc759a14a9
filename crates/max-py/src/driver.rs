//! Devices, streams and buffers.

use std::path::PathBuf;
use std::str::FromStr;

use max::driver::{self, Buffer, Device, MmapMode, Stream, ViewIndex};
use max::dtype::Number;
use max::graph::DeviceKind;
use numpy::PyUntypedArrayMethods;
use pyo3::exceptions::{PyIndexError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyCapsule, PyDict, PySlice, PyTuple};

use crate::args::{self, DTypeLike, native};
use crate::array;
use crate::error::Raise;
use crate::tensor::PyTensor;
use crate::types::{PyDType, PyDeviceRef};

/// A device.
#[pyclass(frozen, eq, hash, name = "Device", module = "max._core")]
#[derive(PartialEq, Eq, Hash)]
pub struct PyDevice(pub Device);

#[pymethods]
impl PyDevice {
    #[staticmethod]
    fn cpu() -> PyDevice {
        PyDevice(Device::cpu())
    }

    #[staticmethod]
    fn accelerator(py: Python<'_>, id: Option<u32>) -> PyResult<PyDevice> {
        find_libraries(py)?;
        py.detach(|| Device::accelerator(id)).map(PyDevice).raise()
    }

    #[staticmethod]
    fn from_ref(py: Python<'_>, r#ref: &PyDeviceRef) -> PyResult<PyDevice> {
        let r#ref = r#ref.0;
        if r#ref.kind == DeviceKind::Gpu {
            find_libraries(py)?;
        }
        py.detach(|| Device::from_ref(r#ref)).map(PyDevice).raise()
    }

    #[getter]
    fn id(&self) -> u32 {
        self.0.id()
    }

    #[getter]
    fn label(&self) -> &'static str {
        self.0.label()
    }

    #[getter]
    fn api(&self) -> &'static str {
        self.0.api()
    }

    #[getter]
    fn architecture_name(&self) -> PyResult<String> {
        self.0.architecture_name().raise()
    }

    #[getter]
    fn model_name(&self) -> String {
        self.0.model_name()
    }

    #[getter]
    fn max_single_alloc_size(&self, py: Python<'_>) -> PyResult<usize> {
        py.detach(|| self.0.max_single_alloc_size()).raise()
    }

    #[getter]
    fn is_host(&self) -> bool {
        self.0.is_host()
    }

    #[getter]
    fn is_host_unified(&self) -> bool {
        self.0.is_host_unified()
    }

    #[getter]
    fn is_compatible(&self) -> bool {
        self.0.is_compatible()
    }

    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = PyDict::new(py);
        for (name, value) in self.0.stats() {
            stats.set_item(name, python_number(py, value)?)?;
        }
        Ok(stats)
    }

    #[getter]
    fn r#ref(&self) -> PyDeviceRef {
        PyDeviceRef((&self.0).into())
    }

    fn can_access(&self, other: &PyDevice) -> bool {
        self.0.can_access(&other.0)
    }

    fn default_stream(&self) -> PyStream {
        PyStream(self.0.default_stream())
    }

    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.synchronize()).raise()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }
}

/// A stream of work on a device.
#[pyclass(frozen, eq, name = "Stream", module = "max._core")]
#[derive(PartialEq, Eq)]
pub struct PyStream(pub Stream);

#[pymethods]
impl PyStream {
    #[new]
    fn new(device: &PyDevice) -> PyResult<PyStream> {
        Stream::new(&device.0).map(PyStream).raise()
    }

    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice(self.0.device().clone())
    }

    /// The handle for other libraries; `None` for the host.
    #[getter]
    fn handle(&self) -> Option<u64> {
        self.0.handle()
    }

    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.synchronize()).raise()
    }

    fn wait_for(&self, stream: &PyStream) -> PyResult<()> {
        self.0.wait_for(&stream.0).raise()
    }
}

/// Tells the driver, once and before it looks for a GPU, where the installed packages of this environment keep CUDA
/// libraries: in `nvidia/*/lib` on `sys.path`.
pub fn find_libraries(py: Python<'_>) -> PyResult<()> {
    static TOLD: PyOnceLock<()> = PyOnceLock::new();
    let tell = || -> PyResult<()> {
        let path = py.import(intern!(py, "sys"))?.getattr(intern!(py, "path"))?;
        let entries = path.try_iter()?.filter_map(|entry| entry.ok()?.extract::<PathBuf>().ok());
        let packages = entries.filter_map(|entry| entry.join("nvidia").read_dir().ok()).flatten().flatten();
        driver::cuda::search_in(
            packages.map(|package| package.path().join("lib")).filter(|lib| lib.is_dir()),
        );
        Ok(())
    };
    TOLD.get_or_try_init(py, tell).copied()
}

/// The number of accelerators.
#[pyfunction]
pub fn accelerator_count(py: Python<'_>) -> PyResult<usize> {
    find_libraries(py)?;
    Ok(py.detach(driver::accelerator_count))
}

/// The API that programs the accelerators.
#[pyfunction]
pub fn accelerator_api(py: Python<'_>) -> PyResult<&'static str> {
    find_libraries(py)?;
    Ok(py.detach(driver::accelerator_api))
}

/// The architecture of the first accelerator.
#[pyfunction]
pub fn accelerator_architecture_name(py: Python<'_>) -> PyResult<String> {
    find_libraries(py)?;
    py.detach(driver::accelerator_architecture_name).raise()
}

/// Where a buffer is created: on a device, or on a stream of one.
fn place(object: &Bound<'_, PyAny>) -> PyResult<Stream> {
    let object = native(object)?;
    if let Ok(device) = object.cast::<PyDevice>() {
        return Ok(device.get().0.default_stream());
    }
    match object.cast::<PyStream>() {
        Ok(stream) => Ok(stream.get().0.clone()),
        Err(_) => Err(PyTypeError::new_err(format!(
            "expected a Device or a DeviceStream, got {}",
            object.get_type()
        ))),
    }
}

/// A strided array on a device.
#[pyclass(frozen, name = "Buffer", module = "max._core")]
pub struct PyBuffer(pub Buffer);

#[pymethods]
impl PyBuffer {
    #[new]
    #[pyo3(signature = (dtype, shape, place, pinned = false))]
    fn new(
        dtype: DTypeLike,
        shape: &Bound<'_, PyAny>,
        place: &Bound<'_, PyAny>,
        pinned: bool,
    ) -> PyResult<PyBuffer> {
        let (sizes, place) = (args::sizes(shape)?, self::place(place)?);
        if pinned {
            find_libraries(shape.py())?;
        }
        let make = if pinned { Buffer::new_pinned } else { Buffer::new };
        shape.py().detach(|| make(dtype.0, &sizes, &place)).map(PyBuffer).raise()
    }

    #[staticmethod]
    fn scalar(value: &Bound<'_, PyAny>, dtype: DTypeLike, place: &Bound<'_, PyAny>) -> PyResult<PyBuffer> {
        Buffer::scalar(required_number(value)?, dtype.0, &self::place(place)?).map(PyBuffer).raise()
    }

    #[staticmethod]
    fn from_dlpack(array: &Bound<'_, PyAny>, copy: Option<bool>) -> PyResult<PyBuffer> {
        let array = native(array)?;
        let buffer = if let Ok(buffer) = array.cast::<PyBuffer>() {
            buffer.get().0.clone()
        } else if let Ok(tensor) = array.cast::<PyTensor>() {
            tensor.get().read(array.py())?
        } else if let Some(array) = array::as_numpy(&array)? {
            let dtype = array::numpy_dtype(&array.dtype())?;
            if copy == Some(false) && array::element_strides(array, dtype).is_none() {
                return Err(PyValueError::new_err(
                    "the array cannot be shared: its strides are not multiples of the element size",
                ));
            }
            array::from_numpy(array)?
        } else {
            array::from_dlpack(&array)?
        };
        if copy == Some(true) {
            return array.py().detach(|| buffer.copy(None)).map(PyBuffer).raise();
        }
        if !buffer.is_contiguous() {
            return Err(PyValueError::new_err(
                "from_dlpack takes contiguous arrays only; copy the array first, for instance with np.ascontiguousarray",
            ));
        }
        Ok(PyBuffer(buffer))
    }

    #[staticmethod]
    fn from_numpy(array: &Bound<'_, PyAny>) -> PyResult<PyBuffer> {
        let Some(array) = array::as_numpy(array)? else {
            return Err(PyTypeError::new_err(format!("expected a NumPy array, got {}", array.get_type())));
        };
        let buffer = array::from_numpy(array)?;
        Ok(PyBuffer(if buffer.is_contiguous() { buffer } else { buffer.contiguous().raise()? }))
    }

    #[staticmethod]
    fn mmap(
        path: PathBuf,
        dtype: DTypeLike,
        shape: &Bound<'_, PyAny>,
        mode: &str,
        offset: u64,
    ) -> PyResult<PyBuffer> {
        let mode = MmapMode::from_str(mode).raise()?;
        Buffer::mmap(path, dtype.0, &args::sizes(shape)?, mode, offset).map(PyBuffer).raise()
    }

    #[getter]
    fn dtype(&self) -> PyDType {
        PyDType(self.0.dtype())
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape())
    }

    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.strides())
    }

    #[getter]
    fn rank(&self) -> usize {
        self.0.rank()
    }

    #[getter]
    fn num_elements(&self) -> usize {
        self.0.num_elements()
    }

    #[getter]
    fn element_size(&self) -> usize {
        self.0.element_size()
    }

    #[getter]
    fn is_contiguous(&self) -> bool {
        self.0.is_contiguous()
    }

    #[getter]
    fn is_host(&self) -> bool {
        self.0.is_host()
    }

    #[getter]
    fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    #[getter]
    fn pinned(&self) -> bool {
        self.0.pinned()
    }

    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice(self.0.device().clone())
    }

    #[getter]
    fn stream(&self) -> PyStream {
        PyStream(self.0.stream().clone())
    }

    #[getter]
    fn data_ptr(&self, py: Python<'_>) -> usize {
        py.detach(|| self.0.data_ptr() as usize)
    }

    fn get(&self, index: &Bound<'_, PyAny>) -> PyResult<PyBuffer> {
        self.0.index(&view_indices(index)?).map(PyBuffer).raise()
    }

    fn set(&self, index: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, indices, value) = (index.py(), view_indices(index)?, native(value)?);
        let view = || self.0.index(&indices).raise();
        if let Ok(buffer) = value.cast::<PyBuffer>() {
            let (view, source) = (view()?, &buffer.get().0);
            return py.detach(|| view.copy_from(source)).raise();
        }
        if let Some(number) = args::number(&value)? {
            let (given, rank) = (indices.len(), self.0.rank());
            if given < rank && indices.iter().all(|index| matches!(index, ViewIndex::At(_))) {
                return Err(PyValueError::new_err(format!(
                    "an item of {:?} has {rank} indices, not {given}; set many items at once with a slice or an \
                     ellipsis, as in `buffer[0, ...] = 1`",
                    self.0
                )));
            }
            let view = view()?;
            return py.detach(|| view.fill(number)).raise();
        }
        let view = view()?;
        match array::from_any(&value)? {
            Some(buffer) => py.detach(|| view.copy_from(&buffer)).raise(),
            None => Err(PyTypeError::new_err(format!("cannot assign {} to a buffer", value.get_type()))),
        }
    }

    fn view(&self, dtype: DTypeLike, shape: Option<&Bound<'_, PyAny>>) -> PyResult<PyBuffer> {
        let shape = shape.map(args::sizes).transpose()?;
        self.0.view(dtype.0, shape.as_deref()).map(PyBuffer).raise()
    }

    fn contiguous(&self, py: Python<'_>) -> PyResult<PyBuffer> {
        py.detach(|| self.0.contiguous()).map(PyBuffer).raise()
    }

    fn copy(&self, py: Python<'_>, place: Option<&Bound<'_, PyAny>>) -> PyResult<PyBuffer> {
        let place = place.map(self::place).transpose()?;
        let copy = || match &place {
            None => self.0.copy(None),
            Some(stream) => self.0.copy_to_stream(stream),
        };
        py.detach(copy).map(PyBuffer).raise()
    }

    fn to(&self, py: Python<'_>, place: &Bound<'_, PyAny>) -> PyResult<PyBuffer> {
        let place = native(place)?;
        if let Ok(device) = place.cast::<PyDevice>() {
            let device = &device.get().0;
            return py.detach(|| self.0.to(device)).map(PyBuffer).raise();
        }
        let stream = self::place(&place)?;
        py.detach(|| self.0.to_stream(&stream)).map(PyBuffer).raise()
    }

    fn inplace_copy_from(&self, py: Python<'_>, src: &PyBuffer) -> PyResult<()> {
        py.detach(|| self.0.inplace_copy_from(&src.0)).raise()
    }

    fn item<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        python_number(py, py.detach(|| self.0.item()).raise()?)
    }

    fn convert<'py>(&self, py: Python<'py>, to: &str) -> PyResult<Bound<'py, PyAny>> {
        check_convertible("buffer", &self.0, to)?;
        self.item(py)
    }

    fn dlpack<'py>(
        &self,
        py: Python<'py>,
        max_version: Option<(u32, u32)>,
        copy: bool,
        stream: Option<i64>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        let buffer = if copy { py.detach(|| self.0.copy(None)).raise()? } else { self.0.clone() };
        array::hand_over(&buffer, stream)?;
        array::to_dlpack(py, &buffer, versioned, copy)
    }

    /// Gives borrowed GPU memory back to its owner; see the stub.
    fn give_back(&self) {
        // SAFETY: as the stub asks of the caller.
        unsafe { self.0.give_back() }
    }

    fn dlpack_device(&self) -> (i32, i32) {
        let device = driver::dlpack::DLDevice::from(self.0.device());
        (device.device_type, device.device_id)
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }

    fn __str__(&self, py: Python<'_>) -> String {
        py.detach(|| self.0.to_string())
    }
}

/// Checks that a buffer has exactly one element, as a conversion to a Python number needs; the error says what was
/// asked for.
pub fn check_convertible(what: &str, buffer: &Buffer, to: &str) -> PyResult<()> {
    match (buffer.num_elements(), to) {
        (1, _) => Ok(()),
        (count, "bool") => Err(PyValueError::new_err(format!(
            "the truth value of a {what} with {count} elements is ambiguous: choose one element, or reduce them to one"
        ))),
        (count, _) => Err(PyValueError::new_err(format!(
            "only a {what} with one element converts to {to}, and this one has {count}"
        ))),
    }
}

pub fn python_number(py: Python<'_>, number: Number) -> PyResult<Bound<'_, PyAny>> {
    Ok(match number {
        Number::Bool(b) => PyBool::new(py, b).to_owned().into_any(),
        Number::Int(i) => i.into_pyobject(py)?.into_any(),
        Number::Float(f) => f.into_pyobject(py)?.into_any(),
    })
}

/// A number, or an error that says what was given instead.
pub fn required_number(value: &Bound<'_, PyAny>) -> PyResult<Number> {
    let number = args::number(value)?;
    number.ok_or_else(|| PyTypeError::new_err(format!("expected a number, got {}", value.get_type())))
}

/// The index expression of a subscript.
fn view_indices(index: &Bound<'_, PyAny>) -> PyResult<Vec<ViewIndex>> {
    match index.cast::<PyTuple>() {
        Ok(indices) => indices.iter().map(|item| view_index(&item)).collect(),
        Err(_) => Ok(vec![view_index(index)?]),
    }
}

fn view_index(index: &Bound<'_, PyAny>) -> PyResult<ViewIndex> {
    let py = index.py();
    if index.is_none() {
        return Ok(ViewIndex::NewAxis);
    }
    if index.is(py.Ellipsis()) {
        return Ok(ViewIndex::Ellipsis);
    }
    if index.is_instance_of::<PySlice>() {
        let part = |name| -> PyResult<Option<i64>> {
            let part = index.getattr(name)?;
            if part.is_none() {
                return Ok(None);
            }
            match part.extract::<i64>() {
                Ok(value) => Ok(Some(value)),
                // Bounds are clamped to the axis anyway.
                Err(e) if e.is_instance_of::<PyOverflowError>(py) => {
                    Ok(Some(if part.lt(0)? { i64::MIN } else { i64::MAX }))
                }
                Err(_) => Err(PyTypeError::new_err("slice bounds must be integers or None")),
            }
        };
        let (start, stop) = (part(intern!(py, "start"))?, part(intern!(py, "stop"))?);
        return Ok(ViewIndex::Slice { start, stop, step: part(intern!(py, "step"))?.unwrap_or(1) });
    }
    let at = if index.is_instance_of::<PyBool>() { None } else { args::index(index)? };
    match at {
        Some(at) => Ok(ViewIndex::At(at)),
        None => Err(PyIndexError::new_err(format!(
            "a buffer is indexed by ints, slices, ellipsis and None; got {}",
            index.get_type()
        ))),
    }
}
