//! Captured executions: sizes, memory and launches are decided once, and replayed on inputs of the same sizes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use max_core::{Result, bail};
use max_driver::Buffer;

use crate::lock;
use crate::model::{Model, hold_streams};
use crate::run::Frozen;

/// The captures of a model, by the caller's key.
#[derive(Debug, Default)]
pub(crate) struct Captures(Mutex<HashMap<u64, Arc<Capture>>>);

#[derive(Debug)]
struct Capture {
    /// One replay at a time: all of them write the same outputs.
    frozen: Mutex<Frozen>,
    /// What it launches, kernel by kernel.
    trace: Vec<String>,
}

impl Captures {
    fn get(&self, key: u64) -> Result<Arc<Capture>> {
        match lock(&self.0).get(&key) {
            Some(capture) => Ok(capture.clone()),
            None => {
                bail!(runtime, "no graph has been captured for the key {key}; call capture({key}, ...) first")
            }
        }
    }
}

impl Model {
    /// Executes once and keeps sizes, memory and launches under a key. The outputs belong to the capture: each replay
    /// overwrites them. Capturing a key again replaces its capture. A model that runs on a GPU must run on that device
    /// only; its launches are recorded, and each replay enqueues them as a whole.
    pub fn capture(&self, key: u64, inputs: &[Buffer]) -> Result<Vec<Buffer>> {
        self.capture_until(key, inputs, &|| Ok(()))
    }

    /// Like [`Model::capture`], but calls `checkpoint` before each step; an error stops it, and nothing is captured.
    pub fn capture_until(
        &self,
        key: u64,
        inputs: &[Buffer],
        checkpoint: &dyn Fn() -> Result<()>,
    ) -> Result<Vec<Buffer>> {
        some_inputs("capture", inputs)?;
        let _range = self.range("capture");
        let checked = self.check_inputs(inputs)?;
        let captured = || -> Result<Vec<Buffer>> {
            let mut frozen = self.runtime.freeze(&checked)?;
            let trace = self.runtime.trace(&checked)?;
            frozen.run(&self.runtime, &checked, &self.observer(checkpoint))?;
            frozen.record(&self.runtime, &checked)?;
            hold_streams(inputs)?;
            let outputs = frozen.outputs();
            lock(&self.captures.0).insert(key, Arc::new(Capture { frozen: Mutex::new(frozen), trace }));
            Ok(outputs)
        };
        captured().map_err(|e| e.context(format!("while capturing model '{}'", self.name())))
    }

    /// Replays the capture of a key on inputs of the same sizes, into the outputs of the capture. The inputs may be these
    /// outputs.
    pub fn replay(&self, key: u64, inputs: &[Buffer]) -> Result<()> {
        self.replay_until(key, inputs, &|| Ok(()))
    }

    /// Like [`Model::replay`], but calls `checkpoint` before each step; an error stops it, with the outputs partly written.
    pub fn replay_until(
        &self,
        key: u64,
        inputs: &[Buffer],
        checkpoint: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        some_inputs("replay", inputs)?;
        let _range = self.range("replay");
        let capture = self.captures.get(key)?;
        let checked = self.check_inputs(inputs)?;
        let result = lock(&capture.frozen).run(&self.runtime, &checked, &self.observer(checkpoint));
        result.map_err(|e| e.context(format!("while replaying model '{}'", self.name())))?;
        hold_streams(inputs)
    }

    /// Executes and checks that it launches what was captured under a key. For a capture on a GPU it also checks the number
    /// of recorded launches.
    pub fn debug_verify_replay(&self, key: u64, inputs: &[Buffer]) -> Result<()> {
        self.debug_verify_replay_until(key, inputs, &|| Ok(()))
    }

    /// Like [`Model::debug_verify_replay`], but calls `checkpoint` before each step; an error stops it.
    pub fn debug_verify_replay_until(
        &self,
        key: u64,
        inputs: &[Buffer],
        checkpoint: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        some_inputs("debug_verify_replay", inputs)?;
        let capture = self.captures.get(key)?;
        self.execute_until(inputs, checkpoint)?;
        let checked = self.check_inputs(inputs)?;
        let trace = self.runtime.trace(&checked)?;
        let recorded = lock(&capture.frozen).nodes();
        let nodes = match recorded {
            Some(_) => {
                let mut now = self.runtime.freeze(&checked)?;
                now.record(&self.runtime, &checked)?;
                now.nodes()
            }
            None => None,
        };
        let differs = capture.trace.iter().zip(&trace).position(|(captured, now)| captured != now);
        match differs {
            Some(at) => bail!(
                runtime,
                "the execution does not match the graph captured for the key {key}: launch {at} was captured as\n{}\nand is \
                 now\n{}",
                capture.trace[at],
                trace[at]
            ),
            None if capture.trace.len() != trace.len() => bail!(
                runtime,
                "the execution does not match the graph captured for the key {key}: {} launches were captured, and there \
                 are now {}",
                capture.trace.len(),
                trace.len()
            ),
            None if nodes != recorded => bail!(
                runtime,
                "the execution does not match the graph captured for the key {key}: {} things were recorded, and there are \
                 now {}",
                recorded.unwrap_or(0),
                nodes.unwrap_or(0)
            ),
            None => Ok(()),
        }
    }

    /// Releases the capture of a key.
    pub fn release_captured_graph(&self, key: u64) -> Result<()> {
        self.captures.get(key)?;
        lock(&self.captures.0).remove(&key);
        Ok(())
    }
}

fn some_inputs(what: &str, inputs: &[Buffer]) -> Result<()> {
    if inputs.is_empty() {
        bail!(value, "{what} needs the input buffers of the model; none were provided");
    }
    Ok(())
}
