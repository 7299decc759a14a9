//! The memory of one execution: arenas of temporaries, outputs, and the table of memory that kernels are given.

use std::collections::HashMap;

use max_compiler::program::{Launch, Origin};
use max_core::kernel::Slot;
use max_core::{DType, Result, Type, ViewIndex, bail};
use max_driver::guard::guard;
use max_driver::{Buffer, Device};
use max_kernels::Memory;

use super::launch::Need;
use super::{Runtime, Segment};

/// Where a temporary lies: the segment whose arena it is in, and its offset there.
pub(super) type Spot = (usize, usize);

/// The memory of an execution, kept for the next one: see the module.
#[derive(Debug, Default)]
pub(crate) struct Storage {
    /// Those of the first segment, one per device, then those of the second, and so on.
    pub(super) arenas: Vec<Arena>,
    /// Empty vectors, whose allocations the next table reuses.
    room: Room,
    /// Outputs that the execution allocates.
    pub(super) outputs: Vec<Option<Buffer>>,
    /// That of the regions of the program.
    pub(super) regions: Vec<Storage>,
    /// Where the temporaries of finished segments lie, and the sizes of their slots; empty if there is only one
    /// segment.
    pub(super) spots: Vec<Option<Spot>>,
    pub(super) shapes: Vec<Option<Vec<usize>>>,
}

/// What an execution is given: by the caller of a model, or by the program whose region it runs.
#[derive(Clone, Copy)]
pub(super) enum Given<'s, 'a> {
    /// Its inputs.
    Buffers(&'a [Buffer]),
    /// Its inputs with their sizes, and the memory of its outputs.
    Memory { inputs: &'s [Memory<'a>], shapes: &'s [&'s [usize]], outputs: &'s [Memory<'a>] },
}

impl<'s, 'a: 's> Given<'s, 'a> {
    /// The memory of an input, which may be written if it is a buffer.
    pub(super) fn input(self, input: usize, ty: &Type) -> Result<Memory<'a>> {
        match (self, ty) {
            (Given::Buffers(inputs), Type::Buffer(_)) => Memory::of_mut(&inputs[input]),
            (Given::Buffers(inputs), _) => Memory::of(&inputs[input]),
            (Given::Memory { inputs, .. }, _) => Ok(inputs[input]),
        }
    }

    /// An input as a buffer.
    pub(super) fn buffer(self, input: usize, dtype: DType) -> Result<Buffer> {
        match self {
            Given::Buffers(inputs) => Ok(inputs[input].clone()),
            Given::Memory { inputs, shapes, .. } => inputs[input].buffer(dtype, shapes[input]),
        }
    }

    /// The sizes of an input.
    pub(super) fn shape(self, input: usize) -> &'s [usize] {
        match self {
            Given::Buffers(inputs) => inputs[input].shape(),
            Given::Memory { shapes, .. } => shapes[input],
        }
    }

    /// The memory of an output, if it is given.
    pub(super) fn output(self, output: usize) -> Option<Memory<'a>> {
        match self {
            Given::Buffers(_) => None,
            Given::Memory { outputs, .. } => Some(outputs[output]),
        }
    }
}

/// The allocations of a table.
pub(super) type Room = [Vec<Memory<'static>>; 2];

/// The memory of a segment as kernels see it.
pub(super) struct Table<'a> {
    /// By slot.
    memory: Vec<Memory<'a>>,
    /// That of the last launch, by slot of its kernel.
    given: Vec<Memory<'a>>,
    arenas: &'a [Arena],
    needs: &'a [Need],
}

impl<'a> Table<'a> {
    /// The memory of a slot.
    pub(super) fn slot(&self, slot: Slot) -> Memory<'a> {
        self.memory[slot.0 as usize]
    }

    /// The memory of a launch, by slot of its kernel.
    pub(super) fn of(&mut self, launch: &Launch) -> &[Memory<'a>] {
        self.given.clear();
        self.given.extend(launch.slots.iter().map(|slot| self.memory[slot.0 as usize]));
        &self.given
    }

    /// The scratch memory of a device's kernels.
    pub(super) fn scratch(&self, device: usize) -> Result<Memory<'a>> {
        let Need { bytes, scratch_at } = self.needs[device];
        self.arenas[device].whole()?.part(scratch_at, bytes - scratch_at)
    }

    /// Its allocations, for reuse.
    pub(super) fn into_room(self) -> Room {
        [recycled(self.memory), recycled(self.given)]
    }
}

/// An empty vector that reuses the allocation of another.
fn recycled<'b>(mut used: Vec<Memory<'_>>) -> Vec<Memory<'b>> {
    used.clear();
    used.into_iter().map(|_| Memory::EMPTY).collect()
}

impl Storage {
    /// Allocates what a segment needs beyond what it is given.
    pub(super) fn reserve(
        &mut self,
        runtime: &Runtime,
        given: Given,
        number: usize,
        segment: &Segment,
    ) -> Result<()> {
        let Runtime { program, devices, .. } = runtime;
        self.outputs.resize(program.outputs.len(), None);
        self.regions.resize_with(program.regions.len(), Storage::default);
        let (arenas, first) = (&mut self.arenas, number * devices.len());
        if arenas.len() < first + devices.len() {
            arenas.resize_with(first + devices.len(), Arena::default);
        }
        for ((need, device), arena) in segment.needs.iter().zip(devices).zip(&mut arenas[first..]) {
            arena.reserve(need.bytes, device)?;
        }
        for (slot, shape) in segment.shapes.iter().enumerate() {
            let (Some(shape), info) = (shape, &program.slots[slot]) else { continue };
            let home = program.device_number(info.device);
            match &info.origin {
                Origin::Output(output)
                    if self.outputs[*output].is_none() && given.output(*output).is_none() =>
                {
                    let shape = segment.outputs[*output].as_deref().unwrap_or(shape);
                    let buffer = Buffer::uninit_pooled(info.dtype, shape, &devices[home])?;
                    self.outputs[*output] = Some(buffer);
                }
                Origin::Temporary(lifetime) if guard().is_some() && devices[home].runs_on_host() => {
                    let offset = segment.plan.offsets[slot];
                    let heir_of = lifetime.reuses.map(|from| from.0 as usize);
                    let heir_of = heir_of.filter(|&from| segment.plan.offsets[from] == offset);
                    if offset.is_some() {
                        arenas[first + home].set_apart(slot, heir_of, info.dtype, shape, &devices[home])?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The memory of a segment that has been reserved.
    pub(super) fn table<'a>(
        &'a self,
        runtime: &'a Runtime,
        given: Given<'_, 'a>,
        number: usize,
        segment: &'a Segment,
        room: Room,
    ) -> Result<Table<'a>> {
        let Runtime { program, devices, .. } = runtime;
        let [mut memory, launched] = room.map(recycled);
        for (slot, (shape, info)) in segment.shapes.iter().zip(&program.slots).enumerate() {
            let Some(shape) = shape else {
                memory.push(Memory::EMPTY);
                continue;
            };
            memory.push(match &info.origin {
                Origin::Input(input) => given.input(*input, &program.inputs[*input])?,
                Origin::Output(output) => match (given.output(*output), &self.outputs[*output]) {
                    (Some(memory), _) => memory,
                    (None, Some(buffer)) => Memory::of_mut(buffer)?,
                    (None, None) => bail!(internal, "output {output} has no memory"),
                },
                Origin::Temporary(_) => {
                    let bytes = shape.iter().product::<usize>() * info.dtype.size_in_bytes();
                    match self.spot(number, segment, slot) {
                        Some((segment, offset)) => {
                            self.arena(runtime, segment, slot)?.memory(slot, offset, bytes)?
                        }
                        None => bail!(internal, "slot {slot} has no memory"),
                    }
                }
                Origin::Constant(_) | Origin::Weight(_) => runtime.fixed.memory(slot)?,
            });
        }
        let arenas = &self.arenas[number * devices.len()..][..devices.len()];
        Ok(Table { memory, given: launched, arenas, needs: &segment.needs })
    }

    /// The allocations of the last table.
    pub(super) fn take_room(&mut self) -> Room {
        std::mem::take(&mut self.room)
    }

    /// Keeps the allocations for the next table.
    pub(super) fn keep_room(&mut self, room: Room) {
        self.room = room;
    }

    /// Where a temporary that a segment uses lies.
    pub(super) fn spot(&self, number: usize, segment: &Segment, slot: usize) -> Option<Spot> {
        match segment.plan.offsets[slot] {
            Some(offset) => Some((number, offset)),
            None => self.spots.get(slot).copied().flatten(),
        }
    }

    /// The arena of a segment that holds a temporary.
    pub(super) fn arena(&self, runtime: &Runtime, segment: usize, slot: usize) -> Result<&Arena> {
        let Runtime { program, devices, .. } = runtime;
        let number = segment * devices.len() + program.device_number(program.slots[slot].device);
        match self.arenas.get(number) {
            Some(arena) => Ok(arena),
            None => bail!(internal, "there is no arena {number}"),
        }
    }
}

/// The memory of the temporaries of a segment on one device.
#[derive(Debug, Default)]
pub(super) struct Arena {
    /// All of them, followed by the scratch memory of the kernels.
    whole: Option<Buffer>,
    /// If memory is guarded, each temporary in a buffer of its own instead, by slot.
    apart: HashMap<usize, Buffer>,
}

impl Arena {
    fn reserve(&mut self, bytes: usize, device: &Device) -> Result<()> {
        self.apart.clear();
        if bytes > self.bytes() {
            // What grows once grows again: a little more each time would be new memory each time.
            let room = if self.whole.is_some() { bytes.saturating_add(bytes / 2) } else { bytes };
            self.whole = None;
            let allocate = |bytes: usize| Buffer::uninit_pooled(DType::UInt8, &[bytes], device);
            self.whole = Some(allocate(room).or_else(|_| allocate(bytes))?);
        }
        Ok(())
    }

    /// Gives a temporary its own memory, or that of the temporary that it replaces.
    fn set_apart(
        &mut self,
        slot: usize,
        heir_of: Option<usize>,
        dtype: DType,
        shape: &[usize],
        device: &Device,
    ) -> Result<()> {
        let buffer = match heir_of.and_then(|from| self.apart.get(&from)) {
            Some(buffer) => buffer.view(dtype, Some(shape))?,
            None => Buffer::uninit_pooled(dtype, shape, device)?,
        };
        self.apart.insert(slot, buffer);
        Ok(())
    }

    /// Its size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.whole.as_ref().map_or(0, Buffer::num_bytes)
    }

    fn whole(&self) -> Result<Memory<'_>> {
        self.whole.as_ref().map_or(Ok(Memory::EMPTY), Memory::of_mut)
    }

    fn memory(&self, slot: usize, offset: usize, bytes: usize) -> Result<Memory<'_>> {
        match self.apart.get(&slot) {
            Some(buffer) => Memory::of_mut(buffer),
            None if bytes == 0 => Ok(Memory::EMPTY),
            None => self.whole()?.part(offset, bytes),
        }
    }

    /// A temporary as a buffer; `None` if it has no memory.
    pub(super) fn buffer(
        &self,
        slot: usize,
        offset: usize,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Option<Buffer>> {
        if let Some(buffer) = self.apart.get(&slot) {
            return Ok(Some(buffer.clone()));
        }
        let Some(whole) = &self.whole else { return Ok(None) };
        let bytes = shape.iter().product::<usize>() * dtype.size_in_bytes();
        let (start, stop) = (Some(offset as i64), Some((offset + bytes) as i64));
        let part = whole.index(&[ViewIndex::Slice { start, stop, step: 1 }])?;
        part.view(dtype, Some(shape)).map(Some)
    }
}
