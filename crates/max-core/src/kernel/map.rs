//! Kernels with other sizes and other memory.

use crate::kernel::{Access, Instr, Loop};
use crate::{Error, Result};

/// What a kernel's sizes and its memory become. It stops at the first error.
pub struct Map<'a, D, M, E, N> {
    /// What a size becomes.
    pub size: &'a mut dyn FnMut(&D) -> Result<E>,
    /// What memory becomes.
    pub memory: &'a mut dyn FnMut(&M) -> Result<N>,
}

impl<D, M, E, N> Map<'_, D, M, E, N> {
    pub(super) fn size(&mut self, size: &D) -> Result<E> {
        (self.size)(size)
    }

    pub(super) fn sizes(&mut self, sizes: &[D]) -> Result<Vec<E>> {
        sizes.iter().map(&mut *self.size).collect()
    }

    pub(super) fn array<const LEN: usize>(&mut self, sizes: &[D; LEN]) -> Result<[E; LEN]> {
        self.sizes(sizes)?.try_into().map_err(|_| Error::internal("the length of an array changed"))
    }

    pub(super) fn access(&mut self, access: &Access<D, M>) -> Result<Access<E, N>> {
        access.map(self)
    }

    pub(super) fn ending(&mut self, ending: &Loop<D, M>) -> Result<Loop<E, N>> {
        ending.map(self)
    }

    pub(super) fn instr(&mut self, instr: &Instr<D>) -> Result<Instr<E>> {
        Ok(match instr {
            Instr::Load(access) => Instr::Load(*access),
            Instr::Index(access) => Instr::Index(*access),
            Instr::Product(dtype) => Instr::Product(*dtype),
            Instr::Literal(literal) => Instr::Literal(*literal),
            Instr::Size(size, dtype) => Instr::Size(self.size(size)?, *dtype),
            Instr::Apply(op, args) => Instr::Apply(*op, *args),
            Instr::Select(args) => Instr::Select(*args),
            Instr::Cast(arg, dtype) => Instr::Cast(*arg, *dtype),
            Instr::Random(distribution, dtype, args) => Instr::Random(*distribution, *dtype, *args),
            Instr::Reduce(kind, arg) => Instr::Reduce(*kind, *arg),
            Instr::Store(access, arg) => Instr::Store(*access, *arg),
        })
    }
}

impl<D, M> Access<D, M> {
    /// The same with other sizes and memory.
    pub fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Access<E, N>> {
        Ok(Access {
            slot: (to.memory)(&self.slot)?,
            dtype: self.dtype,
            offset: to.size(&self.offset)?,
            strides: to.sizes(&self.strides)?,
        })
    }
}
