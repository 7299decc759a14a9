//! One execution: the memory of its slots, and what a step may look at.

use std::collections::HashMap;

use max_compiler::Data;
use max_compiler::program::Origin;
use max_core::kernel::{Access, Slot};
use max_core::{Bindings, DType, HostBytes, Result, Strided, ViewIndex, bail};
use max_driver::{Buffer, Device};
use max_graph::op::Run;
use max_graph::{HostTensor, OpKind};
use max_kernels::Memory;

use super::launch::Table;
use super::{Runtime, Segment};
use crate::observe::{Observer, first_not_finite};

/// What an execution works with, kept for the next.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// By slot.
    pub(super) memory: Vec<Memory>,
    /// Those of the first segment, one a device, then those of the second, and so on.
    pub(super) arenas: Vec<Option<Buffer>>,
    /// The arenas of the current segment, by device.
    whole: Vec<Memory>,
    /// What its kernels have for themselves, by device.
    kernels: Vec<Memory>,
}

impl Scratch {
    /// The memory as launches see it.
    pub(super) fn table(&self) -> Table<'_> {
        Table { memory: &self.memory, scratch: &self.kernels }
    }
}

/// Where a temporary lies: the segment whose arena it is in, and the offset there.
type Place = (usize, usize);

/// The outputs of an execution as they come about, and what else a step may look at.
pub(super) struct State<'a> {
    pub(super) runtime: &'a Runtime,
    pub(super) inputs: &'a [Buffer],
    pub(super) outputs: Vec<Option<Buffer>>,
    pub(super) scratch: Scratch,
    /// Where temporaries lie.
    pub(super) places: Vec<Option<Place>>,
    pub(super) shapes: Vec<Option<Vec<usize>>>,
    /// Which slots hold values that are not finite, where that is watched.
    known_not_finite: HashMap<Slot, bool>,
}

impl<'a> State<'a> {
    pub(super) fn new(runtime: &'a Runtime, inputs: &'a [Buffer], scratch: Scratch) -> State<'a> {
        State {
            runtime,
            inputs,
            outputs: vec![None; runtime.program.outputs.len()],
            scratch,
            places: Vec::new(),
            shapes: Vec::new(),
            known_not_finite: HashMap::new(),
        }
    }

    /// Allocates what a segment needs and fills in the table of memory.
    pub(super) fn enter(&mut self, number: usize, segment: &Segment) -> Result<()> {
        let program = &self.runtime.program;
        let devices = &self.runtime.devices;
        let Scratch { memory, arenas, whole, kernels } = &mut self.scratch;
        let first = number * devices.len();
        arenas.resize(arenas.len().max(first + devices.len()), None);
        whole.clear();
        kernels.clear();
        for ((need, device), arena) in segment.needs.iter().zip(devices).zip(&mut arenas[first..]) {
            let all = match arena {
                _ if need.bytes == 0 => Memory::EMPTY,
                Some(arena) if arena.num_bytes() >= need.bytes => Memory::of_mut(arena)?,
                _ => {
                    *arena = None;
                    let new = Buffer::uninit_pooled(DType::UInt8, &[need.bytes], device)?;
                    Memory::of_mut(arena.insert(new))?
                }
            };
            whole.push(all);
            kernels.push(all.part(need.scratch_at, need.bytes - need.scratch_at)?);
        }
        for (slot, shape) in segment.shapes.iter().enumerate() {
            let Some(shape) = shape else { continue };
            let info = &program.slots[slot];
            match info.origin {
                Origin::Input(input) => memory[slot] = Memory::of(&self.inputs[input])?,
                Origin::Output(output) => {
                    let buffer = match &self.outputs[output] {
                        Some(buffer) => buffer,
                        None => {
                            let shape = segment.outputs[output].as_ref().unwrap_or(shape);
                            let device = &devices[program.device_number(info.device)];
                            let buffer = Buffer::uninit_pooled(info.dtype, shape, device)?;
                            self.outputs[output].insert(buffer)
                        }
                    };
                    memory[slot] = Memory::of_mut(buffer)?;
                }
                Origin::Temporary(_) => {
                    if let Some(offset) = segment.plan.offsets[slot] {
                        let bytes = shape.iter().product::<usize>() * info.dtype.size_in_bytes();
                        let arena = whole[program.device_number(info.device)];
                        memory[slot] = if bytes == 0 { Memory::EMPTY } else { arena.part(offset, bytes)? };
                    }
                }
                Origin::Constant(_) | Origin::Weight(_) => {}
            }
        }
        Ok(())
    }

    /// The elements of a slot, as they are now.
    fn tensor(&self, slot: usize, place: Option<Place>, shape: &[usize]) -> Result<HostTensor> {
        let info = &self.runtime.program.slots[slot];
        let none = || HostBytes::new([0u8; 0]);
        if !self.runtime.devices[self.runtime.program.device_number(info.device)].is_host() {
            let bytes = self.buffer(slot, place, shape)?.to(&Device::cpu())?.host_bytes()?;
            return HostTensor::new(info.dtype, shape, bytes);
        }
        let bytes = match &info.origin {
            Origin::Input(input) => self.inputs[*input].host_bytes()?,
            Origin::Constant(_) | Origin::Weight(_) => {
                self.runtime.fixed.bytes(Slot(slot as u32)).cloned().unwrap_or_else(none)
            }
            Origin::Output(output) => match &self.outputs[*output] {
                Some(buffer) => buffer.host_bytes()?,
                None => none(),
            },
            Origin::Temporary(_) => {
                let len = shape.iter().product::<usize>() * info.dtype.size_in_bytes();
                match (self.arena(slot, place), place) {
                    (Some(arena), Some((_, offset))) if len > 0 => {
                        arena.host_bytes()?.slice(offset, len).unwrap_or_else(none)
                    }
                    _ => none(),
                }
            }
        };
        HostTensor::new(info.dtype, shape, bytes)
    }

    /// The arena that a temporary lies in.
    fn arena(&self, slot: usize, place: Option<Place>) -> Option<&Buffer> {
        let Runtime { program, devices, .. } = self.runtime;
        let (segment, _) = place?;
        let number = segment * devices.len() + program.device_number(program.slots[slot].device);
        self.scratch.arenas.get(number)?.as_ref()
    }

    /// The memory of a slot as a buffer.
    fn buffer(&self, slot: usize, place: Option<Place>, shape: &[usize]) -> Result<Buffer> {
        let (program, info) = (&self.runtime.program, &self.runtime.program.slots[slot]);
        let device = &self.runtime.devices[program.device_number(info.device)];
        let found = match &info.origin {
            Origin::Input(input) => Some(self.inputs[*input].clone()),
            Origin::Output(output) => self.outputs[*output].clone(),
            Origin::Constant(_) | Origin::Weight(_) => match self.runtime.fixed.bytes(Slot(slot as u32)) {
                Some(bytes) => Some(Buffer::from_host_bytes(bytes.clone(), info.dtype, shape)?),
                None => self.runtime.fixed.buffer(slot).cloned(),
            },
            Origin::Temporary(_) => match (self.arena(slot, place), place) {
                (Some(arena), Some((_, offset))) => {
                    let bytes = shape.iter().product::<usize>() * info.dtype.size_in_bytes();
                    let (start, stop) = (Some(offset as i64), Some((offset + bytes) as i64));
                    let part = arena.index(&[ViewIndex::Slice { start, stop, step: 1 }])?;
                    Some(part.view(info.dtype, Some(shape))?)
                }
                // A temporary without elements may have no arena.
                _ if shape.contains(&0) => Some(Buffer::uninit_pooled(info.dtype, shape, device)?),
                _ => None,
            },
        };
        match found {
            Some(buffer) => Ok(buffer),
            None => bail!(internal, "slot {slot} has no memory"),
        }
    }

    /// Copies a slot to another device. The host waits for what it is sent; devices wait for each other by themselves, also
    /// before they overwrite what is being copied.
    pub(super) fn transfer(&self, segment: &Segment, from: Slot, to: Slot) -> Result<()> {
        let [from, to] = [from, to].map(|slot| {
            let (shape, place) = self.place(segment, slot.0 as usize)?;
            self.buffer(slot.0 as usize, place, shape)
        });
        let (from, to) = (from?, to?);
        to.inplace_copy_from(&from)?;
        // Pageable memory has been read when the call returns. Page-locked memory may not, and arrays of other libraries
        // over it do not wait for that.
        if from.pinned() { to.stream().synchronize() } else { Ok(()) }
    }

    /// The sizes of a slot that a segment uses, and where it is if it is a temporary, in the middle of running it.
    fn place<'s>(&'s self, segment: &'s Segment, slot: usize) -> Result<(&'s [usize], Option<Place>)> {
        let program = &self.runtime.program;
        let shape = segment.shapes[slot].as_deref().or(self.shapes.get(slot).and_then(|s| s.as_deref()));
        let Some(shape) = shape else { bail!(internal, "slot {slot} has no size") };
        let place = match segment.plan.offsets[slot] {
            Some(offset) => {
                let current = program.segments.iter().position(|s| match &program.slots[slot].origin {
                    Origin::Temporary(lifetime) => s.steps.contains(&lifetime.first),
                    _ => false,
                });
                current.map(|number| (number, offset))
            }
            None => self.places.get(slot).copied().flatten(),
        };
        Ok((shape, place))
    }

    /// A slot that a segment uses, in the middle of running it.
    fn tensor_in(&self, segment: &Segment, slot: usize) -> Result<HostTensor> {
        let (shape, place) = self.place(segment, slot)?;
        self.tensor(slot, place, shape)
    }

    pub(super) fn print(&self, segment: &Segment, label: &str, slot: Option<Slot>) -> Result<()> {
        let tensors = slot.iter().map(|slot| self.tensor_in(segment, slot.0 as usize));
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let print = OpKind::from(max_graph::ops::print::Print { label: label.into() });
        print.eval(&tensors, &Run { bindings: &Bindings::new(), environment: &() }).map(|_| ())
    }

    /// Looks for values that are not finite in what a step wrote, unless it read some.
    pub(super) fn check_values(&mut self, segment: &Segment, step: usize, observer: &Observer) -> Result<()> {
        let program = &self.runtime.program;
        let mut known = self.runtime.has_literals_not_finite(step);
        for slot in program.steps[step].reads() {
            known |= self.not_finite(segment, slot)?;
        }
        for slot in program.steps[step].writes() {
            let tensor = self.tensor_in(segment, slot.0 as usize)?;
            let found = first_not_finite(&tensor)?;
            self.known_not_finite.insert(slot, found.is_some());
            if let (Some(found), false) = (found, known) {
                observer.not_finite(program, step, &tensor, found)?;
            }
        }
        Ok(())
    }

    /// Whether a slot holds a value that is not finite.
    fn not_finite(&mut self, segment: &Segment, slot: Slot) -> Result<bool> {
        if let Some(&known) = self.known_not_finite.get(&slot) {
            return Ok(known);
        }
        let found = first_not_finite(&self.tensor_in(segment, slot.0 as usize)?)?.is_some();
        self.known_not_finite.insert(slot, found);
        Ok(found)
    }
}

impl Data for State<'_> {
    fn weight_sizes(&self, weight: usize) -> Result<&[usize]> {
        Ok(self.runtime.fixed.weight_sizes(weight))
    }

    fn integers(&self, access: &Access<i64>, count: usize) -> Result<Vec<i64>> {
        let slot = access.slot.0 as usize;
        let Some(shape) = self.shape_of(slot)? else { bail!(internal, "slot {slot} has no size") };
        let tensor = self.tensor(slot, self.places[slot], &shape)?;
        let (shape, strides) = match access.strides.as_slice() {
            [] => (vec![], vec![]),
            [stride] => (vec![count], vec![*stride as isize]),
            _ => bail!(internal, "sizes are read from a matrix"),
        };
        tensor.gathered(&Strided { shape, strides, offset: access.offset as usize })?.to_integers()
    }
}

impl State<'_> {
    /// The sizes of a slot that has been used, or that needs nothing to be used.
    fn shape_of(&self, slot: usize) -> Result<Option<Vec<usize>>> {
        match &self.runtime.program.slots[slot].origin {
            Origin::Input(input) => Ok(Some(self.inputs[*input].shape().to_vec())),
            Origin::Weight(weight) => Ok(Some(self.runtime.fixed.weight_sizes(*weight).to_vec())),
            Origin::Constant(_) => {
                self.runtime.program.slots[slot].shape.evaluate(&Bindings::new()).map(Some)
            }
            _ => Ok(self.shapes[slot].clone()),
        }
    }
}
