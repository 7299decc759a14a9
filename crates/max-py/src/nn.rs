//! What the module trees of Rust and of Python share: which values belong to which weights.

use max::graph::{QuantizationEncoding, Type};
use max::nn::state::{Expected, Given, Rules};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::args::DTypeLike;
use crate::error::Raise;
use crate::types::PyType;

/// A weight of a model: its name, its type, its encoding and the alignment it needs.
type ExpectedFields<'py> = (String, Bound<'py, PyType>, Option<String>, Option<usize>);

/// A value for a weight: its name, its dtype, its sizes, its encoding and its address.
type GivenFields = (String, DTypeLike, Vec<usize>, Option<String>, usize);

/// For each weight the number of its value; None for one that is missing, if that is no error.
#[pyfunction]
#[pyo3(signature = (expected, given, strict, override_encoding, alignment, /))]
pub fn match_weights(
    expected: Vec<ExpectedFields<'_>>,
    given: Vec<GivenFields>,
    strict: bool,
    override_encoding: bool,
    alignment: Option<usize>,
) -> PyResult<Vec<Option<usize>>> {
    let encoding = |name: &Option<String>| -> PyResult<Option<QuantizationEncoding>> {
        name.as_ref().map(|name| name.parse().raise()).transpose()
    };
    let expected = expected.iter().map(|(name, ty, own, align)| match &ty.get().0 {
        Type::Tensor(ty) => Ok(Expected { name, ty, encoding: encoding(own)?, align: *align }),
        other => {
            Err(PyTypeError::new_err(format!("weight '{name}' has the type {other}, which is no tensor")))
        }
    });
    let given = given.iter().map(|(name, dtype, shape, own, address)| {
        Ok(Given { name, dtype: dtype.0, shape, encoding: encoding(own)?, address: *address })
    });
    let expected = expected.collect::<PyResult<Vec<_>>>()?;
    let given = given.collect::<PyResult<Vec<_>>>()?;
    max::nn::state::match_weights(&expected, &given, Rules { strict, override_encoding, alignment }).raise()
}
