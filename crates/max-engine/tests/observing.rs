//! What a session can be configured to do, and what its models report: captures, checks, profiles, kernels, memory, the
//! cache.

use max_core::{DType, DeviceRef, ErrorKind, Shape, TensorType};
use max_driver::{Buffer, Device};
use max_engine::{
    AssertLevel, InferenceSession, Model, ProfilingMode, SplitKReductionPrecision, clear_program_cache,
};
use max_graph::{Graph, HostTensor, ops};

fn f32s(shape: impl Into<Shape>) -> TensorType {
    TensorType::new(DType::Float32, shape, DeviceRef::CPU)
}

fn session() -> InferenceSession {
    InferenceSession::new([Device::cpu()])
}

/// `x * 2 + 1` for any number of elements.
fn affine() -> Model {
    let graph = Graph::build("affine", [f32s(["n"])], |x| (&x[0] * 2.0)? + 1.0).unwrap();
    session().load(&graph).unwrap()
}

fn chain() -> Graph {
    Graph::build("chain", [f32s(["n"])], |x| ops::relu(ops::tanh(ops::exp(&x[0])))).unwrap()
}

fn values(buffer: &Buffer) -> Vec<f32> {
    buffer.to_vec().unwrap()
}

#[test]
fn replays_write_the_outputs_of_the_capture() {
    let model = affine();
    let outputs = model.capture(1, &[Buffer::from([1f32, 2.0])]).unwrap();
    assert_eq!(values(&outputs[0]), [3., 5.]);
    model.replay(1, &[Buffer::from([10f32, 20.0])]).unwrap();
    assert_eq!(values(&outputs[0]), [21., 41.]);
    model.replay(1, &outputs).unwrap();
    assert_eq!(values(&outputs[0]), [43., 83.], "a replay may read what it wrote");
    let other = model.capture(2, &[Buffer::from([0f32; 3])]).unwrap();
    model.replay(1, &[Buffer::from([0f32, 1.0])]).unwrap();
    assert_eq!((values(&other[0]), values(&outputs[0])), (vec![1.; 3], vec![1., 3.]));
}

#[test]
fn an_output_that_is_read_in_another_order_is_not_overwritten_too_early() {
    const N: usize = 300;
    let graph = Graph::build("flip", [f32s((N, N))], |x| ops::transpose(&x[0], 0, 1)? + 1.0);
    let model = session().load(&graph.unwrap()).unwrap();
    let start: Vec<f32> = (0..N * N).map(|i| i as f32).collect();
    let outputs = model.capture(1, &[Buffer::from_slice(&start, &[N, N]).unwrap()]).unwrap();
    model.replay(1, &outputs).unwrap();
    assert!(values(&outputs[0]).iter().zip(&start).all(|(now, before)| *now == before + 2.0));
}

#[test]
fn captures_refuse_what_they_were_not_made_for() {
    let model = affine();
    let (two, three) = ([Buffer::from([1f32; 2])], [Buffer::from([1f32; 3])]);
    for error in [
        model.capture(1, &[]).unwrap_err(),
        model.replay(1, &[]).unwrap_err(),
        model.debug_verify_replay(1, &[]).unwrap_err(),
        model.capture(1, &[Buffer::from([1f64])]).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Value, "{error}");
    }
    model.capture(1, &two).unwrap();
    model.debug_verify_replay(1, &two).unwrap();
    for (error, phrase) in [
        (model.replay(2, &two).unwrap_err(), "no graph has been captured for the key 2"),
        (model.replay(1, &three).unwrap_err(), "[[2]]; got [[3]]"),
        (model.debug_verify_replay(1, &three).unwrap_err(), "does not match"),
        (model.release_captured_graph(2).unwrap_err(), "no graph"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Runtime);
        assert!(error.message().contains(phrase), "{error}");
    }
    model.release_captured_graph(1).unwrap();
    assert!(model.replay(1, &two).is_err());
}

#[test]
fn a_replay_can_be_ended() {
    let model = affine();
    let input = [Buffer::from([1f32])];
    model.capture(1, &input).unwrap();
    let stop = || Err(max_core::Error::runtime("enough"));
    assert!(model.replay_until(1, &input, &stop).unwrap_err().message().contains("enough"));
    assert!(model.capture_until(2, &input, &stop).is_err() && model.replay(2, &input).is_err());
    model.replay(1, &input).unwrap();
}

#[test]
fn a_chain_is_one_kernel_without_temporaries() {
    let model = session().load(&chain()).unwrap();
    let kernels = model.kernel_summaries();
    assert_eq!(kernels.len(), 1);
    assert_eq!((kernels[0].name.as_str(), kernels[0].kind), ("exp+tanh+relu", "loop"));
    assert_eq!(kernels[0].ops, ["exp(float32[n])", "tanh(float32[n])", "relu(float32[n])"]);
    assert!(kernels[0].text.contains("tanh"));
    let report = model.memory_report(&[Buffer::from([1f32; 8])]).unwrap();
    assert_eq!((report.peak_bytes, report.bytes_without_reuse), (0, 0));
}

/// Weights are packed by the first execution with enough rows, once for all models and sizes.
#[test]
fn packed_constants_are_counted_and_shared() {
    let weights = HostTensor::from_vec(vec![96, 64], vec![0.5f32; 96 * 64]).unwrap();
    let build = |name: &str| {
        Graph::build(name, [f32s(("n", 96))], |x| {
            ops::matmul(&x[0], ops::constant(weights.clone(), None, DeviceRef::CPU)?)
        })
    };
    let [first, second] = ["first", "second"].map(|name| session().load(&build(name).unwrap()).unwrap());
    let input = |rows: usize| Buffer::from_slice(&vec![1f32; rows * 96], &[rows, 96]).unwrap();
    let packed = |model: &Model, rows| model.memory_report(&[input(rows)]).unwrap().packed_bytes;
    first.execute(&[input(1)]).unwrap();
    assert_eq!(packed(&first, 1), 0);
    for rows in [64, 65] {
        let out = first.execute(&[input(rows)]).unwrap();
        assert_eq!(out[0].to_vec::<f32>().unwrap(), vec![48.0; rows * 64]);
        assert_eq!(packed(&first, rows), 96 * 64 * 4);
    }
    // One row packs nothing by itself.
    second.execute(&[input(1)]).unwrap();
    assert_eq!(packed(&second, 1), 96 * 64 * 4, "not packed again");
}

#[test]
fn temporaries_share_memory() {
    let graph = Graph::build("products", [f32s(("n", "n"))], |x| {
        let square = ops::matmul(&x[0], &x[0])?;
        let fourth = ops::matmul(&square, &square)?;
        let eighth = ops::matmul(&fourth, &fourth)?;
        ops::matmul(&eighth, &eighth)
    });
    let model = session().load(&graph.unwrap()).unwrap();
    let report = model.memory_report(&[Buffer::from_slice(&[0f32; 256], &[16, 16]).unwrap()]).unwrap();
    assert_eq!((report.peak_bytes, report.bytes_without_reuse), (2 * 1024, 3 * 1024));
}

#[test]
fn the_first_op_that_makes_a_nan_is_named() {
    let graph = Graph::build("logs", [f32s(["n"])], |x| ops::exp(ops::log((&x[0] - 2.0)?)? * 3.0)).unwrap();
    let session = session();
    session.set_mojo_assert_level(AssertLevel::All);
    let model = session.load(&graph).unwrap();
    let error = model.execute(&[Buffer::from([5f32, 1.0])]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Runtime);
    assert!(error.to_string().contains("log made NaN at element 1"), "{error}");
    let passed = model.execute(&[Buffer::from([3f32, f32::NAN])]).unwrap();
    assert!(values(&passed[0])[1].is_nan(), "a NaN in an input is not blamed on any op");
}

#[test]
fn profiles_count_launches_of_executions_and_replays() {
    let session = session();
    session.gpu_profiling(ProfilingMode::Detailed);
    let model = session.load(&chain()).unwrap();
    session.gpu_profiling(ProfilingMode::Off);
    let input = [Buffer::from([1f32; 4])];
    model.execute(&input).unwrap();
    model.capture(1, &input).unwrap();
    model.replay(1, &input).unwrap();
    let table = model.profile_table().unwrap();
    let line: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((line[1], *line.last().unwrap()), ("3", "exp+tanh+relu"), "{table}");

    let path = std::env::temp_dir().join(format!("max-rs-trace-{}.json", std::process::id()));
    model.save_trace(&path).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert_eq!(events.len(), 3);
    assert_eq!((&events[0]["name"], &events[0]["ph"]), (&"exp+tanh+relu".into(), &"X".into()));
    assert_eq!(events[0]["args"]["ops"].as_array().unwrap().len(), 3);

    let unprofiled = session.load(&chain()).unwrap();
    assert!(unprofiled.profile_table().unwrap_err().message().contains("without profiling"));
    assert!(unprofiled.save_trace(&path).unwrap_err().message().contains("without profiling"));
}

#[test]
fn the_same_graph_is_compiled_once() {
    // No other test uses this graph, so none can affect when it is compiled.
    let graph = || Graph::build("cached", [f32s(["n"])], |x| ops::tanh(&x[0])).unwrap();
    let load = || session().load(&graph()).unwrap();
    let same = |a: &Model, b: &Model| std::ptr::eq(a.program(), b.program());
    let (first, second) = (load(), load());
    assert!(same(&first, &second));
    clear_program_cache();
    let third = load();
    assert!(!same(&first, &third) && same(&third, &load()));
    let checking = session();
    checking.set_mojo_assert_level(AssertLevel::Warn);
    assert!(!same(&third, &checking.load(&graph()).unwrap()), "checked programs are not fused");
}

#[test]
fn settings_are_kept() {
    let session = session();
    session.set_split_k_reduction_precision(SplitKReductionPrecision::Output);
    assert_eq!(session.split_k_reduction_precision(), SplitKReductionPrecision::Output);
    for (mode, on) in [("1", true), ("OFF", false), ("anything", true), ("No", false), ("", true)] {
        session.use_old_top_k_kernel(mode);
        assert_eq!(session.uses_old_top_k_kernel(), on, "{mode}");
    }
}
