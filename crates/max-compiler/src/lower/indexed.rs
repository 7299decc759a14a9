//! Gathers and scatters, whose kernels find elements by index.

use max_core::kernel::{Combine, Gather, Indexed, Scatter};
use max_core::{Dim, Result, Shape, bail};
use max_graph::ir::Op;
use max_graph::{OpId, ops};

use super::{Lowering, NodeId};

const ONE: Dim = Dim::Static(1);

impl Lowering<'_> {
    pub(super) fn gather(&mut self, id: OpId, op: &Op, axis: usize) -> Result<()> {
        let device = self.device(op.results[0])?;
        let source = self.whole(id, op.operands[0], device)?;
        let indices = self.whole(id, op.operands[1], device)?;
        let [outer, size, inner] = self.around(source, axis)?;
        let picks = product(&self.node(indices).shape)?;
        let space = self.indexed(indices, [ONE, picks, ONE, ONE], [outer, inner], vec![size], axis)?;
        self.gathered(id, op, source, space)
    }

    pub(super) fn gather_nd(&mut self, id: OpId, op: &Op, batch_dims: usize) -> Result<()> {
        let device = self.device(op.results[0])?;
        let source = self.whole(id, op.operands[0], device)?;
        let indices = self.whole(id, op.operands[1], device)?;
        let (shape, picked) = (self.node(source).shape.clone(), self.node(indices).shape.clone());
        let (axes, before) = vectors(&picked)?;
        let (batch, rest) = shape.split_at(batch_dims);
        let (sizes, inner) = rest.split_at(axes);
        let outer = product(batch)?;
        let index_shape = [outer.clone(), product(&before[batch_dims..])?, ONE, Dim::Static(axes as i64)];
        let around = [outer, product(inner)?];
        let space = self.indexed(indices, index_shape, around, sizes.to_vec(), batch_dims)?;
        self.gathered(id, op, source, space)
    }

    fn gathered(&mut self, id: OpId, op: &Op, source: NodeId, space: Indexed<Dim, NodeId>) -> Result<()> {
        let results = self.results(op)?;
        let kernel = Gather {
            source: self.flat(source, array(&space))?,
            out: self.flat(results[0], picked(&space))?,
            space,
        };
        self.standalone(id, op, kernel, results)
    }

    pub(super) fn scatter(&mut self, id: OpId, op: &Op, scatter: &ops::scatter::Scatter) -> Result<()> {
        let device = self.device(op.results[0])?;
        let input = self.whole(id, op.operands[0], device)?;
        let updates = self.whole(id, op.operands[1], device)?;
        let [outer, size, inner] = self.around(input, scatter.axis)?;
        let picks = self.node(updates).shape[scatter.axis].clone();
        let index_shape = [outer.clone(), picks, inner.clone(), ONE];
        // Indices are often repeated along the other axes; such views need no copy.
        let view = self.stored(op.operands[2], device)?;
        let view = self.reshaped(id, view, &index_shape)?;
        let space = Indexed {
            outer,
            sizes: vec![size],
            inner,
            axis: scatter.axis,
            indices: self.access(&view, &index_shape),
            index_shape,
        };
        self.scattered(id, op, scatter.combine, [input, updates], space)
    }

    pub(super) fn scatter_nd(&mut self, id: OpId, op: &Op, combine: Combine) -> Result<()> {
        let device = self.device(op.results[0])?;
        let input = self.whole(id, op.operands[0], device)?;
        let updates = self.whole(id, op.operands[1], device)?;
        let indices = self.whole(id, op.operands[2], device)?;
        let (shape, picked) = (self.node(input).shape.clone(), self.node(indices).shape.clone());
        let (axes, before) = vectors(&picked)?;
        let (sizes, inner) = shape.split_at(axes);
        let index_shape = [ONE, product(before)?, ONE, Dim::Static(axes as i64)];
        let space = self.indexed(indices, index_shape, [ONE, product(inner)?], sizes.to_vec(), 0)?;
        self.scattered(id, op, combine, [input, updates], space)
    }

    fn scattered(
        &mut self,
        id: OpId,
        op: &Op,
        combine: Combine,
        [input, updates]: [NodeId; 2],
        space: Indexed<Dim, NodeId>,
    ) -> Result<()> {
        let results = self.results(op)?;
        let kernel = Scatter {
            combine,
            input: self.flat(input, array(&space))?,
            updates: self.flat(updates, picked(&space))?,
            out: self.flat(results[0], array(&space))?,
            space,
        };
        self.standalone(id, op, kernel, results)
    }

    /// Whole indices in another shape, the sizes before and after the indexed axes, these axes and the first of them.
    fn indexed(
        &self,
        indices: NodeId,
        index_shape: [Dim; 4],
        [outer, inner]: [Dim; 2],
        sizes: Vec<Dim>,
        axis: usize,
    ) -> Result<Indexed<Dim, NodeId>> {
        let indices = self.flat(indices, &index_shape)?;
        Ok(Indexed { outer, sizes, inner, axis, indices, index_shape })
    }
}

/// The space of the array that is indexed.
fn array(space: &Indexed<Dim, NodeId>) -> impl Iterator<Item = &Dim> {
    [&space.outer].into_iter().chain(&space.sizes).chain([&space.inner])
}

/// The space of what is picked.
fn picked(space: &Indexed<Dim, NodeId>) -> [&Dim; 3] {
    [&space.outer, space.picks(), &space.inner]
}

fn product(dims: &[Dim]) -> Result<Dim> {
    Shape::from(dims).num_elements()
}

/// How many axes the vectors in the last axis of indices are for, and the other axes.
fn vectors(indices: &[Dim]) -> Result<(usize, &[Dim])> {
    match indices.split_last().map(|(last, before)| (last.as_static(), before)) {
        Some((Some(axes), before)) => Ok((axes as usize, before)),
        _ => bail!(internal, "indices without a static last axis"),
    }
}
