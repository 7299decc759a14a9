//! Dtypes, dims, shapes, device references and types.

use std::hash::{DefaultHasher, Hash, Hasher};

use max::dtype::DType;
use max::graph::{BufferType, DeviceRef, Dim, Shape, TensorType, Type};
use pyo3::exceptions::{PyAttributeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::args::{self, DTypeLike, native};
use crate::error::Raise;

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A dtype by its code.
#[pyclass(frozen, name = "DType", module = "max._core")]
pub struct PyDType(pub DType);

#[pymethods]
impl PyDType {
    #[new]
    fn new(code: u8) -> PyResult<PyDType> {
        DType::from_code(code).map(PyDType).raise()
    }

    #[staticmethod]
    fn like(dtype: DTypeLike) -> PyDType {
        PyDType(dtype.0)
    }

    #[staticmethod]
    fn all() -> Vec<(&'static str, u8)> {
        DType::ALL.iter().map(|d| (d.name(), d.code())).collect()
    }

    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }

    #[getter]
    fn code(&self) -> u8 {
        self.0.code()
    }

    #[getter]
    fn size_in_bytes(&self) -> usize {
        self.0.size_in_bytes()
    }

    #[getter]
    fn size_in_bits(&self) -> usize {
        self.0.size_in_bits()
    }

    #[getter]
    fn align(&self) -> usize {
        self.0.align()
    }

    fn is_float(&self) -> bool {
        self.0.is_float()
    }

    fn is_float8(&self) -> bool {
        self.0.is_float8()
    }

    fn is_small_float(&self) -> bool {
        self.0.is_small_float()
    }

    fn is_half(&self) -> bool {
        self.0.is_half()
    }

    fn is_integral(&self) -> bool {
        self.0.is_integral()
    }

    fn is_signed_integral(&self) -> bool {
        self.0.is_signed_integral()
    }

    fn is_unsigned_integral(&self) -> bool {
        self.0.is_unsigned_integral()
    }
}

/// A canonical dim.
#[pyclass(frozen, name = "Dim", module = "max._core")]
pub struct PyDim(pub Dim);

impl PyDim {
    fn with(&self, other: &Bound<'_, PyAny>, f: fn(&Dim, &Dim) -> max::Result<Dim>) -> PyResult<PyDim> {
        f(&self.0, &args::dim(other)?).map(PyDim).raise()
    }
}

#[pymethods]
impl PyDim {
    #[new]
    fn new(value: &Bound<'_, PyAny>) -> PyResult<PyDim> {
        args::dim(value).map(PyDim)
    }

    #[staticmethod]
    fn parse(text: &str) -> PyResult<PyDim> {
        text.parse().map(PyDim).raise()
    }

    #[getter]
    fn kind(&self) -> &'static str {
        match self.0 {
            Dim::Static(_) => "static",
            Dim::Symbolic(_) => "symbolic",
            Dim::Algebraic(_) => "algebraic",
        }
    }

    #[getter]
    fn size(&self) -> Option<i64> {
        self.0.as_static()
    }

    #[getter]
    fn name(&self) -> Option<&str> {
        match &self.0 {
            Dim::Symbolic(name) => Some(name),
            _ => None,
        }
    }

    #[getter]
    fn parameters(&self) -> Vec<String> {
        self.0.parameters().iter().map(|name| name.to_string()).collect()
    }

    fn add(&self, other: &Bound<'_, PyAny>) -> PyResult<PyDim> {
        self.with(other, Dim::add)
    }

    fn sub(&self, other: &Bound<'_, PyAny>) -> PyResult<PyDim> {
        self.with(other, Dim::sub)
    }

    fn mul(&self, other: &Bound<'_, PyAny>) -> PyResult<PyDim> {
        self.with(other, Dim::mul)
    }

    fn floor_div(&self, other: &Bound<'_, PyAny>) -> PyResult<PyDim> {
        self.with(other, Dim::floor_div)
    }

    fn modulo(&self, other: &Bound<'_, PyAny>) -> PyResult<PyDim> {
        self.with(other, Dim::modulo)
    }

    fn neg(&self) -> PyResult<PyDim> {
        self.0.neg().map(PyDim).raise()
    }

    fn substitute(&self, replace: &Bound<'_, PyDict>) -> PyResult<PyDim> {
        let mut dims = std::collections::HashMap::new();
        // Iterates over a copy: reading a dim may run code that changes the dict.
        for item in replace.items() {
            let (name, dim) = item.extract::<(String, Bound<'_, PyAny>)>()?;
            dims.insert(name, args::dim(&dim)?);
        }
        self.0.substitute(&|name| dims.get(name).cloned()).map(PyDim).raise()
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<PyDim>().is_ok_and(|other| self.0 == other.get().0)
    }

    fn __hash__(&self) -> u64 {
        hash_of(&self.0)
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// A shape as one object.
#[pyclass(frozen, name = "Shape", module = "max._core")]
pub struct PyShape(pub Shape);

#[pymethods]
impl PyShape {
    #[new]
    fn new(dims: &Bound<'_, PyAny>) -> PyResult<PyShape> {
        args::shape(dims).map(PyShape)
    }
}

/// A symbolic device.
#[pyclass(frozen, name = "DeviceRef", module = "max._core")]
pub struct PyDeviceRef(pub DeviceRef);

#[pymethods]
impl PyDeviceRef {
    #[new]
    fn new(kind: &str, id: i64) -> PyResult<PyDeviceRef> {
        let id = u32::try_from(id)
            .map_err(|_| PyValueError::new_err(format!("{id} is not the id of a device")))?;
        Ok(PyDeviceRef(DeviceRef { kind: kind.parse().raise()?, id }))
    }

    #[staticmethod]
    fn parse(name: &str) -> PyResult<PyDeviceRef> {
        name.parse().map(PyDeviceRef).raise()
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.0.kind.name()
    }

    #[getter]
    fn id(&self) -> u32 {
        self.0.id
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }
}

/// The type of a graph value.
#[pyclass(frozen, name = "Type", module = "max._core")]
pub struct PyType(pub Type);

impl PyType {
    fn checked(ty: impl Into<Type>) -> PyResult<PyType> {
        let ty = ty.into();
        ty.validate().raise()?;
        Ok(PyType(ty))
    }

    fn array(&self) -> PyResult<(DType, &Shape)> {
        self.0
            .array()
            .ok_or_else(|| PyAttributeError::new_err(format!("{:?} has no dtype and no shape", self.0)))
    }
}

#[pymethods]
impl PyType {
    #[staticmethod]
    fn tensor(
        dtype: DTypeLike,
        shape: &Bound<'_, PyAny>,
        device: &PyDeviceRef,
        layout: Option<&str>,
    ) -> PyResult<PyType> {
        let layout = layout.map(str::parse).transpose().raise()?;
        PyType::checked(TensorType { layout, ..TensorType::new(dtype.0, args::shape(shape)?, device.0) })
    }

    #[staticmethod]
    fn buffer(dtype: DTypeLike, shape: &Bound<'_, PyAny>, device: &PyDeviceRef) -> PyResult<PyType> {
        PyType::checked(BufferType::new(dtype.0, args::shape(shape)?, device.0))
    }

    #[staticmethod]
    fn opaque(name: &str) -> PyType {
        PyType(Type::Opaque(name.into()))
    }

    #[getter]
    fn kind(&self) -> &'static str {
        match self.0 {
            Type::Tensor(_) => "tensor",
            Type::Buffer(_) => "buffer",
            Type::Opaque(_) => "opaque",
        }
    }

    #[getter]
    fn dtype(&self) -> PyResult<PyDType> {
        Ok(PyDType(self.array()?.0))
    }

    #[getter]
    fn shape(&self) -> PyResult<Vec<PyDim>> {
        Ok(self.array()?.1.iter().cloned().map(PyDim).collect())
    }

    #[getter]
    fn device(&self) -> PyResult<PyDeviceRef> {
        let device = self.0.device().map(PyDeviceRef);
        device.ok_or_else(|| PyAttributeError::new_err(format!("{:?} has no device", self.0)))
    }

    #[getter]
    fn layout(&self) -> Option<&'static str> {
        match &self.0 {
            Type::Tensor(t) => t.layout.map(|l| l.name()),
            _ => None,
        }
    }

    #[getter]
    fn name(&self) -> PyResult<&str> {
        match &self.0 {
            Type::Opaque(name) => Ok(name),
            other => Err(PyAttributeError::new_err(format!("{other:?} has no name"))),
        }
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(native(other)?.cast::<PyType>().is_ok_and(|other| self.0 == other.get().0))
    }

    fn __hash__(&self) -> u64 {
        hash_of(&self.0)
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}
