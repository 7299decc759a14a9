//! PyTorch checkpoints: zip archives with a pickle that describes tensors, and an uncompressed entry for each storage.
//!
//! A pickle is a program for a stack machine that can call anything. The machine here ([`pickle`]) has no way to do so: it
//! only builds values, and a call is one more value, of a function from a short list that state dicts need. [`state`] then
//! looks for tensors among the values.

mod archive;
mod globals;
mod pickle;
mod state;

use std::collections::HashMap;
use std::ops::Range;

use max_core::{Result, bail};

use crate::contents::Contents;
use crate::source::Source;
use archive::Archive;

/// The longest pickle, and the longest list of entries. Tensors are not in them: both have some hundred bytes for each.
const MOST_BYTES: usize = 32 << 20;

/// What a file contains.
pub(crate) fn read(source: &Source) -> Result<Contents> {
    let archive = Archive::read(source)?;
    let folder = archive.folder()?;
    if let Some(order) = archive.find(&format!("{folder}byteorder"))?
        && source.read(order.start, order.len().min(16))? != b"little"
    {
        bail!(value, "its tensors are not little-endian");
    }
    let Some(place) = archive.find(&format!("{folder}data.pkl"))? else { bail!(value, "it has no data.pkl") };
    if place.len() > MOST_BYTES {
        bail!(value, "its data.pkl has {} bytes, more than {MOST_BYTES}", place.len());
    }
    let text = source.read(place.start, place.len())?;
    let values = pickle::read(&text)?;
    let mut storages = HashMap::<String, Range<usize>>::new();
    let tensors = state::tensors(&values, source.len(), &mut |key| {
        if let Some(place) = storages.get(key) {
            return Ok(place.clone());
        }
        let name = format!("{folder}data/{key}");
        let Some(place) = archive.find(&name)? else {
            bail!(value, "there is no entry '{name}' with its data")
        };
        storages.insert(key.into(), place.clone());
        Ok(place)
    })?;
    // Tensors may share a storage, but no bytes belong to two storages.
    let mut storages: Vec<_> = storages.into_values().filter(|place| !place.is_empty()).collect();
    storages.sort_unstable_by_key(|place| place.start);
    if storages.windows(2).any(|pair| pair[1].start < pair[0].end) {
        bail!(value, "the entries with the data of tensors overlap");
    }
    Ok(Contents { tensors, ..Contents::default() })
}
