//! Products with quantized weights.

use max_core::kernel::{Access, Experts, Loop, Projection, QMatmul};
use max_core::{Dim, Result, bail};
use max_graph::ir::Op;
use max_graph::ops::qmatmul::{QMatmul as QMatmulOp, Roles};
use max_graph::{OpId, ValueId};

use super::{Lowering, NodeId};

impl Lowering<'_> {
    pub(super) fn qmatmul(&mut self, id: OpId, op: &Op, qmatmul: &QMatmulOp) -> Result<()> {
        let device = self.device(op.results[0])?;
        let Roles { lhs, codes, scales, groups } = qmatmul.roles(&op.operands)?;
        let mut read = |value: &ValueId| -> Result<(Vec<Dim>, Access<Dim, NodeId>)> {
            let view = self.stored(*value, device)?;
            Ok((view.layout.shape.to_vec(), self.access(&view, &view.layout.shape)))
        };
        let (size, lhs) = read(lhs)?;
        let (matrices, codes) = read(codes)?;
        let ([batch @ .., m, k], [count @ .., n, length]) = (&size[..], &matrices[..]) else {
            bail!(internal, "a product of rank below 2")
        };
        let scales = match scales {
            Some(scales) => {
                let (size, scales) = read(scales)?;
                Some((size[size.len() - 1].clone(), scales))
            }
            None => None,
        };
        let experts = match (groups, count) {
            (Some([starts, ids]), [count]) => {
                let ((ends, starts), (groups, ids)) = (read(starts)?, read(ids)?);
                let (ends, groups) = (ends[0].clone(), groups[0].clone());
                Some(Experts { count: count.clone(), groups, starts, ends, ids })
            }
            _ => None,
        };
        let projection = Projection {
            storage: qmatmul.storage,
            n: n.clone(),
            length: length.clone(),
            codes,
            scales,
            epilogue: Loop::empty(vec![]),
        };
        let (batch, m, k) = (batch.to_vec(), m.clone(), k.clone());
        self.fused(id, op, QMatmul { batch, m, k, lhs, experts, all: vec![projection] }, None)
    }
}
