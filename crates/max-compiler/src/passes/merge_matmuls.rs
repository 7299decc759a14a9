//! Products of one matrix with several constant ones become one product, whose parts are views.

use std::collections::HashMap;

use max_core::{Bindings, Dim, Result, Shape, Type};
use max_graph::op::Run;
use max_graph::ops::concat::Concat;
use max_graph::ops::constant::Constant;
use max_graph::ops::matmul::Matmul;
use max_graph::ops::slice::Slice;
use max_graph::{Body, HostTensor, OpId, OpKind, ValueId};

use super::dead_code::liveness;
use super::rewrite::{Builder, rebuild};

/// Joined constants of one graph take at most this many bytes.
const MAX_BYTES: usize = 256 << 20;

/// Joins the constants on the right of products that share what is on the left.
pub fn merge_matmuls(body: &Body) -> Result<Body> {
    let mut groups = groups(body);
    let mut parts: HashMap<OpId, ValueId> = HashMap::new();
    rebuild(body, |b, old, new| {
        if let Some(group) = groups.remove(&old) {
            let &[lhs, _] = &b.op(new).operands[..] else { return None };
            let slices = merge(b, lhs, group.iter().map(|(_, constant)| constant))?;
            parts.extend(group.iter().map(|(op, _)| *op).zip(slices));
        }
        parts.remove(&old).map(|part| vec![part])
    })
}

/// Products with the constants on their right, by the first of them.
type Groups = HashMap<OpId, Vec<(OpId, Constant)>>;

fn groups(body: &Body) -> Groups {
    let live = liveness(body);
    let mut constants: HashMap<ValueId, &Constant> = HashMap::new();
    let mut by_lhs: HashMap<ValueId, Vec<(OpId, Constant)>> = HashMap::new();
    for (&id, _) in body.block.ops.iter().zip(&live.needed).filter(|(_, needed)| **needed) {
        let op = body.op(id);
        match (&op.kind, &op.operands[..]) {
            (OpKind::Constant(constant), _) if constant.value.shape().len() == 2 => {
                constants.insert(op.results[0], constant);
            }
            // A constant with other uses would be kept twice.
            (OpKind::Matmul(_), [lhs, rhs]) if live.uses[rhs.0 as usize] == 1 => {
                if let Some(&constant) = constants.get(rhs) {
                    by_lhs.entry(*lhs).or_default().push((id, constant.clone()));
                }
            }
            _ => {}
        }
    }
    let mut groups: Vec<_> = by_lhs.into_values().filter(|group| group.len() > 1).collect();
    groups.sort_by_key(|group| group[0].0);
    let mut room = MAX_BYTES;
    let mut fits = |group: &Vec<(OpId, Constant)>| {
        let bytes = group.iter().map(|(_, constant)| constant.value.bytes().len()).sum();
        room.checked_sub(bytes).map(|left| room = left).is_some()
    };
    groups.into_iter().filter(|group| fits(group)).map(|group| (group[0].0, group)).collect()
}

/// The parts of one product, a slice for each constant.
fn merge<'a>(
    b: &mut Builder,
    lhs: ValueId,
    constants: impl Iterator<Item = &'a Constant> + Clone,
) -> Option<Vec<ValueId>> {
    let device = constants.clone().next()?.device;
    let data: Vec<HostTensor> = constants.clone().map(|c| c.value.clone()).collect();
    let run = Run { bindings: &Bindings::new(), environment: &() };
    let joined = OpKind::from(Concat { axis: 1 }).eval(&data, &run).ok()?.pop()?;
    let rhs = b.push(Constant { value: joined, device }, [])?;
    let product = b.push(Matmul {}, [lhs, rhs])?;
    let Type::Tensor(ty) = b.type_of(product).clone() else { return None };
    let last = ty.shape.rank().checked_sub(1)?;
    let mut start = 0;
    let slices = data.iter().map(|part| {
        let size = *part.shape().last()? as i64;
        let (mut starts, mut sizes) = (vec![Dim::Static(0); last + 1], ty.shape.to_vec());
        (starts[last], sizes[last]) = (Dim::Static(start), Dim::Static(size));
        start += size;
        b.push(
            Slice { starts: starts.into(), sizes: Shape::from(sizes), steps: vec![1; last + 1] },
            [product],
        )
    });
    slices.collect()
}
