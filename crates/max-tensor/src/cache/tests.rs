//! Models for varying sizes give the same bits as models for fixed sizes.

#[allow(dead_code, reason = "the engine's tests use more of it")]
#[path = "../../../max-engine/tests/random/generate.rs"]
mod generate;
#[path = "../../../max-engine/tests/random/positions.rs"]
mod positions;
#[path = "../../../max-engine/tests/random/recipes.rs"]
mod recipes;
#[path = "../../../max-engine/tests/random/rng.rs"]
mod rng;
#[path = "../../../max-engine/tests/random/shapes.rs"]
mod shapes;

use max_core::scalar::NumericOp;
use max_core::{Bindings, DType, DeviceRef, Dim, Result, ScalarOp, TensorType};
use max_driver::Buffer;
use max_graph::{Body, HostTensor};

use super::{Found, Known, MOST, cache_stats, clear_cache, find};
use crate::structure::at_sizes;
use generate::{Case, Extent};

/// The tests in this file share one cache.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn run(body: &Body, inputs: &[HostTensor]) -> Result<Vec<HostTensor>> {
    let inputs = inputs.iter().map(super::host_buffer).collect::<Result<Vec<_>>>()?;
    let Found { model, inputs, .. } = find(body, &Known::default(), inputs)?;
    let tensor = |b: &Buffer| HostTensor::new(b.dtype(), b.shape(), b.host_bytes()?);
    model.execute(&inputs)?.iter().map(tensor).collect()
}

/// The graph of a case as eager code records it: with static sizes, except those that depend on data.
fn recorded(case: &Case, sizes: &Bindings) -> Result<Body> {
    let bind = |dim: &Dim| dim.substitute(&|name| sizes.get(name).map(|&size| Dim::Static(size)));
    at_sizes(&case.graph.body(), &bind)
}

#[test]
fn what_varies_changes_no_bit() {
    let _alone = crate::lock(&ALONE);
    let (mut ran, mut general) = (0, 0);
    for seed in 0..1500 {
        let case = Case::new(seed, Extent::WHOLE);
        let sizes = [case.bindings.clone(), case.smaller(0), case.smaller(1), case.bindings.clone()];
        let run_all = |forget: bool| -> Vec<Option<Vec<HostTensor>>> {
            clear_cache();
            let run_one = |sizes: &Bindings| {
                if forget {
                    clear_cache();
                }
                run(&recorded(&case, sizes).ok()?, &case.inputs(sizes, 0)).ok()
            };
            sizes.iter().map(run_one).collect()
        };
        let (alone, misses) = (run_all(true), cache_stats().misses);
        let together = run_all(false);
        assert!(alone == together, "seed {seed} with {sizes:?}:\n{}", case.graph);
        ran += alone.iter().flatten().count();
        general += usize::from(cache_stats().misses - misses < 3);
    }
    assert!(ran > 3000, "only {ran} executions gave results");
    assert!(general > 500, "only {general} graphs were compiled for sizes that vary");
}

/// A graph of one op on an input of these sizes.
fn one_op(op: NumericOp, sizes: &[usize]) -> (Body, Vec<HostTensor>) {
    let shape: max_core::Shape = sizes.iter().copied().collect();
    let mut body = Body::new("one", [TensorType::new(DType::Float32, shape, DeviceRef::CPU).into()]);
    let pushed = body.push(ScalarOp::from(op).into(), vec![body.block.arguments[0]], None).unwrap();
    body.block.results = Some(body.op(pushed).results.clone());
    let elements = vec![-1.0f32; sizes.iter().product()];
    (body, vec![HostTensor::from_vec(sizes, elements).unwrap()])
}

fn relu(size: usize) -> (Body, Vec<HostTensor>) {
    one_op(NumericOp::Relu, &[size])
}

#[test]
fn a_loop_over_sizes_compiles_twice() {
    let _alone = crate::lock(&ALONE);
    clear_cache();
    let misses = cache_stats().misses;
    for size in 2..200 {
        let (body, inputs) = relu(size);
        assert_eq!(run(&body, &inputs).unwrap()[0].shape(), [size]);
    }
    assert_eq!(cache_stats().misses - misses, 2);
    assert_eq!(cache_stats().size, 1);
}

#[test]
fn sizes_of_one_are_another_structure() {
    let _alone = crate::lock(&ALONE);
    clear_cache();
    for size in [5, 1, 0, 7, 1, 0] {
        let (body, inputs) = relu(size);
        assert_eq!(run(&body, &inputs).unwrap()[0].shape(), [size]);
    }
    assert_eq!(cache_stats().size, 3);
}

#[test]
fn the_cache_is_bounded() {
    let _alone = crate::lock(&ALONE);
    clear_cache();
    for axes in 1..10 {
        // Every combination of ones and other sizes is a structure of its own.
        for pattern in 0..1 << axes {
            let sizes: Vec<usize> = (0..axes).map(|axis| 1 + (pattern >> axis & 1)).collect();
            for op in [NumericOp::Relu, NumericOp::Negate, NumericOp::Abs] {
                let (body, inputs) = one_op(op, &sizes);
                run(&body, &inputs).unwrap();
                assert!(cache_stats().size <= MOST);
            }
        }
    }
    assert!(cache_stats().size > MOST / 4);
}
