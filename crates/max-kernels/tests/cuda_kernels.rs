//! Matmuls, convolutions, gathers, scatters and sorts on a GPU, if there is one, against the CPU kernels.
//!
//! All cases are prepared together, as programs do it, and run twice: both runs must give the same bits. Every failure
//! is reported, not only the first.

#[path = "cuda_kernels/bandwidth.rs"]
mod bandwidth;
#[path = "cuda_kernels/case.rs"]
mod case;
#[path = "cuda_kernels/chain.rs"]
mod chain;
#[path = "cuda_kernels/conv.rs"]
mod conv;
#[path = "cuda_kernels/gather.rs"]
mod gather;
mod gpu;
#[path = "cuda_kernels/matmul.rs"]
mod matmul;
#[path = "cuda_kernels/qmatmul.rs"]
mod qmatmul;
#[path = "cuda_kernels/scatter.rs"]
mod scatter;
#[path = "cuda_kernels/sort.rs"]
mod sort;

use case::{Case, check_all};
use gpu::gpu;
use max_driver::Device;

/// All cases, in groups.
fn groups() -> [(&'static str, Vec<Case>); 9] {
    [
        ("plain matmuls", matmul::plain()),
        ("every type and layout", matmul::layouts()),
        ("heads and slices", matmul::heads()),
        ("epilogues", matmul::epilogues()),
        ("thin matmuls", matmul::thin()),
        ("float8", matmul::float8()),
        ("gathers", gather::cases()),
        ("scatters", scatter::cases()),
        ("sorts", sort::cases()),
    ]
}

fn convolutions() -> [(&'static str, Vec<Case>); 4] {
    [
        ("convolutions of every type", conv::small()),
        ("convolutions", conv::large()),
        ("convolutions of vectors", conv::vectors()),
        ("small groups", conv::groups()),
    ]
}

/// What differs from the CPU kernels.
fn differences(device: &Device, groups: impl IntoIterator<Item = (&'static str, Vec<Case>)>) -> Vec<String> {
    let of_group = |(name, cases): (&str, Vec<Case>)| {
        check_all(device, &cases).into_iter().map(|failure| format!("{name}: {failure}")).collect::<Vec<_>>()
    };
    groups.into_iter().flat_map(of_group).collect()
}

#[test]
fn convolutions_match_the_cpu() {
    let Some(device) = gpu() else { return };
    let failures = differences(&device, convolutions());
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn kernels_match_the_cpu() {
    let Some(device) = gpu() else { return };
    let mut failures = differences(&device, groups());
    failures.extend(gather::bad_indices(&device));
    failures.extend(gather::unaligned_memory(&device));
    let shown = failures.iter().take(40).map(String::as_str).collect::<Vec<_>>().join("\n\n");
    assert!(failures.is_empty(), "{} failures\n{shown}", failures.len());
}

#[test]
fn quantized_products_match_their_definition() {
    let Some(device) = gpu() else { return };
    let failures = qmatmul::failures(&device);
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn recorded_products_wait_for_what_they_read() {
    let Some(device) = gpu() else { return };
    let mut failures = chain::failures(&device).unwrap();
    failures.extend(chain::written_weights(&device).unwrap());
    assert!(failures.is_empty(), "{failures:?}");
}

/// Their definition gives numbers, with or without a GPU.
#[test]
fn quantized_products_are_numbers() {
    let wrong = qmatmul::without_numbers();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Prints how fast weights are read: `cargo test --release -p max-kernels --test cuda_kernels -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn qmatmul_bandwidth() {
    let Some(device) = gpu() else { return };
    bandwidth::report(&device).unwrap();
}

/// All cases are valid kernels, with or without a GPU.
#[test]
fn cases_run_on_the_cpu() {
    for (name, cases) in groups().into_iter().chain(convolutions()) {
        for case in cases {
            if let Err(error) = case::run_on_cpu(&case) {
                panic!("{name}: {}\n{:?}", error.message(), case.kernel);
            }
        }
    }
}
