//! Every kind of kernel gives the interpreter's results with the sizes 0 and 1 in every position, on the host and on a
//! GPU.

#[path = "cases/forms.rs"]
mod forms;
#[path = "cases/gpu.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod gpu;

use max_core::{DType, DeviceRef, Error};
use max_engine::InferenceSession;
use max_graph::{Graph, interpret};

use forms::KernelForm;
use gpu::{difference, execute, is_for_the_host, moved};

/// Runs a form, moved to a device, with all combinations of the sizes it is made for and other sizes; returns how often
/// it gave results.
fn check(form: &KernelForm, session: &InferenceSession, device: DeviceRef, others: &[i64]) -> usize {
    let graph = form.graph().unwrap_or_else(|error| panic!("{}: {error}", form.name));
    let model = session.load(&Graph::from_body(moved(&graph.body(), device).unwrap())).unwrap();
    let mut ran = 0;
    for bindings in form.bindings(others) {
        let case = format!("{} of {} with {bindings:?}", form.name, form.dtype);
        let inputs = form.inputs(&bindings).unwrap();
        match (interpret(&graph.body(), &inputs, &()), execute(&model, &inputs)) {
            (Ok(expected), Ok(got)) => {
                let wrong = difference(&expected[0], &got[0], form.tolerance(&graph));
                assert!(wrong.is_none(), "{case}: {}", wrong.unwrap_or_default());
                ran += 1;
            }
            (Err(_), Err(_)) => {}
            (expected, got) => {
                let show = |result: Result<Vec<_>, Error>| result.map(|_| "results");
                panic!("{case}: expected {:?}, got {:?}", show(expected), show(got));
            }
        }
    }
    ran
}

#[test]
fn every_form_takes_no_elements_and_one() {
    let session = InferenceSession::new([]).with_num_threads(2).unwrap();
    let ran: usize = forms::forms().iter().map(|form| check(form, &session, DeviceRef::CPU, &[0, 1])).sum();
    assert!(ran > 5_000, "only {ran} executions gave results");
}

#[test]
fn every_form_takes_no_elements_on_a_gpu() {
    let Some(device) = gpu::gpu() else { return };
    let session = InferenceSession::new([device]);
    let mut forms = forms::forms();
    forms.retain(|form| matches!(form.dtype, DType::Float32 | DType::BFloat16 | DType::Int32));
    forms.retain(|form| form.graph().is_ok_and(|graph| !is_for_the_host(&graph.body())));
    let ran: usize = forms.iter().map(|form| check(form, &session, DeviceRef::gpu(0), &[0])).sum();
    assert!(ran > 500, "only {ran} executions gave results");
}
