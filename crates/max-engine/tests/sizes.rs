//! Every form of kernel gives the interpreter's results with the sizes 0 and 1 in every position.

#[path = "cases/forms.rs"]
mod forms;
#[path = "cases/gpu.rs"]
#[allow(dead_code, reason = "graphs stay on the host here")]
mod gpu;

use max_core::DType;
use max_engine::InferenceSession;
use max_graph::interpret;

use gpu::{Tolerance, difference, execute};

#[test]
fn every_form_takes_no_elements_and_one() {
    let session = InferenceSession::new([]).with_num_threads(2).unwrap();
    let mut ran = 0;
    for form in forms::forms() {
        let graph = form.graph().unwrap_or_else(|error| panic!("{}: {error}", form.name));
        let model = session.load(&graph).unwrap();
        for bindings in form.bindings() {
            let place = format!("{} of {} with {bindings:?}", form.name, form.dtype);
            let inputs = form.inputs(&bindings).unwrap();
            match (interpret(&graph.body(), &inputs, &()), execute(&model, &inputs)) {
                (Ok(expected), Ok(got)) => {
                    let tolerance = match form.dtype {
                        DType::BFloat16 => Tolerance::NARROW,
                        dtype => Tolerance::of(&graph.body(), dtype),
                    };
                    let wrong = difference(&expected[0], &got[0], tolerance);
                    assert!(wrong.is_none(), "{place}: {}", wrong.unwrap_or_default());
                    ran += 1;
                }
                (Err(_), Err(_)) => {}
                (expected, got) => {
                    let show = |result: Result<_, max_core::Error>| result.map(|_: Vec<_>| "results");
                    panic!("{place}: expected {:?}, got {:?}", show(expected), show(got));
                }
            }
        }
    }
    assert!(ran > 5_000, "only {ran} executions gave results");
}
