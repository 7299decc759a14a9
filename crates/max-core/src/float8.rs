//! The four 8-bit float formats: decoded with bit operations, encoded by rounding to nearest even.

use bytemuck::{Pod, Zeroable};

/// A format: mantissa bits, exponent bias and how the top of its range is used.
struct Format {
    mantissa: u32,
    bias: i32,
    /// The largest finite magnitude as bits without sign.
    max: u8,
    /// The magnitude bits of infinity, if the format has one.
    infinity: Option<u8>,
    /// Whether 0x80 is the only NaN (and there is no negative zero).
    unsigned_zero: bool,
}

impl Format {
    fn decode(&self, bits: u8) -> f32 {
        if self.unsigned_zero && bits == 0x80 {
            return f32::NAN;
        }
        let (sign, magnitude) = (if bits & 0x80 == 0 { 1.0 } else { -1.0 }, bits & 0x7f);
        if magnitude > self.max {
            return if self.infinity == Some(magnitude) { sign * f32::INFINITY } else { f32::NAN };
        }
        let fraction = (magnitude & ((1 << self.mantissa) - 1)) as f32 / (1u32 << self.mantissa) as f32;
        let value = match i32::from(magnitude >> self.mantissa) {
            0 => fraction * 2f32.powi(1 - self.bias),
            exponent => (1.0 + fraction) * 2f32.powi(exponent - self.bias),
        };
        sign * value
    }

    fn encode(&self, value: f32) -> u8 {
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let nan = if self.unsigned_zero { 0x80 } else { sign | 0x7f };
        if value.is_nan() {
            return nan;
        }
        let overflow = self.infinity.map_or(nan, |i| sign | i);
        let magnitude = value.abs();
        if magnitude.is_infinite() {
            return overflow;
        }
        // In units in the last place at this magnitude the value is small, and rounding it is exact.
        let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(1 - self.bias);
        let ulp = 2f64.powi(exponent - self.mantissa as i32);
        let units = (f64::from(magnitude) / ulp).round_ties_even() as u32;
        let bits = units + (((exponent + self.bias - 1) as u32) << self.mantissa);
        if bits > u32::from(self.max) {
            return overflow;
        }
        if bits == 0 && self.unsigned_zero { 0 } else { sign | bits as u8 }
    }
}

macro_rules! float8 {
    ($($(#[$doc:meta])* $name:ident: $mantissa:literal, $bias:literal, $max:literal, $infinity:expr, $unsigned_zero:literal;)*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $name(pub u8);

        impl $name {
            const FORMAT: Format = Format {
                mantissa: $mantissa, bias: $bias, max: $max, infinity: $infinity, unsigned_zero: $unsigned_zero,
            };

            /// The exact value.
            pub fn to_f32(self) -> f32 {
                Self::FORMAT.decode(self.0)
            }

            /// The nearest value, ties to even; overflow gives infinity, or NaN in formats without infinities.
            pub fn from_f32(value: f32) -> Self {
                $name(Self::FORMAT.encode(value))
            }
        })*
    };
}

float8! {
    /// 4 exponent bits, finite and NaN only.
    F8E4M3FN: 3, 7, 0x7e, None, false;
    /// 4 exponent bits, finite and NaN only, one zero.
    F8E4M3FNUZ: 3, 8, 0x7f, None, true;
    /// 5 exponent bits, with infinities.
    F8E5M2: 2, 15, 0x7b, Some(0x7c), false;
    /// 5 exponent bits, finite and NaN only, one zero.
    F8E5M2FNUZ: 2, 16, 0x7f, None, true;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_survives_a_round_trip() {
        for bits in 0..=255u8 {
            macro_rules! check {
                ($($t:ident)*) => {$(
                    let value = $t(bits).to_f32();
                    let back = $t::from_f32(value);
                    assert!(back.0 == bits || value.is_nan() && back.to_f32().is_nan(), "{bits:#x} {value}");
                )*};
            }
            check!(F8E4M3FN F8E4M3FNUZ F8E5M2 F8E5M2FNUZ);
        }
    }

    #[test]
    fn known_values() {
        assert_eq!(F8E4M3FN(0x7e).to_f32(), 448.0);
        assert_eq!(F8E4M3FNUZ(0x7f).to_f32(), 240.0);
        assert_eq!(F8E5M2(0x7b).to_f32(), 57344.0);
        assert_eq!(F8E5M2FNUZ(0x7f).to_f32(), 57344.0);
        assert_eq!(F8E5M2::from_f32(1e9), F8E5M2(0x7c));
        assert!(F8E4M3FN::from_f32(1e9).to_f32().is_nan());
        assert_eq!(F8E4M3FN::from_f32(1.0625).to_f32(), 1.0, "ties go to even");
        assert_eq!(F8E4M3FN::from_f32(2f32.powi(-10)).to_f32(), 0.0);
    }
}
