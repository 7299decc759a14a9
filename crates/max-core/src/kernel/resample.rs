//! Resampling.

use std::fmt::{self, Display, Formatter};

use super::print::List;
use super::walk::one;
use super::{Ending, no_ending};
use crate::kernel::{Access, Loop, Map, Role, Slot, Walk};
use crate::{Coordinates, Interpolation, Result};

/// Resamples rows and columns: each result is a weighted sum of elements near it, rounded once. Results of integers are
/// truncated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Resample<D, M = Slot> {
    /// How elements are combined.
    pub interpolation: Interpolation,
    /// Where results are on the source.
    pub coordinates: Coordinates,
    /// The product of the sizes before the rows.
    pub outer: D,
    /// The number of rows and columns of the source. It has none only if the result has none.
    pub size: [D; 2],
    /// The number of rows and columns of the result.
    pub count: [D; 2],
    /// The product of the sizes after the columns.
    pub inner: D,
    /// Over `[outer, rows, columns, inner]` of the source.
    pub source: Access<D, M>,
    /// Over `[outer, rows, columns, inner]` of the result.
    pub out: Access<D, M>,
}

no_ending!(Resample);

impl<D, M> Resample<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Resample<E, N>> {
        Ok(Resample {
            interpolation: self.interpolation,
            coordinates: self.coordinates,
            outer: to.size(&self.outer)?,
            size: to.array(&self.size)?,
            count: to.array(&self.count)?,
            inner: to.size(&self.inner)?,
            source: to.access(&self.source)?,
            out: to.access(&self.out)?,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        let (outer, inner) = (one(&self.outer), one(&self.inner));
        see(Walk::new(Role::Operand, &self.source, &[outer, &self.size, inner]));
        see(Walk::new(Role::Result, &self.out, &[outer, &self.count, inner]));
    }
}

impl<D: Display> Resample<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} into {} ", self.source, self.out)?;
        write!(f, "from {} to {} ", List(&self.size), List(&self.count))?;
        writeln!(f, "by {} {}", self.interpolation, self.coordinates)
    }
}
