//! Functions on tiles: short runs of elements that stay in the L1 cache.
//!
//! A tile program runs instruction by instruction, each over a whole tile; every instruction is one of the functions of
//! this module, compiled for the vector units of this machine. They work on groups of [`GROUP`] elements in register
//! form: narrow floats are held as f32, bool as a byte that is 0 or 1, everything else as in memory.

mod chain;
mod index;
mod lanes;
mod map;
mod memory;
mod narrow;
mod reduce;
mod transpose;

pub(crate) use crate::simd::fence;
pub(crate) use chain::{Act, BLOCK, ChainFn, Form, Segment, Step, chain};

use max_core::kernel::{Literal, Reduction};
use max_core::{DType, Distribution, Element, Result, ScalarOp, dispatch};

use crate::simd::Isa;

/// Elements in a group, the unit of tile functions. Tiles of registers are padded to a multiple of it.
pub(crate) const GROUP: usize = 64;

/// How many elements a lane of a reduction combines in order. The results of such runs are combined pairwise, so that the
/// rounding error of a sum grows with the logarithm of its length.
pub(crate) const RUN: usize = 64;

/// The order of pairwise combination, as a stack: the result of run `number` of `runs` goes to the level that is the number of
/// ones in its binary form; then each of the returned levels, the top one first, is combined into the one below. After the
/// last run, level zero has the result. A power of two of runs that starts at a multiple of it is combined before anything
/// else, so such parts may be computed separately and are then combined in the same way.
pub(crate) fn merged(number: usize, runs: usize) -> impl Iterator<Item = usize> {
    let kept = if number + 1 == runs { 1 } else { (number + 1).count_ones() as usize };
    (kept..=number.count_ones() as usize).rev()
}

/// The levels of the stack for a number of runs.
pub(crate) const fn levels(runs: usize) -> usize {
    1 + (usize::BITS - runs.saturating_sub(1).leading_zeros()) as usize
}

/// An operand of a tile function: contiguous elements, or one group of equal elements used for every group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arg {
    pub(crate) ptr: *const u8,
    pub(crate) repeat: bool,
}

/// Computes groups of a tile. The result and an operand may be the same tile, but not overlap otherwise; operands need
/// not be aligned. Functions of fewer than three operands ignore the rest.
///
/// # Safety
///
/// `dst` is valid for `groups` groups of results, and each operand it uses for as many groups (one group if it
/// repeats).
pub(crate) type TileFn = unsafe fn(dst: *mut u8, args: [Arg; 3], groups: usize);

/// Loads elements `stride` apart, in elements, into a register tile. The rest of the last group repeats the last
/// element.
///
/// # Safety
///
/// The elements can be read, and `dst` is valid for whole groups.
pub(crate) type LoadFn = unsafe fn(dst: *mut u8, src: *const u8, stride: isize, count: usize);

/// Writes the positions `start + row * strides[0] + column * strides[1]` as int64, row by row. The rest of the last
/// group repeats the last element.
///
/// # Safety
///
/// `dst` is valid for whole groups.
pub(crate) type IndexFn = unsafe fn(dst: *mut u8, start: i64, strides: [i64; 2], rows: usize, cols: usize);

/// Stores elements of a register tile `stride` apart, in elements.
///
/// # Safety
///
/// The elements can be written, `src` holds them, and the two do not overlap.
pub(crate) type StoreFn = unsafe fn(dst: *mut u8, stride: isize, src: *const u8, count: usize);

/// Combines elements into the lanes of `acc`, one group: lane j takes the elements j, j + 64, ..
///
/// # Safety
///
/// `acc` holds a group, and `src` holds `count` elements (a group if it repeats).
pub(crate) type ReduceFn = unsafe fn(acc: *mut u8, src: Arg, count: usize);

/// Reduces rows of contiguous elements, `stride` elements apart, to one element each: runs of [`RUN`] groups as `start` and
/// `add` of a [`Reducer`] do, the lanes of runs in the order of [`merged`], and these as `finish` does.
///
/// # Safety
///
/// The rows can be read, and `dst` has room for one element per row.
pub(crate) type RowsFn = unsafe fn(dst: *mut u8, src: *const u8, stride: isize, rows: usize, count: usize);

/// The functions of a reduction. `start` sets lanes to the identity, `finish` combines the lanes in a fixed order and
/// writes the result to each. Both take a group, in register form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reducer {
    pub(crate) start: unsafe fn(acc: *mut u8),
    pub(crate) add: ReduceFn,
    pub(crate) finish: unsafe fn(acc: *mut u8),
    /// Reduces whole rows.
    pub(crate) rows: RowsFn,
}

/// The bytes of an element in a register tile.
pub(crate) fn register_size(dtype: DType) -> usize {
    if dtype.is_float() { dtype.size_in_bytes().max(4) } else { dtype.size_in_bytes() }
}

/// Whether elements in memory can be operands in place.
pub(crate) fn direct(dtype: DType) -> bool {
    dtype != DType::Bool && register_size(dtype) == dtype.size_in_bytes()
}

/// An op of the scalar table on operands of a dtype; comparisons give bool. Functions of real numbers are for floats.
pub(crate) fn apply(op: ScalarOp, dtype: DType) -> Result<TileFn> {
    map::apply(Isa::best(), op, dtype)
}

/// The second operand where the first, a bool, is true, else the third.
pub(crate) fn select(dtype: DType) -> TileFn {
    map::select(Isa::best(), dtype)
}

/// Converts as a cast op does: floats to integers truncate and saturate, integers wrap, narrow results are rounded.
pub(crate) fn cast(from: DType, to: DType) -> TileFn {
    map::cast(Isa::best(), from, to)
}

/// Random numbers as float32 or float64, of seeds at positions: both are tiles of 64-bit integers.
pub(crate) fn random(distribution: Distribution, dtype: DType) -> Result<TileFn> {
    map::random(Isa::best(), distribution, dtype)
}

/// Positions in a register tile.
pub(crate) fn index() -> IndexFn {
    index::index(Isa::best())
}

/// From memory into a register tile.
pub(crate) fn load(dtype: DType) -> LoadFn {
    memory::load(Isa::best(), dtype)
}

/// From a register tile to memory, past the caches if `streaming` and the stride is one; after streaming, [`fence`]
/// must be called before other threads read.
pub(crate) fn store(dtype: DType, streaming: bool) -> StoreFn {
    memory::store(Isa::best(), dtype, streaming)
}

/// A reduction of elements of a dtype by sum, product, maximum or minimum.
pub(crate) fn reducer(kind: Reduction, dtype: DType) -> Result<Reducer> {
    reduce::reducer(Isa::best(), kind, dtype)
}

/// Writes a group of equal elements.
///
/// # Safety
///
/// `dst` is valid for a group of registers.
pub(crate) unsafe fn splat(literal: Literal, dst: *mut u8) {
    let bytes = literal.bits.to_le_bytes();
    dispatch!(literal.dtype, T => {
        let element: T = bytemuck::pod_read_unaligned(&bytes[..size_of::<T>()]);
        let register = T::from_lane(element.to_lane()).to_lane();
        // SAFETY: guaranteed by the caller.
        unsafe { dst.cast::<[<T as Element>::Lane; GROUP]>().write_unaligned([register; GROUP]) }
    })
}

/// Transposes elements of 1, 2, 4 or 8 bytes: `dst[c * dst_stride + r] = src[r * src_stride + c]` for all rows r and
/// columns c; strides are in elements.
///
/// # Safety
///
/// All these elements can be read and written, and the two sides do not overlap.
pub(crate) unsafe fn transpose(
    size: usize,
    dst: *mut u8,
    dst_stride: usize,
    src: *const u8,
    src_stride: isize,
    rows: usize,
    cols: usize,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match size {
            1 => transpose::transpose::<u8>(dst, dst_stride, src, src_stride, rows, cols),
            2 => transpose::transpose::<u16>(dst.cast(), dst_stride, src.cast(), src_stride, rows, cols),
            4 => transpose::transpose::<u32>(dst.cast(), dst_stride, src.cast(), src_stride, rows, cols),
            _ => transpose::transpose::<u64>(dst.cast(), dst_stride, src.cast(), src_stride, rows, cols),
        }
    }
}

#[cfg(test)]
mod tests;
