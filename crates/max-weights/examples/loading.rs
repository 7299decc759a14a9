//! How long it takes to load a file of 2 GB, and what memory that needs: `cargo run --release -p max-weights --example loading`.
//!
//! The file is made in the folder for temporary files, or in the one that is given, and removed afterwards.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use max_core::{DType, Result};
use max_driver::{Buffer, Device};
use max_weights::{Metadata, WeightData, load_weights, save_weights};

/// As many tensors as a model has.
const TENSORS: usize = 200;

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let path = folder.join(format!("max-weights-loading-{}.safetensors", std::process::id()));
    let values = Buffer::new(DType::Float32, &[1024, (2 << 30) / 4 / 1024 / TENSORS], &Device::cpu())?;
    let tensors =
        (0..TENSORS).map(|i| (format!("model.layers.{i}.weight"), WeightData::from(values.clone())));
    save_weights(&path, &tensors.collect::<BTreeMap<_, _>>(), &Metadata::new())?;
    drop(values);

    let before = resident();
    let start = Instant::now();
    let weights = load_weights(&[&path])?;
    let loaded = start.elapsed();
    let all = weights.names().map(|name| weights.get(name)).collect::<Result<Vec<_>>>()?;
    let got = start.elapsed();
    let after = resident();
    let sum: usize = all[7].data.host_bytes()?.iter().map(|&byte| usize::from(byte)).sum();
    println!("{} tensors, {:.2} GB", weights.len(), weights.file_bytes() as f64 / 1e9);
    println!("loaded in {loaded:.2?}, all weights handed out after {got:.2?}");
    println!(
        "resident memory: {:+} KiB for that, {:+} KiB after one weight was read (sum {sum})",
        after - before,
        resident() - before
    );
    std::fs::remove_file(&path).ok();
    Ok(())
}

/// The resident memory of this process in KiB.
fn resident() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
