//! Collectives. NCCL runs those that it has, between GPUs; the others are computed once and transferred to each device.

use max_core::collective::nccl_number;
use max_core::{Collective, DType, DeviceRef, Dim, Result, Shape};
use max_graph::OpId;
use max_graph::ir::Op;
use max_graph::ops::collective::Collect;

use super::emit::emit_sum;
use super::group::{Group, Wanted, Work};
use super::{Lowering, NodeId, Source, View};
use crate::layout::Layout;

impl Lowering<'_> {
    pub(super) fn collective(&mut self, id: OpId, op: &Op, collect: &Collect) -> Result<()> {
        let (dtype, shape) = self.array(op.operands[0])?;
        if self.options.nccl && collect.devices.iter().all(|device| device.is_gpu()) {
            let count = Dim::Static(collect.devices.len() as i64);
            let has = match collect.kind {
                Collective::AllGather => {
                    op.operands.iter().all(|&v| self.array(v).is_ok_and(|(_, own)| own == shape))
                }
                Collective::AllReduceSum => nccl_number(dtype).is_some(),
                Collective::ReduceScatterSum => {
                    let dim = &shape[collect.axis];
                    nccl_number(dtype).is_some() && dim.floor_div(&count)?.mul(&count)? == *dim
                }
                Collective::Broadcast => true,
            };
            if has {
                return self.by_nccl(id, op, collect, dtype, &shape);
            }
        }
        match collect.kind {
            Collective::AllGather => {
                let node = self.joined(id, op, collect.axis)?;
                let layout = Layout::contiguous(&self.node(node).shape)?;
                self.spread(id, op, View { node, layout })
            }
            Collective::AllReduceSum => {
                let views = op.operands.iter().map(|&value| self.view(value)).collect::<Result<_>>()?;
                let sum = self.sum(id, views, collect.devices[0])?;
                self.spread(id, op, sum)
            }
            Collective::ReduceScatterSum => {
                let views = op.operands.iter().map(|&value| self.view(value)).collect::<Result<Vec<_>>>()?;
                let mut start = Dim::Static(0);
                for (rank, size) in collect.parts(&shape[collect.axis])?.into_iter().enumerate() {
                    let mut parts = views.clone();
                    for part in &mut parts {
                        part.layout.slice(collect.axis, &start, &size, 1)?;
                        self.keep(part.node);
                    }
                    start = start.add(&size)?;
                    let View { node, layout } = self.sum(id, parts, collect.devices[rank])?;
                    self.set_view(op.results[rank], node, layout);
                }
                Ok(())
            }
            Collective::Broadcast => {
                let view = self.view(op.operands[0])?;
                self.spread(id, op, view)
            }
        }
    }

    /// Notes that a node is read more than once, so that it is not computed in the memory of another.
    fn keep(&mut self, node: NodeId) {
        self.nodes[node.0 as usize].stored = true;
    }

    /// Makes every result of an op a view of the same elements, on its own device.
    fn spread(&mut self, id: OpId, op: &Op, mut view: View) -> Result<()> {
        if op.results.len() > 1 {
            // A part would be copied once per device.
            if !self.shows_all(&view)? {
                let layout = Layout::contiguous(&view.layout.shape)?;
                view = View { node: self.copy(Some(id), &view)?, layout };
            }
            self.keep(view.node);
        }
        for &result in &op.results {
            let device = self.device(result)?;
            let View { node, layout } = self.on(Some(id), view.clone(), device)?;
            self.set_view(result, node, layout);
        }
        Ok(())
    }

    /// The sum of views, in their order, on a device.
    fn sum(&mut self, id: OpId, views: Vec<View>, device: DeviceRef) -> Result<View> {
        let here = views.into_iter().map(|view| self.on(Some(id), view, device));
        let views = here.collect::<Result<Vec<_>>>()?;
        if let [alone] = &views[..] {
            return Ok(alone.clone());
        }
        let (dtype, shape) = (self.node(views[0].node).dtype, views[0].layout.shape.clone());
        let number = self.find_group(&views, &Wanted { device, shape: shape.clone(), reduce: None })?;
        let regs = views.iter().map(|view| self.operand(number, view)).collect::<Result<Vec<_>>>()?;
        let reg = emit_sum(&mut self.groups[number], &regs, dtype);
        let node = self.result(number, reg, dtype, &shape);
        self.note(number, id);
        Ok(View { node, layout: Layout::contiguous(&shape)? })
    }

    /// A step that NCCL runs, on nodes that have what is exchanged in the order of the devices.
    fn by_nccl(&mut self, id: OpId, op: &Op, collect: &Collect, dtype: DType, shape: &Shape) -> Result<()> {
        let (axis, count) = (collect.axis, Dim::Static(collect.devices.len() as i64));
        // The axes with the devices in front, and the shape of what one device has.
        let in_front: Vec<usize> =
            std::iter::once(axis).chain((0..=shape.rank()).filter(|&a| a != axis)).collect();
        let mut from = Vec::with_capacity(op.operands.len());
        for &value in &op.operands {
            let device = self.device(value)?;
            from.push(match collect.kind {
                Collective::ReduceScatterSum if axis > 0 => {
                    let mut cut = shape.to_vec();
                    cut.splice(axis..=axis, [count.clone(), shape[axis].floor_div(&count)?]);
                    let view = self.view(value)?;
                    let view = self.reshaped(id, view, &cut)?;
                    self.copy(Some(id), &View { layout: view.layout.permute(&in_front), ..view })?
                }
                _ => self.whole(id, value, device)?,
            });
        }
        let number = self.groups.len();
        let mut to = Vec::with_capacity(op.results.len());
        for &value in &op.results {
            let ((_, mut own), device) = (self.array(value)?, self.device(value)?);
            if collect.kind == Collective::AllGather {
                own = std::iter::once(&count).chain(shape.iter()).cloned().collect();
            }
            let node = self.add_node(device, dtype, &own, Source::Group(number, None));
            self.keep(node);
            to.push(node);
        }
        let work = Work::Collective { kind: collect.kind, from: from.clone(), to: to.clone() };
        self.groups.push(Group::new(collect.devices[0], work, &[]));
        from.into_iter().for_each(|node| self.read(number, node));
        self.note(number, id);
        for (&value, node) in op.results.iter().zip(to) {
            let mut view = View { node, layout: Layout::contiguous(&self.node(node).shape)? };
            if collect.kind == Collective::AllGather {
                // The devices go back to where their tensors are joined.
                let mut back: Vec<usize> = (1..=shape.rank()).collect();
                back.insert(axis, 0);
                view.layout = view.layout.permute(&back);
                view = self.reshaped(id, view, &self.array(value)?.1)?;
            }
            self.set_view(value, view.node, view.layout);
        }
        Ok(())
    }
}
