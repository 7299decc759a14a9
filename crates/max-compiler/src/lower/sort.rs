//! Sorts: a kernel that reads any view, and writes only those of its results that are used.

use max_core::kernel::{Access, Sort};
use max_core::{Dim, Result};
use max_graph::ir::Op;
use max_graph::{OpId, ops};

use super::{Lowering, NodeId, View};
use crate::layout::Layout;
use crate::program::Claim;

impl Lowering<'_> {
    pub(super) fn sort(&mut self, id: OpId, op: &Op, sort: &ops::sort::Sort) -> Result<()> {
        let device = self.device(op.results[0])?;
        let source = self.stored(op.operands[0], device)?;
        let (axis, count) = (sort.axis, sort.count.clone());
        let mut lines = source.layout.shape.clone();
        let size = lines.remove(axis);
        if size != count && size.as_static().and(count.as_static()).is_none() {
            self.claim(id, Claim::Count { axis, size: size.clone(), count: count.clone() });
        }
        // Nobody reads the memory of a result that has no uses.
        let used: Vec<bool> = op.results.iter().map(|value| self.uses[value.0 as usize] > 0).collect();
        if !used.contains(&true) {
            return Ok(());
        }
        let results = self.results(op)?;
        let source = last(self.access(&source, &source.layout.shape), axis);
        let mut written = Vec::with_capacity(results.len());
        for (&node, used) in results.iter().zip(&used) {
            let layout = Layout::contiguous(&self.node(node).shape)?;
            let access = self.access(&View { node, layout: layout.clone() }, &layout.shape);
            written.push(used.then(|| last(access, axis)));
        }
        let [values, indices] = [0, 1].map(|at| written.get_mut(at).and_then(Option::take));
        let kernel = Sort { lines, size, count, descending: sort.descending, source, values, indices };
        self.standalone(id, op, kernel, results)
    }
}

/// An access with one of its axes moved to the end.
fn last(mut access: Access<Dim, NodeId>, axis: usize) -> Access<Dim, NodeId> {
    let stride = access.strides.remove(axis);
    access.strides.push(stride);
    access
}
