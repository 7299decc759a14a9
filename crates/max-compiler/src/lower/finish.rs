//! From groups to a program: dead instructions are removed, nodes get slots, groups become steps, slots get lifetimes,
//! and equal kernels become one.

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use max_core::kernel::{Access, Instr, Kernel, Loop, Map, Reg, Role, Slot, Walk};
use max_core::{DeviceRef, Dim, Result, Shape, TensorType};
use max_graph::Body;

use super::group::{Group, Work};
use super::heavy::permuted;
use super::together::{launched, together};
use super::{Node, NodeId, Source};
use crate::program::{self, Fact, Launch, Lifetime, Origin, Program, Returned, Segment, SlotInfo, Step};

pub(super) struct Parts {
    pub(super) nodes: Vec<Node>,
    pub(super) groups: Vec<Group>,
    pub(super) weights: Vec<(String, TensorType)>,
    pub(super) segments: Vec<(Vec<Fact<NodeId>>, usize)>,
    /// Whether groups may share a step.
    pub(super) fuse: bool,
    /// No group moves across one of these.
    pub(super) fences: Vec<usize>,
    pub(super) programs: Vec<Arc<Program>>,
    pub(super) returned: Vec<(usize, Returned)>,
}

pub(super) fn finish(parts: Parts, source: Body) -> Result<Program> {
    let types = |values: &[max_graph::ValueId]| source.types_of(values).cloned().collect();
    let inputs = types(&source.block.arguments);
    let outputs = types(source.block.results.as_deref().unwrap_or_default());
    let mut slots = Slots { nodes: &parts.nodes, of: vec![None; parts.nodes.len()], infos: Vec::new() };
    let (mut steps, mut kernels) = (Vec::new(), Kernels::default());
    // The pairs of slots that each step could compute in place.
    let mut in_place = Vec::new();
    // The step of each group, to divide steps into segments.
    let mut first_step = Vec::with_capacity(parts.groups.len() + 1);
    for numbers in together(&parts) {
        first_step.push(steps.len());
        let groups: Vec<&Group> = numbers.iter().map(|&number| &parts.groups[number]).collect();
        let Some(first) = groups.first() else { continue };
        let (device, ops) = (first.device, groups.iter().flat_map(|group| &group.ops).copied().collect());
        let (work, reads, writes, pairs) = match &first.work {
            Work::Print(label, node) => {
                let slot = node.map(|node| slots.slot(node));
                (program::Work::Print(label.clone(), slot), slot.into_iter().collect(), vec![], vec![])
            }
            &Work::Transfer { from, to } => {
                let (from, to) = (slots.slot(from), slots.slot(to));
                (program::Work::Transfer { from, to }, vec![from], vec![to], vec![])
            }
            Work::Custom(custom) => {
                let custom = custom.map(&mut |&node| slots.slot(node));
                let (reads, writes) = (custom.operands.clone(), custom.writes().copied().collect());
                (program::Work::Custom(custom), reads, writes, vec![])
            }
            Work::Nested(nested) => {
                let nested = nested.map(&mut |&node| slots.slot(node));
                let (reads, writes) = (nested.reads().copied().collect(), nested.writes().copied().collect());
                (program::Work::Nested(nested), reads, writes, vec![])
            }
            Work::Collective { kind, from, to } => {
                let [from, to] =
                    [from, to].map(|nodes| nodes.iter().map(|&n| slots.slot(n)).collect::<Vec<_>>());
                let work = program::Work::Collective { kind: *kind, from: from.clone(), to: to.clone() };
                (work, from, to, vec![])
            }
            Work::Kernel(_) => {
                let kernels_of = groups.iter().filter_map(|group| slots.kernel(group).transpose());
                let Some(kernel) = launched(kernels_of.collect::<Result<_>>()?)? else { continue };
                let walks = slots.walks(&kernel);
                let of = |writes: bool| walks.iter().filter(move |(walk, _)| walk.role.writes() == writes);
                let [reads, writes] = [false, true].map(|writes| of(writes).map(|(_, slot)| *slot).collect());
                let pairs = in_place_pairs(&walks);
                (program::Work::Kernel(kernels.share(device, &kernel, &mut slots)?), reads, writes, pairs)
            }
        };
        steps.push(Step { work, device, reads, writes, ops });
        in_place.push(pairs);
    }
    first_step.push(steps.len());
    let mut segments: Vec<Segment> = Vec::new();
    for (facts, group) in parts.segments {
        let mut settled = Vec::with_capacity(facts.len());
        for Fact { claim, op } in facts {
            settled.push(Fact { claim: claim.map(&mut |&node| Ok(slots.slot(node)))?, op });
        }
        let start = first_step[group];
        if let Some(last) = segments.last_mut() {
            last.steps.end = start;
        }
        segments.push(Segment { facts: settled, steps: start..steps.len() });
    }
    let (weights, slots, kernels) = (parts.weights, slots.infos, kernels.all);
    let devices = devices(&slots, &steps);
    let rounding = Vec::new();
    let (regions, returned) = (parts.programs, parts.returned);
    let mut program = Program {
        source,
        rounding,
        inputs,
        outputs,
        weights,
        devices,
        slots,
        kernels,
        steps,
        segments,
        regions,
        returned,
    };
    if cfg!(debug_assertions) {
        program.verify()?;
    }
    lifetimes(&mut program, &in_place);
    Ok(program)
}

/// A quick hash: kernels are long, and equal hashes are compared.
struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_i64(&mut self, word: i64) {
        self.write_u64(word.cast_unsigned());
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_usize(word.cast_unsigned());
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The kernels of a program, each once.
#[derive(Default)]
struct Kernels {
    all: Vec<(DeviceRef, Kernel<Dim>)>,
    /// By hash.
    known: HashMap<u64, Vec<usize>>,
}

impl Kernels {
    /// A kernel with its memory numbered in the order of first use, and that memory.
    fn share(
        &mut self,
        device: DeviceRef,
        kernel: &Kernel<Dim, NodeId>,
        slots: &mut Slots,
    ) -> Result<Launch> {
        let (mut own, mut numbers) = (Vec::new(), BTreeMap::new());
        let mut number = |&node: &NodeId| {
            let slot = slots.slot(node);
            if slot == Slot::NONE {
                return Ok(Slot::NONE);
            }
            Ok(*numbers.entry(slot.0).or_insert_with(|| {
                own.push(slot);
                Slot(own.len() as u32 - 1)
            }))
        };
        let kernel =
            kernel.map(&mut Map { size: &mut |size: &Dim| Ok(size.clone()), memory: &mut number })?;
        let kernel = (device, kernel);
        let mut state = Mixed(0);
        kernel.hash(&mut state);
        let same = self.known.entry(state.finish()).or_default();
        let found = same.iter().copied().find(|&known| self.all[known] == kernel);
        let kernel = found.unwrap_or_else(|| {
            same.push(self.all.len());
            self.all.push(kernel);
            self.all.len() - 1
        });
        Ok(Launch { kernel, slots: own })
    }
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
        if let Some(buffer) = node.buffer {
            let slot = self.slot(buffer);
            self.of[id.0 as usize] = Some(slot);
            return slot;
        }
        let origin = match &node.source {
            Source::Input(input) => Origin::Input(*input),
            Source::Constant(bytes) => Origin::Constant(bytes.clone()),
            Source::Weight(weight) => Origin::Weight(*weight),
            Source::Index => return Slot::NONE,
            Source::Group(_, Some(output)) | Source::Created(Some(output)) => Origin::Output(*output),
            Source::Group(_, None) | Source::Created(None) => {
                Origin::Temporary(Lifetime { first: usize::MAX, last: 0, reuses: None })
            }
        };
        let slot = Slot(self.infos.len() as u32);
        let (device, dtype, shape) = (node.device, node.dtype, Shape::from(node.shape.as_slice()));
        self.infos.push(SlotInfo { origin, device, dtype, shape });
        self.of[id.0 as usize] = Some(slot);
        slot
    }

    /// Where a group stores a node: in its own memory, or at its place in another's.
    fn store(&self, group: &Group, id: NodeId) -> Result<Access<Dim, NodeId>> {
        let node = &self.nodes[id.0 as usize];
        let own;
        let (home, layout) = match &node.home {
            Some((home, layout)) => (*home, layout),
            None => {
                own = crate::layout::Layout::contiguous(&node.shape)?;
                (id, &own)
            }
        };
        let mut strides = layout.strides_in(&group.ending.shape);
        // What does not vary along the reduced axis is stored once.
        if let Some(axis) = group.ending.reduce
            && node.shape[axis] == Dim::Static(1)
        {
            strides[axis] = Dim::Static(0);
        }
        let dtype = self.nodes[home.0 as usize].dtype;
        Ok(Access { slot: home, dtype, offset: layout.offset.clone(), strides })
    }

    /// The kernel of a group with its final loop; `None` if nobody needs it.
    fn kernel(&self, group: &Group) -> Result<Option<Kernel<Dim, NodeId>>> {
        let Work::Kernel(kernel) = &group.work else { return Ok(None) };
        let mut kernel = kernel.clone();
        if !kernel.endings().is_empty() {
            let Some(ending) = self.ending(group)? else { return Ok(None) };
            kernel.set_ending(match group.axes {
                None => ending,
                Some(axes) => Loop {
                    shape: axes.map(|axis| ending.shape[axis].clone()).to_vec(),
                    accesses: ending.accesses.into_iter().map(|access| permuted(access, axes)).collect(),
                    ..ending
                },
            });
        }
        Ok(Some(kernel))
    }

    /// The ways in which a kernel walks memory, with its slots. What the final loop stores and loads is numbered first.
    fn walks<'k>(&mut self, kernel: &'k Kernel<Dim, NodeId>) -> Vec<(Walk<'k, Dim, NodeId>, Slot)> {
        let mut walks = kernel.walks();
        walks.sort_by_key(|walk| match walk.role {
            Role::Store => 0,
            Role::Load => 1,
            Role::Operand | Role::Result => 2,
        });
        let with_slot = |walk: Walk<'k, Dim, NodeId>| {
            let slot = self.slot(walk.access.slot);
            (walk, slot)
        };
        walks.into_iter().map(with_slot).collect()
    }

    /// The loop of a group with its stores, without unneeded instructions; `None` if it stores nothing.
    fn ending(&self, group: &Group) -> Result<Option<Loop<Dim, NodeId>>> {
        let mut stores: Vec<(Access<Dim, NodeId>, Reg)> = Vec::new();
        for &(node, reg) in &group.regs {
            if self.nodes[node.0 as usize].stored {
                stores.push((self.store(group, node)?, reg));
            }
        }
        for (place, reg) in &group.stores {
            if self.nodes[place.slot.0 as usize].stored {
                stores.push((place.clone(), *reg));
            }
        }
        if stores.is_empty() {
            return Ok(None);
        }
        let from = &group.ending;
        let mut needed = vec![false; from.code.len()];
        stores.iter().for_each(|(_, reg)| needed[reg.0 as usize] = true);
        for at in (0..from.code.len()).rev() {
            if needed[at] {
                from.code[at].args().iter().for_each(|reg| needed[reg.0 as usize] = true);
            }
        }
        let mut ending = Loop::empty(from.shape.clone());
        let mut renamed = vec![Reg(0); from.code.len()];
        let mut access_of = vec![None; from.accesses.len()];
        for (at, instr) in from.code.iter().enumerate().filter(|(at, _)| needed[*at]) {
            let mut instr = instr.clone();
            instr.args_mut().iter_mut().for_each(|reg| *reg = renamed[reg.0 as usize]);
            if let Some(number) = instr.access_mut() {
                let known = &mut access_of[*number as usize];
                *number = *known.get_or_insert_with(|| {
                    ending.accesses.push(from.accesses[*number as usize].clone());
                    ending.accesses.len() as u32 - 1
                });
            }
            renamed[at] = Reg(ending.code.len() as u32);
            ending.code.push(instr);
        }
        let loads = ending.accesses.len();
        for (access, reg) in stores {
            ending.code.push(Instr::Store(ending.accesses.len() as u32, renamed[reg.0 as usize]));
            ending.accesses.push(access);
        }
        // What is stored once per row is stored for empty rows too, so they remain rows without a reduction.
        let by_row = |&axis: &usize| {
            ending.accesses[loads..].iter().any(|access| access.strides[axis] == Dim::Static(0))
        };
        let reduces = ending.code.iter().any(|instr| matches!(instr, Instr::Reduce(..)));
        ending.reduce = from.reduce.filter(|axis| reduces || by_row(axis));
        Ok(Some(ending))
    }
}

/// When each temporary is in use, and which ones take over the memory of another that dies at the step that writes them.
fn lifetimes(program: &mut Program, in_place: &[Vec<(Slot, Slot)>]) {
    let mut seen: Vec<Option<(usize, usize)>> = vec![None; program.slots.len()];
    let mut touch = |slot: Slot, step: usize| {
        let (first, last) = seen[slot.0 as usize].get_or_insert((step, step));
        (*first, *last) = (step.min(*first), step.max(*last));
    };
    for (number, step) in program.steps.iter().enumerate() {
        step.slots().for_each(|&slot| touch(slot, number));
    }
    for segment in &program.segments {
        // Facts read after the last step before them, so that step must not overwrite in place what they read.
        let start = segment.steps.start;
        segment.facts.iter().flat_map(|fact| fact.claim.reads()).for_each(|&slot| touch(slot, start));
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
    for (number, pairs) in in_place.iter().enumerate() {
        for &(from, to) in pairs {
            let slots = &program.slots;
            let lifetime = |slot: Slot| match &slots[slot.0 as usize].origin {
                Origin::Temporary(lifetime) => Some(lifetime),
                _ => None,
            };
            let dies = lifetime(from).is_some_and(|l| l.last == number && l.first < number);
            let born = lifetime(to).is_some_and(|l| l.first == number && l.reuses.is_none());
            let fits = slots[from.0 as usize].shape == slots[to.0 as usize].shape;
            if dies
                && born
                && fits
                && !std::mem::replace(&mut taken[from.0 as usize], true)
                && let Origin::Temporary(lifetime) = &mut program.slots[to.0 as usize].origin
            {
                lifetime.reuses = Some(from);
            }
        }
    }
}

/// How many slots that a kernel reads are compared with each one that it writes.
const CHOICES: usize = 100;

/// Pairs of slots that the final loop of a kernel reads and writes, each through one access only, and both through equal
/// ones: the second may take over the memory of the first.
fn in_place_pairs(walks: &[(Walk<Dim, NodeId>, Slot)]) -> Vec<(Slot, Slot)> {
    let mut uses: BTreeMap<u32, usize> = BTreeMap::new();
    walks.iter().for_each(|(_, slot)| *uses.entry(slot.0).or_default() += 1);
    let of =
        |role| walks.iter().filter(move |(walk, _)| walk.role == role).filter(|(_, slot)| uses[&slot.0] == 1);
    let in_step = |a: &Walk<Dim, NodeId>, b: &Walk<Dim, NodeId>| {
        let (read, written) = (a.access, b.access);
        a.ending == b.ending
            && read.dtype.size_in_bytes() == written.dtype.size_in_bytes()
            && read.offset == written.offset
            && read.strides == written.strides
    };
    let loads: Vec<_> = of(Role::Load).take(CHOICES).collect();
    let pairs = of(Role::Store).flat_map(|(written, to)| {
        let fitting = loads.iter().filter(|(read, _)| in_step(read, written));
        fitting.map(|(_, from)| (*from, *to))
    });
    pairs.collect()
}
