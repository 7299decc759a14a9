//! The line of the user's program that called into this package.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use max::{FileName, Location};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;

/// A cache of what is known about frames: ops are called from the same few places again and again.
#[derive(Default)]
struct Memory {
    /// The code objects of this package seen so far, by address. They are kept alive so that no address is reused.
    own_code: HashMap<usize, Py<PyAny>>,
    /// The last file name that was looked up.
    file: Option<(Py<PyAny>, Arc<str>)>,
}

/// The most code objects that are cached; this package has fewer.
const MOST: usize = 10_000;

static MEMORY: Mutex<Option<Memory>> = Mutex::new(None);

/// The line of the innermost frame outside the modules of this package.
pub fn caller(py: Python<'_>) -> PyResult<Location> {
    static GETFRAME: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let mut frame = GETFRAME.import(py, "sys", "_getframe")?.call0()?;
    loop {
        let code = frame.getattr(intern!(py, "f_code"))?;
        if !is_own(&frame, &code)? {
            return location(&frame, &code);
        }
        let outer = frame.getattr(intern!(py, "f_back"))?;
        if outer.is_none() {
            return location(&frame, &code);
        }
        frame = outer;
    }
}

/// Uses the cache. No Python code may run meanwhile, because it could re-enter this function.
fn remember<R>(work: impl FnOnce(&mut Memory) -> R) -> R {
    let mut memory = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    work(memory.get_or_insert_with(Memory::default))
}

/// Whether a frame runs code of this package.
fn is_own(frame: &Bound<'_, PyAny>, code: &Bound<'_, PyAny>) -> PyResult<bool> {
    let address = code.as_ptr().addr();
    if remember(|memory| memory.own_code.contains_key(&address)) {
        return Ok(true);
    }
    let py = frame.py();
    let Ok(name) = frame.getattr(intern!(py, "f_globals"))?.get_item(intern!(py, "__name__")) else {
        return Ok(false);
    };
    let Ok(name) = name.cast::<PyString>() else { return Ok(false) };
    let name = name.to_cow()?;
    let own = name == "max" || name.starts_with("max.");
    if own && remember(|memory| memory.own_code.len()) < MOST {
        let code = code.clone().unbind();
        remember(|memory| memory.own_code.insert(address, code));
    }
    Ok(own)
}

fn location(frame: &Bound<'_, PyAny>, code: &Bound<'_, PyAny>) -> PyResult<Location> {
    let py = frame.py();
    let line: u32 = frame.getattr(intern!(py, "f_lineno"))?.extract().unwrap_or(0);
    let name = code.getattr(intern!(py, "co_filename"))?;
    let known = remember(|memory| match &memory.file {
        Some((object, file)) if object.is(&name) => Some(file.clone()),
        _ => None,
    });
    let file = match known {
        Some(file) => file,
        None => {
            let file: Arc<str> = name.extract::<String>()?.into();
            let before = remember(|memory| memory.file.replace((name.unbind(), file.clone())));
            drop(before);
            file
        }
    };
    Ok(Location { file: FileName::Shared(file), line })
}
