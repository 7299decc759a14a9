//! Plain code for any machine.

use max_core::f16;
use max_core::quantization::half_power;

use super::*;

/// A unit of plain code, which the compiler vectorizes as far as it can.
pub(super) struct Plain;

/// Its lanes.
const LANES: usize = 4;

impl Unit for Plain {
    const LANES: usize = LANES;
    type Ints = [i32; LANES];
    type Floats = [f32; LANES];

    #[inline(always)]
    unsafe fn zeros() -> [i32; LANES] {
        [0; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> [i32; LANES] {
        // SAFETY: the caller guarantees that the bytes can be read; likewise below.
        unsafe { from.cast::<[i32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn keep(bytes: [i32; LANES], to: *mut u8) {
        // SAFETY: the caller guarantees that the bytes can be written.
        unsafe { to.cast::<[i32; LANES]>().write_unaligned(bytes) }
    }
    #[inline(always)]
    unsafe fn bits(bytes: [i32; LANES], right: i32, mask: u8) -> [i32; LANES] {
        let mask = i32::from_le_bytes([mask; 4]).cast_unsigned();
        bytes.map(|lane| {
            let lane = lane.cast_unsigned();
            let shifted = if right >= 0 { lane >> right } else { lane << -right };
            (shifted & mask).cast_signed()
        })
    }
    #[inline(always)]
    unsafe fn or(x: [i32; LANES], y: [i32; LANES]) -> [i32; LANES] {
        std::array::from_fn(|i| x[i] | y[i])
    }
    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], numbers: [i32; LANES]) -> [i32; LANES] {
        numbers
            .map(|lane| i32::from_le_bytes(lane.to_le_bytes().map(|number| table[usize::from(number) % 16])))
    }
    #[inline(always)]
    unsafe fn dot(mut sum: [i32; LANES], bytes: [i32; LANES], four: *const u8, _: bool) -> [i32; LANES] {
        // SAFETY: see `load`.
        let four = unsafe { four.cast::<[i8; 4]>().read_unaligned() };
        for (sum, bytes) in sum.iter_mut().zip(bytes) {
            for (byte, four) in bytes.to_le_bytes().into_iter().zip(four) {
                *sum += i32::from(byte) * i32::from(four);
            }
        }
        sum
    }
    #[inline(always)]
    unsafe fn to_floats(ints: [i32; LANES]) -> [f32; LANES] {
        ints.map(|int| int as f32)
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> [f32; LANES] {
        [value; LANES]
    }
    #[inline(always)]
    unsafe fn mul(x: [f32; LANES], y: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|i| x[i] * y[i])
    }
    #[inline(always)]
    unsafe fn add_product(sum: [f32; LANES], x: [f32; LANES], y: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|i| sum[i] + x[i] * y[i])
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8) -> [f32; LANES] {
        // SAFETY: see `load`.
        unsafe { from.cast::<[f16; LANES]>().read_unaligned() }.map(f16::to_f32)
    }
    #[inline(always)]
    unsafe fn powers(from: *const u8) -> [f32; LANES] {
        // SAFETY: see `load`.
        unsafe { from.cast::<[u8; LANES]>().read_unaligned() }.map(half_power)
    }
    #[inline(always)]
    unsafe fn small(from: *const u8) -> [f32; LANES] {
        // SAFETY: see `load`.
        unsafe { from.cast::<[i8; LANES]>().read_unaligned() }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn widen<T: Element<Lane = f32>>(from: *const u8) -> [f32; LANES] {
        // SAFETY: see `load`.
        unsafe { from.cast::<[T; LANES]>().read_unaligned() }.map(T::to_lane)
    }
    #[inline(always)]
    unsafe fn add(x: [f32; LANES], y: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|i| x[i] + y[i])
    }
    #[inline(always)]
    unsafe fn store(floats: [f32; LANES], to: *mut f32) {
        // SAFETY: the caller guarantees that the lanes can be written.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(floats) }
    }
}
