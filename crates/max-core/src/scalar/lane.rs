//! The operations that bodies of the scalar table may use, and their implementation for plain numbers.

use crate::Bool;

/// A bool per lane.
pub trait MaskLane: Copy {
    /// Logical and.
    fn and(self, other: Self) -> Self;
    /// Logical or.
    fn or(self, other: Self) -> Self;
    /// Logical exclusive or.
    fn xor(self, other: Self) -> Self;
    /// Logical not.
    fn not(self) -> Self;
}

/// A value per lane with the arithmetic that every dtype has.
#[allow(missing_docs, reason = "the names say what they do; the scalar table documents the ops")]
pub trait Lane: Copy {
    /// The result of a comparison.
    type Mask: MaskLane;

    fn splat(value: f64) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn floor_div(self, other: Self) -> Self;
    fn modulo(self, other: Self) -> Self;
    fn pow(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn round(self) -> Self;
    fn trunc(self) -> Self;
    fn eq(self, other: Self) -> Self::Mask;
    fn lt(self, other: Self) -> Self::Mask;
    fn le(self, other: Self) -> Self::Mask;
    fn is_inf(self) -> Self::Mask;
}

/// A lane of real numbers.
#[allow(missing_docs, reason = "the names say what they do; the scalar table documents the ops")]
pub trait FloatLane: Lane {
    fn div(self, other: Self) -> Self;
    fn sqrt(self) -> Self;
    fn exp(self) -> Self;
    fn log(self) -> Self;
    fn log1p(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn acos(self) -> Self;
    fn tanh(self) -> Self;
    fn atanh(self) -> Self;
    fn erf(self) -> Self;
}

impl MaskLane for Bool {
    #[inline(always)]
    fn and(self, other: Bool) -> Bool {
        (self.get() && other.get()).into()
    }
    #[inline(always)]
    fn or(self, other: Bool) -> Bool {
        (self.get() || other.get()).into()
    }
    #[inline(always)]
    fn xor(self, other: Bool) -> Bool {
        (self.get() != other.get()).into()
    }
    #[inline(always)]
    fn not(self) -> Bool {
        (!self.get()).into()
    }
}

/// Bool as a saturating one-bit integer: add is or, mul is and, sub is xor.
impl Lane for Bool {
    type Mask = Bool;

    #[inline(always)]
    fn splat(value: f64) -> Bool {
        (value != 0.0).into()
    }
    #[inline(always)]
    fn add(self, other: Bool) -> Bool {
        self.or(other)
    }
    #[inline(always)]
    fn sub(self, other: Bool) -> Bool {
        self.xor(other)
    }
    #[inline(always)]
    fn mul(self, other: Bool) -> Bool {
        self.and(other)
    }
    #[inline(always)]
    fn floor_div(self, other: Bool) -> Bool {
        self.and(other)
    }
    #[inline(always)]
    fn modulo(self, _: Bool) -> Bool {
        Bool::FALSE
    }
    #[inline(always)]
    fn pow(self, other: Bool) -> Bool {
        self.or(other.not())
    }
    #[inline(always)]
    fn max(self, other: Bool) -> Bool {
        self.or(other)
    }
    #[inline(always)]
    fn min(self, other: Bool) -> Bool {
        self.and(other)
    }
    #[inline(always)]
    fn neg(self) -> Bool {
        self
    }
    #[inline(always)]
    fn abs(self) -> Bool {
        self
    }
    #[inline(always)]
    fn floor(self) -> Bool {
        self
    }
    #[inline(always)]
    fn ceil(self) -> Bool {
        self
    }
    #[inline(always)]
    fn round(self) -> Bool {
        self
    }
    #[inline(always)]
    fn trunc(self) -> Bool {
        self
    }
    #[inline(always)]
    fn eq(self, other: Bool) -> Bool {
        (self == other).into()
    }
    #[inline(always)]
    fn lt(self, other: Bool) -> Bool {
        (!self.get() && other.get()).into()
    }
    #[inline(always)]
    fn le(self, other: Bool) -> Bool {
        (!self.get() || other.get()).into()
    }
    #[inline(always)]
    fn is_inf(self) -> Bool {
        Bool::FALSE
    }
}

/// What integers and floats share.
macro_rules! shared {
    () => {
        #[inline(always)]
        fn splat(value: f64) -> Self {
            value as Self
        }
        #[inline(always)]
        fn eq(self, other: Self) -> Bool {
            (self == other).into()
        }
        #[inline(always)]
        fn lt(self, other: Self) -> Bool {
            (self < other).into()
        }
        #[inline(always)]
        fn le(self, other: Self) -> Bool {
            (self <= other).into()
        }
    };
}

macro_rules! integers {
    ($signed:literal: $($t:ident)*) => {$(
        impl Lane for $t {
            type Mask = Bool;

            shared!();
            #[inline(always)]
            fn add(self, other: $t) -> $t {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn sub(self, other: $t) -> $t {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn mul(self, other: $t) -> $t {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn floor_div(self, other: $t) -> $t {
                if other == 0 {
                    return 0;
                }
                let inexact = self.wrapping_rem(other) != 0 && ((self ^ other) as i128) < 0;
                self.wrapping_div(other).wrapping_sub($t::from(inexact && $signed))
            }
            #[inline(always)]
            fn modulo(self, other: $t) -> $t {
                self.wrapping_sub(Lane::floor_div(self, other).wrapping_mul(other)).wrapping_mul($t::from(other != 0))
            }
            #[inline(always)]
            fn pow(self, other: $t) -> $t {
                if (other as i128) < 0 && $signed {
                    let odd = other & 1 == 1;
                    return match self as i128 {
                        1 => 1,
                        -1 if odd => self,
                        -1 => 1,
                        _ => 0,
                    };
                }
                let (mut base, mut exponent, mut product) = (self, other as u64, 1 as $t);
                while exponent > 0 {
                    if exponent & 1 == 1 {
                        product = product.wrapping_mul(base);
                    }
                    base = base.wrapping_mul(base);
                    exponent >>= 1;
                }
                product
            }
            #[inline(always)]
            fn max(self, other: $t) -> $t {
                Ord::max(self, other)
            }
            #[inline(always)]
            fn min(self, other: $t) -> $t {
                Ord::min(self, other)
            }
            #[inline(always)]
            fn neg(self) -> $t {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn abs(self) -> $t {
                if (self as i128) < 0 { self.wrapping_neg() } else { self }
            }
            #[inline(always)]
            fn floor(self) -> $t {
                self
            }
            #[inline(always)]
            fn ceil(self) -> $t {
                self
            }
            #[inline(always)]
            fn round(self) -> $t {
                self
            }
            #[inline(always)]
            fn trunc(self) -> $t {
                self
            }
            #[inline(always)]
            fn is_inf(self) -> Bool {
                Bool::FALSE
            }
        }
    )*};
}

integers!(true: i8 i16 i32 i64);
integers!(false: u8 u16 u32 u64);

/// Transcendental functions come from `libm`, whose results are the same on every platform.
macro_rules! floats {
    ($($t:ident: $pow:ident $exp:ident $log:ident $log1p:ident $sin:ident $cos:ident $acos:ident $tanh:ident $atanh:ident $erf:ident;)*) => {$(
        impl Lane for $t {
            type Mask = Bool;

            shared!();
            #[inline(always)]
            fn add(self, other: $t) -> $t {
                self + other
            }
            #[inline(always)]
            fn sub(self, other: $t) -> $t {
                self - other
            }
            #[inline(always)]
            fn mul(self, other: $t) -> $t {
                self * other
            }
            #[inline(always)]
            fn floor_div(self, other: $t) -> $t {
                if other == 0.0 {
                    return self / other;
                }
                // From the exact remainder, as the rounded quotient may be an integer when the exact one is not.
                let rest = self % other;
                let mut quotient = (self - rest) / other;
                if rest != 0.0 && (rest < 0.0) != (other < 0.0) {
                    quotient -= 1.0;
                }
                if quotient == 0.0 {
                    return (0.0 as $t).copysign(self / other);
                }
                let floor = quotient.floor();
                if quotient - floor > 0.5 { floor + 1.0 } else { floor }
            }
            #[inline(always)]
            fn modulo(self, other: $t) -> $t {
                let rest = self % other;
                if rest == 0.0 {
                    rest.abs().copysign(other)
                } else if (rest < 0.0) != (other < 0.0) {
                    rest + other
                } else {
                    rest
                }
            }
            #[inline(always)]
            fn pow(self, other: $t) -> $t {
                libm::$pow(self, other)
            }
            #[inline(always)]
            fn max(self, other: $t) -> $t {
                if self > other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn min(self, other: $t) -> $t {
                if self < other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn neg(self) -> $t {
                -self
            }
            #[inline(always)]
            fn abs(self) -> $t {
                self.abs()
            }
            #[inline(always)]
            fn floor(self) -> $t {
                self.floor()
            }
            #[inline(always)]
            fn ceil(self) -> $t {
                self.ceil()
            }
            #[inline(always)]
            fn round(self) -> $t {
                self.round_ties_even()
            }
            #[inline(always)]
            fn trunc(self) -> $t {
                self.trunc()
            }
            #[inline(always)]
            fn is_inf(self) -> Bool {
                self.is_infinite().into()
            }
        }

        impl FloatLane for $t {
            #[inline(always)]
            fn div(self, other: $t) -> $t {
                self / other
            }
            #[inline(always)]
            fn sqrt(self) -> $t {
                self.sqrt()
            }
            #[inline(always)]
            fn exp(self) -> $t {
                libm::$exp(self)
            }
            #[inline(always)]
            fn log(self) -> $t {
                libm::$log(self)
            }
            #[inline(always)]
            fn log1p(self) -> $t {
                libm::$log1p(self)
            }
            #[inline(always)]
            fn sin(self) -> $t {
                libm::$sin(self)
            }
            #[inline(always)]
            fn cos(self) -> $t {
                libm::$cos(self)
            }
            #[inline(always)]
            fn acos(self) -> $t {
                libm::$acos(self)
            }
            #[inline(always)]
            fn tanh(self) -> $t {
                libm::$tanh(self)
            }
            #[inline(always)]
            fn atanh(self) -> $t {
                libm::$atanh(self)
            }
            #[inline(always)]
            fn erf(self) -> $t {
                libm::$erf(self)
            }
        }
    )*};
}

floats! {
    f32: powf expf logf log1pf sinf cosf acosf tanhf atanhf erff;
    f64: pow exp log log1p sin cos acos tanh atanh erf;
}
