//! Scaled dot-product attention out of its parts: two products of matrices with a softmax between them.

mod shared;

use std::collections::HashMap;

use max_core::scalar::{LogicalOp, NumericOp, RealOp};
use max_core::{DType, Element, Result, ScalarOp, dispatch};
use max_graph::ops::attention::Attention;
use max_graph::ops::permute::Permute;
use max_graph::ops::softmax::Softmax;
use max_graph::{Body, HostTensor, OpKind, ValueId};

use super::rewrite::{Builder, rebuild};

/// Finds `matmul(softmax(scale * matmul(query, key transposed) + mask), value)` and its variants.
pub fn attention(body: &Body) -> Result<Body> {
    let mut known_masks = HashMap::new();
    rebuild(body, |b, _, op| {
        let &[value] = &b.op(op).results[..] else { return None };
        recognize(b, value, &mut known_masks).map(|value| vec![value])
    })
}

/// What hides scores.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Mask {
    None,
    /// Numbers to add, or bools that say what to keep.
    Is(ValueId),
    /// Bools that say what to hide.
    IsNot(ValueId),
}

fn recognize(b: &mut Builder, value: ValueId, known_masks: &mut HashMap<Mask, bool>) -> Option<ValueId> {
    let [weights, values] = matmul(b, value)?;
    let weights = once(b, uncast(b, weights)?)?;
    let OpKind::Softmax(Softmax { axis, log: false }) = *b.kind(weights)? else { return None };
    if axis + 1 != b.shape(weights)?.rank() {
        return None;
    }
    let (masked, mask) = unmask(b, once(b, b.operand(weights)?)?)?;
    let (scores, outer_scale) = unscale(b, uncast(b, masked)?)?;
    let [scaled_query, transposed] = matmul(b, once(b, uncast(b, scores)?)?)?;
    let (query, query_scale) = unscale(b, scaled_query).unwrap_or((scaled_query, 1.0));
    let OpKind::Permute(Permute { dims }) = b.kind(transposed)? else { return None };
    let mut dims = dims.clone();
    let last = dims.len().checked_sub(2)?;
    dims[last..].reverse();
    let source = b.operand(transposed)?;
    let scaled_key = unscale(b, source).filter(|_| b.used_up_to(1, transposed));
    let (source, key_scale) = scaled_key.unwrap_or((source, 1.0));
    let (mask, causal) = match mask {
        Mask::None => (None, false),
        mask if is_causal(b, mask, scores, known_masks) => (None, true),
        Mask::Is(mask) => (Some(mask), false),
        Mask::IsNot(mask) => (Some(b.push(ScalarOp::from(LogicalOp::LogicalNot), [mask])?), false),
    };
    let in_order = dims.iter().enumerate().all(|(i, &d)| i == d);
    let key = if in_order { source } else { b.push(Permute { dims }, [source])? };
    let operands: Vec<_> = [query, key, values].into_iter().chain(mask).collect();
    let attention = Attention { scale: outer_scale * query_scale * key_scale, causal };
    shared::attend(b, &attention, &operands).or_else(|| b.push(attention, operands))
}

fn matmul(b: &Builder, value: ValueId) -> Option<[ValueId; 2]> {
    let definition = b.definition(value)?;
    match (&definition.kind, &definition.operands[..]) {
        (OpKind::Matmul(_), &[lhs, rhs]) => Some([lhs, rhs]),
        _ => None,
    }
}

/// A value, if nothing else uses it.
fn once(b: &Builder, value: ValueId) -> Option<ValueId> {
    b.used_up_to(1, value).then_some(value)
}

/// The value under a cast between floats that nothing else uses, or itself.
fn uncast(b: &Builder, value: ValueId) -> Option<ValueId> {
    match b.kind(value)? {
        OpKind::Cast(_) if b.is_float(value) && b.used_up_to(1, value) => {
            b.operand(value).filter(|&x| b.is_float(x))
        }
        _ => Some(value),
    }
}

/// Scores before they are multiplied or divided by numbers, and the product of these.
fn unscale(b: &Builder, value: ValueId) -> Option<(ValueId, f64)> {
    let value = once(b, value)?;
    let scaled = b.with_float(value, NumericOp::Mul);
    let scaled = scaled.or_else(|| b.with_float(value, RealOp::Div).map(|(x, divisor)| (x, 1.0 / divisor)));
    match scaled {
        Some((x, scale)) if scale.is_finite() && b.shape(x) == b.shape(value) => Some((x, scale)),
        Some(_) => None,
        None => Some((value, 1.0)),
    }
}

/// Scores before some of them are hidden, and by what.
fn unmask(b: &Builder, value: ValueId) -> Option<(ValueId, Mask)> {
    let definition = b.definition(value)?;
    if let (OpKind::Where(_), &[keep, x, y]) = (&definition.kind, &definition.operands[..]) {
        let hides = |v: ValueId| b.float(v) == Some(f64::NEG_INFINITY);
        return match () {
            () if hides(y) => Some((x, Mask::Is(keep))),
            () if hides(x) => Some((y, Mask::IsNot(keep))),
            () => None,
        };
    }
    let is_scores = |v: ValueId| {
        let product =
            uncast(b, v).and_then(|v| unscale(b, v)).and_then(|(scores, _)| matmul(b, uncast(b, scores)?));
        product.is_some() && b.shape(v) == b.shape(value)
    };
    match b.both_orders(value, NumericOp::Add).find(|&[scores, _]| is_scores(scores)) {
        Some([scores, mask]) => Some((scores, Mask::Is(mask))),
        None => Some((value, Mask::None)),
    }
}

/// Whether a mask is a constant that hides later keys from earlier queries, of which there are equally many.
fn is_causal(b: &Builder, mask: Mask, scores: ValueId, known: &mut HashMap<Mask, bool>) -> bool {
    let (id, keeps) = match mask {
        Mask::None => return false,
        Mask::Is(id) => (id, true),
        Mask::IsNot(id) => (id, false),
    };
    let (Some([.., queries, keys]), Some(data)) = (b.shape(scores).map(|shape| &shape[..]), b.constant(id))
    else {
        return false;
    };
    let size = queries.as_static().and_then(|size| usize::try_from(size).ok()).filter(|_| queries == keys);
    size.is_some_and(|size| *known.entry(mask).or_insert_with(|| is_triangular(data, size, keeps)))
}

/// Whether a mask of one matrix keeps what is on and below the diagonal, and hides what is above it. Bools may say
/// what to keep or what to hide.
fn is_triangular(mask: &HostTensor, size: usize, keeps: bool) -> bool {
    if !mask.shape().ends_with(&[size, size]) || mask.num_elements() != size * size {
        return false;
    }
    dispatch!(mask.dtype(), T => mask.elements::<T>().is_ok_and(|elements| {
        elements.iter().enumerate().all(|(at, e)| {
            let (seen, number) = (at % size <= at / size, e.to_f64());
            match T::DTYPE {
                DType::Bool => ((number != 0.0) == keeps) == seen,
                _ if seen => number == 0.0,
                _ => number == f64::NEG_INFINITY,
            }
        })
    }))
}
