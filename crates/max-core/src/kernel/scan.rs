//! Scans.

use std::fmt::{self, Display, Formatter};

use super::walk::one;
use super::{Ending, no_ending};
use crate::Result;
use crate::kernel::{Access, Loop, Map, Role, Slot, Walk};

/// Running sums along an axis: `out[o, s, i]` is the sum of `source[o, ..=s, i]`. Floats are summed in float64 and rounded
/// once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scan<D, M = Slot> {
    /// The product of the sizes before the axis.
    pub outer: D,
    /// The size of the axis.
    pub size: D,
    /// The product of the sizes after the axis.
    pub inner: D,
    /// Whether a sum excludes its own element.
    pub exclusive: bool,
    /// Whether sums run from the end of the axis.
    pub reverse: bool,
    /// Over `[outer, size, inner]`.
    pub source: Access<D, M>,
    /// Over `[outer, size, inner]`.
    pub out: Access<D, M>,
}

no_ending!(Scan);

impl<D, M> Scan<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Scan<E, N>> {
        Ok(Scan {
            outer: to.size(&self.outer)?,
            size: to.size(&self.size)?,
            inner: to.size(&self.inner)?,
            exclusive: self.exclusive,
            reverse: self.reverse,
            source: to.access(&self.source)?,
            out: to.access(&self.out)?,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        let shape = [one(&self.outer), one(&self.size), one(&self.inner)];
        see(Walk::new(Role::Operand, &self.source, &shape));
        see(Walk::new(Role::Result, &self.out, &shape));
    }
}

impl<D: Display> Scan<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let exclusive = if self.exclusive { " exclusive" } else { "" };
        let reverse = if self.reverse { " reverse" } else { "" };
        writeln!(f, "{} into {} size {}{exclusive}{reverse}", self.source, self.out, self.size)
    }
}
