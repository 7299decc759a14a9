//! Stores to places that are only known when they run.

use std::fmt::{self, Display, Formatter};

use super::{Ending, no_ending};
use crate::kernel::{Access, Loop, Map, Role, Slot, Walk};
use crate::{Result, bail};

/// Copies a tensor into part of another one. Where the part starts along some axes is read from memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Put<D, M = Slot> {
    /// The sizes of what is copied.
    pub shape: Vec<D>,
    /// The sizes of what it is copied into.
    pub sizes: Vec<D>,
    /// What is copied, over `shape`.
    pub source: Access<D, M>,
    /// Where it goes, over `shape`, if it started at zero along the axes of `bounds`.
    pub out: Access<D, M>,
    /// All of what it is copied into, over `sizes`.
    pub whole: Access<D, M>,
    /// Where it starts.
    pub bounds: Vec<PutBound<D, M>>,
}

/// Where a part starts along an axis, and perhaps ends: int64 scalars in memory, of which negative ones count from the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PutBound<D, M = Slot> {
    /// The axis.
    pub axis: usize,
    /// Its size.
    pub size: D,
    /// The distance between elements along it.
    pub step: i64,
    /// The distance of its elements in memory.
    pub stride: D,
    /// The scalar that it starts at.
    pub start: Access<D, M>,
    /// The scalar that it stops at, which must agree with the number of elements.
    pub stop: Option<Access<D, M>>,
}

no_ending!(Put);

impl<D, M> Put<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Put<E, N>> {
        let mut bounds = Vec::with_capacity(self.bounds.len());
        for bound in &self.bounds {
            bounds.push(PutBound {
                axis: bound.axis,
                size: to.size(&bound.size)?,
                step: bound.step,
                stride: to.size(&bound.stride)?,
                start: to.access(&bound.start)?,
                stop: bound.stop.as_ref().map(|stop| to.access(stop)).transpose()?,
            });
        }
        Ok(Put {
            shape: to.sizes(&self.shape)?,
            sizes: to.sizes(&self.sizes)?,
            source: to.access(&self.source)?,
            out: to.access(&self.out)?,
            whole: to.access(&self.whole)?,
            bounds,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        see(Walk::new(Role::Operand, &self.source, &[&self.shape]));
        for bound in &self.bounds {
            see(Walk::new(Role::Operand, &bound.start, &[]));
            bound.stop.iter().for_each(|stop| see(Walk::new(Role::Operand, stop, &[])));
        }
        see(Walk::new(Role::Result, &self.whole, &[&self.sizes]));
    }
}

impl<D: Display> Put<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} into {}", self.source, self.out)?;
        for PutBound { axis, start, stop, step, .. } in &self.bounds {
            write!(f, " axis {axis} from {start}")?;
            if let Some(stop) = stop {
                write!(f, " to {stop}")?;
            }
            write!(f, " step {step}")?;
        }
        writeln!(f)
    }
}

/// Where a part of `count` elements starts along an axis, given its bounds; an error if it is not inside, or if the bounds
/// do not fit the count.
pub fn put_start(
    axis: usize,
    size: i64,
    count: i64,
    step: i64,
    start: i64,
    stop: Option<i64>,
) -> Result<i64> {
    let from_end = |bound: i64| if bound < 0 { i128::from(bound) + i128::from(size) } else { bound.into() };
    let (first, step, wide) = (from_end(start), i128::from(step), i128::from(count));
    if let Some(stop) = stop {
        let found = (from_end(stop) - first + step - 1).div_euclid(step);
        if found != wide {
            bail!(
                value,
                "a tensor with {count} elements along axis {axis} cannot be stored to the slice from {start} to {stop} of an \
                 axis with size {size}"
            );
        }
    }
    let last = first + (wide - 1) * step;
    if first < 0 || first > i128::from(size) || count > 0 && last >= i128::from(size) {
        bail!(
            index,
            "index {start} is out of range for axis {axis} with size {size}, where {count} elements are stored"
        );
    }
    Ok(first as i64)
}
