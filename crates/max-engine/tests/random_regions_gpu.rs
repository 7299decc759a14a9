//! Random programs with branches, loops, subgraphs and buffers on a GPU: the results of the reference interpreter.
//!
//! `RANDOM_GRAPHS=100000` tries more programs, `RANDOM_SEED=17` only that one.

#[path = "cases/gpu.rs"]
#[allow(dead_code, reason = "the op cases use more of it")]
mod gpu;
#[path = "random/regions.rs"]
mod regions;
#[path = "random/rng.rs"]
#[allow(dead_code, reason = "other tests draw more")]
mod rng;

use max_core::DeviceRef;
use max_engine::InferenceSession;

#[test]
fn programs_match_the_reference() {
    let Some(device) = gpu::gpu() else { return };
    regions::check_all(0..150, &InferenceSession::new([device]), DeviceRef::gpu(0));
}
