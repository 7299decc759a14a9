//! Ctrl-C while native code runs.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::error::Raise;

/// Runs work without the GIL, until it is done or Ctrl-C ends it where it asks whether to go on.
pub fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&dyn Fn() -> max::Result<()>) -> max::Result<T> + Send,
) -> PyResult<T> {
    let (result, interrupt) = py.detach(|| {
        let interrupt = Interrupt::default();
        let result = work(&|| interrupt.check());
        (result, interrupt.raised.into_inner())
    });
    match interrupt {
        Some(exception) => Err(exception),
        None => result.raise(),
    }
}

/// Lets Ctrl-C end an execution: looks for signals from time to time, and keeps the exception of one.
struct Interrupt {
    looked: Cell<Instant>,
    raised: RefCell<Option<PyErr>>,
}

impl Default for Interrupt {
    fn default() -> Interrupt {
        Interrupt { looked: Cell::new(Instant::now()), raised: RefCell::new(None) }
    }
}

impl Interrupt {
    const PAUSE: Duration = Duration::from_millis(20);

    fn check(&self) -> max::Result<()> {
        if self.looked.get().elapsed() < Interrupt::PAUSE {
            return Ok(());
        }
        self.looked.set(Instant::now());
        match Python::try_attach(|py| py.check_signals()) {
            Some(Ok(())) => Ok(()),
            Some(Err(exception)) => {
                self.raised.replace(Some(exception));
                Err(max::Error::runtime("interrupted"))
            }
            None => Err(max::Error::runtime("interrupted: Python is shutting down")),
        }
    }
}
