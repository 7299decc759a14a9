//! Element types: one table of names, codes and sizes, and the rules for promoting two of them.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result, small_float};

/// The family of an element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Family {
    Bool,
    Signed,
    Unsigned,
    Float,
}

/// The numbers of a float type: the bits of the significand, the implicit one included, and the smallest and largest
/// positive number. The smallest one is a power of two that all others are multiples of.
struct Reals {
    precision: u32,
    smallest: f64,
    largest: f64,
}

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal, $family:ident, $bits:literal;)*) => {
        /// The type of the elements of a tensor. The discriminants are the public numeric codes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DType { $($(#[$doc])* $variant = $code,)* }

        impl DType {
            /// Every element type.
            pub const ALL: &'static [DType] = &[$(DType::$variant),*];

            const fn row(self) -> (&'static str, Family, usize) {
                match self { $(DType::$variant => ($name, Family::$family, $bits),)* }
            }
        }
    };
}

dtypes! {
    /// True or false, one byte each.
    Bool = 1, "bool", Bool, 8;
    // The codes of these four are numbers that no documented dtype has.
    /// 8-bit float: 8 exponent bits and no others; powers of two and NaN.
    Float8E8M0FNU = 62, "float8_e8m0fnu", Float, 8;
    /// 6-bit float: 3 exponent bits, no infinities, no NaN.
    Float6E3M2FN = 63, "float6_e3m2fn", Float, 6;
    /// 4-bit float: 2 exponent bits, no infinities, no NaN.
    Float4E2M1FN = 64, "float4_e2m1fn", Float, 4;
    /// 6-bit float: 2 exponent bits, no infinities, no NaN.
    Float6E2M3FN = 65, "float6_e2m3fn", Float, 6;
    /// 8-bit float: 4 exponent bits, no infinities.
    Float8E4M3FN = 66, "float8_e4m3fn", Float, 8;
    /// 8-bit float: 4 exponent bits, no infinities, no negative zero.
    Float8E4M3FNUZ = 67, "float8_e4m3fnuz", Float, 8;
    /// 8-bit float: 5 exponent bits.
    Float8E5M2 = 68, "float8_e5m2", Float, 8;
    /// 8-bit float: 5 exponent bits, no infinities, no negative zero.
    Float8E5M2FNUZ = 69, "float8_e5m2fnuz", Float, 8;
    /// IEEE half precision.
    Float16 = 70, "float16", Float, 16;
    /// The upper half of a float32.
    BFloat16 = 71, "bfloat16", Float, 16;
    /// IEEE single precision.
    Float32 = 72, "float32", Float, 32;
    /// IEEE double precision.
    Float64 = 73, "float64", Float, 64;
    /// Unsigned 8-bit integer.
    UInt8 = 134, "uint8", Unsigned, 8;
    /// Signed 8-bit integer.
    Int8 = 135, "int8", Signed, 8;
    /// Unsigned 16-bit integer.
    UInt16 = 136, "uint16", Unsigned, 16;
    /// Signed 16-bit integer.
    Int16 = 137, "int16", Signed, 16;
    /// Unsigned 32-bit integer.
    UInt32 = 138, "uint32", Unsigned, 32;
    /// Signed 32-bit integer.
    Int32 = 139, "int32", Signed, 32;
    /// Unsigned 64-bit integer.
    UInt64 = 140, "uint64", Unsigned, 64;
    /// Signed 64-bit integer.
    Int64 = 141, "int64", Signed, 64;
}

impl DType {
    /// The documented name, such as `float32`.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// The documented numeric code, such as 72 for `float32`.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The element type of a numeric code.
    pub fn from_code(code: u8) -> Result<DType> {
        DType::ALL
            .iter()
            .copied()
            .find(|d| d.code() == code)
            .ok_or_else(|| Error::value(format!("{code} is not the code of a dtype")))
    }

    /// The size of one element in bytes; an element of fewer than eight bits has a byte of its own.
    pub const fn size_in_bytes(self) -> usize {
        self.row().2.div_ceil(8)
    }

    /// The number of bits of one element that have a meaning.
    pub const fn size_in_bits(self) -> usize {
        self.row().2
    }

    /// The alignment of one element in bytes.
    pub const fn align(self) -> usize {
        self.size_in_bytes()
    }

    /// Whether it is a floating-point type of any width.
    pub fn is_float(self) -> bool {
        self.row().1 == Family::Float
    }

    /// Whether it is one of the five 8-bit floats.
    pub fn is_float8(self) -> bool {
        self.is_float() && self.size_in_bits() == 8
    }

    /// Whether it is a float of at most eight bits, which has one byte.
    pub fn is_small_float(self) -> bool {
        self.is_float() && self.size_in_bytes() == 1
    }

    /// Whether it is one of the two 16-bit floats.
    pub fn is_half(self) -> bool {
        self.is_float() && self.size_in_bytes() == 2
    }

    /// Whether it is an integer type; `bool` is not.
    pub fn is_integral(self) -> bool {
        self.is_signed_integral() || self.is_unsigned_integral()
    }

    /// Whether it is a signed integer type.
    pub fn is_signed_integral(self) -> bool {
        self.row().1 == Family::Signed
    }

    /// Whether it is an unsigned integer type.
    pub fn is_unsigned_integral(self) -> bool {
        self.row().1 == Family::Unsigned
    }

    /// The numbers of a float type.
    fn reals(self) -> Option<Reals> {
        let reals = |precision, smallest, largest| Some(Reals { precision, smallest, largest });
        match self {
            DType::Float16 => reals(11, 2f64.powi(-24), 65504.0),
            DType::BFloat16 => reals(8, 2f64.powi(-133), f64::from(f32::from_bits(0x7f7f_0000))),
            DType::Float32 => reals(24, 2f64.powi(-149), f64::from(f32::MAX)),
            DType::Float64 => reals(53, f64::from_bits(1), f64::MAX),
            _ => {
                let format = small_float::format(self)?;
                reals(format.fraction + 1, f64::from(format.smallest()), f64::from(format.largest()))
            }
        }
    }

    /// The bits that an integer has for its value.
    fn value_bits(self) -> u32 {
        self.size_in_bits() as u32 - u32::from(self.is_signed_integral())
    }

    /// Whether every value of `self` is also a value of `wide`.
    pub fn fits(self, wide: DType) -> bool {
        if self == wide {
            return true;
        }
        match (self.row().1, wide.row().1) {
            // Every type has a one, and all but one have a zero.
            (Family::Bool, _) => wide != DType::Float8E8M0FNU,
            (Family::Unsigned, Family::Unsigned | Family::Signed) | (Family::Signed, Family::Signed) => {
                self.value_bits() <= wide.value_bits()
            }
            (Family::Unsigned | Family::Signed, Family::Float) => {
                wide.reals().is_some_and(|reals| self.value_bits() <= reals.precision)
            }
            (Family::Float, Family::Float) => {
                let zeros = |dtype| small_float::format(dtype).is_none_or(|f| f.has_negative_zero());
                let Some((a, b)) = self.reals().zip(wide.reals()) else { return false };
                let numbers =
                    a.precision <= b.precision && a.smallest >= b.smallest && a.largest <= b.largest;
                numbers && (zeros(wide) || !zeros(self))
            }
            _ => false,
        }
    }

    /// The dtype that two tensors promote to: the one of the two that can hold both exactly.
    pub fn promote(self, other: DType) -> Result<DType> {
        match (self.fits(other), other.fits(self)) {
            (true, _) => Ok(other),
            (_, true) => Ok(self),
            _ => Err(Error::value(format!(
                "Unsafe cast: neither {self} nor {other} holds all values of both; \
                 insert an explicit cast of one operand"
            ))),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;

    fn from_str(name: &str) -> Result<DType> {
        DType::ALL.iter().copied().find(|d| d.name() == name).ok_or_else(|| {
            let names: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
            Error::value(format!("'{name}' is not the name of a dtype; the names are {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::DType::*;
    use super::*;
    use crate::Element;

    #[test]
    fn names_and_codes_round_trip() {
        for &d in DType::ALL {
            assert_eq!(DType::from_code(d.code()), Ok(d));
            assert_eq!(d.name().parse(), Ok(d));
        }
        assert!(DType::from_code(0).is_err() && "float".parse::<DType>().is_err());
    }

    #[test]
    fn promotion_follows_the_table() {
        let ok = [
            (Bool, Int8, Int8),
            (Int8, Float16, Float16),
            (UInt8, BFloat16, BFloat16),
            (Int16, Float32, Float32),
            (UInt16, Float64, Float64),
            (Int32, Float64, Float64),
            (UInt8, Int16, Int16),
            (UInt16, Int32, Int32),
            (UInt32, Int64, Int64),
            (Float16, Float32, Float32),
            (BFloat16, Float32, Float32),
            (Float32, Float64, Float64),
        ];
        for (a, b, c) in ok {
            assert_eq!(a.promote(b), Ok(c), "{a} + {b}");
            assert_eq!(b.promote(a), Ok(c), "{b} + {a}");
        }
        let bad = [
            (UInt8, Int8),
            (UInt16, Int16),
            (UInt32, Int32),
            (UInt64, Int64),
            (UInt64, Int8),
            (Float16, BFloat16),
            (Int16, Float16),
            (Int32, Float32),
            (Int64, Float64),
            (UInt64, Float64),
        ];
        for (a, b) in bad {
            assert!(a.promote(b).unwrap_err().message().contains("Unsafe cast"), "{a} + {b}");
        }
    }

    #[test]
    fn small_floats_fit_where_every_value_does() {
        for &narrow in DType::ALL.iter().filter(|dtype| dtype.is_small_float()) {
            for &wide in DType::ALL.iter().filter(|dtype| dtype.is_float()) {
                let all = crate::dispatch!(narrow, A => crate::dispatch!(wide, B => (0..=u8::MAX).all(|bits| {
                    let value = bytemuck::cast::<u8, A>(bits).to_f64();
                    let back = B::from_double(value).to_f64();
                    back.to_bits() == value.to_bits() || back.is_nan() && value.is_nan()
                })));
                assert_eq!(narrow.fits(wide), all, "{narrow} in {wide}");
            }
        }
        assert!(Float8E8M0FNU.fits(BFloat16) && !Float8E8M0FNU.fits(Float16));
        assert!(
            Float4E2M1FN.fits(Float6E2M3FN) && Float4E2M1FN.fits(Float8E4M3FN) && Float4E2M1FN.fits(Float16)
        );
        assert!(Bool.fits(Float4E2M1FN) && !Bool.fits(Float8E8M0FNU) && !Int8.fits(Float6E2M3FN));
    }

    #[test]
    fn elements_of_a_few_bits_have_a_byte() {
        let sizes = |dtype: DType| [dtype.size_in_bits(), dtype.size_in_bytes(), dtype.align()];
        assert_eq!(sizes(Float4E2M1FN), [4, 1, 1]);
        assert_eq!(sizes(Float6E3M2FN), [6, 1, 1]);
        assert_eq!(sizes(Float8E8M0FNU), [8, 1, 1]);
        assert_eq!(sizes(Float64), [64, 8, 8]);
        assert!(Float8E8M0FNU.is_float8() && !Float4E2M1FN.is_float8() && Float4E2M1FN.is_small_float());
    }
}
