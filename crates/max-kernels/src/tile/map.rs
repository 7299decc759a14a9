//! Functions from tiles to a tile: ops of the scalar table, select and casts.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use max_core::scalar::{CompareOp, LogicalOp, NumericOp, RealOp};
use max_core::{
    Bool, DType, Distribution, Element, Result, ScalarOp, bail, bf16, dispatch, dispatch_small, f16,
    scalar_table,
};

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

/// A function of one or two elements. Not a closure, because it must be inlined into each version of the loop.
trait Function {
    type In<const FMA: bool>: Copy;
    type Out<const FMA: bool>: Copy;
    const ARITY: usize;

    /// The result; a function of one operand ignores the second.
    fn call<const FMA: bool>(operands: [Self::In<FMA>; 2]) -> Self::Out<FMA>;

    /// Whether `call` is inaccurate for an operand.
    #[inline(always)]
    fn is_hard<const FMA: bool>(_: Self::In<FMA>) -> bool {
        false
    }

    /// The result where `call` is inaccurate.
    #[inline(always)]
    fn call_hard<const FMA: bool>(operand: Self::In<FMA>) -> Self::Out<FMA> {
        Self::call([operand; 2])
    }
}

/// A function over whole tiles. Each group is complete before it is written, so that a possible overlap of the result
/// with an operand does not prevent vectorization.
struct Map<F>(PhantomData<F>);

impl<F: Function> Body for Map<F> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(dst: *mut u8, args: [Arg; 3], groups: usize) {
        let dst = dst.cast::<[MaybeUninit<F::Out<FMA>>; GROUP]>();
        for group in 0..groups {
            let [x, y] = [args[0], args[F::ARITY - 1]].map(|arg| arg.group::<F::In<FMA>>(group));
            let mut out = [MaybeUninit::uninit(); GROUP];
            let mut hard = false;
            for (i, out) in out.iter_mut().enumerate() {
                // SAFETY: the caller guarantees that the element is inside the operands.
                let operands = unsafe { [x.add(i).read_unaligned(), y.add(i).read_unaligned()] };
                out.write(F::call(operands));
                hard |= F::is_hard(operands[0]);
            }
            if hard {
                for (i, out) in out.iter_mut().enumerate() {
                    // SAFETY: as above.
                    let operand = unsafe { x.add(i).read_unaligned() };
                    if F::is_hard(operand) {
                        out.write(F::call_hard(operand));
                    }
                }
            }
            // SAFETY: the caller guarantees that the group is inside the result.
            unsafe { dst.add(group).write_unaligned(out) }
        }
    }
}

/// Ops of the parts of the scalar table, each by its number.
struct Numeric<T, const OP: usize>(PhantomData<T>);
struct Real<T, const OP: usize>(PhantomData<T>);
struct Compare<T, const OP: usize>(PhantomData<T>);
struct Logical<const OP: usize>;

impl<T: Register, const OP: usize> Function for Numeric<T, OP> {
    type In<const FMA: bool> = T::On<FMA>;
    type Out<const FMA: bool> = T::On<FMA>;
    const ARITY: usize = NumericOp::ALL[OP].arity();

    #[inline(always)]
    fn call<const FMA: bool>(operands: [T::On<FMA>; 2]) -> T::On<FMA> {
        const { NumericOp::ALL[OP] }.apply(operands)
    }
}

impl<T: Register, const OP: usize> Function for Compare<T, OP> {
    type In<const FMA: bool> = T::On<FMA>;
    type Out<const FMA: bool> = Bool;
    const ARITY: usize = CompareOp::ALL[OP].arity();

    #[inline(always)]
    fn call<const FMA: bool>(operands: [T::On<FMA>; 2]) -> Bool {
        const { CompareOp::ALL[OP] }.apply(operands)
    }
}

impl<const OP: usize> Function for Logical<OP> {
    type In<const FMA: bool> = Bool;
    type Out<const FMA: bool> = Bool;
    const ARITY: usize = LogicalOp::ALL[OP].arity();

    #[inline(always)]
    fn call<const FMA: bool>(operands: [Bool; 2]) -> Bool {
        const { LogicalOp::ALL[OP] }.apply(operands)
    }
}

impl<T: RealRegister, const OP: usize> Function for Real<T, OP> {
    type In<const FMA: bool> = T::RealOn<FMA>;
    type Out<const FMA: bool> = T::RealOn<FMA>;
    const ARITY: usize = RealOp::ALL[OP].arity();

    #[inline(always)]
    fn call<const FMA: bool>(operands: [T::RealOn<FMA>; 2]) -> T::RealOn<FMA> {
        const { RealOp::ALL[OP] }.apply(operands)
    }

    #[inline(always)]
    fn is_hard<const FMA: bool>(operand: T::RealOn<FMA>) -> bool {
        T::is_hard(const { RealOp::ALL[OP] }, operand)
    }

    #[inline(always)]
    fn call_hard<const FMA: bool>(operand: T::RealOn<FMA>) -> T::RealOn<FMA> {
        T::call_hard(const { RealOp::ALL[OP] }, operand)
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
            dispatch!(dtype, T => tile_fn::<Map<Numeric<<T as Element>::Lane, $op>>>(isa))
        };
        (CompareOp, $op:tt) => {
            dispatch!(dtype, T => tile_fn::<Map<Compare<<T as Element>::Lane, $op>>>(isa))
        };
        (RealOp, $op:tt) => {
            match dtype {
                DType::Float64 => tile_fn::<Map<Real<f64, $op>>>(isa),
                dtype if dtype.is_float() => tile_fn::<Map<Real<f32, $op>>>(isa),
                _ => bail!(internal, "{} of {dtype} in a kernel", op.name()),
            }
        };
        (LogicalOp, $op:tt) => {
            match dtype {
                DType::Bool => tile_fn::<Map<Logical<$op>>>(isa),
                _ => bail!(internal, "{} of {dtype} in a kernel", op.name()),
            }
        };
    }
    Ok(scalar_table!(rows))
}

/// Random numbers of a distribution, by its number: functions of a seed and a position.
struct Random<T, const DISTRIBUTION: usize>(PhantomData<T>);

impl<T: RealRegister, const DISTRIBUTION: usize> Function for Random<T, DISTRIBUTION> {
    type In<const FMA: bool> = u64;
    type Out<const FMA: bool> = T::RealOn<FMA>;
    const ARITY: usize = 2;

    #[inline(always)]
    fn call<const FMA: bool>([seed, position]: [u64; 2]) -> T::RealOn<FMA> {
        const { Distribution::ALL[DISTRIBUTION] }.draw(seed, position)
    }
}

/// The function that draws numbers of a dtype.
pub(super) fn random(isa: Isa, distribution: Distribution, dtype: DType) -> Result<TileFn> {
    const UNIFORM: usize = Distribution::Uniform as usize;
    const NORMAL: usize = Distribution::Normal as usize;
    Ok(match (distribution, dtype) {
        (Distribution::Uniform, DType::Float32) => tile_fn::<Map<Random<f32, UNIFORM>>>(isa),
        (Distribution::Uniform, DType::Float64) => tile_fn::<Map<Random<f64, UNIFORM>>>(isa),
        (Distribution::Normal, DType::Float32) => tile_fn::<Map<Random<f32, NORMAL>>>(isa),
        (Distribution::Normal, DType::Float64) => tile_fn::<Map<Random<f64, NORMAL>>>(isa),
        _ => bail!(internal, "random numbers of {dtype} in a kernel"),
    })
}

/// One operand or the other.
struct Select<T>(PhantomData<T>);

impl<T: Copy> Body for Select<T> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(dst: *mut u8, args: [Arg; 3], groups: usize) {
        let dst = dst.cast::<[MaybeUninit<T>; GROUP]>();
        for group in 0..groups {
            let condition = args[0].group::<u8>(group);
            let [a, b] = [args[1], args[2]].map(|arg| arg.group::<T>(group));
            let mut out = [MaybeUninit::uninit(); GROUP];
            for (i, out) in out.iter_mut().enumerate() {
                // SAFETY: guaranteed by the caller. Both are read, so that there is no branch.
                let (chosen, [a, b]) =
                    unsafe { (condition.add(i).read() != 0, [a, b].map(|x| x.add(i).read_unaligned())) };
                out.write(if chosen { a } else { b });
            }
            // SAFETY: guaranteed by the caller.
            unsafe { dst.add(group).write_unaligned(out) }
        }
    }
}

/// The function that selects elements of a dtype: only their size matters.
pub(super) fn select(isa: Isa, dtype: DType) -> TileFn {
    match super::register_size(dtype) {
        1 => tile_fn::<Select<u8>>(isa),
        2 => tile_fn::<Select<u16>>(isa),
        4 => tile_fn::<Select<u32>>(isa),
        _ => tile_fn::<Select<u64>>(isa),
    }
}

/// How an element in a register is converted to another type.
trait To<T>: Copy {
    /// The register form of that type.
    type Register: Copy;

    fn to(self) -> Self::Register;
}

macro_rules! numbers {
    ($($from:ident)*) => {$(
        numbers!($from: f32 f64);

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

macro_rules! wrapping {
    ($($from:ident)*) => {$(
        numbers!($from: u8 u16 u32 u64);
    )*};
}
wrapping!(i8 i16 i32 i64 u8 u16 u32 u64);

/// Truncates and saturates as `as` does, but in a form that vectorizes: values out of range are replaced before the
/// conversion, and their results after it.
macro_rules! saturating {
    ($($to:ident)*) => {$(
        saturating!(f32 => $to);
        saturating!(f64 => $to);
    )*};
    ($from:ident => $to:ident) => {
        impl To<$to> for $from {
            type Register = $to;
            #[inline(always)]
            fn to(self) -> $to {
                // Both are powers of two, or zero, and so exact.
                const BOTTOM: $from = $to::MIN as $from;
                const TOP: $from = 2.0 * ($to::MAX / 2 + 1) as $from;
                let above = self >= TOP;
                let inside = if self >= BOTTOM && !above { self } else { BOTTOM };
                let inside = if self.is_nan() { 0.0 } else { inside };
                // SAFETY: the number is at least `BOTTOM` and less than `TOP`.
                let whole = unsafe { inside.to_int_unchecked::<$to>() };
                if above { $to::MAX } else { whole }
            }
        }
    };
}
saturating!(i8 i16 i32 i64 u8 u16 u32 u64);

impl<N: Narrow> To<N> for f32 {
    type Register = f32;
    #[inline(always)]
    fn to(self) -> f32 {
        N::narrow(self).widen()
    }
}

macro_rules! rounded {
    ($narrow:ident as $through:ident: $($from:ident)*) => {$(
        impl<N: Narrow> To<N> for $from {
            type Register = f32;
            #[inline(always)]
            fn to(self) -> f32 {
                N::$narrow(self as $through).widen()
            }
        }
    )*};
}
// Integers of up to 16 bits are floats.
rounded!(narrow as f32: i8 i16 u8 u16);
rounded!(narrow_f64 as f64: i32 i64 u32 u64 f64);

/// From a type to another.
struct Cast<A, B>(PhantomData<(A, B)>);

impl<A: To<B>, B> Function for Cast<A, B> {
    type In<const FMA: bool> = A;
    type Out<const FMA: bool> = A::Register;
    const ARITY: usize = 1;

    #[inline(always)]
    fn call<const FMA: bool>([operand, _]: [A; 2]) -> A::Register {
        operand.to()
    }
}

/// The function that converts elements.
pub(super) fn cast(isa: Isa, from: DType, to: DType) -> TileFn {
    macro_rules! cast {
        ($from:ty => $($($to:ident)|+ = $type:ty),*) => {
            dispatch_small!(to, N => tile_fn::<Map<Cast<$from, N>>>(isa),
                $($(DType::$to)|+ => tile_fn::<Map<Cast<$from, $type>>>(isa),)*
                DType::Bool => tile_fn::<Map<Cast<$from, Bool>>>(isa),
                DType::Float16 => tile_fn::<Map<Cast<$from, f16>>>(isa),
                DType::BFloat16 => tile_fn::<Map<Cast<$from, bf16>>>(isa),
                DType::Float32 => tile_fn::<Map<Cast<$from, f32>>>(isa),
                DType::Float64 => tile_fn::<Map<Cast<$from, f64>>>(isa),
            )
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
