//! The shared table of op cases (`cases/ops.json`), run from Rust: each case is built through the op registry, printed
//! and parsed back, encoded and decoded, compiled and executed, and the result compared with the reference
//! interpreter's. The Python tests compare the same cases with NumPy.

#[path = "cases/table.rs"]
mod table;

use std::collections::BTreeSet;

use max_core::{DType, Element, Error, HostBytes, Result, dispatch};
use max_driver::{Buffer, Device};
use max_engine::InferenceSession;
use max_graph::text::{self, Constants};
use max_graph::{Graph, HostTensor, encode, interpret};
use serde_json::Value as Json;

use table::{Case, read, rows};

fn check(row: &Json, dtype: DType, session: &InferenceSession) -> Result<()> {
    let Case { graph, inputs: values } = read(row, dtype)?;

    let printed = text::print(&graph.body(), Constants::Full);
    assert_eq!(text::print(&text::parse(&printed)?, Constants::Full), printed);
    let encoded: Vec<u8> = encode::encode(&graph.body()).iter().flat_map(|piece| piece.to_vec()).collect();
    let decoded = encode::decode(&HostBytes::new(encoded))?;
    assert_eq!(text::print(&decoded.body(), Constants::Full), printed);

    let expected = interpret(&graph.body(), &values, &())?;
    let results = execute(&graph, &values, session)?;
    assert_eq!(results.len(), expected.len());
    for (result, expected) in results.iter().zip(&expected) {
        compare(result, expected).map_err(|what| Error::runtime(format!("{what}\n{printed}")))?;
    }
    Ok(())
}

fn execute(graph: &Graph, values: &[HostTensor], session: &InferenceSession) -> Result<Vec<HostTensor>> {
    let buffer = |v: &HostTensor| Buffer::from_host_bytes(v.bytes().clone(), v.dtype(), v.shape());
    let results = session.load(graph)?.execute(&values.iter().map(buffer).collect::<Result<Vec<_>>>()?)?;
    results
        .iter()
        .map(|result| HostTensor::new(result.dtype(), result.shape(), result.host_bytes()?))
        .collect()
}

/// Floats agree to a few units in the last place of their dtype, relative to the largest; everything else is equal.
fn compare(result: &HostTensor, expected: &HostTensor) -> std::result::Result<(), String> {
    if (result.dtype(), result.shape()) != (expected.dtype(), expected.shape()) {
        return Err(format!("expected {expected:?}, got {result:?}"));
    }
    let unit = match expected.dtype() {
        DType::Float64 => 1e-14,
        DType::Float32 => 1e-6,
        DType::Float16 => 2e-3,
        dtype if dtype.is_float() => 0.02,
        _ => 0.0,
    };
    dispatch!(expected.dtype(), T => {
        let (result, expected) = (result.elements::<T>().unwrap(), expected.elements::<T>().unwrap());
        let largest = expected.iter().map(|e| e.to_f64().abs()).filter(|x| x.is_finite()).fold(0.0, f64::max);
        for (at, (got, want)) in result.iter().zip(expected.iter()).enumerate() {
            let (x, y) = (got.to_f64(), want.to_f64());
            let same = got == want || x.is_nan() && y.is_nan() || (x - y).abs() <= unit * (largest + y.abs());
            if !same {
                return Err(format!("element {at}: expected {y:e}, got {x:e}"));
            }
        }
        Ok(())
    })
}

#[test]
fn every_case_builds_prints_and_runs() {
    let session = InferenceSession::new([Device::cpu()]);
    let mut count = 0;
    for (row, dtype) in rows("ops.json") {
        if let Err(error) = check(&row, dtype, &session) {
            panic!("{row} with {dtype}: {error}");
        }
        count += 1;
    }
    assert!(count > 2000, "only {count} cases ran");
}

/// A row with one symbol at size zero, for each of its symbols.
fn emptied(row: &Json) -> Vec<Json> {
    let text = row.to_string();
    let letters = |piece: &str| piece.rsplit(['[', ' ']).next().map(str::to_owned);
    let mut symbols: BTreeSet<String> = text.split('=').filter_map(letters).collect();
    symbols.retain(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase()));
    let empty = |name: &String| {
        let mark = format!("{name}=");
        let mut pieces = text.split(&mark);
        let first = pieces.next().unwrap_or_default().to_owned();
        let cut = |piece: &str| piece.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned();
        let text = pieces.fold(first, |text, piece| text + &mark + "0" + &cut(piece));
        serde_json::from_str(&text).unwrap()
    };
    symbols.iter().map(empty).collect()
}

#[test]
fn every_symbol_may_be_zero() {
    let session = InferenceSession::new([Device::cpu()]);
    let mut count = 0;
    for (row, dtype) in rows("ops.json") {
        for row in emptied(&row) {
            let Ok(Case { graph, inputs }) = read(&row, dtype) else { continue };
            match (interpret(&graph.body(), &inputs, &()), execute(&graph, &inputs, &session)) {
                (Err(_), Err(_)) => {}
                (Ok(expected), Ok(results)) => {
                    for (result, expected) in results.iter().zip(&expected) {
                        compare(result, expected).unwrap_or_else(|what| panic!("{row} with {dtype}: {what}"));
                    }
                    count += 1;
                }
                (expected, results) => panic!("{row} with {dtype}: expected {expected:?}, got {results:?}"),
            }
        }
    }
    assert!(count > 400, "only {count} cases ran");
}

#[test]
fn every_op_has_a_benchmark() {
    let ops =
        |name| -> BTreeSet<String> { rows(name).iter().map(|(row, _)| row["op"].to_string()).collect() };
    let missing: Vec<_> = ops("ops.json").difference(&ops("bench.json")).cloned().collect();
    assert!(missing.is_empty(), "cases/bench.json has no row of {missing:?}");
}
