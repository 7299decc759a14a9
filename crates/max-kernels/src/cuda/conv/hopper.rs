//! Convolutions on the tensor cores of Hopper GPUs: whether they can be computed by `hopper.cu`, and in which tiles.

use std::borrow::Cow;

use max_core::DType;
use max_core::kernel::Conv2d;
use max_driver::cuda::Source;

use super::super::loops::{PRELUDE, named};
use super::super::text::typed;
use super::{Finish, is_whole, of_group};

/// The positions of a warpgroup, the channels of a step, and the bytes of a row of them in shared memory.
const POSITIONS: i64 = 64;
const CHANNELS: i64 = 64;
const PITCH: i64 = 2 * CHANNELS;

/// The fewest channels of a group that are worth a step.
const FEWEST_CHANNELS: i64 = 32;

/// The most taps: each has a bit.
const MOST_TAPS: i64 = 32;

/// The bytes of barriers in shared memory, and what a multiprocessor has for its blocks and takes for each.
const BARRIERS: i64 = 1 << 10;
const SHARED: i64 = 228 << 10;
const RESERVED: i64 = 1 << 10;

/// The tiles that blocks compute, and how their threads share the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiling {
    /// The warpgroups that multiply.
    warpgroups: i64,
    /// The filters of a tile.
    wide: i64,
    /// Whether pixels are copied once for all taps.
    pub(super) is_sliding: bool,
    /// The blocks of a multiprocessor.
    pub(super) blocks: u32,
    stages: i64,
    /// The warpgroups that copy.
    copiers: i64,
    /// The registers of threads that copy and that multiply, where they are not the same.
    registers: Option<[i64; 2]>,
    /// How long a step takes if a multiprocessor has one block, and if it has all it can have. Only ratios matter.
    costs: [u64; 2],
}

pub(super) const TILINGS: [Tiling; 8] = [
    Tiling { registers: Some([40, 96]), costs: [37, 80], ..tiling(2, 64, true, 2, 4, 1) },
    Tiling { registers: Some([56, 152]), costs: [47, 47], ..tiling(3, 64, true, 1, 6, 1) },
    Tiling { registers: Some([56, 152]), costs: [72, 72], ..tiling(3, 128, true, 1, 4, 1) },
    Tiling { registers: Some([56, 224]), costs: [48, 48], ..tiling(2, 128, true, 1, 6, 1) },
    Tiling { registers: Some([80, 104]), costs: [80, 80], ..tiling(3, 128, false, 1, 4, 2) },
    Tiling { costs: [53, 53], ..tiling(2, 128, false, 1, 4, 2) },
    Tiling { costs: [32, 55], ..tiling(1, 128, false, 2, 4, 1) },
    Tiling { costs: [47, 110], ..tiling(2, 64, false, 2, 4, 2) },
];

const fn tiling(
    warpgroups: i64,
    wide: i64,
    is_sliding: bool,
    blocks: u32,
    stages: i64,
    copiers: i64,
) -> Tiling {
    Tiling { warpgroups, wide, is_sliding, blocks, stages, copiers, registers: None, costs: [0, 0] }
}

impl Tiling {
    /// The best tiling for a convolution of 16-bit floats; `None` if it cannot be computed in tiles, or not well.
    pub(super) fn of(k: &Conv2d<i64>, multiprocessors: u32) -> Option<Tiling> {
        let [filters, channels] = of_group(k);
        let operands = is_whole(&k.input, channels) && is_whole(&k.filter, filters);
        if !operands || channels < FEWEST_CHANNELS || !fits(k) {
            return None;
        }
        let fitting = TILINGS.into_iter().filter(|tiling| tiling.shared(k).is_some());
        fitting.min_by_key(|tiling| tiling.cost(k, multiprocessors))
    }

    /// The positions of a tile.
    pub(super) fn tall(&self) -> i64 {
        POSITIONS * self.warpgroups
    }

    pub(super) fn tiles(&self, k: &Conv2d<i64>) -> u64 {
        let [filters, _] = of_group(k);
        let positions: u64 = k.out[..3].iter().map(|&size| size as u64).product();
        let across = (filters as u64).div_ceil(self.wide as u64);
        positions.div_ceil(self.tall() as u64) * across * k.groups as u64
    }

    fn cost(&self, k: &Conv2d<i64>, multiprocessors: u32) -> u64 {
        let (tiles, multiprocessors) = (self.tiles(k), u64::from(multiprocessors.max(1)));
        let [one, all] = self.costs;
        let rounds = tiles.div_ceil(multiprocessors * u64::from(self.blocks));
        if tiles <= multiprocessors { one } else { rounds.saturating_mul(all) }
    }

    pub(super) fn threads(&self) -> u32 {
        128 * (self.warpgroups + self.copiers) as u32
    }

    /// The bytes of shared memory of a block; `None` if that is too much, or if strips make no sense.
    pub(super) fn shared(&self, k: &Conv2d<i64>) -> Option<u32> {
        let right = self.stages * self.wide * CHANNELS * 2;
        let left = if self.is_sliding {
            let (taps, strip) = (taps(k), self.strip(k)?);
            // A strip is copied while the taps of another one are multiplied, after the ring has been filled.
            if taps <= self.stages || 2 * strip > taps * self.tall() {
                return None;
            }
            strip * (2 * PITCH + 4)
        } else {
            self.stages * self.tall() * PITCH
        };
        let bytes = BARRIERS + right + left;
        ((bytes + RESERVED) * i64::from(self.blocks) <= SHARED).then_some(bytes as u32)
    }

    /// The most pixels of padded images that the windows of a tile see, from the first one to the last. `None` if the
    /// windows go so far beyond the images that they do not come in the order of the pixels: the first one of the next line,
    /// or of the next image, may then start before the last one.
    pub(super) fn strip(&self, k: &Conv2d<i64>) -> Option<i64> {
        let [images, height, width, _] = k.out;
        let ([lines, line], [down, across]) =
            ([padded(k, 0), padded(k, 1)], k.stride.map(|step| step as i64));
        let back = (width - 1) * across;
        let comes_later =
            [down * line - back, (lines - (height - 1) * down) * line - back].map(|step| step >= 0);
        if (height > 1 && !comes_later[0]) || (images > 1 && !comes_later[1]) {
            return None;
        }
        // A step to the next line, or to the next image, is longer than one to the next position.
        let steps = self.tall() - 1;
        let next_line = (down * line - width * across).max(0) * (steps as u64).div_ceil(width as u64) as i64;
        let images = (steps as u64).div_ceil((width * height) as u64) as i64;
        let next_image = ((lines - height * down) * line).max(0) * images;
        let window = (k.filter_size[0] - 1) * k.dilation[0] as i64 * line
            + (k.filter_size[1] - 1) * k.dilation[1] as i64
            + 1;
        Some(steps * across + next_line + next_image + window)
    }

    /// The steps of all parts but the last. Strips are not divided.
    pub(super) fn part(&self, k: &Conv2d<i64>, parts: i64) -> i64 {
        let (taps, slices) = (taps(k), slices(k));
        let rounded_up = |steps: i64| (steps as u64).div_ceil(parts as u64) as i64;
        if self.is_sliding { rounded_up(slices) * taps } else { rounded_up(slices * taps) }
    }

    /// The most parts that windows can be split into.
    pub(super) fn most_parts(&self, k: &Conv2d<i64>) -> i64 {
        if self.is_sliding { slices(k) } else { slices(k) * taps(k) }
    }

    /// The function that computes tiles of operands of a dtype and finishes them.
    pub(super) fn source(&self, from: DType, finish: &Finish) -> Source {
        let to = finish.store.dtype;
        let [fewer, more] = self.registers.unwrap_or_default();
        let numbers = [
            ("WARPGROUPS", self.warpgroups),
            ("WIDE", self.wide),
            ("SLIDING", i64::from(self.is_sliding)),
            ("BLOCKS", i64::from(self.blocks)),
            ("STAGES", self.stages),
            ("COPIERS", 128 * self.copiers),
            ("FEWER", fewer),
            ("MORE", more),
        ];
        let numbers = numbers.map(|(word, number)| (word, number.to_string()));
        let mut words: Vec<(&str, &str)> =
            numbers.iter().map(|(word, number)| (*word, number.as_str())).collect();
        words.extend([
            ("BITS", bits(from)),
            ("ENDING_PARAMETERS", &finish.parameters),
            ("ENDING", &finish.body),
        ]);
        if to.is_half() {
            words.push(("OUT_BITS", bits(to)));
        }
        let text = concat!(include_str!("sizes.cu"), include_str!("hopper.cu"));
        let name = named(&format!("conv_hopper_{from}_{to}"), &format!("{words:?}"));
        let source = typed(&name, &[("IN", from), ("OUT", to)], &words, text);
        let prelude = if finish.parameters.is_empty() { "" } else { PRELUDE.as_str() };
        Source { prelude: Cow::Borrowed(prelude), ..source }
    }
}

fn bits(dtype: DType) -> &'static str {
    if dtype == DType::BFloat16 { "\"bf16\"" } else { "\"f16\"" }
}

fn taps(k: &Conv2d<i64>) -> i64 {
    k.filter_size[0] * k.filter_size[1]
}

/// How many steps the channels of a group are.
fn slices(k: &Conv2d<i64>) -> i64 {
    (of_group(k)[1] as u64).div_ceil(CHANNELS as u64) as i64
}

/// The size of an axis of an image with as few zeros as windows need between images.
pub(super) fn padded(k: &Conv2d<i64>, axis: usize) -> i64 {
    let padding = k.padding[axis] as i64;
    let reach = (k.filter_size[axis] - 1) * k.dilation[axis] as i64;
    let last = (k.out[axis + 1] - 1) * k.stride[axis] as i64 + reach;
    (k.input_size[axis] + padding).max(last + 1 - padding)
}

/// Whether all that the function computes in 32 bits fits in them.
fn fits(k: &Conv2d<i64>) -> bool {
    let reach = |axis: usize| {
        let steps = |count: i64, step: usize| i128::from(count) * step as i128;
        let window = steps(k.filter_size[axis], k.dilation[axis]) + 2 * k.padding[axis] as i128;
        steps(k.out[axis + 1], k.stride[axis]) + window + i128::from(k.input_size[axis])
    };
    let extent = |counts: [i128; 4], strides: &[i64]| -> i128 {
        let steps = counts.iter().zip(strides);
        steps
            .map(|(&count, &stride)| count.saturating_mul(i128::from(stride).abs()))
            .fold(0, i128::saturating_add)
    };
    let [filters, channels] = of_group(k).map(i128::from);
    let [taps_down, taps_across] = k.filter_size.map(i128::from);
    let images = [i128::from(k.out[0]) + 1, reach(0), reach(1)];
    let padded = images.iter().fold(1i128, |product, &size| product.saturating_mul(size));
    let positions = k.out.iter().fold(1i128, |product, &size| product.saturating_mul(i128::from(size)));
    let input = extent([images[0], images[1], images[2], channels], &k.input.strides);
    let filter =
        extent([taps_down, taps_across, channels + i128::from(CHANNELS), filters], &k.filter.strides);
    let limit = 1i128 << 30;
    taps_down.saturating_mul(taps_across) <= i128::from(MOST_TAPS)
        && [padded, input, filter].iter().all(|&size| size < limit)
        && positions < 1 << 40
        && i128::from(k.groups as i64) * i128::from(of_group(k)[1]) < limit
}
