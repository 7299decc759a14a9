//! Between memory and register tiles: strides, and the forms that elements have in each.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use bytemuck::Pod;
use max_core::float8::{F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ};
use max_core::{Bool, DType, bf16, f16};

use super::narrow::Narrow;
use super::{GROUP, LoadFn, StoreFn};
use crate::simd::{Isa, LINE, stream_line, versions};

/// The two forms of an element.
trait Form {
    type Memory: Pod;
    type Register: Pod;

    fn load(memory: Self::Memory) -> Self::Register;
    fn store(register: Self::Register) -> Self::Memory;
}

/// The same bits in both.
struct Same<T>(PhantomData<T>);

impl<T: Pod> Form for Same<T> {
    type Memory = T;
    type Register = T;

    #[inline(always)]
    fn load(memory: T) -> T {
        memory
    }
    #[inline(always)]
    fn store(register: T) -> T {
        register
    }
}

/// Anything but zero is true in memory; true is one in a register.
struct Truth;

impl Form for Truth {
    type Memory = u8;
    type Register = Bool;

    #[inline(always)]
    fn load(memory: u8) -> Bool {
        (memory != 0).into()
    }
    #[inline(always)]
    fn store(register: Bool) -> u8 {
        u8::from(register.get())
    }
}

/// Narrow in memory, f32 in a register.
struct Widened<N>(PhantomData<N>);

impl<N: Narrow> Form for Widened<N> {
    type Memory = N;
    type Register = f32;

    #[inline(always)]
    fn load(memory: N) -> f32 {
        memory.widen()
    }
    #[inline(always)]
    fn store(register: f32) -> N {
        N::narrow(register)
    }
}

/// The body of a [`LoadFn`].
trait LoadBody {
    /// # Safety
    ///
    /// As for [`LoadFn`].
    unsafe fn run<const FMA: bool>(dst: *mut u8, src: *const u8, stride: isize, count: usize);
}

versions!(load_fn: LoadBody, fn(dst: *mut u8, src: *const u8, stride: isize, count: usize));

/// The body of a [`StoreFn`].
trait StoreBody {
    /// # Safety
    ///
    /// As for [`StoreFn`].
    unsafe fn run<const FMA: bool>(dst: *mut u8, stride: isize, src: *const u8, count: usize);
}

versions!(store_fn: StoreBody, fn(dst: *mut u8, stride: isize, src: *const u8, count: usize));

/// Converts a group.
#[inline(always)]
fn convert<A: Copy, B: Copy>(group: [A; GROUP], f: impl Fn(A) -> B) -> [B; GROUP] {
    let mut out = [MaybeUninit::<B>::uninit(); GROUP];
    for (out, element) in out.iter_mut().zip(group) {
        out.write(f(element));
    }
    // SAFETY: every element was written; a group has the same layout with and without `MaybeUninit`.
    unsafe { std::mem::transmute_copy(&out) }
}

struct Load<F>(PhantomData<F>);

impl<F: Form> LoadBody for Load<F> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(dst: *mut u8, src: *const u8, stride: isize, count: usize) {
        let src = src.cast::<F::Memory>();
        let dst = dst.cast::<[F::Register; GROUP]>();
        for start in (0..count).step_by(GROUP) {
            let left = count - start;
            let at = |i: usize| src.wrapping_offset((start + i) as isize * stride);
            let group = if stride == 1 && left >= GROUP {
                // SAFETY: the caller's promise: a whole group lies there.
                unsafe { at(0).cast::<[F::Memory; GROUP]>().read_unaligned() }
            } else {
                // Behind the last element it is repeated.
                // SAFETY: the caller's promise: the elements before `left` can be read.
                std::array::from_fn(|i| unsafe { at(i.min(left - 1)).read_unaligned() })
            };
            // SAFETY: the caller's promise: the tile has room for every group begun.
            unsafe { dst.add(start / GROUP).write_unaligned(convert(group, F::load)) }
        }
    }
}

struct Store<F>(PhantomData<F>);

impl<F: Form> StoreBody for Store<F> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(dst: *mut u8, stride: isize, src: *const u8, count: usize) {
        let src = src.cast::<F::Register>();
        let dst = dst.cast::<F::Memory>();
        for start in (0..count).step_by(GROUP) {
            let left = count - start;
            let at = |i: usize| dst.wrapping_offset((start + i) as isize * stride);
            if stride == 1 && left >= GROUP {
                // SAFETY: the caller's promise: a whole group fits.
                unsafe {
                    let group = src.add(start).cast::<[F::Register; GROUP]>().read_unaligned();
                    at(0).cast::<[F::Memory; GROUP]>().write_unaligned(convert(group, F::store));
                }
            } else {
                for i in 0..left.min(GROUP) {
                    // SAFETY: the caller's promise: the element is among those to be written.
                    unsafe { at(i).write_unaligned(F::store(src.add(start + i).read_unaligned())) }
                }
            }
        }
    }
}

struct Stream<F>(PhantomData<F>);

impl<F: Form> StoreBody for Stream<F> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(dst: *mut u8, stride: isize, src: *const u8, count: usize) {
        let size = size_of::<F::Memory>();
        let to_line = dst.align_offset(LINE);
        // SAFETY: the caller's promise, divided into the elements before the first line, whole groups and the rest.
        unsafe {
            if stride != 1 || !to_line.is_multiple_of(size) {
                return Store::<F>::run::<FMA>(dst, stride, src, count);
            }
            let head = (to_line / size).min(count);
            Store::<F>::run::<FMA>(dst, 1, src, head);
            let (dst, src) = (dst.add(head * size), src.cast::<F::Register>().add(head));
            let groups = (count - head) / GROUP;
            for group in 0..groups {
                let elements = src.add(group * GROUP).cast::<[F::Register; GROUP]>().read_unaligned();
                let elements = convert(elements, F::store);
                for line in 0..size {
                    stream_line(
                        dst.add((group * size + line) * LINE),
                        elements.as_ptr().cast::<u8>().add(line * LINE),
                    );
                }
            }
            let done = groups * GROUP;
            Store::<F>::run::<FMA>(dst.add(done * size), 1, src.add(done).cast(), count - head - done);
        }
    }
}

/// Calls a macro with the form of a dtype.
macro_rules! with_form {
    ($dtype:expr, $F:ident => $body:expr) => {
        with_form!(@ $dtype, $F, $body,
            Bool = Truth,
            Int8 | UInt8 = Same<u8>,
            Int16 | UInt16 = Same<u16>,
            Int32 | UInt32 | Float32 = Same<u32>,
            Int64 | UInt64 | Float64 = Same<u64>,
            Float16 = Widened<f16>,
            BFloat16 = Widened<bf16>,
            Float8E4M3FN = Widened<F8E4M3FN>,
            Float8E4M3FNUZ = Widened<F8E4M3FNUZ>,
            Float8E5M2 = Widened<F8E5M2>,
            Float8E5M2FNUZ = Widened<F8E5M2FNUZ>)
    };
    (@ $dtype:expr, $F:ident, $body:expr, $($($variant:ident)|+ = $form:ty),*) => {
        match $dtype { $($(DType::$variant)|+ => { type $F = $form; $body })* }
    };
}

pub(super) fn load(isa: Isa, dtype: DType) -> LoadFn {
    with_form!(dtype, F => load_fn::<Load<F>>(isa))
}

pub(super) fn store(isa: Isa, dtype: DType, streaming: bool) -> StoreFn {
    match streaming {
        false => with_form!(dtype, F => store_fn::<Store<F>>(isa)),
        true => with_form!(dtype, F => store_fn::<Stream<F>>(isa)),
    }
}
