//! Ops with kernels of their own. Where a kernel ends in a loop, its result goes into the loop of its group, which later
//! ops may extend; other kernels write their results to memory.

use max_core::kernel::{
    Access, Attention, Conv2d, Dequantize, Instr, Kernel, Loop, Matmul, Resample, Scan, Window,
};
use max_core::{DType, DeviceRef, Dim, Result, Shape, Type, bail};
use max_graph::ir::Op;
use max_graph::{OpId, ValueId, ops};

use super::group::{Group, Work};
use super::{Lowering, NodeId, Source, View};
use crate::layout::Layout;
use crate::program::{Claim, CustomCall};

impl Lowering<'_> {
    pub(super) fn matmul(&mut self, id: OpId, op: &Op) -> Result<()> {
        let device = self.device(op.results[0])?;
        let mut lhs = self.stored(op.operands[0], device)?;
        let mut rhs = self.stored(op.operands[1], device)?;
        // What is only widened for the matmul is read as it is: a right operand, or both if these are float8.
        let narrow = [0, 1].map(|at| self.narrow.get(&op.operands[at]).cloned());
        let float8 = |view: &View| Some(self.node(view.node).dtype).filter(|dtype| dtype.is_float8());
        match narrow {
            [Some(left), Some(right)] if float8(&left).is_some() && float8(&left) == float8(&right) => {
                lhs = self.on(None, left, device)?;
                rhs = self.on(None, right, device)?;
            }
            [_, Some(right)] if device.is_cpu() => rhs = right,
            _ => {}
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

    /// Remembers the narrow floats that a cast widens: weights and constants of 16 bits, and float8 in memory that is not
    /// written again. On a GPU there are matmuls of two float8 operands only.
    pub(super) fn widened(&mut self, op: &Op, to: DType) {
        let Some(view) = self.views[op.operands[0].0 as usize].clone() else { return };
        let node = self.node(view.node);
        let fixed = matches!(node.source, Source::Weight(_) | Source::Constant(_));
        let lasts = match node.source {
            Source::Input(at) => matches!(self.body.type_of(self.body.block.arguments[at]), Type::Tensor(_)),
            Source::Group(..) => node.buffer.is_none(),
            _ => fixed,
        };
        let half = fixed && node.dtype.is_half() && to == DType::Float32;
        let float8 = lasts
            && matches!(node.dtype, DType::Float8E4M3FN | DType::Float8E5M2)
            && matches!(to, DType::Float32 | DType::BFloat16);
        if half || float8 {
            // A matmul may still use it, after all uses that are counted.
            self.nodes[view.node.0 as usize].pending += 1;
            self.narrow.insert(op.results[0], view);
        }
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

    pub(super) fn dequantize(
        &mut self,
        id: OpId,
        op: &Op,
        decode: &ops::dequantize::Dequantize,
    ) -> Result<()> {
        let device = self.device(op.results[0])?;
        let source = self.stored(op.operands[0], device)?;
        let Some((bytes, outer)) = source.layout.shape.split_last() else {
            bail!(internal, "blocks without an axis")
        };
        let (axis, rows, bytes) = (outer.len(), Shape::from(outer).num_elements()?, bytes.clone());
        let flat = [rows.clone(), bytes.clone()];
        // Rows may be apart, but blocks are contiguous.
        let dense = |layout: &Layout| layout.strides[1] == Dim::Static(1);
        let source = match source.layout.reshape(&flat)?.filter(dense) {
            Some(layout) => View { layout, ..source },
            None => View { node: self.copy(Some(id), &source)?, layout: Layout::contiguous(&flat)? },
        };
        let results = self.results(op)?;
        let [_, elements, _] = self.around(results[0], axis)?;
        let kernel = Dequantize {
            encoding: decode.encoding,
            source: self.access(&source, &flat),
            out: self.flat(results[0], [&rows, &elements])?,
            rows,
            bytes,
            elements,
        };
        self.standalone(id, op, kernel, results)
    }

    pub(super) fn pool(&mut self, id: OpId, op: &Op, pool: &ops::pool::Pool) -> Result<()> {
        let device = self.device(op.results[0])?;
        let input = self.stored(op.operands[0], device)?;
        let ops::pool::WindowSize(window) = pool.window.clone();
        if window.iter().any(|size| size.as_static().is_none()) {
            self.claim(id, Claim::Window(pool.title(), window.clone()));
        }
        let ([_, height, width, _], [n, out_height, out_width, channels]) =
            (&input.layout.shape[..], &self.array(op.results[0])?.1[..])
        else {
            bail!(internal, "pooling of another rank than 4")
        };
        let kernel = Window {
            pooling: pool.pooling,
            out: [n, out_height, out_width, channels].map(Dim::clone),
            input_size: [height.clone(), width.clone()],
            window,
            stride: [pool.stride[0], pool.stride[1]],
            dilation: [pool.dilation[0], pool.dilation[1]],
            padding: [pool.padding[0], pool.padding[1], pool.padding[2], pool.padding[3]],
            input: self.access(&input, &input.layout.shape),
            epilogue: Loop::empty(vec![]),
        };
        self.fused(id, op, kernel, None)
    }

    pub(super) fn resample(&mut self, id: OpId, op: &Op, resample: &ops::resample::Resample) -> Result<()> {
        let device = self.device(op.results[0])?;
        let source = self.whole(id, op.operands[0], device)?;
        let (first, last) = (resample.axis, resample.axis + resample.sizes.rank() - 1);
        let shape = self.node(source).shape.clone();
        for size in shape[first..=last].iter().filter(|size| size.as_static().is_none()) {
            self.claim(id, Claim::Resampled(size.clone()));
        }
        let ([outer, ..], [_, _, inner]) = (self.around(source, first)?, self.around(source, last)?);
        // A single axis is that of the columns if it is the last one, else that of the rows.
        let one = || Dim::Static(1);
        let both = |dims: &[Dim]| match dims {
            [rows, columns] => [rows.clone(), columns.clone()],
            [columns] if last + 1 == shape.len() => [one(), columns.clone()],
            dims => [dims[0].clone(), one()],
        };
        let (size, count) = (both(&shape[first..=last]), both(&resample.sizes));
        let results = self.results(op)?;
        let kernel = Resample {
            interpolation: resample.interpolation,
            coordinates: resample.coordinates,
            source: self.flat(source, [&outer, &size[0], &size[1], &inner])?,
            out: self.flat(results[0], [&outer, &count[0], &count[1], &inner])?,
            outer,
            size,
            count,
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
    pub(super) fn fused(
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
    pub(super) fn flat<'d>(
        &self,
        node: NodeId,
        shape: impl IntoIterator<Item = &'d Dim>,
    ) -> Result<Access<Dim, NodeId>> {
        let shape: Vec<Dim> = shape.into_iter().cloned().collect();
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
