//! A loaded model: a program with its weights, ready to execute from any thread.

use std::collections::HashMap;

use max_compiler::Program;
use max_core::{DType, DeviceRef, Error, Result, Type, bail};
use max_driver::{Buffer, Device};
use max_graph::{Environment, HostTensor, interpret};

/// What a model says about one of its inputs or outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// `input0`, `output1` and so on.
    pub name: String,
    /// The sizes, where they are static.
    pub shape: Vec<Option<i64>>,
    /// The type of the elements.
    pub dtype: DType,
    /// Where it lives.
    pub device: DeviceRef,
}

/// A compiled graph with its weights.
#[derive(Debug)]
pub struct Model {
    program: Program,
    weights: HashMap<String, HostTensor>,
    devices: Vec<Device>,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
}

impl Model {
    pub(crate) fn new(
        program: Program,
        weights: HashMap<String, HostTensor>,
        devices: Vec<Device>,
    ) -> Result<Model> {
        let inputs = specs("input", program.inputs())?;
        let outputs = specs("output", program.outputs())?;
        Ok(Model { program, weights, devices, inputs, outputs })
    }

    /// The name of the graph.
    pub fn name(&self) -> &str {
        self.program.name()
    }

    /// The devices of its session.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// What the inputs must be.
    pub fn input_metadata(&self) -> &[TensorSpec] {
        &self.inputs
    }

    /// What the outputs will be.
    pub fn output_metadata(&self) -> &[TensorSpec] {
        &self.outputs
    }

    /// Runs the model. Inputs that are not contiguous are gathered; outputs are new buffers from the pool.
    pub fn execute(&self, inputs: &[Buffer]) -> Result<Vec<Buffer>> {
        self.execute_until(inputs, &|| Ok(()))
    }

    /// As [`Model::execute`], and asks before each step whether to go on; an error ends the execution.
    pub fn execute_until(
        &self,
        inputs: &[Buffer],
        checkpoint: &dyn Fn() -> Result<()>,
    ) -> Result<Vec<Buffer>> {
        if inputs.len() != self.inputs.len() {
            bail!(value, "model '{}' takes {} inputs, got {}", self.name(), self.inputs.len(), inputs.len());
        }
        let inputs = inputs.iter().zip(&self.inputs).map(|(buffer, spec)| host_tensor(buffer, spec));
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let execution = Execution { weights: &self.weights, checkpoint };
        let results = interpret(self.program.body(), &inputs, &execution)
            .map_err(|e| e.context(format!("while executing model '{}'", self.name())))?;
        results.iter().zip(&self.outputs).map(|(result, spec)| output_buffer(result, spec)).collect()
    }
}

/// One execution of a model, as the program sees it.
struct Execution<'a> {
    weights: &'a HashMap<String, HostTensor>,
    checkpoint: &'a dyn Fn() -> Result<()>,
}

impl Environment for Execution<'_> {
    fn weight(&self, name: &str) -> Result<HostTensor> {
        let value = self.weights.get(name).cloned();
        value.ok_or_else(|| {
            Error::internal(format!("weight '{name}' was not bound when the model was loaded"))
        })
    }

    fn checkpoint(&self) -> Result<()> {
        (self.checkpoint)()
    }
}

fn specs<'a>(role: &str, types: impl Iterator<Item = &'a Type>) -> Result<Vec<TensorSpec>> {
    let specs = types.enumerate().map(|(i, ty)| {
        let name = format!("{role}{i}");
        match (ty.array(), ty.device()) {
            (Some((dtype, shape)), Some(device)) => {
                let shape = shape.iter().map(|dim| dim.as_static()).collect();
                Ok(TensorSpec { name, shape, dtype, device })
            }
            _ => bail!(not_implemented, "{name} has the type {ty}, which a model cannot exchange yet"),
        }
    });
    specs.collect()
}

fn host_tensor(buffer: &Buffer, spec: &TensorSpec) -> Result<HostTensor> {
    if buffer.dtype() != spec.dtype {
        bail!(value, "{} must be {}, got {}", spec.name, spec.dtype, buffer.dtype());
    }
    if buffer.device().device_ref() != spec.device {
        bail!(value, "{} must be on {}, got {}", spec.name, spec.device, buffer.device().device_ref());
    }
    HostTensor::new(spec.dtype, buffer.shape(), buffer.host_bytes()?)
}

fn output_buffer(result: &HostTensor, spec: &TensorSpec) -> Result<Buffer> {
    let device = Device::from_ref(spec.device)?;
    let buffer = Buffer::uninit_pooled(result.dtype(), result.shape(), &device)?;
    buffer.inplace_copy_from(&Buffer::from_host_bytes(
        result.bytes().clone(),
        result.dtype(),
        result.shape(),
    )?)?;
    Ok(buffer)
}
