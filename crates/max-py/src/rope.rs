//! What rotary embeddings need to know before a graph is built.

use max::graph::ops::RopeScaling;
use max::graph::registry::FromArg;
use pyo3::prelude::*;

use crate::args;
use crate::error::Raise;

/// What a scaling of a rotary dim and a base multiplies the scale of attention scores by.
#[pyfunction]
pub fn rope_scale_factor(scaling: &Bound<'_, PyAny>, dim: i64, theta: f64) -> PyResult<f64> {
    let scaling = RopeScaling::from_arg(args::arg(scaling)?).raise()?;
    scaling.validate(dim, theta).raise()?;
    Ok(scaling.scale_factor())
}
