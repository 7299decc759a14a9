//! Indexed access: what gathers and scatters have in common.

use super::walk::one;
use crate::Result;
use crate::kernel::{Access, Map, Role, Slot, Walk};

/// Elements of an array that are named by indices. The array is walked over `[outer, sizes.., inner]`; pick `p` at `(o, i)`
/// means its element `(o, index.., i)`, with one index for each of the sizes. Negative indices count from the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Indexed<D, M = Slot> {
    /// The product of the sizes before the indexed axes.
    pub outer: D,
    /// The sizes of the indexed axes.
    pub sizes: Vec<D>,
    /// The product of the sizes after the indexed axes.
    pub inner: D,
    /// The first of the indexed axes in the user's graph, for messages.
    pub axis: usize,
    /// The indices, over `index_shape`; any integer dtype.
    pub indices: Access<D, M>,
    /// `[outer, picks, inner, number of indexed axes]`, with 1 for `outer` and `inner` where the same indices are meant for
    /// all of them.
    pub index_shape: [D; 4],
}

impl<D, M> Indexed<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Indexed<E, N>> {
        Ok(Indexed {
            outer: to.size(&self.outer)?,
            sizes: to.sizes(&self.sizes)?,
            inner: to.size(&self.inner)?,
            axis: self.axis,
            indices: to.access(&self.indices)?,
            index_shape: to.array(&self.index_shape)?,
        })
    }

    /// The number of picks.
    pub fn picks(&self) -> &D {
        &self.index_shape[1]
    }

    /// How the array is walked.
    pub(super) fn array<'a>(&'a self, role: Role, access: &'a Access<D, M>) -> Walk<'a, D, M> {
        Walk::new(role, access, &[one(&self.outer), &self.sizes, one(&self.inner)])
    }

    /// How what is picked is walked.
    pub(super) fn picked<'a>(&'a self, role: Role, access: &'a Access<D, M>) -> Walk<'a, D, M> {
        Walk::new(role, access, &[one(&self.outer), one(self.picks()), one(&self.inner)])
    }

    /// How the indices are walked.
    pub(super) fn index(&self) -> Walk<'_, D, M> {
        Walk::new(Role::Operand, &self.indices, &[&self.index_shape])
    }
}
