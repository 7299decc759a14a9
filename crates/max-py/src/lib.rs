//! `max._core`: the native module of the Python package. One class or function per concept; signatures, documentation
//! and argument coercion are in the Python modules that call it. The contract between the two is
//! `python/max/_core.pyi`.

mod args;
mod array;
mod caller;
mod command;
mod custom;
mod driver;
mod engine;
mod error;
mod graph;
mod interrupt;
mod nn;
mod quantization;
mod rope;
mod shell;
mod tensor;
mod types;
mod weights;

/// The native module.
#[pyo3::pymodule(gil_used = true)]
mod _core {
    #[pymodule_export]
    use crate::command::command;
    #[pymodule_export]
    use crate::custom::{PyCustomOp, PyKernelLibrary};
    #[pymodule_export]
    use crate::driver::{
        PyBuffer, PyDevice, PyStream, accelerator_api, accelerator_architecture_name, accelerator_count,
        get_virtual_device_count, set_virtual_device_count,
    };
    #[pymodule_export]
    use crate::engine::{PyModel, PySession, clear_program_cache, program_cache_stats};
    #[pymodule_export]
    use crate::graph::{PyGraph, PyValue, PyWeight, op, op_params};
    #[pymodule_export]
    use crate::nn::match_weights;
    #[pymodule_export]
    use crate::quantization::PyQuantizationEncoding;
    #[pymodule_export]
    use crate::rope::rope_scale_factor;
    #[pymodule_export]
    use crate::shell::set_shell;
    #[pymodule_export]
    use crate::tensor::{
        PyRegion, PyTensor, PyTrace, clear_tensor_cache, next_seed, set_seed, tensor_cache_stats,
    };
    #[pymodule_export]
    use crate::weights::{PyWeightFiles, weights_format};
    #[pymodule_init]
    fn init(_module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        max::graph::set_writer(crate::graph::write_line);
        Ok(())
    }

    #[pymodule_export]
    use crate::types::{PyDType, PyDeviceRef, PyDim, PyShape, PyType};
}
