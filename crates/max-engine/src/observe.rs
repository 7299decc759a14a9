//! Observing an execution: whether to continue, how long each kernel takes, and which values are not finite.

use std::time::Instant;

use max_compiler::Program;
use max_core::{Element, Error, Result, dispatch};
use max_driver::Stream;
use max_driver::cuda::{Event, nvtx};
use max_graph::HostTensor;

use crate::profile::Profile;
use crate::settings::{AssertLevel, LogLevel, Settings};

/// Observes one execution.
pub(crate) struct Observer<'a> {
    /// Called before each step; an error stops the execution.
    pub(crate) checkpoint: &'a dyn Fn() -> Result<()>,
    pub(crate) settings: &'a Settings,
    /// Where times are recorded, if they are measured.
    pub(crate) profile: Option<&'a Profile>,
    /// What to do when a value is not finite.
    pub(crate) asserts: AssertLevel,
    pub(crate) tracing: bool,
}

/// A step that is being timed.
pub(crate) struct Started<'a> {
    at: Instant,
    /// Whether a device runs it, so that it is only enqueued when the call returns.
    on_device: bool,
    /// The stream it runs on, if that is timed, and an event at its start.
    enqueued: Option<(&'a Stream, Event)>,
    /// The range that NVIDIA's profilers show.
    _range: Option<nvtx::Range>,
}

impl Observer<'_> {
    /// Observes a region: its steps are part of a step of the program.
    pub(crate) fn inside(&self) -> Observer<'_> {
        Observer { profile: None, tracing: false, ..*self }
    }

    /// Starts timing a step of the host or of a stream; `None` if nobody wants to know. The number one past the last step
    /// stands for a whole recorded capture.
    pub(crate) fn start<'a>(&self, step: usize, stream: Option<&'a Stream>) -> Result<Option<Started<'a>>> {
        if self.profile.is_none() && !self.tracing {
            return Ok(None);
        }
        let range = self.profile.map(|profile| nvtx::range(profile.range_name(step)));
        let enqueued = match stream.filter(|_| self.profile.is_some()) {
            Some(stream) => Some((stream, Event::record(stream, true)?)),
            None => None,
        };
        Ok(Some(Started { at: Instant::now(), on_device: stream.is_some(), enqueued, _range: range }))
    }

    pub(crate) fn finish(&self, program: &Program, step: usize, started: Option<Started>) -> Result<()> {
        let Some(started) = started else { return Ok(()) };
        match (self.profile, started.enqueued) {
            (Some(profile), Some((stream, begin))) => {
                let end = Event::record(stream, true)?;
                profile.add_enqueued(step, stream.device().id(), started.at, begin, end)?;
            }
            (Some(profile), None) => profile.add(step, started.at),
            (None, _) => {}
        }
        if self.tracing {
            let (time, took) =
                (started.at.elapsed(), if started.on_device { "was enqueued in" } else { "took" });
            self.settings.log(LogLevel::Trace, || match step < program.steps.len() {
                true => format!("step {step} {} {took} {time:?}", program.step_name(step)),
                false => format!("replay {took} {time:?}"),
            });
        }
        Ok(())
    }

    pub(crate) fn checks_values(&self) -> bool {
        matches!(self.asserts, AssertLevel::Warn | AssertLevel::All)
    }

    /// Reports a value that is not finite: as an error or as a warning.
    pub(crate) fn not_finite(
        &self,
        program: &Program,
        step: usize,
        tensor: &HostTensor,
        (at, what): (usize, &str),
    ) -> Result<()> {
        let error = Error::runtime(format!(
            "{} made {what} at element {at} of {} {:?}",
            program.step_name(step),
            tensor.dtype(),
            tensor.shape()
        ));
        let error = match program.steps[step].ops.last() {
            Some(&op) => program.blame(op, error),
            None => error,
        };
        if self.asserts == AssertLevel::All {
            return Err(error);
        }
        self.settings.log(LogLevel::Warning, || error.to_string());
        Ok(())
    }
}

/// The first element that is NaN or infinite, and which of the two.
pub(crate) fn first_not_finite(tensor: &HostTensor) -> Result<Option<(usize, &'static str)>> {
    if !tensor.dtype().is_float() {
        return Ok(None);
    }
    dispatch!(tensor.dtype(), T => {
        let found = tensor.elements::<T>()?.iter().map(|e| e.to_f64()).enumerate().find(|(_, x)| !x.is_finite());
        Ok(found.map(|(at, x)| (at, if x.is_nan() { "NaN" } else { "an infinity" })))
    })
}
