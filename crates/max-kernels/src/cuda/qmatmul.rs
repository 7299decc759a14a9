//! Products with quantized weights on a GPU.
//!
//! Few rows are quantized too and multiplied by bytes, in one pass over the weights as they are in memory: up to four rows with
//! several matrices in one launch, which takes as long as reading them (`few.cu`), or more rows on tensor cores (`rows.cu`).
//! For many rows the weights are decoded to bfloat16, a part of the
//! columns at a time, and multiplied like any other matrices. Bfloat16 has the exponents of every format, and rounding to it
//! changes products by less than rounding activations to bytes does.

mod few;
mod rows;
#[cfg(test)]
mod tests;
mod text;

use max_core::kernel::{Access, Instr, Loop, Matmul, Projection, QMatmul, Reg};
use max_core::quantization::Storage;
use max_core::scalar::NumericOp;
use max_core::{DType, Result, bail};
use max_driver::cuda::Source;

use super::epilogue::of_zeros;
use super::matmul::row_major;
use super::{Address, Call, Param, Plan, PlannedLaunch, SCRATCH};
use rows::Quantized;
use text::Decoder;

/// The most rows that are multiplied as bytes: with more, decoding the weights first takes less time.
const MOST_ROWS: i64 = 128;

/// The most elements of decoded weights in memory at a time.
const MOST_DECODED: i64 = 1 << 25;

/// How a product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// There is nothing to compute.
    Nothing,
    /// The depth is zero: the sums are empty.
    Zeros,
    /// By bytes, with the matrices next to it that are stored alike.
    Few(few::Shape),
    /// By bytes.
    Rows,
    /// With weights that are floats as they are.
    Floats,
    /// With weights that are decoded to a dtype.
    Decoded(DType),
}

impl Plan {
    /// Adds products with quantized weights. They share quantized activations.
    pub(super) fn qmatmul(&mut self, k: &QMatmul<i64>) -> Result<()> {
        let gpu = (self.gpu.compute_capability(), self.gpu.shared_bytes());
        let methods =
            k.all.iter().map(|projection| method(k, projection, gpu)).collect::<Result<Vec<_>>>()?;
        let mut quantized = Quantized::default();
        let all: Vec<_> = k.all.iter().zip(methods).collect();
        for alike in all.chunk_by(|(a, of_a), (b, of_b)| a.storage == b.storage && of_a == of_b) {
            if let (_, Method::Few(shape)) = alike[0] {
                self.few_rows(
                    k,
                    &alike.iter().map(|(projection, _)| *projection).collect::<Vec<_>>(),
                    shape,
                )?;
                continue;
            }
            for (projection, method) in alike {
                match *method {
                    Method::Nothing | Method::Few(_) => {}
                    Method::Zeros => self.loop_(&of_zeros(&projection.epilogue))?,
                    Method::Rows => self.quantized_rows(k, projection, &mut quantized)?,
                    Method::Floats => {
                        let Projection { n, codes, epilogue, .. } = projection;
                        self.matmul(&product(k, k.lhs.clone(), codes, *n, epilogue.clone()))?;
                    }
                    Method::Decoded(dtype) => self.decoded(k, projection, dtype)?,
                }
            }
        }
        Ok(())
    }

    /// A product with decoded weights, of as many columns at a time as fit scratch memory.
    fn decoded(&mut self, k: &QMatmul<i64>, projection: &Projection<i64>, dtype: DType) -> Result<()> {
        let lhs = match k.lhs.dtype == dtype {
            true => k.lhs.clone(),
            false => self.copy(&k.lhs, &[&k.batch[..], &[k.m, k.k]].concat(), dtype)?,
        };
        let codes =
            self.contiguous(&projection.codes, &[projection.n, projection.length], projection.storage)?;
        let scales = match &projection.scales {
            Some((length, scales)) => {
                Some(self.contiguous(scales, &[projection.n, *length], projection.storage)?)
            }
            None => None,
        };
        let start = self.scratch;
        let mut most = start;
        for (first, columns) in parts(projection.n, k.k) {
            // The parts are computed one after the other in the same memory.
            (self.scratch, self.workspace) = (start, None);
            let part = |access: &Access<i64>, axis: usize| {
                let mut part = access.clone();
                part.offset += first * part.strides[axis];
                part
            };
            let mut epilogue = projection.epilogue.clone();
            let last = k.batch.len() + 1;
            epilogue.accesses = epilogue.accesses.iter().map(|access| part(access, last)).collect();
            epilogue.shape[last] = columns;
            let weights = Weights {
                storage: projection.storage,
                codes: part(&codes, 0),
                scales: scales.as_ref().map(|scales| part(scales, 0)),
            };
            let weights = self.decode(&weights, columns, k.k, dtype)?;
            if dtype == k.lhs.dtype {
                self.matmul(&product(k, lhs.clone(), &weights, columns, epilogue))?;
            } else {
                let (strides, count) = row_major(&epilogue.shape)?;
                let offset = self.scratch(DType::Float32, count)?;
                let result = Access { slot: SCRATCH, dtype: DType::Float32, offset, strides };
                let code = match dtype {
                    DType::Float32 => vec![Instr::Product(dtype), Instr::Store(0, Reg(0))],
                    _ => vec![
                        Instr::Product(dtype),
                        Instr::Cast(Reg(0), DType::Float32),
                        Instr::Store(0, Reg(1)),
                    ],
                };
                let accesses = vec![result.clone()];
                let store = Loop { shape: epilogue.shape.clone(), reduce: None, accesses, code };
                self.matmul(&product(k, lhs.clone(), &weights, columns, store))?;
                self.epilogue(&epilogue, result)?;
            }
            most = most.max(self.scratch);
        }
        self.scratch = most;
        Ok(())
    }

    /// An operand whose last axis is contiguous: itself, or a copy. Floats are not copied, as loops read them.
    fn contiguous(&mut self, access: &Access<i64>, shape: &[i64], storage: Storage) -> Result<Access<i64>> {
        let is_run = access.strides.last() == Some(&1) || shape.last() == Some(&1);
        match is_run || !storage.is_integers() {
            true => Ok(access.clone()),
            false => self.copy(access, shape, access.dtype),
        }
    }

    /// Decodes rows of weights to contiguous scratch memory.
    fn decode(&mut self, weights: &Weights, n: i64, k: i64, dtype: DType) -> Result<Access<i64>> {
        let (strides, count) = row_major(&[n, k])?;
        let to = Access { slot: SCRATCH, dtype, offset: self.scratch(dtype, count)?, strides };
        if let Storage::Floats { group, .. } = weights.storage {
            self.loop_(&scaled_floats(weights, [n, k], group as i64, &to)?)?;
            return Ok(to);
        }
        let chunks = (n as u64).saturating_mul((k as u64).div_ceil(256));
        let mut params = vec![Param::Address(Address::of(&weights.codes)), weights.scale_address()];
        params.push(Param::Address(Address::of(&to)));
        params.extend([n, k].map(Param::Number));
        params.extend(weights.rows().map(Param::Number));
        self.launches.push(PlannedLaunch::Function(Call {
            source: decoding_source(&Decoder::new(weights.storage)?, dtype),
            grid: [chunks.div_ceil(8).clamp(1, 1 << 20) as u32, 1, 1],
            block: [256, 1, 1],
            shared: 0,
            params,
        }));
        Ok(to)
    }
}

/// A matrix of weights, or several, whose rows are contiguous if they are integers.
struct Weights {
    storage: Storage,
    codes: Access<i64>,
    scales: Option<Access<i64>>,
}

impl Weights {
    fn scale_address(&self) -> Param {
        self.scales.as_ref().map_or(Param::Number(0), |scales| Param::Address(Address::of(scales)))
    }

    /// The distances between rows of codes and of scales, and the number of elements that share a scale and its logarithm.
    fn rows(&self) -> [i64; 4] {
        let row = |access: &Access<i64>| access.strides.iter().rev().nth(1).copied().unwrap_or(0);
        let size = match self.storage {
            Storage::Integers { group, .. } => group.max(1),
            _ => Storage::GROUP,
        };
        let shift = if size.is_power_of_two() { i64::from(size.trailing_zeros()) } else { -1 };
        [row(&self.codes), self.scales.as_ref().map_or(0, row), size as i64, shift]
    }
}

/// Decides how a product is computed on a GPU of a compute capability with some shared memory for each multiprocessor.
fn method(
    k: &QMatmul<i64>,
    projection: &Projection<i64>,
    (capability, shared): ((u32, u32), usize),
) -> Result<Method> {
    check(k, projection)?;
    if projection.epilogue.shape.iter().any(|&size| size <= 0) {
        return Ok(Method::Nothing);
    }
    if k.k <= 0 {
        return Ok(Method::Zeros);
    }
    if k.k > i64::from(i32::MAX) {
        bail!(not_implemented, "products with quantized rows of {} elements on a GPU", k.k);
    }
    let Some(rows) = k.batch.iter().try_fold(k.m, |rows, &size| rows.checked_mul(size)) else {
        bail!(internal, "a product of {:?} x {} rows", k.batch, k.m)
    };
    // Functions have distances inside of a tile, and numbers of columns and elements, as 32-bit integers.
    let small =
        |access: &Access<i64>| access.strides.iter().rev().nth(1).is_none_or(|row| row.abs() < 1 << 25);
    let accesses = [Some(&projection.codes), projection.scales.as_ref().map(|(_, scales)| scales)];
    let is_small = projection.length < 1 << 25 && projection.n < 1 << 30;
    let is_small = is_small && accesses.into_iter().flatten().all(small);
    let bytes = capability >= (8, 0) && is_small;
    match projection.storage {
        Storage::Floats { .. } if k.experts.is_some() => {
            bail!(not_implemented, "products with a {} matrix per group of rows", projection.storage)
        }
        Storage::Floats { dtype, group: 0 } if dtype == k.lhs.dtype => Ok(Method::Floats),
        Storage::Floats { .. } => Ok(Method::Decoded(match k.lhs.dtype {
            DType::BFloat16 => DType::BFloat16,
            _ => DType::Float32,
        })),
        _ if k.experts.is_some() && !bytes => {
            bail!(not_implemented, "products with a quantized matrix per group of rows on this GPU")
        }
        _ if k.experts.is_some() => Ok(Method::Rows),
        _ if bytes && rows <= MOST_ROWS => {
            let few = few::Shape::new(&Decoder::new(projection.storage)?, [rows, k.k], shared);
            Ok(few.map_or(Method::Rows, Method::Few))
        }
        _ => Ok(Method::Decoded(DType::BFloat16)),
    }
}

/// Checks what functions assume: ranks, dtypes, and that rows are as long as their codes say.
fn check(k: &QMatmul<i64>, projection: &Projection<i64>) -> Result<()> {
    let Projection { storage, n, length, codes, scales, epilogue } = projection;
    let (rank, axes) = (k.batch.len() + 2, if k.experts.is_some() { 3 } else { 2 });
    let ranks = k.lhs.strides.len() == rank
        && epilogue.shape.len() == rank
        && epilogue.accesses.iter().all(|access| access.strides.len() == rank)
        && codes.strides.len() == axes
        && scales.as_ref().is_none_or(|(_, scales)| scales.strides.len() == axes)
        && (k.experts.is_none() || rank == 2);
    let dtypes = matches!(k.lhs.dtype, DType::Float32 | DType::Float16 | DType::BFloat16)
        && codes.dtype == storage.dtype()
        && scales.as_ref().map(|(_, scales)| scales.dtype) == storage.scales_dtype();
    let elements = usize::try_from(*length).ok().map(|length| storage.elements(length)).transpose()?;
    let depth = usize::try_from(k.k).ok();
    let lengths = *n >= 0
        && depth == elements
        && scales.as_ref().is_none_or(|(length, _)| Some(*length) == depth.map(|k| storage.scales(k) as i64));
    if !(ranks && dtypes && lengths) {
        bail!(internal, "a product of {:?} by {projection:?} over {:?} x {} x {}", k.lhs, k.batch, k.m, k.k);
    }
    Ok(())
}

/// The columns that are decoded at a time: the first and the number of each part.
fn parts(n: i64, k: i64) -> Vec<(i64, i64)> {
    let columns = n.max(0) as u64;
    let most = (MOST_DECODED / k.max(1)).max(1) as u64;
    // Parts of about the same size, in whole tiles of the product.
    let count = columns.div_ceil(most).max(1);
    let size = columns.div_ceil(count).next_multiple_of(64).min(most.max(64)) as i64;
    let starts = (0..n).step_by(size as usize);
    starts.map(|first| (first, size.min(n - first))).collect()
}

/// A product with weights over `[n, k]` in the dtype of the left operand.
fn product(
    k: &QMatmul<i64>,
    lhs: Access<i64>,
    weights: &Access<i64>,
    n: i64,
    epilogue: Loop<i64>,
) -> Matmul<i64> {
    let turned = [weights.strides[1], weights.strides[0]];
    let rhs = Access { strides: [&vec![0; k.batch.len()][..], &turned].concat(), ..weights.clone() };
    Matmul { batch: k.batch.clone(), m: k.m, n, k: k.k, lhs, rhs, epilogue }
}

/// A loop that converts floats to a dtype and multiplies them by the scales of their groups.
fn scaled_floats(weights: &Weights, [n, k]: [i64; 2], group: i64, to: &Access<i64>) -> Result<Loop<i64>> {
    let group = if group == 0 { k } else { group };
    let split = |access: &Access<i64>, columns: [i64; 2]| Access {
        strides: [access.strides[0], columns[0], columns[1]].to_vec(),
        ..access.clone()
    };
    let Some(wide) = weights.codes.strides[1].checked_mul(group) else {
        bail!(internal, "rows with a stride of {}", weights.codes.strides[1])
    };
    let mut accesses = vec![split(&weights.codes, [wide, weights.codes.strides[1]]), split(to, [group, 1])];
    let mut code = vec![Instr::Load(0)];
    if weights.codes.dtype != DType::Float32 {
        code.push(Instr::Cast(Reg(0), DType::Float32));
    }
    if let Some(scales) = &weights.scales {
        let value = Reg(code.len() as u32 - 1);
        accesses.push(split(scales, [scales.strides[1], 0]));
        code.push(Instr::Load(2));
        code.push(Instr::Apply(NumericOp::Mul.into(), [value, Reg(value.0 + 1)]));
    }
    if to.dtype != DType::Float32 {
        code.push(Instr::Cast(Reg(code.len() as u32 - 1), to.dtype));
    }
    code.push(Instr::Store(1, Reg(code.len() as u32 - 1)));
    Ok(Loop { shape: vec![n, k / group, group], reduce: None, accesses, code })
}

/// The function that decodes weights to a dtype.
fn decoding_source(decoder: &Decoder, dtype: DType) -> Source {
    let name = format!("dequantize_{}_{dtype}", decoder.name);
    decoder.source(&name, &[("OUT", dtype)], &[], include_str!("qmatmul/dequantize.cu"))
}
