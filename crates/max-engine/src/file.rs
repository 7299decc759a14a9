//! Saved graphs: written whole or not at all, read by mapping.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use max_core::{DType, Error, Result, bail};
use max_driver::{Buffer, MmapMode};
use max_graph::{Graph, encode, verify};

const ACCEPTED: &str = "a model is a Graph, or the path of a file written by Graph.save()";

/// Writes a graph to a file: first beside it, then under its name, so that a reader never sees half of it.
pub fn save_graph(graph: &Graph, path: &Path) -> Result<()> {
    let failed =
        |e: std::io::Error| Error::runtime(format!("cannot save the graph to {}: {e}", path.display()));
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

/// Reads a saved graph; its constants stay in the mapped file.
pub fn read_graph(path: &Path) -> Result<Graph> {
    let failed = |why: &str| Error::runtime(format!("cannot load '{}': {why}; {ACCEPTED}", path.display()));
    let metadata = fs::metadata(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => failed("the file does not exist"),
        _ => failed(&format!("the file cannot be read: {e}")),
    })?;
    if !metadata.is_file() {
        let is_dir = metadata.is_dir();
        return Err(failed(if is_dir {
            "it is a directory, not a file"
        } else {
            "it is not a regular file"
        }));
    }
    if metadata.len() == 0 {
        return Err(failed("the file is empty"));
    }
    let len = usize::try_from(metadata.len()).map_err(|_| failed("the file is too large"))?;
    let bytes = Buffer::mmap(path, DType::UInt8, &[len], MmapMode::CopyOnWrite, 0)
        .and_then(|file| file.host_bytes())
        .map_err(|e| failed(&format!("the file cannot be read: {e}")))?;
    encode::decode(&bytes).map_err(|e| failed(&e.to_string()))
}
