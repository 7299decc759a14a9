//! Sorts on a GPU. A line that fits into the shared memory of a block is sorted there. A block selects a few elements of a
//! long line by their digits. Otherwise blocks sort tiles of a line, and further launches merge these: the steps of a
//! bitonic network that are wider than a tile run in scratch memory, a launch each.

use max_core::kernel::{Access, Sort};
use max_core::{DType, Result, bail};
use max_driver::cuda::Source;

use super::matmul::row_major;
use super::text::typed;
use super::{Address, Call, Param, Plan, PlannedLaunch, SCRATCH};

/// The elements that a block sorts in its shared memory, as in the sources.
const TILE: i64 = 2048;

/// The threads of a block that sorts a tile or selects, and of one that takes a step.
const THREADS: u32 = 512;
const STEP_THREADS: u32 = 256;

/// Where there are fewer lines than this, longer ones are not selected from: one block alone would take too long.
const LINES: i64 = 32;
const ALONE: i64 = 1 << 18;

/// The axes of lines that functions take.
const AXES: usize = 4;

impl Plan {
    /// Adds a sort.
    pub(super) fn sort(&mut self, k: &Sort<i64>) -> Result<()> {
        let dtype = k.source.dtype;
        let fits = |access: &Option<Access<i64>>, dtype| access.as_ref().is_none_or(|a| a.dtype == dtype);
        if !fits(&k.values, dtype) || !fits(&k.indices, DType::Int64) || k.count > k.size {
            bail!(internal, "a sort of {dtype} takes {} elements of {}", k.count, k.size);
        }
        if k.size > i64::from(i32::MAX) {
            bail!(
                not_implemented,
                "sort of {} {dtype} elements along an axis on a GPU: at most {} are supported",
                k.size,
                i32::MAX
            );
        }
        row_major(&[&k.lines[..], &[k.size]].concat())?;
        if k.lines.contains(&0) || k.count == 0 {
            return Ok(());
        }
        if Lines::new(k).axes.len() > AXES {
            let shape = [&k.lines[..], &[k.size]].concat();
            let copied = Sort { source: self.copy(&k.source, &shape, dtype)?, ..k.clone() };
            return self.sort_lines(&copied);
        }
        self.sort_lines(k)
    }

    fn sort_lines(&mut self, k: &Sort<i64>) -> Result<()> {
        let lines = Lines::new(k);
        if lines.axes.len() > AXES {
            bail!(internal, "a sort of lines along {} axes", lines.axes.len());
        }
        let (number, tiles) = (lines.number(), (k.size + TILE - 1) / TILE);
        let result = |access: &Option<Access<i64>>| match access {
            Some(access) => Param::Address(Address::of(access)),
            None => Param::Number(0),
        };
        let source = Param::Address(Address::of(&k.source));
        let results = [result(&k.values), result(&k.indices)];
        let blocks = |blocks: i64| [blocks.min(1 << 30) as u32, 1, 1];
        if tiles > 1 && k.count <= TILE && (k.size <= ALONE || number >= LINES) {
            let length = (k.count as u64).next_power_of_two() as i64;
            let mut params = vec![source, results[0], results[1]];
            params.extend([number, k.size, k.count, length].map(Param::Number));
            params.extend(lines.params());
            return self.call(Function::Select, k, blocks(number), THREADS, params);
        }
        // The number of elements of scratch memory follows from sizes that were checked.
        let (length, scratch) = match tiles {
            1 => ((k.size as u64).next_power_of_two() as i64, Param::Number(0)),
            _ => {
                let packed = if is_wide(k.source.dtype) { 2 } else { 1 };
                let (_, elements) = row_major(&[number, tiles, TILE, packed])?;
                let bytes = 8 * self.scratch(DType::UInt64, elements)?;
                (TILE, Param::Address(Address { slot: SCRATCH, bytes }))
            }
        };
        let tile = |merges: bool, ends: bool| {
            let mut params = vec![source, scratch, results[0], results[1]];
            params.extend([i64::from(merges), i64::from(ends)].map(Param::Number));
            params.extend([number, k.size, k.count, tiles, length].map(Param::Number));
            params.extend(lines.params());
            params
        };
        self.call(Function::Tile, k, blocks(number * tiles), THREADS, tile(false, tiles == 1))?;
        let mut half = TILE;
        while half < tiles * TILE {
            let mut distance = half;
            while distance >= TILE {
                let blocks_of_pairs = (tiles * TILE + 2 * distance - 1) / (2 * distance);
                let pairs = blocks_of_pairs * distance;
                let mirrored = i64::from(distance == half);
                let numbers = [number, tiles * TILE, pairs, distance, mirrored].map(Param::Number);
                let params = [scratch].into_iter().chain(numbers).collect();
                let threads = i64::from(STEP_THREADS);
                self.call(
                    Function::Step,
                    k,
                    blocks((number * pairs + threads - 1) / threads),
                    STEP_THREADS,
                    params,
                )?;
                distance /= 2;
            }
            half *= 2;
            let ends = half >= tiles * TILE;
            self.call(Function::Tile, k, blocks(number * tiles), THREADS, tile(true, ends))?;
        }
        Ok(())
    }

    fn call(
        &mut self,
        function: Function,
        k: &Sort<i64>,
        grid: [u32; 3],
        threads: u32,
        params: Vec<Param>,
    ) -> Result<()> {
        let (source, block) = (source(function, k.source.dtype, k.descending), [threads, 1, 1]);
        self.launches.push(PlannedLaunch::Function(Call { source, grid, block, shared: 0, params }));
        Ok(())
    }
}

/// The axes of lines, as few as possible: the size of each, and the strides of the source, the values and the indices.
struct Lines {
    axes: Vec<(i64, [i64; 3])>,
    /// The distances between the elements of a line.
    steps: [i64; 3],
}

impl Lines {
    fn new(k: &Sort<i64>) -> Lines {
        let rank = k.lines.len();
        let stride =
            |access: Option<&Access<i64>>, axis: usize| access.map_or(0, |access| access.strides[axis]);
        let strides = |axis| {
            [stride(Some(&k.source), axis), stride(k.values.as_ref(), axis), stride(k.indices.as_ref(), axis)]
        };
        let mut axes: Vec<(i64, [i64; 3])> = Vec::with_capacity(rank);
        for (axis, &size) in k.lines.iter().enumerate().filter(|(_, size)| **size != 1) {
            let own = strides(axis);
            // An axis continues the one before it if that one's steps go over all of it.
            match axes.last_mut() {
                Some((before, outer)) if *outer == own.map(|stride| stride.wrapping_mul(size)) => {
                    (*before, *outer) = (*before * size, own);
                }
                _ => axes.push((size, own)),
            }
        }
        Lines { axes, steps: strides(rank) }
    }

    fn number(&self) -> i64 {
        self.axes.iter().map(|(size, _)| size).product()
    }

    /// As functions take them: the sizes, and strides and step of each access.
    fn params(&self) -> Vec<Param> {
        let missing = AXES - self.axes.len();
        let all: Vec<(i64, [i64; 3])> =
            std::iter::repeat_n((1, [0; 3]), missing).chain(self.axes.iter().copied()).collect();
        let mut numbers: Vec<i64> = all.iter().map(|(size, _)| *size).collect();
        for access in 0..3 {
            numbers.extend(all.iter().map(|(_, strides)| strides[access]));
            numbers.push(self.steps[access]);
        }
        numbers.into_iter().map(Param::Number).collect()
    }
}

#[derive(Clone, Copy)]
enum Function {
    Tile,
    Step,
    Select,
}

/// Whether keys have 64 bits, and are packed into 16 bytes.
fn is_wide(dtype: DType) -> bool {
    dtype.size_in_bytes() == 8
}

/// The function for a dtype.
fn source(function: Function, dtype: DType, descending: bool) -> Source {
    let (name, text) = match function {
        Function::Tile => ("tile", concat!(include_str!("sort/keys.cuh"), include_str!("sort/tile.cu"))),
        Function::Step => ("step", concat!(include_str!("sort/keys.cuh"), include_str!("sort/step.cu"))),
        Function::Select => {
            ("select", concat!(include_str!("sort/keys.cuh"), include_str!("sort/select.cu")))
        }
    };
    let bits = match dtype.size_in_bytes() {
        1 => "unsigned char",
        2 => "unsigned short",
        4 => "unsigned int",
        _ => "unsigned long long",
    };
    let kind = match dtype {
        DType::Bool => "BOOL",
        // Without a sign, and with NaN at the top.
        DType::Float8E8M0FNU => "UNSIGNED",
        _ if dtype.is_float() => "FLOAT",
        _ if dtype.is_signed_integral() => "SIGNED",
        _ => "UNSIGNED",
    };
    let nan = match dtype {
        DType::Float64 => "(((x) & ~SIGN) > 0x7ff0000000000000ull)",
        DType::Float32 => "(((x) & ~SIGN) > 0x7f800000u)",
        DType::Float16 => "(((x) & 0x7fff) > 0x7c00)",
        DType::BFloat16 => "(((x) & 0x7fff) > 0x7f80)",
        DType::Float8E4M3FN => "(((x) & 0x7f) == 0x7f)",
        DType::Float8E5M2 => "(((x) & 0x7f) > 0x7c)",
        DType::Float8E4M3FNUZ | DType::Float8E5M2FNUZ => "((x) == 0x80)",
        _ => "false",
    };
    let unused = (8 * dtype.size_in_bytes() - dtype.size_in_bits()).to_string();
    let word = |given: bool| if given { "true" } else { "false" };
    let words = [
        ("BITS", bits),
        ("KIND", kind),
        ("IS_NAN(x)", nan),
        ("UNUSED", &unused),
        ("DESCENDING", word(descending)),
        ("WIDE", if is_wide(dtype) { "1" } else { "0" }),
    ];
    let name = format!("sort_{name}_{dtype}_{}", u8::from(descending));
    typed(&name, &[], &words, text)
}

#[cfg(test)]
mod tests {
    use max_core::kernel::Slot;

    use super::*;
    use crate::cuda::nvrtc;

    fn sort(lines: &[i64], source: &[i64], out: &[i64]) -> Sort<i64> {
        let access = |slot, dtype, strides: &[i64]| Access {
            slot: Slot(slot),
            dtype,
            offset: 0,
            strides: strides.to_vec(),
        };
        Sort {
            lines: lines.to_vec(),
            size: 10,
            count: 10,
            descending: false,
            source: access(0, DType::Float32, source),
            values: None,
            indices: Some(access(1, DType::Int64, out)),
        }
    }

    #[test]
    fn axes_of_lines_are_merged_where_all_strides_allow_it() {
        let axes = |k: &Sort<i64>| Lines::new(k).axes;
        // The last axis of [3, 4, 10], and the first of [10, 3, 4].
        assert_eq!(axes(&sort(&[3, 4], &[40, 10, 1], &[40, 10, 1])), [(12, [10, 0, 10])]);
        assert_eq!(axes(&sort(&[3, 4], &[4, 1, 12], &[4, 1, 12])), [(12, [1, 0, 1])]);
        // A transposed source.
        let turned = axes(&sort(&[3, 4], &[10, 30, 1], &[40, 10, 1]));
        assert_eq!(turned, [(3, [10, 0, 40]), (4, [30, 0, 10])]);
        let k = sort(&[1, 3, 1], &[7, 10, 7, 1], &[5, 10, 3, 1]);
        assert_eq!(axes(&k), [(3, [10, 0, 10])]);
        assert_eq!(Lines::new(&k).params().len(), 4 + 3 * 5);
    }

    #[test]
    fn functions_compile() {
        let functions = [Function::Tile, Function::Step, Function::Select];
        let each = |dtype: DType| {
            functions.map(|function| [false, true].map(|descending| source(function, dtype, descending)))
        };
        let sources = DType::ALL.iter().flat_map(|&dtype| each(dtype).into_iter().flatten());
        nvrtc::check(&sources.collect::<Vec<_>>());
    }
}
