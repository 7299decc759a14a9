//! Recognizes activation functions in their parts.

use std::f64::consts::FRAC_1_SQRT_2;

use max_core::scalar::{NumericOp, RealOp};
use max_core::{Number, ScalarOp};
use max_graph::ValueId;

use super::is_about;
use crate::passes::rewrite::Builder;

/// `x ** 2` is `x * x`.
pub fn square(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let [x, exponent] = b.binary(value, NumericOp::Pow)?;
    let two = matches!(b.splat(exponent)?, Number::Float(2.0) | Number::Int(2));
    if two { b.push(ScalarOp::from(NumericOp::Mul), [x, x]) } else { None }
}

/// `1 / (1 + exp(-x))`.
pub fn sigmoid(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let [one, denominator] = b.binary(value, RealOp::Div)?;
    let x = one_plus_exp_of_minus(b, denominator)?;
    if b.float(one)? == 1.0 { b.push(ScalarOp::from(RealOp::Sigmoid), [x]) } else { None }
}

/// `x * sigmoid(x)` or `x / (1 + exp(-x))`.
pub fn silu(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let gates = |[x, s]: [ValueId; 2]| (b.unary(s, RealOp::Sigmoid)? == x && b.used_up_to(1, s)).then_some(x);
    let product = b.both_orders(value, NumericOp::Mul).find_map(gates);
    let quotient = || {
        let [x, denominator] = b.binary(value, RealOp::Div)?;
        (one_plus_exp_of_minus(b, denominator)? == x).then_some(x)
    };
    let x = product.or_else(quotient)?;
    b.push(ScalarOp::from(RealOp::Silu), [x])
}

/// The `x` of `1 + exp(-x)`.
fn one_plus_exp_of_minus(b: &Builder, value: ValueId) -> Option<ValueId> {
    let (exp, one) = b.with_float(value, NumericOp::Add)?;
    let minus = b.unary(exp, RealOp::Exp)?;
    let x = b.unary(minus, NumericOp::Negate).or_else(|| match b.with_float(minus, NumericOp::Mul)? {
        (x, -1.0) => Some(x),
        _ => None,
    })?;
    (one == 1.0 && [value, exp, minus].iter().all(|&v| b.used_up_to(1, v))).then_some(x)
}

/// The exact gelu and its tanh and sigmoid approximations.
pub fn gelu(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    b.binary(value, NumericOp::Mul).or_else(|| b.binary(value, RealOp::Div))?;
    let (scale, factors) = product(b, value)?;
    let &[first, second] = &factors[..] else { return None };
    let (x, op) = [[first, second], [second, first]].into_iter().find_map(|[x, gate]| {
        let op = gate_of(b, gate, x, scale)?;
        Some((x, op))
    })?;
    b.push(ScalarOp::from(op), [x])
}

/// Which gelu `scale * x * gate` is.
fn gate_of(b: &Builder, gate: ValueId, x: ValueId, scale: f64) -> Option<RealOp> {
    let about = |number, known| is_about(b.dtype(x), number, known);
    if !b.used_up_to(1, gate) {
        return None;
    }
    if let Some(inner) = b.unary(gate, RealOp::Sigmoid) {
        let (factor, of) = product(b, inner)?;
        return (scale == 1.0 && about(factor, 1.702) && of == [x]).then_some(RealOp::GeluQuick);
    }
    let (curve, one) = b.with_float(gate, NumericOp::Add)?;
    if one != 1.0 || !about(scale, 0.5) || !b.used_up_to(1, curve) {
        return None;
    }
    if let Some(inner) = b.unary(curve, RealOp::Erf) {
        let (factor, of) = product(b, inner)?;
        return (about(factor, FRAC_1_SQRT_2) && of == [x]).then_some(RealOp::Gelu);
    }
    let (factor, of) = product(b, b.unary(curve, RealOp::Tanh)?)?;
    // Either `x + 0.044715 * x ** 3`, or `x * (1 + 0.044715 * x ** 2)`.
    let cubic = match of[..] {
        [sum] => {
            b.both_orders(sum, NumericOp::Add).any(|[linear, cube]| linear == x && is_power(b, cube, x, 3))
        }
        [p, q] => [[p, q], [q, p]].into_iter().any(|[linear, sum]| {
            linear == x
                && b.with_float(sum, NumericOp::Add)
                    .is_some_and(|(square, one)| one == 1.0 && is_power(b, square, x, 2))
        }),
        _ => false,
    };
    (cubic && about(factor, 0.7978845608028654)).then_some(RealOp::GeluTanh)
}

/// Whether a value is `0.044715 * x ** exponent`.
fn is_power(b: &Builder, value: ValueId, x: ValueId, exponent: usize) -> bool {
    product(b, value).is_some_and(|(factor, of)| {
        is_about(b.dtype(x), factor, 0.044715) && of.len() == exponent && of.iter().all(|&v| v == x)
    })
}

/// Products of more than this many ops are not examined.
const MAX_PRODUCT: usize = 8;

/// A float as a number times factors, through products, quotients and powers without other uses.
fn product(b: &Builder, value: ValueId) -> Option<(f64, Vec<ValueId>)> {
    if !b.is_float(value) {
        return None;
    }
    let (mut scale, mut factors, mut pending) = (1.0, Vec::new(), vec![value]);
    for _ in 0..MAX_PRODUCT {
        let Some(part) = pending.pop() else { return Some((scale, factors)) };
        let inside = part == value || b.used_up_to(1, part);
        if let Some((x, number)) = b.with_float(part, NumericOp::Mul).filter(|_| inside) {
            scale *= number;
            pending.push(x);
        } else if let Some((x, number)) = b.with_float(part, RealOp::Div).filter(|_| inside) {
            scale /= number;
            pending.push(x);
        } else if let Some((x, 3.0)) = b.with_float(part, NumericOp::Pow).filter(|_| inside) {
            pending.extend([x; 3]);
        } else if let Some(both) = b.binary(part, NumericOp::Mul).filter(|_| inside) {
            pending.extend(both);
        } else {
            factors.push(part);
        }
    }
    pending.is_empty().then_some((scale, factors))
}
