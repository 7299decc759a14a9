//! Activations as integers: blocks of [`DEPTH`] elements with a scale each.

use max_core::quantization::{ACTIVATIONS, Format, activation_scale};

use super::panel::DEPTH;
use crate::simd::{Isa, versions};

/// How many rows kernels take at a time. Some machines have none for the last.
pub(super) const HEIGHTS: [usize; 5] = [1, 2, 4, 8, 16];

/// The most rows that a kernel takes.
pub(super) const TALL: usize = HEIGHTS[HEIGHTS.len() - 1];

/// The number of the height of the next tile of this many rows, where there are kernels for this many heights.
pub(super) fn height(rows: usize, heights: usize) -> usize {
    (rows.ilog2() as usize).min(heights - 1)
}

/// Rows in tiles. A tile of `h` rows has its blocks one after the other, each for all rows; those that are not quantized have
/// their elements by position, each for all rows. Then the scales of blocks and the negative sums of elements are ordered
/// alike.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) elements: *mut u8,
    pub(super) scales: *mut f32,
    /// The negative sums over whole blocks, and over their halves.
    pub(super) sums: [*mut f32; 2],
    /// The bytes of an element: one, or those of a float if they are not quantized.
    pub(super) size: usize,
    /// Whether weights that are floats have scales.
    pub(super) scaled: bool,
}

// SAFETY: they are only addresses; whoever reads or writes there guarantees that this is allowed.
unsafe impl Sync for Rows {}
// SAFETY: as above.
unsafe impl Send for Rows {}

/// The elements of half a block.
const HALF: usize = DEPTH / 2;

impl Rows {
    /// The tile that starts at a row, where rows have this many blocks.
    pub(super) fn at(self, row: usize, blocks: usize) -> Rows {
        let [whole, halves] = self.sums;
        Rows {
            elements: self.elements.wrapping_add(row * blocks * DEPTH * self.size),
            scales: self.scales.wrapping_add(row * blocks),
            sums: [whole.wrapping_add(row * blocks), halves.wrapping_add(2 * row * blocks)],
            ..self
        }
    }

    /// Quantizes a row into a tile of some height.
    ///
    /// # Safety
    ///
    /// The row has this many blocks, and there is room for the tile.
    pub(super) unsafe fn quantize(self, from: *const f32, blocks: usize, at: usize, height: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { version::<Quantize>(Isa::best())(self, from, blocks, at, height) }
    }

    /// Puts a row into a tile of some height as it is.
    ///
    /// # Safety
    ///
    /// The row has this many blocks, and there is room for the tile.
    pub(super) unsafe fn spread(self, from: *const f32, blocks: usize, at: usize, height: usize) {
        for position in 0..blocks * DEPTH {
            // SAFETY: guaranteed by the caller.
            unsafe {
                self.elements.cast::<f32>().add(position * height + at).write(from.add(position).read())
            };
        }
    }
}

trait Body {
    /// See [`Rows::quantize`].
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn run<const FMA: bool>(to: Rows, from: *const f32, blocks: usize, at: usize, height: usize);
}

versions!(version: Body, fn(to: Rows, from: *const f32, blocks: usize, at: usize, height: usize));

struct Quantize;

impl Body for Quantize {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(to: Rows, from: *const f32, blocks: usize, at: usize, height: usize) {
        // Added to a small float, it leaves the nearest integer in the lowest bits, to even if there are two.
        const ROUND: f32 = (3 << 22) as f32;
        for block in 0..blocks {
            // SAFETY: guaranteed by the caller.
            let values = unsafe { from.add(block * DEPTH).cast::<[f32; DEPTH]>().read_unaligned() };
            let mut largest = 0;
            for value in values {
                largest = u32::max(largest, value.to_bits() & (u32::MAX >> 1));
            }
            let largest = f32::from_bits(largest);
            let (scale, inverse) = activation_scale(largest);
            let mut elements = [0i8; DEPTH];
            let mut sums = [0i32; 2];
            for (half, sum) in sums.iter_mut().enumerate() {
                for i in half * HALF..(half + 1) * HALF {
                    let value = if inverse == 0.0 { 0.0 } else { values[i] * inverse };
                    let rounded = (value + ROUND).to_bits().cast_signed() - ROUND.to_bits().cast_signed();
                    elements[i] = rounded as i8;
                    *sum -= rounded;
                }
            }
            let place = block * height + at;
            // SAFETY: guaranteed by the caller: these places are inside the tile.
            unsafe {
                to.elements.cast::<[i8; DEPTH]>().add(place).write(elements);
                to.scales.add(place).write(scale);
                to.sums[0].add(place).write((sums[0] + sums[1]) as f32);
                for (half, sum) in sums.into_iter().enumerate() {
                    to.sums[1].add((block * 2 + half) * height + at).write(sum as f32);
                }
            }
        }
    }
}

const _: () = assert!(DEPTH == ACTIVATIONS && HALF == Format::ELEMENTS / Format::GROUPS);
