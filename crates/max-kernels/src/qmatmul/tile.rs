//! The innermost loops: a panel times a tile of rows, for each vector unit.
//!
//! Every kernel sums an element in the same order: integers within a group of the weights, then groups within a block of the
//! activations, then blocks from the first to the last. So a row has the same bits alone and in company.

#[cfg_attr(target_arch = "x86_64", path = "tile/x86_64.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "tile/baseline.rs")]
mod arch;
mod floats;
mod plain;

use max_core::Element;
use max_core::quantization::{Codes, QuantizationEncoding, Storage};

use super::activations::Rows;
use super::panel::{self, CHUNK, DEPTH, Layout, Pack, QUADS, Scales, WIDTH};
use crate::simd::prefetch_near;

pub(super) use floats::{float_block, float_kernels};

/// Multiplies a panel, which has at least one block, by tiles of rows, one after the other. The result has this distance between
/// its rows.
pub(super) type Tile =
    unsafe fn(blocks: usize, panel: *const u8, rows: Rows, tiles: usize, to: *mut f32, stride: usize);

/// How far ahead panels are prefetched.
const AHEAD: usize = 4096;

/// A vector unit: registers of `LANES` columns.
///
/// The functions of a unit may only be called where its instructions exist, with addresses of as many elements as they say.
pub(super) trait Unit {
    const LANES: usize;
    /// Four bytes or an integer per column.
    type Ints: Copy;
    /// A float per column.
    type Floats: Copy;

    unsafe fn zeros() -> Self::Ints;
    /// Four bytes per column.
    unsafe fn load(from: *const u8) -> Self::Ints;
    unsafe fn keep(bytes: Self::Ints, to: *mut u8);
    /// Some bits of every byte: shifted to the right, or to the left if that is negative, and masked.
    unsafe fn bits(bytes: Self::Ints, right: i32, mask: u8) -> Self::Ints;
    unsafe fn or(x: Self::Ints, y: Self::Ints) -> Self::Ints;
    /// Bytes of a table with sixteen, by number.
    unsafe fn look_up(table: &[u8; 16], numbers: Self::Ints) -> Self::Ints;
    /// Adds the products of four unsigned bytes per column, less than 128 unless they are `wide`, and four signed ones.
    unsafe fn dot(sum: Self::Ints, bytes: Self::Ints, four: *const u8, wide: bool) -> Self::Ints;
    unsafe fn to_floats(ints: Self::Ints) -> Self::Floats;
    unsafe fn splat(value: f32) -> Self::Floats;
    unsafe fn mul(x: Self::Floats, y: Self::Floats) -> Self::Floats;
    /// `sum + x * y`.
    unsafe fn add_product(sum: Self::Floats, x: Self::Floats, y: Self::Floats) -> Self::Floats;
    /// A float16 per column.
    unsafe fn halves(from: *const u8) -> Self::Floats;
    /// Half of a power of two per column, from its exponent.
    unsafe fn powers(from: *const u8) -> Self::Floats;
    /// A signed byte per column.
    unsafe fn small(from: *const u8) -> Self::Floats;
    /// Elements of a float type, one per column.
    unsafe fn widen<T: Element<Lane = f32>>(from: *const u8) -> Self::Floats;
    unsafe fn add(x: Self::Floats, y: Self::Floats) -> Self::Floats;
    unsafe fn store(floats: Self::Floats, to: *mut f32);
}

/// Four codes per column as unsigned bytes above their offset.
#[inline(always)]
unsafe fn quad<U: Unit>(layout: &Layout, codes: *const u8, number: usize) -> U::Ints {
    let (mut vectors, mut up, mut quad) = (0, 0, None);
    for plane in layout.planes {
        let bits = plane.bits as usize;
        // SAFETY: guaranteed by the caller: the codes of a block can be read.
        unsafe {
            let bytes = U::load(codes.add((vectors + number % bits) * 4 * WIDTH));
            let shift = (bits * (number / bits)) as i32;
            let bytes = if bits == 8 { bytes } else { U::bits(bytes, shift - up, plane.mask() << up) };
            quad = Some(match quad {
                Some(quad) => U::or(quad, bytes),
                None => bytes,
            });
        }
        (vectors, up) = (vectors + bits, up + plane.bits as i32);
    }
    // SAFETY: there is at least one plane.
    let quad = unsafe { quad.unwrap_unchecked() };
    match layout.codes {
        // SAFETY: guaranteed by the caller.
        Codes::Float4 => unsafe { U::look_up(&FLOAT4, quad) },
        _ => quad,
    }
}

/// The values of float4 codes above their offset.
const FLOAT4: [u8; 16] = {
    let mut table = [0; 16];
    let mut code = 0;
    while code < 16 {
        table[code] = (Codes::Float4.value(code as u8) + Codes::Float4.offset()) as u8;
        code += 1;
    }
    table
};

/// The scales of a chunk, or its minima, one per group.
#[inline(always)]
unsafe fn scales<U: Unit>(
    layout: &Layout,
    blocks: usize,
    from: *const u8,
    at: usize,
    to: &mut [U::Floats; GROUPS],
) {
    // SAFETY: guaranteed by the caller: the scales of the chunk can be read.
    unsafe {
        match layout.scales {
            Scales::Halves => {
                for (block, to) in to[..blocks].iter_mut().enumerate() {
                    *to = U::halves(from.add((block * WIDTH + at) * 2));
                }
            }
            Scales::Powers => {
                for (block, to) in to[..blocks].iter_mut().enumerate() {
                    *to = U::powers(from.add(block * WIDTH + at));
                }
            }
            Scales::Times => {
                let half = U::halves(from.add(at * 2));
                for (group, to) in to[..blocks * (DEPTH / layout.group)].iter_mut().enumerate() {
                    *to = U::mul(half, U::small(from.add(WIDTH * 2 + group * WIDTH + at)));
                }
            }
        }
    }
}

/// The most groups of a chunk.
const GROUPS: usize = 2 * CHUNK;

/// Cache lines with the codes of a chunk as bytes.
#[repr(C, align(64))]
struct Unpacked([u8; CHUNK * DEPTH * WIDTH]);

/// The height of tiles that share the codes they unpack.
const SHARING: usize = 8;

/// See [`Tile`].
#[inline(always)]
unsafe fn tile<U: Unit, K: Kind, const R: usize>(
    blocks: usize,
    panel: *const u8,
    rows: Rows,
    tiles: usize,
    to: *mut f32,
    stride: usize,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if R == SHARING && K::LAYOUT.bits() < 8 && tiles > 1 {
            return several::<U, K, R>(blocks, panel, rows, tiles, to, stride);
        }
        for tile in 0..tiles {
            one::<U, K, R>(blocks, panel, rows.at(tile * R, blocks), to.add(tile * R * stride), stride);
        }
    }
}

/// Multiplies a panel by one tile, unpacking codes in registers.
#[inline(always)]
unsafe fn one<U: Unit, K: Kind, const R: usize>(
    blocks: usize,
    mut panel: *const u8,
    rows: Rows,
    to: *mut f32,
    stride: usize,
) {
    let layout = const { &K::LAYOUT };
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut totals = [[U::splat(0.0); R]; WIDTH / MIN_LANES];
        for start in (0..blocks).step_by(CHUNK) {
            let count = CHUNK.min(blocks - start);
            // Whole chunks are compiled for their size.
            match count {
                CHUNK => chunk::<U, K, R>([start, CHUNK], panel, rows, &mut totals),
                _ => chunk::<U, K, R>([start, count], panel, rows, &mut totals),
            }
            panel = panel.add(layout.chunk(count));
        }
        for (part, totals) in totals.iter().enumerate().take(WIDTH / U::LANES) {
            for (r, total) in totals.iter().enumerate() {
                U::store(*total, to.add(r * stride + part * U::LANES));
            }
        }
    }
}

/// Adds the products with a chunk: with some blocks, from the first.
#[inline(always)]
unsafe fn chunk<U: Unit, K: Kind, const R: usize>(
    blocks: [usize; 2],
    panel: *const u8,
    rows: Rows,
    totals: &mut [[U::Floats; R]; WIDTH / MIN_LANES],
) {
    let (layout, count) = (const { &K::LAYOUT }, blocks[1]);
    // SAFETY: guaranteed by the caller.
    unsafe {
        for (part, totals) in totals.iter_mut().enumerate().take(WIDTH / U::LANES) {
            let at = part * U::LANES;
            let mut head = [[U::splat(0.0); GROUPS]; 2];
            read_head::<U>(layout, count, panel, at, &mut head);
            let codes = panel.add(layout.head(count) + at * 4);
            products::<U, K, R, false>(blocks, codes, &head, rows, totals);
        }
    }
}

/// Multiplies a panel by several tiles, unpacking the codes of each chunk once for all of them.
#[inline(always)]
unsafe fn several<U: Unit, K: Kind, const R: usize>(
    blocks: usize,
    mut panel: *const u8,
    rows: Rows,
    tiles: usize,
    to: *mut f32,
    stride: usize,
) {
    let layout = const { &K::LAYOUT };
    let mut unpacked = Unpacked([0; _]);
    let unpacked = unpacked.0.as_mut_ptr();
    // SAFETY: guaranteed by the caller; a chunk fits in the lines.
    unsafe {
        let mut head = [[U::splat(0.0); GROUPS]; 2];
        for start in (0..blocks).step_by(CHUNK) {
            let count = CHUNK.min(blocks - start);
            for at in (0..WIDTH).step_by(U::LANES) {
                read_head::<U>(layout, count, panel, at, &mut head);
                for block in 0..count {
                    let codes = panel.add(layout.head(count) + block * layout.block());
                    prefetch(layout, codes);
                    for q in 0..QUADS {
                        let quad = quad::<U>(layout, codes.add(at * 4), q);
                        U::keep(quad, unpacked.add(((block * QUADS + q) * WIDTH + at) * 4));
                    }
                }
                for tile in 0..tiles {
                    let to = to.add(tile * R * stride + at);
                    let mut totals = [U::splat(0.0); R];
                    if start > 0 {
                        for (r, total) in totals.iter_mut().enumerate() {
                            *total = U::widen::<f32>(to.add(r * stride).cast());
                        }
                    }
                    let (codes, rows) = (unpacked.add(at * 4).cast_const(), rows.at(tile * R, blocks));
                    products::<U, K, R, true>([start, count], codes, &head, rows, &mut totals);
                    for (r, total) in totals.iter().enumerate() {
                        U::store(*total, to.add(r * stride));
                    }
                }
            }
            panel = panel.add(layout.chunk(count));
        }
    }
}

/// The scales of a chunk and its minima, one per group, for the columns of a register.
type Head<U> = [[<U as Unit>::Floats; GROUPS]; 2];

/// Reads them.
#[inline(always)]
unsafe fn read_head<U: Unit>(layout: &Layout, blocks: usize, panel: *const u8, at: usize, to: &mut Head<U>) {
    // SAFETY: guaranteed by the caller: the chunk can be read.
    unsafe {
        scales::<U>(layout, blocks, panel, at, &mut to[0]);
        if layout.min {
            scales::<U>(layout, blocks, panel.add(layout.scale_bytes(blocks)), at, &mut to[1]);
        }
    }
}

/// Prefetches the codes of a block some way after one.
#[inline(always)]
fn prefetch(layout: &Layout, codes: *const u8) {
    for line in 0..layout.bits() {
        prefetch_near(codes.wrapping_add(AHEAD + line * 4 * WIDTH));
    }
}

/// Adds the products with the blocks of a chunk, for the columns of a register.
#[inline(always)]
unsafe fn products<U: Unit, K: Kind, const R: usize, const UNPACKED: bool>(
    [start, count]: [usize; 2],
    codes: *const u8,
    [factors, mins]: &Head<U>,
    rows: Rows,
    totals: &mut [U::Floats; R],
) {
    let layout = const { &K::LAYOUT };
    let per = DEPTH / layout.group;
    let offset = layout.codes.offset();
    let block_bytes = if UNPACKED { DEPTH * WIDTH } else { layout.block() };
    // SAFETY: guaranteed by the caller.
    unsafe {
        for block in 0..count {
            let codes = codes.add(block * block_bytes);
            if !UNPACKED {
                prefetch(layout, codes);
            }
            let number = start + block;
            let mut results = [U::splat(0.0); R];
            for group in 0..per {
                let mut ints = [U::zeros(); R];
                for q in group * (QUADS / per)..(group + 1) * (QUADS / per) {
                    let quad = match UNPACKED {
                        true => U::load(codes.add(q * 4 * WIDTH)),
                        false => quad::<U>(layout, codes, q),
                    };
                    let four = rows.elements.add(number * R * DEPTH + q * 4);
                    for (r, ints) in ints.iter_mut().enumerate() {
                        *ints = U::dot(*ints, quad, four.add(r * DEPTH), layout.bits() == 8);
                    }
                }
                let (factor, min) = (factors[block * per + group], mins[block * per + group]);
                let sums = rows.sums[per - 1].add((number * per + group) * R);
                for (r, result) in results.iter_mut().enumerate() {
                    let sum = U::splat(sums.add(r).read());
                    let mut value = U::to_floats(ints[r]);
                    if offset > 0 {
                        // These are integers so small that floats have them and their sum.
                        value = U::add_product(value, sum, U::splat(offset as f32));
                    }
                    *result = match group {
                        0 => U::mul(value, factor),
                        _ => U::add_product(*result, value, factor),
                    };
                    if layout.min {
                        *result = U::add_product(*result, min, sum);
                    }
                }
            }
            for (r, total) in totals.iter_mut().enumerate() {
                let scale = U::splat(rows.scales.add(number * R + r).read());
                *total = U::add_product(*total, results[r], scale);
            }
        }
    }
}

/// The fewest lanes of a unit.
const MIN_LANES: usize = 4;

/// A kind of weights that kernels are compiled for.
pub(super) trait Kind {
    const STORAGE: Storage;
    const LAYOUT: Layout;
}

macro_rules! kinds {
    ($($kind:ident)*) => {
        $(#[allow(non_camel_case_types, reason = "the names of encodings")]
        struct $kind;

        impl Kind for $kind {
            const STORAGE: Storage = Storage::Blocks(QuantizationEncoding::$kind);
            const LAYOUT: Layout = match QuantizationEncoding::$kind.blocks() {
                Some(format) => Layout::of(format),
                None => panic!("the encoding has blocks"),
            };
        })*

        /// How weights of an encoding are packed, and the kernels of this machine for them; those of encodings without blocks
        /// are packed as others.
        pub(super) fn kernels(encoding: QuantizationEncoding) -> Option<(&'static Layout, &'static [Tile])> {
            Some(match encoding {
                $(QuantizationEncoding::$kind => (const { &$kind::LAYOUT }, arch::tiles::<$kind>()),)*
                QuantizationEncoding::GPTQ => return None,
            })
        }

        /// What packs weights of an encoding with blocks.
        pub(super) fn packing(encoding: QuantizationEncoding) -> Option<Pack> {
            Some(match encoding {
                $(QuantizationEncoding::$kind => panel::packing::<$kind>(),)*
                QuantizationEncoding::GPTQ => return None,
            })
        }

        /// The kernels of every unit of this machine, the best first, by name.
        #[cfg(test)]
        pub(super) fn units(
            encoding: QuantizationEncoding,
        ) -> impl Iterator<Item = (&'static str, &'static [Tile])> {
            match encoding {
                $(QuantizationEncoding::$kind => arch::units::<$kind>(),)*
                QuantizationEncoding::GPTQ => vec![],
            }
            .into_iter()
        }
    };
}

kinds!(Q2_K Q3_K Q4_0 Q4_1 Q4_K Q5_0 Q5_1 Q5_K Q6_K Q8_0 MXFP4);
