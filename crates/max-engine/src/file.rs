//! Saved graphs: written completely or not at all, and read completely.
//!
//! Files are read, not mapped. A mapping would expose later changes to the file: constants that kernels have packed
//! would stay old while others change, and a truncated file would kill the process. What is read is checked once and
//! does not change afterwards.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use max_core::{Error, ErrorKind, Result, bail};
use max_driver::Buffer;
use max_graph::{Graph, KernelLibrary, encode, verify};

use crate::session::require_memory_for;

const ACCEPTED: &str = "a model is a Graph, or the path of a file written by Graph.save()";

/// Writes a graph to a temporary file beside the target and renames it, so that a reader never sees half of it.
pub fn save_graph(graph: &Graph, path: &Path) -> Result<()> {
    let failed =
        |e: std::io::Error| Error::runtime(format!("cannot save the graph to {}: {e}", path.display()));
    require_memory_for(graph.num_ops())?;
    let body = graph.body();
    verify(&body)?;
    let Some(name) = path.file_name() else {
        bail!(runtime, "cannot save the graph to {}: it does not name a file", path.display());
    };
    let mut partial = name.to_os_string();
    static SAVES: AtomicU64 = AtomicU64::new(0);
    partial.push(format!(".{}.{}.part", std::process::id(), SAVES.fetch_add(1, Ordering::Relaxed)));
    let partial = path.with_file_name(partial);
    let write = || {
        let mut file = File::create(&partial)?;
        for piece in encode::encode(&body) {
            file.write_all(&piece)?;
        }
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().map_err(|e| {
        // The partial file may not exist; the first error is the one to report.
        let _ = fs::remove_file(&partial);
        failed(e)
    })
}

/// Reads a saved graph into memory.
pub fn read_graph(path: &Path) -> Result<Graph> {
    read_graph_in(path, &KernelLibrary::new())
}

/// Reads a saved graph whose custom ops are those of a library.
pub fn read_graph_in(path: &Path, library: &KernelLibrary) -> Result<Graph> {
    let failed = |e: &dyn Display| format!("cannot load '{}': {e}; {ACCEPTED}", path.display());
    let unreadable = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => Error::runtime("the file does not exist"),
        _ => Error::runtime(format!("the file cannot be read: {e}")),
    };
    let read = || {
        // Opening a pipe would wait for a writer, so check first.
        let metadata = fs::metadata(path).map_err(unreadable)?;
        if metadata.is_dir() {
            bail!(runtime, "it is a directory, not a file");
        }
        if !metadata.is_file() {
            bail!(runtime, "it is not a regular file");
        }
        let file = File::open(path).map_err(unreadable)?;
        let len = file.metadata().map_err(unreadable)?.len();
        if len == 0 {
            bail!(runtime, "the file is empty");
        }
        let len = usize::try_from(len).map_err(|_| Error::memory(format!("it has {len} bytes")))?;
        let graph = encode::decode_in(&Buffer::from_reader(file, len)?.host_bytes()?, library)?;
        Ok(graph.with_library(library))
    };
    read().map_err(|e| match e.kind() {
        ErrorKind::Memory => Error::memory(failed(&e)),
        _ => Error::runtime(failed(&e)),
    })
}
