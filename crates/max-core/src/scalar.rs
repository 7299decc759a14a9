//! The scalar ops: one table, each row with its documentation, its public name and its definition.
//!
//! A body is generic over a lane, so a scalar, a SIMD vector and a source-text tracer can all run it. The
//! four parts of the table differ in what a lane must offer and in the type of the result:
//! `numeric` and `real` keep the dtype, `compare` returns bool, `logical` takes and returns bool.

mod lane;
pub mod source;

pub use lane::{FloatLane, Lane, MaskLane};

use crate::DType;

/// Passes the whole table to a macro: `scalar_table!(callback)` expands to `callback! { rows }`.
#[macro_export]
macro_rules! scalar_table {
    ($callback:ident) => {
        $callback! {
            /// Ops on every dtype, computed in the dtype itself: bool acts as a saturating one-bit integer.
            NumericOp<L: Lane> -> L {
                /// Adds elementwise.
                Add = add(lhs, rhs) => lhs.add(rhs);
                /// Subtracts elementwise.
                Sub = sub(lhs, rhs) => lhs.sub(rhs);
                /// Multiplies elementwise.
                Mul = mul(lhs, rhs) => lhs.mul(rhs);
                /// The quotient rounded down; an integer divided by zero gives zero.
                FloorDiv = floor_div(lhs, rhs) => lhs.floor_div(rhs);
                /// The remainder of `floor_div`, with the sign of the divisor; an integer modulo zero gives zero.
                Mod = mod_(lhs, rhs) "mod" => lhs.modulo(rhs);
                /// Raises to a power; integers wrap, and a negative exponent truncates toward zero.
                Pow = pow(lhs, rhs) => lhs.pow(rhs);
                /// The elementwise maximum; NaN wins.
                Max = max(x, y) => x.max(y);
                /// The elementwise minimum; NaN wins.
                Min = min(x, y) => x.min(y);
                /// The absolute value.
                Abs = abs(x) => x.abs();
                /// Changes the sign.
                Negate = negate(x) => x.neg();
                /// Zero for negative values, else the value.
                Relu = relu(x) => x.max(L::splat(0.0));
                /// Rounds down to an integer.
                Floor = floor(x) => x.floor();
                /// Rounds up to an integer.
                Ceil = ceil(x) => x.ceil();
                /// Rounds to the nearest integer, ties to even.
                Round = round(x) => x.round();
                /// Rounds toward zero to an integer.
                Trunc = trunc(x) => x.trunc();
            }
            /// Functions of real numbers; on integers computed in float64 and truncated.
            RealOp<L: FloatLane> -> L {
                /// Divides elementwise.
                Div = div(lhs, rhs) => lhs.div(rhs);
                /// The square root.
                Sqrt = sqrt(x) => x.sqrt();
                /// One over the square root.
                Rsqrt = rsqrt(x) => L::splat(1.0).div(x.sqrt());
                /// e to the power of the value.
                Exp = exp(x) => x.exp();
                /// The natural logarithm.
                Log = log(x) => x.log();
                /// The natural logarithm of one plus the value, accurate near zero.
                Log1p = log1p(x) => x.log1p();
                /// The sine of radians.
                Sin = sin(x) => x.sin();
                /// The cosine of radians.
                Cos = cos(x) => x.cos();
                /// The arc cosine, in radians.
                Acos = acos(x) => x.acos();
                /// The hyperbolic tangent.
                Tanh = tanh(x) => x.tanh();
                /// The inverse hyperbolic tangent.
                Atanh = atanh(x) => x.atanh();
                /// The error function.
                Erf = erf(x) => x.erf();
                /// The logistic function `1 / (1 + exp(-x))`.
                Sigmoid = sigmoid(x) => L::splat(1.0).div(L::splat(1.0).add(x.neg().exp()));
                /// `x * sigmoid(x)`.
                Silu = silu(x) => x.div(L::splat(1.0).add(x.neg().exp()));
                /// The exact gelu, `x * (1 + erf(x / sqrt(2))) / 2`.
                Gelu = gelu(x) => x.mul(L::splat(0.5)).mul(
                    L::splat(1.0).add(x.mul(L::splat(std::f64::consts::FRAC_1_SQRT_2)).erf()));
                /// The tanh approximation of gelu.
                GeluTanh = gelu_tanh(x) => x.mul(L::splat(0.5)).mul(L::splat(1.0).add(
                    x.add(x.mul(x).mul(x).mul(L::splat(0.044715))).mul(L::splat(0.7978845608028654)).tanh()));
                /// The sigmoid approximation of gelu, `x * sigmoid(1.702 * x)`.
                GeluQuick = gelu_quick(x) => x.div(L::splat(1.0).add(x.mul(L::splat(-1.702)).exp()));
            }
            /// Comparisons and predicates, whose result is bool.
            CompareOp<L: Lane> -> L::Mask {
                /// Whether two elements are equal.
                Equal = equal(lhs, rhs) => lhs.eq(rhs);
                /// Whether two elements differ.
                NotEqual = not_equal(lhs, rhs) => lhs.eq(rhs).not();
                /// Whether the first is greater.
                Greater = greater(lhs, rhs) => rhs.lt(lhs);
                /// Whether the first is greater or equal.
                GreaterEqual = greater_equal(lhs, rhs) => rhs.le(lhs);
                /// Whether the element is NaN; false for integers.
                IsNan = is_nan(x) => x.eq(x).not();
                /// Whether the element is infinite; false for integers.
                IsInf = is_inf(x) => x.is_inf();
            }
            /// Ops on bool only.
            LogicalOp<L: MaskLane> -> L {
                /// Whether both are true.
                LogicalAnd = logical_and(lhs, rhs) => lhs.and(rhs);
                /// Whether at least one is true.
                LogicalOr = logical_or(lhs, rhs) => lhs.or(rhs);
                /// Whether exactly one is true.
                LogicalXor = logical_xor(lhs, rhs) => lhs.xor(rhs);
                /// The negation.
                LogicalNot = logical_not(x) => x.not();
            }
        }
    };
}

macro_rules! public_name {
    ($function:ident) => {
        stringify!($function)
    };
    ($function:ident $name:literal) => {
        $name
    };
}

macro_rules! define {
    ($($(#[$table_doc:meta])* $table:ident<$L:ident: $bound:ident> -> $out:ty {
        $(#[doc = $doc:literal] $variant:ident = $function:ident($($x:ident),+) $($name:literal)? => $body:expr;)*
    })*) => {
        $($(#[$table_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $table { $(#[doc = $doc] $variant,)* }

        impl $table {
            /// The rows, in order.
            pub const ALL: &'static [$table] = &[$($table::$variant),*];

            /// The documented name.
            pub const fn name(self) -> &'static str {
                match self { $($table::$variant => public_name!($function $($name)?),)* }
            }

            /// The number of operands.
            pub const fn arity(self) -> usize {
                match self { $($table::$variant => [$(stringify!($x)),+].len(),)* }
            }

            /// Evaluates the op; ops with one operand ignore the second.
            #[inline(always)]
            pub fn apply<$L: $bound>(self, operands: [$L; 2]) -> $out {
                match self { $($table::$variant => { let [$($x,)+ ..] = operands; $body })* }
            }
        })*

        /// Any op of the table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "each part is documented at its type")]
        pub enum ScalarOp { $($table($table),)* }

        impl ScalarOp {
            /// Every op of the table.
            pub fn all() -> impl Iterator<Item = ScalarOp> {
                std::iter::empty()$(.chain($table::ALL.iter().copied().map(ScalarOp::$table)))*
            }

            /// The documented name.
            pub const fn name(self) -> &'static str {
                match self { $(ScalarOp::$table(op) => op.name(),)* }
            }

            /// The number of operands.
            pub const fn arity(self) -> usize {
                match self { $(ScalarOp::$table(op) => op.arity(),)* }
            }
        }

        $(impl From<$table> for ScalarOp {
            fn from(op: $table) -> ScalarOp {
                ScalarOp::$table(op)
            }
        })*
    };
}

scalar_table!(define);

impl ScalarOp {
    /// The dtype of the result for operands of a dtype.
    pub const fn result_dtype(self, operand: DType) -> DType {
        match self {
            ScalarOp::CompareOp(_) => DType::Bool,
            _ => operand,
        }
    }

    /// Whether all devices compute the same bits on a dtype: IEEE 754 defines the result, or it is one of integers.
    pub fn is_exact(self, dtype: DType) -> bool {
        use {NumericOp::*, RealOp::*};
        match self {
            ScalarOp::NumericOp(
                Add | Sub | Mul | FloorDiv | Mod | Max | Min | Abs | Negate | Relu | Floor | Ceil | Round
                | Trunc,
            ) => true,
            ScalarOp::NumericOp(Pow) => !dtype.is_float(),
            ScalarOp::RealOp(Div | Sqrt | Rsqrt) => true,
            ScalarOp::RealOp(
                Exp | Log | Log1p | Sin | Cos | Acos | Tanh | Atanh | Erf | Sigmoid | Silu | Gelu | GeluTanh
                | GeluQuick,
            ) => false,
            ScalarOp::CompareOp(_) | ScalarOp::LogicalOp(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_compute_as_documented() {
        let n = |op: NumericOp, x: f64, y: f64| op.apply([x, y]);
        assert_eq!(n(NumericOp::Relu, -2.0, 0.0), 0.0);
        assert!(n(NumericOp::Max, f64::NAN, 1.0).is_nan() && n(NumericOp::Min, 1.0, f64::NAN).is_nan());
        assert_eq!(n(NumericOp::Mod, -7.0, 4.0), 1.0);
        assert_eq!(n(NumericOp::FloorDiv, -7.0, 4.0), -2.0);
        assert_eq!(n(NumericOp::FloorDiv, -5.0, f64::INFINITY), -1.0);
        assert_eq!(n(NumericOp::FloorDiv, 5.0, f64::NEG_INFINITY), -1.0);
        assert_eq!(n(NumericOp::FloorDiv, 0.7, 0.1), 6.0);
        assert_eq!(n(NumericOp::Round, 2.5, 0.0), 2.0);
        assert_eq!(NumericOp::FloorDiv.apply([7i32, 0]), 0);
        assert_eq!(NumericOp::FloorDiv.apply([i32::MIN, -1]), i32::MIN);
        assert_eq!(NumericOp::Mod.apply([-7i32, 4]), 1);
        assert_eq!(NumericOp::Pow.apply([2i64, -1]), 0);
        assert_eq!(NumericOp::Pow.apply([-1i64, -3]), -1);
        assert_eq!(NumericOp::Pow.apply([3u8, 6]), 217);
        assert_eq!(NumericOp::Abs.apply([i8::MIN, 0]), i8::MIN);
        assert!((RealOp::Gelu.apply([1.0f64, 0.0]) - 0.8413447460685429).abs() < 1e-15);
        assert!(CompareOp::IsInf.apply([f32::NEG_INFINITY, 0.0]).get());
        assert!(!CompareOp::IsNan.apply([3u8, 0]).get());
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> = ScalarOp::all().map(ScalarOp::name).collect();
        assert_eq!(names.len(), ScalarOp::all().count());
        assert!(names.contains("mod") && !names.contains("mod_"));
    }
}
