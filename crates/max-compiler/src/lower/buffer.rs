//! Buffers. Each write makes a new version of a buffer: a node of its own, with the same memory. A load is a view of the
//! version at its place, so it copies nothing, unless it is still needed when the next version is written.
//!
//! Groups run in the order of their numbers, so a write goes to a group that is no lower than the readers of the version it
//! replaces, and higher than the writer of that version. The same group may read and write only element by element.

use std::collections::HashMap;

use max_core::kernel::{Access, Put, PutBound};
use max_core::{Dim, Result, Type, bail};
use max_graph::ir::Op;
use max_graph::ops::buffer::BufferStoreSlice;
use max_graph::{OpId, ValueId};

use super::emit::ViewAxis;
use super::group::{Group, Wanted, Work};
use super::{Lowering, NodeId, Source, View};
use crate::layout::{Layout, contiguous_strides};
use crate::program::Returned;

/// The buffers of a body.
#[derive(Default)]
pub(super) struct Buffers {
    states: HashMap<ValueId, State>,
    /// The buffer of each current version.
    of: HashMap<NodeId, ValueId>,
}

/// A buffer at the current point.
struct State {
    /// Its memory.
    memory: NodeId,
    version: NodeId,
    /// The group that wrote the version, if one did.
    writer: Option<usize>,
    /// The values that are views of the version.
    views: Vec<ValueId>,
}

impl Buffers {
    /// Remembers that a value is a view of a node, if that is a version of a buffer.
    pub(super) fn note_view(&mut self, value: ValueId, node: NodeId) {
        if let Some(state) = self.of.get(&node).and_then(|buffer| self.states.get_mut(buffer)) {
            state.views.push(value);
        }
    }

    fn add(&mut self, buffer: ValueId, memory: NodeId) {
        self.states.insert(buffer, State { memory, version: memory, writer: None, views: Vec::new() });
        self.of.insert(memory, buffer);
    }
}

impl Lowering<'_> {
    pub(super) fn create_buffer(&mut self, value: ValueId) -> Result<()> {
        let ((dtype, shape), device) = (self.array(value)?, self.device(value)?);
        let memory = self.add_node(device, dtype, &shape, Source::Created(None));
        self.buffers.add(value, memory);
        Ok(())
    }

    fn state(&mut self, buffer: ValueId) -> Result<&mut State> {
        if !self.buffers.states.contains_key(&buffer) {
            let Some(input) = self.body.block.arguments.iter().position(|&v| v == buffer) else {
                bail!(internal, "buffer %{} has no definition", buffer.0);
            };
            let ((dtype, shape), device) = (self.array(buffer)?, self.device(buffer)?);
            let memory = self.add_node(device, dtype, &shape, Source::Input(input));
            self.buffers.add(buffer, memory);
        }
        match self.buffers.states.get_mut(&buffer) {
            Some(state) => Ok(state),
            None => bail!(internal, "buffer %{} has no state", buffer.0),
        }
    }

    /// Counts a use of a value that is not read.
    pub(super) fn pass(&mut self, value: ValueId) -> Result<()> {
        match self.body.type_of(value) {
            Type::Tensor(_) => self.view(value).map(|_| ()),
            _ => {
                self.uses[value.0 as usize] -= 1;
                Ok(())
            }
        }
    }

    /// The current version of a buffer.
    pub(super) fn buffer_node(&mut self, buffer: ValueId) -> Result<NodeId> {
        Ok(self.state(buffer)?.version)
    }

    pub(super) fn load(&mut self, op: &Op) -> Result<()> {
        self.pass(op.operands[0])?;
        let version = self.buffer_node(op.operands[0])?;
        self.define(op.results[0], version)
    }

    /// Copies what is still needed of a version that is about to be replaced.
    pub(super) fn before_write(&mut self, buffer: ValueId) -> Result<()> {
        let views = std::mem::take(&mut self.state(buffer)?.views);
        let mut whole = None;
        for value in views {
            let left = self.uses[value.0 as usize];
            let Some(view) = self.views[value.0 as usize].clone().filter(|_| left > 0) else { continue };
            self.nodes[view.node.0 as usize].pending -= left;
            let all = self.is_whole(&view)?;
            let copy = match whole.filter(|_| all) {
                Some(copy) => copy,
                None => self.copy(None, &view)?,
            };
            if all {
                whole = Some(copy);
            }
            let layout = Layout::contiguous(&view.layout.shape)?;
            self.set_view(value, copy, layout);
        }
        Ok(())
    }

    /// Copies a node that is the contents of one of these buffers: what writes them must not change it.
    pub(super) fn part_from(&mut self, buffers: &[ValueId], node: NodeId) -> Result<NodeId> {
        let memory = self.memory_of(node);
        for &buffer in buffers {
            if self.state(buffer)?.memory == memory {
                let layout = Layout::contiguous(&self.node(node).shape)?;
                return self.copy(None, &View { node, layout });
            }
        }
        Ok(node)
    }

    /// The next version of a buffer, written by a group.
    pub(super) fn new_version(&mut self, buffer: ValueId, group: usize) -> Result<NodeId> {
        let memory = self.state(buffer)?.memory;
        let super::Node { device, dtype, shape, .. } = self.node(memory);
        let (device, dtype, shape) = (*device, *dtype, shape.clone());
        let version = self.add_node(device, dtype, &shape, Source::Group(group, None));
        let node = &mut self.nodes[version.0 as usize];
        (node.buffer, node.stored) = (Some(memory), true);
        let state = self.state(buffer)?;
        (state.version, state.writer) = (version, Some(group));
        self.buffers.of.insert(version, buffer);
        Ok(version)
    }

    pub(super) fn store(&mut self, id: OpId, op: &Op) -> Result<()> {
        let shape = self.array(op.operands[0])?.1;
        let layout = Layout::contiguous(&shape)?;
        self.store_to(id, op, layout)
    }

    pub(super) fn store_slice(&mut self, id: OpId, op: &Op, slice: &BufferStoreSlice) -> Result<()> {
        let (shape, sizes) = (self.array(op.operands[0])?.1, self.array(op.operands[1])?.1);
        let mut layout = Layout::contiguous(&shape)?;
        for (axis, &step) in slice.steps.iter().enumerate().filter(|(axis, _)| !slice.axes.contains(axis)) {
            self.slice(id, &mut layout, axis, (&slice.starts[axis], &sizes[axis], step))?;
        }
        if slice.axes.is_empty() { self.store_to(id, op, layout) } else { self.put(id, op, slice, layout) }
    }

    /// Stores a tensor where a layout of the buffer says: the group that computes it does so, or else one that copies it.
    fn store_to(&mut self, id: OpId, op: &Op, layout: Layout) -> Result<()> {
        let &[buffer, source] = &op.operands[..] else { bail!(internal, "a store takes two operands") };
        self.pass(buffer)?;
        let mut view = self.view(source)?;
        self.before_write(buffer)?;
        if let Some((group, axes)) = self.placeable(&view)?
            && self.may_write(buffer, group, &self.placed(group, view.node, &axes, &layout)?)?
        {
            let version = self.new_version(buffer, group)?;
            self.place(view.node, version, &axes, &layout.strides, layout.offset)?;
            self.note(group, id);
            return Ok(());
        }
        let device = self.device(buffer)?;
        let wanted = Wanted { device, shape: view.layout.shape.clone(), reduce: None };
        let mut number = self.find_group(std::slice::from_ref(&view), &wanted)?;
        if !self.may_write(buffer, number, &self.walk(number, &layout))? {
            number = self.groups.len();
            self.groups.push(Group::of_loop(device, &wanted.shape));
        }
        let (memory, walk) = (self.state(buffer)?.memory, self.walk(number, &layout));
        if self.memory_of(view.node) == memory && self.walk(number, &view.layout) != walk {
            // It would overwrite what it still reads.
            view = self.copied(&view)?;
            number = self.groups.len();
            self.groups.push(Group::of_loop(device, &wanted.shape));
        }
        let reg = self.operand(number, &view)?;
        let version = self.new_version(buffer, number)?;
        let place = self.access(&View { node: version, layout }, &self.groups[number].ending.shape);
        self.groups[number].stores.push((place, reg));
        self.note(number, id);
        Ok(())
    }

    /// The view, or a copy if it is one of a buffer that is about to be written.
    pub(super) fn apart_from(&mut self, buffer: ValueId, view: View) -> Result<View> {
        let memory = self.state(buffer)?.memory;
        if self.memory_of(view.node) == memory { self.copied(&view) } else { Ok(view) }
    }

    /// The group that wrote a buffer last, if one did, and whether what it wrote has been read.
    pub(super) fn last_write(&mut self, buffer: ValueId) -> Result<Option<(usize, bool)>> {
        let State { version, writer, ref views, .. } = *self.state(buffer)?;
        let has_views = !views.is_empty();
        let is_seen = has_views || self.readers.contains_key(&version);
        Ok(writer.map(|writer| (writer, is_seen)))
    }

    /// The node whose memory a node has.
    fn memory_of(&self, node: NodeId) -> NodeId {
        self.node(node).buffer.unwrap_or(node)
    }

    /// How a group walks a layout.
    fn walk(&self, group: usize, layout: &Layout) -> (Dim, Vec<Dim>) {
        (layout.offset.clone(), layout.strides_in(&self.groups[group].ending.shape))
    }

    /// How a group walks a node that it stores at a place in another's memory.
    fn placed(
        &self,
        group: usize,
        node: NodeId,
        axes: &[ViewAxis],
        home: &Layout,
    ) -> Result<(Dim, Vec<Dim>)> {
        let layout = self.placed_layout(node, axes, &home.strides, home.offset.clone())?;
        Ok(self.walk(group, &layout))
    }

    /// Whether a group may write the next version of a buffer with this walk.
    fn may_write(&mut self, buffer: ValueId, group: usize, walk: &(Dim, Vec<Dim>)) -> Result<bool> {
        let State { memory, version, writer, .. } = *self.state(buffer)?;
        let read = self.readers.get(&version).copied();
        if writer.is_some_and(|writer| writer >= group) || read.is_some_and(|reader| reader > group) {
            return Ok(false);
        }
        let Group { work, ending, .. } = &self.groups[group];
        let reads = match work {
            Work::Kernel(kernel) => kernel.reads().any(|&node| self.memory_of(node) == memory),
            _ => true,
        };
        let in_step = |access: &Access<Dim, NodeId>| {
            self.memory_of(access.slot) != memory || (&access.offset, &access.strides) == (&walk.0, &walk.1)
        };
        Ok(!reads && ending.accesses.iter().all(in_step))
    }

    /// A store whose place is only known when it runs.
    fn put(&mut self, id: OpId, op: &Op, slice: &BufferStoreSlice, layout: Layout) -> Result<()> {
        let [buffer, source, bounds @ ..] = &op.operands[..] else {
            bail!(internal, "a store takes two operands or more")
        };
        self.pass(*buffer)?;
        let device = self.device(*buffer)?;
        let view = self.stored(*source, device)?;
        let view = self.apart_from(*buffer, view)?;
        let bounds = bounds.iter().map(|&bound| self.whole(id, bound, device)).collect::<Result<Vec<_>>>()?;
        self.before_write(*buffer)?;
        let shape = self.array(*buffer)?.1;
        let natural = contiguous_strides(&shape)?;
        let (starts, stops) = bounds.split_at(slice.axes.len());
        let scalar = |node: NodeId| {
            self.access(
                &View { node, layout: Layout { shape: vec![], strides: vec![], offset: Dim::Static(0) } },
                &[],
            )
        };
        let placed = slice.axes.iter().zip(starts).map(|(&axis, &start)| PutBound {
            axis,
            size: shape[axis].clone(),
            step: slice.steps[axis],
            stride: natural[axis].clone(),
            start: scalar(start),
            stop: slice.stops.iter().position(|&own| own == axis).map(|at| scalar(stops[at])),
        });
        let bounds = placed.collect();
        let mut strides = layout.strides.clone();
        for &axis in &slice.axes {
            strides[axis] = strides[axis].mul(&Dim::Static(slice.steps[axis]))?;
        }
        let number = self.groups.len();
        let version = self.new_version(*buffer, number)?;
        let dtype = self.node(version).dtype;
        let kernel = Put {
            shape: view.layout.shape.clone(),
            sizes: shape.to_vec(),
            source: self.access(&view, &view.layout.shape),
            out: Access { slot: version, dtype, offset: layout.offset.clone(), strides },
            whole: self.access(&View { node: version, layout: Layout::contiguous(&shape)? }, &shape),
            bounds,
        };
        self.add_group(Group::new(device, Work::Kernel(kernel.into()), &[]));
        self.note(number, id);
        Ok(())
    }

    /// Returns a buffer to the caller.
    pub(super) fn return_buffer(&mut self, output: usize, buffer: ValueId) -> Result<()> {
        let memory = self.state(buffer)?.memory;
        let returned = match &mut self.nodes[memory.0 as usize].source {
            Source::Input(input) => Returned::Input(*input),
            Source::Created(known) => Returned::Output(*known.get_or_insert(output)),
            _ => bail!(internal, "a buffer that is neither given nor created"),
        };
        self.returned.push((output, returned));
        Ok(())
    }
}
