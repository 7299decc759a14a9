//! A loaded model: a program with its weights, ready to execute from any thread.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use max_compiler::Program;
use max_core::{DType, DeviceRef, Result, Type, bail};
use max_driver::cuda::nvtx;
use max_driver::{Buffer, Device};

use crate::capture::Captures;
use crate::observe::Observer;
use crate::profile::Profile;
use crate::run::{Config, Runtime, fits_kernels, is_aligned, overlap};
use crate::settings::{AssertLevel, LogLevel, ProfilingMode, Settings};

/// The name, sizes, dtype and device of one input or output of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// `input0`, `output1` and so on.
    pub name: String,
    /// The sizes, where they are static.
    pub shape: Vec<Option<i64>>,
    /// The type of the elements.
    pub dtype: DType,
    /// The device that it is on.
    pub device: DeviceRef,
    /// Whether it is a buffer that the model may write.
    pub mutable: bool,
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
    /// `loop`, `matmul`, `attention`, `conv2d`, `window`, `gather`, `print`, `transfer` or `collective`.
    pub kind: &'static str,
    /// The ops that it computes, with the types of their operands.
    pub ops: Vec<String>,
    /// Everything it does, as text.
    pub text: String,
}

/// The memory that a model takes in addition to inputs, weights and outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// The bytes of an execution's arenas, on all devices.
    pub peak_bytes: usize,
    /// The bytes of the arena on each device.
    pub peak_bytes_by_device: Vec<(DeviceRef, usize)>,
    /// The bytes that the same program would take if no temporary reused the memory of another.
    pub bytes_without_reuse: usize,
    /// The bytes of constants and weights that executions so far have packed for their kernels. Programs that use the
    /// same weights share the packed copies.
    pub packed_bytes: usize,
}

impl Model {
    pub(crate) fn new(
        program: Arc<Program>,
        weights: &[Buffer],
        devices: Vec<Device>,
        settings: Arc<Settings>,
        config: Config,
    ) -> Result<Model> {
        let inputs = specs("input", program.inputs.iter())?;
        let outputs = specs("output", program.outputs.iter())?;
        let (profiling, asserts) = (settings.profiling(), settings.assert_level());
        let profile = (profiling != ProfilingMode::Off)
            .then(|| Profile::new(&program, profiling == ProfilingMode::Detailed));
        Ok(Model {
            runtime: Runtime::new(program, weights, config)?,
            devices,
            inputs,
            outputs,
            asserts,
            settings,
            profile,
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

    /// The program that it runs.
    pub fn program(&self) -> &Program {
        &self.runtime.program
    }

    /// Its kernels, in the order in which they run; then those of its regions, under their names.
    pub fn kernel_summaries(&self) -> Vec<KernelSummary> {
        let mut summaries = Vec::new();
        for (number, program) in self.runtime.program.with_regions().into_iter().enumerate() {
            summaries.extend((0..program.steps.len()).map(|step| KernelSummary {
                name: match number {
                    0 => program.step_name(step),
                    _ => format!("{}: {}", program.source.name, program.step_name(step)),
                },
                kind: program.step_kind(step),
                ops: ops_of(program, step),
                text: program.step_text(step),
            }));
        }
        summaries
    }

    /// Whether and how it is profiled.
    pub fn profiling(&self) -> ProfilingMode {
        self.profiling
    }

    /// Where the time of executions went, with one line per kernel; an error unless the session was profiling when the
    /// model was loaded. Waits for pending work on devices.
    pub fn profile_table(&self) -> Result<String> {
        self.profile()?.table()
    }

    fn profile(&self) -> Result<&Profile> {
        match &self.profile {
            Some(profile) => Ok(profile),
            None => bail!(
                runtime,
                "model '{}' was loaded without profiling: call gpu_profiling(\"on\") on its session before load",
                self.name()
            ),
        }
    }

    /// A range that NVIDIA's profilers show, if the model is profiled.
    pub(crate) fn range(&self, what: &str) -> Option<nvtx::Range> {
        self.profile.as_ref().map(|_| nvtx::range(&format!("{what} {}", self.name())))
    }

    /// Writes every launch to a file for the trace viewers of Chrome and Perfetto.
    pub fn save_trace(&self, path: &Path) -> Result<()> {
        self.profile()?.save(&self.runtime.program, self.profiling == ProfilingMode::Detailed, path)
    }

    /// The memory that an execution with these inputs takes in addition to inputs, weights and outputs, as far as sizes
    /// do not depend on data.
    pub fn memory_report(&self, inputs: &[Buffer]) -> Result<MemoryReport> {
        let inputs = self.check_inputs(inputs)?;
        let ready = self.runtime.ready(&inputs)?;
        let (plan, needs) = (&ready.first.plan, &ready.first.needs);
        let devices = self.runtime.program.devices.iter().copied();
        Ok(MemoryReport {
            peak_bytes: needs.iter().map(|need| need.bytes).sum(),
            peak_bytes_by_device: devices.zip(needs.iter().map(|need| need.bytes)).collect(),
            bytes_without_reuse: plan.bytes_without_reuse,
            packed_bytes: self.runtime.packed_bytes(),
        })
    }

    /// Runs the model. Inputs that are not contiguous are copied first; outputs are new buffers from the pool. Results
    /// on an accelerator may still be pending when this returns: their buffers know the stream to wait for.
    pub fn execute(&self, inputs: &[Buffer]) -> Result<Vec<Buffer>> {
        self.execute_until(inputs, &|| Ok(()))
    }

    /// Like [`Model::execute`], and calls the checkpoint before each step; an error from it ends the execution.
    pub fn execute_until(
        &self,
        inputs: &[Buffer],
        checkpoint: &dyn Fn() -> Result<()>,
    ) -> Result<Vec<Buffer>> {
        let _range = self.range("execute");
        let checked = self.check_inputs(inputs)?;
        let outputs = self
            .runtime
            .run(&checked, &self.observer(checkpoint))
            .map_err(|e| e.context(format!("while executing model '{}'", self.name())))?;
        hold_streams(inputs)?;
        Ok(outputs)
    }

    /// What the model writes in place may not be another input too.
    fn check_shared(&self, inputs: &[Buffer]) -> Result<()> {
        for (at, (buffer, spec)) in
            inputs.iter().zip(&self.inputs).enumerate().filter(|(_, (_, spec))| spec.mutable)
        {
            let shared = |(number, other): &(usize, &Buffer)| *number != at && overlap(buffer, other);
            if let Some((other, _)) = inputs.iter().enumerate().find(shared) {
                bail!(
                    value,
                    "{} is written in place by the model, so it cannot share memory with {}",
                    spec.name,
                    self.inputs[other].name
                );
            }
        }
        Ok(())
    }

    /// Observes an execution in the way that the session asks for.
    pub(crate) fn observer<'a>(&'a self, checkpoint: &'a dyn Fn() -> Result<()>) -> Observer<'a> {
        Observer {
            checkpoint,
            settings: &self.settings,
            profile: self.profile.as_ref(),
            asserts: self.asserts,
            tracing: self.settings.log_level() == LogLevel::Trace,
        }
    }

    /// Inputs as the program takes them: checked for number, dtype and device, and contiguous. Those on accelerators
    /// are in the order of the default stream.
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
            if buffer.is_host() {
                buffer.stream().synchronize()?;
            }
            if spec.mutable {
                check_mutable(buffer, &spec.name)?;
            }
        }
        self.check_shared(inputs)?;
        if inputs.iter().all(|input| fits_kernels(input) && is_in_order(input)) {
            return Ok(Cow::Borrowed(inputs));
        }
        let prepared = inputs.iter().zip(&self.inputs).map(|(input, spec)| {
            let input = if is_in_order(input) {
                Cow::Borrowed(input)
            } else {
                Cow::Owned(input.to_stream(&input.device().default_stream())?)
            };
            if spec.mutable || fits_kernels(&input) { Ok(input.into_owned()) } else { input.contiguous() }
        });
        prepared.collect::<Result<Vec<_>>>().map(Cow::Owned)
    }
}

/// What a model writes in place cannot be copied first.
fn check_mutable(buffer: &Buffer, name: &str) -> Result<()> {
    let problem = match () {
        () if buffer.is_read_only() => "is read-only",
        () if !buffer.is_contiguous() => "is not contiguous",
        () if !is_aligned(buffer) => "is not aligned to 16 bytes",
        () => return Ok(()),
    };
    bail!(value, "{name} is written in place by the model, but {buffer:?} {problem}")
}

/// Whether a buffer is in the order of its device's default stream.
fn is_in_order(buffer: &Buffer) -> bool {
    buffer.is_host() || *buffer.stream() == buffer.device().default_stream()
}

/// Makes the inputs' own streams wait until the inputs have been read, because later work on these streams may
/// overwrite them.
pub(crate) fn hold_streams(inputs: &[Buffer]) -> Result<()> {
    let others = inputs.iter().filter(|input| !is_in_order(input));
    others.into_iter().try_for_each(|input| input.stream().wait_for(input.device()))
}

/// The ops that a step computes, with the types of their operands.
pub(crate) fn ops_of(program: &Program, step: usize) -> Vec<String> {
    let ops = program.steps[step].ops.iter().map(|&op| {
        let op = program.source.op(op);
        let types: Vec<_> = program.source.types_of(&op.operands).map(Type::to_string).collect();
        format!("{}({})", op.kind.title(), types.join(", "))
    });
    ops.collect()
}

fn specs<'a>(role: &str, types: impl Iterator<Item = &'a Type>) -> Result<Vec<TensorSpec>> {
    let specs = types.enumerate().map(|(i, ty)| {
        let name = format!("{role}{i}");
        match (ty.array(), ty.device()) {
            (Some((dtype, shape)), Some(device)) => {
                let shape = shape.iter().map(|dim| dim.as_static()).collect();
                Ok(TensorSpec { name, shape, dtype, device, mutable: matches!(ty, Type::Buffer(_)) })
            }
            _ => bail!(
                not_implemented,
                "{name} has the type {ty}, which models can neither take nor return yet"
            ),
        }
    });
    specs.collect()
}
