//! Whether the results of a random graph are correct, judged by the reference interpreter.

use std::collections::HashSet;

use max_core::{Element, Result, dispatch};
use max_graph::{Body, HostTensor, ValueId, interpret};

use super::generate::Case;

/// The ops that the outputs need, and no others.
pub fn live(mut body: Body) -> Body {
    let mut needed: HashSet<ValueId> = body.block.results.iter().flatten().copied().collect();
    let mut kept = Vec::new();
    for id in std::mem::take(&mut body.block.ops).into_iter().rev() {
        let op = body.op(id);
        if op.results.iter().any(|v| needed.contains(v)) {
            needed.extend(&op.operands);
            kept.push(id);
        }
    }
    body.block.ops = kept.into_iter().rev().collect();
    body
}

/// Where two results differ by more than a tolerance, in words.
pub fn difference(expected: &HostTensor, got: &HostTensor, tolerance: f64) -> Option<String> {
    if (expected.dtype(), expected.shape()) != (got.dtype(), got.shape()) {
        let show = |t: &HostTensor| format!("{} {:?}", t.dtype(), t.shape());
        return Some(format!("expected {}, got {}", show(expected), show(got)));
    }
    dispatch!(expected.dtype(), T => {
        let (expected, got) = (expected.elements::<T>().unwrap(), got.elements::<T>().unwrap());
        let same = |a: T, b: T| {
            let (x, y) = (a.to_f64(), b.to_f64());
            a == b || x.is_nan() && y.is_nan() || T::DTYPE.is_float() && (x - y).abs() <= tolerance
        };
        let at = expected.iter().zip(got.iter()).position(|(&a, &b)| !same(a, b))?;
        let count = expected.iter().zip(got.iter()).filter(|&(&a, &b)| !same(a, b)).count();
        let (a, b) = (expected[at].to_f64(), got[at].to_f64());
        Some(format!("element {at}: expected {a:e}, got {b:e} (tolerance {tolerance:e}, {count} of {} differ)", expected.len()))
    })
}

/// Why the engine's results are wrong, if they are. What fails in the reference must fail in the engine, unless only
/// ops that no output needs fail.
pub fn judge(
    case: &Case,
    inputs: &[HostTensor],
    got: Result<Vec<HostTensor>>,
) -> std::result::Result<bool, String> {
    let body = case.graph.body();
    let reference = interpret(&body, inputs, &());
    let expected = match (reference, &got) {
        (Err(_), Err(_)) => return Ok(false),
        // The engine knows what every op requires of sizes before the first one runs; the reference finds out on the
        // way.
        (Err(whole), Ok(_)) if whole.message().contains("is not bound to a size") => return Ok(false),
        (Ok(expected), _) => expected,
        (Err(whole), Ok(_)) => match interpret(&live(body), inputs, &()) {
            Ok(expected) => expected,
            // Ops that no output needs may define the sizes of needed values.
            Err(part) if part.message().contains("is not bound to a size") => return Ok(false),
            // A simplification may leave no use of a maximum that does not exist, as in `where(max(x) > 0, y, y)`.
            Err(part) if part.message().contains("of an axis of size 0") => return Ok(false),
            Err(_) => return Err(format!("the engine gives results, but the reference fails: {whole}")),
        },
    };
    let got = got.map_err(|e| format!("the engine fails, but the reference does not: {e}"))?;
    if expected.len() != got.len() {
        return Err(format!("expected {} outputs, got {}", expected.len(), got.len()));
    }
    for (i, (expected, got)) in expected.iter().zip(&got).enumerate() {
        if let Some(difference) = difference(expected, got, case.tolerances[i]) {
            return Err(format!("output {i}: {difference}"));
        }
    }
    Ok(true)
}
