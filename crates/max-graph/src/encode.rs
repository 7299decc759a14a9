//! Graphs as bytes: a header, the text form, and the data of long constants, each once and aligned.
//!
//! All numbers are little-endian u64. The header holds the magic, the version, the length of everything, a
//! checksum over header and text, the length of the text and the number of blobs; then come the start and
//! length of each blob, the text, and the blobs at multiples of 64. Reading maps blobs in place and trusts
//! nothing: lengths are checked against the bytes that are there before anything is made of them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use max_core::{Error, HostBytes, Result, bail};

use crate::graph::Graph;
use crate::host::HostTensor;
use crate::ir::Body;
use crate::text::{Constants, parse_with, print};

const MAGIC: u64 = u64::from_le_bytes(*b"MAXGRAPH");

/// The version that is written, and the only one that is read.
pub const VERSION: u64 = 1;

/// The alignment of blobs.
const ALIGN: usize = 64;

/// The number of words before the blob table.
const HEADER: usize = 6;

/// The bytes of a graph, in pieces to be written one after the other.
pub fn encode(body: &Body) -> Vec<HostBytes> {
    let mut blobs = Blobs::default();
    let text = print(body, Constants::Blobs(&mut |tensor| blobs.number(tensor)));
    let table = (HEADER + 2 * blobs.unique.len()) * 8;
    let mut end = (table + text.len()).next_multiple_of(ALIGN);
    let mut words = vec![MAGIC, VERSION, 0, 0, text.len() as u64, blobs.unique.len() as u64];
    for blob in &blobs.unique {
        words.extend([end as u64, blob.len() as u64]);
        end = (end + blob.len()).next_multiple_of(ALIGN);
    }
    words[2] = end as u64;
    words[3] = checksum(&words, text.as_bytes());
    let mut head: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    head.extend(text.as_bytes());
    head.resize(head.len().next_multiple_of(ALIGN), 0);

    let mut pieces = vec![HostBytes::from_vec(head)];
    for blob in blobs.unique {
        let padding = blob.len().next_multiple_of(ALIGN) - blob.len();
        pieces.push(blob);
        if padding > 0 {
            pieces.push(HostBytes::from_vec(vec![0u8; padding]));
        }
    }
    pieces
}

/// The graph of bytes that [`encode`] made. Constants keep pointing into the bytes.
pub fn decode(bytes: &HostBytes) -> Result<Graph> {
    let word = |at: usize| -> Result<u64> {
        let bytes: Option<[u8; 8]> = bytes.get(at * 8..at * 8 + 8).and_then(|b| b.try_into().ok());
        bytes.map(u64::from_le_bytes).ok_or_else(truncated)
    };
    if word(0)? != MAGIC {
        bail!(value, "this is not a saved graph: it does not start with MAXGRAPH");
    }
    if word(1)? != VERSION {
        bail!(value, "the saved graph has version {}; this release reads version {VERSION}", word(1)?);
    }
    let count = |at: usize| word(at).and_then(|n| usize::try_from(n).map_err(|_| truncated()));
    let (total, text_len, blobs) = (count(2)?, count(4)?, count(5)?);
    if total != bytes.len() {
        bail!(value, "the saved graph is truncated or damaged: {} bytes of {total}", bytes.len());
    }
    let table_end = blobs.checked_mul(2).and_then(|n| n.checked_add(HEADER)).and_then(|n| n.checked_mul(8));
    let table_end = table_end.filter(|&end| end <= total).ok_or_else(truncated)?;
    let text = bytes.slice(table_end, text_len).ok_or_else(truncated)?;
    let mut words = (0..table_end / 8).map(word).collect::<Result<Vec<_>>>()?;
    let stored = std::mem::take(&mut words[3]);
    if stored != checksum(&words, &text) {
        bail!(value, "the saved graph is damaged: its checksum does not match");
    }
    let text = std::str::from_utf8(&text).map_err(|_| Error::value("the saved graph's text is not UTF-8"))?;
    let blob = |number: usize| {
        if number >= blobs {
            bail!(value, "the saved graph has no blob {number}");
        }
        let at = HEADER + 2 * number;
        bytes.slice(words[at] as usize, words[at + 1] as usize).ok_or_else(truncated)
    };
    parse_with(text, &blob).map(Graph::from_body)
}

fn truncated() -> Error {
    Error::value("the saved graph is truncated or damaged")
}

/// FNV-1a over the words, with zero for the checksum itself, and the text.
fn checksum(words: &[u64], text: &[u8]) -> u64 {
    let bytes = words.iter().flat_map(|w| w.to_le_bytes()).chain(text.iter().copied());
    bytes.fold(0xcbf29ce484222325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100000001b3))
}

/// Data of constants, each kept once.
#[derive(Default)]
struct Blobs {
    unique: Vec<HostBytes>,
    by_hash: HashMap<u64, Vec<usize>>,
}

impl Blobs {
    fn number(&mut self, tensor: &HostTensor) -> usize {
        let bytes = tensor.bytes();
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let candidates = self.by_hash.entry(hasher.finish()).or_default();
        if let Some(&known) = candidates.iter().find(|&&i| self.unique[i] == *bytes) {
            return known;
        }
        candidates.push(self.unique.len());
        self.unique.push(bytes.clone());
        self.unique.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use max_core::{DType, DeviceRef, TensorType};

    use super::*;
    use crate::ops;

    fn sample() -> Vec<u8> {
        let x = TensorType::new(DType::Float32, ["n"], DeviceRef::CPU);
        let graph = Graph::build("sample", [x], |x| {
            let data: Vec<f32> = (0..100).map(|i| i as f32).collect();
            let a = ops::constant(HostTensor::from(data.clone()), None, None)?;
            let b = ops::constant(HostTensor::from(data), None, None)?;
            Ok::<_, Error>(vec![ops::add(&a, &b)?, ops::relu(&x[0])?])
        });
        encode(&graph.unwrap().body()).iter().flat_map(|piece| piece.to_vec()).collect()
    }

    #[test]
    fn equal_constants_are_stored_once_and_mapped() {
        let bytes = HostBytes::new(sample());
        assert!(bytes.len() < 2 * 400 + 400, "{} bytes", bytes.len());
        let graph = decode(&bytes).unwrap();
        let again: Vec<u8> = encode(&graph.body()).iter().flat_map(|piece| piece.to_vec()).collect();
        assert_eq!(*bytes, again);
        let inside = |t: &HostTensor| bytes.as_ptr_range().contains(&t.bytes().as_ptr());
        let constants = graph.body();
        let constants: Vec<_> = constants
            .ops()
            .filter_map(|op| match &op.kind {
                crate::OpKind::Constant(c) => Some(inside(&c.value)),
                _ => None,
            })
            .collect();
        assert_eq!(constants, [true, true]);
    }

    #[test]
    fn every_truncation_and_header_damage_is_an_error() {
        let whole = sample();
        for len in 0..whole.len() {
            assert!(decode(&HostBytes::new(whole[..len].to_vec())).is_err(), "{len}");
        }
        let text_end = whole.len() - 400 - 48;
        for at in 0..text_end.min(300) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x5a;
            assert!(decode(&HostBytes::new(damaged)).is_err(), "{at}");
        }
    }
}
