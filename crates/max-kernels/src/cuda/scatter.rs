//! Scatters on a GPU: a copy of the input, and then its updates, without atomic operations on elements: those of an element
//! are all applied by one block, in order.

use std::fmt::Write;

use max_core::kernel::{Combine, Instr, Loop, Reg, Scatter};
use max_core::{DType, Result, bail};
use max_driver::cuda::Source;

use super::loops::{PRELUDE, memory_type};
use super::matmul::row_major;
use super::{Address, Call, Param, Plan, PlannedLaunch, indexed};

/// The threads of a block.
const THREADS: i64 = 256;

/// About how many blocks keep a GPU busy.
const BLOCKS: i64 = 512;

/// The fewest lines for which each gets a thread of its own, unless there are few picks.
const MANY: i64 = 4096;

/// The fewest lines with the same indices that are updated together.
const NEIGHBOURS: i64 = 32;

/// How many picks a line has for another block to share in it.
const PICKS: i64 = 2048;

/// How blocks share the work.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    /// A thread per line.
    Alone,
    /// Lines that have the same indices, together.
    Rows,
    /// Several blocks for each line.
    Crowd,
}

impl Plan {
    /// Adds a scatter.
    pub(super) fn scatter(&mut self, k: &Scatter<i64>) -> Result<()> {
        let (space, dtype) = (&k.space, k.out.dtype);
        let [by_outer, picks, by_inner, axes] = space.index_shape;
        if k.input.dtype != dtype
            || k.updates.dtype != dtype
            || !space.indices.dtype.is_integral()
            || axes != space.sizes.len() as i64
        {
            let [input, updates] = [k.input.dtype, k.updates.dtype];
            let indices = space.indices.dtype;
            bail!(internal, "a scatter of {updates} over {input} into {dtype} with {indices} indices");
        }
        let shape = [&[space.outer], &space.sizes[..], &[space.inner]].concat();
        row_major(&[space.outer, picks, space.inner])?;
        if !shape.contains(&0) {
            self.loop_(&Loop {
                shape,
                reduce: None,
                accesses: vec![k.input.clone(), k.out.clone()],
                code: vec![Instr::Load(0), Instr::Store(1, Reg(0))],
            })?;
        }
        // Indices are checked even if nothing is updated.
        if [by_outer, picks, by_inner].contains(&0) {
            return Ok(());
        }
        let (outer, inner) = match space.outer {
            0 => (by_outer, 0),
            outer => (outer, space.inner),
        };
        let [of_outer, of_pick, of_inner, _] = [0, 1, 2, 3].map(|axis| space.indices.strides[axis]);
        let of_outer = if by_outer == 1 { 0 } else { of_outer };
        let of_inner = if by_inner == 1 { 0 } else { of_inner };
        let mode = mode(outer * inner, picks, if of_inner == 0 { inner } else { 1 });
        let grid = grid(mode, [outer, picks, inner]);
        let mut params: Vec<Param> =
            [&k.out, &k.updates, &space.indices].map(|access| Param::Address(Address::of(access))).to_vec();
        params.push(Param::Report);
        params.extend([outer, picks, inner, of_outer, of_pick, of_inner].map(Param::Number));
        params.extend(k.updates.strides.iter().map(|&stride| Param::Number(stride)));
        let (first, last) = (k.out.strides[0], k.out.strides[space.sizes.len() + 1]);
        params.extend([first, last].map(Param::Number));
        params.extend(indexed::params(space, &k.out.strides[1..=space.sizes.len()]));
        self.launches.push(PlannedLaunch::Function(Call {
            source: source(mode, k.combine, dtype, space.indices.dtype, space.sizes.len()),
            grid,
            block: [THREADS as u32, 1, 1],
            shared: 0,
            params,
        }));
        Ok(())
    }
}

/// How a number of lines with some picks each is updated, given how many neighbouring lines have the same indices.
fn mode(lines: i64, picks: i64, neighbours: i64) -> Mode {
    if lines == 0 || neighbours >= NEIGHBOURS {
        Mode::Rows
    } else if lines >= MANY || picks <= THREADS {
        Mode::Alone
    } else {
        Mode::Crowd
    }
}

/// The blocks, of which those along the first axis share the places.
fn grid(mode: Mode, [outer, picks, inner]: [i64; 3]) -> [u32; 3] {
    let lines = outer * inner;
    let blocks = |threads: i64| (threads as u64).div_ceil(THREADS as u64).max(1) as i64;
    // Each looks at all picks.
    let shares = |others: i64, each: i64| (picks / each).clamp(1, (BLOCKS / others).max(1));
    let grid = match mode {
        Mode::Alone => [blocks(lines).min(1 << 30), 1, 1],
        Mode::Rows => {
            let (across, down) = (blocks(inner).min(1 << 15), outer.clamp(1, 1 << 15));
            [shares(across * down, 8), across, down]
        }
        Mode::Crowd => [shares(lines, PICKS), lines.min(1 << 15), 1],
    };
    grid.map(|blocks| blocks as u32)
}

/// The function for a mode, a dtype of elements, and indices of a dtype for a number of axes.
fn source(mode: Mode, combine: Combine, dtype: DType, indices: DType, axes: usize) -> Source {
    let name = format!("scatter_{mode:?}_{}_{dtype}_{indices}_{axes}", combine.name()).to_lowercase();
    let body = match combine {
        Combine::Assign => "*element = *update;".to_string(),
        other => format!(
            "lane::put(*element, lane::{}(lane::widen(*element), lane::widen(*update)));",
            other.name()
        ),
    };
    let mut code = format!(
        "typedef {} T;\ntypedef {} INDEX;\n#define NAME {name}\n#define COMBINE {body}\n",
        memory_type(dtype),
        memory_type(indices)
    );
    // Writing to a string cannot fail.
    let _ = writeln!(code, "#define ALONE 0\n#define ROWS 1\n#define CROWD 2\n#define MODE {}", mode as u8);
    for (word, meaning) in indexed::words(axes, indices) {
        let _ = writeln!(code, "#define {word} {meaning}");
    }
    code.push_str(indexed::TEXT);
    code.push_str(include_str!("scatter/scatter.cu"));
    Source { name, prelude: PRELUDE.as_str().into(), code }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::nvrtc;

    #[test]
    fn blocks_share_long_lines() {
        assert_eq!(mode(1 << 20, 1 << 10, 1), Mode::Alone);
        assert_eq!(mode(1, 1 << 20, 1), Mode::Crowd);
        assert_eq!(mode(1, 100, 1), Mode::Alone);
        assert_eq!(mode(1024, 4096, 1024), Mode::Rows);
        assert_eq!(mode(0, 5, 0), Mode::Rows);
        assert_eq!(grid(Mode::Alone, [3, 7, 1000]), [12, 1, 1]);
        assert_eq!(grid(Mode::Crowd, [1, 1 << 20, 1]), [512, 1, 1]);
        assert_eq!(grid(Mode::Crowd, [2, 1000, 3]), [1, 6, 1]);
        assert_eq!(grid(Mode::Rows, [1, 4096, 1024]), [128, 4, 1]);
        assert_eq!(grid(Mode::Rows, [1, 5, 0]), [1, 1, 1]);
    }

    #[test]
    fn functions_compile() {
        let mut sources = Vec::new();
        let modes = [Mode::Alone, Mode::Rows, Mode::Crowd];
        for (at, &dtype) in DType::ALL.iter().enumerate() {
            for combine in Combine::ALL {
                sources.push(source(modes[at % 3], combine, dtype, DType::Int64, 1));
            }
        }
        let indices = DType::ALL.iter().copied().filter(|dtype| dtype.is_integral());
        sources
            .extend(indices.flat_map(|indices| {
                modes.map(|mode| source(mode, Combine::Add, DType::Float32, indices, 2))
            }));
        sources.push(source(Mode::Rows, Combine::Max, DType::BFloat16, DType::Int32, 0));
        nvrtc::check(&sources);
    }
}
