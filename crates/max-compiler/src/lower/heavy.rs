//! Ops with kernels of their own: their result goes into the loop of their group, which later ops may extend.

use max_core::kernel::{Access, Instr, Slot};
use max_core::{DeviceRef, Dim, Result, Shape, bail};
use max_graph::ir::Op;
use max_graph::ops::attention::Attention;
use max_graph::ops::conv::Conv2d;
use max_graph::{OpId, ValueId};

use super::group::{Group, Use, Work};
use super::{Lowering, NodeId, Source, View};
use crate::layout::Layout;
use crate::program::Claim;

impl Lowering<'_> {
    pub(super) fn matmul(&mut self, id: OpId, op: &Op) -> Result<()> {
        let device = self.device(op.results[0])?;
        let (lhs, rhs) = (self.stored(op.operands[0], device)?, self.stored(op.operands[1], device)?);
        let space = self.array(op.results[0])?.1;
        let ([batch @ .., m, n], Some(k)) = (&space[..], lhs.layout.shape.last()) else {
            bail!(internal, "a matmul of rank below 2")
        };
        let k = k.clone();
        let lhs_use = Self::use_of(&lhs, &[batch, &[m.clone(), k.clone()]].concat());
        let rhs_use = Self::use_of(&rhs, &[batch, &[k.clone(), n.clone()]].concat());
        self.heavy(id, op.results[0], Work::Matmul { k, lhs: lhs_use, rhs: rhs_use }, &[lhs.node, rhs.node])
    }

    pub(super) fn attention(&mut self, id: OpId, op: &Op, attention: &Attention) -> Result<()> {
        let device = self.device(op.results[0])?;
        let views = op.operands.iter().map(|&v| self.stored(v, device)).collect::<Result<Vec<_>>>()?;
        let space = self.array(op.results[0])?.1;
        let ([batch @ .., queries, width], [query, key, value, mask @ ..]) = (&space[..], &views[..]) else {
            bail!(internal, "attention takes three or four operands of rank 2 or more")
        };
        let [.., keys, depth] = &key.layout.shape[..] else { bail!(internal, "a key of rank below 2") };
        let walk =
            |view: &View, last: [&Dim; 2]| Self::use_of(view, &[batch, &last.map(Dim::clone)].concat());
        let work = Work::Attention {
            op: attention.clone(),
            query: walk(query, [queries, depth]),
            key: walk(key, [keys, depth]),
            value: walk(value, [keys, width]),
            mask: mask.first().map(|mask| walk(mask, [queries, keys])),
            keys: keys.clone(),
            depth: depth.clone(),
        };
        let nodes: Vec<NodeId> = views.iter().map(|view| view.node).collect();
        self.heavy(id, op.results[0], work, &nodes)
    }

    pub(super) fn conv2d(&mut self, id: OpId, op: &Op, conv: &Conv2d) -> Result<()> {
        let device = self.device(op.results[0])?;
        let (input, filter) = (self.stored(op.operands[0], device)?, self.stored(op.operands[1], device)?);
        let [r, s, _, f] = conv.filter_axes()?.map(|axis| filter.layout.shape[axis].clone());
        if [&r, &s, &f].iter().any(|dim| dim.as_static().is_none()) {
            self.claim(id, Claim::Filter { taps: [r, s], filters: f, groups: conv.groups });
        }
        let whole = |view: &View| Self::use_of(view, &view.layout.shape);
        let work = Work::Conv2d {
            op: conv.clone(),
            input: whole(&input),
            input_shape: input.layout.shape.clone(),
            filter: whole(&filter),
            filter_shape: filter.layout.shape.clone(),
        };
        self.heavy(id, op.results[0], work, &[input.node, filter.node])
    }

    /// A group that starts with the result of a kernel of its own.
    fn heavy(&mut self, id: OpId, value: ValueId, work: Work, reads: &[NodeId]) -> Result<()> {
        let (dtype, space) = self.array(value)?;
        let mut group = Group::new(self.device(value)?, work, &space);
        let product = group.push(Instr::Product(dtype));
        self.groups.push(group);
        let number = self.groups.len() - 1;
        reads.iter().for_each(|&node| self.read(number, node));
        self.finish_op(number, id, value, product)
    }

    pub(super) fn gather(&mut self, id: OpId, op: &Op, axis: usize) -> Result<()> {
        let device = self.device(op.results[0])?;
        let source = self.whole(id, op.operands[0], device)?;
        let indices = self.whole(id, op.operands[1], device)?;
        let product = |dims: &[Dim]| Shape::from(dims).num_elements();
        let shape = self.node(source).shape.clone();
        let (outer, inner) = (product(&shape[..axis])?, product(&shape[axis + 1..])?);
        let picks = product(&self.node(indices).shape)?;
        let size = shape[axis].clone();
        let flat = |node, shape: &[Dim]| -> Result<Use> {
            Ok(Self::use_of(&View { node, layout: Layout::contiguous(shape)? }, shape))
        };
        let (dtype, result) = self.array(op.results[0])?;
        let number = self.groups.len();
        let node = self.add_node(device, dtype, &result, Source::Group(number, None));
        let work = Work::Gather {
            axis,
            source: flat(source, &[outer.clone(), size.clone(), inner.clone()])?,
            indices: flat(indices, std::slice::from_ref(&picks))?,
            sizes: [outer, size, picks, inner],
            result: node,
        };
        self.groups.push(Group::new(device, work, &[]));
        self.read(number, source);
        self.read(number, indices);
        self.nodes[node.0 as usize].stored = true;
        self.note(number, id);
        self.define(op.results[0], node)
    }

    pub(super) fn print(&mut self, id: OpId, op: &Op, label: &str) -> Result<()> {
        let device = op.operands.first().map_or(Ok(DeviceRef::CPU), |&value| self.device(value))?;
        let node = op.operands.first().map(|&value| self.whole(id, value, device)).transpose()?;
        self.groups.push(Group::new(device, Work::Print(label.into(), node), &[]));
        let number = self.groups.len() - 1;
        if let Some(node) = node {
            self.read(number, node);
        }
        self.note(number, id);
        Ok(())
    }

    /// The view that an op on a device has of an operand that must be in memory there.
    fn stored(&mut self, value: ValueId, device: DeviceRef) -> Result<View> {
        let view = self.view(value)?;
        let view = self.on(None, view, device)?;
        self.in_memory(view)
    }

    /// The view, or a copy in memory if its elements have none.
    fn in_memory(&mut self, view: View) -> Result<View> {
        if !matches!(self.node(view.node).source, Source::Index) {
            return Ok(view);
        }
        let node = self.copy(None, &view)?;
        Ok(View { node, layout: Layout::contiguous(&view.layout.shape)? })
    }

    /// A value as a whole node on a device with the value's shape: itself, or a copy.
    fn whole(&mut self, id: OpId, value: ValueId, device: DeviceRef) -> Result<NodeId> {
        let view = self.stored(value, device)?;
        let whole = view.layout.is_contiguous()? && view.layout.shape == self.node(view.node).shape;
        if whole { Ok(view.node) } else { self.copy(Some(id), &view) }
    }

    /// How a fact reads a small view. Slots are assigned at the end; until then the node takes their place.
    pub(super) fn access_of(&mut self, view: &View) -> Result<Access<Dim>> {
        let view = self.in_memory(view.clone())?;
        self.nodes[view.node.0 as usize].stored = true;
        let Use { node, offset, strides } = Self::use_of(&view, &view.layout.shape);
        Ok(Access { slot: Slot(node.0), dtype: self.node(node).dtype, offset, strides })
    }
}
