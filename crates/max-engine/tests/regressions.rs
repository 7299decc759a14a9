//! Graphs that once gave wrong results, panicked or took too long: the engine gives the interpreter's results.

use std::time::{Duration, Instant};

use max_core::{Element, Result};
use max_driver::Buffer;
use max_engine::{InferenceSession, Model};
use max_graph::{Graph, HostTensor, interpret, text};

fn load(ir: &str) -> Result<Model> {
    InferenceSession::new([]).with_num_threads(2)?.load(&Graph::from_body(text::parse(ir)?))
}

fn tensor<T: Element>(shape: &[usize], element: impl Fn(usize) -> T) -> HostTensor {
    HostTensor::from_vec(shape, (0..shape.iter().product()).map(element).collect()).unwrap()
}

fn floats(shape: &[usize]) -> HostTensor {
    tensor(shape, |i| (i * 37 % 101) as f32 / 50.5 - 1.0)
}

fn execute(model: &Model, inputs: &[HostTensor]) -> Result<Vec<HostTensor>> {
    let buffer = |v: &HostTensor| Buffer::from_host_bytes(v.bytes().clone(), v.dtype(), v.shape());
    let outputs = model.execute(&inputs.iter().map(buffer).collect::<Result<Vec<_>>>()?)?;
    outputs.iter().map(|b| HostTensor::new(b.dtype(), b.shape(), b.host_bytes()?)).collect()
}

/// Both give the same, or both fail with the same message.
fn agrees(ir: &str, inputs: &[HostTensor]) {
    let expected = interpret(&text::parse(ir).unwrap(), inputs, &());
    let got = load(ir).and_then(|model| execute(&model, inputs));
    match (expected, got) {
        (Ok(expected), Ok(got)) => {
            let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * a.abs().max(1.0);
            assert_eq!(expected.len(), got.len());
            for (number, (expected, got)) in expected.iter().zip(&got).enumerate() {
                assert_eq!((expected.dtype(), expected.shape()), (got.dtype(), got.shape()));
                let (expected, got) = (numbers(expected), numbers(got));
                assert!(expected.iter().zip(&got).all(close), "output {number}: {expected:?}, got {got:?}");
            }
        }
        (Err(expected), Err(got)) => assert_eq!(expected.message(), got.message()),
        (expected, got) => panic!("expected {:?}, got {:?}", expected.err(), got.err()),
    }
}

fn numbers(tensor: &HostTensor) -> Vec<f64> {
    max_core::dispatch!(tensor.dtype(), T => tensor.elements::<T>().unwrap().iter().map(|e| e.to_f64()).collect())
}

#[test]
fn a_symbol_that_is_one_is_repeated_to_sizes_from_a_tensor() {
    let sizes = |size: i64| tensor(&[1], |_| size);
    let direct = r#"graph "g"(%0: float32[n], %1: int64[1]) {
      %2 = broadcast_to(%0, %1) {shape = [m]} : float32[m]
      %3 = exp(%2) : float32[m]
      return %3, %2
    }"#;
    let part = r#"graph "g"(%0: float32[8], %1: int64[1], %2: float32[n]) {
      %3 = slice(%0) {starts = [0], sizes = [n], steps = [1]} : float32[n]
      %4 = broadcast_to(%3, %1) {shape = [m]} : float32[m]
      %5 = exp(%4) : float32[m]
      return %5
    }"#;
    for (n, m) in [(1, 5), (5, 5), (1, 1), (1, 0), (0, 0), (5, 4)] {
        agrees(direct, &[floats(&[n]), sizes(m)]);
        agrees(part, &[floats(&[8]), sizes(m), floats(&[n])]);
    }
}

#[test]
fn negated_unsigned_numbers_wrap() {
    let ir = r#"graph "g"(%0: uint8[4]) {
      %1 = negate(%0) : uint8[4]
      %2 = abs(%1) : uint8[4]
      return %2
    }"#;
    agrees(ir, &[tensor(&[4], |i| [0u8, 1, 5, 200][i])]);
}

#[test]
fn a_graph_without_ops_has_a_kernel_to_show() {
    let model = load("graph \"g\"(%0: float32[4]) {\n return %0\n}").unwrap();
    assert_eq!(model.kernel_summaries()[0].name, "copy");
    model.capture(1, &[Buffer::from_slice(&[1f32; 4], &[4]).unwrap()]).unwrap();
}

#[test]
fn values_of_empty_rows_are_stored_without_a_reduction() {
    let ir = r#"graph "g"(%0: float32[4, n], %1: float32[4, 1]) {
      %2 = add(%0, %1) : float32[4, n]
      %3 = reduce(%2) {kind = "sum", axis = 1} : float32[4, 1]
      %4 = rebind(%3) {shape = [4, k], message = "", layout = ""} : float32[4, k]
      %5 = exp(%1) : float32[4, 1]
      return %5
    }"#;
    for n in [0, 3] {
        agrees(ir, &[floats(&[4, n]), floats(&[4, 1])]);
    }
}

#[test]
fn a_value_may_be_many_outputs() {
    let outputs = vec!["%1"; 100_000].join(", ");
    let ir = format!("graph \"g\"(%0: float32[4]) {{\n %1 = exp(%0) : float32[4]\n return {outputs}\n}}");
    let start = Instant::now();
    let outputs = execute(&load(&ir).unwrap(), &[floats(&[4])]).unwrap();
    assert!(outputs.iter().all(|output| output.bytes() == outputs[0].bytes()));
    assert!(start.elapsed() < Duration::from_secs(8));
}

#[test]
fn bounds_of_slices_outlive_the_steps_before() {
    // The last step before the slice could work in place of the scalar that the slice starts at.
    let ir = r#"graph "g"(%0: float32[n], %1: float32[9]) {
      %2 = shape_to_tensor() {dims = [n], scalar = true} : int64[]
      %3 = constant() {value = dense(int64[], [3]), device = "cpu:0"} : int64[]
      %4 = add(%2, %3) : int64[]
      %5 = dynamic_slice(%1, %2, %4) {axis = 0, step = 1, start = true, stop = true, out_dim = `m`} : float32[m]
      return %5
    }"#;
    for n in [1, 4] {
        agrees(ir, &[floats(&[n]), floats(&[9])]);
    }
}
