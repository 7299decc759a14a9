//! Decides how a matmul is computed.

use max_core::kernel::{Access, Matmul};
use max_core::{DType, Result, bail};
use max_driver::cuda::{Compute, Gemm, Matrix, Scaling};

use super::fused::{self, FusedEpilogue};
use super::shape::{is_aligned, is_one_axis, matrix, slices, transposed};
use super::thin::{RightLayout, thin_layout};

/// The most matmuls that one with several batch axes is split into.
const SLICES: i64 = 4;

/// How a matmul is computed.
#[derive(Debug, PartialEq)]
pub(super) enum MatmulMethod {
    /// There is nothing to compute.
    Nothing,
    /// The depth is zero: the sums are empty.
    Zeros,
    /// As other matmuls.
    Others(Vec<Matmul<i64>>),
    /// With copies of the left operand, the right one, or both.
    Copies([bool; 2]),
    /// With copies of both operands in a wider dtype.
    Widened,
    /// Into scratch memory, with a loop after it.
    Scratch,
    /// By our own function, stored without an epilogue.
    Own(Access<i64>),
    /// By our function for few rows, with any epilogue.
    Thin(RightLayout),
    /// By the library.
    Library(Box<LibraryGemm>),
}

/// A matmul by the library.
#[derive(Debug, PartialEq)]
pub(super) struct LibraryGemm {
    pub(super) gemm: Gemm,
    pub(super) scales: [Option<Access<i64>>; 2],
    pub(super) bias: Option<Access<i64>>,
    pub(super) residual: Option<Access<i64>>,
    pub(super) store: Access<i64>,
}

/// Decides for a simplified matmul.
pub(super) fn decide(k: &Matmul<i64>) -> Result<MatmulMethod> {
    if k.epilogue.shape.iter().any(|&size| size <= 0) {
        return Ok(MatmulMethod::Nothing);
    }
    if k.k <= 0 {
        return Ok(MatmulMethod::Zeros);
    }
    if let Some(layout) = thin_layout(k)? {
        return Ok(MatmulMethod::Thin(layout));
    }
    let swapped = transposed(k);
    if k.m > k.n && thin_layout(&swapped)?.is_some() {
        return Ok(MatmulMethod::Others(vec![swapped]));
    }
    let Some(fused) = fused::read(&k.epilogue) else { return Ok(MatmulMethod::Scratch) };
    let dtype = k.lhs.dtype;
    if !dtype.is_float() {
        return match several_axes(k) {
            _ if !fused.is_store() => Ok(MatmulMethod::Scratch),
            Some(method) => Ok(method),
            None => Ok(MatmulMethod::Own(fused.store)),
        };
    }
    let scaling = if dtype.is_small_float() {
        let wide = fused.store.dtype == DType::Float32 || fused.store.dtype.is_half();
        match scaling(k, &fused) {
            Some(scaling) if fused.is_scaled_store() && wide => scaling,
            _ => return Ok(MatmulMethod::Scratch),
        }
    } else if fused.is_scaled() || fused.is_rounded {
        return Ok(MatmulMethod::Scratch);
    } else {
        Scaling::None
    };
    let Some(result) = ResultLayout::new(k, &fused) else {
        let fused = fused::read(&swapped.epilogue);
        let can = fused.is_some_and(|fused| ResultLayout::new(&swapped, &fused).is_some());
        return Ok(if can { MatmulMethod::Others(vec![swapped]) } else { MatmulMethod::Scratch });
    };
    if let Some(method) = several_axes(k) {
        return Ok(method);
    }
    let operands = [matrix(&k.lhs, [k.m, k.k]), matrix(&k.rhs, [k.k, k.n])];
    let [Some(a), Some(b)] = operands else {
        return Ok(MatmulMethod::Copies(operands.map(|operand| operand.is_none())));
    };
    if dtype.is_small_float() && !multiplies_float8(k, &a, &b) {
        return Ok(MatmulMethod::Widened);
    }
    let compute = match dtype {
        DType::Float64 => Compute::F64,
        _ if dtype.is_float() => Compute::F32,
        _ => bail!(internal, "the library was asked for a matmul of {dtype}"),
    };
    let gemm = Gemm {
        batch: k.batch.first().copied().unwrap_or(1),
        m: k.m,
        n: k.n,
        k: k.k,
        a,
        b,
        c: result.residual,
        d: result.store,
        compute,
        bias: fused.bias.is_some(),
        activation: fused.activation,
        scaling,
    };
    let FusedEpilogue { scales, bias, residual, store, .. } = fused;
    Ok(MatmulMethod::Library(Box::new(LibraryGemm { gemm, scales, bias, residual, store })))
}

/// The layouts of the residual and the result, as the library takes them.
struct ResultLayout {
    residual: Option<Matrix>,
    store: Matrix,
}

impl ResultLayout {
    /// `None` if the library does not support them.
    fn new(k: &Matmul<i64>, fused: &FusedEpilogue) -> Option<ResultLayout> {
        let rows = |access| matrix(access, [k.m, k.n]).filter(|matrix| !matrix.transposed);
        let residual = match &fused.residual {
            Some(access) => Some(rows(access)?),
            None => None,
        };
        let aligned = fused.bias.as_ref().is_none_or(is_aligned);
        aligned.then_some(())?;
        Some(ResultLayout { residual, store: rows(&fused.store)? })
    }
}

/// How to compute a matmul with several batch axes, which the library does not support; `None` if there are fewer.
fn several_axes(k: &Matmul<i64>) -> Option<MatmulMethod> {
    let (smallest, largest) = (k.batch.iter().min()?, k.batch.iter().max()?);
    if k.batch.len() < 2 {
        return None;
    }
    let count = k.batch.iter().try_fold(1i64, |count, &size| count.checked_mul(size));
    if count.is_some_and(|count| count / largest <= SLICES) {
        let axis = k.batch.iter().position(|size| size == smallest)?;
        return Some(MatmulMethod::Others(slices(k, axis)));
    }
    if !k.epilogue.accesses.iter().all(|access| is_one_axis(access, &k.batch)) {
        return Some(MatmulMethod::Scratch);
    }
    Some(MatmulMethod::Copies([&k.lhs, &k.rhs].map(|operand| !is_one_axis(operand, &k.batch))))
}

/// How the library scales operands: each as a whole, or each of the rows of one and the columns of the other. `None` if it
/// does not support it.
fn scaling(k: &Matmul<i64>, fused: &FusedEpilogue) -> Option<Scaling> {
    if !fused.is_scaled() {
        return Some(Scaling::None);
    }
    let shape = &k.epilogue.shape;
    let all = |scale: &Access<i64>| fused::repeats(scale, shape) == Some([true; 2]);
    if fused.scales.iter().flatten().all(all) {
        return Some(Scaling::Whole);
    }
    let [Some(rows), Some(columns)] = &fused.scales else { return None };
    // The library reads vectors without gaps, of one matrix only.
    let last = shape.len() - 1;
    let packed = |scale: &Access<i64>, axis: usize| scale.strides[axis] == 1 && is_aligned(scale);
    (last == 1 && packed(rows, 0) && packed(columns, 1)).then_some(Scaling::Vectors)
}

/// Whether the library may support float8 operands of this layout: contiguous along k, in whole vectors.
fn multiplies_float8(k: &Matmul<i64>, a: &Matrix, b: &Matrix) -> bool {
    let known = |dtype| matches!(dtype, DType::Float8E4M3FN | DType::Float8E5M2);
    let whole = |matrix: &Matrix| matrix.leading % 16 == 0 && matrix.batch_stride % 16 == 0;
    let known = known(a.dtype) && known(b.dtype) && [a.dtype, b.dtype].contains(&DType::Float8E4M3FN);
    let along = !a.transposed && b.transposed;
    known && along && whole(a) && whole(b) && k.k % 16 == 0 && k.n % 16 == 0
}
