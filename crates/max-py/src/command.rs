//! The `max` command.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the command with arguments, of which the first is its name; the result is the exit status.
#[pyfunction]
pub fn command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| max_cli::run(arguments))
}
