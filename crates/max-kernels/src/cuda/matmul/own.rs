//! Matmuls by our own function, for what the library does not support: integers, bools, and some layouts of floats.

use max_core::kernel::{Access, Matmul};
use max_core::{DType, Result};
use max_driver::cuda::Source;

use super::super::text::typed;
use super::super::{Address, Call, Param, Plan, PlannedLaunch};

/// The rows and columns of a tile of `tiles.cuh`.
const TILE: u64 = 64;

impl Plan {
    /// Adds a matmul with at most one batch axis, stored without an epilogue.
    pub(super) fn own_matmul(&mut self, k: &Matmul<i64>, store: &Access<i64>) -> Result<()> {
        let batch = k.batch.first().copied().unwrap_or(1);
        let tiles = [k.m, k.n].map(|size| (size as u64).div_ceil(TILE));
        let tiles = tiles[0].saturating_mul(tiles[1]).saturating_mul(batch as u64);
        let mut params = [&k.lhs, &k.rhs, store].map(|access| Param::Address(Address::of(access))).to_vec();
        params.extend([batch, k.m, k.n, k.k].map(Param::Number));
        for access in [&k.lhs, &k.rhs, store] {
            let [outer @ .., down, along] = access.strides.as_slice() else { continue };
            params.extend([outer.first().copied().unwrap_or(0), *down, *along].map(Param::Number));
        }
        self.launches.push(PlannedLaunch::Function(Call {
            source: source(k.lhs.dtype, store.dtype),
            grid: [tiles.clamp(1, 1 << 30) as u32, 1, 1],
            block: [256, 1, 1],
            shared: 0,
            params,
        }));
        Ok(())
    }
}

/// The function for the dtypes of operands and result.
pub(super) fn source(from: DType, to: DType) -> Source {
    let text = concat!(include_str!("../tiles.cuh"), include_str!("gemm.cu"));
    typed(&format!("gemm_{from}_{to}"), &[("IN", from), ("OUT", to)], &[], text)
}
