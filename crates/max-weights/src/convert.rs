//! Weights of any format as a new safetensors or GGUF file, with matrices in another dtype or encoding if wanted.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::thread;

use max_core::{DType, Error, HostBytes, QuantizationEncoding, Result, bail};
use max_driver::Buffer;
use serde::Serialize;

use crate::save::{Outgoing, save};
use crate::weight_data::{decoded_shape, encoded_shape};
use crate::{Metadata, MetadataValue, WeightData, WeightInfo, Weights, WeightsFormat, load_weights};

/// What matrices become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Floats of a dtype.
    DType(DType),
    /// Blocks of an encoding.
    Encoding(QuantizationEncoding),
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(name: &str) -> Result<Target> {
        match (name.parse::<DType>(), name.parse::<QuantizationEncoding>()) {
            (Ok(dtype), _) if dtype.is_float() => Ok(Target::DType(dtype)),
            (_, Ok(encoding)) if encoding.blocks().is_some() => Ok(Target::Encoding(encoding)),
            _ => bail!(
                value,
                "'{name}' is nothing that weights can be converted to: the name of a float dtype, such as bfloat16, or of an \
                 encoding with blocks, such as q4_k, was expected"
            ),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::DType(dtype) => f.pad(dtype.name()),
            Target::Encoding(encoding) => f.pad(encoding.name()),
        }
    }
}

/// How far a conversion is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The name of the tensor that is being written.
    pub name: &'a str,
    /// How many bytes of tensors were written.
    pub written: u64,
    /// How many there will be.
    pub total: u64,
}

/// What a conversion did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Conversion {
    /// How many tensors were written.
    pub tensors: usize,
    /// How many of them are in another dtype or encoding now.
    pub converted: usize,
    /// How many bytes of tensors were read.
    pub bytes_read: u64,
    /// How many bytes of tensors were written.
    pub bytes_written: u64,
    /// Matrices that were left as they are because their rows are not whole blocks.
    pub not_whole: Vec<String>,
}

/// How many elements are converted at a time, by one thread; a multiple of the elements of every block.
const PIECE: usize = 1 << 18;

/// Writes weights of files of any format to one file, whose name tells the format: `.safetensors` or `.gguf`.
///
/// Without a target all tensors stay as they are. With one, matrices of floats (everything with two or more axes) and
/// encoded tensors are converted; vectors, which are small and sensitive, and integers stay as they are. Progress is
/// reported before each tensor, and at the end.
pub fn convert(
    inputs: &[impl AsRef<Path>],
    output: impl AsRef<Path>,
    target: Option<Target>,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Conversion> {
    let output = output.as_ref();
    let format = WeightsFormat::of_path(output)?;
    let weights = load_weights(inputs)?;
    let names: Vec<_> = weights.names().collect();
    let mut done = Conversion { tensors: names.len(), ..Conversion::default() };
    let (mut tensors, mut sizes) = (Vec::new(), Vec::new());
    for &name in &names {
        let info = weights.info(name)?;
        let outgoing = outgoing(name, &info, target, &mut done)
            .map_err(|e| e.prefixed(&format!("tensor '{name}': ")))?;
        done.bytes_read += info.num_bytes as u64;
        sizes.push(max_graph::host::byte_count(outgoing.dtype, &outgoing.shape)? as u64);
        tensors.push(outgoing);
    }
    let total = sizes.iter().sum();
    save(output, format, &tensors, &metadata(&weights, target), &mut |number, out| {
        let name = names[number];
        progress(Progress { name, written: done.bytes_written, total });
        done.bytes_written += sizes[number];
        write(&weights.get(name)?, &tensors[number], out)
    })?;
    progress(Progress { name: "", written: done.bytes_written, total });
    Ok(done)
}

/// What a weight becomes.
fn outgoing<'a>(
    name: &'a str,
    info: &WeightInfo,
    target: Option<Target>,
    done: &mut Conversion,
) -> Result<Outgoing<'a>> {
    let encoding = info.quantization_encoding;
    let elements = match encoding {
        Some(encoding) => decoded_shape(&info.shape, encoding)?,
        None => info.shape.clone(),
    };
    let same = Outgoing { name, dtype: info.dtype, shape: info.shape.clone(), encoding };
    let changes = encoding.is_some() || info.dtype.is_float() && elements.len() > 1;
    let Some(target) = target.filter(|_| changes) else { return Ok(same) };
    let other = match target {
        Target::DType(dtype) => Outgoing { name, dtype, shape: elements, encoding: None },
        Target::Encoding(encoding) => match encoded_shape(&elements, encoding) {
            Ok(shape) => Outgoing { name, dtype: DType::UInt8, shape, encoding: Some(encoding) },
            Err(_) => {
                done.not_whole.push(name.into());
                return Ok(same);
            }
        },
    };
    done.converted += usize::from((other.dtype, other.encoding) != (same.dtype, same.encoding));
    Ok(other)
}

/// What is still true of weights with another encoding.
fn metadata(weights: &Weights, target: Option<Target>) -> Metadata {
    let mut metadata = weights.metadata().clone();
    if target.is_some() {
        metadata.remove("general.file_type");
    }
    if let Some(Target::Encoding(_)) = target {
        metadata.insert("general.quantization_version".into(), MetadataValue::UInt32(2));
    }
    metadata
}

/// Writes a value as another one, piece by piece, some of them at the same time.
fn write(value: &WeightData, to: &Outgoing<'_>, out: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let bytes = value.data.host_bytes()?;
    if (value.dtype(), value.quantization_encoding) == (to.dtype, to.encoding) {
        return out(&bytes);
    }
    let step = match value.quantization_encoding {
        Some(encoding) => PIECE / encoding.format()?.elements * encoding.format()?.bytes,
        None => PIECE * value.dtype().size_in_bytes(),
    };
    let convert = |start: usize| -> Result<HostBytes> {
        let piece = bytes.slice(start, step.min(bytes.len() - start));
        let piece = piece.ok_or_else(|| Error::internal("a piece of the bytes"))?;
        let shape = [piece.len() / value.dtype().size_in_bytes()];
        let data = Buffer::from_host_bytes(piece, value.dtype(), &shape)?;
        let piece = WeightData { data, quantization_encoding: value.quantization_encoding };
        match to.encoding {
            Some(encoding) => piece.encode(encoding)?.data.host_bytes(),
            None => piece.astype(to.dtype)?.data.host_bytes(),
        }
    };
    let starts: Vec<_> = (0..bytes.len()).step_by(step).collect();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    for starts in starts.chunks(threads) {
        let pieces: Vec<_> = thread::scope(|scope| {
            let running: Vec<_> = starts.iter().map(|&start| scope.spawn(move || convert(start))).collect();
            running.into_iter().map(|thread| thread.join()).collect()
        });
        for piece in pieces {
            out(&piece
                .unwrap_or_else(|_| Err(Error::internal("a thread that converts weights has failed")))?)?;
        }
    }
    Ok(())
}
