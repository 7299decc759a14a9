//! Tiles of sixteen rows by AMX, whose products of a block are exact integers; AVX-512 scales and adds them.
//!
//! The codes of a block, as signed bytes, are a register with a row of sixteen columns for every four elements; a block of
//! the rows is another. Where a block has two groups, the codes of one have zeros in place of the other's, so that the rows
//! are loaded once.

use std::arch::asm;
use std::arch::x86_64::*;

use super::*;
use crate::simd::amx::{SIDE, Shapes, release};

/// The bytes of a row of codes, and of sums.
const LINE: usize = 4 * WIDTH;

/// The bytes of the sums of a group.
const SUMS: usize = SIDE * LINE;

/// The most rows of codes of a block: two groups, and zeros between them.
const LINES: usize = QUADS / 2 * 3;

/// Register 0 has sums, 4 rows of the left operand, and 6 codes.
const SHAPES: Shapes = {
    let (none, sums, left, codes) = ((0, 0), (SIDE, LINE), (SIDE, DEPTH), (QUADS, LINE));
    Shapes::new([sums, none, none, none, left, none, codes, none])
};

/// The codes of a chunk, and the sums of two blocks: while one is added, the next is multiplied.
#[repr(C, align(64))]
struct Scratch {
    codes: [[u8; LINES * LINE]; CHUNK],
    sums: [[u8; 2 * SUMS]; 2],
}

/// See [`Tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn tile<K: Kind>(
    blocks: usize,
    mut panel: *const u8,
    rows: Rows,
    tiles: usize,
    to: *mut f32,
    stride: usize,
) {
    let layout = const { &K::LAYOUT };
    let mut scratch = Scratch { codes: [[0; _]; _], sums: [[0; _]; _] };
    // SAFETY: guaranteed by the caller, who has checked that AMX is there.
    unsafe {
        const { &SHAPES }.set();
        let mut head = [[Wide::splat(0.0); GROUPS]; 2];
        for start in (0..blocks).step_by(CHUNK) {
            let count = CHUNK.min(blocks - start);
            read_head::<Wide>(layout, count, panel, 0, &mut head);
            for (block, to) in scratch.codes[..count].iter_mut().enumerate() {
                unpack::<K>(panel.add(layout.head(count) + block * layout.block()), to);
            }
            for tile in 0..tiles {
                let (rows, to) = (rows.at(tile * SIDE, blocks), to.add(tile * SIDE * stride));
                chunk::<K>([start, count], &mut scratch, &head, rows, to, stride);
            }
            panel = panel.add(layout.chunk(count));
        }
        release();
    }
}

/// Unpacks the codes of a block as signed bytes.
#[inline(always)]
unsafe fn unpack<K: Kind>(codes: *const u8, to: &mut [u8; LINES * LINE]) {
    let layout = const { &K::LAYOUT };
    prefetch(layout, codes);
    for q in 0..QUADS {
        // The lines between two groups stay zero.
        let line = if layout.group < DEPTH && q >= QUADS / 2 { q + QUADS / 2 } else { q };
        // SAFETY: guaranteed by the caller: the codes can be read.
        unsafe {
            let offset = _mm512_set1_epi8(layout.codes.offset() as i8);
            let signed = _mm512_sub_epi8(quad::<Wide>(layout, codes, q), offset);
            Wide::keep(signed, to.as_mut_ptr().add(line * LINE));
        }
    }
}

/// Adds the products of a chunk with a tile of rows to the result, or starts it.
#[inline(always)]
unsafe fn chunk<K: Kind>(
    [start, count]: [usize; 2],
    scratch: &mut Scratch,
    [factors, mins]: &Head<Wide>,
    rows: Rows,
    to: *mut f32,
    stride: usize,
) {
    let layout = const { &K::LAYOUT };
    let per = DEPTH / layout.group;
    let (codes, sums) = (scratch.codes.as_ptr().cast::<u8>(), scratch.sums.as_mut_ptr().cast::<u8>());
    // SAFETY: guaranteed by the caller.
    unsafe {
        let left = rows.elements.add(start * SIDE * DEPTH).cast_const();
        let mut totals = [_mm512_setzero_ps(); SIDE];
        if start > 0 {
            for (r, total) in totals.iter_mut().enumerate() {
                *total = _mm512_loadu_ps(to.add(r * stride));
            }
        }
        multiply(left, codes, per, sums);
        for block in 0..count {
            let next = block + 1;
            if next < count {
                let (left, codes) = (left.add(next * SIDE * DEPTH), codes.add(next * LINES * LINE));
                multiply(left, codes, per, sums.add(next % 2 * 2 * SUMS));
            }
            let sums = sums.add(block % 2 * 2 * SUMS).cast_const();
            let negative = rows.sums[per - 1].add((start + block) * per * SIDE).cast_const();
            let scales = rows.scales.add((start + block) * SIDE).cast_const();
            for (r, total) in totals.iter_mut().enumerate() {
                let mut result = _mm512_setzero_ps();
                for group in 0..per {
                    let number = block * per + group;
                    let value = _mm512_cvtepi32_ps(Wide::load(sums.add(group * SUMS + r * LINE)));
                    result = match group {
                        0 => _mm512_mul_ps(value, factors[number]),
                        _ => _mm512_fmadd_ps(value, factors[number], result),
                    };
                    if layout.min {
                        let sum = _mm512_set1_ps(negative.add(group * SIDE + r).read());
                        result = _mm512_fmadd_ps(mins[number], sum, result);
                    }
                }
                *total = _mm512_fmadd_ps(result, _mm512_set1_ps(scales.add(r).read()), *total);
            }
        }
        for (r, total) in totals.iter().enumerate() {
            _mm512_storeu_ps(to.add(r * stride), *total);
        }
    }
}

/// Stores the sums of each group of a block.
#[inline(always)]
unsafe fn multiply(left: *const u8, codes: *const u8, per: usize, to: *mut u8) {
    // SAFETY: guaranteed by the caller: the registers have their shapes, the operands can be read and the sums written.
    unsafe {
        asm!("tileloadd tmm4, [{} + {}*1]", in(reg) left, in(reg) DEPTH, options(nostack, readonly, preserves_flags));
        for group in 0..per {
            asm!(
                "tilezero tmm0",
                "tileloadd tmm6, [{codes} + {line}*1]",
                "tdpbssd tmm0, tmm4, tmm6",
                "tilestored [{to} + {line}*1], tmm0",
                codes = in(reg) codes.add(group * (QUADS / 2) * LINE),
                to = in(reg) to.add(group * SUMS),
                line = in(reg) LINE,
                options(nostack, preserves_flags)
            );
        }
    }
}
