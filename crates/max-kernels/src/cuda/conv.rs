//! Convolutions on a GPU: implicit GEMMs of windows and filters, whose windows are never materialized.
//!
//! Filters of one tap are plain matmuls. There are functions for all others: two on tensor cores for 16-bit floats, of
//! which one is for Hopper GPUs and operands in rows, one in tiles for other types, and one for groups too small for any.

mod hopper;
#[cfg(test)]
mod tests;

use max_core::kernel::{Access, Conv2d, Instr, Loop, Matmul, Reg};
use max_core::{DType, Result, bail};
use max_driver::cuda::Source;

use super::epilogue::{of_parts, of_zeros};
use super::matmul::{ending, row_major, stored};
use super::text::typed;
use super::{Address, Call, Param, Plan, PlannedLaunch, SCRATCH};
use hopper::Tiling;

/// The most filters of a group that is computed directly, with any number of channels and with as few channels.
const FEW: i64 = 4;
const FEW_OF_BOTH: i64 = 16;

/// The compute capability of Hopper GPUs.
const HOPPER: (u32, u32) = (9, 0);

/// The shortest part of a split window, and the most parts.
const PART: i64 = 256;
const PARTS: i64 = 8;

/// How a convolution is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConvMethod {
    /// One element per thread.
    Direct,
    /// In tiles, for any type.
    Tiles,
    /// In tiles of this many filters, on tensor cores.
    Tensor(u64),
    /// On the tensor cores of Hopper GPUs.
    Hopper(Tiling),
}

/// What happens to a sum: a function of it, its position and its filter, whose value is stored.
struct Finish {
    /// The body of the function, which returns the value.
    body: String,
    /// Declarations of parameters that it uses, each after a comma, and their values.
    parameters: String,
    params: Vec<Param>,
    store: Access<i64>,
}

impl Finish {
    /// Stores sums as they are.
    fn plain(store: Access<i64>) -> Finish {
        Finish { body: "return product;".into(), parameters: String::new(), params: Vec::new(), store }
    }
}

impl Plan {
    /// Adds a convolution.
    pub(super) fn conv2d(&mut self, k: &Conv2d<i64>) -> Result<()> {
        expect(k)?;
        if k.out.contains(&0) {
            return Ok(());
        }
        if k.filter_size.contains(&0) || k.input_size[2] == 0 {
            return self.loop_(&of_zeros(&k.epilogue));
        }
        if let Some(matmul) = as_matmul(k) {
            return self.matmul(&matmul);
        }
        let dtype = k.input.dtype;
        if dtype.is_small_float() {
            let [height, width, channels] = k.input_size;
            let input = self.copy(&k.input, &[k.out[0], height, width, channels], DType::BFloat16)?;
            let shape = [k.filter_size[0], k.filter_size[1], k.depth, k.out[3]];
            let filter = self.copy(&k.filter, &shape, DType::BFloat16)?;
            return self.convolve_in_parts(&Conv2d { input, filter, ..k.clone() }, 1);
        }
        let (capability, multiprocessors) = (self.gpu.compute_capability(), self.gpu.multiprocessors());
        let method = method(k, capability, multiprocessors);
        let parts = parts(k, method, multiprocessors);
        if parts > 1 {
            return self.convolve_in_parts(k, parts);
        }
        let finish = match method {
            ConvMethod::Hopper(_) => finished(k)?,
            _ => stored(&k.epilogue).map(Finish::plain),
        };
        if let Some(finish) = finish {
            return self.convolve(k, &finish, 1, 0);
        }
        let (strides, count) = row_major(&k.out)?;
        let result = Access { slot: SCRATCH, dtype, offset: self.scratch(dtype, count)?, strides };
        self.convolve(k, &Finish::plain(result.clone()), 1, 0)?;
        self.epilogue(&k.epilogue, result)
    }

    /// Adds a convolution whose windows are split into `parts`, and the loop that adds them up and runs the epilogue.
    fn convolve_in_parts(&mut self, k: &Conv2d<i64>, parts: i64) -> Result<()> {
        let dtype = if k.input.dtype == DType::Float64 { DType::Float64 } else { DType::Float32 };
        let (strides, _) = row_major(&k.out)?;
        let (_, size) = row_major(&[&k.out[..], &[parts]].concat())?;
        let apart = size / parts;
        let offset = self.scratch(dtype, size)?;
        let part = |number: i64| Access {
            slot: SCRATCH,
            dtype,
            offset: offset + number * apart,
            strides: strides.clone(),
        };
        self.convolve(k, &Finish::plain(part(0)), parts, apart)?;
        self.loop_(&of_parts(&k.epilogue, (0..parts).map(part).collect()))
    }

    /// Adds a convolution that is finished by its function, or `parts` of it that are stored `apart` elements apart.
    fn convolve(&mut self, k: &Conv2d<i64>, finish: &Finish, parts: i64, apart: i64) -> Result<()> {
        let multiprocessors = self.gpu.multiprocessors();
        let method = method(k, self.gpu.compute_capability(), multiprocessors);
        let mut params: Vec<Param> =
            [&k.input, &k.filter, &finish.store].map(|access| Param::Address(Address::of(access))).to_vec();
        params.extend(numbers(k, &finish.store).into_iter().map(Param::Number));
        params.extend([part_depth(k, method, parts), apart].map(Param::Number));
        let (mut count, mut threads, mut shared) = (blocks(k, method), 256, 0);
        if let ConvMethod::Hopper(tiling) = method {
            params.push(Param::Number(tiling.strip(k).unwrap_or(0)));
            params.extend(&finish.params);
            count = count.min(multiprocessors * tiling.blocks);
            threads = tiling.threads();
            shared = tiling.shared(k).unwrap_or(0);
        }
        self.launches.push(PlannedLaunch::Function(Call {
            source: source(method, k.input.dtype, finish),
            grid: [count, parts as u32, 1],
            block: [threads, 1, 1],
            shared,
            params,
        }));
        Ok(())
    }
}

/// The epilogue as a function of sums, if it is one and stores eight filters at once.
fn finished(k: &Conv2d<i64>) -> Result<Option<Finish>> {
    let Some((Instr::Store(number, Reg(value)), code)) = k.epilogue.code.split_last() else {
        return Ok(None);
    };
    let Some(store) = k.epilogue.accesses.get(*number as usize) else { return Ok(None) };
    let wide = store.dtype.is_half() || store.dtype == DType::Float32;
    let again = code.iter().any(|instr| matches!(instr, Instr::Store(..)));
    if again || !wide || !is_whole(store, of_group(k)[0]) {
        return Ok(None);
    }
    if stored(&k.epilogue).is_some() {
        return Ok(Some(Finish::plain(store.clone())));
    }
    let Some(accesses) = k.epilogue.accesses.iter().map(|access| in_rows(access, &k.out)).collect() else {
        return Ok(None);
    };
    let (positions, filters) = (k.out[..3].iter().product(), k.out[3]);
    let values = Loop { shape: vec![positions, filters], reduce: None, accesses, code: code.to_vec() };
    Ok(ending::write(&values, 0)?.map(|ending| Finish {
        body: format!("{} return r{value};", ending.body.replace('\n', " ")),
        parameters: ending.params.iter().map(|(declaration, _)| format!(", {declaration}")).collect(),
        params: ending.params.iter().map(|(_, param)| *param).collect(),
        store: store.clone(),
    }))
}

/// An access over `[batch, height, width, filters]` as one over `[positions, filters]`, if it is one.
fn in_rows(access: &Access<i64>, out: &[i64]) -> Option<Access<i64>> {
    let (mut down, mut count) = (None, 1i64);
    for (&size, &stride) in out.iter().zip(&access.strides).take(3).rev().filter(|(size, _)| **size != 1) {
        let first = *down.get_or_insert(stride);
        if first.checked_mul(count) != Some(stride) {
            return None;
        }
        count = count.checked_mul(size)?;
    }
    let along = *access.strides.get(3)?;
    Some(Access { strides: vec![down.unwrap_or(0), along], ..access.clone() })
}

/// An error if the sizes of a convolution are invalid.
fn expect(k: &Conv2d<i64>) -> Result<()> {
    let (groups, channels) = (k.groups as i64, k.input_size[2]);
    let divides = groups > 0 && k.depth.checked_mul(groups) == Some(channels) && k.out[3] % groups == 0;
    if k.filter.dtype != k.input.dtype || !divides || k.stride.contains(&0) || k.dilation.contains(&0) {
        bail!(internal, "an invalid convolution: {k:?}");
    }
    for axis in 0..2 {
        // The last input position that a tap reads must stay within what the functions can index.
        let reach = |at: i64, step: usize| i128::from(at.max(1) - 1) * step as i128;
        let last = reach(k.out[axis + 1], k.stride[axis]) + reach(k.filter_size[axis], k.dilation[axis]);
        if last > 1 << 61 || k.padding[axis] > 1 << 61 {
            bail!(internal, "the input positions of a convolution overflow: {k:?}");
        }
    }
    row_major(&k.out)?;
    row_major(&[k.filter_size[0], k.filter_size[1], channels])?;
    Ok(())
}

/// A convolution with a filter of one tap, which never reads padding, as a matmul of rows of pixels.
fn as_matmul(k: &Conv2d<i64>) -> Option<Matmul<i64>> {
    let inside = |axis: usize| (k.out[axis + 1] - 1).checked_mul(k.stride[axis] as i64);
    let fits = |axis: usize| inside(axis).is_some_and(|last| last < k.input_size[axis]);
    if k.filter_size != [1, 1] || k.groups != 1 || k.padding != [0, 0] || !fits(0) || !fits(1) {
        return None;
    }
    let mut lhs = k.input.clone();
    for axis in 0..2 {
        lhs.strides[axis + 1] = lhs.strides[axis + 1].checked_mul(k.stride[axis] as i64)?;
    }
    let mut rhs = k.filter.clone();
    rhs.strides[..2].fill(0);
    let [batch, height, width, filters] = k.out;
    let epilogue = k.epilogue.clone();
    Some(Matmul { batch: vec![batch, height], m: width, n: filters, k: k.input_size[2], lhs, rhs, epilogue })
}

/// The filters and channels of a group.
fn of_group(k: &Conv2d<i64>) -> [i64; 2] {
    [k.out[3] / k.groups as i64, k.input_size[2] / k.groups as i64]
}

/// The length of a window; the sizes of a checked kernel do not overflow.
fn depth(k: &Conv2d<i64>) -> i64 {
    let [_, channels] = of_group(k);
    k.filter_size[0].saturating_mul(k.filter_size[1]).saturating_mul(channels)
}

/// Into how many parts windows are split to use more of the GPU. Windows of integers are not split.
fn parts(k: &Conv2d<i64>, method: ConvMethod, multiprocessors: u32) -> i64 {
    if method == ConvMethod::Direct || !k.input.dtype.is_float() {
        return 1;
    }
    let idle = i64::from(multiprocessors / blocks(k, method).max(1));
    let most = match method {
        ConvMethod::Hopper(tiling) => tiling.most_parts(k),
        _ => PARTS,
    };
    idle.min(depth(k) / PART).min(most).clamp(1, PARTS)
}

/// The length of a part: a multiple of the slices of every function, or a number of steps.
fn part_depth(k: &Conv2d<i64>, method: ConvMethod, parts: i64) -> i64 {
    match method {
        ConvMethod::Hopper(tiling) => tiling.part(k, parts),
        _ => ((depth(k) as u64).div_ceil(parts as u64).next_multiple_of(32)) as i64,
    }
}

fn method(k: &Conv2d<i64>, capability: (u32, u32), multiprocessors: u32) -> ConvMethod {
    let [filters, channels] = of_group(k);
    if filters <= FEW || (filters <= FEW_OF_BOTH && channels <= FEW_OF_BOTH) {
        return ConvMethod::Direct;
    }
    let small = |size: i64| size < 1 << 30;
    if !k.input.dtype.is_half() || capability < (8, 0) || !small(depth(k)) || !small(filters) {
        return ConvMethod::Tiles;
    }
    if capability == HOPPER
        && let Some(tiling) = Tiling::of(k, multiprocessors)
    {
        return ConvMethod::Hopper(tiling);
    }
    let wide = ConvMethod::Tensor(128);
    if filters > 64 && blocks(k, wide) >= multiprocessors { wide } else { ConvMethod::Tensor(64) }
}

/// The number of thread blocks.
fn blocks(k: &Conv2d<i64>, method: ConvMethod) -> u32 {
    let [filters, _] = of_group(k);
    let positions: u64 = k.out[..3].iter().map(|&size| size as u64).product();
    let tiles = |tall: u64, wide: u64| {
        let across = (filters as u64).div_ceil(wide) * k.groups as u64;
        positions.div_ceil(tall).saturating_mul(across)
    };
    let blocks = match method {
        ConvMethod::Direct => positions.saturating_mul(k.out[3] as u64).div_ceil(256),
        ConvMethod::Tiles => tiles(64, 64),
        ConvMethod::Tensor(wide) => tiles(128, wide),
        ConvMethod::Hopper(tiling) => tiling.tiles(k),
    };
    blocks.clamp(1, 1 << 30) as u32
}

/// The numbers that every function takes, in the order of `sizes.cu`.
fn numbers(k: &Conv2d<i64>, store: &Access<i64>) -> Vec<i64> {
    let mut numbers = [&k.out[..], &k.input_size, &k.filter_size].concat();
    numbers.extend([k.stride, k.dilation, k.padding].as_flattened().iter().map(|&step| step as i64));
    numbers.push(k.groups as i64);
    for access in [&k.input, &k.filter, store] {
        numbers.extend(&access.strides);
    }
    let [filters, channels] = of_group(k);
    numbers.extend([is_whole(&k.input, channels), is_whole(&k.filter, filters)].map(i64::from));
    numbers
}

/// Whether eight elements of a last axis, which groups divide into parts of a size, can be accessed at once: they are
/// contiguous, and all distances are multiples of eight.
fn is_whole(access: &Access<i64>, size: i64) -> bool {
    let multiples =
        [access.offset, size].iter().chain(&access.strides[..3]).all(|distance| distance % 8 == 0);
    access.strides[3] == 1 && multiples
}

/// The function for a method, the dtype of the operands and what happens to sums.
fn source(method: ConvMethod, from: DType, finish: &Finish) -> Source {
    let to = finish.store.dtype;
    let bits = if from == DType::BFloat16 { "\"bf16\"" } else { "\"f16\"" };
    let (name, words, text) = match method {
        ConvMethod::Direct => ("direct".to_string(), vec![], include_str!("conv/direct.cu")),
        ConvMethod::Tiles => {
            ("tiles".to_string(), vec![], concat!(include_str!("tiles.cuh"), include_str!("conv/tiles.cu")))
        }
        ConvMethod::Tensor(wide) => {
            let words = vec![("BITS", bits), ("WIDE", if wide == 128 { "128" } else { "64" })];
            (format!("tensor{wide}"), words, include_str!("conv/tensor.cu"))
        }
        ConvMethod::Hopper(tiling) => return tiling.source(from, finish),
    };
    let text = [include_str!("conv/sizes.cu"), text].concat();
    typed(&format!("conv_{name}_{from}_{to}"), &[("IN", from), ("OUT", to)], &words, &text)
}
