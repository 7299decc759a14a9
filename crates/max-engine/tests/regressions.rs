//! Graphs that once gave wrong results, panicked or took too long: the engine gives the interpreter's results.

use max_core::{DType, Element, Result};
use max_driver::{Buffer, MmapMode};
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

/// Both give the same results, or fail with the same message.
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
fn rows_without_elements_have_no_greatest() {
    for kind in ["max", "min", "argmax", "argmin", "sum"] {
        for size in ["0", "n"] {
            let dtype = if kind.starts_with("arg") { "int64" } else { "float32" };
            let reduced = format!(
                r#"graph "g"(%0: float32[2, {size}]) {{
                  %1 = reduce(%0) {{kind = "{kind}", axis = 1}} : {dtype}[2, 1]
                  return %1
                }}"#
            );
            agrees(&reduced, &[floats(&[2, 0])]);
        }
    }
}

#[test]
fn sizes_that_no_memory_holds_are_errors() {
    let huge = r#"graph "g"(%0: float32[1]) {
      %1 = broadcast_to(%0) {shape = [4611686018427387904, 4611686018427387904]} : float32[4611686018427387904, 4611686018427387904]
      return %1
    }"#;
    agrees(huge, &[floats(&[1])]);
    // Without a layout there is no program.
    let deep = r#"graph "g"(%0: float32[8, 4611686018427387904, 4611686018427387904]) {
      %1 = exp(%0) : float32[8, 4611686018427387904, 4611686018427387904]
      return %1
    }"#;
    let error = load(deep).err().unwrap().to_string();
    assert!(error.contains("is too large to be laid out") && error.contains("in exp("), "{error}");
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
    let outputs = execute(&load(&ir).unwrap(), &[floats(&[4])]).unwrap();
    assert!(outputs.iter().all(|output| output.bytes() == outputs[0].bytes()));
}

#[test]
fn a_kernel_may_read_and_write_very_many_values() {
    let count = 4000;
    let inputs = (0..count).map(|n| format!("%{n}: float32[4]")).collect::<Vec<_>>().join(", ");
    let sum = |n: usize| if n == 0 { 0 } else { count + n - 1 };
    let ops: String =
        (1..count).map(|n| format!(" %{} = add(%{}, %{n}) : float32[4]\n", sum(n), sum(n - 1))).collect();
    let outputs = (1..count).map(|n| format!("%{}", sum(n))).collect::<Vec<_>>().join(", ");
    let ir = format!("graph \"g\"({inputs}) {{\n{ops} return {outputs}\n}}");
    let outputs = execute(&load(&ir).unwrap(), &vec![tensor(&[4], |_| 1.0f32); count]).unwrap();
    for (n, output) in outputs.iter().enumerate() {
        assert_eq!(output.bytes(), tensor(&[4], |_| n as f32 + 2.0).bytes());
    }
}

#[test]
fn bounds_of_slices_outlive_the_steps_before() {
    // The last step before the slice could reuse the memory of the scalar at which the slice starts.
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

#[test]
fn a_row_value_is_repeated_beside_another_store() {
    let ir = r#"graph "g"(%0: float32[64, 1000], %1: float32[64, 1]) {
      %2 = add(%0, %1) : float32[64, 1000]
      %3 = reduce(%2) {kind = "sum", axis = 1} : float32[64, 1]
      %4 = sub(%2, %3) : float32[64, 1000]
      %5 = broadcast_to(%1) {shape = [64, 1000]} : float32[64, 1000]
      return %4, %5
    }"#;
    agrees(ir, &[floats(&[64, 1000]), floats(&[64, 1])]);
}

#[test]
fn what_is_stored_twice_is_not_read_past_its_end() {
    let ir = r#"graph "g"(%0: float32[100]) {
      %1 = concat(%0, %0) {axis = 0} : float32[200]
      return %1
    }"#;
    // The last element lies at the end of a page, after which nothing may be read.
    let path = std::env::temp_dir().join(format!("max-engine-page-{}", std::process::id()));
    let bytes: Vec<u8> = (0..1024).flat_map(|i: u32| (i as f32).to_ne_bytes()).collect();
    std::fs::write(&path, bytes).unwrap();
    let input = Buffer::mmap(&path, DType::Float32, &[100], MmapMode::CopyOnWrite, 4096 - 400).unwrap();
    let output = load(ir).unwrap().execute(&[input]).unwrap();
    let expected: Vec<f32> = (924..1024).chain(924..1024).map(|i| i as f32).collect();
    assert_eq!(output[0].to_vec::<f32>().unwrap(), expected);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn narrow_floats_do_not_show_that_they_are_held_wider() {
    let ir = r#"graph "g"(%0: float16[2]) {
      %1 = add(%0, %0) : float16[2]
      %2 = cast(%1) {dtype = "float32"} : float32[2]
      %3 = is_inf(%1) : bool[2]
      return %2, %3
    }"#;
    let input = tensor(&[2], |i| max_core::f16::from_f32([65504.0, 1.0][i]));
    let outputs = execute(&load(ir).unwrap(), &[input]).unwrap();
    assert_eq!(*outputs[0].elements::<f32>().unwrap(), [f32::INFINITY, 2.0]);
    assert_eq!(outputs[1].bytes()[..], [1, 0]);
}
