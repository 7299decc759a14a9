//! Matmuls.

use std::fmt::{self, Display, Formatter};

use super::walk::one;
use super::{Ending, epilogue};
use crate::Result;
use crate::kernel::{Access, Loop, Map, Role, Slot, Walk};

/// `[batch.., m, k] x [batch.., k, n]`, passed to an epilogue over `[batch.., m, n]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Matmul<D, M = Slot> {
    /// The sizes of the batch axes, broadcast by strides of zero.
    pub batch: Vec<D>,
    /// The number of rows of the result.
    pub m: D,
    /// The number of columns of the result.
    pub n: D,
    /// The length of the dot products.
    pub k: D,
    /// Over `[batch.., m, k]`.
    pub lhs: Access<D, M>,
    /// Over `[batch.., k, n]`.
    pub rhs: Access<D, M>,
    /// What happens to the result.
    pub epilogue: Loop<D, M>,
}

epilogue!(Matmul, k => [&k.batch, one(&k.m), one(&k.n)]);

impl<D, M> Matmul<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Matmul<E, N>> {
        Ok(Matmul {
            batch: to.sizes(&self.batch)?,
            m: to.size(&self.m)?,
            n: to.size(&self.n)?,
            k: to.size(&self.k)?,
            lhs: to.access(&self.lhs)?,
            rhs: to.access(&self.rhs)?,
            epilogue: to.ending(&self.epilogue)?,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        let Matmul { batch, m, n, k, lhs, rhs, epilogue } = self;
        see(Walk::new(Role::Operand, lhs, &[batch, one(m), one(k)]));
        see(Walk::new(Role::Operand, rhs, &[batch, one(k), one(n)]));
        epilogue.walk(see);
    }
}

/// Matmuls of one left operand that do not read each other's results: a single launch, whose threads share all of their
/// work.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Matmuls<D, M = Slot> {
    /// The matmuls.
    pub all: Vec<Matmul<D, M>>,
}

impl<D, M> AsRef<[Matmul<D, M>]> for Matmul<D, M> {
    fn as_ref(&self) -> &[Matmul<D, M>] {
        one(self)
    }
}

impl<D, M> AsRef<[Matmul<D, M>]> for Matmuls<D, M> {
    fn as_ref(&self) -> &[Matmul<D, M>] {
        &self.all
    }
}

impl<D, M> Matmuls<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Matmuls<E, N>> {
        Ok(Matmuls { all: self.all.iter().map(|k| k.map(to)).collect::<Result<_>>()? })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        for (ending, k) in self.all.iter().enumerate() {
            k.walk(&mut |walk| see(Walk { ending: ending as u32, ..walk }));
        }
    }

    pub(super) fn endings(&self) -> Vec<Ending<'_, D, M>> {
        self.all.iter().flat_map(Matmul::endings).collect()
    }

    pub(super) fn set_ending(&mut self, _: Loop<D, M>) {}
}

impl<D: Display> Matmuls<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (at, k) in self.all.iter().enumerate() {
            f.write_str(if at == 0 { "" } else { "  and matmul " })?;
            k.write(f)?;
        }
        Ok(())
    }
}

impl<D: Display> Matmul<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} k {} ", self.lhs, self.rhs, self.k)?;
        self.epilogue.write(f)
    }
}
