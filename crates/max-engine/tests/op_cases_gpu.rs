//! The shared table of op cases (`cases/ops.json`) on a GPU: each case gives the host's results, up to the accuracy of
//! floats, and the same bits when it runs again. All failures are listed at the end.

#[path = "cases/gpu.rs"]
mod gpu;
#[path = "cases/table.rs"]
mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};

use max_core::{DType, DeviceRef, ErrorKind, Result};
use max_engine::{InferenceSession, Model};
use max_graph::{Graph, interpret};
use serde_json::Value as Json;

use gpu::{Tolerance, difference, execute, is_for_the_host, moved};
use table::{Case, read, rows};

fn load(graph: &Graph, session: &InferenceSession) -> Result<Model> {
    session.load(&Graph::from_body(moved(&graph.body(), DeviceRef::gpu(0))?))
}

/// Loads all cases on many threads, so that their kernels are already compiled when the cases run one after another.
fn compile_all(rows: &[(Json, DType)], session: &InferenceSession) {
    const THREADS: usize = 16;
    let load_one =
        |(row, dtype): &(Json, DType)| read(row, *dtype).and_then(|case| load(&case.graph, session));
    std::thread::scope(|scope| {
        for first in 0..THREADS {
            scope.spawn(move || {
                for row in rows.iter().skip(first).step_by(THREADS) {
                    // Whatever fails here fails again below.
                    let _ = catch_unwind(AssertUnwindSafe(|| load_one(row)));
                }
            });
        }
    });
}

/// Why a case is wrong, if it is.
fn check(row: &Json, dtype: DType, session: &InferenceSession) -> std::result::Result<(), String> {
    let Case { graph, inputs } = read(row, dtype).map_err(|error| format!("cannot be built: {error}"))?;
    let host = session.load(&graph).and_then(|model| execute(&model, &inputs));
    let expected = host.map_err(|error| format!("fails on the host: {error}"))?;
    let body =
        moved(&graph.body(), DeviceRef::gpu(0)).map_err(|error| format!("cannot be moved: {error}"))?;
    let loaded = session.load(&Graph::from_body(body));
    if is_for_the_host(&graph.body()) {
        let found = loaded.and_then(|model| execute(&model, &inputs)).map(|_| "results");
        return match found {
            Err(error) if error.kind() == ErrorKind::NotImplemented => Ok(()),
            // Without elements there is nothing to compute.
            Ok(_) if inputs.iter().any(|input| input.shape().contains(&0)) => Ok(()),
            other => Err(format!("should not be implemented, but gives {other:?}")),
        };
    }
    let model = loaded.map_err(|error| format!("cannot be loaded: {error}"))?;
    let got = execute(&model, &inputs).map_err(|error| format!("fails: {error}"))?;
    if got.len() != expected.len() {
        return Err(format!("expected {} results, got {}", expected.len(), got.len()));
    }
    for (number, (expected, got)) in expected.iter().zip(&got).enumerate() {
        if let Some(difference) = difference(expected, got, Tolerance::of(&graph.body(), expected.dtype())) {
            return Err(format!("result {number}: {difference}"));
        }
    }
    let again = execute(&model, &inputs).map_err(|error| format!("fails the second time: {error}"))?;
    match (0..got.len()).find(|&number| got[number].bytes() != again[number].bytes()) {
        Some(number) => {
            let difference = difference(&got[number], &again[number], Tolerance::NONE);
            Err(format!("gives other bits the second time: {}", difference.unwrap_or_default()))
        }
        None => Ok(()),
    }
}

/// This needs no GPU: it checks that the same graph runs there.
#[test]
fn every_case_can_be_moved() {
    for (row, dtype) in rows("ops.json") {
        let Case { graph, inputs } = read(&row, dtype).unwrap();
        let body = moved(&graph.body(), DeviceRef::gpu(0)).unwrap_or_else(|error| panic!("{row}: {error}"));
        let results = body.types_of(body.block.results.as_deref().unwrap_or_default());
        // A tensor's sizes are on the host, wherever the tensor is.
        let on_host = graph.body().ops().all(|op| op.kind.name() == "shape_to_tensor");
        for ty in results {
            assert!(on_host || ty.device() == Some(DeviceRef::gpu(0)), "{row} gives {ty}");
        }
        let both = [graph.body(), body].map(|body| interpret(&body, &inputs, &()).unwrap());
        assert!(both[0] == both[1], "{row} with {dtype} is another graph on a GPU");
    }
}

#[test]
fn every_case_gives_what_the_host_gives() {
    let Some(device) = gpu::gpu() else { return };
    let session = InferenceSession::new([device.clone()]);
    // A selection: `OP_CASES=matmul` runs the rows that contain the word, and `OP_CASES_PART=3/16` every sixteenth case from
    // the third on. Kernels are compiled one after the other in a process, so that many processes are done sooner.
    let wanted = std::env::var("OP_CASES").unwrap_or_default();
    let part = std::env::var("OP_CASES_PART").unwrap_or("1/1".into());
    let part = part.split_once('/').map(|(first, of)| (first.parse::<usize>(), of.parse::<usize>()));
    let Some((Ok(first @ 1..), Ok(of @ 1..))) = part else { panic!("OP_CASES_PART is a part, such as 3/16") };
    let mut cases = rows("ops.json");
    cases.retain(|(row, _)| row.to_string().contains(&wanted));
    let cases: Vec<_> = cases.into_iter().skip(first - 1).step_by(of).collect();
    let (count, mut failures) = (cases.len(), Vec::new());
    compile_all(&cases, &session);
    for (row, dtype) in cases {
        let checked = catch_unwind(AssertUnwindSafe(|| check(&row, dtype, &session)));
        let Err(why) = checked.unwrap_or_else(|_| Err("panics".into())) else { continue };
        let call = format!("{}({}) {}", row["op"], row["args"], row.get("kwargs").unwrap_or(&Json::Null));
        failures.push(format!("{} with {dtype}: {why}", call.trim_end_matches(" null")));
        // After some failures, the GPU can no longer be used in this process.
        if let Some(error) = gpu::is_gone(&device) {
            failures.push(format!("the GPU is gone, the rest did not run: {error}"));
            break;
        }
    }
    println!("{} of {count} cases failed", failures.len());
    assert!(failures.is_empty(), "{} of {count} cases failed:\n{}", failures.len(), failures.join("\n"));
    assert!(!wanted.is_empty() || count * of > 2000, "only {count} cases ran");
}
