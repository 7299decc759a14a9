//! Native code that runs without the GIL until it is done, is interrupted by Ctrl-C, or the interpreter ends.
//!
//! A daemon thread may still be computing when the interpreter finalizes. Two things could then crash the process:
//! `PyGILState_Ensure` dereferences a null pointer once the interpreter is gone, and before Python 3.14 a thread that
//! waits for the GIL is unwound, which aborts when it reaches Rust frames. So native code gets the GIL back through
//! [`attached`], with its original thread state, and runs Python code through [`call`]; in both, a thread waits until
//! the process is gone.

use std::cell::{Cell, RefCell};
use std::sync::atomic::AtomicPtr;
use std::time::{Duration, Instant};
use std::{mem, ptr, thread};

use pyo3::ffi::{self, PyObject, PyThreadState};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::error::Raise;

/// Runs work without the GIL until it is done, or until Ctrl-C ends it at a point where it asks whether to go on.
pub fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&dyn Fn() -> max::Result<()>) -> max::Result<T> + Send,
) -> PyResult<T> {
    // SAFETY: the thread is attached.
    let state = AtomicPtr::new(unsafe { ffi::PyThreadState_Get() });
    let (result, interrupt) = py.detach(|| {
        let interrupt = Interrupt::default();
        let result = detached_from(state.into_inner(), || work(&|| interrupt.check()));
        (result, interrupt.raised.into_inner())
    });
    match interrupt {
        Some(exception) => Err(exception),
        None => result.raise(),
    }
}

thread_local! {
    /// The thread state to attach with, while this thread runs native code without the GIL; otherwise null.
    static STATE: Cell<*mut PyThreadState> = const { Cell::new(ptr::null_mut()) };
}

fn detached_from<R>(state: *mut PyThreadState, work: impl FnOnce() -> R) -> R {
    struct Reset(*mut PyThreadState);
    impl Drop for Reset {
        fn drop(&mut self) {
            STATE.set(self.0);
        }
    }
    let _reset = Reset(STATE.replace(state));
    work()
}

/// Runs work with the GIL, which the thread may or may not hold. Does not return if the interpreter is finalizing.
pub fn attached<R>(work: impl FnOnce(Python<'_>) -> R) -> R {
    struct Detach;
    impl Drop for Detach {
        fn drop(&mut self) {
            // SAFETY: the thread is attached, with the state that was saved where it was first detached.
            unsafe { ffi::PyEval_SaveThread() };
        }
    }
    let state = STATE.get();
    if state.is_null() {
        return Python::attach(work);
    }
    // SAFETY: this is the state of this thread, which is detached.
    unsafe { ffi::PyEval_RestoreThread(state) };
    let _detach = Detach;
    detached_from(ptr::null_mut(), || Python::attach(work))
}

/// Calls an object that may run Python code. Does not return if the interpreter finalizes meanwhile.
pub fn call<'py>(
    callable: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    /// Dropped only while the stack is unwound to end the thread.
    struct Wait;
    impl Drop for Wait {
        fn drop(&mut self) {
            loop {
                thread::park();
            }
        }
    }
    type Nounwind = unsafe extern "C" fn(*mut PyObject, *mut PyObject, *mut PyObject) -> *mut PyObject;
    type Unwind = unsafe extern "C-unwind" fn(*mut PyObject, *mut PyObject, *mut PyObject) -> *mut PyObject;
    // The compiler must not see which function this is, as that is declared not to unwind.
    let function = std::hint::black_box(ffi::PyObject_Call as Nounwind);
    // SAFETY: the two types differ only in what the compiler assumes about unwinding.
    let function = unsafe { mem::transmute::<Nounwind, Unwind>(function) };
    let options = options.map_or(ptr::null_mut(), |options| options.as_ptr());
    let wait = Wait;
    // SAFETY: the thread is attached, and all objects are alive.
    let result = unsafe { function(callable.as_ptr(), args.as_ptr(), options) };
    mem::forget(wait);
    // SAFETY: the call returned a new reference, or null and an exception.
    unsafe { Bound::from_owned_ptr_or_err(callable.py(), result) }
}

/// Lets Ctrl-C end an execution: checks for signals from time to time, and keeps the exception that one raises.
#[derive(Default)]
struct Interrupt {
    /// When it checked, or was first asked to.
    looked: Cell<Option<Instant>>,
    raised: RefCell<Option<PyErr>>,
}

impl Interrupt {
    const PAUSE: Duration = Duration::from_millis(20);

    fn check(&self) -> max::Result<()> {
        let now = Instant::now();
        let looked = self.looked.get().unwrap_or(now);
        let wait = now.duration_since(looked) < Interrupt::PAUSE;
        self.looked.set(Some(if wait { looked } else { now }));
        if wait {
            return Ok(());
        }
        attached(|py| py.check_signals()).map_err(|exception| {
            self.raised.replace(Some(exception));
            max::Error::runtime("interrupted")
        })
    }
}
