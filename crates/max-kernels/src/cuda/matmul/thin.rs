//! Matmuls of few rows, which are bound by reading the right operand: functions that read it once, for several matmuls of one
//! left operand, each with an epilogue of its own.

use std::borrow::Cow;

use max_core::kernel::Matmul;
use max_core::{DType, Result, bail};
use max_driver::cuda::Source;

use super::super::loops::PRELUDE;
use super::super::text::typed;
use super::super::{Address, Call, Param, Plan, PlannedLaunch};
use super::ending::{self, Ending, strides};

/// The most rows of a thin matmul, and of one on tensor cores.
const ROWS: i64 = 4;
const TENSOR_ROWS: i64 = 8;

/// The columns of a block of `tensor.cu`, and the number of blocks that each multiprocessor has room for.
const TENSOR_COLUMNS: u64 = 16;
const TENSOR_BLOCKS: u64 = 2;

/// The columns that warps of `dots.cu` share, and the number of blocks that is enough for a GPU.
const COLUMNS: u64 = 2;
const BLOCKS: u64 = 512;

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

/// The layout of the right operand of a thin matmul; `None` if it has many rows, several batch axes, another layout, or an
/// epilogue that is no function of elements.
pub(super) fn thin_layout(k: &Matmul<i64>) -> Result<Option<RightLayout>> {
    let most = |layout| match (layout, k.lhs.dtype.is_half()) {
        (RightLayout::Columns, true) => TENSOR_ROWS,
        _ => ROWS,
    };
    let layout = layout(k).filter(|&layout| k.m <= most(layout) && k.batch.len() <= 1);
    Ok(match layout {
        Some(layout) => ending::write(&k.epilogue, 0)?.map(|_| layout),
        None => None,
    })
}

fn layout(k: &Matmul<i64>) -> Option<RightLayout> {
    let dtype = k.lhs.dtype;
    if !(dtype.is_half() || dtype == DType::Float32) {
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

/// Whether one function computes thin matmuls.
pub(super) fn fit(all: &[Matmul<i64>]) -> bool {
    let shared = |k: &Matmul<i64>| (k.lhs.clone(), k.batch.clone(), k.m, k.k);
    all.windows(2).all(|pair| shared(&pair[0]) == shared(&pair[1]))
}

impl Plan {
    /// Adds thin matmuls that fit one function.
    pub(super) fn thin_matmuls(&mut self, all: &[Matmul<i64>], layout: RightLayout) -> Result<()> {
        let Some(k) = all.first() else { return Ok(()) };
        let batch = k.batch.first().copied().unwrap_or(1);
        let size = k.lhs.dtype.size_in_bytes() as u64;
        let function = Thin::new(k, layout, self.gpu.compute_capability());
        let groups = |k: &Matmul<i64>| (k.n as u64).div_ceil(COLUMNS);
        // Warps share columns until there are enough blocks, or too little for each to do.
        let every = all.iter().map(groups).sum::<u64>().saturating_mul(batch as u64);
        let vectors = (k.k as u64 * size).div_ceil(512);
        let enough = |share: &u64| every.saturating_mul(*share) >= 8 * BLOCKS || *share * 2 > vectors;
        let share = [1, 2, 4].into_iter().find(enough).unwrap_or(8);
        // Blocks on tensor cores share tiles evenly, as many as there is room for.
        let tiles = |k: &Matmul<i64>| (k.n as u64).div_ceil(TENSOR_COLUMNS);
        let room = u64::from(self.gpu.multiprocessors()) * TENSOR_BLOCKS;
        let each = all.iter().map(tiles).sum::<u64>().saturating_mul(batch as u64).div_ceil(room).max(1);
        let blocks = |k: &Matmul<i64>| match function {
            Thin::Strips => (k.n as u64).div_ceil(STRIP / size),
            Thin::Dots => groups(k).div_ceil(8 / share),
            Thin::Tensor => tiles(k).div_ceil(each),
        };
        let [x_batch, x_row, _] = strides(&k.lhs);
        let mut params = vec![Param::Address(Address::of(&k.lhs))];
        params.extend([batch, k.m, k.k, x_batch, x_row, share as i64].map(Param::Number));
        let (mut endings, mut total) = (Vec::new(), 0u64);
        for (number, k) in all.iter().enumerate() {
            let Some(ending) = ending::write(&k.epilogue, number)? else {
                bail!(internal, "a thin matmul with another epilogue: {:?}", k.epilogue)
            };
            let [w_batch, down, across] = strides(&k.rhs);
            let leading = if layout == RightLayout::Columns { across } else { down };
            let own = blocks(k).clamp(1, 1 << 24);
            params.push(Param::Address(Address::of(&k.rhs)));
            params.extend([k.n, w_batch, leading, own as i64].map(Param::Number));
            params.extend(ending.params.iter().map(|(_, param)| *param));
            endings.push(ending);
            total += own;
        }
        self.launches.push(PlannedLaunch::Function(Call {
            source: source(k, function, &endings),
            grid: [total as u32, batch.clamp(1, 1 << 15) as u32, 1],
            block: [256, 1, 1],
            shared: 0,
            params,
        }));
        Ok(())
    }
}

/// A function for thin matmuls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thin {
    /// For contiguous columns: `dots.cu`.
    Dots,
    /// For contiguous columns and several rows, on tensor cores: `tensor.cu`.
    Tensor,
    /// For contiguous rows: `strips.cu`.
    Strips,
}

impl Thin {
    /// The function for a layout of the right operand on a GPU of a compute capability.
    pub(super) fn new(k: &Matmul<i64>, layout: RightLayout, capability: (u32, u32)) -> Thin {
        match layout {
            RightLayout::Rows => Thin::Strips,
            RightLayout::Columns if k.lhs.dtype.is_half() && k.m > 1 && capability >= (8, 0) => Thin::Tensor,
            RightLayout::Columns => Thin::Dots,
        }
    }
}

/// The function for thin matmuls with some epilogues.
pub(super) fn source(k: &Matmul<i64>, function: Thin, endings: &[Ending]) -> Source {
    let dtype = k.lhs.dtype;
    let (name, text) = match function {
        Thin::Dots => ("dots", include_str!("dots.cu")),
        Thin::Tensor => ("tensor", include_str!("tensor.cu")),
        Thin::Strips => ("strips", include_str!("strips.cu")),
    };
    let (rows, count) = match k.m {
        _ if function == Thin::Tensor => ("8", 8),
        1 => ("1", 1),
        2 => ("2", 2),
        3..=ROWS => ("4", 4),
        _ => ("8", 8),
    };
    let bits = if dtype == DType::Float16 { "\"f16\"" } else { "\"bf16\"" };
    let mut params = String::from(
        "const IN *x, long long batch, long long m, long long k, long long x_batch, long long x_row, long long share",
    );
    let mut body = String::from(
        "    const Given given = {x, batch, m, k, x_batch, x_row, share};\n    long long block = blockIdx.x;\n",
    );
    for (number, ending) in endings.iter().enumerate() {
        params += &format!(
            ", const IN *w{number}, long long n{number}, long long w_batch{number}, long long w_leading{number}, long long \
             blocks{number}"
        );
        for (declaration, _) in &ending.params {
            params += ", ";
            params += declaration;
        }
        body += &format!(
            "    if (block < blocks{number}) {{\n        const Matrix matrix = {{w{number}, n{number}, w_batch{number}, \
             w_leading{number}, block, blocks{number}}};\n        multiply(given, matrix, [&](float product, long long number, \
             long long row, long long column) {{\n{}        }});\n        return;\n    }}\n    block -= blocks{number};\n",
            ending.body
        );
    }
    let text = [
        include_str!("thin.cu"),
        text,
        &format!("\nextern \"C\" __global__ void __launch_bounds__(256) NAME({params}) {{\n{body}}}\n"),
    ]
    .concat();
    let name = super::super::loops::named(&format!("{name}{count}_{dtype}"), &text);
    let typed = typed(&name, &[("IN", dtype)], &[("ROWS", rows), ("BITS", bits)], &text);
    Source { prelude: Cow::Borrowed(PRELUDE.as_str()), ..typed }
}
