//! Equal ops on equal operands are computed once.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use max_core::Result;
use max_graph::properties::Order;
use max_graph::{Body, OpId, OpKind};

use super::canonicalize::commutes;
use super::rewrite::{Builder, rebuild};

/// Replaces an op by an equal earlier one. If the earlier one did not fail, neither does the later one.
pub fn cse(body: &Body) -> Result<Body> {
    let mut order = Order::default();
    let mut seen: HashMap<(u64, u32), OpId> = HashMap::new();
    rebuild(body, |b, _, op| {
        let state = order.next(b.properties(b.op(op)).effects)?;
        let earlier = *seen.entry((fingerprint(b, op), state)).or_insert(op);
        let (old, new) = (b.op(earlier), b.op(op));
        let same = earlier != op && old.kind == new.kind && same_operands(b, earlier, op);
        let results = same.then(|| old.results.clone());
        if same {
            b.spare();
        }
        results
    })
}

fn fingerprint(b: &Builder, op: OpId) -> u64 {
    let op = b.op(op);
    let mut state = DefaultHasher::new();
    op.kind.fingerprint().hash(&mut state);
    match (&op.kind, &op.operands[..]) {
        (OpKind::Scalar(scalar), [x, y]) if commutes(*scalar) => (x.min(y), x.max(y)).hash(&mut state),
        (_, operands) => operands.hash(&mut state),
    }
    state.finish()
}

fn same_operands(b: &Builder, first: OpId, second: OpId) -> bool {
    let (first, second) = (b.op(first), b.op(second));
    let swapped = match (&first.kind, &first.operands[..], &second.operands[..]) {
        (OpKind::Scalar(op), [a, b], [x, y]) if commutes(*op) => a == y && b == x,
        _ => false,
    };
    swapped || first.operands == second.operands
}
