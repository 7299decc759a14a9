//! Arbitrary bytes are a checkpoint of PyTorch, or give an error; and so are archives with arbitrary pickles.

#![no_main]

mod loading;

use libfuzzer_sys::fuzz_target;
use max_weights::WeightsFormat;

fuzz_target!(|bytes: &[u8]| {
    loading::check(bytes, WeightsFormat::Pytorch);
    let entries: [(&str, &[u8]); 3] = [("m/data.pkl", bytes), ("m/data/0", &[0x3f; 64]), ("m/data/1", &[1; 7])];
    loading::check(&archive(&entries), WeightsFormat::Pytorch);
});

/// A zip archive of uncompressed entries.
fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut bytes, mut list) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let start = bytes.len() as u32;
        let sizes = [data.len() as u32; 2].map(u32::to_le_bytes).concat();
        let name_len = (name.len() as u16).to_le_bytes();
        bytes.extend([&b"PK\x03\x04"[..], &[0; 14], &sizes, &name_len, &[0; 2], name.as_bytes(), data].concat());
        list.extend([&b"PK\x01\x02"[..], &[0; 16], &sizes, &name_len, &[0; 12]].concat());
        list.extend([&start.to_le_bytes()[..], name.as_bytes()].concat());
    }
    let counts = [entries.len() as u16; 2].map(u16::to_le_bytes).concat();
    let place = [list.len() as u32, bytes.len() as u32].map(u32::to_le_bytes).concat();
    bytes.extend(list);
    bytes.extend([&b"PK\x05\x06\0\0\0\0"[..], &counts, &place, &[0; 2]].concat());
    bytes
}
