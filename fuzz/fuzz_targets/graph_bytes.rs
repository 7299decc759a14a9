//! Arbitrary bytes decode to a graph or give an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use max_core::HostBytes;
use max_graph::encode;

fuzz_target!(|bytes: &[u8]| {
    let _ = encode::decode(&HostBytes::new(bytes.to_vec()));
});
