//! From groups to a program: dead instructions are removed, nodes get slots, groups become steps, slots get lifetimes.

use std::collections::HashMap;

use max_core::kernel::{Access, Attention, Conv2d, Gather, Instr, Kernel, Loop, Matmul, Reg, Slot};
use max_core::{DeviceRef, Dim, Result, Shape, TensorType, bail};
use max_graph::Body;

use super::group::{Group, Use, Work};
use super::together::{launched, together};
use super::{Node, NodeId, Source};
use crate::program::{self, Claim, Fact, Lifetime, Origin, Program, Segment, SlotInfo, Step};

pub(super) struct Parts {
    pub(super) nodes: Vec<Node>,
    pub(super) groups: Vec<Group>,
    pub(super) weights: Vec<(String, TensorType)>,
    pub(super) segments: Vec<(Vec<Fact>, usize)>,
    /// Whether groups may share a step.
    pub(super) fuse: bool,
}

pub(super) fn finish(parts: Parts, source: Body) -> Result<Program> {
    let types = |values: &[max_graph::ValueId]| source.types_of(values).cloned().collect();
    let inputs = types(&source.block.arguments);
    let outputs = types(source.block.results.as_deref().unwrap_or_default());
    let mut slots = Slots { nodes: &parts.nodes, of: vec![None; parts.nodes.len()], infos: Vec::new() };
    let mut steps = Vec::new();
    // The step of each group, to divide steps into segments.
    let mut first_step = Vec::with_capacity(parts.groups.len() + 1);
    for groups in together(&parts) {
        first_step.push(steps.len());
        let (mut works, mut ops) = (Vec::new(), Vec::new());
        for group in groups.iter().map(|&number| &parts.groups[number]) {
            if let Some(work) = slots.work(group)? {
                works.push(work);
                ops.extend(&group.ops);
            }
        }
        if let (Some(work), Some(&first)) = (launched(works)?, groups.first()) {
            steps.push(Step { work, device: parts.groups[first].device, ops });
        }
    }
    first_step.push(steps.len());
    let mut segments: Vec<Segment> = Vec::new();
    for (mut facts, group) in parts.segments {
        for fact in &mut facts {
            slots.fact(&mut fact.claim)?;
        }
        let start = first_step[group];
        if let Some(last) = segments.last_mut() {
            last.steps.end = start;
        }
        segments.push(Segment { facts, steps: start..steps.len() });
    }
    let (weights, slots) = (parts.weights, slots.infos);
    let devices = devices(&slots, &steps);
    let mut program = Program { source, inputs, outputs, weights, devices, slots, steps, segments };
    if cfg!(debug_assertions) {
        program.verify()?;
    }
    lifetimes(&mut program);
    Ok(program)
}

/// The devices of slots and steps, each once.
fn devices(slots: &[SlotInfo], steps: &[Step]) -> Vec<DeviceRef> {
    let used = slots.iter().map(|slot| slot.device).chain(steps.iter().map(|step| step.device));
    let mut devices: Vec<DeviceRef> = used.collect();
    devices.sort_unstable();
    devices.dedup();
    if devices.is_empty() { vec![DeviceRef::CPU] } else { devices }
}

/// Assigns slots to nodes on demand.
struct Slots<'a> {
    nodes: &'a [Node],
    of: Vec<Option<Slot>>,
    infos: Vec<SlotInfo>,
}

impl Slots<'_> {
    fn slot(&mut self, id: NodeId) -> Slot {
        if let Some(slot) = self.of[id.0 as usize] {
            return slot;
        }
        let node = &self.nodes[id.0 as usize];
        let origin = match &node.source {
            Source::Input(input) => Origin::Input(*input),
            Source::Constant(bytes) => Origin::Constant(bytes.clone()),
            Source::Weight(weight) => Origin::Weight(*weight),
            Source::Index => return Slot::NONE,
            Source::Group(_, Some(output)) => Origin::Output(*output),
            Source::Group(_, None) => {
                Origin::Temporary(Lifetime { first: usize::MAX, last: 0, reuses: None })
            }
        };
        let slot = Slot(self.infos.len() as u32);
        let (device, dtype, shape) = (node.device, node.dtype, Shape::from(node.shape.as_slice()));
        self.infos.push(SlotInfo { origin, device, dtype, shape });
        self.of[id.0 as usize] = Some(slot);
        slot
    }

    fn access(&mut self, wanted: &Use) -> Access<Dim> {
        Access {
            slot: self.slot(wanted.node),
            dtype: self.nodes[wanted.node.0 as usize].dtype,
            offset: wanted.offset.clone(),
            strides: wanted.strides.clone(),
        }
    }

    /// Where a group stores a node: in its own memory, or at its place in another's.
    fn store(&mut self, group: &Group, id: NodeId) -> Result<Access<Dim>> {
        let node = &self.nodes[id.0 as usize];
        let own;
        let (home, layout) = match &node.home {
            Some((home, layout)) => (*home, layout),
            None => {
                own = crate::layout::Layout::contiguous(&node.shape)?;
                (id, &own)
            }
        };
        let mut strides = layout.strides_in(&group.space);
        // What does not vary along the reduced axis is stored once.
        if let Some(axis) = group.reduce
            && node.shape[axis] == Dim::Static(1)
        {
            strides[axis] = Dim::Static(0);
        }
        Ok(self.access(&Use { node: home, offset: layout.offset.clone(), strides }))
    }

    fn fact(&mut self, claim: &mut Claim) -> Result<()> {
        let accesses: Vec<&mut Access<Dim>> = match claim {
            Claim::Bounds { start, stop, .. } => start.iter_mut().chain(stop).collect(),
            Claim::Sizes { values, .. } => vec![values],
            _ => vec![],
        };
        for access in accesses {
            access.slot = self.slot(NodeId(access.slot.0));
        }
        Ok(())
    }

    /// The work of a group; `None` if nobody needs it.
    fn work(&mut self, group: &Group) -> Result<Option<program::Work>> {
        let kernel = match &group.work {
            Work::Print(label, node) => {
                let slot = node.map(|node| self.slot(node));
                return Ok(Some(program::Work::Print(label.clone(), slot)));
            }
            Work::Transfer { from, to } => {
                let (from, to) = (self.slot(*from), self.slot(*to));
                return Ok(Some(program::Work::Transfer { from, to }));
            }
            Work::Gather { axis, sizes: [outer, size, picks, inner], source, indices, result } => {
                let shape = [outer.clone(), picks.clone(), inner.clone()];
                let strides = crate::layout::contiguous_strides(&shape)?;
                let out = Use { node: *result, offset: Dim::Static(0), strides };
                Kernel::Gather(Gather {
                    outer: outer.clone(),
                    size: size.clone(),
                    picks: picks.clone(),
                    inner: inner.clone(),
                    axis: *axis,
                    source: self.access(source),
                    indices: self.access(indices),
                    out: self.access(&out),
                })
            }
            work => {
                let Some(ending) = self.ending(group)? else { return Ok(None) };
                self.kernel(work, group, ending)?
            }
        };
        Ok(Some(program::Work::Kernel(Box::new(kernel))))
    }

    fn kernel(&mut self, work: &Work, group: &Group, epilogue: Loop<Dim>) -> Result<Kernel<Dim>> {
        Ok(match work {
            Work::Matmul { k, lhs, rhs } => {
                let [batch @ .., m, n] = &group.space[..] else {
                    bail!(internal, "a matmul of rank below 2")
                };
                Kernel::Matmul(Matmul {
                    batch: batch.to_vec(),
                    m: m.clone(),
                    n: n.clone(),
                    k: k.clone(),
                    lhs: self.access(lhs),
                    rhs: self.access(rhs),
                    epilogue,
                })
            }
            Work::Attention { op, keys, depth, query, key, value, mask } => {
                let [batch @ .., queries, width] = &group.space[..] else {
                    bail!(internal, "an attention of rank below 2")
                };
                Kernel::Attention(Attention {
                    batch: batch.to_vec(),
                    queries: queries.clone(),
                    keys: keys.clone(),
                    depth: depth.clone(),
                    width: width.clone(),
                    query: self.access(query),
                    key: self.access(key),
                    value: self.access(value),
                    mask: mask.as_ref().map(|mask| self.access(mask)),
                    scale: op.scale,
                    causal: op.causal,
                    window: op.window,
                    epilogue,
                })
            }
            Work::Conv2d { op, input, input_shape, filter, filter_shape } => {
                let (input_axes, filter_axes) = (op.input_axes(), op.filter_axes()?);
                let pick = |from: &[Dim], axes: [usize; 4]| axes.map(|axis| from[axis].clone());
                let [_, height, width, channels] = pick(input_shape, input_axes);
                let [r, s, _, _] = pick(filter_shape, filter_axes);
                Kernel::Conv2d(Conv2d {
                    out: pick(&group.space, input_axes),
                    input_size: [height, width, channels],
                    filter_size: [r, s],
                    stride: [op.stride[0], op.stride[1]],
                    dilation: [op.dilation[0], op.dilation[1]],
                    padding: [op.padding[0], op.padding[2]],
                    groups: op.groups,
                    input: permuted(self.access(input), &input_axes),
                    filter: permuted(self.access(filter), &filter_axes),
                    epilogue: Loop {
                        shape: pick(&epilogue.shape, input_axes).to_vec(),
                        accesses: epilogue.accesses.into_iter().map(|a| permuted(a, &input_axes)).collect(),
                        ..epilogue
                    },
                })
            }
            Work::Loop | Work::Gather { .. } | Work::Print(..) | Work::Transfer { .. } => {
                Kernel::Loop(epilogue)
            }
        })
    }

    /// The loop of a group with its stores, without unneeded instructions; `None` if it stores nothing.
    fn ending(&mut self, group: &Group) -> Result<Option<Loop<Dim>>> {
        let mut stores: Vec<(Access<Dim>, Reg)> = Vec::new();
        for &(node, reg) in &group.regs {
            if self.nodes[node.0 as usize].stored {
                stores.push((self.store(group, node)?, reg));
            }
        }
        for (place, reg) in &group.stores {
            if self.nodes[place.node.0 as usize].stored {
                stores.push((self.access(place), *reg));
            }
        }
        if stores.is_empty() {
            return Ok(None);
        }
        let mut needed = vec![false; group.code.len()];
        stores.iter().for_each(|(_, reg)| needed[reg.0 as usize] = true);
        for at in (0..group.code.len()).rev().filter(|&at| needed[at]).collect::<Vec<_>>() {
            mark(&group.code, at, &mut needed);
        }
        let (mut accesses, mut code) = (Vec::new(), Vec::new());
        let mut renamed = vec![Reg(0); group.code.len()];
        let mut access_of = vec![None; group.uses.len()];
        for (at, instr) in group.code.iter().enumerate().filter(|(at, _)| needed[*at]) {
            let name = |reg: &Reg| renamed[reg.0 as usize];
            let instr = match instr {
                Instr::Load(number) | Instr::Index(number) => {
                    let known = &mut access_of[*number as usize];
                    let number = *known.get_or_insert_with(|| {
                        accesses.push(self.access(&group.uses[*number as usize]));
                        accesses.len() as u32 - 1
                    });
                    if let Instr::Load(_) = instr { Instr::Load(number) } else { Instr::Index(number) }
                }
                Instr::Apply(op, args) => Instr::Apply(*op, args.each_ref().map(name)),
                Instr::Select(args) => Instr::Select(args.each_ref().map(name)),
                Instr::Cast(arg, dtype) => Instr::Cast(name(arg), *dtype),
                Instr::Random(distribution, dtype, args) => {
                    Instr::Random(*distribution, *dtype, args.each_ref().map(name))
                }
                Instr::Reduce(kind, arg) => Instr::Reduce(*kind, name(arg)),
                other => other.clone(),
            };
            renamed[at] = Reg(code.len() as u32);
            code.push(instr);
        }
        let loads = accesses.len();
        for (access, reg) in stores {
            code.push(Instr::Store(accesses.len() as u32, renamed[reg.0 as usize]));
            accesses.push(access);
        }
        // What is stored once per row is stored for empty rows too, so they remain rows without a reduction.
        let by_row = |&axis: &usize| {
            accesses[loads..].iter().any(|access: &Access<Dim>| access.strides[axis] == Dim::Static(0))
        };
        let reduces = code.iter().any(|instr| matches!(instr, Instr::Reduce(..)));
        let reduce = group.reduce.filter(|axis| reduces || by_row(axis));
        Ok(Some(Loop { shape: group.space.clone(), reduce, accesses, code }))
    }
}

/// Marks an instruction and everything it needs.
fn mark(code: &[Instr<Dim>], at: usize, needed: &mut [bool]) {
    let mut open = vec![at];
    while let Some(at) = open.pop() {
        needed[at] = true;
        let mut need = |reg: &Reg| {
            if !needed[reg.0 as usize] {
                open.push(reg.0 as usize);
            }
        };
        match &code[at] {
            Instr::Apply(_, args) | Instr::Random(_, _, args) => args.iter().for_each(&mut need),
            Instr::Select(args) => args.iter().for_each(&mut need),
            Instr::Cast(arg, _) | Instr::Reduce(_, arg) | Instr::Store(_, arg) => need(arg),
            Instr::Load(_) | Instr::Index(_) | Instr::Product(_) | Instr::Literal(_) | Instr::Size(..) => {}
        }
    }
}

fn permuted(access: Access<Dim>, axes: &[usize; 4]) -> Access<Dim> {
    let strides = axes.iter().map(|&axis| access.strides[axis].clone()).collect();
    Access { strides, ..access }
}

/// When each temporary is in use, and which ones take over the memory of another that dies at the step that writes them.
fn lifetimes(program: &mut Program) {
    let mut seen: Vec<Option<(usize, usize)>> = vec![None; program.slots.len()];
    let mut touch = |slot: Slot, step: usize| {
        let (first, last) = seen[slot.0 as usize].get_or_insert((step, step));
        (*first, *last) = (step.min(*first), step.max(*last));
    };
    for (number, step) in program.steps.iter().enumerate() {
        step.reads().into_iter().chain(step.writes()).for_each(|slot| touch(slot, number));
    }
    for segment in &program.segments {
        // Facts read after the last step before them, so that step must not overwrite in place what they read.
        let start = segment.steps.start;
        segment.facts.iter().flat_map(|fact| fact.claim.reads()).for_each(|slot| touch(slot, start));
    }
    // A temporary that leaves its segment lives to the end: segments have separate arenas.
    let end = program.steps.len();
    for (info, seen) in program.slots.iter_mut().zip(&seen) {
        if let (Origin::Temporary(lifetime), Some((first, last))) = (&mut info.origin, seen) {
            let leaves = program.segments.iter().any(|s| s.steps.contains(first) && !s.steps.contains(last));
            *lifetime = Lifetime { first: *first, last: if leaves { end } else { *last }, reuses: None };
        }
    }
    let mut taken = vec![false; program.slots.len()];
    for number in 0..program.steps.len() {
        for (from, to) in in_place(program, number) {
            if !std::mem::replace(&mut taken[from.0 as usize], true)
                && let Origin::Temporary(lifetime) = &mut program.slots[to.0 as usize].origin
                && lifetime.reuses.is_none()
            {
                lifetime.reuses = Some(from);
            }
        }
    }
}

/// Pairs of slots that a step reads for the last time and writes for the first time, through equal accesses.
fn in_place(program: &Program, number: usize) -> Vec<(Slot, Slot)> {
    let program::Work::Kernel(kernel) = &program.steps[number].work else { return vec![] };
    let lifetime = |slot: Slot| match &program.slots[slot.0 as usize].origin {
        Origin::Temporary(lifetime) => Some(lifetime),
        _ => None,
    };
    let reads = kernel.reads();
    let mut stores: HashMap<Slot, usize> = HashMap::new();
    kernel.writes().iter().for_each(|access| *stores.entry(access.slot).or_default() += 1);
    let mut pairs: Vec<(Slot, Slot)> = Vec::new();
    let endings = kernel.endings();
    for (ending, written) in endings.iter().flat_map(|ending| ending.stored().map(move |it| (ending, it))) {
        let whole = |slot: Slot| &program.slots[slot.0 as usize].shape;
        let born = lifetime(written.slot).is_some_and(|l| l.first == number);
        if !born || stores.get(&written.slot) != Some(&1) {
            continue;
        }
        let fits = |read: &&&Access<Dim>| {
            lifetime(read.slot).is_some_and(|l| l.last == number && l.first < number)
                && whole(read.slot) == whole(written.slot)
                && read.dtype.size_in_bytes() == written.dtype.size_in_bytes()
                && reads.iter().filter(|other| other.slot == read.slot).count() == 1
                && (read.offset == written.offset && read.strides == written.strides)
                && !pairs.iter().any(|(from, _)| *from == read.slot)
                && ending.loaded().any(|access| std::ptr::eq(access, **read))
        };
        if let Some(read) = reads.iter().find(fits) {
            pairs.push((read.slot, written.slot));
        }
    }
    pairs
}
