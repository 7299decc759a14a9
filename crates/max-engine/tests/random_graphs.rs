//! Random graphs, run by the engine and by the reference interpreter: both give the same results, up to the accuracy of
//! the ops, and the engine gives the same bits however it is run.
//!
//! `RANDOM_GRAPHS=100000` tries more graphs, `RANDOM_SEED=17` only that one.

#[path = "random/generate.rs"]
mod generate;
#[path = "random/judge.rs"]
mod judge;
#[path = "random/noise.rs"]
mod noise;
#[path = "picture/check.rs"]
mod picture;
#[path = "random/positions.rs"]
mod positions;
#[path = "random/recipes.rs"]
mod recipes;
#[path = "random/rng.rs"]
mod rng;
#[path = "random/shapes.rs"]
mod shapes;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use max_core::{HostBytes, Result, ScalarOp, ViewIndex};
use max_driver::Buffer;
use max_engine::{InferenceSession, Model};
use max_graph::text::{self, Constants};
use max_graph::{HostTensor, interpret};

use generate::{Case, Extent};
use judge::{difference, judge, live};

/// How many graphs are tried unless the environment says otherwise.
const GRAPHS: u64 = 6_000;
/// How many of them are also run in other ways.
const AGAIN: u64 = 600;

fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    match (number("RANDOM_SEED"), number("RANDOM_GRAPHS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(count)) => 0..count * default / GRAPHS,
        _ => 0..default,
    }
}

fn load(case: &Case, threads: usize) -> Result<Model> {
    InferenceSession::new([]).with_num_threads(threads)?.load(&case.graph)
}

/// Memory from the last element to the first, read backwards: the same tensor with negative strides.
fn backwards(v: &HostTensor) -> Result<Buffer> {
    let elements = v.bytes().chunks(v.dtype().size_in_bytes()).rev();
    let bytes = HostBytes::from_vec(elements.flatten().copied().collect::<Vec<u8>>());
    let flip = ViewIndex::Slice { start: None, stop: None, step: -1 };
    Buffer::from_host_bytes(bytes, v.dtype(), v.shape())?.index(&vec![flip; v.shape().len()])
}

fn execute(model: &Model, inputs: &[HostTensor]) -> Result<Vec<HostTensor>> {
    execute_on(model, inputs.iter().map(|v| Buffer::from_host_bytes(v.bytes().clone(), v.dtype(), v.shape())))
}

fn execute_on(model: &Model, inputs: impl Iterator<Item = Result<Buffer>>) -> Result<Vec<HostTensor>> {
    let tensor = |b: &Buffer| HostTensor::new(b.dtype(), b.shape(), b.host_bytes()?);
    model.execute(&inputs.collect::<Result<Vec<_>>>()?)?.iter().map(tensor).collect()
}

/// Runs a case and returns whether it gave results, as in the reference; or why it is wrong.
fn check(case: &Case) -> std::result::Result<bool, String> {
    let inputs = case.inputs(&case.bindings, 0);
    // A panic is a failure like any other, to be reported with its graph.
    let run = AssertUnwindSafe(|| load(case, 2).and_then(|model| execute(&model, &inputs)));
    let got = catch_unwind(run).map_err(|_| "the engine panics".to_owned())?;
    judge(case, &inputs, got)
}

/// Panics with the smallest part of the graph that still fails.
fn report(seed: u64, case: Case, why: String) -> ! {
    let parts = (1..=case.steps).map(|steps| Case::new(seed, Extent { steps, last_only: true }));
    let smallest = parts.into_iter().find_map(|part| check(&part).err().map(|why| (part, why)));
    let (case, why) = smallest.unwrap_or((case, why));
    let shapes: Vec<_> = case
        .inputs(&case.bindings, 0)
        .iter()
        .map(|input| format!("{} {:?}", input.dtype(), input.shape()))
        .collect();
    let text = text::print(&live(case.graph.body()), Constants::Elided);
    panic!("seed {seed} ({} steps): {why}\ninputs: {}\n{text}", case.steps, shapes.join(", "));
}

/// Ops that are not generated here: they print, or need weights or another device.
const ABSENT: &[&str] = &["print", "constant_external", "transfer_to"];

const STRUCTURED: &[&str] = &[
    "broadcast_to",
    "cast",
    "concat",
    "constant",
    "shape_to_tensor",
    "conv2d",
    "gather",
    "layer_norm",
    "matmul",
    "permute",
    "rebind",
    "reduce",
    "reshape",
    "scatter",
    "where",
    "dynamic_slice",
    "slice",
    "softmax",
    "split",
];

#[test]
fn graphs_agree_with_the_reference() {
    let (mut ran, mut failed, mut ops) = (0, 0, BTreeSet::new());
    let seeds = seeds(GRAPHS);
    let all = seeds.end - seeds.start;
    for seed in seeds {
        let case = Case::new(seed, Extent::WHOLE);
        ops.extend(case.graph.body().ops().map(|op| op.kind.name()));
        match check(&case) {
            Ok(true) => ran += 1,
            Ok(false) => failed += 1,
            Err(why) => report(seed, case, why),
        }
    }
    println!("{ran} graphs gave results, {failed} failed in both");
    if all >= GRAPHS {
        assert!(ran * 10 > all * 8, "only {ran} of {all} graphs gave results");
        assert!(failed > all / 200, "only {failed} graphs failed as they should");
        let wanted = ScalarOp::all().map(ScalarOp::name).chain(STRUCTURED.iter().copied());
        let missing: Vec<_> = wanted.filter(|op| !ops.contains(op)).collect();
        assert!(missing.is_empty(), "no graph has {missing:?}");
        assert!(ABSENT.iter().all(|op| !ops.contains(op)), "{ABSENT:?} are no longer absent");
    }
}

/// Results as bits; `None` if there are none.
type Bits = Option<Vec<HostTensor>>;

fn bits(model: &Model, inputs: &[HostTensor]) -> Bits {
    execute(model, inputs).ok()
}

#[test]
fn threads_strides_and_repetition_change_no_bit() {
    for seed in seeds(AGAIN) {
        let case = Case::new(seed, Extent::WHOLE);
        let inputs = case.inputs(&case.bindings, 0);
        let models = [1, 2, 3].map(|threads| load(&case, threads).unwrap());
        let one = bits(&models[0], &inputs);
        for (threads, model) in (1..).zip(&models) {
            let strided = execute_on(model, inputs.iter().map(backwards)).ok();
            for got in [bits(model, &inputs), bits(model, &inputs), strided] {
                assert!(got == one, "seed {seed} with {threads} threads:\n{}", case.graph);
            }
        }
    }
}

#[test]
fn a_model_runs_from_two_threads_at_once() {
    for seed in seeds(AGAIN) {
        let case = Case::new(seed, Extent::WHOLE);
        let model = load(&case, 2).unwrap();
        let inputs = [0, 1].map(|data| case.inputs(&case.bindings, data));
        let alone = inputs.each_ref().map(|inputs| bits(&model, inputs));
        let together = std::thread::scope(|scope| {
            let runs = inputs
                .each_ref()
                .map(|inputs| scope.spawn(|| (0..3).map(|_| bits(&model, inputs)).collect::<Vec<Bits>>()));
            runs.map(|run| run.join().unwrap())
        });
        for (alone, together) in alone.iter().zip(together) {
            assert!(together.iter().all(|bits| bits == alone), "seed {seed}:\n{}", case.graph);
        }
    }
}

#[test]
fn symbols_take_several_sizes() {
    let mut ran = 0;
    let seeds = seeds(2 * AGAIN);
    let all = seeds.end - seeds.start;
    for seed in seeds {
        let case = Case::new(seed, Extent::WHOLE);
        let model = load(&case, 2).unwrap();
        let mut variants = vec![case.bindings.clone(), case.smaller(0), case.smaller(1)];
        variants.extend(case.emptied());
        variants.push(case.bindings.clone());
        for bindings in &variants {
            let inputs = case.inputs(bindings, 0);
            match judge(&case, &inputs, execute(&model, &inputs)) {
                Ok(results) => ran += u64::from(results),
                Err(why) => panic!("seed {seed} with {bindings:?}: {why}\n{}", case.graph),
            }
        }
    }
    assert!(all < AGAIN || ran > 2 * all, "only {ran} executions gave results");
}

#[test]
fn pictures_hold_every_op_in_its_kernel() {
    for seed in seeds(AGAIN) {
        let case = Case::new(seed, Extent::WHOLE);
        println!("seed {seed}");
        let model = load(&case, 1).unwrap();
        picture::shows_all_ops(&model, &picture::check(&model));
    }
}

/// The tolerances are neither too narrow, as results that are slightly off in every op pass, nor too wide, as one
/// element that is off by a hundredth of the largest is found in nearly all results.
#[test]
fn tolerances_tell_rounding_from_mistakes() {
    let (mut found, mut missed) = (0, 0);
    for seed in seeds(3 * AGAIN) {
        let case = Case::new(seed, Extent::WHOLE);
        let inputs = case.inputs(&case.bindings, 0);
        let body = case.graph.body();
        let Ok(expected) = interpret(&body, &inputs, &()) else { continue };
        for variant in 0..2 {
            let noisy = noise::interpret(&body, &inputs, &case.bindings, variant).unwrap();
            for (i, (expected, noisy)) in expected.iter().zip(&noisy).enumerate() {
                if let Some(difference) = difference(expected, noisy, case.tolerances[i]) {
                    let text = text::print(&live(body), Constants::Elided);
                    panic!("seed {seed}: output {i} with rounding errors: {difference}\n{text}");
                }
            }
        }
        for (expected, tolerance) in expected.iter().zip(&case.tolerances) {
            let Some(wrong) = noise::mistake(expected) else { continue };
            match difference(expected, &wrong, *tolerance) {
                Some(_) => found += 1,
                None => missed += 1,
            }
        }
    }
    println!("{found} mistakes found, {missed} missed");
    assert!(missed < 20 || found >= 10 * missed, "{found} mistakes found, {missed} missed");
}
