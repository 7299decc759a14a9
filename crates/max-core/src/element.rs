//! The Rust types of the dtypes, and the one dispatch from a dtype to its type.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

use crate::scalar::{FloatLane, Lane};
use crate::small_float::{
    self, F4E2M1FN, F6E2M3FN, F6E3M2FN, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0FNU, Special,
};
use crate::{DType, Error, Result};

/// A boolean element: one byte, where any value but zero is true.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bool(u8);

impl Bool {
    /// False.
    pub const FALSE: Bool = Bool(0);
    /// True.
    pub const TRUE: Bool = Bool(1);

    /// Converts it to a Rust `bool`.
    #[inline(always)]
    pub fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    #[inline(always)]
    fn from(value: bool) -> Bool {
        Bool(u8::from(value))
    }
}

impl PartialEq for Bool {
    #[inline(always)]
    fn eq(&self, other: &Bool) -> bool {
        self.get() == other.get()
    }
}

/// A Rust type that tensor elements can have.
pub trait Element: Pod + Send + Sync + PartialEq {
    /// The dtype it stands for.
    const DTYPE: DType;

    /// The type in which arithmetic on it is done: itself, or f32 for the narrow floats.
    type Lane: Lane<Mask = Bool>;

    /// The type in which functions of real numbers are computed: f32 for floats up to 32 bits, else f64.
    type Real: FloatLane<Mask = Bool>;

    /// Widens for arithmetic.
    fn to_lane(self) -> Self::Lane;
    /// Rounds back after arithmetic.
    fn from_lane(lane: Self::Lane) -> Self;
    /// Converts it to the type of real functions.
    fn to_real(self) -> Self::Real;
    /// Converts it from the type of real functions: floats round to nearest, integers truncate and saturate.
    fn from_real(real: Self::Real) -> Self;
    /// The nearest f64.
    fn to_f64(self) -> f64;
    /// Floats round to nearest, integers truncate and saturate, bool is true unless zero. The 16-bit floats have functions
    /// of their own that are called `from_f64` and round twice.
    fn from_double(value: f64) -> Self;
    /// The integer part.
    fn to_i128(self) -> i128;
    /// Floats round to nearest, integers wrap, bool is true unless zero.
    fn from_i128(value: i128) -> Self;
}

macro_rules! native {
    ($real:ident: $($type:ident = $dtype:ident),*) => {$(
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            type Lane = $type;
            type Real = $real;
            fn to_lane(self) -> $type { self }
            fn from_lane(lane: $type) -> Self { lane }
            fn to_real(self) -> $real { self as $real }
            fn from_real(real: $real) -> Self { real as $type }
            fn to_f64(self) -> f64 { self as f64 }
            fn from_double(value: f64) -> Self { value as $type }
            fn to_i128(self) -> i128 { self as i128 }
            fn from_i128(value: i128) -> Self { value as $type }
        }
    )*};
}

native!(f64: i8 = Int8, i16 = Int16, i32 = Int32, i64 = Int64);
native!(f64: u8 = UInt8, u16 = UInt16, u32 = UInt32, u64 = UInt64);
native!(f64: f64 = Float64);
native!(f32: f32 = Float32);

/// Rounds to odd: the number itself if it is an f32, else the nearest f32 toward zero with its last bit set. A second
/// rounding to a narrower float then gives the same result as rounding once: the last bit is sticky.
#[inline(always)]
pub fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    let beyond = u32::from(back.abs() > value.abs());
    let inexact = u32::from(back != value);
    f32::from_bits((nearest.to_bits() - beyond) | inexact)
}

macro_rules! narrow {
    ($($type:ident = $dtype:ident;)*) => {$(
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            type Lane = f32;
            type Real = f32;
            fn to_lane(self) -> f32 { self.to_f32() }
            fn from_lane(lane: f32) -> Self { $type::from_f32(lane) }
            fn to_real(self) -> f32 { self.to_f32() }
            fn from_real(real: f32) -> Self { $type::from_f32(real) }
            fn to_f64(self) -> f64 { f64::from(self.to_f32()) }
            fn from_double(value: f64) -> Self { $type::from_f32(to_odd(value)) }
            fn to_i128(self) -> i128 { self.to_f32() as i128 }
            fn from_i128(value: i128) -> Self { Self::from_double(value as f64) }
        }
    )*};
}

narrow! {
    f16 = Float16;
    bf16 = BFloat16;
    F4E2M1FN = Float4E2M1FN;
    F6E2M3FN = Float6E2M3FN;
    F6E3M2FN = Float6E3M2FN;
    F8E8M0FNU = Float8E8M0FNU;
    F8E4M3FN = Float8E4M3FN;
    F8E4M3FNUZ = Float8E4M3FNUZ;
    F8E5M2 = Float8E5M2;
    F8E5M2FNUZ = Float8E5M2FNUZ;
}

impl Element for Bool {
    const DTYPE: DType = DType::Bool;
    type Lane = Bool;
    type Real = f64;
    fn to_lane(self) -> Bool {
        self
    }
    fn from_lane(lane: Bool) -> Self {
        lane.get().into()
    }
    fn to_real(self) -> f64 {
        self.to_f64()
    }
    fn from_real(real: f64) -> Self {
        Bool::from_double(real)
    }
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self.get()))
    }
    fn from_double(value: f64) -> Self {
        (value != 0.0).into()
    }
    fn to_i128(self) -> i128 {
        i128::from(self.get())
    }
    fn from_i128(value: i128) -> Self {
        (value != 0).into()
    }
}

/// Runs a block with `T` standing for the Rust type of a dtype: `dispatch!(dtype, T => body)`.
#[macro_export]
macro_rules! dispatch {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::dispatch!(@ $dtype, $T, $body,
            Bool = $crate::Bool,
            Int8 = i8, Int16 = i16, Int32 = i32, Int64 = i64,
            UInt8 = u8, UInt16 = u16, UInt32 = u32, UInt64 = u64,
            Float16 = $crate::f16, BFloat16 = $crate::bf16, Float32 = f32, Float64 = f64)
    };
    (@ $dtype:expr, $T:ident, $body:expr, $($variant:ident = $type:ty),*) => {
        $crate::dispatch_small!($dtype, $T => $body, $($crate::DType::$variant => { type $T = $type; $body })*)
    };
}

/// Matches a dtype with one arm for the floats of at most eight bits, in which `T` stands for the Rust type, and others
/// as usual: `dispatch_small!(dtype, T => body, _ => other)`.
#[macro_export]
macro_rules! dispatch_small {
    ($dtype:expr, $T:ident => $body:expr, $($others:tt)+) => {
        $crate::dispatch_small!(@ $dtype, $T, $body, { $($others)+ },
            Float4E2M1FN = F4E2M1FN, Float6E2M3FN = F6E2M3FN, Float6E3M2FN = F6E3M2FN,
            Float8E8M0FNU = F8E8M0FNU, Float8E4M3FN = F8E4M3FN, Float8E4M3FNUZ = F8E4M3FNUZ,
            Float8E5M2 = F8E5M2, Float8E5M2FNUZ = F8E5M2FNUZ)
    };
    (@ $dtype:expr, $T:ident, $body:expr, { $($others:tt)+ }, $($variant:ident = $type:ident),*) => {
        match $dtype {
            $($crate::DType::$variant => { type $T = $crate::small_float::$type; $body })*
            $($others)+
        }
    };
}

/// A number outside any tensor, as written in a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A bool.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A float.
    Float(f64),
}

macro_rules! number_from {
    ($($type:ty => $kind:ident),*) => {$(
        impl From<$type> for Number {
            fn from(value: $type) -> Number {
                Number::$kind(value.into())
            }
        }
    )*};
}
number_from!(bool => Bool, i32 => Int, i64 => Int, f32 => Float, f64 => Float);

impl Number {
    /// Its default dtype.
    pub fn natural_dtype(self) -> DType {
        match self {
            Number::Bool(_) => DType::Bool,
            Number::Int(_) => DType::Int64,
            Number::Float(_) => DType::Float32,
        }
    }

    /// The element of a dtype with this value; "Unsafe cast" if the dtype cannot hold it.
    ///
    /// Floats may round but not overflow; integers must fit; floats never become integers; any value but zero is true.
    pub fn to_element<T: Element>(self) -> Result<T> {
        let dtype = T::DTYPE;
        let unsafe_cast = |why: &str| {
            Error::value(format!(
                "Unsafe cast: {self} {why} {dtype}; insert an explicit cast, or use another dtype"
            ))
        };
        // Where nothing is infinite or NaN, the result does not show that a number is out of range.
        let largest = small_float::format(dtype)
            .filter(|format| format.special == Special::Nothing)
            .map_or(f64::INFINITY, |format| f64::from(format.largest()));
        let holds = |value: f64, element: T| value.abs() <= largest && element.to_f64().is_finite();
        let (element, fits) = match self {
            Number::Bool(b) => {
                let element = T::from_i128(i128::from(b));
                (element, holds(f64::from(u8::from(b)), element))
            }
            Number::Int(i) => {
                let element = T::from_i128(i);
                let same = element.to_i128() == i;
                (element, if dtype.is_integral() { same } else { holds(i as f64, element) })
            }
            Number::Float(_) if !dtype.is_float() => return Err(unsafe_cast("is a float and cannot become")),
            Number::Float(f) => {
                let element = T::from_double(f);
                (element, holds(f, element) || !f.is_finite() && largest.is_infinite())
            }
        };
        if fits { Ok(element) } else { Err(unsafe_cast("is out of the range of")) }
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Number::Bool(b) => write!(f, "{b}"),
            Number::Int(i) => write!(f, "{i}"),
            Number::Float(x) => write!(f, "{x:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dispatch_names_the_right_type() {
        for &dtype in DType::ALL {
            dispatch!(dtype, T => {
                assert_eq!(T::DTYPE, dtype);
                assert_eq!(size_of::<T>(), dtype.size_in_bytes());
                assert_eq!(T::from_double(1.0).to_i128(), 1);
            });
        }
    }

    #[test]
    fn doubles_round_once_to_narrow_floats() {
        let tie = 1.0 + 2f64.powi(-11);
        assert_eq!(<f16 as Element>::from_double(tie).to_f32(), 1.0);
        assert_eq!(<f16 as Element>::from_double(tie + 2f64.powi(-40)).to_f32(), 1.0 + 2f32.powi(-10));
        assert_eq!(<bf16 as Element>::from_double(1.0 + 2f64.powi(-8) + 2f64.powi(-50)).to_f32(), 1.0078125);
        for extreme in [0.0, -0.0, 1e-300, -1e-300, 1e300, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(<bf16 as Element>::from_double(extreme).to_f32(), extreme as f32, "{extreme}");
        }
        assert!(<f16 as Element>::from_double(f64::NAN).is_nan());
        // The same where `T` is the type itself.
        for (dtype, digits) in [(DType::Float16, 11), (DType::BFloat16, 8)] {
            let above = 1.0 + 2f64.powi(-digits) + 2f64.powi(-40);
            dispatch!(dtype, T => assert_eq!(T::from_double(above).to_f64(), 1.0 + 2f64.powi(1 - digits)));
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_errors() {
        assert_eq!(Number::Int(255).to_element::<u8>(), Ok(255));
        for bad in [Number::Int(300), Number::Int(-1), Number::Float(1.0)] {
            assert!(bad.to_element::<u8>().unwrap_err().message().contains("Unsafe cast"));
        }
        assert_eq!(Number::Bool(true).to_element::<f32>(), Ok(1.0));
        assert_eq!(Number::Int(7).to_element::<Bool>(), Ok(Bool::TRUE));
        assert!(Number::Float(1e6).to_element::<f16>().is_err());
        assert!(Number::Float(f64::INFINITY).to_element::<f16>().is_ok());
        assert_eq!(Number::Int(16777217).to_element::<f32>(), Ok(16777216.0));
        assert_eq!(Number::Int(6).to_element::<F4E2M1FN>(), Ok(F4E2M1FN(7)));
        for bad in [-6.5, f64::INFINITY, f64::NAN] {
            assert!(Number::Float(bad).to_element::<F4E2M1FN>().is_err(), "{bad}");
        }
        assert!(Number::Float(f64::NAN).to_element::<F8E8M0FNU>().is_ok());
        assert!(Number::Int(100).to_element::<F6E3M2FN>().is_err());
        for bad in [Number::Bool(false), Number::Int(0), Number::Float(-1.0)] {
            assert!(bad.to_element::<F8E8M0FNU>().is_err(), "{bad} is no power of two");
        }
    }
}
