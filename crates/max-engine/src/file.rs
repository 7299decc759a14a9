//! Saved graphs: written whole or not at all, read by mapping.

use std::fs::{self, File};
use std::io::Write;
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
    let shown = path.display();
    let metadata =
        fs::metadata(path).map_err(|e| Error::runtime(format!("cannot load {shown}: {e}; {ACCEPTED}")))?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() { "a folder" } else { "not a regular file" };
        bail!(runtime, "cannot load {shown}: it is {what}; {ACCEPTED}");
    }
    let len = usize::try_from(metadata.len())
        .map_err(|_| Error::runtime(format!("cannot load {shown}: too large")))?;
    let read =
        || encode::decode(&Buffer::mmap(path, DType::UInt8, &[len], MmapMode::ReadOnly, 0)?.host_bytes()?);
    read().map_err(|e| Error::runtime(format!("cannot load {shown}: {e}; {ACCEPTED}")))
}
