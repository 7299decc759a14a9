//! Steps that run custom ops: functions on the buffers of their slots, or kernels of a GPU like any other.

use std::collections::HashMap;

use max_compiler::Shapes;
use max_compiler::program::{self, CustomCall, Step, Work};
use max_core::kernel::Slot;
use max_core::{BufferType, Error, Result, Shape, Type, bail};
use max_driver::Buffer;
use max_graph::ops::custom::Custom;
use max_kernels::custom::{self, Implementation};

use super::launch::Launch;
use super::state::Running;
use super::storage::Table;
use super::{Runtime, Segment};

/// The custom ops of a segment that are kernels of a GPU, with their memory, by step.
pub(super) type Customs = HashMap<usize, (Launch, program::Launch)>;

impl Runtime {
    /// The custom op of a step, and what it runs.
    fn custom_op(&self, step: usize) -> Result<(&Custom, &Implementation)> {
        let Some(custom) = self.program.custom(step) else {
            bail!(internal, "step {step} is not a custom op")
        };
        match custom.op.implementation().and_then(|implementation| implementation.downcast_ref()) {
            Some(implementation) => Ok((custom, implementation)),
            None => {
                bail!(not_implemented, "the implementation of {:?} is not one that models can run", custom.op)
            }
        }
    }

    /// Prepares the custom ops of a segment that are kernels of a GPU.
    pub(super) fn prepare_customs(&self, segment: usize, shapes: &Shapes) -> Result<Customs> {
        let mut customs = Customs::new();
        for step in self.program.segments[segment].steps.clone() {
            let Work::Custom(CustomCall { operands, results, .. }) = &self.program.steps[step].work else {
                continue;
            };
            let (custom, implementation) = self.custom_op(step)?;
            let Implementation::Cuda(source) = implementation else { continue };
            let types = |slots: &[Slot], types: &mut dyn Iterator<Item = &Type>| -> Result<Vec<Type>> {
                let known = slots.iter().zip(types).map(|(slot, ty)| match shapes.get(slot.0 as usize) {
                    Some(sizes) => Ok(with_shape(ty, sizes.iter().copied().collect())),
                    None => bail!(internal, "slot {} has no size", slot.0),
                });
                known.collect()
            };
            let mut prepare = || {
                let op = self.program.source.op(self.program.steps[step].ops[0]);
                let operand_types = types(operands, &mut self.program.source.types_of(&op.operands))?;
                let result_types = types(results, &mut custom.types.iter())?;
                let number = self.program.device_number(custom.device);
                let kernel = source.prepare(
                    &operand_types,
                    &result_types,
                    &custom.parameters,
                    &self.devices[number],
                )?;
                let slots = operands.iter().chain(results).copied().collect();
                customs.insert(
                    step,
                    (Launch::Gpu(number, kernel), program::Launch { kernel: usize::MAX, slots }),
                );
                Ok(())
            };
            prepare().map_err(|error| self.blame(step, failed(custom, error)))?;
        }
        Ok(customs)
    }

    /// An error if a custom op of it or of its regions cannot be captured: only kernels of a GPU can.
    pub(super) fn check_captures(&self) -> Result<()> {
        for (step, Step { work, .. }) in self.program.steps.iter().enumerate() {
            if let Work::Custom(_) = work
                && let (custom, Implementation::Function(_)) = self.custom_op(step)?
            {
                bail!(
                    runtime,
                    "model '{}' calls {:?} while it runs, so it cannot be captured: only custom ops in CUDA C++ can",
                    self.program.source.name,
                    custom.op
                );
            }
        }
        self.regions.iter().try_for_each(|region| region.check_captures())
    }

    /// Runs a custom op: enqueues its kernel, or calls its function with buffers.
    pub(super) fn custom(
        &self,
        running: Running,
        table: &mut Table,
        step: usize,
        call: &CustomCall,
    ) -> Result<()> {
        if let Some((kernel, launch)) = running.segment.customs.get(&step) {
            return kernel.run(launch, table, self);
        }
        let (custom, implementation) = self.custom_op(step)?;
        let Implementation::Function(function) = implementation else {
            bail!(internal, "{:?} was not prepared", custom.op);
        };
        let source = &self.program.source;
        let types = source.types_of(&source.op(self.program.steps[step].ops[0]).operands);
        let mutable: Vec<bool> = types.map(|ty| matches!(ty, Type::Buffer(_))).collect();
        let read = call.operands.iter().zip(&mutable).map(|(slot, mutable)| {
            let buffer = self.buffer(running, table, *slot)?;
            if *mutable || is_aligned(&buffer) { Ok(buffer) } else { buffer.copy(None) }
        });
        let operands = read.collect::<Result<Vec<_>>>()?;
        let results = call.results.iter().map(|slot| self.buffer(running, table, *slot));
        let results = results.collect::<Result<Vec<_>>>()?;
        let work = custom::Work {
            operands: &operands,
            mutable: &mutable,
            results: &results,
            parameters: &custom.parameters,
        };
        function.execute(&work).map_err(|error| failed(custom, error))
    }
}

impl Segment {
    /// The kernel that a step launches, and its memory; `None` for steps that launch none.
    pub(super) fn launch<'a: 'b, 'b>(
        &'a self,
        step: usize,
        work: &'b Work,
    ) -> Result<Option<(&'a Launch, &'b program::Launch)>> {
        match work {
            Work::Kernel(launch) => Ok(Some((self.kernel(launch)?, launch))),
            Work::Custom(_) => Ok(self.customs.get(&step).map(|(kernel, launch)| (kernel, launch))),
            Work::Print(..) | Work::Transfer { .. } | Work::Collective { .. } | Work::Nested(_) => Ok(None),
        }
    }
}

/// Whether the elements can be read where they are: views of bytes start anywhere.
fn is_aligned(buffer: &Buffer) -> bool {
    buffer.data_ptr().addr().is_multiple_of(buffer.element_size())
}

/// An error of a custom op.
fn failed(custom: &Custom, error: Error) -> Error {
    error.prefixed(&format!("custom op '{}' of {} failed: ", custom.op.name(), custom.op.library()))
}

/// A type with known sizes.
fn with_shape(ty: &Type, shape: Shape) -> Type {
    match ty {
        Type::Tensor(tensor) => tensor.with_shape(shape).into(),
        Type::Buffer(buffer) => BufferType { shape, ..buffer.clone() }.into(),
        Type::Opaque(_) => ty.clone(),
    }
}
