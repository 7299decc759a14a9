//! One execution, and what its steps may look at while it runs.

use std::collections::HashMap;

use max_compiler::Data;
use max_compiler::program::Origin;
use max_core::kernel::{Access, Slot};
use max_core::{Bindings, Collective, Result, Strided, bail};
use max_driver::{Buffer, Device, cuda};
use max_graph::op::Run;
use max_graph::{HostTensor, OpKind};

use super::storage::{Given, Spot, Storage, Table};
use super::{Runtime, Segment};
use crate::observe::{Observer, first_not_finite};

/// An execution.
pub(super) struct State<'a> {
    runtime: &'a Runtime,
    pub(super) given: Given<'a, 'a>,
    pub(super) storage: Storage,
}

/// A segment that is being run.
#[derive(Clone, Copy)]
pub(super) struct Running<'a> {
    pub(super) number: usize,
    pub(super) segment: &'a Segment,
    /// The sizes of all symbols that are known.
    pub(super) bindings: &'a Bindings,
}

/// Which slots hold infinities or NaNs, where that is watched.
pub(super) type NotFinite = HashMap<Slot, bool>;

impl<'a> State<'a> {
    pub(super) fn new(runtime: &'a Runtime, given: Given<'a, 'a>, storage: Storage) -> State<'a> {
        State { runtime, given, storage }
    }

    /// The elements of a slot at this moment.
    fn tensor(&self, slot: usize, spot: Option<Spot>, shape: &[usize]) -> Result<HostTensor> {
        let buffer = self.buffer(slot, spot, shape)?;
        HostTensor::new(buffer.dtype(), shape, buffer.to(&Device::cpu())?.host_bytes()?)
    }

    /// The memory of a slot as a buffer.
    fn buffer(&self, slot: usize, spot: Option<Spot>, shape: &[usize]) -> Result<Buffer> {
        let (program, info) = (&self.runtime.program, &self.runtime.program.slots[slot]);
        let device = &self.runtime.devices[program.device_number(info.device)];
        let found = match &info.origin {
            Origin::Input(input) => Some(self.given.buffer(*input, info.dtype)?),
            Origin::Output(output) => match self.given.output(*output) {
                Some(memory) => Some(memory.buffer(info.dtype, shape)?),
                None => self.storage.outputs[*output].clone(),
            },
            Origin::Constant(_) | Origin::Weight(_) => match self.runtime.fixed.bytes(Slot(slot as u32)) {
                Some(bytes) => Some(Buffer::from_host_bytes(bytes.clone(), info.dtype, shape)?),
                None => self.runtime.fixed.buffer(slot).cloned(),
            },
            // A temporary without elements may have no memory.
            Origin::Temporary(_) if shape.contains(&0) => {
                Some(Buffer::uninit_pooled(info.dtype, shape, device)?)
            }
            Origin::Temporary(_) => match spot {
                Some((segment, offset)) => {
                    let arena = self.storage.arena(self.runtime, segment, slot)?;
                    arena.buffer(slot, offset, info.dtype, shape)?
                }
                None => None,
            },
        };
        match found {
            Some(buffer) => Ok(buffer),
            None => bail!(internal, "slot {slot} has no memory"),
        }
    }
}

/// What steps do besides launching kernels.
impl Runtime {
    /// The memory of a slot that a segment uses, as a buffer.
    pub(super) fn buffer(&self, running: Running, table: &Table, slot: Slot) -> Result<Buffer> {
        let info = &self.program.slots[slot.0 as usize];
        let shape = running.segment.shape(slot)?;
        // What has no elements may have no memory.
        if shape.contains(&0) {
            let device = &self.devices[self.program.device_number(info.device)];
            return Buffer::uninit_pooled(info.dtype, shape, device);
        }
        table.slot(slot).buffer(info.dtype, shape)
    }

    /// The elements of a slot at this moment.
    fn tensor(&self, running: Running, table: &Table, slot: Slot) -> Result<HostTensor> {
        let buffer = self.buffer(running, table, slot)?;
        HostTensor::new(buffer.dtype(), buffer.shape(), buffer.to(&Device::cpu())?.host_bytes()?)
    }

    /// Copies a slot to another device. The host waits for what is sent to it; devices wait for each other by
    /// themselves, also before they overwrite what is being copied.
    pub(super) fn transfer(&self, running: Running, table: &Table, from: Slot, to: Slot) -> Result<()> {
        let (from, to) = (self.buffer(running, table, from)?, self.buffer(running, table, to)?);
        to.inplace_copy_from(&from)?;
        // Pageable memory has been read when the call returns. Page-locked memory may not have been, and arrays of
        // other libraries over it do not wait for the copy.
        if from.pinned() { to.stream().synchronize() } else { Ok(()) }
    }

    /// Enqueues a collective of GPUs, which wait for each other by themselves.
    pub(super) fn collective(
        &self,
        running: Running,
        table: &Table,
        kind: Collective,
        from: &[Slot],
        to: &[Slot],
    ) -> Result<()> {
        let buffers = |slots: &[Slot]| {
            slots.iter().map(|&slot| self.buffer(running, table, slot)).collect::<Result<Vec<_>>>()
        };
        cuda::collective(kind, &buffers(from)?, &buffers(to)?)
    }

    pub(super) fn print(
        &self,
        running: Running,
        table: &Table,
        label: &str,
        slot: Option<Slot>,
    ) -> Result<()> {
        let tensors = slot.into_iter().map(|slot| self.tensor(running, table, slot));
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let print = OpKind::from(max_graph::ops::print::Print { label: label.into() });
        print.eval(&tensors, &Run { bindings: &Bindings::new(), environment: &() }).map(|_| ())
    }

    /// Looks for infinities and NaNs in what a step wrote, unless it also read some.
    pub(super) fn check_values(
        &self,
        running: Running,
        table: &Table,
        step: usize,
        known: &mut NotFinite,
        observer: &Observer,
    ) -> Result<()> {
        let program = &self.program;
        let mut expected = self.has_literals_not_finite(step);
        for slot in program.steps[step].reads.iter().copied() {
            expected |= match known.get(&slot) {
                Some(&known) => known,
                None => {
                    let found = first_not_finite(&self.tensor(running, table, slot)?)?.is_some();
                    *known.entry(slot).or_insert(found)
                }
            };
        }
        for slot in program.steps[step].writes.iter().copied() {
            let tensor = self.tensor(running, table, slot)?;
            let found = first_not_finite(&tensor)?;
            known.insert(slot, found.is_some());
            if let (Some(found), false) = (found, expected) {
                observer.not_finite(program, step, &tensor, found)?;
            }
        }
        Ok(())
    }
}

impl Data for State<'_> {
    fn weight_sizes(&self, weight: usize) -> Result<&[usize]> {
        Ok(self.runtime.fixed.weight_sizes(weight))
    }

    fn integers(&self, access: &Access<i64>, count: usize) -> Result<Vec<i64>> {
        let slot = access.slot.0 as usize;
        let Some(shape) = self.shape_of(slot)? else { bail!(internal, "slot {slot} has no size") };
        let tensor = self.tensor(slot, self.storage.spots[slot], &shape)?;
        let (shape, strides) = match access.strides.as_slice() {
            [] => (vec![], vec![]),
            [stride] => (vec![count], vec![*stride as isize]),
            _ => bail!(internal, "sizes are read from a matrix"),
        };
        tensor.gathered(&Strided { shape, strides, offset: access.offset as usize })?.to_integers()
    }
}

impl State<'_> {
    /// The sizes of a slot that has been used already, or that can be used at any time.
    fn shape_of(&self, slot: usize) -> Result<Option<Vec<usize>>> {
        match &self.runtime.program.slots[slot].origin {
            Origin::Input(input) => Ok(Some(self.given.shape(*input).to_vec())),
            Origin::Weight(weight) => Ok(Some(self.runtime.fixed.weight_sizes(*weight).to_vec())),
            Origin::Constant(_) => {
                self.runtime.program.slots[slot].shape.evaluate(&Bindings::new()).map(Some)
            }
            _ => Ok(self.storage.shapes[slot].clone()),
        }
    }
}
