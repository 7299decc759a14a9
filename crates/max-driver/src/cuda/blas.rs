//! Matmuls by cuBLASLt.
//!
//! Everything is row-major here: `d = activation(alpha * a x b + beta * c + bias)`, for a batch of matrices, with float8
//! operands maybe scaled. The
//! library is column-major, so it is asked for the transposed result, `b` times `a`: rows in memory are columns to it,
//! and a bias along a row becomes a bias along a column, the only kind it supports. `lt` has the bindings,
//! `column_major` translates a matmul for the library.

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

/// The memory layout of matrices, `[batch, rows, columns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// The type of its elements.
    pub dtype: DType,
    /// Whether columns, not rows, are contiguous.
    pub transposed: bool,
    /// The distance between rows, or between columns if transposed, in elements.
    pub leading: i64,
    /// The distance between matrices of the batch, in elements; zero repeats one matrix.
    pub batch_stride: i64,
    /// The known alignment of its address in bytes: a power of two, 256 at most.
    pub alignment: u32,
}

/// The type that a matmul accumulates in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compute {
    /// Float32, without rounding float32 operands.
    F32,
    /// Float32, with operands rounded to 19 bits.
    TF32,
    /// Float64.
    F64,
    /// Int32.
    I32,
}

/// The function applied to a sum before it is rounded and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Nothing.
    None,
    /// Relu: zero where it is negative.
    Relu,
    /// Gelu, by its tanh approximation.
    GeluTanh,
}

/// The float32 factors of float8 operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scaling {
    /// There are none.
    None,
    /// One of each operand; an address of zero stands for a factor of one.
    Whole,
    /// One of each row of `a`, and one of each column of `b`.
    Vectors,
}

/// A matmul.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// The number of matrices in the batch.
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
    /// `[m, n]`: the matrices to add, if any. Not transposed.
    pub c: Option<Matrix>,
    /// `[m, n]`, not transposed.
    pub d: Matrix,
    /// The type that it accumulates in.
    pub compute: Compute,
    /// Whether a vector of `n` elements of the type of `d` is added to every row.
    pub bias: bool,
    /// The function applied last.
    pub activation: Activation,
    /// The factors of the operands.
    pub scaling: Scaling,
}

/// The addresses of the matrices of a matmul.
#[derive(Clone, Copy, Debug)]
pub struct GemmAddresses {
    /// `a`.
    pub a: u64,
    /// `b`.
    pub b: u64,
    /// `c`, if there is one; may equal `d`.
    pub c: u64,
    /// `d`.
    pub d: u64,
    /// The bias, if there is one; a multiple of 16.
    pub bias: u64,
    /// The factors of `a` and of `b`, where there are any.
    pub scales: [u64; 2],
    /// At least [`GemmPlan::workspace_bytes`] bytes; a multiple of 256.
    pub workspace: u64,
}

/// A matmul and the algorithm chosen for it. Clones share one plan.
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
    /// The addresses of the bias and of the factors in the description. They are locked until the matmul is enqueued.
    pointers: Mutex<Pointers>,
}

/// Addresses in a description.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Pointers {
    bias: u64,
    scales: [u64; 2],
}

/// The library's handle and the plans made so far, for one GPU.
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

/// How many plans are cached. Beyond that the cache is cleared; plans in use stay alive.
const CHOICES: usize = 4096;
/// How many algorithms the library is asked for: the best comes first, but may turn out to be unusable.
const OFFERS: usize = 8;
/// Split-K is allowed only with partial sums in the compute type that are added in order. Partial sums rounded to the
/// result's type, or accumulated in place, would cost precision.
const REDUCTION_SCHEMES: u32 = 2;
/// The alignment of the address of a bias.
const BIAS_ALIGNMENT: u64 = 16;

/// A factor in the library's scale type.
union Scalar {
    _single: f32,
    _double: f64,
    _integer: i32,
}

impl Gpu {
    /// Plans a matmul, once for each distinct one; `None` if the library does not support it, an error if there is no
    /// library. The first run of a plan may load code: run it once before recording it in a graph.
    pub fn gemm(&'static self, gemm: &Gemm) -> Result<Option<GemmPlan>> {
        if let Some(known) = self.blas.choices().get(gemm) {
            return Ok(known.clone());
        }
        let plan = self.choose(gemm).map_err(|error| error.context(format!("in the matmul {gemm:?}")))?;
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
        let Some(description) = types.description(library, gemm)? else { return Ok(None) };
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
        // SAFETY: the descriptors are alive, and there is room for `OFFERS` results.
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
        // Either status means an unsupported combination.
        if [NOT_SUPPORTED, INVALID_VALUE].contains(&status) {
            return Ok(None);
        }
        library.check(status, "cublasLtMatmulAlgoGetHeuristic")?;
        let offers = offers.iter().take(count.max(0) as usize);
        let choice = offers.copied().find(|offer| offer.state == 0);
        let pointers = Mutex::new(Pointers { bias: BIAS_ALIGNMENT, scales: [BIAS_ALIGNMENT; 2] });
        Ok(choice.map(|choice| {
            let (gpu, gemm) = (self, *gemm);
            GemmPlan(Arc::new(Chosen { gpu, library, gemm, description, b, a, c, d, choice, pointers }))
        }))
    }

    /// The largest workspace of a matmul: the library's advice for the architecture.
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
        // SAFETY: writes a handle for the GPU whose context was entered. It lives as long as the process.
        library.check(unsafe { library.cublasLtCreate(&raw mut handle) }, "cublasLtCreate")?;
        Ok(self.handle.get_or_init(|| Handle(handle)).0)
    }

    fn choices(&self) -> MutexGuard<'_, HashMap<Gemm, Option<GemmPlan>>> {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GemmPlan {
    /// The workspace it needs while it runs.
    pub fn workspace_bytes(&self) -> usize {
        self.0.choice.workspace_bytes
    }

    /// Enqueues it, with `alpha` scaling the matmul and `beta` scaling `c`.
    ///
    /// # Safety
    ///
    /// The memory is as large as the [`Gemm`] says, stays alive until the work is done, and nothing else writes it
    /// meanwhile.
    pub unsafe fn run(&self, stream: &Stream, at: &GemmAddresses, alpha: f64, beta: f64) -> Result<()> {
        let plan = &*self.0;
        let (gpu, stream) = match stream.cuda() {
            Some((gpu, handle)) if gpu == plan.gpu => (gpu, handle),
            _ => bail!(internal, "a matmul on {:?} was given {stream:?}", plan.gpu),
        };
        if plan.c.is_none() && beta != 0.0 {
            bail!(internal, "a matmul without c was given beta = {beta}");
        }
        plan.check_alignment(at)?;
        let _entered = gpu.enter()?;
        let handle = gpu.blas.handle(plan.library)?;
        let (alpha, beta) = (plan.scalar(alpha)?, plan.scalar(beta)?);
        let _pointers = plan.set_pointers(at)?;
        let (c, c_layout) = plan.c.as_ref().map_or((at.d, &plan.d), |layout| (at.c, layout));
        // SAFETY: the descriptors are alive, the factors are read before the call returns, and the caller guarantees
        // the memory.
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
    /// A factor in the type that the matmul takes.
    fn scalar(&self, value: f64) -> Result<Scalar> {
        match self.gemm.compute {
            Compute::F32 | Compute::TF32 => Ok(Scalar { _single: value as f32 }),
            Compute::F64 => Ok(Scalar { _double: value }),
            Compute::I32 if f64::from(value as i32) == value => Ok(Scalar { _integer: value as i32 }),
            Compute::I32 => bail!(internal, "a matmul of integers was given the factor {value}"),
        }
    }

    /// Checks the alignment that was planned for: a misaligned read in a kernel would destroy the whole context.
    fn check_alignment(&self, at: &GemmAddresses) -> Result<()> {
        let Gemm { a, b, c, d, bias, scaling, .. } = &self.gemm;
        let scales = if *scaling == Scaling::None { 1 } else { size_of::<f32>() as u64 };
        for (name, address, alignment) in [
            ("a", at.a, u64::from(a.alignment)),
            ("b", at.b, u64::from(b.alignment)),
            ("c", at.c, c.map_or(1, |c| c.alignment.into())),
            ("d", at.d, u64::from(d.alignment)),
            ("the bias", at.bias, if *bias { BIAS_ALIGNMENT } else { 1 }),
            ("the factors of a", at.scales[0], scales),
            ("the factors of b", at.scales[1], scales),
            ("the workspace", at.workspace, if self.choice.workspace_bytes > 0 { 256 } else { 1 }),
        ] {
            if !address.is_multiple_of(alignment) {
                bail!(
                    internal,
                    "{name} of a matmul is at {address:#x}, which is not a multiple of {alignment}"
                );
            }
        }
        Ok(())
    }

    /// Writes the addresses of the bias and the factors, if there are any, into the description, which no other thread uses
    /// until the guard is dropped.
    fn set_pointers(&self, at: &GemmAddresses) -> Result<Option<MutexGuard<'_, Pointers>>> {
        let Gemm { bias, scaling, .. } = self.gemm;
        let is_scaled = scaling != Scaling::None;
        if !bias && !is_scaled {
            return Ok(None);
        }
        let mut pointers = self.pointers.lock().unwrap_or_else(PoisonError::into_inner);
        if bias && pointers.bias != at.bias {
            self.description.set(matmul::BIAS_POINTER, at.bias)?;
            pointers.bias = at.bias;
        }
        if is_scaled && pointers.scales != at.scales {
            // The library's first operand is `b`.
            self.description.set(matmul::SCALES_OF_A, at.scales[1])?;
            self.description.set(matmul::SCALES_OF_B, at.scales[0])?;
            pointers.scales = at.scales;
        }
        Ok(Some(pointers))
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
