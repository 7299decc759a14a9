//! Arbitrary bytes are a GGUF file, or give an error.

#![no_main]

mod loading;

use libfuzzer_sys::fuzz_target;
use max_weights::WeightsFormat;

fuzz_target!(|bytes: &[u8]| loading::check(bytes, WeightsFormat::Gguf));
