//! Reductions over tiles: 64 lanes that each combine every 64th element, and one fixed order to combine the lanes.
//! Whole rows are reduced in runs, whose lanes are combined pairwise.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use max_core::kernel::Reduction;
use max_core::scalar::{Lane, NumericOp};
use max_core::{Bool, DType, Element, Result, bail, dispatch};

use super::lanes::Register;
use super::{Arg, GROUP, RUN, Reducer, merged};
use crate::simd::{Isa, versions};

/// The body of a [`super::ReduceFn`].
trait Body {
    /// # Safety
    ///
    /// As for [`super::ReduceFn`].
    unsafe fn run<const FMA: bool>(acc: *mut u8, src: Arg, count: usize);
}

versions!(reduce_fn: Body, fn(acc: *mut u8, src: Arg, count: usize));

/// The body of a function on accumulators alone.
trait Lanes {
    /// # Safety
    ///
    /// `acc` is valid for a group.
    unsafe fn run<const FMA: bool>(acc: *mut u8);
}

versions!(lanes_fn: Lanes, fn(acc: *mut u8));

/// The elements of a run over all lanes.
const BLOCK: usize = RUN * GROUP;

/// The levels of a stack that suffices for the runs of any row.
const LEVELS: usize = usize::BITS as usize - BLOCK.ilog2() as usize + 1;

/// The body of a [`super::RowsFn`].
trait Rows {
    /// # Safety
    ///
    /// As for [`super::RowsFn`].
    unsafe fn run<const FMA: bool>(dst: *mut u8, src: *const u8, stride: isize, rows: usize, count: usize);
}

versions!(rows_fn: Rows, fn(dst: *mut u8, src: *const u8, stride: isize, rows: usize, count: usize));

impl<T: Register + Element<Lane = T> + Lane<Mask = Bool>, const OP: usize> Rows for Combine<T, OP> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(dst: *mut u8, src: *const u8, stride: isize, rows: usize, count: usize) {
        let row = |row: usize| src.wrapping_offset(row as isize * stride * size_of::<T>() as isize);
        let runs = count.div_ceil(BLOCK);
        if runs <= 1 {
            for i in 0..rows {
                // SAFETY: the caller's promise: the row can be read, and its result written.
                unsafe {
                    let mut lanes = run_lanes::<T, OP, FMA>(row(i), count);
                    <Finish<T, OP> as Lanes>::run::<FMA>((&raw mut lanes).cast());
                    dst.cast::<T>().add(i).write_unaligned(lanes.0[0]);
                }
            }
            return;
        }
        let op = const { NumericOp::ALL[OP] };
        let mut stack = [const { MaybeUninit::<Aligned<T>>::uninit() }; LEVELS];
        for i in 0..rows {
            for run in 0..runs {
                let start = run * BLOCK;
                let from = row(i).wrapping_add(start * size_of::<T>());
                // A length known at compile time makes faster code.
                let last = run + 1 == runs;
                // SAFETY: the caller's promise: the row can be read.
                let mut lanes = unsafe {
                    match last {
                        false => run_lanes::<T, OP, FMA>(from, BLOCK),
                        true => run_lanes::<T, OP, FMA>(from, count - start),
                    }
                };
                let mut top = run.count_ones() as usize;
                for level in merged(run, runs) {
                    top = level - 1;
                    // SAFETY: the levels below that of a run are filled.
                    let below = unsafe { stack[top].assume_init_ref() };
                    for i in 0..GROUP {
                        lanes.0[i] = op.apply([below.0[i], lanes.0[i]]);
                    }
                }
                stack[top].write(lanes);
            }
            // SAFETY: the last run leaves the first level filled; the caller's promise: the result can be written.
            unsafe {
                <Finish<T, OP> as Lanes>::run::<FMA>(stack[0].as_mut_ptr().cast());
                dst.cast::<T>().add(i).write_unaligned(stack[0].assume_init_ref().0[0]);
            }
        }
    }
}

/// Lanes aligned to a cache line, which makes reloading them fastest.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Aligned<T>([T; GROUP]);

/// Combines the elements of a run into lanes.
///
/// # Safety
///
/// They can be read.
#[inline(always)]
unsafe fn run_lanes<T: Register, const OP: usize, const FMA: bool>(
    from: *const u8,
    count: usize,
) -> Aligned<T> {
    let mut lanes = Aligned([identity::<T>(const { NumericOp::ALL[OP] }); GROUP]);
    let arg = Arg { ptr: from, repeat: false };
    // SAFETY: the caller's promise.
    unsafe { <Combine<T, OP> as Body>::run::<FMA>((&raw mut lanes).cast(), arg, count) };
    lanes
}

/// Fills the lanes with the identity.
struct Start<T, const OP: usize>(PhantomData<T>);

/// Combines the lanes and writes the result to all.
struct Finish<T, const OP: usize>(PhantomData<T>);

/// Combines with one of the numeric ops.
struct Combine<T, const OP: usize>(PhantomData<T>);

impl<T: Register, const OP: usize> Body for Combine<T, OP> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(acc: *mut u8, src: Arg, count: usize) {
        let op = const { NumericOp::ALL[OP] };
        let acc = acc.cast::<[T::On<FMA>; GROUP]>();
        // SAFETY: the caller's promise; `On` has the same bits as `T`.
        let mut lanes = unsafe { acc.read_unaligned() };
        let at = |i: usize| src.ptr.cast::<T::On<FMA>>().wrapping_add(i);
        let whole = count - count % GROUP;
        for start in (0..whole).step_by(GROUP) {
            let start = if src.repeat { 0 } else { start };
            for (i, lane) in lanes.iter_mut().enumerate() {
                // SAFETY: the caller's promise: the index is less than `count`.
                *lane = op.apply([*lane, unsafe { at(start + i).read_unaligned() }]);
            }
        }
        let rest = if src.repeat { 0 } else { whole };
        for (i, lane) in lanes.iter_mut().enumerate().take(count - whole) {
            // SAFETY: as above.
            *lane = op.apply([*lane, unsafe { at(rest + i).read_unaligned() }]);
        }
        // SAFETY: as above.
        unsafe { acc.write_unaligned(lanes) }
    }
}

/// The identity element: it leaves the other operand unchanged.
fn identity<T: Element>(op: NumericOp) -> T {
    let bounded = T::DTYPE != DType::Bool;
    match op {
        NumericOp::Max if bounded => T::from_double(f64::NEG_INFINITY),
        NumericOp::Min if bounded => T::from_double(f64::INFINITY),
        NumericOp::Mul | NumericOp::Min => T::from_double(1.0),
        _ => T::from_double(0.0),
    }
}

impl<T: Element, const OP: usize> Lanes for Start<T, OP> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(acc: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            acc.cast::<[T; GROUP]>().write_unaligned([identity::<T>(const { NumericOp::ALL[OP] }); GROUP])
        }
    }
}

impl<T: Element<Lane = T> + Lane<Mask = Bool>, const OP: usize> Lanes for Finish<T, OP> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(acc: *mut u8) {
        let acc = acc.cast::<[T; GROUP]>();
        // SAFETY: the caller's promise.
        let mut lanes = unsafe { acc.read_unaligned() };
        let mut half = GROUP / 2;
        while half > 0 {
            for i in 0..half {
                lanes[i] = const { NumericOp::ALL[OP] }.apply([lanes[i], lanes[i + half]]);
            }
            half /= 2;
        }
        // SAFETY: the caller's promise.
        unsafe { acc.write_unaligned([lanes[0]; GROUP]) }
    }
}

/// The functions of a reduction for a dtype.
pub(super) fn reducer(isa: Isa, kind: Reduction, dtype: DType) -> Result<Reducer> {
    macro_rules! combine {
        ($op:ident) => {
            dispatch!(dtype, T => combine!(<T as Element>::Lane, { NumericOp::$op as usize }))
        };
        ($T:ty, $op:tt) => {
            Reducer {
                start: lanes_fn::<Start<$T, $op>>(isa),
                add: reduce_fn::<Combine<$T, $op>>(isa),
                finish: lanes_fn::<Finish<$T, $op>>(isa),
                rows: rows_fn::<Combine<$T, $op>>(isa),
            }
        };
    }
    Ok(match kind {
        Reduction::Sum => combine!(Add),
        Reduction::Prod => combine!(Mul),
        Reduction::Max => combine!(Max),
        Reduction::Min => combine!(Min),
        Reduction::ArgMax | Reduction::ArgMin => bail!(internal, "{kind:?} does not combine elements"),
    })
}
