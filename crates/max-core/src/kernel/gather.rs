//! Gathers.

use std::fmt::{self, Display, Formatter};

use super::{Ending, no_ending};
use crate::Result;
use crate::kernel::{Access, Indexed, Loop, Map, Role, Slot, Walk};

/// Slices picked by index: `out[o, p, i]` is the element that pick `p` at `(o, i)` means. The indices are the same for all
/// of `inner`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gather<D, M = Slot> {
    /// Which elements are picked.
    pub space: Indexed<D, M>,
    /// What they are picked from, over `[outer, sizes.., inner]`.
    pub source: Access<D, M>,
    /// Over `[outer, picks, inner]`.
    pub out: Access<D, M>,
}

no_ending!(Gather);

impl<D, M> Gather<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Gather<E, N>> {
        Ok(Gather {
            space: self.space.map(to)?,
            source: to.access(&self.source)?,
            out: to.access(&self.out)?,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        see(self.space.array(Role::Operand, &self.source));
        see(self.space.index());
        see(self.space.picked(Role::Result, &self.out));
    }
}

impl<D: Display> Gather<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {} into {} size", self.source, self.space.indices, self.out)?;
        self.space.sizes.iter().try_for_each(|size| write!(f, " {size}"))?;
        writeln!(f)
    }
}
