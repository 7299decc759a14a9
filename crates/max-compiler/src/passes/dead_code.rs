//! Removes ops whose absence nobody can notice: unused, without effects, and never failing.

use max_core::Result;
use max_graph::Body;

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
        needed[at] = op.results.iter().any(|r| uses[r.0 as usize] > 0) || body.properties(op).must_run();
        if needed[at] {
            op.operands.iter().for_each(|v| uses[v.0 as usize] += 1);
        }
    }
    Liveness { needed, uses }
}
