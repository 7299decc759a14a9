//! Recognizes scaled dot-product attention in its parts: two matmuls with a softmax between them.

use std::collections::HashMap;

use max_core::scalar::{LogicalOp, NumericOp, RealOp};
use max_core::{DType, Element, Result, ScalarOp, dispatch};
use max_graph::ops::attention::Attention;
use max_graph::ops::permute::Permute;
use max_graph::ops::softmax::Softmax;
use max_graph::{Body, HostTensor, OpKind, ValueId};

use super::Rewrites;
use super::rewrite::{Builder, rebuild};

mod groups;

/// What is known about constant masks; see [`window`].
type KnownMasks = HashMap<Mask, Option<usize>>;

/// Finds `matmul(softmax(scale * matmul(query, key transposed) + mask), value)` and its variants.
pub fn attention(body: &Body, rewrites: &mut Rewrites) -> Result<Body> {
    let mut known_masks = HashMap::new();
    rebuild(body, |b, _, op| {
        let &[value] = &b.op(op).results[..] else { return None };
        let attention = recognize(b, value, &mut known_masks)?;
        rewrites.push("attention");
        Some(vec![attention])
    })
}

/// What masks scores.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Mask {
    None,
    /// Numbers to add, or bools that say what to keep.
    Is(ValueId),
    /// Bools that say what to hide.
    IsNot(ValueId),
}

fn recognize(b: &mut Builder, value: ValueId, known_masks: &mut KnownMasks) -> Option<ValueId> {
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
    let window = window(b, mask, scores, known_masks);
    let mask = match mask {
        Mask::None => None,
        _ if window.is_some() => None,
        Mask::Is(mask) => Some(mask),
        Mask::IsNot(mask) => Some(b.push(ScalarOp::from(LogicalOp::LogicalNot), [mask])?),
    };
    let scale = outer_scale * query_scale * key_scale;
    let kind = Attention { scale, causal: window.is_some(), window: window.unwrap_or(0) };
    let key = Turned { value: source, dims };
    if let Some(grouped) = groups::attend(b, &kind, query, &key, values, mask, value) {
        return Some(grouped);
    }
    let operands: Vec<_> = [query, key.push(b)?, values].into_iter().chain(mask).collect();
    b.push(kind, operands)
}

/// A value with its axes in another order.
struct Turned {
    value: ValueId,
    dims: Vec<usize>,
}

impl Turned {
    fn push(self, b: &mut Builder) -> Option<ValueId> {
        let in_order = self.dims.iter().enumerate().all(|(i, &d)| i == d);
        if in_order { Some(self.value) } else { b.push(Permute { dims: self.dims }, [self.value]) }
    }
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

/// Scores before they are multiplied or divided by numbers, and the product of those numbers.
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

/// Scores before masking, and the mask.
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

/// The window of a constant mask that hides later keys from earlier queries, of which there are equally many, and keys
/// that are too far back; zero if it hides none of those.
fn window(b: &Builder, mask: Mask, scores: ValueId, known: &mut KnownMasks) -> Option<usize> {
    let (id, keeps) = match mask {
        Mask::None => return None,
        Mask::Is(id) => (id, true),
        Mask::IsNot(id) => (id, false),
    };
    let ([.., queries, keys], data) = (&b.shape(scores)?[..], b.constant(id)?) else { return None };
    let size = queries.as_static().and_then(|size| usize::try_from(size).ok()).filter(|_| queries == keys)?;
    *known.entry(mask).or_insert_with(|| band(data, size, keeps))
}

/// The width of the band on and below the diagonal that a mask of one matrix keeps, if it hides everything else; zero if
/// it keeps everything below. Bools may say what to keep or what to hide.
fn band(mask: &HostTensor, size: usize, keeps: bool) -> Option<usize> {
    if !mask.shape().ends_with(&[size, size]) || mask.num_elements() != size * size {
        return None;
    }
    dispatch!(mask.dtype(), T => {
        let elements = mask.elements::<T>().ok()?;
        let state = |e: &T| match (T::DTYPE, e.to_f64()) {
            (DType::Bool, number) => Some((number != 0.0) == keeps),
            (_, 0.0) => Some(true),
            (_, f64::NEG_INFINITY) => Some(false),
            _ => None,
        };
        let width = elements.iter().rev().take_while(|e| state(e) == Some(true)).count().min(size);
        let seen = |at: usize| at % size <= at / size && at / size - at % size < width;
        let fits = width > 0 && elements.iter().enumerate().all(|(at, e)| state(e) == Some(seen(at)));
        fits.then_some(if width == size { 0 } else { width })
    })
}
