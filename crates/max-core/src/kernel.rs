//! Kernels as plain data: what the compiler produces and a device runs.
//!
//! A [`Loop`] is a fused region: one walk over an index space in which a small straight-line program runs on
//! every element. With a reduced axis it is a row program: values are per element or per row, and reductions
//! turn the former into the latter. Matmul, attention and conv2d pass their results to a loop, their epilogue, so that
//! these kernels all write their output in the same way. Sizes have a type `D`: dims in a compiled program, integers
//! once they are bound for an execution.

mod check;
mod print;

pub use check::Level;

use crate::{Bindings, DType, Dim, Distribution, Element, Error, Result, ScalarOp, dispatch};

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access<D> {
    /// The memory.
    pub slot: Slot,
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
/// Registers have dtypes. Narrow floats (f16, bf16, float8) are held as f32 in registers: they are widened when loaded
/// and rounded when stored or cast.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
pub struct Loop<D> {
    /// The index space, outermost axis first.
    pub shape: Vec<D>,
    /// The axis that reductions run along, if there are any.
    pub reduce: Option<usize>,
    /// The memory it reads and writes; each has one stride per axis of the space.
    pub accesses: Vec<Access<D>>,
    /// The program.
    pub code: Vec<Instr<D>>,
}

/// `[batch.., m, k] x [batch.., k, n]`, passed to an epilogue over `[batch.., m, n]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Matmul<D> {
    /// The sizes of the batch axes, broadcast by strides of zero.
    pub batch: Vec<D>,
    /// The number of rows of the result.
    pub m: D,
    /// The number of columns of the result.
    pub n: D,
    /// The length of the dot products.
    pub k: D,
    /// Over `[batch.., m, k]`.
    pub lhs: Access<D>,
    /// Over `[batch.., k, n]`.
    pub rhs: Access<D>,
    /// What happens to the result.
    pub epilogue: Loop<D>,
}

/// `softmax(query x transposed key * scale + mask) x value`, passed to an epilogue over `[batch.., queries, width]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention<D> {
    /// The sizes of the batch axes (batch and heads), broadcast by strides of zero.
    pub batch: Vec<D>,
    /// The number of queries.
    pub queries: D,
    /// The number of keys.
    pub keys: D,
    /// The length of a query and of a key.
    pub depth: D,
    /// The length of a value.
    pub width: D,
    /// Over `[batch.., queries, depth]`.
    pub query: Access<D>,
    /// Over `[batch.., keys, depth]`.
    pub key: Access<D>,
    /// Over `[batch.., keys, width]`.
    pub value: Access<D>,
    /// Over `[batch.., queries, keys]`: floats are added to the scores, bools keep the scores where they are true.
    pub mask: Option<Access<D>>,
    /// The factor for the scores.
    pub scale: f64,
    /// Whether query `i` attends only to the keys up to `i + keys - queries`.
    pub causal: bool,
    /// With `causal`, how many of these keys, counted from the last, a query attends to; zero for all.
    pub window: usize,
    /// What happens to the result.
    pub epilogue: Loop<D>,
}

/// A convolution over height and width, passed to an epilogue over `[batch, height, width, filters]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv2d<D> {
    /// Batch, height, width and filters of the result.
    pub out: [D; 4],
    /// Height, width and channels of the input.
    pub input_size: [D; 3],
    /// Height and width of the filter.
    pub filter_size: [D; 2],
    /// The distance between neighbouring results along height and width.
    pub stride: [usize; 2],
    /// The distance between neighbouring taps of the filter.
    pub dilation: [usize; 2],
    /// Zeros before the first row and the first column.
    pub padding: [usize; 2],
    /// The number of independent convolutions that channels and filters are divided into.
    pub groups: usize,
    /// Over `[batch, height, width, channels]`, in any memory order.
    pub input: Access<D>,
    /// Over `[height, width, channels / groups, filters]`.
    pub filter: Access<D>,
    /// What happens to the result.
    pub epilogue: Loop<D>,
}

/// Slices picked by index: `out[o, p, i] = source[o, indices[p], i]`. Negative indices count from the end.
#[derive(Clone, Debug, PartialEq)]
pub struct Gather<D> {
    /// The product of the sizes before the axis.
    pub outer: D,
    /// The size of the axis.
    pub size: D,
    /// The number of indices.
    pub picks: D,
    /// The product of the sizes after the axis.
    pub inner: D,
    /// The axis in the user's graph, for messages.
    pub axis: usize,
    /// Over `[outer, size, inner]`.
    pub source: Access<D>,
    /// Over `[picks]`; any integer dtype.
    pub indices: Access<D>,
    /// Over `[outer, picks, inner]`.
    pub out: Access<D>,
}

/// A unit of work that a device launches.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each kind is documented at its type")]
pub enum Kernel<D> {
    Loop(Loop<D>),
    Matmul(Matmul<D>),
    /// Matmuls of one left operand that do not read each other's results: a single launch, whose threads share all of
    /// their work.
    Matmuls(Vec<Matmul<D>>),
    Attention(Attention<D>),
    Conv2d(Conv2d<D>),
    Gather(Gather<D>),
}

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

/// Implements `map`, which replaces sizes in order and stops at the first error.
macro_rules! map_sizes {
    ($($name:ident { $($size:ident),*; $($sizes:ident),*; $($inner:ident),*; $($same:ident),* })*) => {$(
        impl<D> $name<D> {
            /// The same with every size replaced.
            pub fn map<E>(&self, f: &mut dyn FnMut(&D) -> Result<E>) -> Result<$name<E>> {
                Ok($name {
                    $($size: f(&self.$size)?,)*
                    $($sizes: self.$sizes.iter().map(&mut *f).collect::<Result<_>>()?,)*
                    $($inner: self.$inner.map(f)?,)*
                    $($same: self.$same.clone(),)*
                })
            }
        }
    )*};
}

map_sizes! {
    Access { offset; strides; ; slot, dtype }
    Matmul { m, n, k; batch; lhs, rhs, epilogue; }
    Gather { outer, size, picks, inner; ; source, indices, out; axis }
}

impl<D> Instr<D> {
    fn map<E>(&self, f: &mut dyn FnMut(&D) -> Result<E>) -> Result<Instr<E>> {
        Ok(match self {
            Instr::Load(access) => Instr::Load(*access),
            Instr::Index(access) => Instr::Index(*access),
            Instr::Product(dtype) => Instr::Product(*dtype),
            Instr::Literal(literal) => Instr::Literal(*literal),
            Instr::Size(size, dtype) => Instr::Size(f(size)?, *dtype),
            Instr::Apply(op, args) => Instr::Apply(*op, *args),
            Instr::Select(args) => Instr::Select(*args),
            Instr::Cast(arg, dtype) => Instr::Cast(*arg, *dtype),
            Instr::Random(distribution, dtype, args) => Instr::Random(*distribution, *dtype, *args),
            Instr::Reduce(kind, arg) => Instr::Reduce(*kind, *arg),
            Instr::Store(access, arg) => Instr::Store(*access, *arg),
        })
    }
}

impl<D> Loop<D> {
    /// The same with every size replaced.
    pub fn map<E>(&self, f: &mut dyn FnMut(&D) -> Result<E>) -> Result<Loop<E>> {
        Ok(Loop {
            shape: self.shape.iter().map(&mut *f).collect::<Result<_>>()?,
            reduce: self.reduce,
            accesses: self.accesses.iter().map(|access| access.map(f)).collect::<Result<_>>()?,
            code: self.code.iter().map(|instr| instr.map(f)).collect::<Result<_>>()?,
        })
    }

    /// The accesses that are written.
    pub fn stored(&self) -> impl Iterator<Item = &Access<D>> {
        self.code.iter().filter_map(|instr| match instr {
            Instr::Store(access, _) => self.accesses.get(*access as usize),
            _ => None,
        })
    }

    /// The accesses that are read.
    pub fn loaded(&self) -> impl Iterator<Item = &Access<D>> {
        self.code.iter().filter_map(|instr| match instr {
            Instr::Load(access) => self.accesses.get(*access as usize),
            _ => None,
        })
    }
}

impl<D> Attention<D> {
    /// The same with every size replaced.
    pub fn map<E>(&self, f: &mut dyn FnMut(&D) -> Result<E>) -> Result<Attention<E>> {
        Ok(Attention {
            batch: self.batch.iter().map(&mut *f).collect::<Result<_>>()?,
            queries: f(&self.queries)?,
            keys: f(&self.keys)?,
            depth: f(&self.depth)?,
            width: f(&self.width)?,
            query: self.query.map(f)?,
            key: self.key.map(f)?,
            value: self.value.map(f)?,
            mask: self.mask.as_ref().map(|mask| mask.map(f)).transpose()?,
            scale: self.scale,
            causal: self.causal,
            window: self.window,
            epilogue: self.epilogue.map(f)?,
        })
    }
}

fn map_array<D, E, const N: usize>(sizes: &[D; N], f: &mut dyn FnMut(&D) -> Result<E>) -> Result<[E; N]> {
    let mapped = sizes.iter().map(f).collect::<Result<Vec<E>>>()?;
    mapped.try_into().map_err(|_| Error::internal("the length of an array changed"))
}

impl<D> Conv2d<D> {
    /// The same with every size replaced.
    pub fn map<E>(&self, f: &mut dyn FnMut(&D) -> Result<E>) -> Result<Conv2d<E>> {
        Ok(Conv2d {
            out: map_array(&self.out, f)?,
            input_size: map_array(&self.input_size, f)?,
            filter_size: map_array(&self.filter_size, f)?,
            stride: self.stride,
            dilation: self.dilation,
            padding: self.padding,
            groups: self.groups,
            input: self.input.map(f)?,
            filter: self.filter.map(f)?,
            epilogue: self.epilogue.map(f)?,
        })
    }
}

impl<D> Kernel<D> {
    /// The same with every size replaced.
    pub fn map<E>(&self, f: &mut dyn FnMut(&D) -> Result<E>) -> Result<Kernel<E>> {
        Ok(match self {
            Kernel::Loop(k) => Kernel::Loop(k.map(f)?),
            Kernel::Matmul(k) => Kernel::Matmul(k.map(f)?),
            Kernel::Matmuls(all) => Kernel::Matmuls(all.iter().map(|k| k.map(f)).collect::<Result<_>>()?),
            Kernel::Attention(k) => Kernel::Attention(k.map(f)?),
            Kernel::Conv2d(k) => Kernel::Conv2d(k.map(f)?),
            Kernel::Gather(k) => Kernel::Gather(k.map(f)?),
        })
    }

    /// The name of its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Kernel::Loop(_) => "loop",
            Kernel::Matmul(_) | Kernel::Matmuls(_) => "matmul",
            Kernel::Attention(_) => "attention",
            Kernel::Conv2d(_) => "conv2d",
            Kernel::Gather(_) => "gather",
        }
    }

    /// The matmuls that it launches.
    pub fn matmuls(&self) -> &[Matmul<D>] {
        match self {
            Kernel::Matmul(k) => std::slice::from_ref(k),
            Kernel::Matmuls(all) => all,
            _ => &[],
        }
    }

    /// What it reads before its final loops.
    pub fn operands(&self) -> Vec<&Access<D>> {
        match self {
            Kernel::Loop(_) => vec![],
            Kernel::Matmul(_) | Kernel::Matmuls(_) => {
                self.matmuls().iter().flat_map(|k| [&k.lhs, &k.rhs]).collect()
            }
            Kernel::Attention(k) => [&k.query, &k.key, &k.value].into_iter().chain(&k.mask).collect(),
            Kernel::Conv2d(k) => vec![&k.input, &k.filter],
            Kernel::Gather(k) => vec![&k.source, &k.indices],
        }
    }

    /// What it reads, epilogues included.
    pub fn reads(&self) -> Vec<&Access<D>> {
        let mut reads = self.operands();
        reads.extend(self.endings().into_iter().flat_map(Loop::loaded));
        reads
    }

    /// What it writes.
    pub fn writes(&self) -> Vec<&Access<D>> {
        match self {
            Kernel::Gather(k) => vec![&k.out],
            _ => self.endings().into_iter().flat_map(Loop::stored).collect(),
        }
    }

    /// Its final loops: itself or its epilogues.
    pub fn endings(&self) -> Vec<&Loop<D>> {
        match self {
            Kernel::Loop(k) => vec![k],
            Kernel::Matmul(_) | Kernel::Matmuls(_) => self.matmuls().iter().map(|k| &k.epilogue).collect(),
            Kernel::Attention(k) => vec![&k.epilogue],
            Kernel::Conv2d(k) => vec![&k.epilogue],
            Kernel::Gather(_) => vec![],
        }
    }
}

impl Kernel<Dim> {
    /// The kernel for the sizes of one execution.
    pub fn bind(&self, bindings: &Bindings) -> Result<Kernel<i64>> {
        self.map(&mut |dim| dim.evaluate(bindings))
    }
}
