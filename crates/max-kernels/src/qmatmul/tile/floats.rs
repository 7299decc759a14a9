//! Weights that are floats.

use max_core::small_float::{F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ};
use max_core::{DType, Element, bf16, f16};

use super::*;

/// See [`Tile`], for weights that are floats: blocks of rows of [`WIDTH`] columns, each followed by its scales if it has any.
#[inline(always)]
pub(super) unsafe fn float_tile<U: Unit, T: Element<Lane = f32>, const R: usize>(
    blocks: usize,
    panel: *const u8,
    rows: Rows,
    tiles: usize,
    to: *mut f32,
    stride: usize,
) {
    let codes = DEPTH * WIDTH * size_of::<T>();
    let block_bytes = float_block(size_of::<T>(), rows.scaled);
    // SAFETY: guaranteed by the caller.
    unsafe {
        for number in 0..tiles * (WIDTH / U::LANES) {
            let (tile, part) = (number / (WIDTH / U::LANES), number % (WIDTH / U::LANES));
            let (rows, to) = (rows.at(tile * R, blocks), to.add(tile * R * stride));
            let at = part * U::LANES;
            let mut totals = [U::splat(0.0); R];
            for block in 0..blocks {
                let weights = panel.add(block * block_bytes);
                let elements = rows.elements.cast::<f32>().add(block * DEPTH * R);
                if part == 0 {
                    for line in 0..block_bytes / 64 {
                        prefetch_near(weights.wrapping_add(AHEAD + line * 64));
                    }
                }
                let mut sums = [[U::splat(0.0); R]; 2];
                for depth in (0..DEPTH).step_by(2) {
                    for (odd, sums) in sums.iter_mut().enumerate() {
                        let depth = depth + odd;
                        let weights = U::widen::<T>(weights.add((depth * WIDTH + at) * size_of::<T>()));
                        for (r, sum) in sums.iter_mut().enumerate() {
                            let element = U::splat(elements.add(depth * R + r).read());
                            *sum = U::add_product(*sum, weights, element);
                        }
                    }
                }
                let scale = match rows.scaled {
                    true => U::widen::<f32>(weights.add(codes + at * size_of::<f32>())),
                    false => U::splat(1.0),
                };
                for (r, total) in totals.iter_mut().enumerate() {
                    *total = U::add_product(*total, U::add(sums[0][r], sums[1][r]), scale);
                }
            }
            for (r, total) in totals.iter().enumerate() {
                U::store(*total, to.add(r * stride + at));
            }
        }
    }
}

/// The bytes of a block of a panel of floats.
pub(in super::super) const fn float_block(size: usize, scaled: bool) -> usize {
    WIDTH * (DEPTH * size + if scaled { size_of::<f32>() } else { 0 })
}

/// The kernels for weights of a float type.
pub(in super::super) fn float_kernels(dtype: DType) -> Option<&'static [Tile]> {
    Some(match dtype {
        DType::Float32 => arch::float_tiles::<f32>(),
        DType::BFloat16 => arch::float_tiles::<bf16>(),
        DType::Float16 => arch::float_tiles::<f16>(),
        DType::Float8E4M3FN => arch::float_tiles::<F8E4M3FN>(),
        DType::Float8E4M3FNUZ => arch::float_tiles::<F8E4M3FNUZ>(),
        DType::Float8E5M2 => arch::float_tiles::<F8E5M2>(),
        DType::Float8E5M2FNUZ => arch::float_tiles::<F8E5M2FNUZ>(),
        _ => return None,
    })
}
