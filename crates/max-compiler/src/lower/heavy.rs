//! Ops with kernels of their own. Where a kernel ends in a loop, its result goes into the loop of its group, which later
//! ops may extend; other kernels write their results to memory.

use max_core::kernel::{Access, Attention, Conv2d, Gather, Instr, Kernel, Loop, Matmul, Scan};
use max_core::{DeviceRef, Dim, Result, Shape, Type, bail};
use max_graph::ir::Op;
use max_graph::{OpId, ValueId, ops};

use super::group::{Group, Work};
use super::{Lowering, NodeId, Source, View};
use crate::layout::Layout;
use crate::program::{Claim, CustomCall};

impl Lowering<'_> {
    pub(super) fn matmul(&mut self, id: OpId, op: &Op) -> Result<()> {
        let device = self.device(op.results[0])?;
        let lhs = self.stored(op.operands[0], device)?;
        let mut rhs = self.stored(op.operands[1], device)?;
        // A weight that is only widened for the matmul is read as it is.
        if device.is_cpu()
            && let Some(narrow) = self.narrow.get(&op.operands[1])
        {
            rhs = narrow.clone();
        }
        let space = self.array(op.results[0])?.1;
        let ([batch @ .., m, n], Some(k)) = (&space[..], lhs.layout.shape.last()) else {
            bail!(internal, "a matmul of rank below 2")
        };
        let kernel = Matmul {
            batch: batch.to_vec(),
            m: m.clone(),
            n: n.clone(),
            k: k.clone(),
            lhs: self.access(&lhs, &[batch, &[m.clone(), k.clone()]].concat()),
            rhs: self.access(&rhs, &[batch, &[k.clone(), n.clone()]].concat()),
            epilogue: Loop::empty(vec![]),
        };
        self.fused(id, op, kernel, None)
    }

    pub(super) fn attention(
        &mut self,
        id: OpId,
        op: &Op,
        attention: &ops::attention::Attention,
    ) -> Result<()> {
        let device = self.device(op.results[0])?;
        let views = op.operands.iter().map(|&v| self.stored(v, device)).collect::<Result<Vec<_>>>()?;
        let space = self.array(op.results[0])?.1;
        let ([batch @ .., queries, width], [query, key, value, mask @ ..]) = (&space[..], &views[..]) else {
            bail!(internal, "attention takes three or four operands of rank 2 or more")
        };
        let [.., keys, depth] = &key.layout.shape[..] else { bail!(internal, "a key of rank below 2") };
        let walk = |view: &View, last: [&Dim; 2]| self.access(view, &[batch, &last.map(Dim::clone)].concat());
        let kernel = Attention {
            batch: batch.to_vec(),
            queries: queries.clone(),
            keys: keys.clone(),
            depth: depth.clone(),
            width: width.clone(),
            query: walk(query, [queries, depth]),
            key: walk(key, [keys, depth]),
            value: walk(value, [keys, width]),
            mask: mask.first().map(|mask| walk(mask, [queries, keys])),
            scale: attention.scale,
            causal: attention.causal,
            window: attention.window,
            epilogue: Loop::empty(vec![]),
        };
        self.fused(id, op, kernel, None)
    }

    pub(super) fn conv2d(&mut self, id: OpId, op: &Op, conv: &ops::conv::Conv2d) -> Result<()> {
        let device = self.device(op.results[0])?;
        let (input, filter) = (self.stored(op.operands[0], device)?, self.stored(op.operands[1], device)?);
        let (axes, filter_axes) = (conv.input_axes(), conv.filter_axes()?);
        let pick = |from: &[Dim], axes: [usize; 4]| axes.map(|axis| from[axis].clone());
        let [r, s, depth, f] = pick(&filter.layout.shape, filter_axes);
        if [&r, &s, &f].iter().any(|dim| dim.as_static().is_none()) {
            let taps = [r.clone(), s.clone()];
            self.claim(id, Claim::Filter { taps, filters: f, groups: conv.groups });
        }
        let [_, height, width, channels] = pick(&input.layout.shape, axes);
        let whole = |view: &View, axes: [usize; 4]| permuted(self.access(view, &view.layout.shape), axes);
        let kernel = Conv2d {
            out: pick(&self.array(op.results[0])?.1, axes),
            input_size: [height, width, channels],
            filter_size: [r, s],
            depth,
            stride: [conv.stride[0], conv.stride[1]],
            dilation: [conv.dilation[0], conv.dilation[1]],
            padding: [conv.padding[0], conv.padding[2]],
            groups: conv.groups,
            input: whole(&input, axes),
            filter: whole(&filter, filter_axes),
            epilogue: Loop::empty(vec![]),
        };
        self.fused(id, op, kernel, Some(axes))
    }

    pub(super) fn gather(&mut self, id: OpId, op: &Op, axis: usize) -> Result<()> {
        let device = self.device(op.results[0])?;
        let source = self.whole(id, op.operands[0], device)?;
        let indices = self.whole(id, op.operands[1], device)?;
        let [outer, size, inner] = self.around(source, axis)?;
        let picks = Shape::from(self.node(indices).shape.as_slice()).num_elements()?;
        let results = self.results(op)?;
        let kernel = Gather {
            axis,
            source: self.flat(source, [&outer, &size, &inner])?,
            indices: self.flat(indices, [&picks])?,
            out: self.flat(results[0], [&outer, &picks, &inner])?,
            outer,
            size,
            picks,
            inner,
        };
        self.standalone(id, op, kernel, results)
    }

    pub(super) fn cumsum(&mut self, id: OpId, op: &Op, sum: &ops::cumsum::Cumsum) -> Result<()> {
        let device = self.device(op.results[0])?;
        let source = self.whole(id, op.operands[0], device)?;
        let [outer, size, inner] = self.around(source, sum.axis)?;
        let results = self.results(op)?;
        let kernel = Scan {
            exclusive: sum.exclusive,
            reverse: sum.reverse,
            source: self.flat(source, [&outer, &size, &inner])?,
            out: self.flat(results[0], [&outer, &size, &inner])?,
            outer,
            size,
            inner,
        };
        self.standalone(id, op, kernel, results)
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

    /// A step of its own, on whole operands; it writes all buffers among them.
    pub(super) fn custom(&mut self, id: OpId, op: &Op, device: DeviceRef) -> Result<()> {
        let mut operands = Vec::with_capacity(op.operands.len());
        let mut buffers = Vec::new();
        for &value in &op.operands {
            operands.push(match self.body.type_of(value) {
                Type::Buffer(_) => {
                    buffers.push(value);
                    self.pass(value)?;
                    self.buffer_node(value)?
                }
                _ => self.whole(id, value, device)?,
            });
        }
        for &buffer in &buffers {
            self.before_write(buffer)?;
        }
        let (results, number) = (self.results(op)?, self.groups.len());
        let written =
            buffers.iter().map(|&buffer| self.new_version(buffer, number)).collect::<Result<_>>()?;
        operands.iter().for_each(|&node| self.read(number, node));
        let call = CustomCall { operands, results: results.clone(), written };
        self.groups.push(Group::new(device, Work::Custom(call), &[]));
        self.note(number, id);
        for (&value, node) in op.results.iter().zip(results) {
            self.nodes[node.0 as usize].stored = true;
            self.define(value, node)?;
        }
        Ok(())
    }

    /// A group that starts with the result of a kernel, which later ops may continue in its final loop. The kernel may
    /// have the axes of the result in another order.
    fn fused(
        &mut self,
        id: OpId,
        op: &Op,
        kernel: impl Into<Kernel<Dim, NodeId>>,
        axes: Option<[usize; 4]>,
    ) -> Result<()> {
        let ((dtype, space), device) = (self.array(op.results[0])?, self.device(op.results[0])?);
        let mut group = Group::new(device, Work::Kernel(kernel.into()), &space);
        group.axes = axes;
        let product = group.push(Instr::Product(dtype));
        let number = self.add_group(group);
        self.finish_op(number, id, op.results[0], product)
    }

    /// A kernel that writes the results of an op to memory.
    pub(super) fn standalone(
        &mut self,
        id: OpId,
        op: &Op,
        kernel: impl Into<Kernel<Dim, NodeId>>,
        results: Vec<NodeId>,
    ) -> Result<()> {
        let device = self.device(op.results[0])?;
        let number = self.add_group(Group::new(device, Work::Kernel(kernel.into()), &[]));
        self.note(number, id);
        for (&value, node) in op.results.iter().zip(results) {
            self.nodes[node.0 as usize].stored = true;
            self.define(value, node)?;
        }
        Ok(())
    }

    /// Adds a group, which reads what its kernel reads.
    pub(super) fn add_group(&mut self, group: Group) -> usize {
        let number = self.groups.len();
        if let Work::Kernel(kernel) = &group.work {
            kernel.reads().for_each(|&node| self.read(number, node));
        }
        self.groups.push(group);
        number
    }

    /// Nodes for the results of an op that the next group computes.
    pub(super) fn results(&mut self, op: &Op) -> Result<Vec<NodeId>> {
        let number = self.groups.len();
        let mut nodes = Vec::with_capacity(op.results.len());
        for &value in &op.results {
            let ((dtype, shape), device) = (self.array(value)?, self.device(value)?);
            nodes.push(self.add_node(device, dtype, &shape, Source::Group(number, None)));
        }
        Ok(nodes)
    }

    /// The number of elements before an axis of a node, along it and after it.
    pub(super) fn around(&self, node: NodeId, axis: usize) -> Result<[Dim; 3]> {
        let shape = &self.node(node).shape;
        let product = |dims: &[Dim]| Shape::from(dims).num_elements();
        Ok([product(&shape[..axis])?, shape[axis].clone(), product(&shape[axis + 1..])?])
    }

    /// How a whole node is walked as if it had another shape with as many elements.
    pub(super) fn flat<const RANK: usize>(
        &self,
        node: NodeId,
        shape: [&Dim; RANK],
    ) -> Result<Access<Dim, NodeId>> {
        let shape = shape.map(Dim::clone);
        Ok(self.access(&View { node, layout: Layout::contiguous(&shape)? }, &shape))
    }

    /// The view that an op on a device has of an operand that must be in memory there.
    pub(super) fn stored(&mut self, value: ValueId, device: DeviceRef) -> Result<View> {
        let view = self.view(value)?;
        let view = self.on(None, view, device)?;
        self.in_memory(view)
    }

    /// The view, or a copy in memory if its elements have none.
    fn in_memory(&mut self, view: View) -> Result<View> {
        if !matches!(self.node(view.node).source, Source::Index) {
            return Ok(view);
        }
        self.copied(&view)
    }

    /// A value as a whole node on a device with the value's shape: itself, or a copy.
    pub(super) fn whole(&mut self, id: OpId, value: ValueId, device: DeviceRef) -> Result<NodeId> {
        let view = self.stored(value, device)?;
        let whole = view.layout.is_contiguous()? && view.layout.shape == self.node(view.node).shape;
        if whole { Ok(view.node) } else { self.copy(Some(id), &view) }
    }

    /// How a fact reads a small view.
    pub(super) fn access_of(&mut self, view: &View) -> Result<Access<Dim, NodeId>> {
        let view = self.in_memory(view.clone())?;
        self.nodes[view.node.0 as usize].stored = true;
        Ok(self.access(&view, &view.layout.shape))
    }
}

/// An access with its axes in another order.
pub(super) fn permuted(access: Access<Dim, NodeId>, axes: [usize; 4]) -> Access<Dim, NodeId> {
    let strides = axes.iter().map(|&axis| access.strides[axis].clone()).collect();
    Access { strides, ..access }
}
