//! Gathers.

use std::fmt::{self, Display, Formatter};

use super::walk::one;
use super::{Ending, no_ending};
use crate::Result;
use crate::kernel::{Access, Loop, Map, Role, Slot, Walk};

/// Slices picked by index: `out[o, p, i] = source[o, indices[p], i]`. Negative indices count from the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gather<D, M = Slot> {
    /// The product of the sizes before the axis.
    pub outer: D,
    /// The size of the axis.
    pub size: D,
    /// The number of indices.
    pub picks: D,
    /// The product of the sizes after the axis.
    pub inner: D,
    /// The axis in the user's graph, for messages.
    pub axis: usize,
    /// Over `[outer, size, inner]`.
    pub source: Access<D, M>,
    /// Over `[picks]`; any integer dtype.
    pub indices: Access<D, M>,
    /// Over `[outer, picks, inner]`.
    pub out: Access<D, M>,
}

no_ending!(Gather);

impl<D, M> Gather<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Gather<E, N>> {
        Ok(Gather {
            outer: to.size(&self.outer)?,
            size: to.size(&self.size)?,
            picks: to.size(&self.picks)?,
            inner: to.size(&self.inner)?,
            axis: self.axis,
            source: to.access(&self.source)?,
            indices: to.access(&self.indices)?,
            out: to.access(&self.out)?,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        let Gather { outer, size, picks, inner, .. } = self;
        see(Walk::new(Role::Operand, &self.source, &[one(outer), one(size), one(inner)]));
        see(Walk::new(Role::Operand, &self.indices, &[one(picks)]));
        see(Walk::new(Role::Result, &self.out, &[one(outer), one(picks), one(inner)]));
    }
}

impl<D: Display> Gather<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} by {} into {} size {}", self.source, self.indices, self.out, self.size)
    }
}
