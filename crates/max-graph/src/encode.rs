//! Graphs as bytes: a header, the text form, and the data of long constants, each stored once and aligned.
//!
//! All numbers are little-endian u64. The header holds the magic, the version, the total length, the checksum of the
//! head, the length of the text and the number of blobs; then come the length and the checksum of each blob, the text,
//! and the blobs. Head and blobs are padded with zeros to multiples of 64 bytes. Every byte is covered by a checksum,
//! and reading compares them all. Input is not trusted: lengths are checked against the bytes available before they
//! are used. The data of constants is not copied out of the bytes.

use std::collections::HashMap;

use max_core::checksum::{BLOCK, checksum};
use max_core::memory::try_reserve;
use max_core::{Error, HostBytes, Result, bail};

use crate::custom::KernelLibrary;
use crate::graph::Graph;
use crate::host::HostTensor;
use crate::ir::Body;
use crate::text::{Constants, parse_with, print};

const MAGIC: u64 = u64::from_le_bytes(*b"MAXGRAPH");

/// The version that is written, and the only one that can be read.
pub const VERSION: u64 = 2;

/// The number of words before the blob table.
const HEADER: usize = 6;

/// The position of the checksum in the header; it counts as zero in its own computation.
const CHECKSUM: usize = 3;

/// The bytes of a graph, in pieces to be written one after the other.
pub fn encode(body: &Body) -> Vec<HostBytes> {
    let mut blobs = Blobs::default();
    let text = print(body, Constants::Blobs(&mut |tensor| blobs.number(tensor)));
    let head = padded((HEADER + 2 * blobs.unique.len()) * 8 + text.len());
    let total = head + blobs.unique.iter().map(|(blob, _)| padded(blob.len())).sum::<usize>();
    let mut words = vec![MAGIC, VERSION, total as u64, 0, text.len() as u64, blobs.unique.len() as u64];
    for (blob, checksum) in &blobs.unique {
        words.extend([blob.len() as u64, *checksum]);
    }
    let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    bytes.extend(text.as_bytes());
    bytes.resize(head, 0);
    let own = checksum(&bytes).to_le_bytes();
    bytes[CHECKSUM * 8..][..8].copy_from_slice(&own);

    let mut pieces = vec![HostBytes::from_vec(bytes)];
    for (blob, _) in blobs.unique {
        let padding = padded(blob.len()) - blob.len();
        pieces.push(blob);
        if padding > 0 {
            pieces.push(HostBytes::from_vec(vec![0u8; padding]));
        }
    }
    pieces
}

/// Decodes a graph from bytes that [`encode`] made. Constants keep pointing into the bytes.
pub fn decode(bytes: &HostBytes) -> Result<Graph> {
    decode_in(bytes, &KernelLibrary::new())
}

/// Decodes a graph whose custom ops are those of a library.
pub fn decode_in(bytes: &HostBytes, library: &KernelLibrary) -> Result<Graph> {
    let word = |at: usize| -> Result<u64> {
        let bytes: Option<[u8; 8]> = bytes.get(at * 8..at * 8 + 8).and_then(|b| b.try_into().ok());
        bytes.map(u64::from_le_bytes).ok_or_else(truncated)
    };
    if word(0)? != MAGIC {
        bail!(value, "this is not a saved graph: it does not start with MAXGRAPH");
    }
    if word(1)? != VERSION {
        let version = word(1)?;
        bail!(
            value,
            "the saved graph has version {version}, but this release reads version {VERSION}: save the graph again"
        );
    }
    let count = |at: usize| word(at).and_then(|n| usize::try_from(n).map_err(|_| truncated()));
    let (total, text_len, blobs) = (count(2)?, count(4)?, count(5)?);
    if total != bytes.len() {
        bail!(value, "the saved graph is truncated or damaged: {} bytes of {total}", bytes.len());
    }
    let table_end = blobs.checked_mul(2).and_then(|n| n.checked_add(HEADER)).and_then(|n| n.checked_mul(8));
    let table_end = table_end.filter(|&end| end <= total).ok_or_else(truncated)?;
    let text = bytes.slice(table_end, text_len).ok_or_else(truncated)?;
    let mut at = padded(table_end + text_len);
    let mut head = Vec::new();
    try_reserve(&mut head, at, "the head of a saved graph")?;
    head.extend_from_slice(bytes.get(..at).ok_or_else(truncated)?);
    head[CHECKSUM * 8..][..8].fill(0);
    if word(CHECKSUM)? != checksum(&head) {
        bail!(value, "the saved graph is damaged: its checksum does not match");
    }
    let mut found = Vec::with_capacity(blobs);
    for number in 0..blobs {
        let len = count(HEADER + 2 * number)?;
        let blob = bytes.slice(at, len).ok_or_else(truncated)?;
        let end = at.checked_add(padded(len)).filter(|&end| end <= total).ok_or_else(truncated)?;
        if word(HEADER + 2 * number + 1)? != checksum(&bytes[at..end]) {
            bail!(value, "the saved graph is damaged: the checksum of constant data {number} does not match");
        }
        found.push(blob);
        at = end;
    }
    if at != total {
        return Err(truncated());
    }
    let text = std::str::from_utf8(&text).map_err(|_| Error::value("the saved graph's text is not UTF-8"))?;
    let blob = |number: usize| match found.get(number) {
        Some(blob) => Ok(blob.clone()),
        None => bail!(value, "the saved graph has no blob {number}"),
    };
    parse_with(text, &blob, library).map(Graph::from_body)
}

fn truncated() -> Error {
    Error::value("the saved graph is truncated or damaged")
}

/// A length including padding, so that checksums cover whole blocks and blobs are aligned.
fn padded(len: usize) -> usize {
    len.next_multiple_of(BLOCK)
}

/// Data of constants with its checksum, each stored once.
#[derive(Default)]
struct Blobs {
    unique: Vec<(HostBytes, u64)>,
    by_checksum: HashMap<u64, Vec<usize>>,
}

impl Blobs {
    fn number(&mut self, tensor: &HostTensor) -> usize {
        let bytes = tensor.bytes();
        let checksum = checksum(bytes);
        let candidates = self.by_checksum.entry(checksum).or_default();
        if let Some(&known) = candidates.iter().find(|&&i| self.unique[i].0 == *bytes) {
            return known;
        }
        candidates.push(self.unique.len());
        self.unique.push((bytes.clone(), checksum));
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
    fn equal_constants_are_stored_once_and_shared() {
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
    fn every_truncation_and_every_change_is_an_error() {
        let whole = sample();
        for len in 0..whole.len() {
            assert!(decode(&HostBytes::new(whole[..len].to_vec())).is_err(), "{len}");
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                assert!(decode(&HostBytes::new(damaged)).is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn lengths_that_lie_are_errors_even_under_a_checksum() {
        let whole = sample();
        let words = whole.len() / 8;
        for (at, lie) in [2, 4, 5, HEADER].into_iter().flat_map(|at| {
            [0, 1, 63, 64, words as u64, u64::MAX / 16, u64::MAX - 63, u64::MAX].map(|lie| (at, lie))
        }) {
            let mut lying = whole.clone();
            if whole[at * 8..][..8] == lie.to_le_bytes() {
                continue;
            }
            lying[at * 8..][..8].copy_from_slice(&lie.to_le_bytes());
            lying[CHECKSUM * 8..][..8].fill(0);
            let head = whole.len() - padded(400);
            let own = checksum(&lying[..head]).to_le_bytes();
            lying[CHECKSUM * 8..][..8].copy_from_slice(&own);
            assert!(decode(&HostBytes::new(lying)).is_err(), "word {at}: {lie}");
        }
    }

    #[test]
    fn other_versions_are_named() {
        let mut old = sample();
        old[8] = 1;
        let error = decode(&HostBytes::new(old)).unwrap_err();
        assert!(error.message().contains("version 1, but this release reads version 2"), "{error}");
    }
}
