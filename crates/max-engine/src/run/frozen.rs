//! Executions with everything decided in advance: sizes, memory and launches. On a GPU they are also recorded, and
//! enqueued as a whole.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use max_compiler::program::{Control, Nested, Step, Work};
use max_core::kernel::Slot;
use max_core::{DeviceRef, Result, Type, bail};
use max_driver::{Buffer, Device, Stream};
use max_kernels::{Memory, cuda};

use super::launch::Launch;
use super::state::{NotFinite, Running};
use super::storage::{Given, Room, Storage};
use super::{Ready, Runtime};
use crate::observe::Observer;
use crate::settings::AssertLevel;

/// An execution whose sizes, memory and launches are decided.
#[derive(Debug)]
pub(crate) struct Frozen {
    ready: Arc<Ready>,
    storage: Storage,
    /// For inputs that are also outputs, the memory to which each is always copied, by input.
    copies: Vec<Option<Buffer>>,
    /// The GPU that it runs on, if it is one.
    device: Option<Device>,
    recorded: Option<Recorded>,
}

/// The launches as recorded for a GPU.
#[derive(Debug)]
struct Recorded {
    recording: cuda::Recording,
    /// The stream that they were recorded on, which is used for nothing else.
    stream: Stream,
}

impl Runtime {
    /// Decides everything about executions with inputs of these sizes.
    pub(crate) fn freeze(&self, inputs: &[Buffer]) -> Result<Frozen> {
        let name = &self.program.source.name;
        let refuse = |why: &str| -> Result<Frozen> {
            bail!(runtime, "model '{name}' {why}, so it cannot be captured")
        };
        let programs = self.program.with_regions();
        if programs.iter().any(|program| program.segments.len() > 1) {
            bail!(runtime, "the sizes of model '{name}' depend on data, so it cannot be captured");
        }
        let steps = || programs.iter().flat_map(|program| &program.steps);
        if steps().any(|step| matches!(step.work, Work::Print(..))) {
            return refuse("prints");
        }
        self.check_captures()?;
        if steps().any(|step| matches!(step.work, Work::Transfer { .. } | Work::Collective { .. })) {
            return refuse("transfers values between devices while it runs");
        }
        let launches = steps().filter(|step| matches!(step.work, Work::Kernel(_) | Work::Custom(_)));
        let used: BTreeSet<DeviceRef> = launches.map(|step| step.device).collect();
        if let [one, other, ..] = used.iter().collect::<Vec<_>>()[..] {
            return refuse(&format!("runs on {one} and on {other}"));
        }
        let decides = |step: &Step| match &step.work {
            Work::Nested(nested) => !matches!(nested.control, Control::Call(_)),
            _ => false,
        };
        let device = used.first().map(|&device| Device::from_ref(device)).transpose()?;
        let device = device.filter(|device| !device.runs_on_host());
        if device.is_some() && steps().any(decides) {
            return refuse("branches or loops on a GPU");
        }
        let ready = self.ready(inputs)?;
        let mut storage = Storage::default();
        storage.reserve(self, Given::Buffers(inputs), 0, &ready.first)?;
        Ok(Frozen { ready, storage, copies: vec![None; inputs.len()], device, recorded: None })
    }

    /// What an execution with inputs of these sizes launches, kernel by kernel.
    pub(crate) fn trace(&self, inputs: &[Buffer]) -> Result<Vec<String>> {
        let bound = self.program.bind(0, &self.ready(inputs)?.bindings)?;
        let line = |(number, step): (usize, &Step)| {
            let Work::Kernel(launch) = &step.work else { return None };
            let kernel = launch.place(bound.kernels[launch.kernel].as_ref()?).ok()?;
            Some(format!("{}: {kernel}", self.program.step_name(number)))
        };
        Ok(self.program.steps.iter().enumerate().filter_map(line).collect())
    }
}

impl Frozen {
    pub(crate) fn outputs(&self) -> Vec<Buffer> {
        self.storage.outputs.iter().flatten().cloned().collect()
    }

    /// How many kernels, copies and fills were recorded; `None` if nothing was.
    pub(crate) fn nodes(&self) -> Option<usize> {
        self.recorded.as_ref().map(|recorded| recorded.recording.nodes())
    }

    /// Runs on inputs of the captured sizes. Values are not checked; only ordinary executions check them.
    pub(crate) fn run(&mut self, runtime: &Runtime, inputs: &[Buffer], observer: &Observer) -> Result<()> {
        if !self.ready.shapes.iter().map(Vec::as_slice).eq(inputs.iter().map(Buffer::shape)) {
            let given: Vec<_> = inputs.iter().map(Buffer::shape).collect();
            bail!(
                runtime,
                "the graph was captured for inputs of the shapes {:?}; got {given:?}",
                self.ready.shapes
            );
        }
        let inputs = &*self.readable(runtime, inputs)?;
        let Frozen { ready, storage, recorded, .. } = self;
        let given = Given::Buffers(inputs);
        if let Some(recorded) = recorded
            && recorded.replay(ready, given, storage, runtime, observer)?
        {
            return Ok(());
        }
        let (room, mut regions) = (storage.take_room(), std::mem::take(&mut storage.regions));
        let mut table = storage.table(runtime, given, 0, &ready.first, room)?;
        let running = Running { number: 0, segment: &ready.first, bindings: &ready.bindings };
        let unchecked = Observer { asserts: AssertLevel::None, ..*observer };
        runtime.steps_on(running, &mut table, &mut regions, &mut NotFinite::new(), &unchecked)?;
        let room = table.into_room();
        storage.keep_room(room);
        storage.regions = regions;
        Ok(())
    }

    /// Inputs that kernels may read while they write the outputs of this capture: an input that is such an output is
    /// copied, always to the same memory.
    fn readable<'a>(&mut self, runtime: &Runtime, inputs: &'a [Buffer]) -> Result<Cow<'a, [Buffer]>> {
        let mut readable = Cow::Borrowed(inputs);
        for (number, input) in inputs.iter().enumerate() {
            if !self.storage.outputs.iter().flatten().any(|output| overlap(output, input)) {
                continue;
            }
            if let Type::Buffer(_) = runtime.program.inputs[number] {
                bail!(value, "input{number} is written in place, so it cannot be an output of the capture");
            }
            let copy = match &self.copies[number] {
                Some(copy) => {
                    copy.copy_from(input)?;
                    copy
                }
                None => self.copies[number].insert(input.copy(None)?),
            };
            readable.to_mut()[number] = copy.clone();
        }
        Ok(readable)
    }

    /// Records a program's launches on a GPU, on the inputs it last ran on.
    pub(crate) fn record(&mut self, runtime: &Runtime, inputs: &[Buffer]) -> Result<()> {
        let Some(device) = &self.device else { return Ok(()) };
        let stream = Stream::new(device)?;
        let given = Given::Buffers(inputs);
        let memory = runtime.given(given)?;
        let recording = runtime.with_launches(&self.ready, given, &self.storage, |launches| {
            cuda::Recording::new(&stream, launches, &memory)
        })?;
        self.recorded = Some(Recorded { recording, stream });
        Ok(())
    }
}

impl Runtime {
    /// The memory of the inputs.
    fn given<'a>(&self, given: Given<'_, 'a>) -> Result<Vec<Memory<'a>>> {
        let inputs = self.program.inputs.iter().enumerate();
        inputs.map(|(number, ty)| given.input(number, ty)).collect()
    }

    /// Calls a function with all that an execution launches on a GPU.
    fn with_launches<R>(
        &self,
        ready: &Ready,
        given: Given,
        storage: &Storage,
        then: impl FnOnce(&[cuda::Launched]) -> Result<R>,
    ) -> Result<R> {
        let mut nested = Vec::new();
        self.bind_nested(ready, &mut nested)?;
        let mut launches = Vec::new();
        self.collect(ready, given, storage, &mut nested.iter(), &mut launches)?;
        then(&launches)
    }

    /// The regions that an execution calls, bound to their sizes, in the order of the calls.
    fn bind_nested(&self, ready: &Ready, found: &mut Vec<Arc<Ready>>) -> Result<()> {
        for (callee, call) in self.calls() {
            let shapes =
                call.inputs.iter().map(|&slot| ready.first.shape(slot)).collect::<Result<Vec<_>>>()?;
            let bound = callee.ready_for(shapes.iter().copied(), &ready.bindings)?;
            found.push(bound.clone());
            callee.bind_nested(&bound, found)?;
        }
        Ok(())
    }

    fn calls(&self) -> impl Iterator<Item = (&Runtime, &Nested)> {
        let calls = self.program.steps.iter().filter_map(|step| match &step.work {
            Work::Nested(nested) => Some(nested),
            _ => None,
        });
        calls.flat_map(move |call| call.regions().iter().map(move |&region| (&*self.regions[region], call)))
    }

    /// Adds what an execution launches on a GPU, with the memory of each launch.
    fn collect<'a>(
        &'a self,
        ready: &'a Ready,
        given: Given<'_, 'a>,
        storage: &'a Storage,
        nested: &mut std::slice::Iter<'a, Arc<Ready>>,
        launches: &mut Vec<cuda::Launched<'a>>,
    ) -> Result<()> {
        let mut table = storage.table(self, given, 0, &ready.first, Room::default())?;
        for (number, step) in self.program.steps.iter().enumerate() {
            match &step.work {
                Work::Kernel(_) | Work::Custom(_) => {
                    if let Some((Launch::Gpu(device, kernel), launch)) =
                        ready.first.launch(number, &step.work)?
                    {
                        let (memory, scratch) = (table.of(launch).to_vec(), table.scratch(*device)?);
                        launches.push(cuda::Launched { kernel, memory, scratch });
                    }
                }
                Work::Nested(call) => {
                    let memory =
                        |slots: &[Slot]| slots.iter().map(|&slot| table.slot(slot)).collect::<Vec<_>>();
                    let (inputs, outputs) = (memory(&call.inputs), memory(&call.outputs));
                    for &region in call.regions() {
                        let Some(bound) = nested.next() else { bail!(internal, "a call was not bound") };
                        let shapes: Vec<&[usize]> = bound.shapes.iter().map(Vec::as_slice).collect();
                        let given = Given::Memory { inputs: &inputs, shapes: &shapes, outputs: &outputs };
                        self.regions[region].collect(
                            bound,
                            given,
                            &storage.regions[region],
                            nested,
                            launches,
                        )?;
                    }
                }
                Work::Print(..) | Work::Transfer { .. } | Work::Collective { .. } => {}
            }
        }
        Ok(())
    }
}

impl Recorded {
    /// Enqueues the recording, and returns whether it could. If the inputs have moved, it records again, which fails
    /// while another library waits for the whole device: then the kernels are launched one by one, until a later replay
    /// succeeds in recording.
    fn replay(
        &mut self,
        ready: &Ready,
        given: Given,
        storage: &Storage,
        runtime: &Runtime,
        observer: &Observer,
    ) -> Result<bool> {
        let memory = runtime.given(given)?;
        if !self.recording.fits(&memory) {
            let recorded = runtime.with_launches(ready, given, storage, |work| {
                Ok(self.recording.again(&self.stream, work, &memory).is_ok())
            })?;
            if !recorded {
                return Ok(false);
            }
        }
        (observer.checkpoint)()?;
        let (stream, all) = (self.stream.device().default_stream(), runtime.program.steps.len());
        let started = observer.start(all, Some(&stream))?;
        self.recording.launch(&memory, &stream)?;
        observer.finish(&runtime.program, all, started)?;
        Ok(true)
    }
}

/// Whether two contiguous buffers share memory.
pub(crate) fn overlap(a: &Buffer, b: &Buffer) -> bool {
    if a.device() != b.device() {
        return false;
    }
    let ends = |buffer: &Buffer| (buffer.data_ptr().addr(), buffer.data_ptr().addr() + buffer.num_bytes());
    let ((a, a_end), (b, b_end)) = (ends(a), ends(b));
    a < b_end && b < a_end
}
