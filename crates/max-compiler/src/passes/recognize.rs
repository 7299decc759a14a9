//! Patterns that spell out a named op become that op. Results may round differently, for the better: named ops round once
//! where their parts round at every step.
//!
//! Rules see earlier ops already rewritten, so a pattern grows step by step: `1 / (1 + exp(-x))` becomes a sigmoid, and
//! that times `x` a silu; a normalized row becomes a norm, which then absorbs its weights.

mod activations;
mod norms;

use max_core::scalar::{NumericOp, RealOp};
use max_core::{DType, Result};
use max_graph::ops::reduce::{Reduce, ReduceKind};
use max_graph::ops::softmax::Softmax;
use max_graph::{Body, OpKind, ValueId};

use super::Rewrites;
use super::identities::rsqrt;
use super::rewrite::{Builder, Rule, apply_and_note};

const RULES: &[(&str, Rule)] = &[
    ("square", activations::square),
    ("rsqrt", rsqrt),
    ("sigmoid", activations::sigmoid),
    ("silu", activations::silu),
    ("gelu", activations::gelu),
    ("softmax", softmax),
    ("log softmax", log_softmax),
    ("norm", norms::norm),
    ("norm with a scale", norms::scaled),
    ("norm with a shift", norms::shifted),
    ("norm in a narrow dtype", norms::narrowed),
];

/// Finds patterns whose parts have no other use.
pub fn recognize(body: &Body, rewrites: &mut Rewrites) -> Result<Body> {
    apply_and_note(body, RULES, |name| rewrites.push(name))
}

/// `exp(x - max(x)) / sum(exp(x - max(x)))`.
fn softmax(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let [weights, sum] = b.binary(value, RealOp::Div)?;
    let (summed, axis) = reduced(b, sum, ReduceKind::Sum)?;
    let difference = b.unary(weights, RealOp::Exp)?;
    let x = below_max(b, difference, axis)?;
    let whole =
        summed == weights && b.used_up_to(2, weights) && b.used_up_to(1, sum) && b.used_up_to(1, difference);
    if whole { b.push(Softmax { axis, log: false }, [x]) } else { None }
}

/// `(x - max(x)) - log(sum(exp(x - max(x))))`.
fn log_softmax(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let [difference, log] = b.binary(value, NumericOp::Sub)?;
    let sum = b.unary(log, RealOp::Log)?;
    let (weights, axis) = reduced(b, sum, ReduceKind::Sum)?;
    let x = below_max(b, difference, axis)?;
    let parts = [log, sum, weights].iter().all(|&part| b.used_up_to(1, part)) && b.used_up_to(2, difference);
    let whole = parts && b.unary(weights, RealOp::Exp) == Some(difference);
    if whole { b.push(Softmax { axis, log: true }, [x]) } else { None }
}

/// The `x` of `x - max(x)` along an axis.
fn below_max(b: &Builder, difference: ValueId, axis: usize) -> Option<ValueId> {
    let [x, max] = b.binary(difference, NumericOp::Sub)?;
    (b.is_float(x) && reduced(b, max, ReduceKind::Max)? == (x, axis) && b.used_up_to(1, max)).then_some(x)
}

/// The operand of a reduction, and its axis.
fn reduced(b: &Builder, value: ValueId, kind: ReduceKind) -> Option<(ValueId, usize)> {
    match b.kind(value)? {
        &OpKind::Reduce(Reduce { kind: own, axis }) if own == kind => Some((b.operand(value)?, axis)),
        _ => None,
    }
}

/// Whether a constant in a graph is a known number, up to the digits that people write and dtypes hold.
fn is_about(dtype: Option<DType>, number: f64, known: f64) -> bool {
    let tolerance = match dtype {
        Some(DType::Float64 | DType::Float32) => 1e-6,
        Some(DType::Float16) => 1e-3,
        Some(DType::BFloat16) => 8e-3,
        _ => return false,
    };
    (number - known).abs() <= tolerance * known.abs()
}
