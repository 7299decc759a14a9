//! Arbitrary bytes are a safetensors file, or give an error.

#![no_main]

mod loading;

use libfuzzer_sys::fuzz_target;
use max_weights::WeightsFormat;

fuzz_target!(|bytes: &[u8]| loading::check(bytes, WeightsFormat::Safetensors));
