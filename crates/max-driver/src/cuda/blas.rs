//! Matrix products by cuBLASLt.
//!
//! Everything is row-major here: `d = ending(alpha * a x b + beta * c + bias)`, for a batch of them.

use max_core::{DType, Result, bail};

use super::Gpu;
use crate::Stream;

/// How a matrix lies in memory: rows of columns, `[batch, rows, columns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// The type of its elements.
    pub dtype: DType,
    /// Whether columns, not rows, lie without gaps: the elements of a column are neighbours.
    pub transposed: bool,
    /// The distance between rows, or between columns if transposed, in elements.
    pub leading: i64,
    /// The distance between matrices of the batch, in elements; zero repeats.
    pub batch_stride: i64,
    /// What its address is known to be a multiple of, in bytes: a power of two, 256 at most.
    pub alignment: u32,
}

/// In what products are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compute {
    /// Float32; products of float32 are exact to it.
    F32,
    /// Float32, of operands rounded to 19 bits.
    TF32,
    /// Float64.
    F64,
    /// Int32.
    I32,
}

/// What happens to a sum before it is rounded and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// Nothing.
    None,
    /// Zero where it is negative.
    Relu,
    /// Gelu, by its tanh approximation.
    GeluTanh,
}

/// A product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// How many products there are.
    pub batch: i64,
    /// The rows of the result.
    pub m: i64,
    /// The columns of the result.
    pub n: i64,
    /// The length of the sums.
    pub k: i64,
    /// `[m, k]`.
    pub a: Matrix,
    /// `[k, n]`.
    pub b: Matrix,
    /// `[m, n]`: what is added, if anything is. Not transposed.
    pub c: Option<Matrix>,
    /// `[m, n]`, not transposed.
    pub d: Matrix,
    /// In what it is computed.
    pub compute: Compute,
    /// Whether a vector of `n` elements of the type of `d` is added to every row.
    pub bias: bool,
    /// What happens then.
    pub ending: Ending,
}

/// Where the matrices of a product lie.
#[derive(Clone, Copy, Debug)]
pub struct GemmAddresses {
    /// `a`.
    pub a: u64,
    /// `b`.
    pub b: u64,
    /// `c`, if there is one; may be that of `d`.
    pub c: u64,
    /// `d`.
    pub d: u64,
    /// The bias, if there is one, at a multiple of 16.
    pub bias: u64,
    /// As many bytes as the plan wants, at a multiple of 256.
    pub workspace: u64,
}

/// A product for which a way to compute it has been chosen.
#[derive(Clone, Debug)]
pub struct GemmPlan {}

/// The library and its choices, for one GPU.
#[derive(Default)]
pub(crate) struct Blas {}

impl Gpu {
    /// Chooses how to compute a product, once for each; nothing where the library cannot. An error where there is no
    /// library.
    pub fn gemm(&'static self, _gemm: &Gemm) -> Result<Option<GemmPlan>> {
        bail!(not_implemented, "gemm")
    }
}

impl GemmPlan {
    /// The memory it needs while it runs.
    pub fn workspace_bytes(&self) -> usize {
        0
    }

    /// Enqueues it: `alpha` times the product, plus `beta` times `c`.
    ///
    /// # Safety
    ///
    /// The memory is as large as the product says, alive until the work is done, and written by nobody else meanwhile.
    pub unsafe fn run(&self, _stream: &Stream, _at: &GemmAddresses, _alpha: f64, _beta: f64) -> Result<()> {
        bail!(not_implemented, "gemm")
    }
}
