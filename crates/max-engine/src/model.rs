//! A loaded model: a program with its weights, ready to execute from any thread.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use max_compiler::Program;
use max_compiler::program::{Step, Work};
use max_core::{DType, DeviceRef, Result, Type, bail};
use max_driver::{Buffer, Device};
use max_graph::HostTensor;
use max_kernels::Pool;

use crate::capture::Captures;
use crate::observe::Observer;
use crate::profile::Profile;
use crate::run::{Keep, Runtime};
use crate::settings::{AssertLevel, LogLevel, ProfilingMode, Settings};

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
    pub(crate) runtime: Runtime,
    devices: Vec<Device>,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    settings: Arc<Settings>,
    asserts: AssertLevel,
    /// Where the time goes, if the session profiles.
    profile: Option<Profile>,
    profiling: ProfilingMode,
    pub(crate) captures: Captures,
}

/// One kernel of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSummary {
    /// Its ops by name.
    pub name: String,
    /// `loop`, `matmul`, `attention`, `conv2d`, `gather` or `print`.
    pub kind: &'static str,
    /// The ops it does the work of, with the types of their operands.
    pub ops: Vec<String>,
    /// All it does, as text.
    pub text: String,
}

/// The memory that a model takes beside inputs, weights and outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// The bytes of the arena of an execution.
    pub peak_bytes: usize,
    /// The bytes that the same program would take if no temporary reused the memory of another.
    pub bytes_without_reuse: usize,
    /// The bytes of constants and weights that executions so far have packed for their kernels. Programs that use the
    /// same weights share them.
    pub packed_bytes: usize,
}

impl Model {
    pub(crate) fn new(
        program: Arc<Program>,
        weights: Vec<HostTensor>,
        devices: Vec<Device>,
        pool: Arc<Pool>,
        settings: Arc<Settings>,
        keep: Keep,
    ) -> Result<Model> {
        let inputs = specs("input", program.inputs.iter())?;
        let outputs = specs("output", program.outputs.iter())?;
        let (profiling, asserts) = (settings.profiling(), settings.assert_level());
        let check_plans = matches!(asserts, AssertLevel::Safe | AssertLevel::All);
        Ok(Model {
            runtime: Runtime::new(program, weights, pool, keep, check_plans)?,
            devices,
            inputs,
            outputs,
            asserts,
            settings,
            profile: (profiling != ProfilingMode::Off).then(Profile::default),
            profiling,
            captures: Captures::default(),
        })
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

    /// What its kernels are, in the order in which they run.
    pub fn kernel_summaries(&self) -> Vec<KernelSummary> {
        let program = &self.runtime.program;
        let summary = |(number, step): (usize, &Step)| {
            let (kind, text) = match &step.work {
                Work::Kernel(kernel) => (kernel.kind(), kernel.to_string()),
                Work::Print(label, _) => ("print", label.clone()),
            };
            KernelSummary { name: program.step_name(number), kind, ops: ops_of(program, number), text }
        };
        program.steps.iter().enumerate().map(summary).collect()
    }

    /// Where the time went, one line a kernel; nothing unless the session profiled when the model was loaded.
    pub fn profile_table(&self) -> Option<String> {
        self.profile.as_ref().map(|profile| profile.table(&self.runtime.program))
    }

    /// Writes every launch to a file that Chrome's and Perfetto's trace viewers open.
    pub fn save_trace(&self, path: &Path) -> Result<()> {
        match &self.profile {
            Some(profile) => {
                profile.save(&self.runtime.program, self.profiling == ProfilingMode::Detailed, path)
            }
            None => {
                bail!(runtime, "model '{}' was loaded without profiling, so it has no trace", self.name())
            }
        }
    }

    /// The memory that an execution with such inputs takes beside inputs, weights and outputs, as far as sizes do not
    /// depend on data.
    pub fn memory_report(&self, inputs: &[Buffer]) -> Result<MemoryReport> {
        let inputs = self.check_inputs(inputs)?;
        let plan = &self.runtime.ready(&inputs)?.first.plan;
        Ok(MemoryReport {
            peak_bytes: plan.bytes,
            bytes_without_reuse: plan.bytes_without_reuse,
            packed_bytes: self.runtime.packed_bytes(),
        })
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
        self.runtime
            .run(&inputs, &self.observer(checkpoint))
            .map_err(|e| e.context(format!("while executing model '{}'", self.name())))
    }

    /// Watches an execution as the session wants it watched.
    pub(crate) fn observer<'a>(&'a self, checkpoint: &'a dyn Fn() -> Result<()>) -> Observer<'a> {
        Observer {
            checkpoint,
            settings: &self.settings,
            profile: self.profile.as_ref(),
            asserts: self.asserts,
            tracing: self.settings.log_level() == LogLevel::Trace,
        }
    }

    /// Inputs as the program takes them: of the right number, dtype and device, and contiguous.
    pub(crate) fn check_inputs<'a>(&self, inputs: &'a [Buffer]) -> Result<Cow<'a, [Buffer]>> {
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

/// The ops that a step does the work of, with the types of their operands.
pub(crate) fn ops_of(program: &Program, step: usize) -> Vec<String> {
    let ops = program.steps[step].ops.iter().map(|&op| {
        let op = program.source.op(op);
        let types: Vec<_> = program.source.types_of(&op.operands).map(Type::to_string).collect();
        format!("{}({})", op.kind.name(), types.join(", "))
    });
    ops.collect()
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
