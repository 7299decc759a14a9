//! Matmuls of few rows, which are bound by reading the right operand: functions that read it once, with the same fused
//! epilogues as the library's.

use max_core::kernel::Matmul;
use max_core::{DType, Result};
use max_driver::cuda::Source;

use super::super::text::typed;
use super::super::{Address, Call, Param, Plan, PlannedLaunch};
use super::fused::FusedEpilogue;

/// The most rows of a thin matmul.
const ROWS: i64 = 4;

/// The columns that warps of `dots.cu` share, and the number of blocks that is enough for a GPU.
const COLUMNS: u64 = 2;
const BLOCKS: u64 = 256;

/// The width of a strip of `strips.cu` in bytes, and the fewest strips that use the GPU well.
const STRIP: u64 = 64;
const STRIPS: u64 = 64;

/// The layout of the right operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RightLayout {
    /// Contiguous columns.
    Columns,
    /// Contiguous rows.
    Rows,
}

/// The layout of the right operand of a thin matmul; `None` if it has many rows, several batch axes or another layout.
pub(super) fn thin_layout(k: &Matmul<i64>) -> Option<RightLayout> {
    let dtype = k.lhs.dtype;
    if !(dtype.is_half() || dtype == DType::Float32) || k.m > ROWS || k.batch.len() > 1 {
        return None;
    }
    let [.., along] = k.lhs.strides.as_slice() else { return None };
    let [.., down, across] = k.rhs.strides.as_slice() else { return None };
    if *along != 1 && k.k != 1 {
        return None;
    }
    if *down == 1 || k.k == 1 {
        return Some(RightLayout::Columns);
    }
    let batch = k.batch.first().map_or(1, |&size| size as u64);
    let strips = (k.n as u64).div_ceil(STRIP / dtype.size_in_bytes() as u64).saturating_mul(batch);
    ((*across == 1 || k.n == 1) && strips >= STRIPS).then_some(RightLayout::Rows)
}

impl Plan {
    /// Adds a thin matmul.
    pub(super) fn thin_matmul(
        &mut self,
        k: &Matmul<i64>,
        layout: RightLayout,
        fused: &FusedEpilogue,
    ) -> Result<()> {
        let batch = k.batch.first().copied().unwrap_or(1);
        let size = k.lhs.dtype.size_in_bytes() as u64;
        let (blocks, share) = match layout {
            RightLayout::Rows => ((k.n as u64).div_ceil(STRIP / size), 1),
            RightLayout::Columns => {
                let groups = (k.n as u64).div_ceil(COLUMNS);
                // Warps share columns until there are enough blocks, or too little for each to do.
                let all = groups.saturating_mul(batch as u64);
                let vectors = (k.k as u64 * size).div_ceil(512);
                let enough = |share: &u64| all.saturating_mul(*share) >= 8 * BLOCKS || *share * 2 > vectors;
                let share = [1, 2, 4].into_iter().find(enough).unwrap_or(8);
                (groups.div_ceil(8 / share), share)
            }
        };
        let strides = |strides: &[i64]| match strides {
            [outer @ .., down, along] => [outer.first().copied().unwrap_or(0), *down, *along],
            _ => [0; 3],
        };
        let [x, w, out] = [&k.lhs, &k.rhs, &fused.store].map(|access| strides(&access.strides));
        let residual = fused.residual.as_ref().map_or([0; 3], |access| strides(&access.strides));
        let leading = if layout == RightLayout::Columns { w[2] } else { w[1] };
        let addend = |access: &Option<_>| {
            access.as_ref().map_or(Param::Number(0), |it| Param::Address(Address::of(it)))
        };
        let mut params =
            [&k.lhs, &k.rhs, &fused.store].map(|access| Param::Address(Address::of(access))).to_vec();
        params.extend([addend(&fused.bias), addend(&fused.residual)]);
        params.extend([batch, k.m, k.n, k.k, x[0], x[1], w[0], leading].map(Param::Number));
        params.extend(out.into_iter().chain(residual).chain([share as i64]).map(Param::Number));
        self.launches.push(PlannedLaunch::Function(Call {
            source: source(k, layout, fused),
            grid: [blocks.clamp(1, 1 << 30) as u32, batch.clamp(1, 1 << 15) as u32, 1],
            block: [256, 1, 1],
            shared: 0,
            params,
        }));
        Ok(())
    }
}

/// The function for a thin matmul.
pub(super) fn source(k: &Matmul<i64>, layout: RightLayout, fused: &FusedEpilogue) -> Source {
    let (from, to) = (k.lhs.dtype, fused.store.dtype);
    let (rows, count) = match k.m {
        1 => ("1", 1),
        2 => ("2", 2),
        _ => ("4", 4),
    };
    let words = [&[("ROWS", rows)][..], &fused.words()].concat();
    let (name, text) = match layout {
        RightLayout::Columns => ("dots", include_str!("dots.cu")),
        RightLayout::Rows => ("strips", include_str!("strips.cu")),
    };
    let flags = fused.flags();
    let text = [FusedEpilogue::TEXT, include_str!("thin.cu"), text].concat();
    typed(&format!("{name}{count}_{from}_{to}_{flags}"), &[("IN", from), ("OUT", to)], &words, &text)
}
