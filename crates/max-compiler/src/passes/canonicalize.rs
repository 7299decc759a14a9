//! One form for equal things, so that later passes need to know only that form.

use max_core::scalar::{CompareOp, LogicalOp, NumericOp};
use max_core::{Number, Result, ScalarOp};
use max_graph::properties::Form;
use max_graph::{Body, OpKind, ValueId};

use super::rewrite::{Builder, Rule, apply};

const RULES: &[(&str, Rule)] = &[
    ("constants on the right", constants_on_the_right),
    ("nested casts", nested_casts),
    ("needless broadcasts", needless_broadcasts),
    ("needless transfers and rebinds", needless_moves),
];

/// Brings ops into canonical form.
pub fn canonicalize(body: &Body) -> Result<Body> {
    apply(body, RULES)
}

/// Whether the operands of an op can be swapped without changing the result.
pub fn commutes(op: ScalarOp) -> bool {
    matches!(
        op,
        ScalarOp::NumericOp(NumericOp::Add | NumericOp::Mul)
            | ScalarOp::CompareOp(CompareOp::Equal | CompareOp::NotEqual)
            | ScalarOp::LogicalOp(LogicalOp::LogicalAnd | LogicalOp::LogicalOr | LogicalOp::LogicalXor)
    )
}

/// `c + x` becomes `x + c`. The greater of two zeros is the second one, so `max` is swapped only if there are none.
fn constants_on_the_right(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let &OpKind::Scalar(op) = b.kind(value)? else { return None };
    let [x, y] = b.binary(value, op)?;
    let constant = |v: ValueId| b.constant(v).is_some();
    let nonzero = match b.splat(x) {
        Some(Number::Float(f)) => f != 0.0,
        number => number.is_some(),
    };
    let extremum = matches!(op, ScalarOp::NumericOp(NumericOp::Max | NumericOp::Min));
    let swaps = constant(x) && !constant(y) && (commutes(op) || extremum && nonzero);
    if swaps { b.push(op, [y, x]) } else { None }
}

/// Two casts, of which the first loses nothing, are one cast.
fn nested_casts(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let OpKind::Cast(outer) = b.kind(value)? else { return None };
    let outer = outer.clone();
    let inner = b.operand(value)?;
    let OpKind::Cast(_) = b.kind(inner)? else { return None };
    let x = b.operand(inner)?;
    let (from, through, to) = (b.dtype(x)?, b.dtype(inner)?, outer.dtype);
    // When narrowing to integers, integers wrap and floats saturate.
    let alike = from.is_float() == through.is_float() || !to.is_integral() || from.fits(to);
    let exact = from.fits(through) && alike;
    if exact { if from == to { Some(x) } else { b.push(outer, [x]) } } else { None }
}

/// Elementwise ops and matmuls broadcast by themselves.
fn needless_broadcasts(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let op = b.definition(value)?;
    if !matches!(op.kind, OpKind::Matmul(_)) && b.properties(op).form != Form::Elementwise {
        return None;
    }
    (0..op.operands.len()).find_map(|at| {
        let op = b.definition(value)?;
        let OpKind::BroadcastTo(_) = b.kind(op.operands[at])? else { return None };
        let mut operands = op.operands.clone();
        operands[at] = b.operand(operands[at])?;
        let types: Vec<_> = operands.iter().map(|&v| b.type_of(v)).collect();
        let kept = op.kind.infer(&types).ok()?.first() == Some(b.type_of(value));
        let kind = op.kind.clone();
        if kept { b.push(kind, operands) } else { None }
    })
}

/// A transfer to the value's own device, a rebind to its own shape, and all but the last of several transfers.
fn needless_moves(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let x = b.operand(value)?;
    match b.kind(value)? {
        OpKind::Rebind(_) if b.is_pure(value) => Some(x),
        OpKind::TransferTo(_) if b.type_of(x) == b.type_of(value) => Some(x),
        OpKind::TransferTo(transfer) => {
            let OpKind::TransferTo(_) = b.kind(x)? else { return None };
            let (transfer, source) = (transfer.clone(), b.operand(x)?);
            if b.type_of(source) == b.type_of(value) { Some(source) } else { b.push(transfer, [source]) }
        }
        _ => None,
    }
}
