//! Matmuls with quantized weights.

use std::fmt::{self, Display, Formatter};

use super::Ending;
use super::walk::one;
use crate::Result;
use crate::kernel::{Access, Loop, Map, Role, Slot, Walk};
use crate::quantization::Storage;

/// `[batch.., m, k] x [n, k]^T` for each of some quantized weights, passed to epilogues over `[batch.., m, n]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QMatmul<D, M = Slot> {
    /// The sizes of the batch axes.
    pub batch: Vec<D>,
    /// The number of rows of the results.
    pub m: D,
    /// The length of the dot products.
    pub k: D,
    /// Over `[batch.., m, k]`.
    pub lhs: Access<D, M>,
    /// Which rows are multiplied by which weights, if there are several; without batch axes then.
    pub experts: Option<Experts<D, M>>,
    /// The weights and what happens to each result.
    pub all: Vec<Projection<D, M>>,
}

/// Groups of consecutive rows, each with a matrix of weights of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Experts<D, M = Slot> {
    /// The number of matrices.
    pub count: D,
    /// The number of groups.
    pub groups: D,
    /// Over `[groups + 1]`: where each group starts and the last one ends. Rows outside are zero.
    pub starts: Access<D, M>,
    /// One more than the number of groups.
    pub ends: D,
    /// Over `[groups]`: the number of its matrix, or a negative number if its rows are zero.
    pub ids: Access<D, M>,
}

/// Quantized weights, and what happens to the product with them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Projection<D, M = Slot> {
    /// How rows are stored.
    pub storage: Storage,
    /// The number of rows of the weights: the columns of the result.
    pub n: D,
    /// The number of codes in a row.
    pub length: D,
    /// Over `[n, length]`, or `[experts, n, length]`.
    pub codes: Access<D, M>,
    /// Over `[n, scales]`, or `[experts, n, scales]`, if scales are apart.
    pub scales: Option<(D, Access<D, M>)>,
    /// What happens to the result.
    pub epilogue: Loop<D, M>,
}

impl<D, M> QMatmul<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<QMatmul<E, N>> {
        let experts = self.experts.as_ref().map(|experts| {
            Ok(Experts {
                count: to.size(&experts.count)?,
                groups: to.size(&experts.groups)?,
                starts: to.access(&experts.starts)?,
                ends: to.size(&experts.ends)?,
                ids: to.access(&experts.ids)?,
            })
        });
        let experts = experts.transpose()?;
        Ok(QMatmul {
            batch: to.sizes(&self.batch)?,
            m: to.size(&self.m)?,
            k: to.size(&self.k)?,
            lhs: to.access(&self.lhs)?,
            experts,
            all: self.all.iter().map(|projection| projection.map(to)).collect::<Result<_>>()?,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        let QMatmul { batch, m, k, lhs, experts, all } = self;
        see(Walk::new(Role::Operand, lhs, &[batch, one(m), one(k)]));
        if let Some(Experts { groups, starts, ends, ids, .. }) = experts {
            see(Walk::new(Role::Operand, starts, &[one(ends)]));
            see(Walk::new(Role::Operand, ids, &[one(groups)]));
        }
        let count = experts.as_ref().map_or(&[][..], |experts| one(&experts.count));
        for (ending, projection) in all.iter().enumerate() {
            let Projection { n, length, codes, scales, epilogue, .. } = projection;
            see(Walk::new(Role::Operand, codes, &[count, one(n), one(length)]));
            if let Some((length, scales)) = scales {
                see(Walk::new(Role::Operand, scales, &[count, one(n), one(length)]));
            }
            epilogue.walk(&mut |walk| see(Walk { ending: ending as u32, ..walk }));
        }
    }

    pub(super) fn endings(&self) -> Vec<Ending<'_, D, M>> {
        let space = |n| self.batch.iter().chain([&self.m, n]).collect();
        self.all.iter().map(|p| Ending { run: &p.epilogue, space: space(&p.n) }).collect()
    }

    pub(super) fn set_ending(&mut self, ending: Loop<D, M>) {
        if let [projection] = &mut self.all[..] {
            projection.epilogue = ending;
        }
    }
}

impl<D, M> Projection<D, M> {
    fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Projection<E, N>> {
        let scales = self.scales.as_ref().map(|(length, scales)| Ok((to.size(length)?, to.access(scales)?)));
        Ok(Projection {
            storage: self.storage,
            n: to.size(&self.n)?,
            length: to.size(&self.length)?,
            codes: to.access(&self.codes)?,
            scales: scales.transpose()?,
            epilogue: to.ending(&self.epilogue)?,
        })
    }
}

impl<D: Display> QMatmul<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} k {} ", self.lhs, self.k)?;
        if let Some(Experts { count, starts, ids, .. }) = &self.experts {
            write!(f, "rows {starts} experts {ids} of {count} ")?;
        }
        for (at, projection) in self.all.iter().enumerate() {
            let Projection { storage, codes, scales, epilogue, .. } = projection;
            write!(f, "{}x {storage} {codes} ", if at == 0 { "" } else { "  and " })?;
            if let Some((_, scales)) = scales {
                write!(f, "scales {scales} ")?;
            }
            epilogue.write(f)?;
        }
        Ok(())
    }
}
