//! How a kernel walks its memory.

use crate::kernel::{Access, Slot};

/// An access of a kernel, and the space it is walked over.
#[derive(Clone, Debug)]
pub struct Walk<'a, D, M = Slot> {
    /// What it is for.
    pub role: Role,
    /// The access.
    pub access: &'a Access<D, M>,
    /// The sizes of the space, one for each stride of the access.
    pub shape: Vec<&'a D>,
    /// The number of the final loop it belongs to, if it is a [`Role::Load`] or a [`Role::Store`].
    pub ending: u32,
}

/// What a kernel walks memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It is read, in any order.
    Operand,
    /// It is written, in any order.
    Result,
    /// It is read element by element, by a final loop or before anything else.
    Load,
    /// It is written element by element, by a final loop or before anything else.
    Store,
}

impl Role {
    /// Whether the memory is written.
    pub fn writes(self) -> bool {
        matches!(self, Role::Result | Role::Store)
    }
}

impl<'a, D, M> Walk<'a, D, M> {
    /// A walk over sizes one after the other.
    pub(super) fn new(role: Role, access: &'a Access<D, M>, shape: &[&'a [D]]) -> Walk<'a, D, M> {
        Walk { role, access, shape: shape.iter().flat_map(|sizes| sizes.iter()).collect(), ending: 0 }
    }
}

/// A size as a slice.
pub(super) fn one<D>(size: &D) -> &[D] {
    std::slice::from_ref(size)
}
