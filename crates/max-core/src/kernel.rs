//! Kernels as plain data: what the compiler produces and a device runs.
//!
//! A [`Loop`] is a fused region: one walk over an index space in which a small straight-line program runs on
//! every element. With a reduced axis it is a row program: values are per element or per row, and reductions
//! turn the former into the latter. Matmul, attention, conv2d and pooling pass their results to a loop, their epilogue, so
//! that these kernels all write their output in the same way.
//!
//! A kernel is described once, from lowering to launch. Its sizes have a type `D`: dims in a compiled program, integers
//! once they are bound for an execution. Its memory is named by an `M`: by the nodes of a graph while it is lowered, by
//! [`Slot`]s afterwards. A kind of kernel is a file beside this one and a line in the list of [`Kernel`]: the file has
//! its fields, how they are mapped to other sizes and memory ([`Map`]), and how it walks its memory ([`Walk`]). What it
//! reads and writes, and how much of it, follows from the walks.

mod attention;
mod check;
mod conv;
mod dequantize;
mod gather;
mod indexed;
mod irfft;
mod map;
mod matmul;
mod paged;
mod print;
mod put;
mod qmatmul;
mod resample;
mod roi_align;
mod scan;
mod scatter;
mod sort;
mod suppress;
mod walk;
mod window;

pub use attention::Attention;
pub use check::Level;
pub use conv::Conv2d;
pub use dequantize::Dequantize;
pub use gather::Gather;
pub use indexed::Indexed;
pub use irfft::{Irfft, Normalization};
pub use map::Map;
pub use matmul::{Matmul, Matmuls};
pub use paged::{Limits, PagedAttention, PagedStore, Pages, Placed, Sequence, StoredPart, Tables};
pub use put::{Put, PutBound, put_start};
pub use qmatmul::{Experts, Projection, QMatmul};
pub use resample::Resample;
pub use roi_align::{Bins, Coordinate, Region, RoiAlign, Sample, Sampling};
pub use scan::Scan;
pub use scatter::{Combine, Scatter};
pub use sort::Sort;
pub use suppress::Suppress;
pub use walk::{Role, Walk};
pub use window::{Pooling, Sliding, Span, Window};

use std::fmt::{self, Display, Formatter};

use crate::{Bindings, DType, Dim, Distribution, Element, Result, ScalarOp, dispatch};

/// Identifies memory that a kernel reads or writes: an input, a constant, an intermediate, an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

impl Slot {
    /// No memory: for an access of which only the positions are used.
    pub const NONE: Slot = Slot(u32::MAX);
}

/// Identifies the result of an instruction by its position in the code of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub u32);

/// How a kernel walks memory: the element at index `(i, j, ..)` of its space is `offset + i * strides[0] + j *
/// strides[1] + ..` elements into the slot. A stride of zero repeats an element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Access<D, M = Slot> {
    /// The memory.
    pub slot: M,
    /// The type of its elements.
    pub dtype: DType,
    /// The position of index zero, in elements.
    pub offset: D,
    /// One stride per axis of the space, in elements.
    pub strides: Vec<D>,
}

/// An element as bits: it occupies the first `dtype.size_in_bytes()` bytes of `bits` in little-endian order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Literal {
    /// The type of the element.
    pub dtype: DType,
    /// Its bits.
    pub bits: u64,
}

/// How a reduction combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Reduction {
    Sum,
    Prod,
    Max,
    Min,
    ArgMax,
    ArgMin,
}

/// One instruction of a loop. It defines the register of its own position; a store defines none.
///
/// Registers have dtypes. Narrow floats (f16, bf16 and smaller) are held as f32 in registers: they are widened when loaded
/// and rounded when stored or cast.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Instr<D> {
    /// Reads through the access with this index.
    Load(u32),
    /// The position that the access with this index computes, as int64. The access has no memory.
    Index(u32),
    /// In an epilogue: the result of the matmul, attention or convolution, in the given dtype.
    Product(DType),
    /// A constant.
    Literal(Literal),
    /// A size, converted to a dtype.
    Size(D, DType),
    /// An op of the scalar table. Both operands have the same dtype; a unary op has its operand twice. Functions of
    /// real numbers apply to floats only.
    Apply(ScalarOp, [Reg; 2]),
    /// The second operand where the first, a bool, is true, else the third.
    Select([Reg; 3]),
    /// Converts as a cast op does.
    Cast(Reg, DType),
    /// Random numbers as float32 or float64, from a 64-bit seed and an int64 position.
    Random(Distribution, DType, [Reg; 2]),
    /// Combines the elements of a row; sums and products of floats may be computed in any fixed order. The indices of
    /// `ArgMax` and `ArgMin` are int64.
    Reduce(Reduction, Reg),
    /// Writes a register through the access with this index.
    Store(u32, Reg),
}

/// A fused region: see the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Loop<D, M = Slot> {
    /// The index space, outermost axis first.
    pub shape: Vec<D>,
    /// The axis that reductions run along, if there are any.
    pub reduce: Option<usize>,
    /// The memory it reads and writes; each has one stride per axis of the space.
    pub accesses: Vec<Access<D, M>>,
    /// The program.
    pub code: Vec<Instr<D>>,
}

/// Builds [`Kernel`] from the list of its kinds: types, names, and whether only the host has them.
macro_rules! kernels {
    (@host) => {
        false
    };
    (@host only) => {
        true
    };
    ($($kind:ident $name:literal $(host $only:ident)?),* $(,)?) => {
        /// A unit of work that a device launches.
        #[derive(Clone, Debug, PartialEq, Hash)]
        #[allow(missing_docs, reason = "each kind is documented at its type")]
        pub enum Kernel<D, M = Slot> {
            $($kind($kind<D, M>),)*
        }

        impl<D, M> Kernel<D, M> {
            /// The name of its kind.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Kernel::$kind(_) => $name,)*
                }
            }

            /// Whether it runs on a CPU only.
            pub fn is_host_only(&self) -> bool {
                match self {
                    $(Kernel::$kind(_) => kernels!(@host $($only)?),)*
                }
            }

            /// The same with other sizes and memory.
            pub fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Kernel<E, N>> {
                Ok(match self {
                    $(Kernel::$kind(k) => Kernel::$kind(k.map(to)?),)*
                })
            }

            /// Calls a function with each way in which it walks memory.
            pub fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
                match self {
                    $(Kernel::$kind(k) => k.walk(see),)*
                }
            }

            /// Its final loops: itself or its epilogues.
            pub fn endings(&self) -> Vec<Ending<'_, D, M>> {
                match self {
                    $(Kernel::$kind(k) => k.endings(),)*
                }
            }

            /// Replaces its final loop, if it has exactly one.
            pub fn set_ending(&mut self, ending: Loop<D, M>) {
                match self {
                    $(Kernel::$kind(k) => k.set_ending(ending),)*
                }
            }
        }

        impl<D: Display> Display for Kernel<D> {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                match self {
                    $(Kernel::$kind(k) => {
                        write!(f, "{} ", $name)?;
                        k.write(f)
                    })*
                }
            }
        }

        $(impl<D, M> From<$kind<D, M>> for Kernel<D, M> {
            fn from(kernel: $kind<D, M>) -> Kernel<D, M> {
                Kernel::$kind(kernel)
            }
        })*
    };
}

kernels! {
    Loop "loop",
    Matmul "matmul",
    Matmuls "matmul",
    QMatmul "qmatmul",
    Attention "attention",
    PagedAttention "paged_attention" host only,
    PagedStore "paged_store" host only,
    Conv2d "conv2d",
    Dequantize "dequantize",
    Gather "gather",
    Irfft "irfft" host only,
    RoiAlign "roi_align",
    Scan "scan",
    Scatter "scatter",
    Sort "sort",
    Suppress "non_maximum_suppression" host only,
    Put "store",
    Window "window",
    Resample "resample",
}

/// A final loop of a kernel.
#[derive(Clone, Debug)]
pub struct Ending<'a, D, M = Slot> {
    /// The loop.
    pub run: &'a Loop<D, M>,
    /// The space of what the kernel computes, which must be that of the loop.
    pub space: Vec<&'a D>,
}

/// What kernels without a final loop have in common.
macro_rules! no_ending {
    ($kind:ident) => {
        impl<D, M> $kind<D, M> {
            pub(super) fn endings(&self) -> Vec<Ending<'_, D, M>> {
                vec![]
            }

            pub(super) fn set_ending(&mut self, _: Loop<D, M>) {}
        }
    };
}
use no_ending;

/// What kernels that end in an epilogue have in common, given the sizes of the space that it runs over.
macro_rules! epilogue {
    ($kind:ident, $k:ident => $space:expr) => {
        impl<D, M> $kind<D, M> {
            pub(super) fn endings(&self) -> Vec<Ending<'_, D, M>> {
                let $k = self;
                let space: &[&[D]] = &$space;
                let space = space.iter().flat_map(|sizes| sizes.iter()).collect();
                vec![Ending { run: &self.epilogue, space }]
            }

            pub(super) fn set_ending(&mut self, ending: Loop<D, M>) {
                self.epilogue = ending;
            }
        }
    };
}
use epilogue;

impl Literal {
    /// Its value, or the nearest f64.
    pub fn to_f64(self) -> f64 {
        let bytes = self.bits.to_le_bytes();
        dispatch!(self.dtype, T => bytemuck::pod_read_unaligned::<T>(&bytes[..size_of::<T>()]).to_f64())
    }
}

impl Reduction {
    /// Whether the result is a position.
    pub fn gives_index(self) -> bool {
        matches!(self, Reduction::ArgMax | Reduction::ArgMin)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Prod => "prod",
            Reduction::Max => "max",
            Reduction::Min => "min",
            Reduction::ArgMax => "argmax",
            Reduction::ArgMin => "argmin",
        }
    }
}

impl<D> Instr<D> {
    /// The registers it uses, in order.
    pub fn args(&self) -> &[Reg] {
        match self {
            Instr::Apply(_, args) | Instr::Random(_, _, args) => args,
            Instr::Select(args) => args,
            Instr::Cast(arg, _) | Instr::Reduce(_, arg) | Instr::Store(_, arg) => std::slice::from_ref(arg),
            Instr::Load(_) | Instr::Index(_) | Instr::Product(_) | Instr::Literal(_) | Instr::Size(..) => &[],
        }
    }

    /// The registers it uses, to be renamed.
    pub fn args_mut(&mut self) -> &mut [Reg] {
        match self {
            Instr::Apply(_, args) | Instr::Random(_, _, args) => args,
            Instr::Select(args) => args,
            Instr::Cast(arg, _) | Instr::Reduce(_, arg) | Instr::Store(_, arg) => std::slice::from_mut(arg),
            Instr::Load(_) | Instr::Index(_) | Instr::Product(_) | Instr::Literal(_) | Instr::Size(..) => {
                &mut []
            }
        }
    }

    /// The access it goes through, if it uses memory or its positions.
    pub fn access_mut(&mut self) -> Option<&mut u32> {
        match self {
            Instr::Load(access) | Instr::Index(access) | Instr::Store(access, _) => Some(access),
            _ => None,
        }
    }
}

impl<D, M> Loop<D, M> {
    /// A loop over a shape that does nothing yet.
    pub fn empty(shape: Vec<D>) -> Loop<D, M> {
        Loop { shape, reduce: None, accesses: Vec::new(), code: Vec::new() }
    }

    /// The same with other sizes and memory.
    pub fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Loop<E, N>> {
        Ok(Loop {
            shape: to.sizes(&self.shape)?,
            reduce: self.reduce,
            accesses: self.accesses.iter().map(|access| access.map(to)).collect::<Result<_>>()?,
            code: self.code.iter().map(|instr| to.instr(instr)).collect::<Result<_>>()?,
        })
    }

    /// The accesses that are written.
    pub fn stored(&self) -> impl Iterator<Item = &Access<D, M>> {
        self.code.iter().filter_map(|instr| match instr {
            Instr::Store(access, _) => self.accesses.get(*access as usize),
            _ => None,
        })
    }

    /// The accesses that are read.
    pub fn loaded(&self) -> impl Iterator<Item = &Access<D, M>> {
        self.code.iter().filter_map(|instr| match instr {
            Instr::Load(access) => self.accesses.get(*access as usize),
            _ => None,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        let mut all = |role, access| see(Walk::new(role, access, &[&self.shape]));
        self.loaded().for_each(|access| all(Role::Load, access));
        self.stored().for_each(|access| all(Role::Store, access));
    }

    fn endings(&self) -> Vec<Ending<'_, D, M>> {
        vec![Ending { run: self, space: self.shape.iter().collect() }]
    }

    fn set_ending(&mut self, ending: Loop<D, M>) {
        *self = ending;
    }
}

impl<D, M> Kernel<D, M> {
    /// The ways in which it walks memory.
    pub fn walks(&self) -> Vec<Walk<'_, D, M>> {
        let mut walks = Vec::new();
        self.walk(&mut |walk| walks.push(walk));
        walks
    }

    /// The memory it reads.
    pub fn reads(&self) -> impl Iterator<Item = &M> {
        self.walks().into_iter().filter(|walk| !walk.role.writes()).map(|walk| &walk.access.slot)
    }

    /// The memory it writes.
    pub fn writes(&self) -> impl Iterator<Item = &M> {
        self.walks().into_iter().filter(|walk| walk.role.writes()).map(|walk| &walk.access.slot)
    }
}

impl<M: Clone> Kernel<Dim, M> {
    /// The kernel for the sizes of one execution.
    pub fn bind(&self, bindings: &Bindings) -> Result<Kernel<i64, M>> {
        self.map(&mut Map {
            size: &mut |dim| dim.evaluate(bindings),
            memory: &mut |memory| Ok(memory.clone()),
        })
    }
}
