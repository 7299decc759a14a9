//! Arbitrary bytes are a safetensors file, or give an error; and so are files with arbitrary headers.

#![no_main]

mod loading;

use libfuzzer_sys::fuzz_target;
use max_weights::WeightsFormat;

fuzz_target!(|bytes: &[u8]| {
    loading::check(bytes, WeightsFormat::Safetensors);
    let length = (bytes.len() as u64).to_le_bytes();
    loading::check(&[&length, bytes, &[0x3f; 64]].concat(), WeightsFormat::Safetensors);
});
