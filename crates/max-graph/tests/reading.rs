//! The parser accepts any input: it returns a graph or an error, and never panics.

use max_core::{DType, DeviceRef, HostBytes, TensorType};
use max_graph::text::{self, Constants};
use max_graph::{Graph, HostTensor, encode, ops};
use proptest::prelude::*;

fn sample() -> Graph {
    let x = TensorType::new(DType::Float32, ("n", 4), DeviceRef::CPU);
    Graph::build("sample \"one\"", [x], |x| {
        let x = x[0].tensor()?;
        let w =
            ops::constant(HostTensor::from_vec([4, 5], (0..20).map(|i| i as f32).collect())?, None, None)?;
        let y = ops::relu(ops::matmul(&x, w))?;
        let z = ops::reshape(ops::sum(y, -1), ["n"])?;
        ops::rebind(z, ["m"], "a \u{1f600} message\n".to_string())
    })
    .unwrap()
}

#[test]
fn errors_name_the_line() {
    let text = text::print(&sample().body(), Constants::Full);
    let broken = text.replace("relu", "rely");
    let error = text::parse(&broken).unwrap_err().to_string();
    assert!(error.contains("no op 'rely'") && error.contains("in line 4"), "{error}");
    for (from, to) in [
        ("float32[n, 5]", "float32[n, 6]"),
        ("axis = 1", "axis = 9"),
        ("axis = 1", "axes = 1"),
        ("(%0", "(%77"),
        ("%1 =", "%0 ="),
        ("return", "retort"),
        ("hex(", "elided("),
        ("\"sum\"", "\"sam\""),
    ] {
        assert!(text.contains(from), "{from}: {text}");
        assert!(text::parse(&text.replacen(from, to, 1)).is_err(), "{from} -> {to}");
    }
}

#[test]
fn small_texts_stay_small() {
    let wide = format!("graph \"g\"(%0: float32[{}]) {{\n  return %0\n}}", vec!["1"; 4000].join(", "));
    assert!(text::parse(&wide).unwrap_err().message().contains("axes"));
    let sizes = vec!["0"; 70_000].join(", ");
    let split = format!(
        "graph \"g\"(%0: float32[0]) {{\n  %1 = split(%0) {{sizes = [{sizes}], axis = 0}} : float32[0]\n}}"
    );
    let error = text::parse(&split).unwrap_err().to_string();
    assert!(error.contains("at most") && error.len() < 2000, "{}", error.len());
    let long = format!("graph \"g\"(%0: float32[{}]) {{}}", "x + ".repeat(10_000));
    assert!(text::parse(&long).unwrap_err().to_string().len() < 2000);
}

#[test]
fn hand_written_graphs_are_checked() {
    let graph =
        |line: &str| text::parse(&format!("graph \"g\"(%0: float32[4]) {{\n  {line}\n  return %1\n}}"));
    assert!(graph("%1 = slice(%0) {starts = [0], sizes = [2], steps = [2]} : float32[2]").is_ok());
    for bad in [
        "%1 = slice(%0) {starts = [0], sizes = [2], steps = [0]} : float32[2]",
        "%1 = slice(%0) {starts = [0, 0], sizes = [2], steps = [1]} : float32[2]",
        "%1 = constant() {value = dense(uint8[2], [300, -1]), device = \"cpu:0\"} : uint8[2]",
        "%1 = %2 = relu(%0) : float32[4]",
        "%1, relu(%0) : float32[4]",
        "%1 = reduce(%0) {kind = \"sum\", axis = 1} : float32[4]",
        "%1 = permute(%0) {dims = [1]} : float32[4]",
        "%1 = dynamic_slice(%0) {axis = 0, step = 0, start = false, stop = false, out_dim = `n`} : float32[n]",
        "%1 = dynamic_slice(%0) {axis = 0, step = 1, start = true, stop = false, out_dim = `n`} : float32[n]",
    ] {
        assert!(graph(bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn mutated_text_is_parsed_or_an_error(at in 0usize..2000, with in "\\PC{0,6}", cut in 0usize..40) {
        let mut text: Vec<char> = text::print(&sample().body(), Constants::Full).chars().collect();
        let at = at % text.len();
        let end = (at + cut).min(text.len());
        text.splice(at..end, with.chars());
        let text: String = text.into_iter().collect();
        if let Ok(body) = text::parse(&text) {
            let printed = text::print(&body, Constants::Full);
            prop_assert_eq!(text::print(&text::parse(&printed).unwrap(), Constants::Full), printed);
        }
    }

    #[test]
    fn mutated_bytes_are_decoded_or_an_error(at in 0usize..4000, with in proptest::collection::vec(any::<u8>(), 0..9), cut in 0usize..9) {
        let mut bytes: Vec<u8> = encode::encode(&sample().body()).iter().flat_map(|p| p.to_vec()).collect();
        let at = at % bytes.len();
        let end = (at + cut).min(bytes.len());
        bytes.splice(at..end, with);
        let _ = encode::decode(&HostBytes::new(bytes));
    }
}
