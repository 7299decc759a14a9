//! Executions with everything decided in advance: sizes, memory and launches. On a GPU they are recorded as well, and
//! enqueued as a whole.

use std::sync::Arc;

use max_compiler::program::{Origin, Work};
use max_core::{Result, bail};
use max_driver::{Buffer, Stream};
use max_kernels::{Memory, cuda};

use super::launch::Launch;
use super::state::{Scratch, State};
use super::{Ready, Runtime};
use crate::observe::Observer;

/// An execution with sizes, memory and launches decided.
#[derive(Debug)]
pub(crate) struct Frozen {
    ready: Arc<Ready>,
    /// The memory of all slots, and the arenas that some of it points into.
    scratch: Scratch,
    outputs: Vec<Buffer>,
    /// What inputs that are outputs are copied to, by slot: always to the same place.
    copies: Vec<Option<Buffer>>,
    recorded: Option<Recorded>,
}

/// The launches as a GPU was told them.
#[derive(Debug)]
struct Recorded {
    recording: cuda::Recording,
    /// What they were recorded on, which does nothing else.
    stream: Stream,
    /// The device it is launched on.
    device: usize,
    /// The memory they were recorded with; none where they were not.
    memory: Vec<Memory>,
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
        let mut scratch = Scratch::default();
        scratch.memory.extend_from_slice(&self.fixed.memory);
        let mut state = State::new(self, inputs, scratch);
        state.enter(0, &ready.first)?;
        let State { outputs, scratch, .. } = state;
        let outputs = outputs.into_iter().flatten().collect();
        let copies = vec![None; self.program.slots.len()];
        Ok(Frozen { ready, scratch, outputs, copies, recorded: None })
    }

    /// What an execution with inputs of these sizes launches, kernel by kernel.
    pub(crate) fn trace(&self, inputs: &[Buffer]) -> Result<Vec<String>> {
        let bound = self.program.bind(0, &self.ready(inputs)?.bindings)?;
        let steps = bound.kernels.iter().enumerate();
        let line = |(step, kernel): (usize, &Option<_>)| {
            Some(format!("{}: {}", self.program.step_name(step), kernel.as_ref()?))
        };
        Ok(steps.filter_map(line).collect())
    }
}

impl Frozen {
    pub(crate) fn outputs(&self) -> &[Buffer] {
        &self.outputs
    }

    /// How many functions, copies and fills a GPU does, if it was recorded.
    pub(crate) fn nodes(&self) -> Option<usize> {
        self.recorded.as_ref().map(|recorded| recorded.recording.nodes())
    }

    /// Runs on inputs of the captured sizes. Values are not checked: that is for executions.
    pub(crate) fn run(&mut self, runtime: &Runtime, inputs: &[Buffer], observer: &Observer) -> Result<()> {
        if !self.ready.shapes.iter().map(Vec::as_slice).eq(inputs.iter().map(Buffer::shape)) {
            let given: Vec<_> = inputs.iter().map(Buffer::shape).collect();
            bail!(
                runtime,
                "the graph was captured for inputs of the shapes {:?}; got {given:?}",
                self.ready.shapes
            );
        }
        self.place(runtime, inputs)?;
        if self.follow() {
            (observer.checkpoint)()?;
            return self.launch(runtime, observer);
        }
        for (step, launch) in self.ready.first.launches.iter().enumerate() {
            let Some(launch) = launch else { continue };
            (observer.checkpoint)()?;
            let started = observer.start(step, launch.stream(runtime))?;
            launch.run(&self.scratch.table(), runtime).map_err(|error| runtime.blame(step, error))?;
            observer.finish(&runtime.program, step, started)?;
        }
        Ok(())
    }

    /// Puts inputs where launches look for them.
    fn place(&mut self, runtime: &Runtime, inputs: &[Buffer]) -> Result<()> {
        for (slot, info) in runtime.program.slots.iter().enumerate() {
            let Origin::Input(input) = info.origin else { continue };
            let input = &inputs[input];
            // Kernels must not write what they still read, so inputs that are outputs of this capture are copied.
            let own = self.outputs.iter().any(|output| overlap(output, input));
            let seen = match &self.copies[slot] {
                _ if !own => input,
                Some(copy) => {
                    copy.copy_from(input)?;
                    copy
                }
                None => self.copies[slot].insert(input.copy(None)?),
            };
            self.scratch.memory[slot] = Memory::of(seen)?;
        }
        Ok(())
    }

    /// Records the launches of a program on a GPU, on the inputs it last ran on.
    pub(crate) fn record(&mut self, runtime: &Runtime) -> Result<()> {
        let devices = self.ready.first.launches.iter().flatten().filter_map(|launch| match launch {
            Launch::Gpu(device, _) => Some(*device),
            Launch::Host(_) => None,
        });
        let Some(device) = devices.into_iter().next() else { return Ok(()) };
        let stream = Stream::new(&runtime.devices[device])?;
        let recording = cuda::Recording::new(&stream, || self.enqueue(&stream))?;
        let memory = self.scratch.memory.clone();
        self.recorded = Some(Recorded { recording, stream, device, memory });
        Ok(())
    }

    /// Gives all launches to a stream.
    fn enqueue(&self, stream: &Stream) -> Result<()> {
        let table = self.scratch.table();
        self.ready.first.launches.iter().flatten().try_for_each(|launch| match launch {
            Launch::Gpu(device, kernel) => kernel.run(table.memory, table.scratch[*device], stream),
            Launch::Host(_) => bail!(internal, "a kernel of the host was recorded"),
        })
    }

    /// Whether what was recorded can be launched. It is recorded anew where inputs lie elsewhere now, which fails if
    /// another library waits for the whole device meanwhile: then launches go one by one, until a later replay records.
    fn follow(&mut self) -> bool {
        let Some(mut recorded) = self.recorded.take() else { return false };
        let mut fits = recorded.memory == self.scratch.memory;
        if !fits {
            fits = recorded.recording.again(&recorded.stream, || self.enqueue(&recorded.stream)).is_ok();
            // Half of a recording is none.
            recorded.memory.clear();
            recorded.memory.extend_from_slice(if fits { &self.scratch.memory } else { &[] });
        }
        self.recorded = Some(recorded);
        fits
    }

    /// Enqueues what was recorded.
    fn launch(&self, runtime: &Runtime, observer: &Observer) -> Result<()> {
        let Some(recorded) = &self.recorded else { return Ok(()) };
        let (stream, all) = (&runtime.streams[recorded.device], runtime.program.steps.len());
        let started = observer.start(all, Some(stream))?;
        recorded.recording.launch(stream)?;
        observer.finish(&runtime.program, all, started)
    }
}

/// Whether two contiguous buffers share memory.
fn overlap(a: &Buffer, b: &Buffer) -> bool {
    let ends = |buffer: &Buffer| (buffer.data_ptr().addr(), buffer.data_ptr().addr() + buffer.num_bytes());
    let ((a, a_end), (b, b_end)) = (ends(a), ends(b));
    a < b_end && b < a_end
}
