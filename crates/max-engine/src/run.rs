//! Runs programs: binds sizes once and caches the result, then launches one kernel after another.
//!
//! Whatever an execution needs beyond its outputs is kept for the next one: the arenas, and the table of memory that
//! kernels are given. Any number of executions may run at once; each has its own. A step on the host is done when the
//! next one starts. Steps on an accelerator are enqueued on its default stream, like everything else that uses the same
//! memory, so the host waits only where it reads what a device wrote.

mod custom;
mod fixed;
mod frozen;
mod launch;
mod nested;
mod state;
mod storage;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use max_compiler::program::{self, Returned, Work};
use max_compiler::{Bound, Data, MemoryPlan, Program, Shapes};
use max_core::kernel::{Access, Instr, Slot};
use max_core::{Bindings, Error, Result, bail};
use max_driver::cuda::require_collectives;
use max_driver::{Buffer, Device, Stream};
use max_graph::interpret::bind_inputs;
use max_graph::region::outer_symbols;
use max_kernels::{Pool, cuda};

use crate::lock;
use crate::lru::Lru;
use crate::observe::Observer;
use custom::Customs;
use fixed::Fixed;
use launch::{Launch, Need};
use state::{NotFinite, Running, State};
use storage::{Given, Storage, Table};

pub(crate) use fixed::{fits_kernels, is_aligned};
pub(crate) use frozen::{Frozen, overlap};

/// For how many different input sizes a program stays bound.
const KEPT_SIZES: usize = 32;

/// How many sets of arenas are kept for later executions.
const KEPT_STORAGE: usize = 4;

/// What happens to the memory of temporaries after an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// It is kept for the next execution.
    Arenas,
    /// It goes back to the pool, unless there is very little of it.
    Little,
}

/// The most bytes that [`Keep::Little`] keeps.
const LITTLE: usize = 64 << 10;

/// How programs run.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) pool: Arc<Pool>,
    pub(crate) keep: Keep,
    /// Whether every memory plan is checked.
    pub(crate) check_plans: bool,
    /// How kernels are prepared for GPUs.
    pub(crate) cuda: cuda::Options,
}

/// A program with its weights, ready to run from any thread.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) program: Arc<Program>,
    config: Config,
    /// The devices of the program, each with its stream.
    devices: Vec<Device>,
    streams: Vec<Stream>,
    fixed: Fixed,
    /// The programs of its regions.
    regions: Vec<Arc<Runtime>>,
    /// The symbols whose sizes it must be told, if it is a region.
    symbols: Vec<Arc<str>>,
    ready: Mutex<Lru<Arc<Ready>, KEPT_SIZES>>,
    storage: Mutex<Vec<Storage>>,
}

/// A program bound to the sizes of its inputs.
#[derive(Debug)]
pub(crate) struct Ready {
    /// The sizes of the inputs.
    shapes: Vec<Vec<usize>>,
    /// The sizes of the symbols that it was told.
    told: Bindings,
    bindings: Bindings,
    pub(crate) first: Arc<Segment>,
    /// Segments whose sizes depend on data, with their numbers and what they were bound to.
    later: Mutex<Lru<(usize, Bindings, Arc<Segment>), KEPT_SIZES>>,
}

/// A segment bound to sizes, its kernels ready to launch.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The kernels of the program that its steps launch.
    launches: Vec<Option<Launch>>,
    /// The custom ops among its steps that are kernels of a GPU.
    customs: Customs,
    /// The sizes of each slot that it uses.
    pub(crate) shapes: Shapes,
    /// The sizes of each output, as far as they are known at this point.
    outputs: Vec<Option<Vec<usize>>>,
    pub(crate) plan: MemoryPlan,
    /// The memory that it needs on each device.
    pub(crate) needs: Vec<Need>,
}

impl Segment {
    /// The sizes of a slot that it uses.
    fn shape(&self, slot: Slot) -> Result<&[usize]> {
        match self.shapes.get(slot.0 as usize) {
            Some(shape) => Ok(shape),
            None => bail!(internal, "slot {} has no size", slot.0),
        }
    }

    /// The kernel of a launch.
    fn kernel(&self, launch: &program::Launch) -> Result<&Launch> {
        match self.launches.get(launch.kernel) {
            Some(Some(kernel)) => Ok(kernel),
            _ => bail!(internal, "kernel {} was not prepared", launch.kernel),
        }
    }

    /// The stream that the kernel of a step is enqueued on; `None` for the host and for steps without a kernel.
    fn stream<'a>(&self, runtime: &'a Runtime, step: usize) -> Result<Option<&'a Stream>> {
        match &runtime.program.steps[step].work {
            Work::Kernel(launch) => Ok(self.kernel(launch)?.stream(runtime)),
            Work::Custom(_) => Ok(self.customs.get(&step).and_then(|(launch, _)| launch.stream(runtime))),
            Work::Print(..) | Work::Transfer { .. } | Work::Collective { .. } | Work::Nested(_) => Ok(None),
        }
    }
}

impl Runtime {
    pub(crate) fn new(program: Arc<Program>, weights: &[Buffer], config: Config) -> Result<Runtime> {
        Runtime::with_regions(program, weights, config, &mut HashMap::new())
    }

    /// A program whose regions may be known already, by their address.
    fn with_regions(
        program: Arc<Program>,
        weights: &[Buffer],
        config: Config,
        known: &mut HashMap<usize, Arc<Runtime>>,
    ) -> Result<Runtime> {
        let mut regions = Vec::with_capacity(program.regions.len());
        for region in &program.regions {
            let address = Arc::as_ptr(region).addr();
            let runtime = match known.get(&address) {
                Some(runtime) => runtime.clone(),
                None => Arc::new(Runtime::with_regions(region.clone(), &[], config.clone(), known)?),
            };
            known.insert(address, runtime.clone());
            regions.push(runtime);
        }
        let devices = program.devices.iter().map(|&device| Device::from_ref(device));
        let devices = devices.collect::<Result<Vec<_>>>()?;
        if program.steps.iter().any(|step| matches!(step.work, Work::Collective { .. })) {
            require_collectives()?;
        }
        let runtime = Runtime {
            fixed: Fixed::new(&program, weights, &devices, config.keep)?,
            streams: devices.iter().map(Device::default_stream).collect(),
            symbols: outer_symbols(&program.source).into_iter().collect(),
            program,
            config,
            devices,
            regions,
            ready: Mutex::default(),
            storage: Mutex::default(),
        };
        if runtime.program.is_static() {
            let sizes = runtime.program.inputs.iter().filter_map(|ty| ty.array());
            let sizes = sizes.map(|(_, shape)| shape.evaluate(&Bindings::new())).collect::<Result<Vec<_>>>();
            // If the sizes are wrong, the execution reports it.
            let _ = sizes.and_then(|sizes| runtime.bind(sizes, Bindings::new()));
        }
        Ok(runtime)
    }

    /// The program bound to the sizes of these inputs: cached, or bound now.
    pub(crate) fn ready(&self, inputs: &[Buffer]) -> Result<Arc<Ready>> {
        self.ready_for(inputs.iter().map(Buffer::shape), &Bindings::new())
    }

    /// The program bound to the sizes of its inputs and those of symbols that its caller knows.
    fn ready_for<'s>(
        &self,
        inputs: impl Iterator<Item = &'s [usize]> + Clone,
        known: &Bindings,
    ) -> Result<Arc<Ready>> {
        let told = |symbol: &Arc<str>| Some((symbol.clone(), *known.get(symbol)?));
        let same = |ready: &Arc<Ready>| {
            let shapes = ready.shapes.iter().map(Vec::as_slice);
            shapes.eq(inputs.clone())
                && self.symbols.iter().all(|symbol| ready.told.get(symbol) == known.get(symbol))
        };
        if let Some(ready) = lock(&self.ready).find(same) {
            return Ok(ready.clone());
        }
        self.bind(inputs.map(<[usize]>::to_vec).collect(), self.symbols.iter().filter_map(told).collect())
    }

    fn bind(&self, shapes: Vec<Vec<usize>>, told: Bindings) -> Result<Arc<Ready>> {
        let types: Vec<_> = self.program.inputs.iter().collect();
        let sizes = shapes.iter().map(Vec::as_slice).collect::<Vec<_>>();
        let mut bindings = bind_inputs(&types, &sizes, &told)?;
        self.program.learn(0, &mut bindings, &Weights(self))?;
        let first = Arc::new(self.segment(0, &bindings)?);
        let ready = Arc::new(Ready { shapes, told, bindings, first, later: Mutex::default() });
        let evicted = lock(&self.ready).insert(ready.clone());
        drop(evicted);
        Ok(ready)
    }

    fn segment(&self, number: usize, bindings: &Bindings) -> Result<Segment> {
        let bound = self.program.bind(number, bindings)?;
        if self.config.check_plans {
            self.program.check_plan(number, &bound)?;
        }
        let Bound { kernels, shapes, plan } = bound;
        let (launches, customs) = (self.prepare(&kernels)?, self.prepare_customs(number, &shapes)?);
        let needs = launch::needs(&plan.bytes, &launches);
        Ok(Segment { launches, customs, shapes, outputs: self.output_shapes(bindings), plan, needs })
    }

    /// The bytes of the operands that kernels keep packed.
    pub(crate) fn packed_bytes(&self) -> usize {
        self.fixed.packed_bytes()
    }

    /// The sizes of each output, as far as they are known. Its memory may hold the same elements under another shape.
    fn output_shapes(&self, bindings: &Bindings) -> Vec<Option<Vec<usize>>> {
        let types = self.program.outputs.iter();
        types.map(|ty| ty.array().and_then(|(_, shape)| shape.evaluate(bindings).ok())).collect()
    }

    /// A later segment, once the data that its sizes depend on has been computed.
    fn later(
        &self,
        number: usize,
        ready: &Ready,
        bindings: &mut Bindings,
        data: &dyn Data,
    ) -> Result<Arc<Segment>> {
        self.program.learn(number, bindings, data)?;
        let same = |entry: &(usize, Bindings, Arc<Segment>)| entry.0 == number && entry.1 == *bindings;
        if let Some((_, _, segment)) = lock(&ready.later).find(same) {
            return Ok(segment.clone());
        }
        let segment = Arc::new(self.segment(number, bindings)?);
        let evicted = lock(&ready.later).insert((number, bindings.clone(), segment.clone()));
        drop(evicted);
        Ok(segment)
    }

    /// Runs on inputs that have been checked.
    pub(crate) fn run(&self, inputs: &[Buffer], observer: &Observer) -> Result<Vec<Buffer>> {
        let ready = self.ready(inputs)?;
        let storage = lock(&self.storage).pop().unwrap_or_default();
        let mut state = State::new(self, Given::Buffers(inputs), storage);
        let result = self.segments(&ready, &mut state, observer);
        let mut storage = state.storage;
        let mut outputs = std::mem::take(&mut storage.outputs);
        if self.config.keep == Keep::Little && storage.arenas.iter().any(|arena| arena.bytes() > LITTLE) {
            storage.arenas.clear();
        }
        let mut kept = lock(&self.storage);
        if kept.len() < KEPT_STORAGE {
            kept.push(storage);
        }
        drop(kept);
        result?;
        for &(output, returned) in &self.program.returned {
            outputs[output] = match returned {
                Returned::Input(input) => inputs.get(input).cloned(),
                Returned::Output(first) => outputs[first].clone(),
            };
        }
        let missing = || Error::internal("an output was never computed");
        outputs.into_iter().map(|output| output.ok_or_else(missing)).collect()
    }

    fn segments(&self, ready: &Ready, state: &mut State, observer: &Observer) -> Result<()> {
        let mut not_finite = NotFinite::new();
        if let [_] = self.program.segments.as_slice() {
            let running = Running { number: 0, segment: &ready.first, bindings: &ready.bindings };
            return self.steps(running, state, &mut not_finite, observer);
        }
        let mut bindings = ready.bindings.clone();
        state.storage.spots = vec![None; self.program.slots.len()];
        state.storage.shapes = vec![None; self.program.slots.len()];
        for number in 0..self.program.segments.len() {
            let segment = &match number {
                0 => ready.first.clone(),
                _ => self.later(number, ready, &mut bindings, state)?,
            };
            self.steps(Running { number, segment, bindings: &bindings }, state, &mut not_finite, observer)?;
            let Storage { spots, shapes, .. } = &mut state.storage;
            for (slot, shape) in segment.shapes.iter().enumerate() {
                shapes[slot] = shape.map(<[usize]>::to_vec).or(shapes[slot].take());
            }
            for (slot, offset) in segment.plan.offsets.iter().enumerate() {
                spots[slot] = offset.map(|offset| (number, offset)).or(spots[slot]);
            }
        }
        for (output, shape) in state.storage.outputs.iter_mut().zip(self.output_shapes(&bindings)) {
            if let (Some(buffer), Some(shape)) = (&output, shape)
                && buffer.shape() != shape
            {
                *output = Some(buffer.view(buffer.dtype(), Some(&shape))?);
            }
        }
        Ok(())
    }

    /// Adds the op to an error that happened in a step.
    fn blame(&self, step: usize, error: Error) -> Error {
        match self.program.steps[step].ops.last() {
            Some(&op) => self.program.blame(op, error),
            None => error,
        }
    }

    fn steps(
        &self,
        running: Running,
        state: &mut State,
        not_finite: &mut NotFinite,
        observer: &Observer,
    ) -> Result<()> {
        let Running { number, segment, .. } = running;
        state.storage.reserve(self, state.given, number, segment)?;
        let room = state.storage.take_room();
        let mut regions = std::mem::take(&mut state.storage.regions);
        let mut table = state.storage.table(self, state.given, number, segment, room)?;
        self.steps_on(running, &mut table, &mut regions, not_finite, observer)?;
        let room = table.into_room();
        state.storage.keep_room(room);
        state.storage.regions = regions;
        Ok(())
    }

    /// Runs the steps of a segment on memory that has been reserved.
    fn steps_on(
        &self,
        running: Running,
        table: &mut Table,
        regions: &mut [Storage],
        not_finite: &mut NotFinite,
        observer: &Observer,
    ) -> Result<()> {
        let Running { number, segment, .. } = running;
        for step in self.program.segments[number].steps.clone() {
            (observer.checkpoint)()?;
            let started = observer.start(step, segment.stream(self, step)?)?;
            match &self.program.steps[step].work {
                Work::Kernel(launch) => segment.kernel(launch)?.run(launch, table, self),
                Work::Print(label, slot) => self.print(running, table, label, *slot),
                Work::Transfer { from, to } => self.transfer(running, table, *from, *to),
                Work::Collective { kind, from, to } => self.collective(running, table, *kind, from, to),
                Work::Nested(nested) => self.nested(nested, running, table, regions, observer),
                Work::Custom(call) => self.custom(running, table, step, call),
            }
            .map_err(|error| self.blame(step, error))?;
            observer.finish(&self.program, step, started)?;
            if observer.checks_values() {
                self.check_values(running, table, step, not_finite, observer)?;
            }
        }
        Ok(())
    }

    /// Whether a step computes with an infinite or NaN literal.
    fn has_literals_not_finite(&self, step: usize) -> bool {
        let Work::Kernel(launch) = &self.program.steps[step].work else { return false };
        let (_, kernel) = &self.program.kernels[launch.kernel];
        let code = kernel.endings().into_iter().flat_map(|ending| &ending.run.code);
        let mut literals = code.filter_map(|instr| match instr {
            Instr::Literal(literal) => Some(literal),
            _ => None,
        });
        literals.any(|literal| !literal.to_f64().is_finite())
    }
}

/// The data that is available before a program has run.
struct Weights<'a>(&'a Runtime);

impl Data for Weights<'_> {
    fn weight_sizes(&self, weight: usize) -> Result<&[usize]> {
        Ok(self.0.fixed.weight_sizes(weight))
    }

    fn integers(&self, _: &Access<i64>, _: usize) -> Result<Vec<i64>> {
        bail!(internal, "a size depends on data before anything was computed")
    }
}

#[cfg(test)]
mod tests;
