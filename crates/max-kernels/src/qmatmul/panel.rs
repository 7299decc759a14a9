//! Packed weights: panels of [`WIDTH`] columns, laid out as the inner loops read them.
//!
//! A panel is a sequence of chunks of up to [`CHUNK`] blocks of [`DEPTH`] elements along the depth. A chunk has the scales
//! of its blocks (and their minima), then the codes, block after block. A vector of codes has four bytes for each column: a
//! plane of `b` bits has `b` vectors per block, and vector `v` holds four elements of each column for every `b`th group of
//! four, starting with group `v`, in its bits from the lowest to the highest. So codes take as many bytes as in memory, and
//! four elements of each column are a shift and a mask away.

use max_core::DType;
use max_core::quantization::{Codes, Format, Plane, Scale, Storage};

use super::tile::float_block;

use crate::matmul::Matrix;
use crate::scratch::Line;

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

/// The codes of a chunk of a panel, by column, and what its scales are made of.
struct Chunk {
    codes: [[u8; CHUNK * DEPTH]; WIDTH],
    /// The scales, then the minima: for each column one for all, or one per block.
    halves: [[[u16; CHUNK]; WIDTH]; 2],
    /// The integers of groups by which these are multiplied.
    times: [[[i8; Format::GROUPS]; WIDTH]; 2],
}

/// Bytes of a row of a matrix, which may be apart: `N` at most.
unsafe fn row<const N: usize>(matrix: Matrix<u8>, row: usize, start: usize, count: usize, to: &mut [u8; N]) {
    let part = matrix.part([row, start], [1, count]);
    for (at, to) in to[..count].iter_mut().enumerate() {
        // SAFETY: the caller guarantees that the matrix can be read.
        *to = unsafe { part.start.offset(at as isize * part.strides[1]).read() };
    }
}

impl Source {
    /// Packs a panel: up to [`WIDTH`] columns from the first, and zeros for the others.
    ///
    /// # Safety
    ///
    /// The matrices can be read, and there is room for the panel.
    pub(super) unsafe fn pack(&self, layout: &Layout, first: usize, blocks: usize, to: *mut u8) {
        let columns = WIDTH.min(self.codes.size[0] - first);
        let mut chunk = Chunk {
            codes: [[0; CHUNK * DEPTH]; WIDTH],
            halves: [[[0; CHUNK]; WIDTH]; 2],
            times: [[[0; Format::GROUPS]; WIDTH]; 2],
        };
        let mut to = to;
        for start in (0..blocks).step_by(CHUNK) {
            let count = CHUNK.min(blocks - start);
            // SAFETY: guaranteed by the caller: every chunk is inside the rows and inside the panel.
            unsafe {
                for column in 0..columns {
                    self.read(&mut chunk, column, first + column, start, count);
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
    unsafe fn read(&self, chunk: &mut Chunk, column: usize, at: usize, start: usize, count: usize) {
        let codes = &mut chunk.codes[column];
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.storage {
                Storage::Blocks(encoding) => {
                    let Some(format) = encoding.blocks() else { return };
                    let per = format.elements / DEPTH;
                    for (number, codes) in
                        codes[..count * DEPTH].chunks_exact_mut(format.elements).enumerate()
                    {
                        let mut block = [0; 256];
                        row(self.codes, at, (start / per + number) * format.bytes, format.bytes, &mut block);
                        format.read_codes(&block, codes);
                        let [times, min_times] = &mut chunk.times;
                        chunk.halves[0][column][number] = format.read_parts(&block, &mut times[column]);
                        let min = format.read_min_parts(&block, &mut min_times[column]);
                        chunk.halves[1][column][number] = min.unwrap_or_default();
                    }
                    if format.codes == Codes::Signed {
                        codes.iter_mut().for_each(|code| *code ^= 0x80);
                    }
                }
                Storage::Integers { bits, group } => {
                    let mut bytes = [0; CHUNK * DEPTH];
                    let length = DEPTH * bits as usize / 8;
                    row(self.codes, at, start * length, count * length, &mut bytes);
                    let plane = Plane::new(0, bits, 1);
                    plane_of(plane, &bytes, &mut codes[..count * DEPTH]);
                    for (block, half) in chunk.halves[0][column][..count].iter_mut().enumerate() {
                        let mut scale = [0; 2];
                        let group = (start + block) * DEPTH / group;
                        self.scales.into_iter().for_each(|scales| row(scales, at, 2 * group, 2, &mut scale));
                        *half = u16::from_le_bytes(scale);
                    }
                }
                Storage::Float4 => {
                    let mut bytes = [0; CHUNK * DEPTH];
                    row(self.codes, at, start * DEPTH / 2, count * DEPTH / 2, &mut bytes);
                    plane_of(Plane::new(0, 4, 1), &bytes, &mut codes[..count * DEPTH]);
                    let mut exponents = [0; CHUNK];
                    self.scales.into_iter().for_each(|scales| row(scales, at, start, count, &mut exponents));
                    chunk.halves[0][column] = exponents.map(u16::from);
                }
                Storage::Floats { .. } => {}
            }
        }
    }
}

/// The numbers of a plane.
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
    unsafe fn write(&self, layout: &Layout, blocks: usize, to: *mut u8) {
        let head = layout.head(blocks);
        // SAFETY: guaranteed by the caller.
        let to = unsafe { std::slice::from_raw_parts_mut(to, layout.chunk(blocks)) };
        let (scales, codes) = to.split_at_mut(head);
        scales.fill(0);
        let parts = scales.chunks_exact_mut(layout.scale_bytes(blocks)).take(1 + usize::from(layout.min));
        for (part, (halves, times)) in parts.zip(self.halves.iter().zip(&self.times)) {
            for column in 0..WIDTH {
                let mut half = |at: usize, half: u16| {
                    part[(at * WIDTH + column) * 2..][..2].copy_from_slice(&half.to_le_bytes());
                };
                match layout.scales {
                    Scales::Halves => (0..blocks).for_each(|block| half(block, halves[column][block])),
                    Scales::Powers => {
                        (0..blocks).for_each(|at| part[at * WIDTH + column] = halves[column][at] as u8);
                    }
                    Scales::Times => {
                        half(0, halves[column][0]);
                        for group in 0..blocks * DEPTH / layout.group {
                            part[WIDTH * 2 + group * WIDTH + column] = times[column][group].cast_unsigned();
                        }
                    }
                }
            }
        }
        for (block, to) in codes.chunks_exact_mut(layout.block()).enumerate() {
            let mut quads = [[0; 4 * WIDTH]; QUADS];
            for (column, codes) in self.codes.iter().enumerate() {
                let codes = &codes[block * DEPTH..][..DEPTH];
                for (quad, codes) in quads.iter_mut().zip(codes.chunks_exact(4)) {
                    quad[4 * column..][..4].copy_from_slice(codes);
                }
            }
            to.fill(0);
            let (mut to, mut up) = (to, 0);
            for plane in layout.planes {
                let bits = plane.bits as usize;
                let (vectors, rest) = to.split_at_mut(bits * 4 * WIDTH);
                for (number, quad) in quads.iter().enumerate() {
                    let vector = &mut vectors[number % bits * 4 * WIDTH..][..4 * WIDTH];
                    for (to, code) in vector.iter_mut().zip(quad) {
                        *to |= (code >> up & plane.mask()) << (bits * (number / bits));
                    }
                }
                (to, up) = (rest, up + plane.bits);
            }
        }
    }
}
