//! Chains: lists of steps that run on one group after another, whose intermediate results stay in registers.
//!
//! A step combines the current group of f32 with a group in memory, or stores it there. Calling a function for each
//! instruction moves every intermediate result through the L1 cache; a chain decides anew what to do for each group, but
//! touches memory only for operands and results. Steps compute exactly what the functions on tiles do.

#[cfg_attr(target_arch = "x86_64", path = "chain/x86_64.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "chain/none.rs")]
mod arch;

pub(crate) use arch::{BLOCK, chain};

use max_core::kernel::Reduction;
use max_core::scalar::{NumericOp, RealOp};
use max_core::{DType, ScalarOp};

use super::TileFn;

/// A step: what to do with the current group and the one at `ptr`, which moves by `stride` bytes per iteration of its
/// segment and by `row` bytes per row. Some iterations run together, each on a group `lane` bytes after the one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) ptr: *mut u8,
    pub(crate) stride: isize,
    pub(crate) lane: isize,
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

/// How elements that a chain can load and store are held in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Float,
    Brain,
}

impl Form {
    /// The form of a dtype, if a chain computes with it.
    pub(crate) fn of(dtype: DType) -> Option<Form> {
        match dtype {
            DType::Float32 => Some(Form::Float),
            DType::BFloat16 => Some(Form::Brain),
            _ => None,
        }
    }
}

/// What a step does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    /// Loads a group.
    Load,
    LoadBrain,
    /// Repeats an element.
    Splat,
    SplatBrain,
    /// Loads as many elements as there are.
    LoadPart,
    LoadPartBrain,
    /// Stores a group.
    Store,
    StoreBrain,
    /// Stores the first element.
    StoreOne,
    StoreOneBrain,
    /// Stores as many elements as there are.
    StorePart,
    StorePartBrain,
    /// Stores a group that is aligned to cache lines past the caches.
    Stream,
    StreamBrain,
    /// Prefetches a group.
    Ask,
    AskBrain,
    /// Rounds to bf16.
    Round,
    /// Multiplies the current group by itself.
    Square,
    /// Calls a function of one operand.
    Call(TileFn),
    Abs,
    Negate,
    Relu,
    Sqrt,
    Rsqrt,
    /// Combines the current group with an operand.
    Add,
    AddBrain,
    Sub,
    SubBrain,
    Mul,
    MulBrain,
    Div,
    DivBrain,
    Max,
    MaxBrain,
    Min,
    MinBrain,
    /// The same with the operand first.
    AddTo,
    AddToBrain,
    SubFrom,
    SubFromBrain,
    MulTo,
    MulToBrain,
    DivInto,
    DivIntoBrain,
    MaxTo,
    MaxToBrain,
    MinTo,
    MinToBrain,
    /// Combines lanes in memory with the current group.
    Sum,
    Product,
    Largest,
    Smallest,
    /// The same for as many lanes as there are elements.
    SumPart,
    ProductPart,
    LargestPart,
    SmallestPart,
    /// Makes the combination of the lanes in memory the current group.
    SumAll,
    ProductAll,
    LargestAll,
    SmallestAll,
}

impl Act {
    /// Loads a group.
    pub(crate) fn load(form: Form) -> Act {
        form.choose([Act::Load, Act::LoadBrain])
    }

    /// Repeats an element.
    pub(crate) fn splat(form: Form) -> Act {
        form.choose([Act::Splat, Act::SplatBrain])
    }

    /// Loads as many elements as there are.
    pub(crate) fn load_part(form: Form) -> Act {
        form.choose([Act::LoadPart, Act::LoadPartBrain])
    }

    /// Prefetches a group.
    pub(crate) fn ask(form: Form) -> Act {
        form.choose([Act::Ask, Act::AskBrain])
    }

    /// Stores a group.
    pub(crate) fn store(form: Form) -> Act {
        form.choose([Act::Store, Act::StoreBrain])
    }

    /// Stores the first element.
    pub(crate) fn store_one(form: Form) -> Act {
        form.choose([Act::StoreOne, Act::StoreOneBrain])
    }

    /// Stores as many elements as there are.
    pub(crate) fn store_part(form: Form) -> Act {
        form.choose([Act::StorePart, Act::StorePartBrain])
    }

    /// The same past the caches, where the memory is aligned to cache lines.
    pub(crate) fn streamed(self) -> Act {
        match self {
            Act::Store => Act::Stream,
            Act::StoreBrain => Act::StreamBrain,
            other => other,
        }
    }

    /// A function of the current group.
    pub(crate) fn unary(op: ScalarOp) -> Option<Act> {
        Some(match op {
            ScalarOp::NumericOp(NumericOp::Abs) => Act::Abs,
            ScalarOp::NumericOp(NumericOp::Negate) => Act::Negate,
            ScalarOp::NumericOp(NumericOp::Relu) => Act::Relu,
            ScalarOp::RealOp(RealOp::Sqrt) => Act::Sqrt,
            ScalarOp::RealOp(RealOp::Rsqrt) => Act::Rsqrt,
            op if op.arity() == 1 => Act::Call(super::apply(op, DType::Float32).ok()?),
            _ => return None,
        })
    }

    /// A function of the current group and an operand in memory; `reversed` if the operand comes first.
    pub(crate) fn binary(op: ScalarOp, reversed: bool, form: Form) -> Option<Act> {
        let acts = match op {
            ScalarOp::NumericOp(NumericOp::Add) => [Act::Add, Act::AddBrain, Act::AddTo, Act::AddToBrain],
            ScalarOp::NumericOp(NumericOp::Sub) => [Act::Sub, Act::SubBrain, Act::SubFrom, Act::SubFromBrain],
            ScalarOp::NumericOp(NumericOp::Mul) => [Act::Mul, Act::MulBrain, Act::MulTo, Act::MulToBrain],
            ScalarOp::RealOp(RealOp::Div) => [Act::Div, Act::DivBrain, Act::DivInto, Act::DivIntoBrain],
            ScalarOp::NumericOp(NumericOp::Max) => [Act::Max, Act::MaxBrain, Act::MaxTo, Act::MaxToBrain],
            ScalarOp::NumericOp(NumericOp::Min) => [Act::Min, Act::MinBrain, Act::MinTo, Act::MinToBrain],
            _ => return None,
        };
        let [a, b, c, d] = acts;
        Some(form.choose(if reversed { [c, d] } else { [a, b] }))
    }

    /// The steps of a reduction: for a group, for part of one, and for the result.
    pub(crate) fn reduction(kind: Reduction) -> Option<[Act; 3]> {
        match kind {
            Reduction::Sum => Some([Act::Sum, Act::SumPart, Act::SumAll]),
            Reduction::Prod => Some([Act::Product, Act::ProductPart, Act::ProductAll]),
            Reduction::Max => Some([Act::Largest, Act::LargestPart, Act::LargestAll]),
            Reduction::Min => Some([Act::Smallest, Act::SmallestPart, Act::SmallestAll]),
            Reduction::ArgMax | Reduction::ArgMin => None,
        }
    }
}

impl Form {
    fn choose(self, [float, brain]: [Act; 2]) -> Act {
        match self {
            Form::Float => float,
            Form::Brain => brain,
        }
    }
}
