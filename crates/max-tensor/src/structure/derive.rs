//! Sizes of ops that follow from the sizes of their operands: the rest of an axis after a slice, axes merged into one.
//!
//! A recorded op only has numbers. This module guesses where they came from, so that graphs which differ in sizes share one
//! structure; a wrong guess costs a compilation, never a result.

use std::ops::Range;

use max_core::{Dim, Result, Shape, Type};
use max_graph::ir::Op;
use max_graph::ops::slice::Slice;
use max_graph::{Body, OpKind};

/// How a size follows from the dims of the first operand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Derived {
    /// The size of an axis minus a number.
    Less { axis: usize, by: i64 },
    /// The product of neighbouring axes.
    Product(Range<usize>),
}

impl Derived {
    /// The size, for an operand of a given shape.
    pub(super) fn of(&self, shape: &Shape) -> Result<Dim> {
        match self {
            Derived::Less { axis, by } => shape[*axis].sub(&Dim::Static(*by)),
            Derived::Product(axes) => {
                shape[axes.clone()].iter().try_fold(Dim::Static(1), |product, dim| product.mul(dim))
            }
        }
    }
}

/// A slice that ends at most this far from the end of an axis is taken to be relative to that end.
const NEAR: i64 = 4;

/// For each dim in the size attributes of an op, in order, how it follows from the first operand. Dims past the end of the
/// list, and those without an entry, are plain numbers.
pub(super) fn derive(op: &Op, body: &Body) -> Vec<Option<Derived>> {
    let shape = op.operands.first().and_then(|&operand| match body.type_of(operand) {
        Type::Tensor(ty) => Some(&ty.shape),
        _ => None,
    });
    match (&op.kind, shape) {
        (OpKind::Slice(slice), Some(shape)) => of_slice(slice, shape),
        (OpKind::Reshape(reshape), Some(shape)) => of_reshape(&reshape.shape, shape),
        (OpKind::BroadcastTo(broadcast), Some(shape)) => of_broadcast(&broadcast.shape, shape),
        _ => Vec::new(),
    }
}

fn of_slice(slice: &Slice, shape: &Shape) -> Vec<Option<Derived>> {
    let (mut starts, mut sizes) = (Vec::new(), Vec::new());
    for (axis, whole) in shape.iter().enumerate() {
        let known = (whole, slice.starts.get(axis), slice.sizes.get(axis), slice.steps.get(axis));
        let (Dim::Static(whole), Some(Dim::Static(start)), Some(Dim::Static(size)), Some(step)) = known
        else {
            starts.push(None);
            sizes.push(None);
            continue;
        };
        let less = |size: i64| Some(Derived::Less { axis, by: whole - size });
        let to_the_end = *step == 1 && whole - size == *start;
        let (start, size) = match () {
            // `x[k:]` or `x[-k:]`: the smaller number was given.
            () if to_the_end && start <= size => (None, less(*size)),
            () if to_the_end => (less(*start), None),
            // `x[::-1]`
            () if *step < 0 && whole - 1 == *start => (less(*start), less(*size).filter(|_| size == whole)),
            // `x[:-1]`
            () if size > &NEAR && whole - size <= NEAR => (None, less(*size)),
            () => (None, None),
        };
        starts.push(start);
        sizes.push(size);
    }
    starts.append(&mut sizes);
    starts
}

/// Walks both shapes side by side: where equally many elements remain, axes of one correspond to axes of the other.
fn of_reshape(to: &Shape, from: &Shape) -> Vec<Option<Derived>> {
    let mut derived = vec![None; to.rank()];
    let (Some(to), Some(from)) = (to.as_static(), from.as_static()) else { return derived };
    if to.iter().chain(&from).any(|&size| size <= 0) {
        return derived;
    }
    let (mut start, mut at) = (0, 0);
    while start < from.len() && at < to.len() {
        let (mut end, mut product) = (start, 1i64);
        while end < from.len() && product < to[at] {
            product = product.saturating_mul(from[end]);
            end += 1;
        }
        if product != to[at] {
            break;
        }
        if end > start {
            derived[at] = Some(Derived::Product(start..end));
        }
        (start, at) = (end, at + 1);
    }
    derived
}

fn of_broadcast(to: &Shape, from: &Shape) -> Vec<Option<Derived>> {
    let new = to.rank().saturating_sub(from.rank());
    let same = |(at, size): (usize, &Dim)| {
        let axis = at.checked_sub(new)?;
        (from.get(axis) == Some(size)).then_some(Derived::Less { axis, by: 0 })
    };
    to.iter().enumerate().map(same).collect()
}
