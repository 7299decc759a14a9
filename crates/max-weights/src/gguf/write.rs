//! Writing GGUF.

use max_core::{Error, Result, bail};
use max_graph::host::byte_count;

use super::value::{write, write_text};
use super::{ALIGNMENT, KINDS, Kind, MAGIC};
use crate::Metadata;
use crate::save::{Outgoing, Plan};
use crate::weight_data::decoded_shape;

/// The version that is written.
const VERSION: u32 = 3;

/// The description of a file, and where the data of its tensors goes.
pub(crate) fn plan(tensors: &[Outgoing<'_>], metadata: &Metadata) -> Result<Plan> {
    let (key, alignment) = ALIGNMENT;
    // What is written is aligned as files are that do not say how.
    let metadata: Vec<_> = metadata.iter().filter(|(name, _)| *name != key).collect();
    let mut head = MAGIC.to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        write_text(key, &mut head);
        write(value, &mut head);
    }
    let (mut order, mut end) = (Vec::new(), 0usize);
    for (number, tensor) in tensors.iter().enumerate() {
        describe(tensor, end, &mut head)?;
        order.push((number, end));
        let bytes = byte_count(tensor.dtype, &tensor.shape)?;
        let next = end.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(alignment));
        end = next.ok_or_else(|| Error::value("the tensors are too large for one file"))?;
    }
    head.resize(head.len().next_multiple_of(alignment), 0);
    Ok(Plan { head, order, end })
}

fn describe(tensor: &Outgoing<'_>, offset: usize, head: &mut Vec<u8>) -> Result<()> {
    let Outgoing { name, dtype, shape, encoding } = tensor;
    let kind = encoding.map_or(Kind::Elements(*dtype), Kind::Blocks);
    let Some((number, _)) = KINDS.iter().find(|(_, known)| *known == kind) else {
        let kind = encoding.map_or(dtype.name(), |encoding| encoding.name());
        bail!(value, "tensor '{name}' is {kind}, which GGUF files do not have; convert it first");
    };
    if shape.len() > 4 {
        bail!(value, "tensor '{name}' has {} axes, and GGUF files have at most 4", shape.len());
    }
    let sizes = match encoding {
        Some(encoding) => {
            decoded_shape(shape, *encoding).map_err(|e| e.prefixed(&format!("tensor '{name}': ")))?
        }
        None => shape.clone(),
    };
    write_text(name, head);
    head.extend((sizes.len() as u32).to_le_bytes());
    sizes.iter().rev().for_each(|&size| head.extend((size as u64).to_le_bytes()));
    head.extend(number.to_le_bytes());
    head.extend((offset as u64).to_le_bytes());
    Ok(())
}
