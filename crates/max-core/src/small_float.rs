//! Floats of at most eight bits, one byte each: one declaration of their formats, from which their conversions follow.
//!
//! Those of fewer than eight bits are in the low bits of their byte; the others are ignored when an element is read and
//! zero when one is written. They are converted with bit operations, and rounded to nearest.

use bytemuck::{Pod, Zeroable};

use crate::DType;

/// A format: how its bits are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// The bits of an element, the sign included.
    pub bits: u32,
    /// The bits of the fraction.
    pub fraction: u32,
    /// What the exponent is too large by.
    pub bias: u32,
    /// The bits of the largest number, without the sign.
    pub max: u32,
    /// What there is besides numbers.
    pub special: Special,
}

/// What a format has besides numbers, which decides what becomes of those that are out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Infinities follow the numbers, and NaNs follow these. What is out of range becomes infinite.
    Infinity,
    /// A NaN follows the numbers. What is out of range becomes NaN.
    Nan,
    /// NaN is where the negative zero would be. What is out of range becomes NaN.
    NanForNegativeZero,
    /// Nothing. What is out of range becomes the largest number, and NaN the zero of the other sign.
    Nothing,
    /// Powers of two: there is no sign, no zero and no fraction, and all ones are NaN. Ties are rounded up, and so is all
    /// between the two smallest numbers, as other libraries do it. What is not positive or too large becomes NaN, and
    /// what is too small the smallest number.
    Scale,
}

impl Format {
    /// The bit of the sign, or of the highest exponent bit if there is none.
    pub const fn top(&self) -> u32 {
        1 << (self.bits - 1)
    }

    /// The bits of what exceeds the largest number, without the sign.
    pub const fn overflow(&self) -> u32 {
        match self.special {
            Special::Infinity | Special::Nan | Special::Scale => self.max + 1,
            Special::NanForNegativeZero => self.top(),
            Special::Nothing => self.max,
        }
    }

    /// Whether the negative zero differs from zero.
    pub const fn has_negative_zero(&self) -> bool {
        !matches!(self.special, Special::NanForNegativeZero | Special::Scale)
    }

    /// The value of bits, of which only the lowest count.
    pub fn decode(&self, bits: u8) -> f32 {
        let bits = u32::from(bits) & (2 * self.top() - 1);
        if self.special == Special::Scale {
            return if bits > self.max { f32::NAN } else { 2f64.powi(bits as i32 - self.bias as i32) as f32 };
        }
        if self.special == Special::NanForNegativeZero && bits == self.top() {
            return f32::NAN;
        }
        let (sign, magnitude) = (if bits & self.top() == 0 { 1.0 } else { -1.0 }, bits & (self.top() - 1));
        if magnitude > self.max {
            let infinite = self.special == Special::Infinity && magnitude == self.overflow();
            return if infinite { sign * f32::INFINITY } else { f32::NAN };
        }
        let fraction = (magnitude & ((1 << self.fraction) - 1)) as f32 / (1u32 << self.fraction) as f32;
        let value = match (magnitude >> self.fraction) as i32 {
            0 => fraction * 2f32.powi(1 - self.bias as i32),
            exponent => (1.0 + fraction) * 2f32.powi(exponent - self.bias as i32),
        };
        sign * value
    }

    /// The bits of the nearest value; ties go to even, unless the format has its own rule.
    pub fn encode(&self, value: f32) -> u8 {
        if self.special == Special::Scale {
            return self.encode_scale(value);
        }
        let sign = if value.is_sign_negative() { self.top() } else { 0 };
        let bits = match self.special {
            Special::Infinity | Special::Nan if value.is_nan() => sign | (self.top() - 1),
            Special::NanForNegativeZero if value.is_nan() => self.top(),
            _ if value.is_nan() => sign ^ self.top(),
            _ => match self.magnitude(value.abs()) {
                0 if !self.has_negative_zero() => 0,
                magnitude => sign | magnitude,
            },
        };
        bits as u8
    }

    /// The bits of the number nearest to a magnitude, or of what exceeds them.
    fn magnitude(&self, value: f32) -> u32 {
        if value.is_infinite() {
            return self.overflow();
        }
        // In units in the last place at this magnitude the value is small, and rounding it is exact.
        let bias = self.bias as i32;
        let exponent = ((value.to_bits() >> 23) as i32 - 127).max(1 - bias);
        let ulp = 2f64.powi(exponent - self.fraction as i32);
        let units = (f64::from(value) / ulp).round_ties_even() as u32;
        let bits = units + (((exponent + bias - 1) as u32) << self.fraction);
        if bits > self.max { self.overflow() } else { bits }
    }

    fn encode_scale(&self, value: f32) -> u8 {
        if value.is_nan() || value <= 0.0 {
            return self.overflow() as u8;
        }
        let bits = value.to_bits();
        // Subnormal numbers do not have their exponent in its bits: the smallest result is one, the next one is not.
        if value < f32::MIN_POSITIVE {
            return u8::from(bits > 1 << 22);
        }
        ((bits >> 23) + (bits >> 22 & 1)).min(self.overflow()) as u8
    }

    /// The largest number.
    pub fn largest(&self) -> f32 {
        self.decode(self.max as u8)
    }

    /// The smallest positive number.
    pub fn smallest(&self) -> f32 {
        self.decode(u8::from(self.special != Special::Scale))
    }
}

/// A float of at most eight bits.
pub trait SmallFloat {
    /// How its bits are used.
    const FORMAT: Format;
}

macro_rules! small_floats {
    ($($(#[$doc:meta])* $name:ident = $dtype:ident:
        $bits:literal, $fraction:literal, $bias:literal, $max:literal, $special:ident;)*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $name(pub u8);

        impl SmallFloat for $name {
            const FORMAT: Format = Format {
                bits: $bits, fraction: $fraction, bias: $bias, max: $max, special: Special::$special,
            };
        }

        impl $name {
            /// The exact value.
            pub fn to_f32(self) -> f32 {
                Self::FORMAT.decode(self.0)
            }

            /// The nearest value; [`Special`] says what becomes of those that are out of range.
            pub fn from_f32(value: f32) -> Self {
                $name(Self::FORMAT.encode(value))
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                (self.0 ^ other.0) & (u8::MAX >> (8 - $bits)) == 0
            }
        })*

        /// The format of a dtype of at most eight bits; `None` for all others.
        pub const fn format(dtype: DType) -> Option<Format> {
            match dtype {
                $(DType::$dtype => Some($name::FORMAT),)*
                _ => None,
            }
        }
    };
}

small_floats! {
    /// Four bits, 2 of them for the exponent; only finite.
    F4E2M1FN = Float4E2M1FN: 4, 1, 1, 0x07, Nothing;
    /// Six bits, 2 of them for the exponent; only finite.
    F6E2M3FN = Float6E2M3FN: 6, 3, 1, 0x1f, Nothing;
    /// Six bits, 3 of them for the exponent; only finite.
    F6E3M2FN = Float6E3M2FN: 6, 2, 3, 0x1f, Nothing;
    /// 8 exponent bits and nothing else: powers of two and NaN.
    F8E8M0FNU = Float8E8M0FNU: 8, 0, 127, 0xfe, Scale;
    /// 4 exponent bits, finite and NaN only.
    F8E4M3FN = Float8E4M3FN: 8, 3, 7, 0x7e, Nan;
    /// 4 exponent bits, finite and NaN only, one zero.
    F8E4M3FNUZ = Float8E4M3FNUZ: 8, 3, 8, 0x7f, NanForNegativeZero;
    /// 5 exponent bits, with infinities.
    F8E5M2 = Float8E5M2: 8, 2, 15, 0x7b, Infinity;
    /// 5 exponent bits, finite and NaN only, one zero.
    F8E5M2FNUZ = Float8E5M2FNUZ: 8, 2, 16, 0x7f, NanForNegativeZero;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every small float with its name.
    fn formats() -> impl Iterator<Item = (DType, Format)> {
        DType::ALL.iter().filter_map(|&dtype| Some((dtype, format(dtype)?)))
    }

    #[test]
    fn every_value_survives_a_round_trip() {
        assert_eq!(formats().count(), 8);
        for (dtype, format) in formats() {
            for bits in 0..=u8::MAX {
                let value = format.decode(bits);
                let back = format.encode(value);
                let same = back == bits & (u8::MAX >> (8 - format.bits));
                assert!(same || value.is_nan() && format.decode(back).is_nan(), "{dtype} {bits:#x} {value}");
            }
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
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 7].map(|b| F4E2M1FN(b).to_f32()),
            [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
        );
        assert_eq!(F4E2M1FN(0xfc), F4E2M1FN(0x0c), "upper bits are ignored");
        assert_eq!(F6E2M3FN::FORMAT.largest(), 7.5);
        assert_eq!(F6E3M2FN::FORMAT.largest(), 28.0);
        assert_eq!(F8E8M0FNU::FORMAT.smallest(), 2f64.powi(-127) as f32);
    }

    /// Codes and roundings that `ml_dtypes` gives. `goldens/small_floats.py` of the Python tests makes the file.
    #[test]
    fn conversions_match_ml_dtypes() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../max-py/tests/goldens/small_floats.txt");
        let golden = std::fs::read_to_string(path).unwrap();
        let mut lines = golden.lines().filter(|line| !line.starts_with('#'));
        let inputs: Vec<f32> = words(lines.next().unwrap()).map(f32::from_bits).collect();
        let mut checked = 0;
        while let Some(name) = lines.next() {
            let dtype: DType = name.parse().unwrap();
            let format = format(dtype).unwrap();
            for (bits, value) in words(lines.next().unwrap()).enumerate() {
                let (own, value) = (format.decode(bits as u8), f32::from_bits(value));
                assert!(
                    own.to_bits() == value.to_bits() || own.is_nan() && value.is_nan(),
                    "{dtype} {bits:#x}"
                );
            }
            for (&input, bits) in inputs.iter().zip(words(lines.next().unwrap())) {
                let own = format.encode(input);
                // The bits of a NaN may differ.
                let nan = format.decode(own).is_nan() && format.decode(bits as u8).is_nan();
                assert!(u32::from(own) == bits || nan, "{dtype} of {input:e}: {own:#x}, not {bits:#x}");
                checked += 1;
            }
        }
        assert_eq!(checked, 8 * inputs.len());
    }

    /// Hexadecimal numbers of a line.
    fn words(line: &str) -> impl Iterator<Item = u32> {
        line.split(' ').map(|word| u32::from_str_radix(word, 16).unwrap())
    }
}
