//! Functions from tiles to a tile: ops of the scalar table, select and casts.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use max_core::float8::{F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ};
use max_core::scalar::{CompareOp, FloatLane, Lane, LogicalOp, NumericOp, RealOp};
use max_core::{Bool, DType, Element, Result, ScalarOp, bail, bf16, dispatch, f16, scalar_table};

use super::lanes::{RealRegister, Register};
use super::narrow::Narrow;
use super::{Arg, GROUP, TileFn};
use crate::simd::{Isa, versions};

/// The body of a [`TileFn`].
trait Body {
    /// # Safety
    ///
    /// As for [`TileFn`].
    unsafe fn run<const FMA: bool>(dst: *mut u8, args: [Arg; 3], groups: usize);
}

versions!(tile_fn: Body, fn(dst: *mut u8, args: [Arg; 3], groups: usize));

impl Arg {
    /// Where the elements of a group begin.
    #[inline(always)]
    fn group<T>(self, group: usize) -> *const T {
        self.ptr.cast::<T>().wrapping_add(if self.repeat { 0 } else { group * GROUP })
    }
}

/// Computes a tile group by group. Each group is complete before it is written, so that the compiler need not wonder
/// whether the result overlaps an operand.
///
/// # Safety
///
/// `dst` is valid for the groups, and `element(group, i)` may be called for each element of each.
#[inline(always)]
unsafe fn compute<O: Copy>(dst: *mut u8, groups: usize, element: impl Fn(usize, usize) -> O) {
    for group in 0..groups {
        let mut out = [MaybeUninit::<O>::uninit(); GROUP];
        for (i, out) in out.iter_mut().enumerate() {
            out.write(element(group, i));
        }
        // SAFETY: the caller's promise; the group is inside.
        unsafe { dst.cast::<[MaybeUninit<O>; GROUP]>().add(group).write_unaligned(out) }
    }
}

/// The operands of an op at an element; an op of one operand has it twice.
///
/// # Safety
///
/// The element is inside the operands.
#[inline(always)]
unsafe fn operands<L: Copy>(args: [Arg; 3], arity: usize, group: usize, i: usize) -> [L; 2] {
    // SAFETY: the caller's promise; all bits are elements.
    let read = |arg: Arg| unsafe { arg.group::<L>(group).add(i).read_unaligned() };
    [read(args[0]), read(args[arity - 1])]
}

/// Rows of the parts of the scalar table, each by its number.
struct Numeric<T, const OP: usize>(PhantomData<T>);
struct Real<T, const OP: usize>(PhantomData<T>);
struct Compare<T, const OP: usize>(PhantomData<T>);
struct Logical<const OP: usize>;

impl<T: Register, const OP: usize> Body for Numeric<T, OP> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(dst: *mut u8, args: [Arg; 3], groups: usize) {
        let op = const { NumericOp::ALL[OP] };
        // SAFETY: the caller's promise. `On` is the same bits as T.
        unsafe { compute(dst, groups, |g, i| op.apply(operands::<T::On<FMA>>(args, op.arity(), g, i))) }
    }
}

impl<T: Register, const OP: usize> Body for Compare<T, OP> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(dst: *mut u8, args: [Arg; 3], groups: usize) {
        let op = const { CompareOp::ALL[OP] };
        // SAFETY: as above.
        unsafe { compute(dst, groups, |g, i| op.apply(operands::<T::On<FMA>>(args, op.arity(), g, i))) }
    }
}

impl<const OP: usize> Body for Logical<OP> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(dst: *mut u8, args: [Arg; 3], groups: usize) {
        let op = const { LogicalOp::ALL[OP] };
        // SAFETY: as above.
        unsafe { compute(dst, groups, |g, i| op.apply(operands::<Bool>(args, op.arity(), g, i))) }
    }
}

impl<T: RealRegister<Lane: FloatLane>, const OP: usize> Body for Real<T, OP> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(dst: *mut u8, args: [Arg; 3], groups: usize) {
        let op = const { RealOp::ALL[OP] };
        for group in 0..groups {
            let bounded = !matches!(op, RealOp::Sin | RealOp::Cos) || {
                // SAFETY: the caller's promise.
                let magnitude = |i| unsafe { operands::<T>(args, 1, group, i) }[0].to_lane().abs();
                let bound = T::Lane::splat(T::TRIGONOMETRIC_BOUND);
                (0..GROUP).fold(true, |all, i| all & magnitude(i).le(bound).get())
            };
            let at = [args[0], args[1]].map(|arg| Arg { ptr: arg.group::<T>(group).cast(), repeat: true });
            let args = [at[0], at[1], args[2]];
            let dst = dst.cast::<T>().wrapping_add(group * GROUP).cast();
            // SAFETY: the caller's promise; one group of it. `RealOn` is the same bits as T.
            unsafe {
                if bounded {
                    compute(dst, 1, |g, i| op.apply(operands::<T::RealOn<FMA>>(args, op.arity(), g, i)));
                } else {
                    compute(dst, 1, |g, i| op.apply(operands::<T::Lane>(args, op.arity(), g, i)));
                }
            }
        }
    }
}

/// The function of an op on operands of a dtype.
pub(super) fn apply(isa: Isa, op: ScalarOp, dtype: DType) -> Result<TileFn> {
    macro_rules! rows {
        ($($(#[$_table_doc:meta])* $table:ident<$L:ident: $bound:ident> -> $out:ty {
            $(#[doc = $doc:literal] $variant:ident = $function:ident($($x:ident),+) $($name:literal)? => $body:expr;)*
        })*) => {
            match op {
                $($(ScalarOp::$table($table::$variant) => row!($table, { $table::$variant as usize }),)*)*
            }
        };
    }
    macro_rules! row {
        (NumericOp, $op:tt) => {
            dispatch!(dtype, T => tile_fn::<Numeric<<T as Element>::Lane, $op>>(isa))
        };
        (CompareOp, $op:tt) => {
            dispatch!(dtype, T => tile_fn::<Compare<<T as Element>::Lane, $op>>(isa))
        };
        (RealOp, $op:tt) => {
            match dtype {
                DType::Float64 => tile_fn::<Real<f64, $op>>(isa),
                dtype if dtype.is_float() => tile_fn::<Real<f32, $op>>(isa),
                _ => bail!(internal, "{} of {dtype} in a kernel", op.name()),
            }
        };
        (LogicalOp, $op:tt) => {
            match dtype {
                DType::Bool => tile_fn::<Logical<$op>>(isa),
                _ => bail!(internal, "{} of {dtype} in a kernel", op.name()),
            }
        };
    }
    Ok(scalar_table!(rows))
}

/// One operand or the other.
struct Select<T>(PhantomData<T>);

impl<T: Copy> Body for Select<T> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(dst: *mut u8, args: [Arg; 3], groups: usize) {
        let [condition, a, b] = args;
        // SAFETY: the caller's promise. Both are read, so that there is no branch.
        unsafe {
            compute(dst, groups, |g, i| {
                let chosen = condition.group::<u8>(g).add(i).read() != 0;
                let [a, b] = [a, b].map(|arg| arg.group::<T>(g).add(i).read_unaligned());
                if chosen { a } else { b }
            });
        }
    }
}

/// The function that selects elements of a dtype: only their size counts.
pub(super) fn select(isa: Isa, dtype: DType) -> TileFn {
    match super::register_size(dtype) {
        1 => tile_fn::<Select<u8>>(isa),
        2 => tile_fn::<Select<u16>>(isa),
        4 => tile_fn::<Select<u32>>(isa),
        _ => tile_fn::<Select<u64>>(isa),
    }
}

/// How an element in a register becomes one of another type.
trait To<T>: Copy {
    /// How that is held in a register.
    type Register: Copy;

    fn to(self) -> Self::Register;
}

macro_rules! numbers {
    ($($from:ident)*) => {$(
        numbers!($from: i8 i16 i32 i64 u8 u16 u32 u64 f32 f64);

        impl To<Bool> for $from {
            type Register = Bool;
            #[inline(always)]
            fn to(self) -> Bool {
                (self != (0 as $from)).into()
            }
        }
    )*};
    ($from:ident: $($to:ident)*) => {$(
        impl To<$to> for $from {
            type Register = $to;
            #[inline(always)]
            fn to(self) -> $to {
                self as $to
            }
        }
    )*};
}
numbers!(i8 i16 i32 i64 u8 u16 u32 u64 f32 f64);

impl<N: Narrow> To<N> for f32 {
    type Register = f32;
    #[inline(always)]
    fn to(self) -> f32 {
        N::narrow(self).widen()
    }
}

macro_rules! rounded {
    ($($from:ident)*) => {$(
        impl<N: Narrow> To<N> for $from {
            type Register = f32;
            #[inline(always)]
            fn to(self) -> f32 {
                N::narrow_f64(self as f64).widen()
            }
        }
    )*};
}
rounded!(i8 i16 i32 i64 u8 u16 u32 u64 f64);

/// From a type to another.
struct Cast<A, B>(PhantomData<(A, B)>);

impl<A: To<B>, B> Body for Cast<A, B> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(dst: *mut u8, args: [Arg; 3], groups: usize) {
        // SAFETY: the caller's promise.
        unsafe { compute(dst, groups, |g, i| operands::<A>(args, 1, g, i)[0].to()) }
    }
}

/// The function that converts elements.
pub(super) fn cast(isa: Isa, from: DType, to: DType) -> TileFn {
    macro_rules! cast {
        ($from:ty => $($($to:ident)|+ = $type:ty),*) => {
            match to {
                $($(DType::$to)|+ => tile_fn::<Cast<$from, $type>>(isa),)*
                DType::Bool => tile_fn::<Cast<$from, Bool>>(isa),
                DType::Float8E4M3FN => tile_fn::<Cast<$from, F8E4M3FN>>(isa),
                DType::Float8E4M3FNUZ => tile_fn::<Cast<$from, F8E4M3FNUZ>>(isa),
                DType::Float8E5M2 => tile_fn::<Cast<$from, F8E5M2>>(isa),
                DType::Float8E5M2FNUZ => tile_fn::<Cast<$from, F8E5M2FNUZ>>(isa),
                DType::Float16 => tile_fn::<Cast<$from, f16>>(isa),
                DType::BFloat16 => tile_fn::<Cast<$from, bf16>>(isa),
                DType::Float32 => tile_fn::<Cast<$from, f32>>(isa),
                DType::Float64 => tile_fn::<Cast<$from, f64>>(isa),
            }
        };
    }
    // Integers wrap to the same bits whether signed or not.
    macro_rules! integer {
        ($from:ty) => {
            cast!($from => Int8 | UInt8 = u8, Int16 | UInt16 = u16, Int32 | UInt32 = u32, Int64 | UInt64 = u64)
        };
    }
    macro_rules! float {
        ($from:ty) => {
            cast!($from => Int8 = i8, Int16 = i16, Int32 = i32, Int64 = i64,
                UInt8 = u8, UInt16 = u16, UInt32 = u32, UInt64 = u64)
        };
    }
    match from {
        DType::Bool | DType::UInt8 => integer!(u8),
        DType::UInt16 => integer!(u16),
        DType::UInt32 => integer!(u32),
        DType::UInt64 => integer!(u64),
        DType::Int8 => integer!(i8),
        DType::Int16 => integer!(i16),
        DType::Int32 => integer!(i32),
        DType::Int64 => integer!(i64),
        DType::Float64 => float!(f64),
        _ => float!(f32),
    }
}
