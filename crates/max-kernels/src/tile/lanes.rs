//! The types of elements in register tiles, and how the scalar table computes with them.

use max_core::random::UnitLane;
use max_core::scalar::{FloatLane, Lane, RealOp};
use max_core::{Bool, Element};

use crate::math;

/// A type of elements in a register tile.
pub(super) trait Register: Element {
    /// The same element with arithmetic for a machine with or without fused multiply-add.
    type On<const FMA: bool>: Lane<Mask = Bool>;
}

/// A type of real numbers in a register tile.
pub(super) trait RealRegister: Register {
    /// As [`Register::On`].
    type RealOn<const FMA: bool>: FloatLane<Mask = Bool> + UnitLane;

    /// Whether a function of `RealOn` is inaccurate for an operand.
    fn is_hard<const FMA: bool>(op: RealOp, operand: Self::RealOn<FMA>) -> bool;

    /// The function for such operands, slow but accurate.
    fn call_hard<const FMA: bool>(op: RealOp, operand: Self::RealOn<FMA>) -> Self::RealOn<FMA>;
}

macro_rules! plain {
    ($($type:ty),*) => {$(
        impl Register for $type {
            type On<const FMA: bool> = $type;
        }
    )*};
}
plain!(Bool, i8, i16, i32, i64, u8, u16, u32, u64, f64);

impl Register for f32 {
    type On<const FMA: bool> = F32<FMA>;
}

impl RealRegister for f32 {
    type RealOn<const FMA: bool> = F32<FMA>;

    #[inline(always)]
    fn is_hard<const FMA: bool>(op: RealOp, operand: F32<FMA>) -> bool {
        matches!(op, RealOp::Sin | RealOp::Cos) && operand.0.abs() > math::TRIGONOMETRIC_BOUND
    }

    #[inline(always)]
    fn call_hard<const FMA: bool>(op: RealOp, operand: F32<FMA>) -> F32<FMA> {
        F32(op.apply([operand.0; 2]))
    }
}

impl RealRegister for f64 {
    type RealOn<const FMA: bool> = f64;

    #[inline(always)]
    fn is_hard<const FMA: bool>(_: RealOp, _: f64) -> bool {
        false
    }

    #[inline(always)]
    fn call_hard<const FMA: bool>(op: RealOp, operand: f64) -> f64 {
        op.apply([operand; 2])
    }
}

/// An f32 whose functions of real numbers are those of [`math`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F32<const FMA: bool>(f32);

macro_rules! delegate {
    ($($name:ident($($other:ident)?))*) => {$(
        #[inline(always)]
        fn $name(self $(, $other: Self)?) -> Self {
            F32(Lane::$name(self.0 $(, $other.0)?))
        }
    )*};
}

macro_rules! delegate_mask {
    ($($name:ident($($other:ident)?))*) => {$(
        #[inline(always)]
        fn $name(self $(, $other: Self)?) -> Bool {
            Lane::$name(self.0 $(, $other.0)?)
        }
    )*};
}

impl<const FMA: bool> Lane for F32<FMA> {
    type Mask = Bool;

    #[inline(always)]
    fn splat(value: f64) -> Self {
        F32(value as f32)
    }
    delegate!(add(other) sub(other) mul(other) floor_div(other) modulo(other) pow(other) max(other) min(other));
    delegate!(neg() abs() floor() ceil() round() trunc());
    delegate_mask!(eq(other) lt(other) le(other) is_inf());
}

macro_rules! functions {
    ($($name:ident)*) => {$(
        #[inline(always)]
        fn $name(self) -> Self {
            F32(math::$name::<FMA>(self.0))
        }
    )*};
}

impl<const FMA: bool> FloatLane for F32<FMA> {
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        F32(self.0 / other.0)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        F32(self.0.sqrt())
    }
    functions!(exp log log1p sin cos acos tanh atanh erf);
}

impl<const FMA: bool> UnitLane for F32<FMA> {
    #[inline(always)]
    fn units(block: [u32; 4]) -> [Self; 2] {
        let [u, v] = f32::units(block);
        [F32(u), F32(v)]
    }
}
