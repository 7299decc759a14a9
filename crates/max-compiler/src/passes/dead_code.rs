//! Removes ops whose absence nobody can notice: unused, without effects, and never failing.

use max_core::{Dim, Result, Shape};
use max_graph::ops::slice::Slice;
use max_graph::{Body, OpKind, ir::Op};

use super::rewrite::rebuild;

/// Removes ops that are not needed.
pub fn dead_code(body: &Body) -> Result<Body> {
    rebuild(body, |_, _, _| None)
}

/// Which ops of the block are needed, and how often needed ops and results use each value.
pub struct Liveness {
    /// One flag per op of the block, in order.
    pub needed: Vec<bool>,
    /// One count per value.
    pub uses: Vec<u32>,
}

/// Walks back from the results, and from ops that must run, to what they use.
pub fn liveness(body: &Body) -> Liveness {
    let mut uses = vec![0; body.num_values()];
    for result in body.block.results.iter().flatten() {
        uses[result.0 as usize] += 1;
    }
    let mut needed = vec![false; body.block.ops.len()];
    for (at, &id) in body.block.ops.iter().enumerate().rev() {
        let op = body.op(id);
        needed[at] = op.results.iter().any(|r| uses[r.0 as usize] > 0) || must_run(body, op);
        if needed[at] {
            op.operands.iter().for_each(|v| uses[v.0 as usize] += 1);
        }
    }
    Liveness { needed, uses }
}

/// Whether an unused op still matters to a run: it has an effect, binds a symbol, or fails for some inputs.
pub fn must_run(body: &Body, op: &Op) -> bool {
    let shape =
        |at: usize| op.operands.get(at).and_then(|&v| body.type_of(v).array()).map(|(_, shape)| shape);
    match &op.kind {
        OpKind::Print(_) | OpKind::DynamicSlice(_) | OpKind::Gather(_) => true,
        OpKind::Rebind(rebind) => shape(0) != Some(&rebind.shape),
        OpKind::Slice(slice) => !shape(0).is_some_and(|shape| within(slice, shape)),
        OpKind::BroadcastTo(_) if op.operands.len() == 2 => true,
        OpKind::ConstantExternal(weight) => weight.shape.as_static().is_none(),
        // Differences of sizes can be negative.
        OpKind::BroadcastTo(_) | OpKind::Index(_) | OpKind::Split(_) | OpKind::Conv2d(_) => {
            let given: Vec<&Dim> = (0..op.operands.len()).filter_map(shape).flat_map(|s| s.iter()).collect();
            let made = op.results.iter().filter_map(|&r| body.type_of(r).array());
            made.flat_map(|(_, shape)| shape.iter())
                .any(|d| matches!(d, Dim::Algebraic(_)) && !given.contains(&d))
        }
        _ => false,
    }
}

/// Whether a slice is known to stay within a shape.
fn within(slice: &Slice, shape: &Shape) -> bool {
    (0..shape.rank()).all(|axis| {
        let (start, size, step) = (&slice.starts[axis], &slice.sizes[axis], slice.steps[axis]);
        let whole = *start == Dim::Static(0) && *size == shape[axis] && step == 1;
        let inside = || {
            let (start, size, len) = (start.as_static()?, size.as_static()?, shape[axis].as_static()?);
            let last = (size - 1).checked_mul(step)?.checked_add(start)?;
            Some(size <= 0 || (0..len).contains(&start) && (0..len).contains(&last))
        };
        whole || inside().unwrap_or(false)
    })
}
