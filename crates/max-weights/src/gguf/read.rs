//! Reading GGUF.

use max_core::{DType, Error, Result, bail};
use max_graph::host::byte_count;

use super::value::{Reader, text};
use super::{ALIGNMENT, KINDS, Kind, MAGIC};
use crate::contents::{Contents, Tensor, sizes};
use crate::source::Source;
use crate::weight_data::encoded_shape;
use crate::{Metadata, MetadataValue};

/// The most axes that a tensor of a file has.
const MOST_AXES: u32 = 4;

/// What a file contains.
pub(crate) fn read(source: &Source) -> Result<Contents> {
    let mut reader = Reader::new(source)?;
    if reader.bytes()? != MAGIC {
        bail!(value, "it is not a GGUF file: it does not start with GGUF");
    }
    match u32::from_le_bytes(reader.bytes()?) {
        2 | 3 => {}
        version if version.swap_bytes() <= 3 => bail!(value, "it is a GGUF file of a big-endian machine"),
        version => bail!(value, "it has version {version} of GGUF; versions 2 and 3 can be read"),
    }
    // A tensor has at least its name's length, the number of its axes, its type and its offset; a value at least its
    // name's length, its type and a byte.
    let tensors = reader.count("tensors", 8 + 4 + 4 + 8)?;
    let metadata = metadata(&mut reader)?;
    let alignment = alignment(&metadata)?;
    let rows = (0..tensors).map(|_| Row::read(&mut reader)).collect::<Result<Vec<_>>>()?;
    let first = reader.at().next_multiple_of(alignment);
    let tensors =
        rows.into_iter().map(|row| row.place(first, alignment, source.len())).collect::<Result<Vec<_>>>()?;
    without_overlap(&tensors)?;
    Ok(Contents { tensors, metadata })
}

fn metadata(reader: &mut Reader<'_>) -> Result<Metadata> {
    let mut metadata = Metadata::new();
    for _ in 0..reader.count("values of metadata", 8 + 4 + 1)? {
        let key = text(reader)?;
        let value = reader.value().map_err(|error| error.prefixed(&format!("'{key}': ")))?;
        if metadata.contains_key(&key) {
            bail!(value, "its metadata has two values with the name '{key}'");
        }
        metadata.insert(key, value);
    }
    Ok(metadata)
}

/// To multiples of how many bytes the data is aligned.
fn alignment(metadata: &Metadata) -> Result<usize> {
    let (key, default) = ALIGNMENT;
    match metadata.get(key) {
        None => Ok(default),
        Some(MetadataValue::UInt32(value)) if value.is_power_of_two() => Ok(*value as usize),
        Some(other) => bail!(
            value,
            "its data cannot be aligned to {other} bytes: {key} is a power of two of type uint32"
        ),
    }
}

/// Data of two tensors never shares bytes.
fn without_overlap(tensors: &[(String, Tensor)]) -> Result<()> {
    let mut order: Vec<_> = tensors.iter().filter(|(_, tensor)| tensor.bytes > 0).collect();
    order.sort_by_key(|(_, tensor)| tensor.start);
    for pair in order.windows(2) {
        let [(name, tensor), (other, next)] = pair else { continue };
        if next.start - tensor.start < tensor.bytes {
            bail!(value, "the data of the tensors '{name}' and '{other}' overlaps");
        }
    }
    Ok(())
}

/// The description of a tensor.
struct Row {
    name: String,
    /// Sizes, the fastest axis first.
    shape: Vec<u64>,
    kind: u32,
    offset: u64,
}

impl Row {
    fn read(reader: &mut Reader<'_>) -> Result<Row> {
        let name = text(reader)?;
        let axes = u32::from_le_bytes(reader.bytes()?);
        if axes > MOST_AXES {
            bail!(value, "tensor '{name}' has {axes} axes, more than {MOST_AXES}");
        }
        let shape = (0..axes).map(|_| reader.bytes().map(u64::from_le_bytes)).collect::<Result<_>>()?;
        let kind = u32::from_le_bytes(reader.bytes()?);
        Ok(Row { name, shape, kind, offset: u64::from_le_bytes(reader.bytes()?) })
    }

    /// The tensor in a file of some bytes whose data begins at a first one.
    fn place(self, first: usize, alignment: usize, len: usize) -> Result<(String, Tensor)> {
        let Row { name, mut shape, kind, offset } = self;
        let Some(&(_, kind)) = KINDS.iter().find(|(number, _)| *number == kind) else {
            bail!(value, "tensor '{name}' has the type {kind}, which cannot be read");
        };
        let about = |error: Error| error.prefixed(&format!("tensor '{name}': "));
        shape.reverse();
        let mut shape = sizes(&name, &shape)?;
        let (dtype, encoding) = match kind {
            Kind::Elements(dtype) => (dtype, None),
            Kind::Blocks(encoding) => {
                // What is encoded can be decoded, even where there is nothing.
                byte_count(DType::Float32, &shape).map_err(about)?;
                shape = encoded_shape(&shape, encoding).map_err(about)?;
                (DType::UInt8, Some(encoding))
            }
        };
        let tensor = Tensor::new(dtype, shape, 0).map_err(about)?;
        let start = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(first));
        let end = start.and_then(|start| start.checked_add(tensor.bytes));
        // Where there is no data, it does not matter where that is.
        let start = match (start, end) {
            _ if tensor.bytes == 0 => first.min(len),
            (Some(start), Some(end)) if end <= len && offset.is_multiple_of(alignment as u64) => start,
            _ => bail!(
                value,
                "tensor '{name}' has {} bytes from byte {offset} of the data on, which is not aligned to {alignment} \
                 bytes or beyond the end of the file",
                tensor.bytes
            ),
        };
        Ok((name, Tensor { start, encoding, ..tensor }))
    }
}
