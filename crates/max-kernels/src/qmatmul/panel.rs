//! Packed weights: panels of [`WIDTH`] columns, laid out as the inner loops read them.
//!
//! A panel is a sequence of chunks of up to [`CHUNK`] blocks of [`DEPTH`] elements along the depth. A chunk has the scales
//! of its blocks (and their minima), then the codes, block after block. A vector of codes has four bytes for each column: a
//! plane of `b` bits has `b` vectors per block, and vector `v` holds four elements of each column for every `b`th group of
//! four, starting with group `v`, in its bits from the lowest to the highest. So codes take as many bytes as in memory, and
//! four elements of each column are a shift and a mask away.

use std::marker::PhantomData;

use max_core::DType;
use max_core::quantization::{Codes, Format, Plane, Scale, Storage};

use super::tile::{Kind, float_block, packing as packing_of};

use crate::matmul::Matrix;
use crate::scratch::Line;
use crate::simd::{Isa, versions};

/// The columns of a panel.
pub(super) const WIDTH: usize = 16;

/// The elements of a block along the depth: those that share a scale of the activations.
pub(super) const DEPTH: usize = Storage::GROUP;

/// The most blocks of a chunk.
pub(super) const CHUNK: usize = 8;

/// The groups of four elements in a block.
pub(super) const QUADS: usize = DEPTH / 4;

/// How the scales of a panel are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scales {
    /// A float16 per block.
    Halves,
    /// A biased exponent per block.
    Powers,
    /// A float16 per chunk, and an integer per group.
    Times,
}

/// How a panel is laid out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) planes: &'static [Plane],
    pub(super) codes: Codes,
    pub(super) group: usize,
    pub(super) scales: Scales,
    pub(super) min: bool,
}

impl Layout {
    pub(super) const fn of(format: &'static Format) -> Layout {
        Layout {
            planes: format.planes,
            codes: format.codes,
            group: format.group,
            scales: match format.scale {
                Scale::Half(_) | Scale::Negative(_) => Scales::Halves,
                Scale::HalfPower(_) => Scales::Powers,
                Scale::Times { .. } => Scales::Times,
            },
            min: format.min.is_some(),
        }
    }

    /// The bits of a code.
    pub(super) const fn bits(&self) -> usize {
        let (mut bits, mut at) = (0, 0);
        while at < self.planes.len() {
            bits += self.planes[at].bits as usize;
            at += 1;
        }
        bits
    }

    /// The bytes of the scales of a chunk, or of its minima.
    pub(super) const fn scale_bytes(&self, blocks: usize) -> usize {
        match self.scales {
            Scales::Halves => blocks * WIDTH * 2,
            Scales::Powers => blocks * WIDTH,
            Scales::Times => WIDTH * 2 + blocks * (DEPTH / self.group) * WIDTH,
        }
    }

    /// The bytes of a chunk before its codes.
    pub(super) const fn head(&self, blocks: usize) -> usize {
        let one = self.scale_bytes(blocks);
        (if self.min { 2 * one } else { one }).next_multiple_of(size_of::<Line>())
    }

    /// The bytes of the codes of a block.
    pub(super) const fn block(&self) -> usize {
        self.bits() * 4 * WIDTH
    }

    /// The bytes of a chunk.
    pub(super) const fn chunk(&self, blocks: usize) -> usize {
        self.head(blocks) + blocks * self.block()
    }

    /// The bytes of a panel for some blocks along the depth.
    pub(super) const fn panel(&self, blocks: usize) -> usize {
        let rest = blocks % CHUNK;
        blocks / CHUNK * self.chunk(CHUNK) + if rest == 0 { 0 } else { self.chunk(rest) }
    }
}

/// Quantized matrices in memory: one row for each column of the panels.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub(super) storage: Storage,
    pub(super) codes: Matrix<u8>,
    pub(super) scales: Option<Matrix<u8>>,
}

/// The codes of a chunk of a panel, by column, four in a word as they are in memory, and what its scales are made of.
struct Chunk {
    codes: [[u32; CHUNK * QUADS]; WIDTH],
    /// The scales, then the minima: for each column one for all, or one per block.
    halves: [[[u16; CHUNK]; WIDTH]; 2],
    /// The integers of groups by which these are multiplied.
    times: [[[i8; Format::GROUPS]; WIDTH]; 2],
}

/// Room for the bytes of a row in a chunk.
type Room = [u8; CHUNK * DEPTH];

/// Bytes of a row of a matrix, which are collected where they are apart.
///
/// # Safety
///
/// The matrix can be read, for as long as the bytes are used.
#[inline(always)]
unsafe fn row(matrix: Matrix<u8>, row: usize, start: usize, count: usize, room: &mut Room) -> &[u8] {
    let part = matrix.part([row, start], [1, count]);
    if part.strides[1] == 1 {
        // SAFETY: guaranteed by the caller.
        return unsafe { std::slice::from_raw_parts(part.start, count) };
    }
    for (at, to) in room[..count].iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller.
        *to = unsafe { part.start.offset(at as isize * part.strides[1]).read() };
    }
    &room[..count]
}

impl Source {
    /// Packs a panel: up to [`WIDTH`] columns from the first, and zeros for the others.
    ///
    /// # Safety
    ///
    /// The matrices can be read, and there is room for the panel.
    pub(super) unsafe fn pack(&self, layout: &Layout, first: usize, blocks: usize, to: *mut u8) {
        let pack = match self.storage {
            Storage::Blocks(encoding) => packing_of(encoding),
            _ => None,
        };
        let pack = pack.unwrap_or_else(|| version::<AnyKind>(Isa::best()));
        // SAFETY: guaranteed by the caller.
        unsafe { pack(self, layout, first, blocks, to) }
    }

    /// See `pack`.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    unsafe fn pack_chunks(&self, layout: &Layout, first: usize, blocks: usize, to: *mut u8) {
        let columns = WIDTH.min(self.codes.size[0] - first);
        let mut chunk = Chunk {
            codes: [[0; CHUNK * QUADS]; WIDTH],
            halves: [[[0; CHUNK]; WIDTH]; 2],
            times: [[[0; Format::GROUPS]; WIDTH]; 2],
        };
        let (mut to, mut room) = (to, [0; CHUNK * DEPTH]);
        for start in (0..blocks).step_by(CHUNK) {
            let count = CHUNK.min(blocks - start);
            // SAFETY: guaranteed by the caller: every chunk is inside the rows and inside the panel.
            unsafe {
                for column in 0..columns {
                    self.read(&mut chunk, column, first + column, start, count, &mut room);
                }
                chunk.write(layout, count, to);
                to = to.add(layout.chunk(count));
            }
        }
    }

    /// Packs a panel of floats: see `pack`.
    ///
    /// # Safety
    ///
    /// The matrices can be read, and there is room for the panel.
    pub(super) unsafe fn pack_floats(&self, dtype: DType, first: usize, blocks: usize, to: *mut u8) {
        let [columns, depth] = self.codes.size;
        let (columns, size) = (WIDTH.min(columns - first), dtype.size_in_bytes());
        let block_bytes = float_block(size, self.scales.is_some());
        let group = match self.storage {
            Storage::Floats { group, .. } => group.max(1),
            _ => 1,
        };
        // SAFETY: guaranteed by the caller. Strides of floats count elements of their types.
        unsafe {
            to.write_bytes(0, blocks * block_bytes);
            let at = |matrix: Matrix<u8>, row: usize, column: usize, size: usize| {
                let distance = row as isize * matrix.strides[0] + column as isize * matrix.strides[1];
                matrix.start.wrapping_offset(distance * size as isize)
            };
            for position in 0..depth {
                let (block, inner) = (position / DEPTH, position % DEPTH);
                for column in 0..columns {
                    let to = to.add(block * block_bytes + (inner * WIDTH + column) * size);
                    std::ptr::copy_nonoverlapping(at(self.codes, first + column, position, size), to, size);
                }
            }
            let Some(scales) = self.scales else { return };
            for (block, column) in
                (0..blocks).flat_map(|block| (0..columns).map(move |column| (block, column)))
            {
                let to = to.add(block * block_bytes + (DEPTH * size * WIDTH) + column * 4);
                std::ptr::copy_nonoverlapping(at(scales, first + column, block * DEPTH / group, 4), to, 4);
            }
        }
    }

    /// Reads the blocks of a chunk from a row.
    ///
    /// # Safety
    ///
    /// The matrices can be read.
    #[inline(always)]
    unsafe fn read(
        &self,
        chunk: &mut Chunk,
        column: usize,
        at: usize,
        start: usize,
        count: usize,
        room: &mut Room,
    ) {
        let codes: &mut [u8; CHUNK * DEPTH] = bytemuck::cast_mut(&mut chunk.codes[column]);
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.storage {
                Storage::Blocks(encoding) => {
                    let Some(format) = encoding.blocks() else { return };
                    let per = format.elements / DEPTH;
                    for number in 0..count / per {
                        let codes = &mut codes[number * format.elements..][..format.elements];
                        let start = (start / per + number) * format.bytes;
                        let block = row(self.codes, at, start, format.bytes, room);
                        format.read_codes(block, codes);
                        let [times, min_times] = &mut chunk.times;
                        chunk.halves[0][column][number] = format.read_parts(block, &mut times[column]);
                        let min = format.read_min_parts(block, &mut min_times[column]);
                        chunk.halves[1][column][number] = min.unwrap_or_default();
                    }
                    if format.codes == Codes::Signed {
                        for code in codes {
                            *code ^= 0x80;
                        }
                    }
                }
                Storage::Integers { bits, group } => {
                    let length = DEPTH * bits as usize / 8;
                    let bytes = row(self.codes, at, start * length, count * length, room);
                    plane_of(Plane::new(0, bits, 1), bytes, &mut codes[..count * DEPTH]);
                    let Some(scales) = self.scales else { return };
                    for (block, half) in chunk.halves[0][column][..count].iter_mut().enumerate() {
                        let group = (start + block) * DEPTH / group;
                        let scale = row(scales, at, 2 * group, 2, room);
                        *half = u16::from_le_bytes([scale[0], scale[1]]);
                    }
                }
                Storage::Float4 => {
                    let bytes = row(self.codes, at, start * DEPTH / 2, count * DEPTH / 2, room);
                    plane_of(Plane::new(0, 4, 1), bytes, &mut codes[..count * DEPTH]);
                    let Some(scales) = self.scales else { return };
                    let exponents = row(scales, at, start, count, room);
                    for (half, &exponent) in chunk.halves[0][column].iter_mut().zip(exponents) {
                        *half = exponent.into();
                    }
                }
                Storage::Floats { .. } => {}
            }
        }
    }
}

trait Body {
    /// See [`Source::pack`].
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn run<const FMA: bool>(
        source: &Source,
        layout: &Layout,
        first: usize,
        blocks: usize,
        to: *mut u8,
    );
}

versions!(version: Body, fn(source: &Source, layout: &Layout, first: usize, blocks: usize, to: *mut u8));

/// A function like [`Source::pack`].
pub(super) type Pack = unsafe fn(&Source, &Layout, usize, usize, *mut u8);

/// What packs weights of a kind.
pub(super) fn packing<K: Kind>() -> Pack {
    version::<OneKind<K>>(Isa::best())
}

/// Weights of a kind, of which the compiler knows how they are stored.
struct OneKind<K>(PhantomData<K>);

impl<K: Kind> Body for OneKind<K> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(source: &Source, _: &Layout, first: usize, blocks: usize, to: *mut u8) {
        let source = Source { storage: K::STORAGE, ..*source };
        // SAFETY: guaranteed by the caller.
        unsafe { source.pack_chunks(const { &K::LAYOUT }, first, blocks, to) }
    }
}

/// Weights of any kind.
struct AnyKind;

impl Body for AnyKind {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(
        source: &Source,
        layout: &Layout,
        first: usize,
        blocks: usize,
        to: *mut u8,
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe { source.pack_chunks(layout, first, blocks, to) }
    }
}

/// The numbers of a plane.
#[inline(always)]
fn plane_of(plane: Plane, bytes: &[u8], numbers: &mut [u8]) {
    let per = plane.per;
    for (numbers, byte) in numbers.chunks_exact_mut(per).zip(bytes) {
        for (at, number) in numbers.iter_mut().enumerate() {
            *number = byte >> (plane.bits as usize * at) & plane.mask();
        }
    }
}

impl Chunk {
    /// Writes it as a chunk of a panel.
    ///
    /// # Safety
    ///
    /// There is room for the chunk.
    #[inline(always)]
    #[expect(
        clippy::needless_range_loop,
        reason = "loops over numbers are compiled for the vector unit, iterators not always"
    )]
    unsafe fn write(&self, layout: &Layout, blocks: usize, to: *mut u8) {
        let head = layout.head(blocks);
        // SAFETY: guaranteed by the caller.
        let to = unsafe { std::slice::from_raw_parts_mut(to, layout.chunk(blocks)) };
        let (scales, codes) = to.split_at_mut(head);
        scales.fill(0);
        for part in 0..1 + usize::from(layout.min) {
            let (halves, times) = (&self.halves[part], &self.times[part]);
            let to = &mut scales[part * layout.scale_bytes(blocks)..][..layout.scale_bytes(blocks)];
            let groups = match layout.scales {
                Scales::Times => blocks * DEPTH / layout.group,
                Scales::Halves | Scales::Powers => 0,
            };
            for column in 0..WIDTH {
                for block in 0..if groups > 0 { 1 } else { blocks } {
                    let (half, at) = (halves[column][block].to_le_bytes(), block * WIDTH + column);
                    match layout.scales {
                        Scales::Powers => to[at] = half[0],
                        Scales::Halves | Scales::Times => to[2 * at..][..2].copy_from_slice(&half),
                    }
                }
                for group in 0..groups {
                    to[2 * WIDTH + group * WIDTH + column] = times[column][group].cast_unsigned();
                }
            }
        }
        let mut at = 0;
        for block in 0..blocks {
            let mut quads = [[0; WIDTH]; QUADS];
            for number in 0..QUADS {
                for column in 0..WIDTH {
                    quads[number][column] = self.codes[column][block * QUADS + number];
                }
            }
            let mut up = 0;
            for plane in layout.planes {
                let (bits, mask) = (plane.bits as usize, u32::from_ne_bytes([plane.mask(); 4]));
                for first in 0..bits {
                    let mut vector = [0; WIDTH];
                    let mut number = first;
                    while number < QUADS {
                        for column in 0..WIDTH {
                            // What comes into a byte from the next one is masked.
                            let code = quads[number][column] >> up & mask;
                            vector[column] |= code << (bits * (number / bits));
                        }
                        number += bits;
                    }
                    codes[at..][..4 * WIDTH].copy_from_slice(bytemuck::bytes_of(&vector));
                    at += 4 * WIDTH;
                }
                up += plane.bits;
            }
        }
    }
}
