//! Matrix products by cuBLASLt.
//!
//! Everything is row-major here: `d = activation(alpha * a x b + beta * c + bias)`, for a batch of them. The library thinks
//! in columns, so it is asked for the transposed product, `b` times `a`: memory that is rows here is columns there, and
//! a bias along a row here is one along a column there, which is the one it has. `lt` is the library, `column_major` how it sees
//! a product.

mod column_major;
mod lt;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use max_core::{DType, Error, Result, bail};

use self::column_major::{Shapes, Types};
use self::lt::{
    Choice, CublasLt, INVALID_VALUE, MatmulDescription, MatrixLayout, NOT_SUPPORTED, Preferences, matmul,
    prefer, type_number,
};
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
pub enum Activation {
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
    pub activation: Activation,
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

/// A product for which a way to compute it has been chosen. Clones are the same plan.
#[derive(Clone)]
pub struct GemmPlan(Arc<Chosen>);

struct Chosen {
    gpu: &'static Gpu,
    library: &'static CublasLt,
    gemm: Gemm,
    description: MatmulDescription,
    /// The library's first operand is `b`, its second is `a`.
    b: MatrixLayout,
    a: MatrixLayout,
    c: Option<MatrixLayout>,
    d: MatrixLayout,
    choice: Choice,
    /// The address of the bias in the description. It is locked until the product is enqueued.
    bias: Mutex<u64>,
}

/// The library and its choices, for one GPU.
#[derive(Default)]
pub(crate) struct Blas {
    handle: OnceLock<Handle>,
    choices: Mutex<HashMap<Gemm, Option<GemmPlan>>>,
}

struct Handle(lt::Handle);

// SAFETY: a handle may be used by many threads at once.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// How many choices are kept. Then all are forgotten: plans that are in use live on.
const CHOICES: usize = 4096;
/// How many ways the library is asked for: the best comes first, but may turn out not to be one.
const OFFERS: usize = 8;
/// Sums may be cut into parts that are kept in the type of the computation and then added in order. Parts that are
/// rounded to the type of the result, or added in its place, would cost precision.
const REDUCTION_SCHEMES: u32 = 2;
/// What the address of a bias is a multiple of.
const BIAS_ALIGNMENT: u64 = 16;

/// A factor, in the type that the library wants it in.
union Scalar {
    _single: f32,
    _double: f64,
    _integer: i32,
}

impl Gpu {
    /// Chooses how to compute a product, once for each; nothing where the library cannot. An error where there is no
    /// library. The first run of a plan may load code: let it run once before it is recorded in a graph.
    pub fn gemm(&'static self, gemm: &Gemm) -> Result<Option<GemmPlan>> {
        if let Some(known) = self.blas.choices().get(gemm) {
            return Ok(known.clone());
        }
        let plan = self.choose(gemm).map_err(|error| error.context(format!("in the product {gemm:?}")))?;
        let mut choices = self.blas.choices();
        if choices.len() >= CHOICES {
            choices.clear();
        }
        Ok(choices.entry(*gemm).or_insert(plan).clone())
    }

    fn choose(&'static self, gemm: &Gemm) -> Result<Option<GemmPlan>> {
        let library = lt::library()?;
        let Some(types) = Types::of(gemm, self.capability) else { return Ok(None) };
        let Some(shapes) = Shapes::of(gemm) else { return Ok(None) };
        let _entered = self.enter()?;
        let handle = self.blas.handle(library)?;
        let description = types.description(library, gemm)?;
        let layout = |matrix: &Matrix, (shape, leading): ([i64; 2], i64)| {
            let number = type_number(matrix.dtype).unwrap_or(-1);
            MatrixLayout::new(library, number, shape, leading, (shapes.batch, matrix.batch_stride))
        };
        let (b, a) = (layout(&gemm.b, shapes.b)?, layout(&gemm.a, shapes.a)?);
        let d = layout(&gemm.d, shapes.d)?;
        let c = gemm.c.as_ref().zip(shapes.c).map(|(c, shape)| layout(c, shape)).transpose()?;
        let preferences = Preferences::new(library)?;
        preferences.set(prefer::WORKSPACE_BYTES, self.most_workspace())?;
        preferences.set(prefer::REDUCTION_SCHEMES, REDUCTION_SCHEMES)?;
        for (attribute, matrix) in [
            (prefer::ALIGNMENT_OF_A, &gemm.b),
            (prefer::ALIGNMENT_OF_B, &gemm.a),
            (prefer::ALIGNMENT_OF_C, gemm.c.as_ref().unwrap_or(&gemm.d)),
            (prefer::ALIGNMENT_OF_D, &gemm.d),
        ] {
            preferences.set(attribute, matrix.alignment)?;
        }
        let (mut offers, mut count) = ([Choice::NONE; OFFERS], 0);
        let c_layout = c.as_ref().unwrap_or(&d);
        // SAFETY: the descriptors are alive, and there is room for as many results as are wanted.
        let status = unsafe {
            library.cublasLtMatmulAlgoGetHeuristic(
                handle,
                description.handle,
                b.handle,
                a.handle,
                c_layout.handle,
                d.handle,
                preferences.handle,
                OFFERS as c_int,
                offers.as_mut_ptr(),
                &raw mut count,
            )
        };
        // Combinations that it does not have are answered with either.
        if [NOT_SUPPORTED, INVALID_VALUE].contains(&status) {
            return Ok(None);
        }
        library.check(status, "cublasLtMatmulAlgoGetHeuristic")?;
        let offers = offers.iter().take(count.max(0) as usize);
        let choice = offers.copied().find(|offer| offer.state == 0);
        let bias = Mutex::new(BIAS_ALIGNMENT);
        Ok(choice.map(|choice| {
            let (gpu, gemm) = (self, *gemm);
            GemmPlan(Arc::new(Chosen { gpu, library, gemm, description, b, a, c, d, choice, bias }))
        }))
    }

    /// The memory that products may want: what the library advises for the architecture.
    fn most_workspace(&self) -> usize {
        if self.capability.0 >= 9 { 32 << 20 } else { 4 << 20 }
    }
}

impl Blas {
    fn handle(&self, library: &'static CublasLt) -> Result<lt::Handle> {
        if let Some(handle) = self.handle.get() {
            return Ok(handle.0);
        }
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes a handle, of the GPU whose context was entered. It lives as long as the process.
        library.check(unsafe { library.cublasLtCreate(&raw mut handle) }, "cublasLtCreate")?;
        Ok(self.handle.get_or_init(|| Handle(handle)).0)
    }

    fn choices(&self) -> MutexGuard<'_, HashMap<Gemm, Option<GemmPlan>>> {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GemmPlan {
    /// The memory it needs while it runs.
    pub fn workspace_bytes(&self) -> usize {
        self.0.choice.workspace_bytes
    }

    /// Enqueues it: `alpha` times the product, plus `beta` times `c`.
    ///
    /// # Safety
    ///
    /// The memory is as large as the product says, alive until the work is done, and written by nobody else meanwhile.
    pub unsafe fn run(&self, stream: &Stream, at: &GemmAddresses, alpha: f64, beta: f64) -> Result<()> {
        let plan = &*self.0;
        let (gpu, stream) = match stream.cuda() {
            Some((gpu, handle)) if gpu == plan.gpu => (gpu, handle),
            _ => bail!(internal, "a product of {:?} was given {stream:?}", plan.gpu),
        };
        if plan.c.is_none() && beta != 0.0 {
            bail!(internal, "a product to which nothing is added was given the factor {beta}");
        }
        plan.check_alignment(at)?;
        let _entered = gpu.enter()?;
        let handle = gpu.blas.handle(plan.library)?;
        let (alpha, beta) = (plan.scalar(alpha)?, plan.scalar(beta)?);
        let _bias = if plan.gemm.bias { Some(plan.set_bias(at.bias)?) } else { None };
        let (c, c_layout) = plan.c.as_ref().map_or((at.d, &plan.d), |layout| (at.c, layout));
        // SAFETY: the descriptors are alive, the factors are read before the call returns, and the memory is as the
        // caller promises.
        let status = unsafe {
            plan.library.cublasLtMatmul(
                handle,
                plan.description.handle,
                (&raw const alpha).cast::<c_void>(),
                at.b,
                plan.b.handle,
                at.a,
                plan.a.handle,
                (&raw const beta).cast::<c_void>(),
                c,
                c_layout.handle,
                at.d,
                plan.d.handle,
                &raw const plan.choice.algorithm,
                at.workspace,
                plan.choice.workspace_bytes,
                stream,
            )
        };
        if status == 0 { Ok(()) } else { Err(plan.failed(status, at)) }
    }
}

impl Chosen {
    /// A factor in the type that the product wants.
    fn scalar(&self, value: f64) -> Result<Scalar> {
        match self.gemm.compute {
            Compute::F32 | Compute::TF32 => Ok(Scalar { _single: value as f32 }),
            Compute::F64 => Ok(Scalar { _double: value }),
            Compute::I32 if f64::from(value as i32) == value => Ok(Scalar { _integer: value as i32 }),
            Compute::I32 => bail!(internal, "a product of integers was given the factor {value}"),
        }
    }

    /// Whether all memory lies as the plan was told: a kernel that reads across the wrong boundary would take the whole
    /// context with it.
    fn check_alignment(&self, at: &GemmAddresses) -> Result<()> {
        let Gemm { a, b, c, d, bias, .. } = &self.gemm;
        for (name, address, alignment) in [
            ("a", at.a, u64::from(a.alignment)),
            ("b", at.b, u64::from(b.alignment)),
            ("c", at.c, c.map_or(1, |c| c.alignment.into())),
            ("d", at.d, u64::from(d.alignment)),
            ("the bias", at.bias, if *bias { BIAS_ALIGNMENT } else { 1 }),
            ("the workspace", at.workspace, if self.choice.workspace_bytes > 0 { 256 } else { 1 }),
        ] {
            if !address.is_multiple_of(alignment) {
                bail!(
                    internal,
                    "{name} of a product is at {address:#x}, which is no multiple of {alignment}"
                );
            }
        }
        Ok(())
    }

    /// Writes the address of the bias into the description, which is nobody else's until the guard is dropped.
    fn set_bias(&self, address: u64) -> Result<MutexGuard<'_, u64>> {
        let mut bias = self.bias.lock().unwrap_or_else(PoisonError::into_inner);
        if *bias != address {
            self.description.set(matmul::BIAS_POINTER, address)?;
            *bias = address;
        }
        Ok(bias)
    }

    #[cold]
    fn failed(&self, status: c_int, at: &GemmAddresses) -> Error {
        let call = format!("cublasLtMatmul of {:?} at {at:x?}", self.gemm);
        self.library.check(status, &call).err().unwrap_or_else(|| Error::internal(call))
    }
}

impl std::fmt::Debug for GemmPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Gemm { batch, m, n, k, .. } = self.0.gemm;
        write!(f, "GemmPlan({batch} x [{m}, {k}] x [{k}, {n}])")
    }
}

#[cfg(test)]
mod tests;
