//! Executions with everything decided in advance: sizes, memory and launches. On a GPU they are also recorded, and
//! enqueued as a whole.

use std::borrow::Cow;
use std::sync::Arc;

use max_compiler::program::{Step, Work};
use max_core::{Result, bail};
use max_driver::{Buffer, Stream};
use max_kernels::{Memory, cuda};

use super::launch::Launch;
use super::storage::{Room, Scratch, Storage, Table};
use super::{Ready, Runtime, Segment};
use crate::observe::Observer;

/// An execution whose sizes, memory and launches are decided.
#[derive(Debug)]
pub(crate) struct Frozen {
    ready: Arc<Ready>,
    storage: Storage,
    /// For inputs that are also outputs, the memory to which each is always copied, by input.
    copies: Vec<Option<Buffer>>,
    recorded: Option<Recorded>,
}

/// The launches as recorded for a GPU.
#[derive(Debug)]
struct Recorded {
    recording: cuda::Recording,
    /// The stream that they were recorded on, which is used for nothing else.
    stream: Stream,
    /// The device on which they are launched.
    device: usize,
}

impl Runtime {
    /// Decides everything about executions with inputs of these sizes.
    pub(crate) fn freeze(&self, inputs: &[Buffer]) -> Result<Frozen> {
        let name = &self.program.source.name;
        if self.program.segments.len() > 1 {
            bail!(runtime, "the sizes of model '{name}' depend on data, so it cannot be captured");
        }
        let does = |wanted: fn(&Work) -> bool| self.program.steps.iter().any(|step| wanted(&step.work));
        if does(|work| matches!(work, Work::Print(..))) {
            bail!(runtime, "model '{name}' prints, so it cannot be captured");
        }
        self.check_captures_customs()?;
        if does(|work| matches!(work, Work::Transfer { .. })) {
            bail!(
                runtime,
                "model '{name}' transfers values between devices while it runs, so it cannot be captured"
            );
        }
        let mut used: Vec<_> = self.program.steps.iter().map(|step| step.device).collect();
        used.sort_unstable();
        used.dedup();
        if let [one, other, ..] = used[..] {
            bail!(runtime, "model '{name}' runs on {one} and on {other}, so it cannot be captured");
        }
        let ready = self.ready(inputs)?;
        let mut storage = Storage::new(self, Scratch::default());
        storage.reserve(self, 0, &ready.first)?;
        Ok(Frozen { ready, storage, copies: vec![None; inputs.len()], recorded: None })
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
        let inputs = &*self.readable(inputs)?;
        let Frozen { ready, storage, recorded, .. } = self;
        let room = storage.take_room();
        let mut table = storage.table(runtime, inputs, 0, &ready.first, room)?;
        let replayed = match recorded {
            Some(recorded) => recorded.replay(&ready.first, &mut table, runtime, observer)?,
            None => false,
        };
        for (step, work) in runtime.program.steps.iter().enumerate().filter(|_| !replayed) {
            let Some((kernel, launch)) = ready.first.launch(step, &work.work)? else { continue };
            (observer.checkpoint)()?;
            let started = observer.start(step, kernel.stream(runtime))?;
            kernel.run(launch, &mut table, runtime).map_err(|error| runtime.blame(step, error))?;
            observer.finish(&runtime.program, step, started)?;
        }
        let room = table.into_room();
        storage.keep_room(room);
        Ok(())
    }

    /// Inputs that kernels may read while they write the outputs of this capture: an input that is such an output is
    /// copied, always to the same memory.
    fn readable<'a>(&mut self, inputs: &'a [Buffer]) -> Result<Cow<'a, [Buffer]>> {
        let mut readable = Cow::Borrowed(inputs);
        for (number, input) in inputs.iter().enumerate() {
            if !self.storage.outputs.iter().flatten().any(|output| overlap(output, input)) {
                continue;
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
        let first = &self.ready.first;
        let customs = first.customs.values().map(|(launch, _)| launch);
        let mut devices = first.launches.iter().flatten().chain(customs).filter_map(|launch| match launch {
            Launch::Gpu(device, _) => Some(*device),
            Launch::Host(_) => None,
        });
        let Some(device) = devices.next() else { return Ok(()) };
        let stream = Stream::new(&runtime.devices[device])?;
        let mut table = self.storage.table(runtime, inputs, 0, first, Room::default())?;
        let scratch = table.scratch(device)?;
        let work = cuda::Work { kernels: &kernels(first, &mut table, runtime), scratch };
        let recording = cuda::Recording::new(&stream, work)?;
        self.recorded = Some(Recorded { recording, stream, device });
        Ok(())
    }
}

/// The GPU kernels that a segment launches, each with its memory.
fn kernels<'a>(
    segment: &'a Segment,
    table: &mut Table<'a>,
    runtime: &Runtime,
) -> Vec<(&'a cuda::Prepared, Vec<Memory<'a>>)> {
    let kernels = runtime.program.steps.iter().enumerate().filter_map(|(number, step)| {
        match segment.launch(number, &step.work).ok()?? {
            (Launch::Gpu(_, kernel), launch) => Some((kernel, table.of(launch).to_vec())),
            (Launch::Host(_), _) => None,
        }
    });
    kernels.collect()
}

impl Recorded {
    /// Enqueues the recording, and returns whether it could. If the inputs have moved, it records again, which fails
    /// while another library waits for the whole device: then the kernels are launched one by one, until a later replay
    /// succeeds in recording.
    fn replay<'a>(
        &mut self,
        segment: &'a Segment,
        table: &mut Table<'a>,
        runtime: &Runtime,
        observer: &Observer,
    ) -> Result<bool> {
        let scratch = table.scratch(self.device)?;
        let work = cuda::Work { kernels: &kernels(segment, table, runtime), scratch };
        if !self.recording.fits(work) && self.recording.again(&self.stream, work).is_err() {
            return Ok(false);
        }
        (observer.checkpoint)()?;
        let (stream, all) = (&runtime.streams[self.device], runtime.program.steps.len());
        let started = observer.start(all, Some(stream))?;
        self.recording.launch(work, stream)?;
        observer.finish(&runtime.program, all, started)?;
        Ok(true)
    }
}

/// Whether two contiguous buffers share memory.
fn overlap(a: &Buffer, b: &Buffer) -> bool {
    let ends = |buffer: &Buffer| (buffer.data_ptr().addr(), buffer.data_ptr().addr() + buffer.num_bytes());
    let ((a, a_end), (b, b_end)) = (ends(a), ends(b));
    a < b_end && b < a_end
}
