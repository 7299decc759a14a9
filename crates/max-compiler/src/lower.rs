//! From ops to kernels. View ops become layouts, everything else computes nodes in groups; a group becomes a step.
//!
//! Groups are numbered as they are created, and every group reads only what lower groups compute. An op may therefore
//! join the highest group that computes one of its operands, or any group above that: the numbering stays a valid order
//! of execution, and no search for cycles is needed.

mod buffer;
mod collective;
mod emit;
mod finish;
mod group;
mod heavy;
mod indexed;
mod nested;
mod paged;
mod quantized;
mod sort;
mod together;
mod transfer;
mod vision;

use std::collections::HashMap;
use std::sync::Arc;

use max_core::{DType, DeviceRef, Dim, HostBytes, Result, Shape, TensorType, Type, bail};
use max_graph::ir::Op;
use max_graph::ops::slice::check_range;
use max_graph::{Body, OpId, OpKind, ValueId};

use crate::layout::Layout;
use crate::program::{Claim, Fact, Program, Returned};
use buffer::Buffers;
use group::Group;
pub(crate) use nested::Regions;

/// How a body is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether ops share kernels; if not, every op is a step of its own.
    pub fuse: bool,
    /// Whether ops on constants are folded only where that gives the same bits as a kernel, so that graphs that differ in
    /// what is constant give the same results.
    pub fold_exactly: bool,
    /// Whether collectives of GPUs are steps of their own, which NCCL runs. Otherwise, and where NCCL does not have what
    /// they compute, they become transfers and ordinary kernels.
    pub nccl: bool,
}

/// Lowers an optimized body.
pub(crate) fn lower(body: Body, regions: &mut Regions) -> Result<Program> {
    let mut lowering = Lowering::new(&body, regions);
    for at in 0..body.block.ops.len() {
        let id = body.block.ops[at];
        let op = body.op(id);
        lowering
            .op(id, op)
            .map_err(|e| op.location.iter().cloned().fold(e.context(op.describe(&body)), |e, l| e.at(l)))?;
    }
    let outputs = body.block.results.clone().unwrap_or_default();
    lowering.outputs(&outputs)?;
    finish::finish(lowering.parts(), body)
}

/// Identifies a value that has memory, or would have if it left its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NodeId(u32);

/// A value with its own elements, in row-major order.
#[derive(Debug)]
pub(super) struct Node {
    /// The device its memory is, or would be, on.
    device: DeviceRef,
    dtype: DType,
    shape: Vec<Dim>,
    source: Source,
    /// Whether something outside its group reads it.
    stored: bool,
    /// How many later uses it has, through any view.
    pending: u32,
    /// The node whose memory contains it, and where: the operands of a concat are computed in place.
    home: Option<(NodeId, Layout)>,
    /// The node whose memory it is, if it is a later state of a buffer.
    buffer: Option<NodeId>,
}

/// Where a node comes from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Input(usize),
    Constant(HostBytes),
    Weight(usize),
    /// Positions in row-major order: they are computed wherever they are used, and have no memory.
    Index,
    /// The last group that writes it, and which output it is, if any.
    Group(usize, Option<usize>),
    /// A buffer that the program makes, and which output it is, if any.
    Created(Option<usize>),
}

/// A value: a node seen through a layout.
#[derive(Clone, Debug)]
pub(super) struct View {
    node: NodeId,
    layout: Layout,
}

pub(super) struct Lowering<'a> {
    body: &'a Body,
    options: Options,
    regions: &'a mut Regions,
    nodes: Vec<Node>,
    groups: Vec<Group>,
    views: Vec<Option<View>>,
    /// How many uses of each value are still to come.
    uses: Vec<u32>,
    weights: Vec<(String, TensorType)>,
    /// The facts of each segment with its first group.
    segments: Vec<(Vec<Fact<NodeId>>, usize)>,
    /// The highest group that reads each node: another reader may join it.
    readers: HashMap<NodeId, usize>,
    /// The narrow floats whose cast to a wider type a value is, where matmuls can read them as they are.
    narrow: HashMap<ValueId, View>,
    /// The concats whose results only another concat uses.
    inner: HashMap<ValueId, OpId>,
    buffers: Buffers,
    /// The groups before each of these may not be joined any more.
    fences: Vec<usize>,
    returned: Vec<(usize, Returned)>,
    programs: Vec<Arc<Program>>,
}

impl<'a> Lowering<'a> {
    fn new(body: &'a Body, regions: &'a mut Regions) -> Lowering<'a> {
        let mut uses = vec![0; body.num_values()];
        let results = body.block.results.iter().flatten();
        for value in body.ops().flat_map(|op| &op.operands).chain(results) {
            uses[value.0 as usize] += 1;
        }
        let inner = if regions.options.fuse { emit::inner_concats(body, &uses) } else { HashMap::new() };
        Lowering {
            body,
            options: regions.options,
            regions,
            nodes: Vec::new(),
            groups: Vec::new(),
            views: vec![None; body.num_values()],
            uses,
            weights: Vec::new(),
            segments: vec![(Vec::new(), 0)],
            readers: HashMap::new(),
            narrow: HashMap::new(),
            inner,
            buffers: Buffers::default(),
            fences: Vec::new(),
            returned: Vec::new(),
            programs: Vec::new(),
        }
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    fn add_node(&mut self, device: DeviceRef, dtype: DType, shape: &[Dim], source: Source) -> NodeId {
        let shape = shape.to_vec();
        self.nodes.push(Node {
            device,
            dtype,
            shape,
            source,
            stored: false,
            pending: 0,
            home: None,
            buffer: None,
        });
        NodeId(self.nodes.len() as u32 - 1)
    }

    /// Defines a value as a whole node.
    fn define(&mut self, value: ValueId, node: NodeId) -> Result<()> {
        let layout = Layout::contiguous(&self.node(node).shape)?;
        self.set_view(value, node, layout);
        Ok(())
    }

    /// The view that an op has of an operand; each use is counted.
    fn view(&mut self, value: ValueId) -> Result<View> {
        if self.views[value.0 as usize].is_none()
            && let Some(input) = self.body.block.arguments.iter().position(|&v| v == value)
        {
            let (dtype, shape) = self.array(value)?;
            let node = self.add_node(self.device(value)?, dtype, &shape, Source::Input(input));
            self.define(value, node)?;
        }
        match self.views[value.0 as usize].clone() {
            Some(view) => {
                self.nodes[view.node.0 as usize].pending -= 1;
                self.uses[value.0 as usize] -= 1;
                Ok(view)
            }
            None => bail!(internal, "value %{} has no definition", value.0),
        }
    }

    fn array(&self, value: ValueId) -> Result<(DType, Shape)> {
        match self.body.type_of(value).array() {
            Some((dtype, shape)) => Ok((dtype, shape.clone())),
            None => bail!(not_implemented, "values of type {} cannot be computed", self.body.type_of(value)),
        }
    }

    /// The device of a value.
    fn device(&self, value: ValueId) -> Result<DeviceRef> {
        match self.body.type_of(value).device() {
            Some(device) => Ok(device),
            None => bail!(not_implemented, "values of type {} are on no device", self.body.type_of(value)),
        }
    }

    fn claim(&mut self, op: OpId, claim: Claim<NodeId>) {
        // A fact that needs data starts a segment: its operands must have been computed.
        if !claim.reads().is_empty() {
            self.segments.push((Vec::new(), self.groups.len()));
        }
        if let Some((facts, _)) = self.segments.last_mut() {
            facts.push(Fact { claim, op });
        }
    }

    /// The first group that may still be joined: earlier ones belong to other segments, or are behind a fence.
    fn barrier(&self) -> usize {
        let segment = self.segments.last().map_or(0, |(_, first)| *first);
        segment.max(self.fences.last().copied().unwrap_or(0))
    }

    /// Defines a value as a view of a node.
    fn set_view(&mut self, value: ValueId, node: NodeId, layout: Layout) {
        self.nodes[node.0 as usize].pending += self.uses[value.0 as usize];
        self.views[value.0 as usize] = Some(View { node, layout });
        self.buffers.note_view(value, node);
    }

    fn op(&mut self, id: OpId, op: &Op) -> Result<()> {
        match &op.kind {
            OpKind::Constant(c) => {
                let shape: Shape = c.value.shape().iter().copied().collect();
                let source = Source::Constant(c.value.bytes().clone());
                let node = self.add_node(c.device, c.value.dtype(), &shape, source);
                self.define(op.results[0], node)
            }
            OpKind::ConstantExternal(c) => {
                let Type::Tensor(ty) = self.body.type_of(op.results[0]) else {
                    bail!(internal, "a weight that is not a tensor")
                };
                let number = self.weights.len();
                self.weights.push((c.name.clone(), ty.clone()));
                if ty.shape.as_static().is_none() {
                    self.claim(id, Claim::Weight(number, ty.shape.clone()));
                }
                let node = self.add_node(ty.device, ty.dtype, &ty.shape, Source::Weight(number));
                self.define(op.results[0], node)
            }
            OpKind::Index(index) => {
                let node = self.add_node(index.device, DType::Int64, &index.shape, Source::Index);
                self.define(op.results[0], node)
            }
            OpKind::TransferTo(t) => {
                let view = self.view(op.operands[0])?;
                let View { node, layout } = self.on(Some(id), view, t.device)?;
                self.set_view(op.results[0], node, layout);
                Ok(())
            }
            OpKind::Rebind(r) => {
                let View { node, mut layout } = self.view(op.operands[0])?;
                let from = Shape::from(layout.shape.as_slice());
                if from != r.shape {
                    let (to, message) = (r.shape.clone(), r.message.clone());
                    self.claim(id, Claim::Rebind { from, to, message });
                }
                // The claim makes both shapes equal, so strides may be expressed with the new dims.
                layout = match layout.is_contiguous()? {
                    true => Layout::contiguous(&r.shape)?,
                    false => Layout { shape: r.shape.to_vec(), ..layout },
                };
                self.set_view(op.results[0], node, layout);
                Ok(())
            }
            OpKind::Permute(p) => {
                let View { node, layout } = self.view(op.operands[0])?;
                self.set_view(op.results[0], node, layout.permute(&p.dims));
                if let Some(View { node, layout }) = self.narrow.get(&op.operands[0]).cloned() {
                    self.narrow.insert(op.results[0], View { node, layout: layout.permute(&p.dims) });
                }
                Ok(())
            }
            OpKind::BroadcastTo(b) => self.broadcast(id, op, &b.shape),
            OpKind::Slice(s) => {
                let View { node, mut layout } = self.view(op.operands[0])?;
                for (axis, &step) in s.steps.iter().enumerate() {
                    self.slice(id, &mut layout, axis, (&s.starts[axis], &s.sizes[axis], step))?;
                }
                self.set_view(op.results[0], node, layout);
                Ok(())
            }
            OpKind::DynamicSlice(s) => self.dynamic_slice(id, op, s),
            OpKind::Split(s) => {
                let View { node, layout } = self.view(op.operands[0])?;
                let mut start = Dim::Static(0);
                for (&result, size) in op.results.iter().zip(s.sizes.iter()) {
                    let mut part = layout.clone();
                    part.slice(s.axis, &start, size, 1)?;
                    start = start.add(size)?;
                    self.set_view(result, node, part);
                }
                Ok(())
            }
            OpKind::Reshape(r) => {
                let view = self.view(op.operands[0])?;
                let View { node, layout } = self.reshaped(id, view, &r.shape)?;
                self.set_view(op.results[0], node, layout);
                Ok(())
            }
            OpKind::Matmul(_) => self.matmul(id, op),
            OpKind::QMatmul(q) => self.qmatmul(id, op, q),
            OpKind::Attention(a) => self.attention(id, op, a),
            OpKind::PagedAttention(a) => self.paged_attention(id, op, a),
            OpKind::PagedStore(s) => self.paged_store(id, op, s.part),
            OpKind::Conv2d(c) => self.conv2d(id, op, c),
            OpKind::Gather(g) => self.gather(id, op, g.axis),
            OpKind::GatherNd(g) => self.gather_nd(id, op, g.batch_dims),
            OpKind::Scatter(s) => self.scatter(id, op, s),
            OpKind::ScatterNd(s) => self.scatter_nd(id, op, s.combine),
            OpKind::Dequantize(d) => self.dequantize(id, op, d),
            OpKind::Cumsum(c) => self.cumsum(id, op, c),
            OpKind::Sort(s) => self.sort(id, op, s),
            OpKind::Pool(p) => self.pool(id, op, p),
            OpKind::Resample(r) => self.resample(id, op, r),
            OpKind::Irfft(f) => self.irfft(id, op, f),
            OpKind::RoiAlign(r) => self.roi_align(id, op, r),
            OpKind::Suppress(_) => self.suppress(id, op),
            OpKind::Concat(c) => self.concat(id, op, c.axis),
            OpKind::Print(p) => self.print(id, op, &p.label),
            OpKind::Custom(c) => self.custom(id, op, c.device),
            OpKind::BufferCreate(_) => self.create_buffer(op.results[0]),
            OpKind::BufferLoad(_) => self.load(op),
            OpKind::BufferStore(_) => self.store(id, op),
            OpKind::BufferStoreSlice(s) => self.store_slice(id, op, s),
            OpKind::Call(c) => self.nested(id, op, &c.regions),
            OpKind::Cond(c) => self.nested(id, op, &c.regions),
            OpKind::While(w) => self.nested(id, op, &w.regions),
            OpKind::Fence(_) => {
                for &value in &op.operands {
                    self.pass(value)?;
                }
                self.fences.push(self.groups.len());
                Ok(())
            }
            OpKind::Collect(c) => self.collective(id, op, c),
            OpKind::Cast(c) => {
                self.elementwise(id, op)?;
                self.widened(op, c.dtype);
                Ok(())
            }
            OpKind::ShapeToTensor(_)
            | OpKind::Scalar(_)
            | OpKind::Where(_)
            | OpKind::Random(_)
            | OpKind::Reduce(_)
            | OpKind::Softmax(_)
            | OpKind::LayerNorm(_)
            | OpKind::RmsNorm(_) => self.elementwise(id, op),
        }
    }

    /// A view in another shape: of the same node if strides can express it, else of a copy.
    fn reshaped(&mut self, id: OpId, view: View, shape: &[Dim]) -> Result<View> {
        if let Some(layout) = view.layout.reshape(shape)? {
            return Ok(View { layout, ..view });
        }
        let node = self.copy(Some(id), &view)?;
        Ok(View { node, layout: Layout::contiguous(shape)? })
    }

    /// Takes part of an axis: a start, a number of elements and the step between them. What is not known to be inside is
    /// checked when the program runs.
    fn slice(
        &mut self,
        id: OpId,
        layout: &mut Layout,
        axis: usize,
        (start, count, step): (&Dim, &Dim, i64),
    ) -> Result<()> {
        let size = layout.shape[axis].clone();
        let inside = match (size.as_static(), start.as_static(), count.as_static()) {
            (Some(size), Some(start), Some(count)) => check_range(axis, size, start, count, step).is_ok(),
            _ => *start == Dim::Static(0) && *count == size && step == 1,
        };
        if !inside {
            let (start, count) = (start.clone(), count.clone());
            self.claim(id, Claim::Slice { axis, size, start, count, step });
        }
        layout.slice(axis, start, count, step)
    }

    fn broadcast(&mut self, id: OpId, op: &Op, shape: &Shape) -> Result<()> {
        let View { node, mut layout } = self.view(op.operands[0])?;
        if let Some(&sizes) = op.operands.get(1) {
            let sizes = self.view(sizes)?;
            let values = self.access_of(&sizes)?;
            let (from, to) = (Shape::from(layout.shape.as_slice()), shape.clone());
            let mut walks = Vec::new();
            for (axis, (own, target)) in from.iter().zip(&to[to.rank() - from.rank()..]).enumerate() {
                // A size is 1 or that of its target, or the claim fails. For a symbol, only the run knows which.
                if own.as_static().is_none() && own != target {
                    let walk: Arc<str> = format!("walk of %{} along {axis}", op.results[0].0).into();
                    layout.strides[axis] = layout.strides[axis].mul(&Dim::Symbolic(walk.clone()))?;
                    walks.push((axis, walk));
                }
                if *own != Dim::Static(1) {
                    layout.shape[axis] = target.clone();
                }
            }
            self.claim(id, Claim::Sizes { values, from, to, walks });
        }
        self.set_view(op.results[0], node, layout.broadcast(shape));
        Ok(())
    }

    fn dynamic_slice(&mut self, id: OpId, op: &Op, s: &max_graph::ops::slice::DynamicSlice) -> Result<()> {
        let View { node, mut layout } = self.view(op.operands[0])?;
        let mut bounds = op.operands[1..].iter();
        let mut bound = |this: &mut Self, given: bool| match if given { bounds.next() } else { None } {
            Some(&value) => {
                let view = this.view(value)?;
                this.access_of(&view).map(Some)
            }
            None => Ok(None),
        };
        let (start, stop) = (bound(self, s.start)?, bound(self, s.stop)?);
        // No user can write this name, so it is unique.
        let first: Arc<str> = format!("start of %{}", op.results[0].0).into();
        let (size, count) = (layout.shape[s.axis].clone(), s.out_dim.clone());
        self.claim(
            id,
            Claim::Bounds {
                axis: s.axis,
                size,
                start,
                stop,
                step: s.step,
                first: first.clone(),
                count: count.clone(),
            },
        );
        layout.slice(s.axis, &Dim::Symbolic(first), &count, s.step)?;
        self.set_view(op.results[0], node, layout);
        Ok(())
    }

    /// Whether a view is all elements of its node in order, in any shape.
    fn is_whole(&self, view: &View) -> Result<bool> {
        let node = Shape::from(self.node(view.node).shape.as_slice());
        let seen = Shape::from(view.layout.shape.as_slice());
        Ok(view.layout.is_contiguous()? && (node == seen || node.num_elements()? == seen.num_elements()?))
    }

    /// Gives every result its own memory.
    fn outputs(&mut self, results: &[ValueId]) -> Result<()> {
        let body = self.body;
        let made = |&id: &OpId| body.op(id).results.iter().map(move |&result| (result, id));
        let makers: HashMap<ValueId, OpId> = body.block.ops.iter().flat_map(made).collect();
        for (number, &value) in results.iter().enumerate() {
            if let Type::Buffer(_) = body.type_of(value) {
                self.return_buffer(number, value)?;
                continue;
            }
            let view = self.view(value)?;
            let whole = self.is_whole(&view)?;
            let free = matches!(self.node(view.node).source, Source::Group(_, None))
                && self.node(view.node).home.is_none()
                && self.node(view.node).buffer.is_none();
            let maker = makers.get(&value).copied();
            let node = if whole && free { view.node } else { self.copy(maker, &view)? };
            let node = &mut self.nodes[node.0 as usize];
            node.stored = true;
            if let Source::Group(_, output) = &mut node.source {
                *output = Some(number);
            }
        }
        Ok(())
    }

    fn parts(self) -> finish::Parts {
        finish::Parts {
            nodes: self.nodes,
            groups: self.groups,
            weights: self.weights,
            segments: self.segments,
            fuse: self.options.fuse,
            fences: self.fences,
            programs: self.programs,
            returned: self.returned,
        }
    }
}
