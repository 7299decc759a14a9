//! Random programs with branches, loops, subgraphs and buffers, run by the engine and by the reference interpreter: both
//! give the same results and leave the same contents in the buffers, to the bit.
//!
//! `RANDOM_GRAPHS=100000` tries more programs, `RANDOM_SEED=17` only that one.

#[path = "random/regions.rs"]
mod regions;
#[path = "random/rng.rs"]
#[allow(dead_code, reason = "other tests draw more")]
mod rng;

use max_core::DeviceRef;
use max_engine::InferenceSession;

#[test]
fn programs_match_the_reference() {
    let session = InferenceSession::new([]).with_num_threads(2).expect("two threads");
    regions::check_all(0..3_000, &session, DeviceRef::CPU);
}
