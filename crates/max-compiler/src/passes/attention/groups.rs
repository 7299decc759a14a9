//! Grouped-query attention: where keys and values are repeated for several heads, the heads get an axis of their own
//! along which keys and values are broadcast, and nothing is repeated in memory.

use max_core::{Dim, Shape};
use max_graph::ops::attention::Attention;
use max_graph::ops::permute::Permute;
use max_graph::ops::reshape::Reshape;
use max_graph::{OpKind, ValueId};

use super::{Builder, Turned};

/// A value with elements repeated along an axis.
struct Repeated {
    /// The value before: two axes instead of one, one of them of size 1; and its axes in order.
    value: Turned,
    axis: usize,
    /// The sizes of the two axes after repeating.
    sizes: [Dim; 2],
    /// Which of the two is repeated.
    repeated: usize,
}

/// The attention with grouped heads, in the shape of a value, if keys and values are repeated along one batch axis.
pub(super) fn attend(
    b: &mut Builder,
    kind: &Attention,
    query: ValueId,
    key: &Turned,
    values: ValueId,
    mask: Option<ValueId>,
    like: ValueId,
) -> Option<ValueId> {
    let shape = b.shape(like)?.clone();
    let key = repeated(b, key)?;
    let Repeated { axis, ref sizes, repeated: which, .. } = key;
    let values = match (b.kind(values), b.operand(values)) {
        (Some(OpKind::Permute(Permute { dims })), Some(value)) => Turned { value, dims: dims.clone() },
        _ => Turned { value: values, dims: (0..shape.rank()).collect() },
    };
    let values = repeated(b, &values)?;
    let alike = values.axis == axis && values.sizes == *sizes && values.repeated == which;
    if !alike || axis + 2 >= shape.rank() || b.shape(query)?.rank() != shape.rank() {
        return None;
    }
    let query = split(b, query, shape.rank(), axis, sizes)?;
    let mask = match mask {
        Some(mask) => Some(split(b, mask, shape.rank(), axis, sizes)?),
        None => None,
    };
    let (key, values) = (key.value.push(b)?, values.value.push(b)?);
    let result = b.push(kind.clone(), [query, key, values].into_iter().chain(mask).collect::<Vec<_>>())?;
    b.push(Reshape { shape }, [result])
}

/// What a value repeats, if it is a reshape of a broadcast along one axis that merges that axis with the one before
/// or after it.
fn repeated(b: &Builder, Turned { value, dims }: &Turned) -> Option<Repeated> {
    let (OpKind::Reshape(_), spread) = (b.kind(*value)?, b.operand(*value)?) else { return None };
    let (OpKind::BroadcastTo(_), source) = (b.kind(spread)?, b.operand(spread)?) else { return None };
    let (merged, spread, own) = (b.shape(*value)?, b.shape(spread)?, b.shape(source)?);
    if own.rank() != spread.rank() || merged.rank() + 1 != spread.rank() {
        return None;
    }
    let mut broadcast = (0..own.rank()).filter(|&axis| own[axis] != spread[axis]);
    let (along, None) = (broadcast.next()?, broadcast.next()) else { return None };
    let fits = |first: usize| -> bool {
        let whole = spread.get(first + 1).and_then(|next| spread[first].mul(next).ok());
        whole.as_ref() == merged.get(first)
            && merged[..first] == spread[..first]
            && merged[first + 1..] == spread[first + 2..]
    };
    let first = [along.checked_sub(1), Some(along)].into_iter().flatten().find(|&first| fits(first))?;
    let axis = dims.iter().position(|&dim| dim == first)?;
    let widened = dims.iter().flat_map(|&dim| match dim {
        dim if dim == first => vec![first, first + 1],
        dim => vec![dim + usize::from(dim > first)],
    });
    Some(Repeated {
        value: Turned { value: source, dims: widened.collect() },
        axis,
        sizes: [spread[first].clone(), spread[first + 1].clone()],
        repeated: along - first,
    })
}

/// A value that broadcasts to a rank, with one axis of that rank split in two.
fn split(b: &mut Builder, value: ValueId, rank: usize, axis: usize, sizes: &[Dim; 2]) -> Option<ValueId> {
    let own = b.shape(value)?;
    let Some(axis) = (axis + own.rank()).checked_sub(rank) else { return Some(value) };
    let parts = if own[axis] == Dim::Static(1) { [Dim::Static(1), Dim::Static(1)] } else { sizes.clone() };
    let shape = Shape::from([&own[..axis], &parts[..], &own[axis + 1..]].concat());
    b.push(Reshape { shape }, [value])
}
