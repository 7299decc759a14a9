//! Arbitrary text gives an error, or parses to a graph that prints and parses back to itself and either runs or refuses its
//! inputs.

#![no_main]

use libfuzzer_sys::fuzz_target;
use max_core::{HostBytes, Type};
use max_graph::host::byte_count;
use max_graph::text::{self, Constants};
use max_graph::{HostTensor, interpret};

fuzz_target!(|text: &str| {
    let Ok(body) = text::parse(text) else { return };
    let printed = text::print(&body, Constants::Full);
    let back = text::parse(&printed).expect("printed text parses");
    assert_eq!(text::print(&back, Constants::Full), printed);

    // Only small tensors, or all the time goes into filling memory.
    let values = body.block.arguments.iter().chain(body.ops().flat_map(|op| &op.results));
    let small = |ty: &Type| ty.array().is_some_and(|(_, shape)| shape.static_dims().iter().fold(1i64, |n, &s| n.saturating_mul(s)) < 1 << 16);
    if !values.into_iter().all(|&v| small(body.type_of(v))) {
        return;
    }

    // Small inputs: every symbol is 2, every static size at most 64, all bytes zero.
    let inputs = body.types_of(&body.block.arguments).map(|ty| {
        let (dtype, shape) = ty.array()?;
        let sizes: Vec<usize> = shape.iter().map(|d| d.as_static().unwrap_or(2).clamp(0, 64) as usize).collect();
        let bytes = byte_count(dtype, &sizes).ok().filter(|&n| n < 1 << 16)?;
        HostTensor::new(dtype, sizes, HostBytes::new(vec![0u8; bytes])).ok()
    });
    if let Some(inputs) = inputs.collect::<Option<Vec<_>>>() {
        let _ = interpret(&body, &inputs, &());
    }
});
