//! The instructions of ops that become loops. Softmax and the norms are decomposed here, late.

use std::collections::HashMap;

use max_core::kernel::{Access, Instr, Literal, Reduction, Reg};
use max_core::scalar::{NumericOp, RealOp};
use max_core::{DType, Dim, Number, Result, ScalarOp, bail, dispatch};
use max_graph::ir::Op;
use max_graph::ops::reduce::ReduceKind;
use max_graph::{Body, OpId, OpKind, ValueId};

use super::group::{Group, Wanted};
use super::{Lowering, Node, NodeId, Source, View};
use crate::layout::{Layout, contiguous_strides};
use crate::program::Claim;

impl Lowering<'_> {
    /// An op that is computed element by element or row by row.
    pub(super) fn elementwise(&mut self, id: OpId, op: &Op) -> Result<()> {
        if let OpKind::ShapeToTensor(sizes) = &op.kind {
            return self.sizes(id, op, &sizes.dims);
        }
        let device = self.device(op.results[0])?;
        let views = op.operands.iter().map(|&value| {
            let view = self.view(value)?;
            self.on(None, view, device)
        });
        let operands = views.collect::<Result<Vec<_>>>()?;
        let (shape, reduce) = match &op.kind {
            OpKind::Reduce(r) => {
                self.check_reduction(id, r.kind, &operands[0].layout.shape[r.axis]);
                (operands[0].layout.shape.clone(), Some(r.axis))
            }
            OpKind::Softmax(s) => (operands[0].layout.shape.clone(), Some(s.axis)),
            OpKind::LayerNorm(_) | OpKind::RmsNorm(_) => {
                let shape = operands[0].layout.shape.clone();
                let last = shape.len() - 1;
                (shape, Some(last))
            }
            _ => (self.array(op.results[0])?.1.to_vec(), None),
        };
        let wanted = Wanted { device, shape, reduce };
        let number = self.find_group(&operands, &wanted)?;
        let regs = operands.iter().map(|view| self.operand(number, view)).collect::<Result<Vec<_>>>()?;
        let dtype = match op.operands.first() {
            Some(&first) => self.array(first)?.0,
            None => bail!(internal, "an elementwise op without operands"),
        };
        let axis_size = wanted.reduce.map(|axis| wanted.shape[axis].clone());
        let rounds = self.body.properties(op).rounds_operands;
        let reg = emit(&mut self.groups[number], &op.kind, &regs, rounds, dtype, axis_size)?;
        self.finish_op(number, id, op.results[0], reg)
    }

    fn check_reduction(&mut self, id: OpId, kind: ReduceKind, size: &Dim) {
        // A size that only a run knows may be 0.
        if kind.check_size(size.as_static().unwrap_or(0)).is_err() {
            self.claim(id, Claim::NotEmpty(size.clone(), kind));
        }
    }

    /// Sizes as data: one store per size.
    fn sizes(&mut self, id: OpId, op: &Op, dims: &[Dim]) -> Result<()> {
        let ((dtype, shape), device) = (self.array(op.results[0])?, self.device(op.results[0])?);
        let mut group = Group::of_loop(device, &[]);
        let node = self.add_node(device, dtype, &shape, Source::Group(self.groups.len(), None));
        for (at, dim) in dims.iter().enumerate() {
            let reg = group.push(Instr::Size(dim.clone(), dtype));
            let place = Access { slot: node, dtype, offset: Dim::Static(at as i64), strides: vec![] };
            group.stores.push((place, reg));
        }
        self.groups.push(group);
        self.note(self.groups.len() - 1, id);
        self.define(op.results[0], node)
    }

    /// The elements of a view as a node of their own, for an op if there is one.
    pub(super) fn copy(&mut self, id: Option<OpId>, view: &View) -> Result<NodeId> {
        let Node { device, dtype, .. } = *self.node(view.node);
        let shape = view.layout.shape.clone();
        if let Some((group, axes)) = self.placeable(view)? {
            let node = self.add_node(device, dtype, &shape, Source::Group(group, None));
            self.place(view.node, node, &axes, &contiguous_strides(&shape)?, Dim::Static(0))?;
            id.into_iter().for_each(|id| self.note(group, id));
            return Ok(node);
        }
        let wanted = Wanted { device, shape: shape.clone(), reduce: None };
        let number = self.find_group(std::slice::from_ref(view), &wanted)?;
        let reg = self.operand(number, view)?;
        let node = self.result(number, reg, dtype, &shape);
        id.into_iter().for_each(|id| self.note(number, id));
        Ok(node)
    }

    /// The elements of a view as a whole node.
    pub(super) fn copied(&mut self, view: &View) -> Result<View> {
        let node = self.copy(None, view)?;
        Ok(View { node, layout: Layout::contiguous(&view.layout.shape)? })
    }

    /// Operands one after the other.
    pub(super) fn concat(&mut self, id: OpId, op: &Op, axis: usize) -> Result<()> {
        // What only another concat uses is joined there, in its final place.
        if self.inner.contains_key(&op.results[0]) {
            return Ok(());
        }
        let whole = self.joined(id, op, axis)?;
        self.define(op.results[0], whole)
    }

    /// The operands of an op one after the other, as the first result says. Those that only this op uses are computed
    /// directly in their place.
    pub(super) fn joined(&mut self, id: OpId, op: &Op, axis: usize) -> Result<NodeId> {
        let ((dtype, shape), device) = (self.array(op.results[0])?, self.device(op.results[0])?);
        let strides = contiguous_strides(&shape)?;
        let whole = self.add_node(device, dtype, &shape, Source::Group(0, None));
        self.join((id, op, axis), (whole, &strides, Dim::Static(0)))?;
        Ok(whole)
    }

    /// Puts the operands of an op one after the other along an axis, into a node with strides, from an offset on.
    fn join(
        &mut self,
        (id, op, axis): (OpId, &Op, usize),
        (whole, strides, first): (NodeId, &[Dim], Dim),
    ) -> Result<()> {
        let device = self.node(whole).device;
        let mut start = Dim::Static(0);
        for &value in &op.operands {
            let offset = first.add(&start.mul(&strides[axis])?)?;
            start = start.add(&self.array(value)?.1[axis])?;
            if let Some(&inner) = self.inner.get(&value) {
                let op = self.body.op(inner);
                let OpKind::Concat(concat) = &op.kind else {
                    bail!(internal, "a part of a concat is no concat")
                };
                self.join((inner, op, concat.axis), (whole, strides, offset))?;
                continue;
            }
            let view = self.view(value)?;
            let view = self.on(Some(id), view, device)?;
            let writer = match self.placeable(&view)? {
                Some((group, axes)) => {
                    self.place(view.node, whole, &axes, strides, offset)?;
                    group
                }
                None => {
                    let wanted = Wanted { device, shape: view.layout.shape.clone(), reduce: None };
                    let number = self.find_group(std::slice::from_ref(&view), &wanted)?;
                    let reg = self.operand(number, &view)?;
                    let part = Layout { shape: wanted.shape, strides: strides.to_vec(), offset };
                    let space = &self.groups[number].ending.shape;
                    let place = self.access(&View { node: whole, layout: part }, space);
                    self.groups[number].stores.push((place, reg));
                    number
                }
            };
            self.note(writer, id);
            if let Source::Group(last, _) = &mut self.nodes[whole.0 as usize].source {
                *last = writer.max(*last);
            }
        }
        Ok(())
    }

    /// The group of a node that can be computed in another's memory, and where in the view each axis of the node is:
    /// the view must be the whole node, and nothing else may see it.
    pub(super) fn placeable(&self, view: &View) -> Result<Option<(usize, Vec<ViewAxis>)>> {
        let node = self.node(view.node);
        let Source::Group(group, None) = node.source else { return Ok(None) };
        let alone = node.pending == 0 && !node.stored && node.home.is_none();
        let computed = self.groups[group].computed.contains_key(&view.node);
        if !alone || !computed || group < self.barrier() || !self.options.fuse {
            return Ok(None);
        }
        let Some(axes) = view_axes(&node.shape, &view.layout)? else { return Ok(None) };
        // Rows are written whole: scattering the results of a row program would cost more than a copy.
        let last = view.layout.shape.len().saturating_sub(1);
        let scatters = axes.last().is_some_and(|&(axis, _)| axis != last);
        Ok((!scatters || self.groups[group].ending.reduce.is_none()).then_some((group, axes)))
    }

    /// The layout of a node at a place in the memory of another.
    pub(super) fn placed_layout(
        &self,
        id: NodeId,
        axes: &[ViewAxis],
        strides: &[Dim],
        offset: Dim,
    ) -> Result<Layout> {
        let stride = |(axis, step): &ViewAxis| {
            strides.get(*axis).map_or(Ok(Dim::Static(0)), |stride| stride.mul(step))
        };
        let strides = axes.iter().map(stride).collect::<Result<_>>()?;
        Ok(Layout { shape: self.node(id).shape.clone(), strides, offset })
    }

    /// Computes a node at a place in the memory of another.
    pub(super) fn place(
        &mut self,
        id: NodeId,
        home: NodeId,
        axes: &[ViewAxis],
        strides: &[Dim],
        offset: Dim,
    ) -> Result<()> {
        let layout = self.placed_layout(id, axes, strides, offset)?;
        let node = &mut self.nodes[id.0 as usize];
        node.home = Some((home, layout));
        node.stored = true;
        self.nodes[home.0 as usize].stored = true;
        Ok(())
    }
}

/// The concats whose results only another concat uses, nested only so deep that a recursion can follow.
pub(super) fn inner_concats(body: &Body, uses: &[u32]) -> HashMap<ValueId, OpId> {
    const DEEPEST: usize = 16;
    let mut concats: HashMap<ValueId, (OpId, usize)> = HashMap::new();
    let mut inner = HashMap::new();
    for &id in &body.block.ops {
        let op = body.op(id);
        let OpKind::Concat(_) = op.kind else { continue };
        let mut depth = 0;
        for value in &op.operands {
            if let Some(&(part, deep)) = concats.get(value)
                && uses[value.0 as usize] == 1
                && deep < DEEPEST
            {
                inner.insert(*value, part);
                depth = depth.max(deep + 1);
            }
        }
        concats.insert(op.results[0], (id, depth));
    }
    inner
}

/// Where an axis of a node is in a view: the axis, and the stride along it.
pub(super) type ViewAxis = (usize, Dim);

/// Where each axis of a node is in a view, if that only reorders axes and merges neighbours.
fn view_axes(shape: &[Dim], view: &Layout) -> Result<Option<Vec<ViewAxis>>> {
    const ONE: Dim = Dim::Static(1);
    if view.offset != Dim::Static(0) {
        return Ok(None);
    }
    let natural = contiguous_strides(shape)?;
    let mut free: Vec<usize> = (0..view.shape.len()).filter(|&axis| view.shape[axis] != ONE).collect();
    let mut axes = vec![(view.shape.len().saturating_sub(1), Dim::Static(0)); shape.len()];
    // The axis of the view that is being assembled, and its size so far.
    let mut open: Option<ViewAxis> = None;
    for axis in (0..shape.len()).rev().filter(|&axis| shape[axis] != ONE) {
        let (along, step) = match open.take() {
            Some(open) => open,
            None => match free.iter().position(|&other| view.strides[other] == natural[axis]) {
                Some(at) => (free.remove(at), ONE),
                None => return Ok(None),
            },
        };
        let size = step.mul(&shape[axis])?;
        open = (size != view.shape[along]).then_some((along, size));
        axes[axis] = (along, step);
    }
    Ok((open.is_none() && free.is_empty()).then_some(axes))
}

/// Appends the instructions of an op to a group.
fn emit(
    group: &mut Group,
    kind: &OpKind,
    regs: &[Reg],
    rounds: bool,
    dtype: DType,
    axis_size: Option<Dim>,
) -> Result<Reg> {
    let size = axis_size.unwrap_or(Dim::Static(1));
    let mut e = Emit { group, dtype, size };
    let rounded;
    let regs = if rounds {
        rounded = regs.iter().map(|&reg| e.round(reg)).collect::<Vec<_>>();
        &rounded
    } else {
        regs
    };
    Ok(match kind {
        OpKind::Scalar(op @ ScalarOp::RealOp(_)) if !dtype.is_float() => {
            let wide = regs.iter().map(|&reg| e.cast(reg, DType::Float64)).collect::<Vec<_>>();
            let result = e.apply(*op, &wide);
            e.cast(result, dtype)
        }
        OpKind::Scalar(op) => e.apply(*op, regs),
        OpKind::Cast(c) => e.cast(regs[0], c.dtype),
        OpKind::Random(r) => e.group.push(Instr::Random(r.distribution, r.dtype, [regs[0], regs[1]])),
        OpKind::Where(_) => e.group.push(Instr::Select([regs[0], regs[1], regs[2]])),
        OpKind::Reduce(r) => match reduction(r.kind) {
            Some(reduction) => e.reduce(reduction, regs[0]),
            None => {
                let x = e.widen(regs[0]);
                let mean = e.mean(x)?;
                e.narrow(mean, dtype)
            }
        },
        OpKind::Softmax(s) => {
            let x = e.widen(regs[0]);
            let max = e.reduce(Reduction::Max, x);
            let shifted = e.apply(NumericOp::Sub, &[x, max]);
            let exp = e.apply(RealOp::Exp, &[shifted]);
            let sum = e.reduce(Reduction::Sum, exp);
            let result = if s.log {
                let log = e.apply(RealOp::Log, &[sum]);
                e.apply(NumericOp::Sub, &[shifted, log])
            } else {
                let one = e.number(1.0)?;
                let inverse = e.apply(RealOp::Div, &[one, sum]);
                e.apply(NumericOp::Mul, &[exp, inverse])
            };
            e.narrow(result, dtype)
        }
        OpKind::LayerNorm(n) => {
            let [x, gamma, beta] = [e.widen(regs[0]), e.widen_in(regs[1], dtype), e.widen_in(regs[2], dtype)];
            let mean = e.mean(x)?;
            let centered = e.apply(NumericOp::Sub, &[x, mean]);
            let scale = e.inverse_deviation(centered, n.epsilon)?;
            let normal = e.apply(NumericOp::Mul, &[centered, scale]);
            let scaled = e.apply(NumericOp::Mul, &[normal, gamma]);
            let result = e.apply(NumericOp::Add, &[scaled, beta]);
            e.narrow(result, dtype)
        }
        OpKind::RmsNorm(n) => {
            let [x, mut weight] = [e.widen(regs[0]), e.widen_in(regs[1], dtype)];
            let scale = e.inverse_deviation(x, n.epsilon)?;
            let mut normal = e.apply(NumericOp::Mul, &[x, scale]);
            if n.weight_offset != 0.0 {
                let offset = e.number(n.weight_offset)?;
                weight = e.apply(NumericOp::Add, &[weight, offset]);
            }
            if !n.multiply_before_cast {
                let wide = e.dtype;
                let rounded = e.narrow(normal, dtype);
                normal = e.cast_from(rounded, dtype, wide);
            }
            let result = e.apply(NumericOp::Mul, &[normal, weight]);
            e.narrow(result, dtype)
        }
        other => bail!(internal, "{} is not an elementwise op", other.name()),
    })
}

/// Appends the sum of registers in their order. Narrow floats are rounded before and after it, and not in between.
pub(super) fn emit_sum(group: &mut Group, regs: &[Reg], dtype: DType) -> Reg {
    let mut e = Emit { group, dtype, size: Dim::Static(1) };
    let mut sum = e.round(regs[0]);
    for &reg in &regs[1..] {
        let next = e.round(reg);
        sum = e.apply(NumericOp::Add, &[sum, next]);
    }
    e.round(sum)
}

/// The reduction for a kind; a mean is a sum and a division.
fn reduction(kind: ReduceKind) -> Option<Reduction> {
    match kind {
        ReduceKind::Sum => Some(Reduction::Sum),
        ReduceKind::Prod => Some(Reduction::Prod),
        ReduceKind::Max => Some(Reduction::Max),
        ReduceKind::Min => Some(Reduction::Min),
        ReduceKind::ArgMax => Some(Reduction::ArgMax),
        ReduceKind::ArgMin => Some(Reduction::ArgMin),
        ReduceKind::Mean => None,
    }
}

/// The dtype in which rows are computed: a float at least as wide as f32.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::Float64 => DType::Float64,
        dtype if dtype.is_float() => DType::Float32,
        _ => DType::Float64,
    }
}

/// Appends instructions in a dtype, for rows of a size.
struct Emit<'a> {
    group: &'a mut Group,
    dtype: DType,
    size: Dim,
}

impl Emit<'_> {
    fn apply(&mut self, op: impl Into<ScalarOp>, args: &[Reg]) -> Reg {
        let args = [args[0], *args.last().unwrap_or(&args[0])];
        self.group.push(Instr::Apply(op.into(), args))
    }

    fn reduce(&mut self, kind: Reduction, arg: Reg) -> Reg {
        self.group.push(Instr::Reduce(kind, arg))
    }

    fn cast(&mut self, arg: Reg, dtype: DType) -> Reg {
        self.group.push(Instr::Cast(arg, dtype))
    }

    /// Rounds a computed value to its narrow float dtype.
    fn round(&mut self, arg: Reg) -> Reg {
        let narrow = self.dtype.is_float() && self.dtype.size_in_bytes() < 4;
        match self.group.ending.code[arg.0 as usize] {
            Instr::Apply(..) | Instr::Reduce(..) | Instr::Product(_) | Instr::Select(_) if narrow => {
                self.cast(arg, self.dtype)
            }
            _ => arg,
        }
    }

    fn cast_from(&mut self, arg: Reg, from: DType, to: DType) -> Reg {
        if from == to { arg } else { self.cast(arg, to) }
    }

    /// An operand converted to the wide dtype of the computation.
    fn widen(&mut self, arg: Reg) -> Reg {
        let from = self.dtype;
        self.dtype = wide(from);
        self.cast_from(arg, from, self.dtype)
    }

    fn widen_in(&mut self, arg: Reg, from: DType) -> Reg {
        self.cast_from(arg, from, wide(from))
    }

    /// The result converted to the dtype of the op.
    fn narrow(&mut self, arg: Reg, to: DType) -> Reg {
        self.cast_from(arg, self.dtype, to)
    }

    fn number(&mut self, value: f64) -> Result<Reg> {
        let bits = dispatch!(self.dtype, T => {
            let element: T = Number::Float(value).to_element()?;
            let mut bits = [0; 8];
            bits[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&element));
            u64::from_le_bytes(bits)
        });
        Ok(self.group.push(Instr::Literal(Literal { dtype: self.dtype, bits })))
    }

    /// The mean of a row.
    fn mean(&mut self, arg: Reg) -> Result<Reg> {
        let sum = self.reduce(Reduction::Sum, arg);
        let size = self.group.push(Instr::Size(self.size.clone(), self.dtype));
        Ok(self.apply(RealOp::Div, &[sum, size]))
    }

    /// `1 / sqrt(mean(x * x) + epsilon)` of a row.
    fn inverse_deviation(&mut self, arg: Reg, epsilon: f64) -> Result<Reg> {
        let square = self.apply(NumericOp::Mul, &[arg, arg]);
        let variance = self.mean(square)?;
        let epsilon = self.number(epsilon)?;
        let raised = self.apply(NumericOp::Add, &[variance, epsilon]);
        Ok(self.apply(RealOp::Rsqrt, &[raised]))
    }
}
