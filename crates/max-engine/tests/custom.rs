//! Custom ops through sessions and models.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use max_core::{DType, DeviceRef, ErrorKind, Result, TensorType, Type};
use max_driver::{Buffer, Device};
use max_engine::custom::{self, Call};
use max_engine::{InferenceSession, read_graph_in, save_graph};
use max_graph::custom::CustomOp;
use max_graph::{Graph, KernelLibrary, TensorValue, ops, text};

fn vector() -> TensorType {
    TensorType::new(DType::Float32, ["n"], DeviceRef::CPU)
}

/// A graph that calls one op on one vector.
fn graph(library: &KernelLibrary, name: &str) -> Result<Graph> {
    let graph = Graph::new("g", [vector()])?.with_library(library);
    let scope = graph.enter();
    let results = ops::custom(name, DeviceRef::CPU, [graph.input(0)?], [Type::from(vector())], ())?;
    graph.output(results[0].tensor()?)?;
    drop(scope);
    Ok(graph)
}

fn scale(name: &str, factor: f32) -> CustomOp {
    let kernel = move |call: &mut Call| {
        let x = call.inputs[0].slice::<f32>()?;
        for (y, x) in call.outputs[0].slice_mut::<f32>()?.iter_mut().zip(x) {
            *y = factor * x;
        }
        Ok(())
    };
    custom::rust(name, "float32[n] -> float32[n]", kernel).unwrap()
}

fn run(graph: &Graph, x: [f32; 3]) -> Result<Vec<f32>> {
    let model = InferenceSession::new([Device::cpu()]).load(graph)?;
    model.execute(&[Buffer::from(x)])?[0].to_vec()
}

#[test]
fn ops_of_the_same_name_are_not_confused() {
    for factor in [2.0, 3.0] {
        let library = KernelLibrary::new();
        library.add(scale("scale", factor)).unwrap();
        let results = run(&graph(&library, "scale").unwrap(), [1.0, 2.0, 3.0]).unwrap();
        assert_eq!(results, [factor, 2.0 * factor, 3.0 * factor]);
    }
}

#[test]
fn a_panic_is_an_error_of_that_execution() {
    let library = KernelLibrary::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let kernel = move |call: &mut Call| {
        assert!(counted.fetch_add(1, Ordering::Relaxed) > 0, "not the first time");
        call.outputs[0].slice_mut::<f32>()?.fill(1.0);
        Ok(())
    };
    library.add(custom::rust("moody", "float32[n] -> float32[n]", kernel).unwrap()).unwrap();
    let model = InferenceSession::new([Device::cpu()]).load(&graph(&library, "moody").unwrap()).unwrap();
    let error = model.execute(&[Buffer::from([1.0f32])]).unwrap_err();
    assert_eq!(error.message(), "custom op 'moody' of this process failed: it panicked: not the first time");
    assert!(error.to_string().contains("custom.rs"), "{error}");
    assert_eq!(model.execute(&[Buffer::from([5.0f32])]).unwrap()[0].to_vec::<f32>().unwrap(), [1.0]);
    let error = model.capture(1, &[Buffer::from([5.0f32])]).unwrap_err();
    assert!(error.message().contains("calls CustomOp('moody' of this process)"), "{error}");
}

#[test]
fn a_body_is_fused() {
    let library = KernelLibrary::new();
    let body = |x: &[TensorValue], _: &_| Ok(vec![ops::mul(&x[0], ops::sigmoid(&x[0]))?]);
    library.add(CustomOp::body("swish", body)).unwrap();
    let graph = Graph::new("g", [vector()]).unwrap().with_library(&library);
    let scope = graph.enter();
    let x = (graph.input(0).unwrap() + 1.0).unwrap();
    let results = ops::custom("swish", DeviceRef::CPU, [x], [Type::from(vector())], ()).unwrap();
    graph.output(results[0].tensor().unwrap() * 2.0).unwrap();
    drop(scope);
    let model = InferenceSession::new([Device::cpu()]).load(&graph).unwrap();
    assert_eq!(model.kernel_summaries().len(), 1);
    let result = model.execute(&[Buffer::from([0.0f32])]).unwrap()[0].to_vec::<f32>().unwrap();
    assert!((result[0] - 2.0 / (1.0 + (-1.0f32).exp())).abs() < 1e-6, "{result:?}");
}

#[test]
fn unused_and_equal_calls() {
    let library = KernelLibrary::new();
    let failing = |_: &mut Call| -> Result<()> { panic!("always") };
    library.add(custom::rust("fails", "float32[n] -> float32[n]", failing).unwrap()).unwrap();
    let graph = Graph::new("g", [vector()]).unwrap().with_library(&library);
    let scope = graph.enter();
    let x = graph.input(0).unwrap();
    for _ in 0..2 {
        ops::custom("fails", DeviceRef::CPU, [&x], [Type::from(vector())], ()).unwrap();
    }
    graph.output(&x).unwrap();
    drop(scope);
    let model = InferenceSession::new([Device::cpu()]).load(&graph).unwrap();
    // An op that may fail runs although nobody uses its results, but once for equal operands.
    assert_eq!(model.kernel_summaries().iter().filter(|kernel| kernel.kind == "custom").count(), 1);
    assert!(model.execute(&[Buffer::from([5.0f32])]).is_err());
}

#[test]
fn text_and_files_name_their_ops() {
    let library = KernelLibrary::new();
    library.add(scale("scale", 2.0)).unwrap();
    let original = graph(&library, "scale").unwrap();
    let printed = text::print(&original.body(), text::Constants::Full);
    let back = text::parse_in(&printed, &library).unwrap();
    assert_eq!(text::print(&back, text::Constants::Full), printed);
    let error = text::parse(&printed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.message().contains("no custom op 'scale': no library"), "{error}");

    let path = std::env::temp_dir().join(format!("max-rs-custom-{}", std::process::id()));
    save_graph(&original, &path).unwrap();
    let read = read_graph_in(&path, &library).unwrap();
    assert_eq!(run(&read, [1.0, 2.0, 3.0]).unwrap(), [2.0, 4.0, 6.0]);
    let session = InferenceSession::new([Device::cpu()]);
    let error = session.load(path.as_path()).unwrap_err();
    assert!(error.message().contains("no custom op 'scale'"), "{error}");
    let model = session.with_library(&library).load(path.as_path()).unwrap();
    assert_eq!(model.execute(&[Buffer::from([4.0f32])]).unwrap()[0].to_vec::<f32>().unwrap(), [8.0]);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn rules_and_names_are_checked_when_an_op_is_recorded() {
    let library = KernelLibrary::new();
    let even = scale("even", 1.0).with_rule(|operands, _, _| match operands[0].array() {
        Some((_, shape)) if shape[0].as_static().is_some_and(|size| size % 2 == 0) => Ok(()),
        _ => max_core::bail!(value, "the size must be even"),
    });
    library.add(even).unwrap();
    let error = graph(&library, "even").unwrap_err();
    assert!(error.to_string().contains("the size must be even"), "{error}");
    assert!(error.to_string().contains("in custom op 'even' of this process"), "{error}");
    let error = graph(&library, "odd").unwrap_err();
    assert!(error.message().contains("this process has 'even'"), "{error}");
    assert!(library.add(scale("even", 1.0)).is_err());
    assert!(library.add(scale("", 1.0)).is_err());
    assert!(custom::rust("f", "float32[n]", |_: &mut Call| Ok(())).is_err());
}

#[test]
fn elements_that_are_not_aligned_are_copied() {
    let library = KernelLibrary::new();
    library.add(scale("scale", 2.0)).unwrap();
    let model = InferenceSession::new([Device::cpu()]).load(&graph(&library, "scale").unwrap()).unwrap();
    let bytes: Vec<u8> =
        [0u8].into_iter().chain([1.0f32, 2.0].into_iter().flat_map(f32::to_ne_bytes)).collect();
    let odd =
        Buffer::from(bytes).index(&[max_core::ViewIndex::Slice { start: Some(1), stop: None, step: 1 }]);
    let odd = odd.unwrap().view(DType::Float32, None).unwrap();
    assert_eq!(model.execute(&[odd]).unwrap()[0].to_vec::<f32>().unwrap(), [2.0, 4.0]);
}
