//! A matmul in the library's terms: types by number, matrices column-major.

use std::ffi::c_int;

use max_core::{DType, Result};

use super::lt::{CublasLt, MatmulDescription, SCALE_BY_VECTOR, compute, epilogue, matmul, type_number};
use super::{Activation, BIAS_ALIGNMENT, Compute, Gemm, Matrix, Scaling};

/// The library's compute type for a matmul, and the type of its factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Types {
    pub(super) compute: i32,
    pub(super) scale: DType,
}

impl Types {
    /// The types of a matmul, if the library supports it on a GPU of this compute capability.
    pub(super) fn of(gemm: &Gemm, capability: (u32, u32)) -> Option<Types> {
        use DType::{Float32, Float64, Int8, Int32};
        let (a, b, d) = (gemm.a.dtype, gemm.b.dtype, gemm.d.dtype);
        if gemm.c.is_some_and(|c| c.dtype != d) {
            return None;
        }
        let float8 = |dtype: DType| matches!(dtype, DType::Float8E4M3FN | DType::Float8E5M2);
        let possible = match gemm.compute {
            Compute::F64 => [a, b, d] == [Float64; 3],
            Compute::I32 => [a, b, d] == [Int8, Int8, Int32],
            Compute::F32 | Compute::TF32 if float8(a) && float8(b) => {
                // Both operands must be contiguous along k, and a float32 bias is not supported.
                let along = gemm.b.transposed && !gemm.a.transposed;
                capability >= (8, 9) && along && (d.is_half() || (d == Float32 && !gemm.bias))
            }
            Compute::F32 | Compute::TF32 => {
                a == b && (a.is_half() || a == Float32) && (d == a || d == Float32)
            }
        };
        // Vectors of factors are for one matrix.
        let scalable = match gemm.scaling {
            Scaling::None => true,
            Scaling::Whole => float8(a) && float8(b),
            Scaling::Vectors => float8(a) && float8(b) && gemm.batch == 1 && capability >= (9, 0),
        };
        let types = match gemm.compute {
            Compute::F64 => Types { compute: compute::F64, scale: Float64 },
            Compute::I32 => Types { compute: compute::I32, scale: Int32 },
            Compute::TF32 if a == Float32 => Types { compute: compute::F32_BY_TF32, scale: Float32 },
            Compute::F32 | Compute::TF32 => Types { compute: compute::F32, scale: Float32 },
        };
        // The library's gelu only has float32 precision.
        let exact = gemm.activation != Activation::GeluTanh || gemm.compute != Compute::F64;
        (possible && exact && scalable).then_some(types)
    }

    /// The description of a matmul; `None` if this version of the library knows no such scales.
    pub(super) fn description(
        self,
        library: &'static CublasLt,
        gemm: &Gemm,
    ) -> Result<Option<MatmulDescription>> {
        let scale = type_number(self.scale).unwrap_or(-1);
        let description = MatmulDescription::new(library, self.compute, scale)?;
        description.set(matmul::TRANSPOSE_A, c_int::from(gemm.b.transposed))?;
        description.set(matmul::TRANSPOSE_B, c_int::from(gemm.a.transposed))?;
        let (bias, activation) = (if gemm.bias { epilogue::BIAS } else { 0 }, gemm.activation);
        description.set(
            matmul::EPILOGUE,
            match (bias, activation) {
                (0, Activation::None) => epilogue::NOTHING,
                (_, Activation::None) => bias,
                (_, Activation::Relu) => bias | epilogue::RELU,
                (_, Activation::GeluTanh) => bias | epilogue::GELU,
            },
        )?;
        if gemm.bias {
            // While choosing an algorithm, the library only looks at the alignment of the address.
            description.set(matmul::BIAS_POINTER, BIAS_ALIGNMENT)?;
        }
        if gemm.scaling == Scaling::Vectors {
            for attribute in [matmul::SCALE_MODE_OF_A, matmul::SCALE_MODE_OF_B] {
                if description.set(attribute, SCALE_BY_VECTOR).is_err() {
                    return Ok(None);
                }
            }
        }
        if gemm.scaling != Scaling::None {
            description.set(matmul::SCALES_OF_A, BIAS_ALIGNMENT)?;
            description.set(matmul::SCALES_OF_B, BIAS_ALIGNMENT)?;
        }
        Ok(Some(description))
    }
}

/// The matrices in column-major terms: rows, columns and the distance between columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shapes {
    pub(super) batch: i32,
    pub(super) b: ([i64; 2], i64),
    pub(super) a: ([i64; 2], i64),
    pub(super) c: Option<([i64; 2], i64)>,
    pub(super) d: ([i64; 2], i64),
}

impl Shapes {
    /// The shapes of a matmul, unless it is empty or the library cannot describe its memory.
    pub(super) fn of(gemm: &Gemm) -> Option<Shapes> {
        let (m, n, k) = (gemm.m, gemm.n, gemm.k);
        let known = |matrix: &Matrix| {
            matrix.alignment.is_power_of_two()
                && matrix.alignment <= 256
                && matrix.alignment as usize >= matrix.dtype.align()
                && matrix.batch_stride >= 0
        };
        let matrices = [Some(gemm.a), Some(gemm.b), gemm.c, Some(gemm.d)];
        let results = [gemm.c, Some(gemm.d)];
        if m <= 0
            || n <= 0
            || k <= 0
            || !matrices.iter().flatten().all(known)
            || results.iter().flatten().any(|matrix| matrix.transposed)
        {
            return None;
        }
        Some(Shapes {
            batch: i32::try_from(gemm.batch).ok().filter(|&batch| batch > 0)?,
            b: column_major(&gemm.b, [k, n])?,
            a: column_major(&gemm.a, [m, k])?,
            c: match &gemm.c {
                Some(c) => Some(column_major(c, [m, n])?),
                None => None,
            },
            d: column_major(&gemm.d, [m, n])?,
        })
    }
}

/// The same memory as a column-major matrix: a contiguous row here, or column if it is transposed, is a column there.
/// `None` if those overlap.
fn column_major(matrix: &Matrix, [rows, columns]: [i64; 2]) -> Option<([i64; 2], i64)> {
    let (length, count) = if matrix.transposed { (rows, columns) } else { (columns, rows) };
    // The distance is meaningless for a single column, but the library checks it.
    let leading = if count == 1 { matrix.leading.max(length) } else { matrix.leading };
    (leading >= length).then_some(([length, count], leading))
}
