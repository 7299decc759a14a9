//! Runs programs: binds sizes once and keeps what that gives, then launches kernel after kernel.
//!
//! What an execution needs beyond its outputs is kept for the next one: the arena, and the table of memory that kernels
//! are handed. Any number of executions may run at once; each has its own.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use max_compiler::program::{Origin, Work};
use max_compiler::{Bound, Data, MemoryPlan, Program};
use max_core::kernel::{Access, Instr, Slot};
use max_core::{Bindings, DType, Error, HostBytes, Result, Strided, bail};
use max_driver::{Buffer, Device};
use max_graph::interpret::bind_inputs;
use max_graph::op::Run;
use max_graph::{HostTensor, OpKind};
use max_kernels::{Constant, Memory, Pool, Prepared, prepare_with};

use crate::lock;
use crate::observe::{Observer, first_not_finite};

/// How many different sizes of its inputs a program is kept ready for.
const KEPT_SIZES: usize = 32;

/// How many arenas wait for the next execution.
const KEPT_SCRATCH: usize = 4;

/// What becomes of the memory of temporaries after an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// It waits for the next one.
    Arenas,
    /// Unless there is little of it, it goes back to where all memory comes from.
    Little,
}

/// As much memory as a model keeps that keeps little.
const LITTLE: usize = 64 << 10;

/// A program with its weights, ready to run from any thread.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) program: Arc<Program>,
    weights: Vec<HostTensor>,
    pool: Arc<Pool>,
    keep: Keep,
    /// Whether every memory plan is proven.
    check_plans: bool,
    /// The memory of constants and weights, by slot.
    fixed: Vec<Memory>,
    ready: Mutex<VecDeque<Arc<Ready>>>,
    scratch: Mutex<Vec<Scratch>>,
}

/// A program for the sizes of its inputs.
#[derive(Debug)]
pub(crate) struct Ready {
    /// The sizes of the inputs.
    shapes: Vec<Vec<usize>>,
    bindings: Bindings,
    pub(crate) first: Arc<Segment>,
    /// Segments whose sizes depend on data, by what they were bound to last.
    later: Mutex<VecDeque<(usize, Bindings, Arc<Segment>)>>,
}

/// A segment for known sizes, its kernels ready to launch.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) launches: Vec<Option<Prepared>>,
    /// The sizes of each slot it uses.
    pub(crate) shapes: Vec<Option<Vec<usize>>>,
    /// The sizes of each output, as far as they are known here.
    outputs: Vec<Option<Vec<usize>>>,
    pub(crate) plan: MemoryPlan,
}

/// What an execution works with, kept for the next.
#[derive(Debug, Default)]
struct Scratch {
    memory: Vec<Memory>,
    arenas: Vec<Option<Buffer>>,
}

/// The outputs of an execution as they come about, and what else a step may look at.
struct State<'a> {
    runtime: &'a Runtime,
    inputs: &'a [Buffer],
    outputs: Vec<Option<Buffer>>,
    scratch: Scratch,
    /// Where temporaries lie: the segment whose arena they are in, and the offset there.
    places: Vec<Option<(usize, usize)>>,
    shapes: Vec<Option<Vec<usize>>>,
    /// Which slots hold values that are not finite, where that is watched.
    known_not_finite: HashMap<Slot, bool>,
}

impl Runtime {
    pub(crate) fn new(
        program: Arc<Program>,
        weights: Vec<HostTensor>,
        pool: Arc<Pool>,
        keep: Keep,
        check_plans: bool,
    ) -> Result<Runtime> {
        let fixed = program.slots.iter().map(|slot| match &slot.origin {
            Origin::Constant(bytes) => Memory::of_bytes(bytes),
            Origin::Weight(weight) => Memory::of_bytes(weights[*weight].bytes()),
            _ => Memory::EMPTY,
        });
        let fixed = fixed.collect();
        let runtime = Runtime {
            program,
            weights,
            pool,
            keep,
            check_plans,
            fixed,
            ready: Mutex::default(),
            scratch: Mutex::default(),
        };
        if runtime.program.is_static() {
            let sizes = runtime.program.inputs.iter().filter_map(|ty| ty.array());
            let sizes =
                sizes.map(|(_, shape)| shape.evaluate(&Bindings::new())).collect::<Result<Vec<_>>>()?;
            // What is wrong with the sizes, an execution says.
            let _ = runtime.bind(sizes);
        }
        Ok(runtime)
    }

    /// The program for the sizes of inputs: kept from before, or bound now.
    pub(crate) fn ready(&self, inputs: &[Buffer]) -> Result<Arc<Ready>> {
        let same = |ready: &Arc<Ready>| {
            let shapes = ready.shapes.iter().map(Vec::as_slice);
            shapes.eq(inputs.iter().map(Buffer::shape))
        };
        let mut kept = lock(&self.ready);
        if let Some(at) = kept.iter().position(same) {
            kept.swap(0, at);
            return Ok(kept[0].clone());
        }
        drop(kept);
        self.bind(inputs.iter().map(|input| input.shape().to_vec()).collect())
    }

    fn bind(&self, shapes: Vec<Vec<usize>>) -> Result<Arc<Ready>> {
        let types: Vec<_> = self.program.inputs.iter().collect();
        let mut bindings = bind_inputs(&types, &shapes.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
        self.program.learn(0, &mut bindings, &Weights(self))?;
        let first = Arc::new(self.segment(0, &bindings)?);
        let ready = Arc::new(Ready { shapes, bindings, first, later: Mutex::default() });
        let mut kept = lock(&self.ready);
        kept.push_front(ready.clone());
        kept.truncate(KEPT_SIZES);
        Ok(ready)
    }

    fn segment(&self, number: usize, bindings: &Bindings) -> Result<Segment> {
        let bound = self.program.bind(number, bindings)?;
        if self.check_plans {
            self.program.check_plan(number, &bound)?;
        }
        let Bound { kernels, shapes, plan } = bound;
        // A model that keeps little does not keep constants packed either.
        let fixed = |slot: Slot| match &self.program.slots[slot.0 as usize].origin {
            _ if self.keep == Keep::Little => None,
            Origin::Constant(bytes) => Some(bytes.clone()),
            Origin::Weight(weight) => Some(self.weights[*weight].bytes().clone()),
            _ => None,
        };
        let prepare = |kernel| prepare_with(kernel, &fixed);
        let launches = kernels.iter().map(|kernel| kernel.as_ref().map(prepare).transpose());
        let launches = launches.collect::<Result<_>>()?;
        Ok(Segment { launches, shapes, outputs: self.output_shapes(bindings), plan })
    }

    /// The bytes of operands that kernels keep packed.
    pub(crate) fn packed_bytes(&self) -> usize {
        let mut counted: Vec<*const Constant> = Vec::new();
        let mut bytes = 0;
        for ready in lock(&self.ready).iter() {
            let later = lock(&ready.later);
            for segment in std::iter::once(&ready.first).chain(later.iter().map(|(_, _, segment)| segment)) {
                for constant in segment.launches.iter().flatten().filter_map(Prepared::constant) {
                    if !counted.contains(&std::ptr::from_ref(constant)) {
                        counted.push(constant);
                        bytes += constant.packed_bytes();
                    }
                }
            }
        }
        bytes
    }

    /// The sizes of each output, as far as they are known. Its memory may have the same elements under another shape.
    fn output_shapes(&self, bindings: &Bindings) -> Vec<Option<Vec<usize>>> {
        let types = self.program.outputs.iter();
        types.map(|ty| ty.array().and_then(|(_, shape)| shape.evaluate(bindings).ok())).collect()
    }

    /// A later segment, once what its sizes depend on has been computed.
    fn later(
        &self,
        number: usize,
        ready: &Ready,
        bindings: &mut Bindings,
        data: &dyn Data,
    ) -> Result<Arc<Segment>> {
        self.program.learn(number, bindings, data)?;
        let same = |entry: &&(usize, Bindings, Arc<Segment>)| entry.0 == number && entry.1 == *bindings;
        if let Some((_, _, segment)) = lock(&ready.later).iter().find(same) {
            return Ok(segment.clone());
        }
        let segment = Arc::new(self.segment(number, bindings)?);
        let mut later = lock(&ready.later);
        later.push_front((number, bindings.clone(), segment.clone()));
        later.truncate(KEPT_SIZES);
        Ok(segment)
    }

    /// Runs on inputs that were checked.
    pub(crate) fn run(&self, inputs: &[Buffer], observer: &Observer) -> Result<Vec<Buffer>> {
        let ready = self.ready(inputs)?;
        let mut scratch = lock(&self.scratch).pop().unwrap_or_default();
        scratch.memory.clear();
        scratch.memory.extend_from_slice(&self.fixed);
        let mut state = State::new(self, inputs, scratch);
        let result = self.segments(&ready, &mut state, observer);
        let State { outputs, mut scratch, .. } = state;
        if self.keep == Keep::Little
            && scratch.arenas.iter().flatten().any(|arena| arena.num_bytes() > LITTLE)
        {
            scratch.arenas.clear();
        }
        let mut kept = lock(&self.scratch);
        if kept.len() < KEPT_SCRATCH {
            kept.push(scratch);
        }
        drop(kept);
        result?;
        let missing = || Error::internal("an output was never computed");
        outputs.into_iter().map(|output| output.ok_or_else(missing)).collect()
    }

    fn segments(&self, ready: &Ready, state: &mut State, observer: &Observer) -> Result<()> {
        if let [_] = self.program.segments.as_slice() {
            self.steps(0, &ready.first, state, observer)?;
        } else {
            let mut bindings = ready.bindings.clone();
            state.places = vec![None; self.program.slots.len()];
            state.shapes = vec![None; self.program.slots.len()];
            for number in 0..self.program.segments.len() {
                let segment = match number {
                    0 => ready.first.clone(),
                    _ => self.later(number, ready, &mut bindings, state)?,
                };
                self.steps(number, &segment, state, observer)?;
                for (slot, shape) in segment.shapes.iter().enumerate().filter(|(_, shape)| shape.is_some()) {
                    state.shapes[slot] = shape.clone();
                }
                for (slot, offset) in segment.plan.offsets.iter().enumerate() {
                    state.places[slot] = offset.map(|offset| (number, offset)).or(state.places[slot]);
                }
            }
            for (output, shape) in state.outputs.iter_mut().zip(self.output_shapes(&bindings)) {
                if let (Some(buffer), Some(shape)) = (&output, shape)
                    && buffer.shape() != shape
                {
                    *output = Some(buffer.view(buffer.dtype(), Some(&shape))?);
                }
            }
        }
        Ok(())
    }

    /// An error that happened in a step.
    fn blame(&self, step: usize, error: Error) -> Error {
        match self.program.steps[step].ops.last() {
            Some(&op) => self.program.blame(op, error),
            None => error,
        }
    }

    fn steps(&self, number: usize, segment: &Segment, state: &mut State, observer: &Observer) -> Result<()> {
        state.enter(number, segment)?;
        let steps = self.program.segments[number].steps.clone();
        for (step, launch) in steps.zip(&segment.launches) {
            (observer.checkpoint)()?;
            let started = observer.start();
            match (launch, &self.program.steps[step].work) {
                (Some(launch), _) => launch.run(&state.scratch.memory, &self.pool),
                (None, Work::Print(label, slot)) => state.print(segment, label, *slot),
                (None, Work::Kernel(_)) => bail!(internal, "step {step} was not prepared"),
            }
            .map_err(|error| self.blame(step, error))?;
            observer.finish(&self.program, step, started);
            if observer.checks_values() {
                state.check_values(segment, step, observer)?;
            }
        }
        Ok(())
    }
}

impl<'a> State<'a> {
    fn new(runtime: &'a Runtime, inputs: &'a [Buffer], scratch: Scratch) -> State<'a> {
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
    fn enter(&mut self, number: usize, segment: &Segment) -> Result<()> {
        let program = &self.runtime.program;
        let Scratch { memory, arenas } = &mut self.scratch;
        let needed = segment.plan.bytes;
        arenas.resize(arenas.len().max(number + 1), None);
        let arena = match &arenas[number] {
            _ if needed == 0 => Memory::EMPTY,
            Some(arena) if arena.num_bytes() >= needed => Memory::of_mut(arena)?,
            _ => {
                arenas[number] = None;
                let arena = Buffer::uninit_pooled(DType::UInt8, &[needed], &Device::cpu())?;
                let memory = Memory::of_mut(&arena)?;
                arenas[number] = Some(arena);
                memory
            }
        };
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
                            let buffer = Buffer::uninit_pooled(info.dtype, shape, &Device::cpu())?;
                            self.outputs[output].insert(buffer)
                        }
                    };
                    memory[slot] = Memory::of_mut(buffer)?;
                }
                Origin::Temporary(_) => {
                    if let Some(offset) = segment.plan.offsets[slot] {
                        let bytes = shape.iter().product::<usize>() * info.dtype.size_in_bytes();
                        memory[slot] = if bytes == 0 { Memory::EMPTY } else { arena.part(offset, bytes)? };
                    }
                }
                Origin::Constant(_) | Origin::Weight(_) => {}
            }
        }
        Ok(())
    }

    /// The elements of a slot, as they are now.
    fn tensor(&self, slot: usize, place: Option<(usize, usize)>, shape: &[usize]) -> Result<HostTensor> {
        let info = &self.runtime.program.slots[slot];
        let none = || HostBytes::new([0u8; 0]);
        let bytes = match &info.origin {
            Origin::Input(input) => self.inputs[*input].host_bytes()?,
            Origin::Constant(bytes) => bytes.clone(),
            Origin::Weight(weight) => self.runtime.weights[*weight].bytes().clone(),
            Origin::Output(output) => match &self.outputs[*output] {
                Some(buffer) => buffer.host_bytes()?,
                None => none(),
            },
            Origin::Temporary(_) => {
                let len = shape.iter().product::<usize>() * info.dtype.size_in_bytes();
                let arena = place.and_then(|(segment, _)| self.scratch.arenas[segment].as_ref());
                match (arena, place) {
                    (Some(arena), Some((_, offset))) if len > 0 => {
                        arena.host_bytes()?.slice(offset, len).unwrap_or_else(none)
                    }
                    _ => none(),
                }
            }
        };
        HostTensor::new(info.dtype, shape, bytes)
    }

    /// A slot that a segment uses, in the middle of running it.
    fn tensor_in(&self, segment: &Segment, slot: usize) -> Result<HostTensor> {
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
        self.tensor(slot, place, shape)
    }

    fn print(&self, segment: &Segment, label: &str, slot: Option<Slot>) -> Result<()> {
        let tensors = slot.iter().map(|slot| self.tensor_in(segment, slot.0 as usize));
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let print = OpKind::from(max_graph::ops::print::Print { label: label.into() });
        print.eval(&tensors, &Run { bindings: &Bindings::new(), environment: &() }).map(|_| ())
    }

    /// Looks for values that are not finite in what a step wrote, unless it read some.
    fn check_values(&mut self, segment: &Segment, step: usize, observer: &Observer) -> Result<()> {
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

/// An execution with sizes, memory and launches decided.
#[derive(Debug)]
pub(crate) struct Frozen {
    ready: Arc<Ready>,
    memory: Vec<Memory>,
    outputs: Vec<Buffer>,
    /// Keeps the arena alive that the memory points into.
    _arenas: Vec<Option<Buffer>>,
}

impl Runtime {
    /// Decides everything about executions with inputs of these sizes.
    pub(crate) fn freeze(&self, inputs: &[Buffer]) -> Result<Frozen> {
        if self.program.segments.len() > 1 {
            bail!(
                runtime,
                "the sizes of model '{}' depend on data, so it cannot be captured",
                self.program.source.name
            );
        }
        if self.program.steps.iter().any(|step| matches!(step.work, Work::Print(..))) {
            bail!(runtime, "model '{}' prints, so it cannot be captured", self.program.source.name);
        }
        let ready = self.ready(inputs)?;
        let mut state = State::new(self, inputs, Scratch { memory: self.fixed.clone(), arenas: vec![] });
        state.enter(0, &ready.first)?;
        let outputs = state.outputs.into_iter().flatten().collect();
        Ok(Frozen { ready, memory: state.scratch.memory, outputs, _arenas: state.scratch.arenas })
    }

    /// What an execution with inputs of these sizes launches, kernel by kernel.
    pub(crate) fn trace(&self, inputs: &[Buffer]) -> Result<Vec<String>> {
        let bound = self.program.bind(0, &self.ready(inputs)?.bindings)?;
        let steps = bound.kernels.iter().enumerate();
        Ok(steps
            .filter_map(|(step, kernel)| {
                Some(format!("{}: {}", self.program.step_name(step), kernel.as_ref()?))
            })
            .collect())
    }

    /// Whether a step computes with a literal that is not finite.
    fn has_literals_not_finite(&self, step: usize) -> bool {
        let Work::Kernel(kernel) = &self.program.steps[step].work else { return false };
        let code = kernel.ending().into_iter().flat_map(|ending| &ending.code);
        let mut literals = code.filter_map(|instr| match instr {
            Instr::Literal(literal) => Some(literal),
            _ => None,
        });
        literals.any(|literal| !literal.to_f64().is_finite())
    }
}

impl Frozen {
    pub(crate) fn outputs(&self) -> &[Buffer] {
        &self.outputs
    }

    /// Launches everything on inputs of the captured sizes. Values are not checked: that is for executions.
    pub(crate) fn run(&mut self, runtime: &Runtime, inputs: &[Buffer], observer: &Observer) -> Result<()> {
        if !self.ready.shapes.iter().map(Vec::as_slice).eq(inputs.iter().map(Buffer::shape)) {
            let given: Vec<_> = inputs.iter().map(Buffer::shape).collect();
            bail!(
                runtime,
                "the graph was captured for inputs of the shapes {:?}; got {given:?}",
                self.ready.shapes
            );
        }
        // Kernels must not write what they still read, so inputs that are outputs of this capture are copied.
        let mut copies = Vec::new();
        for (slot, info) in runtime.program.slots.iter().enumerate() {
            let Origin::Input(input) = info.origin else { continue };
            let input = &inputs[input];
            if self.outputs.iter().any(|output| overlap(output, input)) {
                let copy = input.copy(None)?;
                self.memory[slot] = Memory::of(&copy)?;
                copies.push(copy);
            } else {
                self.memory[slot] = Memory::of(input)?;
            }
        }
        for (step, launch) in self.ready.first.launches.iter().enumerate() {
            let Some(launch) = launch else { continue };
            (observer.checkpoint)()?;
            let started = observer.start();
            launch.run(&self.memory, &runtime.pool).map_err(|error| runtime.blame(step, error))?;
            observer.finish(&runtime.program, step, started);
        }
        Ok(())
    }
}

/// Whether two contiguous buffers share memory.
fn overlap(a: &Buffer, b: &Buffer) -> bool {
    let ends = |buffer: &Buffer| (buffer.data_ptr().addr(), buffer.data_ptr().addr() + buffer.num_bytes());
    let ((a, a_end), (b, b_end)) = (ends(a), ends(b));
    a < b_end && b < a_end
}

/// What facts ask of a program that has not run yet.
struct Weights<'a>(&'a Runtime);

impl Data for Weights<'_> {
    fn weight_sizes(&self, weight: usize) -> Result<&[usize]> {
        Ok(self.0.weights[weight].shape())
    }

    fn integers(&self, _: &Access<i64>, _: usize) -> Result<Vec<i64>> {
        bail!(internal, "a size depends on data before anything was computed")
    }
}

impl Data for State<'_> {
    fn weight_sizes(&self, weight: usize) -> Result<&[usize]> {
        Ok(self.runtime.weights[weight].shape())
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
            Origin::Weight(weight) => Ok(Some(self.runtime.weights[*weight].shape().to_vec())),
            Origin::Constant(_) => {
                self.runtime.program.slots[slot].shape.evaluate(&Bindings::new()).map(Some)
            }
            _ => Ok(self.shapes[slot].clone()),
        }
    }
}
