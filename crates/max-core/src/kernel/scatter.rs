//! Scatters.

use std::fmt::{self, Display, Formatter};

use super::{Ending, no_ending};
use crate::Result;
use crate::kernel::{Access, Indexed, Loop, Map, Role, Slot, Walk};

/// An array with updates combined into it: element by element the input, and then, in the order of picks, `updates[o, p,
/// i]` goes to the element that pick `p` at `(o, i)` means. Every combination is rounded to the dtype.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scatter<D, M = Slot> {
    /// Which elements are updated.
    pub space: Indexed<D, M>,
    /// What an update does.
    pub combine: Combine,
    /// Over `[outer, sizes.., inner]`; its memory may be that of the result.
    pub input: Access<D, M>,
    /// Over `[outer, picks, inner]`.
    pub updates: Access<D, M>,
    /// Over `[outer, sizes.., inner]`.
    pub out: Access<D, M>,
}

/// How an update changes an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combine {
    /// It replaces it.
    Assign,
    /// It is added.
    Add,
    /// It is a factor.
    Mul,
    /// The lesser of both stays; NaN wins.
    Min,
    /// The greater of both stays; NaN wins.
    Max,
}

impl Combine {
    /// All of them.
    pub const ALL: [Combine; 5] = [Combine::Assign, Combine::Add, Combine::Mul, Combine::Min, Combine::Max];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Combine::Assign => "assign",
            Combine::Add => "add",
            Combine::Mul => "mul",
            Combine::Min => "min",
            Combine::Max => "max",
        }
    }
}

no_ending!(Scatter);

impl<D, M> Scatter<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Scatter<E, N>> {
        Ok(Scatter {
            space: self.space.map(to)?,
            combine: self.combine,
            input: to.access(&self.input)?,
            updates: to.access(&self.updates)?,
            out: to.access(&self.out)?,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        // The input is copied element by element before anything else, so the result may take over its memory.
        see(self.space.array(Role::Load, &self.input));
        see(self.space.picked(Role::Operand, &self.updates));
        see(self.space.index());
        see(self.space.array(Role::Store, &self.out));
    }
}

impl<D: Display> Scatter<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Scatter { space, combine, input, updates, out } = self;
        write!(f, "{} {updates} by {} over {input} into {out} size", combine.name(), space.indices)?;
        space.sizes.iter().try_for_each(|size| write!(f, " {size}"))?;
        writeln!(f)
    }
}
