//! Rust's operators on tensors: each calls an op function, returns a `Result`, and accepts one as one of its operands.

/// Implements the operators for a type with the functions of a module. The left operand is of the type or one of the
/// types in brackets, and the right one is anything that converts to an operand; or the left one is a number or a
/// `Result`, and the right one is of the type.
#[macro_export]
macro_rules! tensor_operators {
    ($type:ident, $functions:ident, [$($more:ty),*]) => {
        $crate::tensor_operators!(@each $type $functions [&$type, $type $(, $more)*]
            Add add add; Sub sub sub; Mul mul mul; Div div div; Rem rem mod_;
            BitAnd bitand logical_and; BitOr bitor logical_or; BitXor bitxor logical_xor;
        );
        $crate::tensor_operators!(@unary $type $functions Neg neg negate);
        $crate::tensor_operators!(@unary $type $functions Not not logical_not);
    };
    (@each $type:ident $functions:ident $lhs:tt $($trait:ident $method:ident $function:ident;)*) => {$(
        $crate::tensor_operators!(@from_left $type $functions $lhs $trait $method $function);
        $crate::tensor_operators!(
            @from_right $type $functions [f64, f32, i64, i32, max_core::Result<$type>] $trait $method $function
        );
    )*};
    (@from_left $type:ident $functions:ident [$($lhs:ty),*] $trait:ident $method:ident $function:ident) => {$(
        impl<R: Into<$crate::Operand>> std::ops::$trait<R> for $lhs {
            type Output = max_core::Result<$type>;
            #[track_caller]
            fn $method(self, rhs: R) -> max_core::Result<$type> {
                $functions::$function(self, rhs)
            }
        }
    )*};
    (@from_right $type:ident $functions:ident [$($lhs:ty),*] $trait:ident $method:ident $function:ident) => {$(
        impl std::ops::$trait<&$type> for $lhs {
            type Output = max_core::Result<$type>;
            #[track_caller]
            fn $method(self, rhs: &$type) -> max_core::Result<$type> {
                $functions::$function(self, rhs)
            }
        }

        impl std::ops::$trait<$type> for $lhs {
            type Output = max_core::Result<$type>;
            #[track_caller]
            fn $method(self, rhs: $type) -> max_core::Result<$type> {
                $functions::$function(self, rhs)
            }
        }
    )*};
    (@unary $type:ident $functions:ident $trait:ident $method:ident $function:ident) => {
        impl std::ops::$trait for &$type {
            type Output = max_core::Result<$type>;
            #[track_caller]
            fn $method(self) -> max_core::Result<$type> {
                $functions::$function(self)
            }
        }

        impl std::ops::$trait for $type {
            type Output = max_core::Result<$type>;
            #[track_caller]
            fn $method(self) -> max_core::Result<$type> {
                $functions::$function(self)
            }
        }
    };
}
