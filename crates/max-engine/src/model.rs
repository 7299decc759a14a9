//! A loaded model: a program with its weights, ready to execute from any thread.

use std::borrow::Cow;
use std::sync::Arc;

use max_compiler::Program;
use max_core::{DType, DeviceRef, Result, Type, bail};
use max_driver::{Buffer, Device};
use max_graph::HostTensor;
use max_kernels::Pool;

use crate::observe::Observer;
use crate::run::Runtime;

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
    runtime: Runtime,
    devices: Vec<Device>,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
}

/// The memory that temporaries of an execution take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// The bytes of the arena.
    pub peak_bytes: usize,
    /// The bytes that the same program would take if no temporary reused the memory of another.
    pub bytes_without_reuse: usize,
}

impl Model {
    pub(crate) fn new(
        program: Arc<Program>,
        weights: Vec<HostTensor>,
        devices: Vec<Device>,
        pool: Arc<Pool>,
    ) -> Result<Model> {
        let inputs = specs("input", program.inputs.iter())?;
        let outputs = specs("output", program.outputs.iter())?;
        Ok(Model { runtime: Runtime::new(program, weights, pool)?, devices, inputs, outputs })
    }

    /// The name of the graph.
    pub fn name(&self) -> &str {
        &self.runtime.program.source.name
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

    /// What it runs.
    pub fn program(&self) -> &Program {
        &self.runtime.program
    }

    /// The memory that an execution with such inputs takes beside inputs, weights and outputs, as far as sizes do not
    /// depend on data.
    pub fn memory_report(&self, inputs: &[Buffer]) -> Result<MemoryReport> {
        let inputs = self.check_inputs(inputs)?;
        let plan = &self.runtime.ready(&inputs)?.first.plan;
        Ok(MemoryReport { peak_bytes: plan.bytes, bytes_without_reuse: plan.bytes_without_reuse })
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
        let inputs = self.check_inputs(inputs)?;
        let observer = Observer { checkpoint, profile: None, check_values: false };
        let run = || self.runtime.run(&*self.runtime.ready(&inputs)?, &inputs, None, &observer);
        run().map_err(|e| e.context(format!("while executing model '{}'", self.name())))
    }

    /// Inputs as the program takes them: of the right number, dtype and device, and contiguous.
    fn check_inputs<'a>(&self, inputs: &'a [Buffer]) -> Result<Cow<'a, [Buffer]>> {
        if inputs.len() != self.inputs.len() {
            bail!(value, "model '{}' takes {} inputs, got {}", self.name(), self.inputs.len(), inputs.len());
        }
        for (buffer, spec) in inputs.iter().zip(&self.inputs) {
            if buffer.dtype() != spec.dtype {
                bail!(value, "{} must be {}, got {}", spec.name, spec.dtype, buffer.dtype());
            }
            if buffer.device().device_ref() != spec.device {
                bail!(
                    value,
                    "{} must be on {}, got {}",
                    spec.name,
                    spec.device,
                    buffer.device().device_ref()
                );
            }
            buffer.stream().synchronize()?;
        }
        if inputs.iter().all(Buffer::is_contiguous) {
            return Ok(Cow::Borrowed(inputs));
        }
        inputs.iter().map(Buffer::contiguous).collect::<Result<Vec<_>>>().map(Cow::Owned)
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
