//! Recognizes layer norm and RMS norm in their parts.
//!
//! A normalized row is recognized first, as a norm with a scale of one and a shift of zero; multiplying by or adding a
//! vector then replaces these.

use max_core::scalar::{NumericOp, RealOp};
use max_core::{DType, Dim, Number, Shape};
use max_graph::ops::broadcast::BroadcastTo;
use max_graph::ops::layer_norm::LayerNorm;
use max_graph::ops::reduce::ReduceKind;
use max_graph::ops::rms_norm::RmsNorm;
use max_graph::{OpKind, ValueId};

use super::reduced;
use crate::passes::rewrite::Builder;

/// `(x - mean) / sqrt(variance + epsilon)` or `x / sqrt(mean(x * x) + epsilon)` along the last axis.
pub fn norm(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let (row, variance, epsilon) = quotient(b, value)?;
    let squares = mean(b, uncast(b, variance))?;
    let [deviation, same] = b.binary(squares, NumericOp::Mul)?;
    if deviation != same || !b.is_float(row) || !b.used_up_to(1, variance) || !b.used_up_to(1, squares) {
        return None;
    }
    if row == deviation && centred(b, row).is_none() {
        let ones = vector(b, 1.0, row)?;
        return b.push(RmsNorm { epsilon, weight_offset: 0.0, multiply_before_cast: false }, [row, ones]);
    }
    let x = centred(b, row)?;
    // The variance may be computed in a wider dtype.
    let same = match row == deviation {
        true => b.used_up_to(3, row),
        false => uncast(b, centred(b, deviation)?) == x,
    };
    if !same {
        return None;
    }
    let (ones, zeros) = (vector(b, 1.0, x)?, vector(b, -0.0, x)?);
    b.push(LayerNorm { epsilon }, [x, ones, zeros])
}

/// A norm without a scale, times a vector.
pub fn scaled(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    b.both_orders(value, NumericOp::Mul).find_map(|[norm, scale]| {
        let definition = b.definition(norm)?;
        if !b.used_up_to(1, norm) || !is_vector_of(b, scale, norm) {
            return None;
        }
        match (&definition.kind, &definition.operands[..]) {
            (OpKind::LayerNorm(kind), &[x, ones, zeros]) => {
                let free = uniform(b, ones)? == 1.0 && uniform(b, zeros)? == 0.0;
                let kind = kind.clone();
                if free { b.push(kind, [x, scale, zeros]) } else { None }
            }
            (OpKind::RmsNorm(kind), &[x, ones]) if kind.weight_offset == 0.0 && uniform(b, ones)? == 1.0 => {
                let kind = kind.clone();
                match b.with_float(scale, NumericOp::Add) {
                    Some((weight, weight_offset))
                        if is_vector_of(b, weight, norm) && b.used_up_to(1, scale) =>
                    {
                        b.push(RmsNorm { weight_offset, ..kind }, [x, weight])
                    }
                    _ => b.push(kind, [x, scale]),
                }
            }
            _ => None,
        }
    })
}

/// A layer norm without a shift, plus a vector.
pub fn shifted(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    b.both_orders(value, NumericOp::Add).find_map(|[norm, shift]| {
        let definition = b.definition(norm)?;
        let (OpKind::LayerNorm(kind), &[x, scale, zeros]) = (&definition.kind, &definition.operands[..])
        else {
            return None;
        };
        let free = uniform(b, zeros)? == 0.0 && b.used_up_to(1, norm) && is_vector_of(b, shift, norm);
        let kind = kind.clone();
        if free { b.push(kind, [x, scale, shift]) } else { None }
    })
}

/// A norm that casts its operand to a wider dtype and its result back. The scale of an RMS norm comes before the cast if
/// it is cast too.
pub fn narrowed(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let OpKind::Cast(_) = b.kind(value)? else { return None };
    let norm = b.operand(value)?;
    let definition = b.definition(norm)?;
    let kind = match &definition.kind {
        OpKind::RmsNorm(kind) => OpKind::from(RmsNorm { multiply_before_cast: true, ..kind.clone() }),
        kind @ OpKind::LayerNorm(_) => kind.clone(),
        _ => return None,
    };
    let operands = definition.operands.clone();
    let dtype = b.dtype(value)?;
    if !b.used_up_to(1, norm) || !dtype.is_float() || !dtype.fits(b.dtype(norm)?) {
        return None;
    }
    let x = narrow(b, operands[0], dtype)?;
    let parameters = operands[1..].iter().map(|&parameter| match uniform(b, parameter) {
        Some(number) => vector(b, number, x),
        None => narrow(b, parameter, dtype),
    });
    let parameters = parameters.collect::<Option<Vec<_>>>()?;
    let unscaled = parameters.len() == 1 && uniform(b, parameters[0]) == Some(1.0);
    let kind = match kind {
        OpKind::RmsNorm(kind) if unscaled && kind.weight_offset == 0.0 => {
            OpKind::from(RmsNorm { multiply_before_cast: false, ..kind })
        }
        kind => kind,
    };
    b.push(kind, [vec![x], parameters].concat())
}

/// The value that was cast to a wider dtype.
fn narrow(b: &Builder, value: ValueId, dtype: DType) -> Option<ValueId> {
    let OpKind::Cast(_) = b.kind(value)? else { return None };
    b.operand(value).filter(|&x| b.dtype(x) == Some(dtype))
}

/// The value under a cast between floats, or itself.
fn uncast(b: &Builder, value: ValueId) -> ValueId {
    match b.kind(value) {
        Some(OpKind::Cast(_)) => b.operand(value).filter(|&x| b.is_float(x)).unwrap_or(value),
        _ => value,
    }
}

/// The `row`, `variance` and `epsilon` of `row / sqrt(variance + epsilon)` in its forms.
fn quotient(b: &Builder, value: ValueId) -> Option<(ValueId, ValueId, f64)> {
    let power = |v: ValueId, exponent: f64| {
        b.with_float(v, NumericOp::Pow).filter(|(_, own)| *own == exponent).map(|(x, _)| x)
    };
    let times = || {
        b.both_orders(value, NumericOp::Mul).find_map(|[row, inverse]| {
            let radicand = b.unary(inverse, RealOp::Rsqrt).or_else(|| power(inverse, -0.5))?;
            Some((row, inverse, radicand))
        })
    };
    let over = || {
        let [row, root] = b.binary(value, RealOp::Div)?;
        let radicand = b.unary(root, RealOp::Sqrt).or_else(|| power(root, 0.5))?;
        Some((row, root, radicand))
    };
    let (row, root, radicand) = times().or_else(over)?;
    let (variance, epsilon) = b.with_float(radicand, NumericOp::Add)?;
    (b.used_up_to(1, root) && b.used_up_to(1, radicand)).then_some((row, variance, epsilon))
}

/// The `x` of `x - mean(x)`.
fn centred(b: &Builder, value: ValueId) -> Option<ValueId> {
    let [x, average] = b.binary(value, NumericOp::Sub)?;
    (mean(b, average)? == x).then_some(x)
}

/// The operand of a mean along the last axis.
fn mean(b: &Builder, value: ValueId) -> Option<ValueId> {
    let sum_over_count = || {
        let (sum, count) = b.with_float(value, RealOp::Div)?;
        let (x, axis) = reduced(b, sum, ReduceKind::Sum)?;
        let size = b.shape(x)?.get(axis)?.as_static()?;
        (count == size as f64 && b.used_up_to(1, sum)).then_some((x, axis))
    };
    let (x, axis) = reduced(b, value, ReduceKind::Mean).or_else(sum_over_count)?;
    (axis + 1 == b.shape(x)?.rank()).then_some(x)
}

fn last_dim(b: &Builder, value: ValueId) -> Option<Dim> {
    b.shape(value)?.last().cloned()
}

/// Whether a value is a vector along the last axis of another one.
fn is_vector_of(b: &Builder, value: ValueId, of: ValueId) -> bool {
    last_dim(b, of).is_some_and(|last| b.shape(value) == Some(&Shape::from([last])))
}

/// A number for each position along the last axis of a value.
fn vector(b: &mut Builder, number: f64, like: ValueId) -> Option<ValueId> {
    let last = last_dim(b, like)?;
    let scalar = b.push_number(Number::Float(number), like)?;
    b.push(BroadcastTo { shape: [last].into() }, [scalar])
}

/// The number that all elements share, broadcast or not.
fn uniform(b: &Builder, value: ValueId) -> Option<f64> {
    b.float(value).or_else(|| match b.kind(value)? {
        OpKind::BroadcastTo(_) => b.float(b.operand(value)?),
        _ => None,
    })
}
