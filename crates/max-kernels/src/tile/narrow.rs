//! Conversions between narrow floats and f32, without branches, with the same results as the types' own.

use max_core::element::to_odd;
use max_core::float8::{F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ};
use max_core::{Element, bf16, f16};

/// A float of fewer than 32 bits: held as f32 in register tiles.
pub(super) trait Narrow: Element {
    /// The exact value.
    fn widen(self) -> f32;
    /// The nearest value, ties to even.
    fn narrow(value: f32) -> Self;

    /// The nearest value, rounded once.
    #[inline(always)]
    fn narrow_f64(value: f64) -> Self {
        Self::narrow(to_odd(value))
    }
}

impl Narrow for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> bf16 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        // A NaN stays one, even where its payload is in the low half.
        let kept = if value.is_nan() { bits | 0x0040_0000 } else { rounded };
        bf16::from_bits((kept >> 16) as u16)
    }
}

/// A format with fewer exponent bits than f32.
struct Format {
    /// Bits of the fraction.
    fraction: u32,
    /// The bias of the exponent.
    bias: u32,
    /// The largest finite magnitude, as bits.
    max: u32,
    /// The magnitude of what exceeds it, as bits: infinity, or NaN if there is no infinity.
    overflow: u32,
}

impl Format {
    /// The value of finite magnitude bits.
    #[inline(always)]
    fn widen(&self, magnitude: u32) -> f32 {
        // A multiplication adjusts the exponent, which also normalizes subnormal numbers.
        f32::from_bits(magnitude << (23 - self.fraction)) * f32::from_bits((254 - self.bias) << 23)
    }

    /// The magnitude bits nearest to a number that is not NaN.
    #[inline(always)]
    fn narrow(&self, value: f32) -> u32 {
        let bits = value.to_bits() & 0x7fff_ffff;
        let shift = 23 - self.fraction;
        let odd = (bits >> shift) & 1;
        let half = (1 << (shift - 1)) - 1 + odd;
        let normal = bits.wrapping_sub((127 - self.bias) << 23).wrapping_add(half) >> shift;
        // For subnormal results: in the sum with this power of two, the last place is that of the format.
        let unit = f32::from_bits((127 + 24 - self.bias - self.fraction) << 23);
        let subnormal = (f32::from_bits(bits) + unit).to_bits().wrapping_sub(unit.to_bits());
        let finite = if bits < (128 - self.bias) << 23 { subnormal } else { normal };
        if finite > self.max { self.overflow } else { finite }
    }
}

impl Narrow for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = bits & 0x7fff;
        let special = if magnitude >= 0x7c00 { 0x7f80_0000 } else { 0 };
        let quiet = if magnitude > 0x7c00 { 0x0040_0000 } else { 0 };
        f32::from_bits(F16.widen(magnitude).to_bits() | special | quiet | ((bits & 0x8000) << 16))
    }

    #[inline(always)]
    fn narrow(value: f32) -> f16 {
        let bits = value.to_bits();
        let nan = 0x7e00 | ((bits >> 13) & 0x3ff);
        let magnitude = if value.is_nan() { nan } else { F16.narrow(value) };
        f16::from_bits((magnitude | ((bits >> 16) & 0x8000)) as u16)
    }
}

const F16: Format = Format { fraction: 10, bias: 15, max: 0x7bff, overflow: 0x7c00 };

/// The 8-bit floats: with signed zeros and NaN at 0x7f, or without and NaN at 0x80 only.
macro_rules! float8 {
    ($($type:ident: $fraction:literal, $bias:literal, $max:literal, $overflow:literal, $nan:literal;)*) => {$(
        impl Narrow for $type {
            #[inline(always)]
            fn widen(self) -> f32 {
                let bits = u32::from(self.0);
                let magnitude = bits & 0x7f;
                let value = $type::FORMAT.widen(magnitude);
                let value = if magnitude > $type::FORMAT.max { f32::NAN } else { value };
                let value = if magnitude == 0x7c && $overflow == 0x7c { f32::INFINITY } else { value };
                let signed = f32::from_bits(value.to_bits() | ((bits & 0x80) << 24));
                if bits == $nan { f32::NAN } else { signed }
            }

            #[inline(always)]
            fn narrow(value: f32) -> $type {
                let magnitude = $type::FORMAT.narrow(value);
                let sign = (value.to_bits() >> 24) & 0x80;
                let unsigned = $nan == 0x80 && magnitude == 0;
                let ordered = if unsigned { 0 } else { magnitude | sign };
                $type(if value.is_nan() { $nan | sign } else { ordered } as u8)
            }
        }

        impl Own for $type {
            const FORMAT: Format = Format { fraction: $fraction, bias: $bias, max: $max, overflow: $overflow };
        }
    )*};
}

/// The format of a type.
trait Own {
    const FORMAT: Format;
}

float8! {
    F8E4M3FN: 3, 7, 0x7e, 0x7f, 0x7f;
    F8E4M3FNUZ: 3, 8, 0x7f, 0x80, 0x80;
    F8E5M2: 2, 15, 0x7b, 0x7c, 0x7f;
    F8E5M2FNUZ: 2, 16, 0x7f, 0x80, 0x80;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_widen_like_half() {
        for bits in 0..=u16::MAX {
            assert_eq!(
                f16::from_bits(bits).widen().to_bits(),
                f16::from_bits(bits).to_f32().to_bits(),
                "{bits:#x}"
            );
            assert_eq!(bf16::from_bits(bits).widen().to_bits() >> 16, u32::from(bits));
        }
    }

    #[test]
    fn halves_narrow_like_half() {
        let check = |bits: u32| {
            let value = f32::from_bits(bits);
            assert_eq!(f16::narrow(value).to_bits(), f16::from_f32_const(value).to_bits(), "{bits:#x}");
            assert_eq!(bf16::narrow(value).to_bits(), bf16::from_f32(value).to_bits(), "{bits:#x}");
        };
        (0..=u32::MAX).step_by(257).for_each(check);
        // Ties and their neighbours.
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff] {
                check(u32::from(high) << 16 | low);
            }
        }
    }

    #[test]
    fn doubles_round_once() {
        for high in (0..=u16::MAX).step_by(3) {
            let tie = f64::from(f32::from_bits(u32::from(high) << 16 | 0x8000));
            for value in [tie, tie.next_up(), tie.next_down()].into_iter().filter(|v| !v.is_nan()) {
                let nearest = bf16::narrow_f64(value);
                let distance = |c: bf16| (f64::from(c.widen()) - value).abs();
                for other in [nearest.to_bits().wrapping_sub(1), nearest.to_bits().wrapping_add(1)]
                    .map(bf16::from_bits)
                {
                    if nearest.widen().is_finite() && other.widen().is_finite() {
                        assert!(distance(nearest) <= distance(other), "{value:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn float8s_convert_like_themselves() {
        macro_rules! check {
            ($($type:ident)*) => {$(
                for bits in 0..=u8::MAX {
                    let (value, expected) = ($type(bits).widen(), $type(bits).to_f32());
                    assert!(value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan(), "{bits:#x}");
                }
                for bits in (0..=u32::MAX).step_by(1021).chain((0..=u16::MAX).map(|high| u32::from(high) << 16)) {
                    let value = f32::from_bits(bits);
                    assert_eq!($type::narrow(value), $type::from_f32(value), "{value:e}");
                }
            )*};
        }
        check!(F8E4M3FN F8E4M3FNUZ F8E5M2 F8E5M2FNUZ);
    }
}
