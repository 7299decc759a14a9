//! Groups of ops that become one step, and which ops may join them.

use std::collections::HashMap;

use max_core::kernel::{Access, Instr, Kernel, Literal, Loop, Reg};
use max_core::{DType, DeviceRef, Dim, Result};
use max_graph::{OpId, ValueId};

use super::{Layout, Lowering, NodeId, Source, View};
use crate::program;

/// Limits of a group: beyond them registers spill out of the L1 cache and preparing it takes long.
const MOST_INSTRUCTIONS: usize = 160;
const MOST_ACCESSES: usize = 32;

/// What a group does: its kernel names nodes, and gets its final loop when the group is complete.
pub(super) type Work = program::Work<Kernel<Dim, NodeId>, NodeId>;

/// A future step.
#[derive(Debug)]
pub(super) struct Group {
    /// The device it runs on; for a transfer, the destination.
    pub(super) device: DeviceRef,
    pub(super) work: Work,
    /// The final loop of its kernel so far, without stores.
    pub(super) ending: Loop<Dim, NodeId>,
    /// Where the kernel has the axes of the loop, if not in the same order.
    pub(super) axes: Option<[usize; 4]>,
    /// The nodes it computes, and the nodes that stores put into other memory.
    pub(super) regs: Vec<(NodeId, Reg)>,
    /// The register of each node it computes.
    pub(super) computed: HashMap<NodeId, Reg>,
    /// Stores at explicit places: the copies of a concat, and sizes as data.
    pub(super) stores: Vec<(Access<Dim, NodeId>, Reg)>,
    pub(super) ops: Vec<OpId>,
}

impl Group {
    /// A group that does some work and then runs a loop over a space.
    pub(super) fn new(device: DeviceRef, work: Work, space: &[Dim]) -> Group {
        Group {
            device,
            work,
            ending: Loop::empty(space.to_vec()),
            axes: None,
            regs: Vec::new(),
            computed: HashMap::new(),
            stores: Vec::new(),
            ops: Vec::new(),
        }
    }

    /// A group that only runs a loop over a space.
    pub(super) fn of_loop(device: DeviceRef, space: &[Dim]) -> Group {
        Group::new(device, Work::Kernel(Loop::empty(vec![]).into()), space)
    }

    /// Whether its loop is everything.
    fn is_loop(&self) -> bool {
        matches!(self.work, Work::Kernel(Kernel::Loop(_)))
    }

    /// Whether it ends in a loop.
    fn ends_in_loop(&self) -> bool {
        matches!(&self.work, Work::Kernel(kernel) if !kernel.endings().is_empty())
    }

    pub(super) fn push(&mut self, instr: Instr<Dim>) -> Reg {
        self.ending.code.push(instr);
        Reg(self.ending.code.len() as u32 - 1)
    }

    pub(super) fn compute(&mut self, node: NodeId, reg: Reg) {
        self.regs.push((node, reg));
        self.computed.insert(node, reg);
    }

    /// The shape of values that do not vary along the reduced axis.
    pub(super) fn row_shape(&self, axis: usize) -> Vec<Dim> {
        let mut shape = self.ending.shape.clone();
        shape[axis] = Dim::Static(1);
        shape
    }

    /// Whether it only writes sizes as data.
    pub(super) fn has_only_sizes(&self) -> bool {
        self.is_loop()
            && !self.stores.is_empty()
            && self.regs.is_empty()
            && self.ending.code.iter().all(|instr| matches!(instr, Instr::Size(..)))
    }

    /// Whether a result fits its space, as one value per element or per row.
    fn has_room_for(&self, wanted: &Wanted) -> bool {
        if self.device != wanted.device {
            return false;
        }
        let Loop { shape, reduce, accesses, code } = &self.ending;
        if code.len() >= MOST_INSTRUCTIONS || accesses.len() >= MOST_ACCESSES {
            return false;
        }
        match wanted.reduce {
            Some(axis) => self.is_loop() && *shape == wanted.shape && reduce.is_none_or(|own| own == axis),
            None => {
                let row = |axis| self.row_shape(axis) == wanted.shape;
                self.ends_in_loop() && (*shape == wanted.shape || reduce.is_some_and(row))
            }
        }
    }
}

/// What an op needs of the group it joins: a device, a space, and an axis to reduce.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) device: DeviceRef,
    pub(super) shape: Vec<Dim>,
    pub(super) reduce: Option<usize>,
}

impl Lowering<'_> {
    /// The group that computes a node, if any.
    pub(super) fn group_of(&self, node: NodeId) -> Option<usize> {
        match self.node(node).source {
            Source::Group(group, _) => Some(group),
            _ => None,
        }
    }

    /// The group for an op with these operands: an existing one, or a new one.
    pub(super) fn find_group(&mut self, operands: &[View], wanted: &Wanted) -> Result<usize> {
        if self.options.fuse {
            let above = operands.iter().filter_map(|view| self.group_of(view.node)).max();
            let least = above.unwrap_or(0).max(self.barrier());
            let readers = operands.iter().filter_map(|view| self.readers.get(&view.node).copied()).max();
            for candidate in [above, readers].into_iter().flatten() {
                if candidate >= least && self.joins(candidate, operands, wanted)? {
                    if wanted.reduce.is_some() {
                        self.groups[candidate].ending.reduce = wanted.reduce;
                    }
                    return Ok(candidate);
                }
            }
        }
        let mut group = Group::of_loop(wanted.device, &wanted.shape);
        group.ending.reduce = wanted.reduce;
        self.groups.push(group);
        Ok(self.groups.len() - 1)
    }

    fn joins(&self, number: usize, operands: &[View], wanted: &Wanted) -> Result<bool> {
        let group = &self.groups[number];
        if !group.has_room_for(wanted) {
            return Ok(false);
        }
        for view in operands {
            if group.computed.contains_key(&view.node) && !self.is_register(group, view)? {
                return Ok(false);
            }
            // The group writes it at explicit places, so it is not available before the group has run.
            if self.group_of(view.node) == Some(number) && !group.computed.contains_key(&view.node) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a view of a node that a group computes is that node, element for element of the space.
    fn is_register(&self, group: &Group, view: &View) -> Result<bool> {
        let space = &group.ending.shape;
        if view.layout.offset != Dim::Static(0) || view.layout.shape.len() > space.len() {
            return Ok(false);
        }
        let node = Layout::contiguous(&self.node(view.node).shape)?;
        let (seen, own) = (view.layout.strides_in(space), node.strides_in(space));
        let same = |axis: usize| space[axis] == Dim::Static(1) || seen[axis] == own[axis];
        Ok((0..space.len()).all(same))
    }

    /// The register that holds an operand in a group, loaded if necessary.
    pub(super) fn operand(&mut self, number: usize, view: &View) -> Result<Reg> {
        if let Some(&reg) = self.groups[number].computed.get(&view.node) {
            return Ok(reg);
        }
        if let Some(literal) = self.literal(view) {
            return Ok(self.groups[number].push(Instr::Literal(literal)));
        }
        let positions = matches!(self.node(view.node).source, Source::Index);
        let wanted = self.access(view, &self.groups[number].ending.shape);
        let group = &mut self.groups[number];
        let accesses = &mut group.ending.accesses;
        let at = accesses.iter().position(|own| *own == wanted).unwrap_or(accesses.len());
        if at == accesses.len() {
            accesses.push(wanted);
        }
        let get = if positions { Instr::Index(at as u32) } else { Instr::Load(at as u32) };
        let reg = match group.ending.code.iter().position(|instr| *instr == get) {
            Some(reg) => Reg(reg as u32),
            None => group.push(get),
        };
        if !positions {
            self.read(number, view.node);
        }
        Ok(reg)
    }

    /// Records that a group reads the memory of a node.
    pub(super) fn read(&mut self, number: usize, node: NodeId) {
        self.nodes[node.0 as usize].stored = true;
        let reader = self.readers.entry(node).or_insert(number);
        *reader = number.max(*reader);
    }

    /// How a space accesses a view that broadcasts to it.
    pub(super) fn access(&self, view: &View, space: &[Dim]) -> Access<Dim, NodeId> {
        Access {
            slot: view.node,
            dtype: self.node(view.node).dtype,
            offset: view.layout.offset.clone(),
            strides: view.layout.strides_in(space),
        }
    }

    /// A one-element constant.
    fn literal(&self, view: &View) -> Option<Literal> {
        let node = self.node(view.node);
        match &node.source {
            Source::Constant(bytes) if bytes.len() == node.dtype.size_in_bytes() => {
                let mut bits = [0; 8];
                bits[..bytes.len()].copy_from_slice(bytes);
                Some(Literal { dtype: node.dtype, bits: u64::from_le_bytes(bits) })
            }
            _ => None,
        }
    }

    /// A node for a value that a group has in a register.
    pub(super) fn result(&mut self, number: usize, reg: Reg, dtype: DType, shape: &[Dim]) -> NodeId {
        let device = self.groups[number].device;
        let node = self.add_node(device, dtype, shape, Source::Group(number, None));
        self.groups[number].compute(node, reg);
        node
    }

    /// Defines the result of an op as a register of its group.
    pub(super) fn finish_op(&mut self, number: usize, op: OpId, value: ValueId, reg: Reg) -> Result<()> {
        let (dtype, shape) = self.array(value)?;
        let node = self.result(number, reg, dtype, &shape);
        self.note(number, op);
        self.define(value, node)
    }

    /// Records that a group works for an op.
    pub(super) fn note(&mut self, number: usize, op: OpId) {
        let ops = &mut self.groups[number].ops;
        if ops.last() != Some(&op) {
            ops.push(op);
        }
    }
}
