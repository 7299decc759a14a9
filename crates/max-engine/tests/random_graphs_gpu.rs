//! Random graphs on a GPU: the reference interpreter's results, up to the accuracy of the ops, and the same bits twice.
//!
//! `RANDOM_GRAPHS=100000` tries more graphs, `RANDOM_SEED=17` only that one.

#[path = "random/generate.rs"]
#[allow(dead_code, reason = "the tests on the host use more of it")]
mod generate;
#[path = "cases/gpu.rs"]
#[allow(dead_code, reason = "the op cases use more of it")]
mod gpu;
#[path = "random/judge.rs"]
mod judge;
#[path = "random/positions.rs"]
mod positions;
#[path = "random/recipes.rs"]
mod recipes;
#[path = "random/rng.rs"]
mod rng;
#[path = "random/shapes.rs"]
mod shapes;

use std::panic::{AssertUnwindSafe, catch_unwind};

use max_core::DeviceRef;
use max_engine::InferenceSession;
use max_graph::text::{self, Constants};
use max_graph::{Graph, interpret};

use generate::{Case, Extent};
use judge::{judge, live};

/// How many graphs are tried unless the environment says otherwise: few, because each kernel has to be compiled.
const GRAPHS: u64 = 300;
/// After this many failures the test stops.
const MOST_FAILURES: usize = 10;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Whether a case gives results, as in the reference; or why it is wrong.
fn check(case: &Case, session: &InferenceSession) -> Result<bool, String> {
    let inputs = case.inputs(&case.bindings, 0);
    let run = AssertUnwindSafe(|| {
        let body = gpu::moved(&case.graph.body(), DeviceRef::gpu(0))?;
        let model = session.load(&Graph::from_body(body))?;
        Ok((gpu::execute(&model, &inputs)?, gpu::execute(&model, &inputs)?))
    });
    let twice = catch_unwind(run).map_err(|_| "the engine panics".to_owned())?;
    let differ =
        twice.as_ref().is_ok_and(|(one, two)| one.iter().zip(two).any(|(a, b)| a.bytes() != b.bytes()));
    let judged = judge(case, &inputs, twice.map(|(one, _)| one))?;
    if differ { Err("the second execution gives other bits".into()) } else { Ok(judged) }
}

/// The smallest part of a graph that still fails, and why.
fn smallest(seed: u64, case: Case, why: String, session: &InferenceSession) -> String {
    let parts = (1..=case.steps).map(|steps| Case::new(seed, Extent { steps, last_only: true }));
    let smallest = parts.into_iter().find_map(|part| check(&part, session).err().map(|why| (part, why)));
    let (case, why) = smallest.unwrap_or((case, why));
    let text = text::print(&live(case.graph.body()), Constants::Elided);
    format!("seed {seed} ({} steps) with {:?}: {why}\n{text}", case.steps, case.bindings)
}

/// This needs no GPU: it checks that the same graph runs there.
#[test]
fn graphs_can_be_moved() {
    for seed in 0..GRAPHS {
        let case = Case::new(seed, Extent::WHOLE);
        let moved = gpu::moved(&case.graph.body(), DeviceRef::gpu(0))
            .unwrap_or_else(|error| panic!("{seed}: {error}"));
        let inputs = case.inputs(&case.bindings, 0);
        let both = [case.graph.body(), moved].map(|body| interpret(&body, &inputs, &()).ok());
        assert!(both[0] == both[1], "seed {seed} is another graph on a GPU");
    }
}

#[test]
fn graphs_agree_with_the_reference() {
    let Some(device) = gpu::gpu() else { return };
    let session = InferenceSession::new([device.clone()]);
    let seeds = match number("RANDOM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("RANDOM_GRAPHS").unwrap_or(GRAPHS),
    };
    let (mut ran, mut failures) = (0, Vec::new());
    for seed in seeds {
        let case = Case::new(seed, Extent::WHOLE);
        match check(&case, &session) {
            Ok(results) => ran += u64::from(results),
            Err(why) => failures.push(smallest(seed, case, why, &session)),
        }
        if let Some(error) = gpu::is_gone(&device) {
            failures.push(format!("the GPU is gone, the rest did not run: {error}"));
            break;
        }
        if failures.len() == MOST_FAILURES {
            break;
        }
    }
    println!("{ran} graphs gave results");
    assert!(failures.is_empty(), "{} graphs failed:\n{}", failures.len(), failures.join("\n"));
}
