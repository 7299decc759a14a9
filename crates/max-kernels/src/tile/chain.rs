//! Chains: lists of steps that run on one group after another, whose intermediate results stay in registers.
//!
//! A step combines the current group of f32 with a group in memory, or stores it there. Calling a function for each
//! instruction moves every intermediate result through the L1 cache; a chain decides anew what to do for each group, but
//! touches memory only for operands and results. Steps compute exactly what the functions on tiles do.

use max_core::kernel::Reduction;
use max_core::scalar::{NumericOp, RealOp};
use max_core::{DType, ScalarOp, bf16, f16};

use super::GROUP;
use super::lanes::F32;
use super::narrow::Narrow;
use crate::simd::{Isa, LINE, prefetch, stream_line, versions};

/// A step: what to do with the current group and the one at `ptr`, which moves by `stride` bytes per iteration of its
/// segment and by `row` bytes per row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) ptr: *mut u8,
    pub(crate) stride: isize,
    pub(crate) row: isize,
    pub(crate) act: Act,
}

/// A run of steps, up to `end`, and how often it is repeated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) end: usize,
    pub(crate) iterations: usize,
}

/// Runs segments, one after the other, once per row. Afterwards the steps are those of the next row. Partial loads and
/// stores take `rest` elements.
///
/// # Safety
///
/// The steps belong to the segments, and each can read and write what its act says, in all iterations and rows.
pub(crate) type ChainFn = unsafe fn(steps: &mut [Step], segments: &[Segment], rows: usize, rest: usize);

/// The chain of this machine.
pub(crate) fn chain() -> ChainFn {
    chain_fn::<Chain>(Isa::best())
}

/// How elements that a chain can load and store are held in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Full,
    Brain,
    Half,
}

impl Form {
    /// The form of a dtype, if a chain computes with it.
    pub(crate) fn of(dtype: DType) -> Option<Form> {
        match dtype {
            DType::Float32 => Some(Form::Full),
            DType::BFloat16 => Some(Form::Brain),
            DType::Float16 => Some(Form::Half),
            _ => None,
        }
    }

    fn choose(self, [full, brain, half]: [Act; 3]) -> Act {
        match self {
            Form::Full => full,
            Form::Brain => brain,
            Form::Half => half,
        }
    }
}

impl Act {
    /// Loads a group, or repeats an element, or loads as many elements as there are and repeats the last.
    pub(crate) fn load(form: Form) -> Act {
        form.choose([Act::Load, Act::LoadBrain, Act::LoadHalf])
    }

    pub(crate) fn splat(form: Form) -> Act {
        form.choose([Act::Splat, Act::SplatBrain, Act::SplatHalf])
    }

    pub(crate) fn load_part(form: Form) -> Act {
        form.choose([Act::LoadPart, Act::LoadPartBrain, Act::LoadPartHalf])
    }

    /// Stores a group, or its first element, or as many elements as there are.
    pub(crate) fn store(form: Form) -> Act {
        form.choose([Act::Store, Act::StoreBrain, Act::StoreHalf])
    }

    pub(crate) fn store_one(form: Form) -> Act {
        form.choose([Act::StoreOne, Act::StoreOneBrain, Act::StoreOneHalf])
    }

    pub(crate) fn store_part(form: Form) -> Act {
        form.choose([Act::StorePart, Act::StorePartBrain, Act::StorePartHalf])
    }

    /// The same past the caches, where the memory is aligned to cache lines.
    pub(crate) fn streamed(self) -> Act {
        match self {
            Act::Store => Act::Stream,
            Act::StoreBrain => Act::StreamBrain,
            Act::StoreHalf => Act::StreamHalf,
            other => other,
        }
    }

    /// Rounds to what a form can hold.
    pub(crate) fn round(form: Form) -> Option<Act> {
        match form {
            Form::Full => None,
            Form::Brain => Some(Act::RoundBrain),
            Form::Half => Some(Act::RoundHalf),
        }
    }
}

/// Computes each element of a group.
macro_rules! for_each {
    ($v:ident, $i:ident => $element:expr) => {
        for $i in 0..GROUP {
            $v[$i] = $element;
        }
    };
}

macro_rules! acts {
    (binary { $($binary:ident = $table:ident: $op:ident $reversed:ident $brain:ident $brain_reversed:ident,)* }
     unary { $($unary:ident = $unary_table:ident,)* }
     combine { $($kind:ident = $combine_op:ident $combine:ident $part:ident $finish:ident,)* }) => {
        /// What a step does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Act {
            Load, LoadBrain, LoadHalf,
            Splat, SplatBrain, SplatHalf,
            LoadPart, LoadPartBrain, LoadPartHalf,
            Store, StoreBrain, StoreHalf,
            StoreOne, StoreOneBrain, StoreOneHalf,
            StorePart, StorePartBrain, StorePartHalf,
            Stream, StreamBrain, StreamHalf,
            RoundBrain, RoundHalf,
            /// Asks for the memory of groups of 4 and of 2 bytes per element.
            Prefetch, PrefetchShort,
            Square,
            $($binary, $reversed, $brain, $brain_reversed,)*
            $($unary,)*
            $($combine, $part, $finish,)*
        }

        impl Act {
            /// A function of the current group.
            pub(crate) fn unary(op: ScalarOp) -> Option<Act> {
                match op {
                    $(ScalarOp::$unary_table($unary_table::$unary) => Some(Act::$unary),)*
                    _ => None,
                }
            }

            /// A function of the current group and an operand in memory; `reversed` if the operand comes first.
            pub(crate) fn binary(op: ScalarOp, reversed: bool, form: Form) -> Option<Act> {
                match (op, reversed, form) {
                    $((ScalarOp::$table($table::$op), false, Form::Full) => Some(Act::$binary),
                    (ScalarOp::$table($table::$op), true, Form::Full) => Some(Act::$reversed),
                    (ScalarOp::$table($table::$op), false, Form::Brain) => Some(Act::$brain),
                    (ScalarOp::$table($table::$op), true, Form::Brain) => Some(Act::$brain_reversed),)*
                    _ => None,
                }
            }

            /// The steps of a reduction: combines the current group with lanes in memory, or as many lanes as there are
            /// elements; and combines the lanes there to one result.
            pub(crate) fn reduction(kind: Reduction) -> Option<[Act; 3]> {
                match kind {
                    $(Reduction::$kind => Some([Act::$combine, Act::$part, Act::$finish]),)*
                    _ => None,
                }
            }
        }

        impl Body for Chain {
            #[inline(always)]
            unsafe fn run<const FMA: bool>(steps: &mut [Step], segments: &[Segment], rows: usize, rest: usize) {
                let mut v = [F32::<FMA>(0.0); GROUP];
                for _ in 0..rows {
                    let mut begin = 0;
                    for segment in segments {
                        let body = &steps[begin..segment.end];
                        begin = segment.end;
                        for iteration in 0..segment.iterations as isize {
                            for step in body {
                                let at = step.ptr.wrapping_offset(iteration * step.stride);
                                // SAFETY: the caller's promise for the memory of each step.
                                unsafe {
                                    match step.act {
                                        Act::Load => for_each!(v, i => read::<f32, FMA>(at, i)),
                                        Act::LoadBrain => for_each!(v, i => read::<bf16, FMA>(at, i)),
                                        Act::LoadHalf => for_each!(v, i => read::<f16, FMA>(at, i)),
                                        Act::Splat => v = [read::<f32, FMA>(at, 0); GROUP],
                                        Act::SplatBrain => v = [read::<bf16, FMA>(at, 0); GROUP],
                                        Act::SplatHalf => v = [read::<f16, FMA>(at, 0); GROUP],
                                        Act::LoadPart => v = read_part::<f32, FMA>(at, rest),
                                        Act::LoadPartBrain => v = read_part::<bf16, FMA>(at, rest),
                                        Act::LoadPartHalf => v = read_part::<f16, FMA>(at, rest),
                                        Act::Store => at.cast::<[F32<FMA>; GROUP]>().write_unaligned(v),
                                        Act::StoreBrain => write::<bf16, FMA>(at, v),
                                        Act::StoreHalf => write::<f16, FMA>(at, v),
                                        Act::StoreOne => at.cast::<f32>().write_unaligned(v[0].0),
                                        Act::StoreOneBrain => at.cast::<bf16>().write_unaligned(bf16::narrow(v[0].0)),
                                        Act::StoreOneHalf => at.cast::<f16>().write_unaligned(f16::narrow(v[0].0)),
                                        Act::StorePart => write_part::<f32, FMA>(at, v, rest),
                                        Act::StorePartBrain => write_part::<bf16, FMA>(at, v, rest),
                                        Act::StorePartHalf => write_part::<f16, FMA>(at, v, rest),
                                        Act::Stream => stream::<f32, FMA>(at, v),
                                        Act::StreamBrain => stream::<bf16, FMA>(at, v),
                                        Act::StreamHalf => stream::<f16, FMA>(at, v),
                                        Act::RoundBrain => for_each!(v, i => F32(bf16::narrow(v[i].0).widen())),
                                        Act::RoundHalf => for_each!(v, i => F32(f16::narrow(v[i].0).widen())),
                                        Act::Prefetch => (0..4).for_each(|line| prefetch(at.wrapping_add(line * LINE))),
                                        Act::PrefetchShort => (0..2).for_each(|line| prefetch(at.wrapping_add(line * LINE))),
                                        Act::Square => for_each!(v, i => NumericOp::Mul.apply([v[i], v[i]])),
                                        $(Act::$binary => for_each!(v, i => const { $table::$op }.apply([v[i], read::<f32, FMA>(at, i)])),
                                        Act::$reversed => for_each!(v, i => const { $table::$op }.apply([read::<f32, FMA>(at, i), v[i]])),
                                        Act::$brain => for_each!(v, i => const { $table::$op }.apply([v[i], read::<bf16, FMA>(at, i)])),
                                        Act::$brain_reversed => for_each!(v, i => const { $table::$op }.apply([read::<bf16, FMA>(at, i), v[i]])),)*
                                        $(Act::$unary => {
                                            // A copy, so that a loop that is not unrolled does not keep the current
                                            // group itself in memory.
                                            let mut w = v;
                                            for_each!(w, i => const { $unary_table::$unary }.apply([w[i]; 2]));
                                            v = w;
                                        })*
                                        $(Act::$combine => {
                                            let acc = at.cast::<F32<FMA>>();
                                            for i in 0..GROUP {
                                                acc.add(i).write_unaligned(NumericOp::$combine_op.apply([acc.add(i).read_unaligned(), v[i]]));
                                            }
                                        }
                                        Act::$part => {
                                            let acc = at.cast::<F32<FMA>>();
                                            let w = v;
                                            for i in 0..rest {
                                                acc.add(i).write_unaligned(NumericOp::$combine_op.apply([acc.add(i).read_unaligned(), w[i]]));
                                            }
                                        }
                                        Act::$finish => {
                                            let mut lanes = at.cast::<[F32<FMA>; GROUP]>().read_unaligned();
                                            let mut half = GROUP / 2;
                                            while half > 0 {
                                                for i in 0..half {
                                                    lanes[i] = NumericOp::$combine_op.apply([lanes[i], lanes[i + half]]);
                                                }
                                                half /= 2;
                                            }
                                            v = [lanes[0]; GROUP];
                                        })*
                                    }
                                }
                            }
                        }
                    }
                    for step in steps.iter_mut() {
                        step.ptr = step.ptr.wrapping_offset(step.row);
                    }
                }
            }
        }
    };
}

acts! {
    binary {
        Add = NumericOp: Add AddReversed AddBrain AddBrainReversed,
        Sub = NumericOp: Sub SubReversed SubBrain SubBrainReversed,
        Mul = NumericOp: Mul MulReversed MulBrain MulBrainReversed,
        Max = NumericOp: Max MaxReversed MaxBrain MaxBrainReversed,
        Min = NumericOp: Min MinReversed MinBrain MinBrainReversed,
        Div = RealOp: Div DivReversed DivBrain DivBrainReversed,
    }
    unary {
        Abs = NumericOp, Negate = NumericOp, Relu = NumericOp, Floor = NumericOp, Ceil = NumericOp,
        Round = NumericOp, Trunc = NumericOp,
        Sqrt = RealOp, Rsqrt = RealOp, Exp = RealOp, Log = RealOp, Log1p = RealOp, Tanh = RealOp, Erf = RealOp,
        Sigmoid = RealOp, Silu = RealOp, Gelu = RealOp, GeluTanh = RealOp, GeluQuick = RealOp,
    }
    combine {
        Sum = Add CombineAdd CombineAddPart FinishAdd,
        Prod = Mul CombineMul CombineMulPart FinishMul,
        Max = Max CombineMax CombineMaxPart FinishMax,
        Min = Min CombineMin CombineMinPart FinishMin,
    }
}

/// The body of a [`ChainFn`].
trait Body {
    /// # Safety
    ///
    /// As for [`ChainFn`].
    unsafe fn run<const FMA: bool>(steps: &mut [Step], segments: &[Segment], rows: usize, rest: usize);
}

versions!(chain_fn: Body, fn(steps: &mut [Step], segments: &[Segment], rows: usize, rest: usize));

struct Chain;

/// Elements in memory that become f32.
trait Memory: Copy {
    fn widened(self) -> f32;
    fn narrowed(value: f32) -> Self;
}

impl Memory for f32 {
    #[inline(always)]
    fn widened(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrowed(value: f32) -> f32 {
        value
    }
}

impl<N: Narrow> Memory for N {
    #[inline(always)]
    fn widened(self) -> f32 {
        self.widen()
    }
    #[inline(always)]
    fn narrowed(value: f32) -> N {
        N::narrow(value)
    }
}

/// # Safety
///
/// The element can be read.
#[inline(always)]
unsafe fn read<M: Memory, const FMA: bool>(at: *const u8, i: usize) -> F32<FMA> {
    // SAFETY: guaranteed by the caller.
    F32(unsafe { at.cast::<M>().add(i).read_unaligned() }.widened())
}

/// # Safety
///
/// `rest` elements can be read; there is at least one.
#[inline(always)]
unsafe fn read_part<M: Memory, const FMA: bool>(at: *const u8, rest: usize) -> [F32<FMA>; GROUP] {
    let mut group = [F32(0.0); GROUP];
    for (i, element) in group.iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller.
        *element = unsafe { read::<M, FMA>(at, i.min(rest - 1)) };
    }
    group
}

#[inline(always)]
fn narrow<M: Memory, const FMA: bool>(v: [F32<FMA>; GROUP]) -> [M; GROUP] {
    let mut group = [M::narrowed(0.0); GROUP];
    for (element, v) in group.iter_mut().zip(v) {
        *element = M::narrowed(v.0);
    }
    group
}

/// # Safety
///
/// A group can be written.
#[inline(always)]
unsafe fn write<M: Memory, const FMA: bool>(at: *mut u8, v: [F32<FMA>; GROUP]) {
    // SAFETY: guaranteed by the caller.
    unsafe { at.cast::<[M; GROUP]>().write_unaligned(narrow(v)) }
}

/// # Safety
///
/// `rest` elements can be written; there are at most a group.
#[inline(always)]
unsafe fn write_part<M: Memory, const FMA: bool>(at: *mut u8, v: [F32<FMA>; GROUP], rest: usize) {
    let group = narrow::<M, FMA>(v);
    // SAFETY: guaranteed by the caller.
    unsafe { at.copy_from_nonoverlapping(group.as_ptr().cast(), rest * size_of::<M>()) }
}

/// # Safety
///
/// A group can be written, and is aligned to a cache line.
#[inline(always)]
unsafe fn stream<M: Memory, const FMA: bool>(at: *mut u8, v: [F32<FMA>; GROUP]) {
    let group = narrow::<M, FMA>(v);
    for line in 0..size_of::<M>() {
        // SAFETY: guaranteed by the caller; a group has as many lines as an element has bytes.
        unsafe { stream_line(at.add(line * LINE), group.as_ptr().cast::<u8>().add(line * LINE)) }
    }
}
