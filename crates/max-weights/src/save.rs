//! Writing files of weights: completely or not at all.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use max_core::{DType, Error, QuantizationEncoding, Result, bail};
use max_driver::Device;
use max_graph::host::byte_count;

use crate::{Metadata, WeightData, WeightsFormat, gguf, safetensors};

/// A tensor to be written.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) name: &'a str,
    /// The type of its elements; uint8 if they are encoded.
    pub(crate) dtype: DType,
    /// Its sizes; the last one counts bytes if its elements are encoded.
    pub(crate) shape: Vec<usize>,
    pub(crate) encoding: Option<QuantizationEncoding>,
}

/// How a file begins, and where the data of its tensors goes.
pub(crate) struct Plan {
    pub(crate) head: Vec<u8>,
    /// The numbers of the tensors in the order of their data, and how many bytes after the head it starts.
    pub(crate) order: Vec<(usize, usize)>,
    /// The number of bytes after the head.
    pub(crate) end: usize,
}

/// Writes weights to a file whose name tells the format, `.safetensors` or `.gguf`.
///
/// The file is written beside the target and then renamed, so nobody sees half of it, and a file that is mapped can be
/// replaced.
pub fn save_weights(
    path: impl AsRef<Path>,
    weights: &BTreeMap<String, WeightData>,
    metadata: &Metadata,
) -> Result<()> {
    let path = path.as_ref();
    let tensors = weights.iter().map(|(name, value)| Outgoing {
        name,
        dtype: value.dtype(),
        shape: value.shape().to_vec(),
        encoding: value.quantization_encoding,
    });
    let tensors: Vec<_> = tensors.collect();
    let values: Vec<_> = weights.values().collect();
    save(path, WeightsFormat::of_path(path)?, &tensors, metadata, &mut |number, out| {
        let bytes = values[number].data.to(&Device::cpu())?.host_bytes()?;
        out(&bytes)
    })
}

/// What gives the bytes of the tensor with a number, piece by piece.
pub(crate) type Data<'a> = dyn FnMut(usize, &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> + 'a;

/// Writes tensors to a file.
pub(crate) fn save(
    path: &Path,
    format: WeightsFormat,
    tensors: &[Outgoing<'_>],
    metadata: &Metadata,
    data: &mut Data<'_>,
) -> Result<()> {
    let plan = match format {
        WeightsFormat::Safetensors => safetensors::plan(tensors, metadata)?,
        WeightsFormat::Gguf => gguf::plan(tensors, metadata)?,
        other => bail!(value, "cannot write '{}': {other} files are only read", path.display()),
    };
    whole_file(path, |file| {
        let failed = |error: io::Error| Error::runtime(format!("cannot write '{}': {error}", path.display()));
        file.write_all(&plan.head).map_err(failed)?;
        let mut at = 0;
        for &(number, start) in &plan.order {
            pad(file, start - at).map_err(failed)?;
            let size = byte_count(tensors[number].dtype, &tensors[number].shape)?;
            at = start;
            data(number, &mut |bytes| {
                at += bytes.len();
                file.write_all(bytes).map_err(failed)
            })?;
            if at != start + size {
                bail!(internal, "'{}' has {} bytes and not {size}", tensors[number].name, at - start);
            }
        }
        pad(file, plan.end - at).map_err(failed)
    })
}

fn pad(file: &mut dyn Write, count: usize) -> io::Result<()> {
    io::copy(&mut io::Read::take(io::repeat(0), count as u64), file).map(|_| ())
}

/// Writes a temporary file beside the target and renames it.
fn whole_file(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> Result<()>) -> Result<()> {
    static SAVES: AtomicU64 = AtomicU64::new(0);
    let failed = |error: io::Error| Error::runtime(format!("cannot write '{}': {error}", path.display()));
    let Some(name) = path.file_name() else {
        bail!(runtime, "cannot write '{}': it does not name a file", path.display());
    };
    let mut partial = name.to_os_string();
    partial.push(format!(".{}.{}.part", std::process::id(), SAVES.fetch_add(1, Ordering::Relaxed)));
    let partial = path.with_file_name(partial);
    let attempt = || {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&partial).map_err(failed)?);
        write(&mut file)?;
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        fs::rename(&partial, path).map_err(failed)
    };
    attempt().inspect_err(|_| {
        // The partial file may not exist; the first error is the one to report.
        let _ = fs::remove_file(&partial);
    })
}
