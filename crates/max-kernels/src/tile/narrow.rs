//! Conversions between narrow floats and f32, without branches, with the same results as the types' own.

use max_core::element::to_odd;
use max_core::small_float::{
    F4E2M1FN, F6E2M3FN, F6E3M2FN, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0FNU, Format, SmallFloat,
    Special,
};
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
struct Narrower {
    /// Bits of the fraction.
    fraction: u32,
    /// The bias of the exponent.
    bias: u32,
    /// The largest finite magnitude, as bits.
    max: u32,
    /// The magnitude of what exceeds it, as bits.
    overflow: u32,
}

impl Narrower {
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

const F16: Narrower = Narrower { fraction: 10, bias: 15, max: 0x7bff, overflow: 0x7c00 };

/// The value of a small float. Formats are constants, and so are most conditions.
#[inline(always)]
fn widen(format: Format, bits: u8) -> f32 {
    let (bits, top) = (u32::from(bits), format.top());
    if format.special == Special::Scale {
        let normal = bits << 23;
        let number = if bits == 0 { 1 << 22 } else { normal };
        return f32::from_bits(if bits > format.max { f32::NAN.to_bits() } else { number });
    }
    let magnitude = bits & (top - 1);
    let value = narrower(format).widen(magnitude);
    let value = if magnitude > format.max { f32::NAN } else { value };
    let infinite = format.special == Special::Infinity && magnitude == format.overflow();
    let value = if infinite { f32::INFINITY } else { value };
    let signed = f32::from_bits(value.to_bits() | ((bits & top) << (32 - format.bits)));
    if format.special == Special::NanForNegativeZero && bits == top { f32::NAN } else { signed }
}

/// The bits of the nearest small float.
#[inline(always)]
fn narrow(format: Format, value: f32) -> u8 {
    let (bits, top) = (value.to_bits(), format.top());
    let result = match format.special {
        Special::Scale => {
            let rounded = bits.wrapping_add(1 << 22) >> 23;
            let number = if bits <= 1 << 22 { 0 } else { rounded };
            // Zero wraps; negative numbers, infinity and NaN are beyond.
            if bits.wrapping_sub(1) >= 0x7f7f_ffff { format.overflow() } else { number }
        }
        special => {
            let sign = (bits >> (32 - format.bits)) & top;
            let magnitude = narrower(format).narrow(value);
            let unsigned = !format.has_negative_zero() && magnitude == 0;
            let ordered = if unsigned { 0 } else { magnitude | sign };
            let nan = match special {
                Special::NanForNegativeZero => top,
                Special::Nothing => sign ^ top,
                _ => sign | (top - 1),
            };
            if value.is_nan() { nan } else { ordered }
        }
    };
    result as u8
}

const fn narrower(format: Format) -> Narrower {
    Narrower { fraction: format.fraction, bias: format.bias, max: format.max, overflow: format.overflow() }
}

macro_rules! small_floats {
    ($($type:ident)*) => {$(
        impl Narrow for $type {
            #[inline(always)]
            fn widen(self) -> f32 {
                widen(const { $type::FORMAT }, self.0)
            }

            #[inline(always)]
            fn narrow(value: f32) -> $type {
                $type(narrow(const { $type::FORMAT }, value))
            }
        }
    )*};
}
small_floats!(F4E2M1FN F6E2M3FN F6E3M2FN F8E8M0FNU F8E4M3FN F8E4M3FNUZ F8E5M2 F8E5M2FNUZ);

#[cfg(test)]
mod tests {
    use max_core::{DType, dispatch_small};

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
    fn small_floats_convert_like_themselves() {
        fn check<N: Narrow>() {
            for element in (0..=u8::MAX).map(bytemuck::cast::<u8, N>) {
                let (value, expected) = (element.widen(), element.to_f64() as f32);
                let same = value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan();
                assert!(same, "{} {:?}", N::DTYPE, bytemuck::bytes_of(&element));
            }
            let numbers =
                (0..=u32::MAX).step_by(1021).chain((0..=u16::MAX).map(|high| u32::from(high) << 16));
            // Neighbours of ties, of which some are subnormal.
            let near = (0..=u16::MAX).flat_map(|high| [1, 0xffff].map(|low| u32::from(high) << 16 | low));
            for value in numbers.chain(near).map(f32::from_bits) {
                let bytes = |element: N| bytemuck::bytes_of(&element)[0];
                assert_eq!(
                    bytes(N::narrow(value)),
                    bytes(N::from_double(f64::from(value))),
                    "{} {value:e}",
                    N::DTYPE
                );
            }
        }
        for &dtype in DType::ALL {
            dispatch_small!(dtype, N => check::<N>(), _ => ());
        }
    }
}
