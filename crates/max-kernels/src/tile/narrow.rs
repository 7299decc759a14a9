//! Conversions between narrow floats and f32, without branches where it matters, with the same bits as `half`.

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

impl Narrow for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = bits & 0x7fff;
        // The exponent moves by a product, which makes subnormal numbers normal.
        let finite = (f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23)).to_bits();
        let special = if magnitude >= 0x7c00 { 0x7f80_0000 } else { 0 };
        let quiet = if magnitude > 0x7c00 { 0x0040_0000 } else { 0 };
        f32::from_bits(finite | special | quiet | ((bits & 0x8000) << 16))
    }

    #[inline(always)]
    fn narrow(value: f32) -> f16 {
        const HALF: u32 = 0.5f32.to_bits();
        let bits = value.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        let odd = (magnitude >> 13) & 1;
        let normal = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
        // Below the normal numbers: in the sum with 1/2 the last place is that of f16.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(HALF);
        let nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
        let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
        let ordered = if magnitude >= 0x4780_0000 { 0x7c00 } else { finite };
        let result = if magnitude > 0x7f80_0000 { nan } else { ordered };
        f16::from_bits((result | ((bits >> 16) & 0x8000)) as u16)
    }
}

macro_rules! float8 {
    ($($type:ident)*) => {$(
        impl Narrow for $type {
            #[inline(always)]
            fn widen(self) -> f32 {
                self.to_f32()
            }

            #[inline(always)]
            fn narrow(value: f32) -> $type {
                $type::from_f32(value)
            }
        }
    )*};
}
float8!(F8E4M3FN F8E4M3FNUZ F8E5M2 F8E5M2FNUZ);

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
}
