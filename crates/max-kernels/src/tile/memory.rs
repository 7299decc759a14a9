//! Between memory and register tiles: strides, and the representations of elements in each.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use bytemuck::{Pod, Zeroable};
use max_core::{Bool, DType, bf16, dispatch_small, f16};

use super::narrow::Narrow;
use super::{GROUP, LoadFn, StoreFn};
use crate::simd::{Isa, LINE, stream_line, versions};

/// The representations of an element in memory and in a register.
trait Representation {
    type Memory: Pod;
    type Register: Pod;

    fn load(memory: Self::Memory) -> Self::Register;
    fn store(register: Self::Register) -> Self::Memory;
}

/// The same bits in both.
struct Same<T>(PhantomData<T>);

impl<T: Pod> Representation for Same<T> {
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

/// In memory any nonzero byte is true; in a register true is one.
struct Truth;

impl Representation for Truth {
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

impl<N: Narrow> Representation for Widened<N> {
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

/// The register form of a group in memory.
///
/// # Safety
///
/// A group can be read.
#[inline(always)]
unsafe fn load_group<F: Representation>(src: *const F::Memory) -> [MaybeUninit<F::Register>; GROUP] {
    let mut group = [MaybeUninit::uninit(); GROUP];
    for (i, element) in group.iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller.
        element.write(F::load(unsafe { src.add(i).read_unaligned() }));
    }
    group
}

/// The memory form of a group of registers.
///
/// # Safety
///
/// A group can be read.
#[inline(always)]
unsafe fn store_group<F: Representation>(src: *const F::Register) -> [F::Memory; GROUP] {
    let mut group = [F::Memory::zeroed(); GROUP];
    for (i, element) in group.iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller.
        *element = F::store(unsafe { src.add(i).read_unaligned() });
    }
    group
}

struct Load<F>(PhantomData<F>);

impl<F: Representation> LoadBody for Load<F> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(dst: *mut u8, src: *const u8, stride: isize, count: usize) {
        let src = src.cast::<F::Memory>();
        let dst = dst.cast::<[MaybeUninit<F::Register>; GROUP]>();
        let whole = count / GROUP;
        // SAFETY: the caller guarantees that the elements can be read, and the tile has room for whole groups.
        unsafe {
            for group in 0..whole {
                let from = src.offset((group * GROUP) as isize * stride);
                let elements = if stride == 1 {
                    load_group::<F>(from)
                } else {
                    load_group::<F>(gather(from, stride, GROUP).as_ptr())
                };
                dst.add(group).write_unaligned(elements);
            }
            if count > whole * GROUP {
                let from = src.offset((whole * GROUP) as isize * stride);
                let last = gather(from, stride, count - whole * GROUP);
                dst.add(whole).write_unaligned(load_group::<F>(last.as_ptr()));
            }
        }
    }
}

/// Elements `stride` apart, with the last of them repeated to fill a group.
///
/// # Safety
///
/// The elements can be read; there is at least one.
#[inline(always)]
unsafe fn gather<M: Pod>(src: *const M, stride: isize, count: usize) -> [M; GROUP] {
    let mut group = [M::zeroed(); GROUP];
    for (i, element) in group.iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller.
        *element = unsafe { src.offset(i.min(count - 1) as isize * stride).read_unaligned() };
    }
    group
}

struct Store<F>(PhantomData<F>);

impl<F: Representation> StoreBody for Store<F> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(dst: *mut u8, stride: isize, src: *const u8, count: usize) {
        let src = src.cast::<F::Register>();
        let dst = dst.cast::<F::Memory>();
        let whole = count - count % GROUP;
        // SAFETY: the caller guarantees that the elements can be read and written.
        unsafe {
            for start in (0..whole).step_by(GROUP) {
                let group = store_group::<F>(src.add(start));
                if stride == 1 {
                    dst.add(start).cast::<[F::Memory; GROUP]>().write_unaligned(group);
                } else {
                    for (i, element) in group.into_iter().enumerate() {
                        dst.offset((start + i) as isize * stride).write_unaligned(element);
                    }
                }
            }
            for i in whole..count {
                dst.offset(i as isize * stride).write_unaligned(F::store(src.add(i).read_unaligned()));
            }
        }
    }
}

struct Stream<F>(PhantomData<F>);

impl<F: Representation> StoreBody for Stream<F> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(dst: *mut u8, stride: isize, src: *const u8, count: usize) {
        let size = size_of::<F::Memory>();
        let to_line = dst.align_offset(LINE);
        // SAFETY: guaranteed by the caller; the elements are split into those before the first line, whole groups and
        // the rest.
        unsafe {
            if stride != 1 || !to_line.is_multiple_of(size) {
                return Store::<F>::run::<FMA>(dst, stride, src, count);
            }
            let head = (to_line / size).min(count);
            Store::<F>::run::<FMA>(dst, 1, src, head);
            let (dst, src) = (dst.add(head * size), src.cast::<F::Register>().add(head));
            let groups = (count - head) / GROUP;
            for group in 0..groups {
                let elements = store_group::<F>(src.add(group * GROUP));
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

/// Evaluates an expression with the representation of a dtype.
macro_rules! with_representation {
    ($dtype:expr, $F:ident => $body:expr) => {
        with_representation!(@ $dtype, $F, $body,
            Bool = Truth,
            Int8 | UInt8 = Same<u8>,
            Int16 | UInt16 = Same<u16>,
            Int32 | UInt32 | Float32 = Same<u32>,
            Int64 | UInt64 | Float64 = Same<u64>,
            Float16 = Widened<f16>,
            BFloat16 = Widened<bf16>)
    };
    (@ $dtype:expr, $F:ident, $body:expr, $($($variant:ident)|+ = $form:ty),*) => {
        dispatch_small!($dtype, N => { type $F = Widened<N>; $body },
            $($(DType::$variant)|+ => { type $F = $form; $body })*)
    };
}

pub(super) fn load(isa: Isa, dtype: DType) -> LoadFn {
    with_representation!(dtype, F => load_fn::<Load<F>>(isa))
}

pub(super) fn store(isa: Isa, dtype: DType, streaming: bool) -> StoreFn {
    match streaming {
        false => with_representation!(dtype, F => store_fn::<Store<F>>(isa)),
        true => with_representation!(dtype, F => store_fn::<Stream<F>>(isa)),
    }
}
