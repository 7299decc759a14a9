//! Convolutions on a GPU: implicit GEMMs of windows and filters, whose windows are never materialized.
//!
//! Filters of one tap are plain matmuls. There are functions for all others: one on tensor cores for 16-bit floats, one
//! in tiles for other types, and one for groups too small for either.

#[cfg(test)]
mod tests;

use max_core::kernel::{Access, Conv2d, Matmul};
use max_core::{DType, Result, bail};
use max_driver::cuda::Source;

use super::epilogue::{of_parts, of_zeros};
use super::matmul::{row_major, stored};
use super::text::typed;
use super::{Address, Call, Param, Plan, PlannedLaunch, SCRATCH};

/// The most filters of a group that is computed directly, with any number of channels and with as few channels.
const FEW: i64 = 4;
const FEW_OF_BOTH: i64 = 16;

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
        let parts = parts(k, method(k, capability, multiprocessors), multiprocessors);
        if parts > 1 {
            return self.convolve_in_parts(k, parts);
        }
        if let Some(store) = stored(&k.epilogue) {
            return self.convolve(k, &store, 1, 0);
        }
        let (strides, count) = row_major(&k.out)?;
        let result = Access { slot: SCRATCH, dtype, offset: self.scratch(dtype, count)?, strides };
        self.convolve(k, &result, 1, 0)?;
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
        self.convolve(k, &part(0), parts, apart)?;
        self.loop_(&of_parts(&k.epilogue, (0..parts).map(part).collect()))
    }

    /// Adds a convolution that is stored without an epilogue, or `parts` of it that are stored `apart` elements apart.
    fn convolve(&mut self, k: &Conv2d<i64>, store: &Access<i64>, parts: i64, apart: i64) -> Result<()> {
        let method = method(k, self.gpu.compute_capability(), self.gpu.multiprocessors());
        let mut params: Vec<Param> =
            [&k.input, &k.filter, store].map(|access| Param::Address(Address::of(access))).to_vec();
        params.extend(numbers(k, store).into_iter().map(Param::Number));
        params.extend([part_depth(k, parts), apart].map(Param::Number));
        self.launches.push(PlannedLaunch::Function(Call {
            source: source(method, k.input.dtype, store.dtype),
            grid: [blocks(k, method), parts as u32, 1],
            block: [256, 1, 1],
            shared: 0,
            params,
        }));
        Ok(())
    }
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
    let idle = multiprocessors / blocks(k, method).max(1);
    i64::from(idle).min(depth(k) / PART).clamp(1, PARTS)
}

/// The length of a part: a multiple of the slices of every function.
fn part_depth(k: &Conv2d<i64>, parts: i64) -> i64 {
    ((depth(k) as u64).div_ceil(parts as u64).next_multiple_of(32)) as i64
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
    // Whether eight elements can be read at once: they are contiguous, and all distances are multiples of eight.
    let [filters, channels] = of_group(k);
    let whole = |access: &Access<i64>, size: i64| {
        let steps = &access.strides[..3];
        let multiples = [access.offset, size].iter().chain(steps).all(|distance| distance % 8 == 0);
        i64::from(access.strides[3] == 1 && multiples)
    };
    numbers.extend([whole(&k.input, channels), whole(&k.filter, filters)]);
    numbers
}

/// The function for a method and the dtypes of operands and result.
fn source(method: ConvMethod, from: DType, to: DType) -> Source {
    let bits = if from == DType::BFloat16 { "\"bf16\"" } else { "\"f16\"" };
    let (name, words, text) = match method {
        ConvMethod::Direct => ("direct".to_string(), vec![], include_str!("conv/direct.cu")),
        ConvMethod::Tiles => ("tiles".to_string(), vec![], include_str!("conv/tiles.cu")),
        ConvMethod::Tensor(wide) => {
            let words = vec![("BITS", bits), ("WIDE", if wide == 128 { "128" } else { "64" })];
            (format!("tensor{wide}"), words, include_str!("conv/tensor.cu"))
        }
    };
    let text = [include_str!("conv/sizes.cu"), text].concat();
    typed(&format!("conv_{name}_{from}_{to}"), &[("IN", from), ("OUT", to)], &words, &text)
}
