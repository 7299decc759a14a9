//! Pictures of models, and summaries of what was fused.

#[path = "picture/check.rs"]
mod check;

use std::fmt::Write;

use max_driver::{Buffer, Device};
use max_engine::{InferenceSession, Model, WeightsRegistry};
use max_graph::{Graph, OpKind, text};

use check::{Element, check, shows_all_ops};

/// Loads a graph; all its weights are float32.
fn load(graph: &str) -> Model {
    let body = text::parse(graph).unwrap();
    let mut weights = WeightsRegistry::new();
    for op in body.ops() {
        if let OpKind::ConstantExternal(c) = &op.kind {
            let shape: Vec<usize> = c.shape.as_static().unwrap().iter().map(|&size| size as usize).collect();
            let zeros = vec![0f32; shape.iter().product()];
            weights.insert(c.name.clone(), Buffer::from_slice(&zeros, &shape).unwrap());
        }
    }
    InferenceSession::new([Device::cpu()]).load_with(&Graph::from_body(body), &weights).unwrap()
}

/// The texts of the nodes of a class, each with its detail.
fn texts(elements: &[Element], class: &str) -> Vec<String> {
    let mut texts = Vec::new();
    let mut wanted = false;
    for element in elements {
        match element.name.as_str() {
            "g" => wanted = element.is("node") && element.is(class),
            "text" if wanted && element.is("detail") => {
                let last: &mut String = texts.last_mut().unwrap();
                let _ = write!(last, " {}", element.text);
            }
            "text" if wanted => texts.push(element.text.clone()),
            _ => {}
        }
    }
    texts
}

fn titles(elements: &[Element]) -> Vec<&str> {
    elements.iter().filter(|element| element.is("title")).map(|element| element.text.as_str()).collect()
}

const MLP: &str = r#"graph "mlp"(%0: float32[batch, 784]) {
    %1 = constant_external() {name = "0.weight", dtype = "float32", shape = [784, 128], device = "cpu:0", layout = ""} : float32[784, 128]
    %2 = constant_external() {name = "0.bias", dtype = "float32", shape = [128], device = "cpu:0", layout = ""} : float32[128]
    %3 = matmul(%0, %1) : float32[batch, 128]
    %4 = add(%3, %2) : float32[batch, 128]
    %5 = relu(%4) : float32[batch, 128]
    %6 = constant_external() {name = "1.weight", dtype = "float32", shape = [128, 10], device = "cpu:0", layout = ""} : float32[128, 10]
    %7 = matmul(%5, %6) : float32[batch, 10]
    %8 = softmax(%7) {axis = 1, log = false} : float32[batch, 10]
    %9 = permute(%5) {dims = [1, 0]} : float32[128, batch]
    %10 = constant() {value = dense(float32[], [2.5]), device = "cpu:0"} : float32[]
    %11 = mul(%9, %10) : float32[128, batch]
    return %8, %11
}"#;

#[test]
fn a_picture_shows_ops_in_their_kernels() {
    let model = load(MLP);
    let elements = check(&model);
    shows_all_ops(&model, &elements);
    assert_eq!(
        titles(&elements),
        ["kernel 0: matmul", "kernel 1: matmul", "kernel 2: loop", "kernel 3: loop"]
    );
    assert_eq!(texts(&elements, "input"), ["input 0 float32[batch, 784]"]);
    assert_eq!(
        texts(&elements, "weight"),
        ["0.weight float32[784, 128]", "0.bias float32[128]", "1.weight float32[128, 10]"]
    );
    assert_eq!(texts(&elements, "constant"), ["2.5 float32[]"]);
    assert_eq!(texts(&elements, "view"), ["permute float32[128, batch]"]);
    assert_eq!(texts(&elements, "op")[..2], ["matmul float32[batch, 128]", "add float32[batch, 128]"]);
    assert_eq!(texts(&elements, "output"), ["output 0 float32[batch, 10]", "output 1 float32[128, batch]"]);
    // One arrow per operand and per output.
    let arrows = elements.iter().filter(|element| element.is("tip")).count();
    let operands: usize = model.program().source.ops().map(|op| op.operands.len()).sum();
    assert_eq!(arrows, operands + 2);
}

#[test]
fn a_summary_has_a_line_for_each_kernel_and_one_for_views() {
    assert_eq!(
        load(MLP).fusion_summary(),
        "kernel 0  matmul     matmul, add, relu  -> float32[batch, 128]\n\
         kernel 1  matmul     matmul  -> float32[batch, 10]\n\
         kernel 2  loop       softmax  -> float32[batch, 10]\n\
         kernel 3  loop       mul  -> float32[128, batch]\n\
         views                permute\n"
    );
    let returned = load(r#"graph "g"(%0: float32[n]) { return %0 }"#);
    assert_eq!(returned.fusion_summary(), "kernel 0  loop       copy  -> float32[n]\n");
    assert_eq!(load(r#"graph "g"() { return }"#).fusion_summary(), "");
}

#[test]
fn small_graphs_have_pictures() {
    let empty = load(r#"graph "empty"() { return }"#);
    shows_all_ops(&empty, &check(&empty));
    let returned = check(&load(r#"graph "g"(%0: float32[n]) { return %0, %0 }"#));
    assert_eq!(texts(&returned, "output"), ["output 0 float32[n]", "output 1 float32[n]"]);
    assert!(!texts(&returned, "copy").is_empty(), "kernels that copy are shown");
}

#[test]
fn an_op_with_work_in_several_kernels_is_shown_once() {
    let model = load(
        r#"graph "g"(%0: float32[n, 8], %1: float32[8, n]) {
          %2 = permute(%0) {dims = [1, 0]} : float32[8, n]
          %3 = concat(%2, %1) {axis = 0} : float32[16, n]
          %4 = exp(%3) : float32[16, n]
          %5 = permute(%4) {dims = [1, 0]} : float32[n, 16]
          %6, %7 = split(%5) {sizes = [4, 12], axis = 1} : float32[n, 4], float32[n, 12]
          print(%5) {label = "seen"}
          %8 = tanh(%7) : float32[n, 12]
          return %3, %3, %6, %8
        }"#,
    );
    let elements = check(&model);
    shows_all_ops(&model, &elements);
    assert!(texts(&elements, "copy").len() >= 2, "a part of the concat, and the operand of print");
}

#[test]
fn views_between_ops_of_a_kernel_stand_in_it() {
    let model = load(
        r#"graph "g"(%0: float32[4, 8]) {
          %1 = exp(%0) : float32[4, 8]
          %2 = reduce(%1) {kind = "sum", axis = 1} : float32[4, 1]
          %3 = broadcast_to(%2) {shape = [4, 8]} : float32[4, 8]
          %4 = div(%1, %3) : float32[4, 8]
          return %4
        }"#,
    );
    shows_all_ops(&model, &check(&model));
    assert_eq!(model.kernel_summaries().len(), 1);
}

#[test]
fn texts_from_outside_are_cleaned_cut_and_escaped() {
    let hostile = "</text><script>alert(\\\"'&amp;'\\\")</script>\\u{1b}\\u{7}\\n\\u{202e}\\u{ffff}";
    let graph = format!(
        r#"graph "{hostile}"(%0: float32[2]) {{
          %1 = constant_external() {{name = "{hostile}", dtype = "float32", shape = [2], device = "cpu:0", layout = ""}} : float32[2]
          %2 = constant_external() {{name = "{long}", dtype = "float32", shape = [2], device = "cpu:0", layout = ""}} : float32[2]
          print(%1) {{label = "{hostile}{long}"}}
          %3 = add(%0, %1) : float32[2]
          %4 = mul(%3, %2) : float32[2]
          return %4
        }}"#,
        long = "重".repeat(3_000)
    );
    let model = load(&graph);
    let elements = check(&model);
    shows_all_ops(&model, &elements);
    let weights = texts(&elements, "weight");
    assert!(weights[0].starts_with("</text><script>"), "{weights:?}");
    assert!(weights[1].chars().count() < 60 && weights[1].contains('…'), "{weights:?}");
    assert!(model.picture().len() < 30_000);
    assert!(model.fusion_summary().lines().all(|line| line.starts_with("kernel ")));
}

/// A chain of matmuls of a matrix with itself; all of them also read the first matrix.
fn products(count: usize) -> Model {
    let mut graph = String::from("graph \"products\"(%0: float32[2, 2]) {\n");
    for number in 1..=count {
        let _ = writeln!(graph, "%{number} = matmul(%{}, %0) : float32[2, 2]", number - 1);
    }
    let _ = writeln!(graph, "return %{count}\n}}");
    load(&graph)
}

#[test]
fn of_large_graphs_each_kernel_is_one_node() {
    let small = check(&products(150));
    assert_eq!((titles(&small).len(), texts(&small, "whole").len()), (150, 0));
    let large = check(&products(450));
    let kernels = texts(&large, "whole");
    assert_eq!((titles(&large).len(), kernels.len()), (0, 450));
    assert_eq!(kernels[449], "kernel 449: matmul matmul (1 op)");
    assert_eq!(texts(&large, "input").len() + texts(&large, "output").len(), 2);
    assert!(!large.iter().any(|element| element.text.contains("left out")));
}

#[test]
fn of_huge_graphs_the_first_kernels_are_shown() {
    let elements = check(&products(2_300));
    assert_eq!(texts(&elements, "whole").len(), 2_000);
    assert!(elements.iter().any(|element| element.text.contains("300 more kernels are left out")));
    assert_eq!(texts(&elements, "output").len(), 0);
}

#[test]
fn many_inputs_and_wide_ops_have_pictures() {
    let inputs: Vec<_> = (0..3_000).map(|number| format!("%{number}: float32[1]")).collect();
    let operands: Vec<_> = (0..3_000).map(|number| format!("%{number}")).collect();
    let graph = format!(
        "graph \"wide\"({}) {{ %3000 = concat({}) {{axis = 0}} : float32[3000] return %3000 }}",
        inputs.join(", "),
        operands.join(", ")
    );
    let elements = check(&load(&graph));
    assert!(elements.iter().any(|element| element.text.contains("are left out")));
}
