//! Values on other devices than the one that computed them.

use max_core::kernel::Access;
use max_core::{DeviceRef, Result, Shape};
use max_graph::OpId;

use super::group::{Group, Work};
use super::{Lowering, NodeId, Source, View};
use crate::layout::Layout;

impl Lowering<'_> {
    /// The elements of a view on a device: the view itself if it is already there.
    pub(super) fn on(&mut self, id: Option<OpId>, view: View, device: DeviceRef) -> Result<View> {
        if self.node(view.node).device == device {
            return Ok(view);
        }
        let (all, node) = (self.shows_all(&view)?, self.node(view.node));
        let there = match &node.source {
            // These have no location before a program is loaded, so no step is needed to move them.
            Source::Constant(_) | Source::Index => Some(node.source.clone()),
            Source::Weight(_) if all => Some(node.source.clone()),
            _ => None,
        };
        if let Source::Group(number, _) = node.source
            && self.groups[number].has_only_sizes()
        {
            return Ok(View { node: self.sizes_on(number, view.node, device), ..view });
        }
        if let Some(source) = there {
            let (dtype, shape) = (node.dtype, node.shape.clone());
            let node = self.add_node(device, dtype, &shape, source);
            return Ok(View { node, ..view });
        }
        if all {
            return Ok(View { node: self.transfer(id, view.node, device), ..view });
        }
        let whole = self.copy(id, &view)?;
        let layout = Layout::contiguous(&view.layout.shape)?;
        Ok(View { node: self.transfer(id, whole, device), layout })
    }

    /// Whether a node is no larger than a view of it. Then it is transferred as it is, and viewed there in the same way.
    pub(super) fn shows_all(&self, view: &View) -> Result<bool> {
        let elements = |shape: &[_]| Shape::from(shape).num_elements();
        let (own, seen) = (elements(&self.node(view.node).shape)?, elements(&view.layout.shape)?);
        Ok(match (own.as_static(), seen.as_static()) {
            (Some(own), Some(seen)) => own <= seen,
            _ => own == seen,
        })
    }

    /// Sizes as data are written on the device that needs them.
    fn sizes_on(&mut self, number: usize, from: NodeId, device: DeviceRef) -> NodeId {
        let (dtype, shape) = (self.node(from).dtype, self.node(from).shape.clone());
        let to = self.add_node(device, dtype, &shape, Source::Group(self.groups.len(), None));
        let source = &self.groups[number];
        let mut group = Group::of_loop(device, &[]);
        (group.ending.code, group.ops) = (source.ending.code.clone(), source.ops.clone());
        group.stores =
            source.stores.iter().map(|(place, reg)| (Access { slot: to, ..place.clone() }, *reg)).collect();
        self.groups.push(group);
        to
    }

    /// A node with the same elements on a device.
    fn transfer(&mut self, id: Option<OpId>, from: NodeId, device: DeviceRef) -> NodeId {
        let (number, node) = (self.groups.len(), self.node(from));
        let (dtype, shape) = (node.dtype, node.shape.clone());
        let to = self.add_node(device, dtype, &shape, Source::Group(number, None));
        self.groups.push(Group::new(device, Work::Transfer { from, to }, &[]));
        self.read(number, from);
        self.nodes[to.0 as usize].stored = true;
        id.into_iter().for_each(|id| self.note(number, id));
        to
    }
}
