//! Parts of functions of positions, such as some rows of a table of angles: the function is computed only for the positions
//! that are used, instead of everywhere and in memory.

use std::collections::HashMap;

use max_core::{Dim, Result, Shape};
use max_graph::ops::broadcast::BroadcastTo;
use max_graph::ops::concat::Concat;
use max_graph::ops::gather::Gather;
use max_graph::ops::reshape::Reshape;
use max_graph::ops::slice::{DynamicSlice, Slice};
use max_graph::properties::Form;
use max_graph::{Body, OpKind, ValueId};

use super::rewrite::{Builder, apply};

const ONE: Dim = Dim::Static(1);

/// Functions of at most so many ops are computed again for a part.
const LARGEST: usize = 64;

/// Takes parts of positions instead of parts of what is computed from them.
pub fn positions(body: &Body) -> Result<Body> {
    apply(body, &[("parts of functions of positions", part)])
}

fn part(b: &mut Builder, value: ValueId) -> Option<ValueId> {
    let op = b.definition(value)?;
    let (&whole, others) = op.operands.split_first()?;
    let (axis, how) = match &op.kind {
        OpKind::Slice(slice) => {
            let axis = only_axis(slice, b.shape(whole)?)?;
            (axis, How::Slice(slice.starts[axis].clone(), slice.sizes[axis].clone(), slice.steps[axis]))
        }
        OpKind::DynamicSlice(slice) => (slice.axis, How::Dynamic(slice.clone(), others.to_vec())),
        OpKind::Gather(gather) => (gather.axis, How::Gather(*others.first()?, b.shape(others[0])?.rank())),
        _ => return None,
    };
    let mut seen = 0;
    if matches!(b.kind(whole)?, OpKind::Index(_)) || !is_function(b, whole, axis, &mut seen) {
        return None;
    }
    let part = Part { how, made: HashMap::new() }.of(b, whole, axis)?;
    // What could fail is done on positions now.
    b.spare();
    Some(part)
}

/// The only axis that a slice changes.
fn only_axis(slice: &Slice, shape: &Shape) -> Option<usize> {
    let changes = |&axis: &usize| {
        slice.sizes[axis] != shape[axis] || slice.starts[axis] != Dim::Static(0) || slice.steps[axis] != 1
    };
    let mut changed = (0..shape.rank()).filter(changes);
    changed.next().filter(|_| changed.next().is_none())
}

/// Whether what a value is along an axis is a function of positions, one after the other along that axis.
fn is_function(b: &Builder, value: ValueId, axis: usize, seen: &mut usize) -> bool {
    *seen += 1;
    let Some(op) = b.definition(value).filter(|_| *seen <= LARGEST) else { return false };
    match &op.kind {
        OpKind::Index(index) => index.shape.rank() == 1,
        OpKind::Concat(concat) => {
            concat.axis != axis && op.operands.iter().all(|&operand| is_function(b, operand, axis, seen))
        }
        OpKind::Reshape(_) => {
            let sizes = [value, op.operands[0]].map(|v| b.shape(v).and_then(|shape| shape.first()));
            axis == 0 && sizes[0].is_some() && sizes[0] == sizes[1] && is_function(b, op.operands[0], 0, seen)
        }
        OpKind::BroadcastTo(_) => match (&op.operands[..], b.properties(op).must_run()) {
            (&[operand], false) => match along(b, value, operand, axis) {
                Along::Has(axis) => is_function(b, operand, axis, seen),
                Along::One(_) | Along::Lacks => false,
            },
            _ => false,
        },
        _ => {
            let properties = b.properties(op);
            let computes =
                properties.form == Form::Elementwise && !properties.must_run() && op.results.len() == 1;
            let mut any = false;
            computes
                && op.operands.iter().all(|&operand| match along(b, value, operand, axis) {
                    Along::Has(axis) => {
                        any = true;
                        is_function(b, operand, axis, seen)
                    }
                    Along::One(_) | Along::Lacks => true,
                })
                && any
        }
    }
}

/// What an operand has along an axis of a result that it is broadcast to.
enum Along {
    /// The same axis.
    Has(usize),
    /// An axis of size one.
    One(usize),
    /// No axis.
    Lacks,
}

fn along(b: &Builder, result: ValueId, operand: ValueId, axis: usize) -> Along {
    let (Some(whole), Some(own)) = (b.shape(result), b.shape(operand)) else { return Along::Lacks };
    let Some(at) = (axis + own.rank()).checked_sub(whole.rank()) else { return Along::Lacks };
    match own[at] == ONE && whole[axis] != ONE {
        true => Along::One(at),
        false => Along::Has(at),
    }
}

/// How a part of an axis is taken.
enum How {
    Slice(Dim, Dim, i64),
    Dynamic(DynamicSlice, Vec<ValueId>),
    /// The indices and their rank: their axes replace the axis.
    Gather(ValueId, usize),
}

/// A part of a function, with what has been computed of it.
struct Part {
    how: How,
    made: HashMap<(ValueId, usize), ValueId>,
}

impl Part {
    /// How many axes replace the axis.
    fn rank(&self) -> usize {
        match self.how {
            How::Gather(_, rank) => rank,
            How::Slice(..) | How::Dynamic(..) => 1,
        }
    }

    /// The part of a function along an axis.
    fn of(&mut self, b: &mut Builder, value: ValueId, axis: usize) -> Option<ValueId> {
        if let Some(&made) = self.made.get(&(value, axis)) {
            return Some(made);
        }
        let op = b.definition(value)?;
        let (kind, operands) = (op.kind.clone(), op.operands.clone());
        let rank = self.rank();
        let made = match kind {
            OpKind::Index(_) => self.of_positions(b, value)?,
            OpKind::Concat(concat) => {
                let parts =
                    operands.iter().map(|&operand| self.of(b, operand, axis)).collect::<Option<Vec<_>>>()?;
                let joined = if concat.axis > axis { concat.axis + rank - 1 } else { concat.axis };
                b.push(Concat { axis: joined }, parts)?
            }
            OpKind::Reshape(reshape) => {
                let part = self.of(b, operands[0], 0)?;
                let shape = [&b.shape(part)?[..rank], &reshape.shape[1..]].concat();
                b.push(Reshape { shape: shape.into() }, [part])?
            }
            OpKind::BroadcastTo(broadcast) => {
                let Along::Has(own) = along(b, value, operands[0], axis) else { return None };
                let part = self.of(b, operands[0], own)?;
                let taken = &b.shape(part)?[own..own + rank];
                let shape = [&broadcast.shape[..axis], taken, &broadcast.shape[axis + 1..]].concat();
                b.push(BroadcastTo { shape: shape.into() }, [part])?
            }
            kind => {
                let mut parts = Vec::new();
                for &operand in &operands {
                    parts.push(match along(b, value, operand, axis) {
                        Along::Has(axis) => self.of(b, operand, axis)?,
                        Along::One(axis) if rank != 1 => {
                            let own = b.shape(operand)?;
                            let shape = [&own[..axis], &vec![ONE; rank], &own[axis + 1..]].concat();
                            b.push(Reshape { shape: shape.into() }, [operand])?
                        }
                        Along::One(_) | Along::Lacks => operand,
                    });
                }
                b.push(kind, parts)?
            }
        };
        self.made.insert((value, axis), made);
        Some(made)
    }

    /// The part of positions along their only axis.
    fn of_positions(&self, b: &mut Builder, positions: ValueId) -> Option<ValueId> {
        match &self.how {
            How::Slice(start, size, step) => {
                let slice = Slice { starts: [start].into(), sizes: [size].into(), steps: vec![*step] };
                b.push(slice, [positions])
            }
            How::Dynamic(slice, bounds) => {
                let operands: Vec<_> = [positions].into_iter().chain(bounds.iter().copied()).collect();
                b.push(DynamicSlice { axis: 0, ..slice.clone() }, operands)
            }
            How::Gather(indices, _) => b.push(Gather { axis: 0 }, [positions, *indices]),
        }
    }
}
