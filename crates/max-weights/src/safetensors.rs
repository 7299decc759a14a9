//! Safetensors: the length of a JSON header, the header, and the data of all tensors without gaps.

use std::collections::BTreeMap;
use std::fmt;

use max_core::{DType, Error, Result, bail};
use max_graph::host::byte_count;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Value, json};

use crate::contents::{Contents, Tensor, sizes};
use crate::metadata::{Metadata, MetadataValue};
use crate::save::{Outgoing, Plan};
use crate::source::Source;

/// The longest header, as in other readers.
const MOST_HEADER: usize = 100_000_000;

/// The data starts at a multiple of this many bytes.
const ALIGNMENT: usize = 64;

/// The key that is not a tensor.
const METADATA: &str = "__metadata__";

/// The names of dtypes in files. Elements of fewer than eight bits are packed there, so they are given as bytes.
const DTYPES: &[(&str, DType, usize)] = &[
    ("BOOL", DType::Bool, 8),
    ("F4", DType::UInt8, 4),
    ("F6_E2M3", DType::UInt8, 6),
    ("F6_E3M2", DType::UInt8, 6),
    ("U8", DType::UInt8, 8),
    ("I8", DType::Int8, 8),
    ("F8_E5M2", DType::Float8E5M2, 8),
    ("F8_E4M3", DType::Float8E4M3FN, 8),
    ("F8_E8M0", DType::Float8E8M0FNU, 8),
    ("F8_E4M3FNUZ", DType::Float8E4M3FNUZ, 8),
    ("F8_E5M2FNUZ", DType::Float8E5M2FNUZ, 8),
    ("I16", DType::Int16, 16),
    ("U16", DType::UInt16, 16),
    ("F16", DType::Float16, 16),
    ("BF16", DType::BFloat16, 16),
    ("I32", DType::Int32, 32),
    ("U32", DType::UInt32, 32),
    ("F32", DType::Float32, 32),
    ("F64", DType::Float64, 64),
    ("I64", DType::Int64, 64),
    ("U64", DType::UInt64, 64),
];

/// What a file contains.
pub(crate) fn read(source: &Source) -> Result<Contents> {
    let length = source.read(0, 8)?.try_into().map(u64::from_le_bytes).unwrap_or(0);
    let rest = source.len() - 8;
    let length = match usize::try_from(length) {
        Ok(length) if length <= rest.min(MOST_HEADER) => length,
        _ => bail!(
            value,
            "it is not a safetensors file, or truncated: its header would have {length} bytes, but {rest} follow, and \
             a header has at most {MOST_HEADER}"
        ),
    };
    let text = source.read(8, length)?;
    if text.first() != Some(&b'{') {
        bail!(value, "it is not a safetensors file: its header does not start with '{{'");
    }
    let header: Header = serde_json::from_slice(&text)
        .map_err(|error| Error::value(format!("its header is not one of a safetensors file: {error}")))?;

    let (first, size) = (8 + length, rest - length);
    let tensors =
        header.tensors.into_iter().map(|(name, row)| row.place(&name, first, size).map(|t| (name, t)));
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    without_gaps(&tensors, first, size)?;
    Ok(Contents { tensors, metadata: header.metadata })
}

/// The data of tensors covers a file exactly once, so that no bytes are hidden in it, and none are two tensors.
fn without_gaps(tensors: &[(String, Tensor)], first: usize, size: usize) -> Result<()> {
    let mut order: Vec<_> = tensors.iter().collect();
    order.sort_by_key(|(_, tensor)| (tensor.start, tensor.bytes));
    let mut at = first;
    for (name, tensor) in order {
        match tensor.start.cmp(&at) {
            std::cmp::Ordering::Less => bail!(value, "the data of tensor '{name}' overlaps that of another"),
            std::cmp::Ordering::Greater => bail!(value, "there is a gap before the data of tensor '{name}'"),
            std::cmp::Ordering::Equal => at += tensor.bytes,
        }
    }
    if at != first + size {
        bail!(value, "{} bytes after the last tensor belong to none", first + size - at);
    }
    Ok(())
}

/// The header: tensors in its order, and metadata.
struct Header {
    tensors: Vec<(String, Row)>,
    metadata: Metadata,
}

/// A tensor in the header.
#[derive(Deserialize)]
struct Row {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl Row {
    /// The tensor in a file whose data has some bytes from a first one on.
    fn place(&self, name: &str, first: usize, size: usize) -> Result<Tensor> {
        let Some(&(_, dtype, bits)) = DTYPES.iter().find(|(known, ..)| *known == self.dtype) else {
            let known: Vec<_> = DTYPES.iter().map(|(name, ..)| *name).collect();
            let dtype: String = self.dtype.chars().take(40).collect();
            bail!(value, "tensor '{name}' has the dtype '{dtype}', which is none of {}", known.join(", "));
        };
        let mut shape = sizes(name, &self.shape)?;
        if bits < 8 {
            let packed = shape.last_mut().and_then(|last| {
                let bits = last.checked_mul(bits)?;
                *last = bits / 8;
                bits.is_multiple_of(8).then_some(())
            });
            if packed.is_none() {
                bail!(
                    value,
                    "rows of tensor '{name}' with {bits} bits per element are no whole bytes: {:?}",
                    self.shape
                );
            }
        }
        let [start, end] = self.data_offsets;
        let tensor =
            Tensor::new(dtype, shape, 0).map_err(|error| error.prefixed(&format!("tensor '{name}': ")))?;
        if start > end || end > size as u64 || end - start != tensor.bytes as u64 {
            bail!(
                value,
                "tensor '{name}' has {} bytes, but its data is from byte {start} to {end} of {size}",
                tensor.bytes
            );
        }
        Ok(Tensor { start: first + start as usize, ..tensor })
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        struct Rows;
        impl<'de> Visitor<'de> for Rows {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header { tensors: Vec::new(), metadata: Metadata::new() };
                let mut seen = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name != METADATA {
                        header.tensors.push((name, map.next_value()?));
                        continue;
                    }
                    if std::mem::replace(&mut seen, true) {
                        return Err(A::Error::custom("there are two entries with metadata"));
                    }
                    let texts = map.next_value::<Option<BTreeMap<String, String>>>()?;
                    header.metadata = texts
                        .into_iter()
                        .flatten()
                        .map(|(key, text)| (key, MetadataValue::String(text)))
                        .collect();
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Rows)
    }
}

/// The header of a file, and where the data of its tensors goes.
pub(crate) fn plan(tensors: &[Outgoing<'_>], metadata: &Metadata) -> Result<Plan> {
    // Large elements first, so that all are aligned.
    let mut order: Vec<_> = (0..tensors.len()).collect();
    order.sort_by_key(|&number| {
        (std::cmp::Reverse(tensors[number].dtype.size_in_bytes()), tensors[number].name)
    });
    let (mut header, mut places, mut at) = (serde_json::Map::new(), Vec::new(), 0usize);
    if !metadata.is_empty() {
        let texts = metadata.iter().map(|(key, value)| (key.clone(), value.to_string().into()));
        header.insert(METADATA.into(), Value::Object(texts.collect()));
    }
    for number in order {
        let Outgoing { name, dtype, shape, encoding } = &tensors[number];
        if let Some(encoding) = encoding.filter(|encoding| encoding.blocks().is_some()) {
            bail!(
                value,
                "tensor '{name}' is encoded as {encoding}, which safetensors files cannot say; decode it to a dtype"
            );
        }
        let Some((code, ..)) =
            DTYPES.iter().find(|(_, known, bits)| known == dtype && *bits == 8 * dtype.size_in_bytes())
        else {
            bail!(value, "tensor '{name}' has the dtype {dtype}, which safetensors files do not have");
        };
        let end = byte_count(*dtype, shape)?.checked_add(at);
        let Some(end) = end else { bail!(value, "the tensors are too large for one file") };
        let row = json!({ "dtype": code, "shape": shape, "data_offsets": [at, end] });
        if *name == METADATA || header.insert(name.to_string(), row).is_some() {
            bail!(value, "a safetensors file cannot have another tensor with the name '{name}'");
        }
        places.push((number, at));
        at = end;
    }
    let mut head = vec![0; 8];
    serde_json::to_writer(&mut head, &header).map_err(|error| Error::internal(error.to_string()))?;
    head.resize(head.len().next_multiple_of(ALIGNMENT), b' ');
    let length = head.len() - 8;
    if length > MOST_HEADER {
        bail!(
            value,
            "the header would have {length} bytes, more than the {MOST_HEADER} of a safetensors file"
        );
    }
    head[..8].copy_from_slice(&(length as u64).to_le_bytes());
    Ok(Plan { head, order: places, end: at })
}
