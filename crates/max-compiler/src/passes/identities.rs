//! Rewrites that change nothing: each rule keeps every bit of the result, including NaN, infinities and signs of zeros.

use max_core::scalar::{LogicalOp, NumericOp, RealOp};
use max_core::{Dim, Number, Result, ScalarOp, Shape};
use max_graph::ops::broadcast::BroadcastTo;
use max_graph::ops::concat::Concat;
use max_graph::ops::permute::Permute;
use max_graph::ops::reduce::{Reduce, ReduceKind};
use max_graph::ops::slice::Slice;
use max_graph::{Body, OpKind, ValueId};

use super::rewrite::{Builder, Rule, apply};

const RULES: &[(&str, Rule)] = &[
    ("neutral operands", neutral),
    ("absorbing operands", absorbing),
    ("one value twice", twice),
    ("functions of themselves", nested),
    ("relu", relu),
    ("rsqrt", wide_rsqrt),
    ("known choices", known_choices),
    ("shapes that stay", same_shape),
    ("views of views", nested_views),
    ("permute of permute", nested_permutes),
    ("slice of slice", nested_slices),
    ("concat of concat", nested_concats),
    ("reductions of one element", reduce_one),
];

/// Removes ops that do nothing and merges two steps that do one thing.
pub fn identities(body: &Body) -> Result<Body> {
    apply(body, RULES)
}

use LogicalOp::{LogicalAnd, LogicalNot, LogicalOr, LogicalXor};
use NumericOp::{Abs, Add, Ceil, Floor, FloorDiv, Max, Min, Mul, Negate, Pow, Relu, Round, Sub, Trunc};

const fn numeric(op: NumericOp) -> ScalarOp {
    ScalarOp::NumericOp(op)
}

const fn logical(op: LogicalOp) -> ScalarOp {
    ScalarOp::LogicalOp(op)
}

/// `x op n` is `x`. Positive zero is not neutral in a sum: it changes negative zero.
const NEUTRAL: &[(ScalarOp, Number)] = &[
    (numeric(Add), Number::Float(-0.0)),
    (numeric(Add), Number::Int(0)),
    (numeric(Sub), Number::Float(0.0)),
    (numeric(Sub), Number::Int(0)),
    (numeric(Mul), Number::Float(1.0)),
    (numeric(Mul), Number::Int(1)),
    (ScalarOp::RealOp(RealOp::Div), Number::Float(1.0)),
    (numeric(FloorDiv), Number::Int(1)),
    (numeric(Pow), Number::Float(1.0)),
    (numeric(Pow), Number::Int(1)),
    (logical(LogicalAnd), Number::Bool(true)),
    (logical(LogicalOr), Number::Bool(false)),
    (logical(LogicalXor), Number::Bool(false)),
];

/// `x op a` is `a`. Zero times a float is not always zero.
const ABSORBING: &[(ScalarOp, Number)] = &[
    (numeric(Mul), Number::Int(0)),
    (logical(LogicalAnd), Number::Bool(false)),
    (logical(LogicalOr), Number::Bool(true)),
];

/// `op(x, x)` is `x`.
const IDEMPOTENT: &[ScalarOp] = &[numeric(Max), numeric(Min), logical(LogicalAnd), logical(LogicalOr)];

/// `op(op(x))` is `x`.
const INVOLUTIONS: &[ScalarOp] = &[numeric(Negate), logical(LogicalNot)];

/// `outer(inner(x))` is `inner(x)` for any two of a group.
const PROJECTIONS: &[&[NumericOp]] = &[&[Relu], &[Abs], &[Floor, Ceil, Round, Trunc]];

/// Whether two numbers are the same, including the sign of zero.
fn same(a: Number, b: Number) -> bool {
    match (a, b) {
        (Number::Float(a), Number::Float(b)) => a.to_bits() == b.to_bits(),
        _ => a == b,
    }
}

/// The operands of a scalar op that a table lists with the number on its right.
fn listed(b: &Builder, value: ValueId, table: &[(ScalarOp, Number)]) -> Option<[ValueId; 2]> {
    let &OpKind::Scalar(op) = b.kind(value)? else { return None };
    let [x, y] = b.binary(value, op)?;
    let number = b.splat(y)?;
    table.iter().any(|&(listed, n)| listed == op && same(n, number)).then_some([x, y])
}

fn neutral(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    listed(b, value, NEUTRAL).map(|[x, _]| x)
}

fn absorbing(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let [_, y] = listed(b, value, ABSORBING)?;
    let shape = b.shape(value)?.clone();
    if b.shape(y) == Some(&shape) {
        return Some(y);
    }
    let number = b.splat(y)?;
    let scalar = b.push_number(number, y)?;
    b.push(BroadcastTo { shape }, [scalar])
}

fn twice(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let &OpKind::Scalar(op) = b.kind(value)? else { return None };
    let [x, y] = b.binary(value, op)?;
    (x == y && IDEMPOTENT.contains(&op)).then_some(x)
}

fn nested(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let &OpKind::Scalar(outer) = b.kind(value)? else { return None };
    let inner_value = b.unary(value, outer)?;
    let &OpKind::Scalar(inner) = b.kind(inner_value)? else { return None };
    let x = b.unary(inner_value, inner)?;
    if outer == inner && INVOLUTIONS.contains(&outer) {
        return Some(x);
    }
    // Negating an unsigned number wraps around.
    let signed = !b.dtype(x)?.is_unsigned_integral();
    if (outer, inner) == (numeric(Abs), numeric(Negate)) && signed {
        return b.push(outer, [x]);
    }
    let (ScalarOp::NumericOp(outer), ScalarOp::NumericOp(inner)) = (outer, inner) else { return None };
    PROJECTIONS.iter().any(|group| group.contains(&outer) && group.contains(&inner)).then_some(inner_value)
}

/// `max(x, 0)`; for negative zero with zero on the right it gives zero, like relu.
fn relu(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let [x, zero] = b.binary(value, Max)?;
    let zero = match b.splat(zero)? {
        Number::Float(zero) => zero.to_bits() == 0,
        Number::Int(zero) => zero == 0,
        Number::Bool(_) => false,
    };
    if zero { b.push(numeric(Relu), [x]) } else { None }
}

/// `1 / sqrt(x)` in a dtype that loops do not hold wider: there, rounding the root changes nothing.
fn wide_rsqrt(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    if b.dtype(value)?.size_in_bytes() >= 4 { rsqrt(b, value) } else { None }
}

/// `1 / sqrt(x)`.
pub fn rsqrt(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let [one, root] = b.binary(value, RealOp::Div)?;
    let x = b.unary(root, RealOp::Sqrt)?;
    let whole = b.float(one)? == 1.0 && b.used_up_to(1, root);
    if whole { b.push(ScalarOp::from(RealOp::Rsqrt), [x]) } else { None }
}

/// A `where` that always picks the same side, or has the same value on both.
fn known_choices(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let OpKind::Where(_) = b.kind(value)? else { return None };
    let &[condition, x, y] = &b.definition(value)?.operands[..] else { return None };
    match b.splat(condition) {
        Some(Number::Bool(true)) => Some(x),
        Some(Number::Bool(false)) => Some(y),
        _ => (x == y).then_some(x),
    }
}

/// Ops that do nothing if the type stays the same.
fn same_shape(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let x = b.operand(value)?;
    let keeps = match b.kind(value)? {
        OpKind::Reshape(_)
        | OpKind::BroadcastTo(_)
        | OpKind::Concat(_)
        | OpKind::Split(_)
        | OpKind::Cast(_) => true,
        OpKind::Permute(permute) => permute.dims.iter().enumerate().all(|(i, &d)| i == d),
        OpKind::Slice(slice) => {
            slice.steps.iter().all(|&s| s == 1) && slice.starts.iter().all(|s| *s == Dim::Static(0))
        }
        _ => false,
    };
    (keeps && b.type_of(x) == b.type_of(value)).then_some(x)
}

/// Reshape of reshape and broadcast of broadcast: only the last one counts.
fn nested_views(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let inner = b.operand(value)?;
    let alike = matches!(
        (b.kind(value)?, b.kind(inner)?),
        (OpKind::Reshape(_), OpKind::Reshape(_)) | (OpKind::BroadcastTo(_), OpKind::BroadcastTo(_))
    );
    let x = b.operand(inner)?;
    let kind = b.kind(value)?.clone();
    if alike { b.push(kind, [x]) } else { None }
}

fn nested_permutes(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let inner_value = b.operand(value)?;
    let (OpKind::Permute(outer), OpKind::Permute(inner)) = (b.kind(value)?, b.kind(inner_value)?) else {
        return None;
    };
    let dims = outer.dims.iter().map(|&d| inner.dims[d]).collect();
    let x = b.operand(inner_value)?;
    b.push(Permute { dims }, [x])
}

/// Both must be known to stay within their operands: run-time checks happen in two steps.
fn nested_slices(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let inner_value = b.operand(value)?;
    let (OpKind::Slice(outer), OpKind::Slice(inner)) = (b.kind(value)?, b.kind(inner_value)?) else {
        return None;
    };
    if !b.is_pure(value) || !b.is_pure(inner_value) {
        return None;
    }
    let axes = 0..outer.steps.len();
    let start = |axis: usize| {
        let moved = outer.starts[axis].mul(&Dim::Static(inner.steps[axis])).ok()?;
        inner.starts[axis].add(&moved).ok()
    };
    let starts: Shape = axes.clone().map(start).collect::<Option<Vec<_>>>()?.into();
    let steps =
        axes.map(|axis| outer.steps[axis].checked_mul(inner.steps[axis])).collect::<Option<Vec<_>>>()?;
    let sizes = outer.sizes.clone();
    let x = b.operand(inner_value)?;
    b.push(Slice { starts, sizes, steps }, [x])
}

/// Chains of concats merge up to this many parts, so that long chains take only linear time.
const MAX_PARTS: usize = 16;

fn nested_concats(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let OpKind::Concat(outer) = b.kind(value)? else { return None };
    let axis = outer.axis;
    let inner = |v: ValueId| match b.definition(v) {
        Some(op) if op.kind == OpKind::from(Concat { axis }) && b.used_up_to(1, v) => Some(&op.operands),
        _ => None,
    };
    let operands = &b.definition(value)?.operands;
    if !operands.iter().any(|&v| inner(v).is_some()) {
        return None;
    }
    let flat: Vec<ValueId> =
        operands.iter().flat_map(|&v| inner(v).cloned().unwrap_or_else(|| vec![v])).collect();
    if flat.len() <= MAX_PARTS { b.push(Concat { axis }, flat) } else { None }
}

/// The maximum, minimum and product of one element are that element; so is the sum, unless it is -0.0.
fn reduce_one(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let OpKind::Reduce(Reduce { kind, axis }) = b.kind(value)? else { return None };
    let x = b.operand(value)?;
    let keeps = match kind {
        ReduceKind::Max | ReduceKind::Min | ReduceKind::Prod => true,
        ReduceKind::Sum => !b.is_float(x),
        _ => false,
    };
    (keeps && b.shape(x)?.get(*axis) == Some(&Dim::Static(1))).then_some(x)
}
