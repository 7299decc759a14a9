//! Sorts.

use std::fmt::{self, Display, Formatter};

use super::walk::one;
use super::{Ending, no_ending};
use crate::Result;
use crate::kernel::{Access, Loop, Map, Role, Slot, Walk};

/// The first elements of each line in sorted order, and where they were. Equal elements keep their order, in both
/// directions. NaN is the largest number, all NaNs are equal, and so are both zeros.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sort<D, M = Slot> {
    /// The sizes of the axes that are not sorted.
    pub lines: Vec<D>,
    /// The size of the axis.
    pub size: D,
    /// How many elements of each line are wanted; at most its size.
    pub count: D,
    /// Whether the largest element comes first.
    pub descending: bool,
    /// Over `[lines.., size]`.
    pub source: Access<D, M>,
    /// The elements, over `[lines.., count]`, if they are wanted.
    pub values: Option<Access<D, M>>,
    /// Their positions as int64, over `[lines.., count]`, if they are wanted.
    pub indices: Option<Access<D, M>>,
}

no_ending!(Sort);

impl<D, M> Sort<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Sort<E, N>> {
        Ok(Sort {
            lines: to.sizes(&self.lines)?,
            size: to.size(&self.size)?,
            count: to.size(&self.count)?,
            descending: self.descending,
            source: to.access(&self.source)?,
            values: self.values.as_ref().map(|values| to.access(values)).transpose()?,
            indices: self.indices.as_ref().map(|indices| to.access(indices)).transpose()?,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        see(Walk::new(Role::Operand, &self.source, &[&self.lines, one(&self.size)]));
        for result in self.values.iter().chain(&self.indices) {
            see(Walk::new(Role::Result, result, &[&self.lines, one(&self.count)]));
        }
    }
}

impl<D: Display> Sort<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Sort { source, size, count, .. } = self;
        let order = if self.descending { "descending" } else { "ascending" };
        write!(f, "{source} size {size} count {count} {order}")?;
        if let Some(values) = &self.values {
            write!(f, " values into {values}")?;
        }
        if let Some(indices) = &self.indices {
            write!(f, " indices into {indices}")?;
        }
        writeln!(f)
    }
}
