//! What an execution tells about itself: whether to go on, how long each kernel took, and what is not finite.

use std::sync::Mutex;
use std::time::Instant;

use max_compiler::Program;
use max_core::{Element, Result, dispatch};
use max_graph::HostTensor;

/// Watches one execution.
pub(crate) struct Observer<'a> {
    /// Asked before each step; an error ends the execution.
    pub(crate) checkpoint: &'a dyn Fn() -> Result<()>,
    /// Where times go, if they are taken.
    pub(crate) profile: Option<&'a Mutex<Vec<Launch>>>,
    /// Whether every step's results are looked at.
    pub(crate) check_values: bool,
}

/// One launch of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) step: usize,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
    pub(crate) thread: std::thread::ThreadId,
}

impl Observer<'_> {
    pub(crate) fn checkpoint(&self) -> Result<()> {
        (self.checkpoint)()
    }

    pub(crate) fn start(&self) -> Option<Instant> {
        self.profile.map(|_| Instant::now())
    }

    pub(crate) fn finish(&self, _: &Program, step: usize, started: Option<Instant>) {
        if let (Some(profile), Some(start)) = (self.profile, started) {
            let launch = Launch { step, start, end: Instant::now(), thread: std::thread::current().id() };
            profile.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(launch);
        }
    }

    pub(crate) fn checks_values(&self) -> bool {
        self.check_values
    }
}

/// The first element that is NaN or infinite, and which of them.
pub(crate) fn first_not_finite(tensor: &HostTensor) -> Result<Option<(usize, &'static str)>> {
    if !tensor.dtype().is_float() {
        return Ok(None);
    }
    dispatch!(tensor.dtype(), T => {
        let found = tensor.elements::<T>()?.iter().map(|e| e.to_f64()).enumerate().find(|(_, x)| !x.is_finite());
        Ok(found.map(|(at, x)| (at, if x.is_nan() { "NaN" } else { "an infinity" })))
    })
}
