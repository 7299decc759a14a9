//! Heads that share keys and values: what repeats those for each head goes, and the heads get an axis of their own,
//! along which keys and values broadcast.

use max_core::{Dim, Shape};
use max_graph::ops::attention::Attention;
use max_graph::ops::broadcast::BroadcastTo;
use max_graph::ops::permute::Permute;
use max_graph::ops::reshape::Reshape;
use max_graph::{OpKind, ValueId};

use super::Builder;

/// A tensor `[.., heads, 1, rows, columns]` that was repeated to `[.., heads * times, rows, columns]`.
struct Repeated {
    value: ValueId,
    heads: Dim,
    times: Dim,
}

/// Attention over keys and values that are repeated in the same way, without their copies.
pub fn attend(b: &mut Builder, attention: &Attention, operands: &[ValueId]) -> Option<ValueId> {
    let &[query, key, value, ref mask @ ..] = operands else { return None };
    let (key, value) = (repeated(b, key)?, repeated(b, value)?);
    if (&key.heads, &key.times) != (&value.heads, &value.times) {
        return None;
    }
    let whole = b.shape(query)?.clone();
    let axis = whole.rank().checked_sub(3)?;
    let heads = [key.heads, key.times];
    if whole[axis] != heads[0].mul(&heads[1]).ok()? {
        return None;
    }
    let query = with_heads_apart(b, query, &heads)?;
    let mut operands = vec![query, key.value, value.value];
    for &mask in mask {
        operands.push(with_heads_apart(b, mask, &heads)?);
    }
    let mixed = b.push(attention.clone(), operands)?;
    let width = b.shape(mixed)?.last()?.clone();
    let shape = Shape::from([&whole[..axis + 2], &[width]].concat());
    b.push(Reshape { shape }, [mixed])
}

/// A value with two axes in place of its heads, the third axis from the end. What has none is the same for all.
fn with_heads_apart(b: &mut Builder, value: ValueId, heads: &[Dim; 2]) -> Option<ValueId> {
    let whole = b.shape(value)?.clone();
    let Some(axis) = whole.rank().checked_sub(3) else { return Some(value) };
    let same = [Dim::Static(1), Dim::Static(1)];
    let heads = if whole[axis] == Dim::Static(1) { &same } else { heads };
    let shape = Shape::from([&whole[..axis], &heads[..], &whole[axis + 1..]].concat());
    b.push(Reshape { shape }, [value])
}

/// What a value repeats along the third of its axes from the end: a broadcast along an axis that is then merged with the
/// one before it, and perhaps a permutation of the whole.
fn repeated(b: &mut Builder, value: ValueId) -> Option<Repeated> {
    let axis = b.shape(value)?.rank().checked_sub(3)?;
    let (dims, merged) = match b.kind(value)? {
        OpKind::Permute(Permute { dims }) => (dims.clone(), b.operand(value)?),
        _ => ((0..axis + 3).collect(), value),
    };
    let OpKind::Reshape(_) = b.kind(merged)? else { return None };
    let spread = b.operand(merged)?;
    let OpKind::BroadcastTo(BroadcastTo { shape }) = b.kind(spread)? else { return None };
    // The heads before the permutation, followed by their repetitions.
    let at = dims[axis];
    let (heads, times) = (shape.get(at)?.clone(), shape.get(at + 1)?.clone());
    let joined = [&shape[..at], &[heads.mul(&times).ok()?], &shape[at + 2..]].concat();
    let source = b.operand(spread)?;
    let own = b.shape(source)?;
    let only_repeats = own.rank() == shape.rank()
        && (0..own.rank())
            .all(|axis| own[axis] == if axis == at + 1 { Dim::Static(1) } else { shape[axis].clone() });
    if joined != b.shape(merged)?[..] || !only_repeats {
        return None;
    }
    let moved = |&dim: &usize| if dim == at { vec![at, at + 1] } else { vec![dim + usize::from(dim > at)] };
    let dims: Vec<usize> = dims.iter().flat_map(moved).collect();
    let in_order = dims.iter().enumerate().all(|(i, &d)| i == d);
    let value = if in_order { source } else { b.push(Permute { dims }, [source])? };
    Some(Repeated { value, heads, times })
}
