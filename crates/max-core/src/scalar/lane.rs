//! What a body of the scalar table may do with its operands, and how plain numbers do it.

use crate::Bool;

/// A truth value per lane.
pub trait MaskLane: Copy {
    /// Both.
    fn and(self, other: Self) -> Self;
    /// At least one.
    fn or(self, other: Self) -> Self;
    /// Exactly one.
    fn xor(self, other: Self) -> Self;
    /// The opposite.
    fn not(self) -> Self;
}

/// A value per lane with the arithmetic that every dtype has.
#[allow(missing_docs, reason = "the names say what they do; the scalar table documents the ops")]
pub trait Lane: Copy {
    /// The answer of a comparison.
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
    fn and(self, other: Bool) -> Bool {
        (self.get() && other.get()).into()
    }
    fn or(self, other: Bool) -> Bool {
        (self.get() || other.get()).into()
    }
    fn xor(self, other: Bool) -> Bool {
        (self.get() != other.get()).into()
    }
    fn not(self) -> Bool {
        (!self.get()).into()
    }
}

/// Bool as a one-bit integer that saturates: add is or, mul is and, sub is xor.
impl Lane for Bool {
    type Mask = Bool;

    fn splat(value: f64) -> Bool {
        (value != 0.0).into()
    }
    fn add(self, other: Bool) -> Bool {
        self.or(other)
    }
    fn sub(self, other: Bool) -> Bool {
        self.xor(other)
    }
    fn mul(self, other: Bool) -> Bool {
        self.and(other)
    }
    fn floor_div(self, other: Bool) -> Bool {
        self.and(other)
    }
    fn modulo(self, _: Bool) -> Bool {
        Bool::FALSE
    }
    fn pow(self, other: Bool) -> Bool {
        self.or(other.not())
    }
    fn max(self, other: Bool) -> Bool {
        self.or(other)
    }
    fn min(self, other: Bool) -> Bool {
        self.and(other)
    }
    fn neg(self) -> Bool {
        self
    }
    fn abs(self) -> Bool {
        self
    }
    fn floor(self) -> Bool {
        self
    }
    fn ceil(self) -> Bool {
        self
    }
    fn round(self) -> Bool {
        self
    }
    fn trunc(self) -> Bool {
        self
    }
    fn eq(self, other: Bool) -> Bool {
        (self == other).into()
    }
    fn lt(self, other: Bool) -> Bool {
        (!self.get() && other.get()).into()
    }
    fn le(self, other: Bool) -> Bool {
        (!self.get() || other.get()).into()
    }
    fn is_inf(self) -> Bool {
        Bool::FALSE
    }
}

/// What integers and floats share.
macro_rules! shared {
    () => {
        fn splat(value: f64) -> Self {
            value as Self
        }
        fn eq(self, other: Self) -> Bool {
            (self == other).into()
        }
        fn lt(self, other: Self) -> Bool {
            (self < other).into()
        }
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
            fn add(self, other: $t) -> $t {
                self.wrapping_add(other)
            }
            fn sub(self, other: $t) -> $t {
                self.wrapping_sub(other)
            }
            fn mul(self, other: $t) -> $t {
                self.wrapping_mul(other)
            }
            fn floor_div(self, other: $t) -> $t {
                if other == 0 {
                    return 0;
                }
                let inexact = self.wrapping_rem(other) != 0 && ((self ^ other) as i128) < 0;
                self.wrapping_div(other).wrapping_sub($t::from(inexact && $signed))
            }
            fn modulo(self, other: $t) -> $t {
                self.wrapping_sub(Lane::floor_div(self, other).wrapping_mul(other)).wrapping_mul($t::from(other != 0))
            }
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
            fn max(self, other: $t) -> $t {
                Ord::max(self, other)
            }
            fn min(self, other: $t) -> $t {
                Ord::min(self, other)
            }
            fn neg(self) -> $t {
                self.wrapping_neg()
            }
            fn abs(self) -> $t {
                if (self as i128) < 0 { self.wrapping_neg() } else { self }
            }
            fn floor(self) -> $t {
                self
            }
            fn ceil(self) -> $t {
                self
            }
            fn round(self) -> $t {
                self
            }
            fn trunc(self) -> $t {
                self
            }
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
            fn add(self, other: $t) -> $t {
                self + other
            }
            fn sub(self, other: $t) -> $t {
                self - other
            }
            fn mul(self, other: $t) -> $t {
                self * other
            }
            fn floor_div(self, other: $t) -> $t {
                if other == 0.0 {
                    return self / other;
                }
                // From the exact remainder, so that the quotient is whole where the division only rounds to it.
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
            fn pow(self, other: $t) -> $t {
                libm::$pow(self, other)
            }
            fn max(self, other: $t) -> $t {
                if self > other || self.is_nan() { self } else { other }
            }
            fn min(self, other: $t) -> $t {
                if self < other || self.is_nan() { self } else { other }
            }
            fn neg(self) -> $t {
                -self
            }
            fn abs(self) -> $t {
                self.abs()
            }
            fn floor(self) -> $t {
                self.floor()
            }
            fn ceil(self) -> $t {
                self.ceil()
            }
            fn round(self) -> $t {
                self.round_ties_even()
            }
            fn trunc(self) -> $t {
                self.trunc()
            }
            fn is_inf(self) -> Bool {
                self.is_infinite().into()
            }
        }

        impl FloatLane for $t {
            fn div(self, other: $t) -> $t {
                self / other
            }
            fn sqrt(self) -> $t {
                self.sqrt()
            }
            fn exp(self) -> $t {
                libm::$exp(self)
            }
            fn log(self) -> $t {
                libm::$log(self)
            }
            fn log1p(self) -> $t {
                libm::$log1p(self)
            }
            fn sin(self) -> $t {
                libm::$sin(self)
            }
            fn cos(self) -> $t {
                libm::$cos(self)
            }
            fn acos(self) -> $t {
                libm::$acos(self)
            }
            fn tanh(self) -> $t {
                libm::$tanh(self)
            }
            fn atanh(self) -> $t {
                libm::$atanh(self)
            }
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
