//! What the parser reads may be anything: it answers with a graph or an error, and never otherwise.

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

proptest! {
    #[test]
    fn mutated_text_is_read_or_refused(at in 0usize..2000, with in "\\PC{0,6}", cut in 0usize..40) {
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
    fn mutated_bytes_are_read_or_refused(at in 0usize..4000, with in proptest::collection::vec(any::<u8>(), 0..9), cut in 0usize..9) {
        let mut bytes: Vec<u8> = encode::encode(&sample().body()).iter().flat_map(|p| p.to_vec()).collect();
        let at = at % bytes.len();
        let end = (at + cut).min(bytes.len());
        bytes.splice(at..end, with);
        let _ = encode::decode(&HostBytes::new(bytes));
    }
}
