//! Elements as unsigned integers in the same order, and these together with positions, which makes them unique.

use bytemuck::{Pod, Zeroable};
use max_core::small_float::{
    F4E2M1FN, F6E2M3FN, F6E3M2FN, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0FNU, SmallFloat, Special,
};
use max_core::{Bool, DType, Element, bf16, dispatch, f16};

use crate::simd::{Isa, versions};

/// An unsigned integer that elements are ordered by.
pub(super) trait Key: Pod + Ord {
    const MAX: Self;
    fn wide(self) -> u64;
    fn of(wide: u64) -> Self;
}

macro_rules! keys {
    ($($type:ident),*) => {$(
        impl Key for $type {
            const MAX: $type = $type::MAX;
            #[inline(always)]
            fn wide(self) -> u64 {
                u64::from(self)
            }
            #[inline(always)]
            fn of(wide: u64) -> $type {
                wide as $type
            }
        }
    )*};
}
keys!(u8, u16, u32, u64);

/// A key and the position of its element: no two of a line are equal, and their order is the one that results have.
pub(super) trait Packed: Pod + Ord {
    fn new(key: u64, index: usize) -> Self;
    fn key(self) -> u64;
    fn index(self) -> usize;
}

impl Packed for u64 {
    #[inline(always)]
    fn new(key: u64, index: usize) -> u64 {
        key << 32 | index as u64
    }
    #[inline(always)]
    fn key(self) -> u64 {
        self >> 32
    }
    #[inline(always)]
    fn index(self) -> usize {
        self as u32 as usize
    }
}

impl Packed for u128 {
    #[inline(always)]
    fn new(key: u64, index: usize) -> u128 {
        u128::from(key) << 64 | index as u128
    }
    #[inline(always)]
    fn key(self) -> u64 {
        (self >> 64) as u64
    }
    #[inline(always)]
    fn index(self) -> usize {
        self as u64 as usize
    }
}

/// A key of at most 40 bits with its position, in half of what a wide key needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(super) struct Compact(u64);

impl Compact {
    const INDEX_BITS: u32 = 24;

    /// How many keys, and how many elements of a line, there may be.
    pub(super) const KEYS: u64 = 1 << (u64::BITS - Self::INDEX_BITS);
    pub(super) const SIZE: usize = 1 << Self::INDEX_BITS;
}

// SAFETY: it is an integer.
unsafe impl Zeroable for Compact {}
// SAFETY: as above.
unsafe impl Pod for Compact {}

impl Packed for Compact {
    #[inline(always)]
    fn new(key: u64, index: usize) -> Compact {
        Compact(key << Self::INDEX_BITS | index as u64)
    }
    #[inline(always)]
    fn key(self) -> u64 {
        self.0 >> Self::INDEX_BITS
    }
    #[inline(always)]
    fn index(self) -> usize {
        self.0 as usize & (Self::SIZE - 1)
    }
}

/// An element that can be sorted.
trait Sortable: Element {
    type Key: Key + std::ops::Not<Output = Self::Key>;

    /// Its key: the larger the element, the larger the key. NaN has the largest one.
    fn key(self) -> Self::Key;
}

macro_rules! integers {
    ($($type:ident as $key:ident ^ $flip:expr;)*) => {$(
        impl Sortable for $type {
            type Key = $key;
            #[inline(always)]
            fn key(self) -> $key {
                self as $key ^ $flip
            }
        }
    )*};
}
integers! {
    u8 as u8 ^ 0; u16 as u16 ^ 0; u32 as u32 ^ 0; u64 as u64 ^ 0;
    i8 as u8 ^ 1 << 7; i16 as u16 ^ 1 << 15; i32 as u32 ^ 1 << 31; i64 as u64 ^ 1 << 63;
}

impl Sortable for Bool {
    type Key = u8;
    #[inline(always)]
    fn key(self) -> u8 {
        u8::from(self.get())
    }
}

/// Floats have a sign and a magnitude. The keys of both zeros meet in the middle, which leaves room for NaN at the top.
macro_rules! floats {
    ($($type:ident as $key:ident, $bits:ident => $nan:expr;)*) => {$(
        impl Sortable for $type {
            type Key = $key;
            #[inline(always)]
            fn key(self) -> $key {
                const SIGN: $key = 1 << ($key::BITS - 1);
                let $bits: $key = bytemuck::cast(self);
                let key = if $bits >= SIGN { !$bits } else { $bits + (SIGN - 1) };
                if $nan { $key::MAX } else { key }
            }
        }
    )*};
}
floats! {
    f64 as u64, bits => bits & !(1 << 63) > 0x7ff0_0000_0000_0000;
    f32 as u32, bits => bits & !(1 << 31) > 0x7f80_0000;
    f16 as u16, bits => bits & !(1 << 15) > 0x7c00;
    bf16 as u16, bits => bits & !(1 << 15) > 0x7f80;
}

/// Small floats have their sign at the top of the bits that count, if they have one.
macro_rules! small_floats {
    ($($type:ident)*) => {$(
        impl Sortable for $type {
            type Key = u8;
            #[inline(always)]
            fn key(self) -> u8 {
                const SIGN: u8 = 1 << 7;
                let (format, bits) = ($type::FORMAT, self.0 << (8 - $type::FORMAT.bits));
                // NaN is the largest of all bits already.
                if format.special == Special::Scale {
                    return bits;
                }
                let nan = match format.special {
                    Special::NanForNegativeZero => bits == SIGN,
                    Special::Infinity => u32::from(bits & !SIGN) > format.overflow(),
                    _ => u32::from(bits & !SIGN) > format.max << (8 - format.bits),
                };
                let key = if bits >= SIGN { !bits } else { bits + (SIGN - 1) };
                if nan { u8::MAX } else { key }
            }
        }
    )*};
}
small_floats!(F4E2M1FN F6E2M3FN F6E3M2FN F8E8M0FNU F8E4M3FN F8E4M3FNUZ F8E5M2 F8E5M2FNUZ);

/// Some elements of a line, and memory for their keys.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) source: *const u8,
    /// The distance between elements in bytes.
    pub(super) step: isize,
    pub(super) count: usize,
    /// Whether the order is turned around.
    pub(super) descending: bool,
    /// The bytes of keys are those of elements.
    pub(super) keys: *mut u8,
}

trait Body {
    /// # Safety
    ///
    /// The elements may be read and the keys written; the latter are aligned.
    unsafe fn run<const FMA: bool>(block: Block);
}

versions!(version: Body, fn(block: Block));

struct Keys<T>(std::marker::PhantomData<T>);

impl<T: Sortable> Body for Keys<T> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(block: Block) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (block.step == size_of::<T>() as isize, block.descending) {
                (true, false) => convert::<T>(block, size_of::<T>() as isize, |key| key),
                (true, true) => convert::<T>(block, size_of::<T>() as isize, |key| !key),
                (false, false) => convert::<T>(block, block.step, |key| key),
                (false, true) => convert::<T>(block, block.step, |key| !key),
            }
        }
    }
}

/// # Safety
///
/// As for [`Body::run`].
#[inline(always)]
unsafe fn convert<T: Sortable>(block: Block, step: isize, turn: impl Fn(T::Key) -> T::Key) {
    let keys = block.keys.cast::<T::Key>();
    for i in 0..block.count {
        // SAFETY: guaranteed by the caller; elements need not be aligned.
        unsafe {
            let element = block.source.wrapping_offset(i as isize * step).cast::<T>().read_unaligned();
            keys.add(i).write(turn(element.key()));
        }
    }
}

/// The function that computes the keys of a dtype.
pub(super) fn keys(dtype: DType) -> unsafe fn(Block) {
    dispatch!(dtype, T => version::<Keys<T>>(Isa::best()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that keys order a list of elements as they are listed, where those in a group are equal.
    fn check<T: Sortable>(groups: &[&[T]]) {
        for (a, first) in groups.iter().enumerate() {
            for (b, second) in groups.iter().enumerate() {
                for (x, y) in first.iter().flat_map(|x| second.iter().map(move |y| (x, y))) {
                    assert_eq!(x.key().cmp(&y.key()), a.cmp(&b), "{} {a} {b}", T::DTYPE);
                }
            }
        }
    }

    #[test]
    fn keys_have_the_order_of_elements() {
        check::<i8>(&[&[-128], &[-1], &[0], &[127]]);
        check::<u64>(&[&[0], &[1], &[u64::MAX]]);
        check::<i64>(&[&[i64::MIN], &[-1], &[0], &[i64::MAX]]);
        check::<Bool>(&[&[Bool::FALSE], &[Bool::TRUE, bytemuck::cast(2u8)]]);
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        check::<f32>(&[
            &[-inf],
            &[-1.0],
            &[-f32::MIN_POSITIVE],
            &[0.0, -0.0],
            &[1e-45],
            &[inf],
            &[nan, -nan],
        ]);
        check::<f64>(&[&[-1e300], &[0.0, -0.0], &[5e-324], &[1.0], &[f64::INFINITY], &[f64::NAN, -f64::NAN]]);
    }

    #[test]
    fn keys_of_narrow_floats_have_the_order_of_their_values() {
        macro_rules! all {
            ($($type:ident from $bits:ident),*) => {$({
                let all: Vec<$type> = (0..=$bits::MAX).map(bytemuck::cast::<$bits, $type>).collect();
                let mut sorted = all.clone();
                sorted.sort_by_key(|x| x.key());
                for pair in sorted.windows(2) {
                    let [a, b] = [pair[0].to_f64(), pair[1].to_f64()];
                    assert!(a < b || b.is_nan() || a == b, "{a} {b}");
                    let same = a == b || a.is_nan() && b.is_nan();
                    assert_eq!(pair[0].key() == pair[1].key(), same, "{a} {b}");
                }
            })*};
        }
        all!(f16 from u16, bf16 from u16, F8E4M3FN from u8, F8E4M3FNUZ from u8, F8E5M2 from u8, F8E5M2FNUZ from u8);
        all!(F4E2M1FN from u8, F6E2M3FN from u8, F6E3M2FN from u8, F8E8M0FNU from u8);
    }
}
