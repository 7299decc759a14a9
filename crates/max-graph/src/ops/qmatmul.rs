//! Products with quantized weights, of one matrix or of one per group of rows.

use std::ops::Range;

use max_core::quantization::{Storage, round_activations};
use max_core::{
    DType, Dim, Element, QuantizationConfig, QuantizationEncoding, Result, Shape, TensorType, Type, bail,
    dispatch,
};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::{HostTensor, allocate, byte_count};
use crate::op::{Operation, Run};
use crate::operand::{Operand, Operands};
use crate::ops::all_tensors;
use crate::ops::gather::gather;
use crate::ops::permute::transpose;
use crate::ops::rebind::assert_dim;
use crate::ops::reshape::{squeeze, unsqueeze};
use crate::ops::slice::part;
use crate::properties::{Effects, Form, Properties, Signature};
use crate::registry::{Arg, op_fns};
use crate::value::{TensorValue, Value};

op_struct! {
    /// `[.., k] x [n, k]^T -> [.., n]` with the rows of the right operand stored as codes and scales. If it is grouped, there
    /// are many matrices, and each group of consecutive rows is multiplied by one of them.
    QMatmul = "qmatmul" { storage: Storage, grouped: bool }
}

op_fns! {
    /// The product of a float tensor and the transposed of a quantized matrix, whose rows are encoded.
    ///
    /// The matrix has uint8: rows of blocks for the encodings of GGUF files, or for GPTQ the transposed rows, codes followed by
    /// a float16 scale per group, `[k * bits / 8 + 2 * k / group_size, n]`. A second tensor has the exponents of MXFP4, if these
    /// are apart, or the order of columns of GPTQ: column `i` of the weights belongs to column `rhs[1][i]` of `lhs`.
    pub fn qmatmul(
        encoding: QuantizationEncoding, config: Option<QuantizationConfig>, lhs: Operand, rhs: Operands,
    ) -> TensorValue {
        let lhs = lhs.tensor()?;
        let rhs = rhs.into_values()?.iter().map(Value::tensor).collect::<Result<Vec<_>>>()?;
        let (rhs, aux) = match &rhs[..] {
            [rhs] => (rhs, None),
            [rhs, aux] => (rhs, Some(Operand::from(aux))),
            other => bail!(value, "a quantized matrix is one tensor or two, not {}", other.len()),
        };
        if rhs.rank() != 2 {
            bail!(type_, "Right-hand side must be a matrix, but got {} of rank {}", rhs.shape(), rhs.rank());
        }
        match (encoding, aux) {
            (QuantizationEncoding::GPTQ, order) => {
                let Some(config) = config else {
                    bail!(value, "GPTQ needs a QuantizationConfig with its number of bits and its group size");
                };
                let (k, storage) = integers(&lhs, rhs, &config)?;
                let codes = Dim::Static(k / 8 * i64::from(config.bits));
                let lhs = match order {
                    Some(order) => gather(lhs, order, -1)?,
                    None if config.desc_act => {
                        bail!(value, "GPTQ weights with desc_act need the order of their columns as a second tensor")
                    }
                    None => lhs,
                };
                let scales = transpose(&part(rhs, 0, Some(codes.clone()), None)?, 0, 1)?;
                let codes = transpose(&part(rhs, 0, None, Some(codes))?, 0, 1)?;
                quantized_matmul(lhs, codes, storage, Operand::from(scales), None, None)
            }
            (QuantizationEncoding::MXFP4, Some(scales)) => {
                quantized_matmul(lhs, rhs, Storage::Float4, scales, None, None)
            }
            (encoding, None) => quantized_matmul(lhs, rhs, Storage::Blocks(encoding), None, None, None),
            (encoding, Some(_)) => {
                bail!(value, "a {} matrix is one tensor, but there are two", encoding.name())
            }
        }
    }

    /// The product of a float tensor and the transposed of a matrix whose rows are stored as codes, with scales in another
    /// tensor if the storage has them apart.
    ///
    /// Unless the weights are floats, the float tensor is quantized too, to signed bytes with a scale for each 32 elements.
    ///
    /// With `starts` and `ids` there are many matrices, `[experts, n, ..]`: the rows of `lhs` from `starts[i]` to
    /// `starts[i + 1]` are multiplied by matrix `ids[i]`. Other rows, and those of a negative id, give zeros.
    pub fn quantized_matmul(
        lhs: Operand, codes: Operand, storage: Storage, scales: Option<Operand> = Arg::None,
        starts: Option<Operand> = Arg::None, ids: Option<Operand> = Arg::None,
    ) -> TensorValue {
        let (mut lhs, codes) = (lhs.tensor()?, codes.tensor()?);
        if let Some(length) = codes.shape().last().and_then(Dim::as_static) {
            let k = storage.elements(usize::try_from(length).unwrap_or(0))?;
            if let Some(axis) = lhs.rank().checked_sub(1) {
                lhs = assert_dim(lhs, axis, Dim::Static(k as i64), "the depth of the weights of a qmatmul")?;
            }
        }
        let grouped = match (&starts, &ids) {
            (Some(_), Some(_)) => true,
            (None, None) => false,
            _ => bail!(value, "groups of rows need both their starts and the numbers of their matrices"),
        };
        let rest = [scales, starts, ids].into_iter().flatten().map(|operand| operand.tensor());
        let mut operands = [Ok(lhs), Ok(codes)].into_iter().chain(rest).collect::<Result<Vec<_>>>()?;
        let is_row = operands[0].rank() == 1 && !grouped;
        if is_row {
            operands[0] = unsqueeze(&operands[0], 0)?;
        }
        let product = record_one(QMatmul { storage, grouped }, &operands)?;
        if is_row { squeeze(&product, 0) } else { Ok(product) }
    }
}

/// The depth of a GPTQ matrix for a left operand, and how it is stored.
fn integers(lhs: &TensorValue, rhs: &TensorValue, config: &QuantizationConfig) -> Result<(i64, Storage)> {
    let (bits, group_size) = (i64::from(config.bits), config.group_size);
    if bits != 4 && bits != 8 {
        bail!(value, "GPTQ has codes of 4 or 8 bits here, not of {bits}");
    }
    let Some(rows) = rhs.shape()[0].as_static() else {
        bail!(value, "the number of bytes of a GPTQ matrix must be static; it is {}", rhs.shape()[0]);
    };
    // A row of k elements has k * bits / 8 bytes of codes and 2 bytes per group.
    let depth = match group_size {
        -1 => rows.checked_sub(2).filter(|&codes| codes >= 0).map(|codes| codes / bits * 8),
        1.. => group_size.checked_mul(bits).and_then(|codes| {
            let group = codes.checked_div(8)?.checked_add(2)?;
            (codes % 8 == 0 && rows % group == 0).then_some(rows / group * group_size)
        }),
        _ => None,
    };
    let group = if group_size == -1 { depth } else { Some(group_size) };
    match (depth, group.and_then(|group| usize::try_from(group).ok())) {
        (Some(depth), Some(group)) if depth > 0 && group % Storage::GROUP == 0 => {
            Ok((depth, Storage::Integers { bits: bits as u32, group }))
        }
        _ => bail!(
            value,
            "GPTQ weights of shape {} for an input of shape {} have no whole number of groups: each of {group_size} elements \
             (a multiple of {}, or -1 for one group) has {bits} bits per element and a float16 scale",
            rhs.shape(),
            lhs.shape(),
            Storage::GROUP
        ),
    }
}

impl QMatmul {
    /// The operands by their roles: the left one, the codes, the scales, and the starts and matrices of groups.
    pub fn roles<'a, T>(&self, operands: &'a [T]) -> Result<Roles<'a, T>> {
        let scales = usize::from(self.storage.scales_dtype().is_some());
        let count = 2 + scales + 2 * usize::from(self.grouped);
        if operands.len() != count {
            bail!(
                value,
                "a product with {} weights has {count} operands, not {}",
                self.storage,
                operands.len()
            );
        }
        Ok(Roles {
            lhs: &operands[0],
            codes: &operands[1],
            scales: (scales > 0).then(|| &operands[2]),
            groups: self.grouped.then(|| [&operands[count - 2], &operands[count - 1]]),
        })
    }
}

/// The operands of a [`QMatmul`].
#[derive(Debug)]
pub struct Roles<'a, T> {
    /// The left operand.
    pub lhs: &'a T,
    /// The codes of the right one.
    pub codes: &'a T,
    /// Their scales, if these are apart.
    pub scales: Option<&'a T>,
    /// Where groups of rows start, and which matrix each is multiplied by.
    pub groups: Option<[&'a T; 2]>,
}

impl Operation for QMatmul {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let operands = all_tensors(operands)?;
        let Roles { lhs, codes, scales, groups } = self.roles(&operands)?;
        if let Some(other) = operands.iter().find(|operand| operand.device != lhs.device) {
            bail!(value, "Input values must be on the same device; got {} and {}", lhs.device, other.device);
        }
        if !matches!(lhs.dtype, DType::Float32 | DType::Float16 | DType::BFloat16) {
            bail!(
                type_,
                "Left-hand side must be float32, float16 or bfloat16, but got {} {}",
                lhs.dtype,
                lhs.shape
            );
        }
        let check = |name: &str, tensor: &TensorType, dtype: DType| {
            if tensor.dtype != dtype {
                bail!(
                    type_,
                    "the {name} of {} weights must be {dtype}, but got {}",
                    self.storage,
                    tensor.dtype
                );
            }
            Ok(())
        };
        check("codes", codes, self.storage.dtype())?;
        let rank = if self.grouped { 3 } else { 2 };
        let ([outer @ .., k], true) = (&lhs.shape[..], lhs.shape.rank() > 1 && codes.shape.rank() == rank)
        else {
            bail!(
                value,
                "qmatmul takes an input of rank 2 or more and weights of rank {rank}; got {} and {}",
                lhs.shape,
                codes.shape
            );
        };
        let [experts @ .., n, length] = &codes.shape[..] else { bail!(internal, "a matrix without axes") };
        let Some(length) = length.as_static().and_then(|length| usize::try_from(length).ok()) else {
            bail!(value, "the rows of quantized weights must have a static length, but got {}", codes.shape);
        };
        let depth = self.storage.elements(length)?;
        if *k != Dim::Static(depth as i64) {
            bail!(
                value,
                "an input of shape {} does not fit {} weights of shape {}, whose rows have {depth} elements",
                lhs.shape,
                self.storage,
                codes.shape
            );
        }
        if let (Some(scales), Some(dtype)) = (scales, self.storage.scales_dtype()) {
            check("scales", scales, dtype)?;
            let count = Dim::Static(self.storage.scales(depth) as i64);
            let expected = [experts, &[n.clone(), count]].concat();
            if scales.shape[..] != expected[..] {
                let expected = Shape::from(expected);
                bail!(value, "the scales must have the shape {expected}, but got {}", scales.shape);
            }
        }
        if let Some([starts, ids]) = groups {
            if outer.len() != 1 {
                bail!(value, "grouped rows must be a matrix, but got an input of shape {}", lhs.shape);
            }
            for indices in [starts, ids] {
                if !indices.dtype.is_integral() || indices.shape.rank() != 1 {
                    bail!(
                        value,
                        "groups of rows are given by vectors of integers, but got {} {}",
                        indices.dtype,
                        indices.shape
                    );
                }
            }
            if starts.shape[0] != ids.shape[0].add(&Dim::Static(1))? {
                bail!(
                    value,
                    "there must be one start more than there are groups, but got {} starts and {} groups{}",
                    starts.shape[0],
                    ids.shape[0],
                    crate::ops::rebind::advice([&starts.shape[0], &ids.shape[0]])
                );
            }
        }
        Ok(vec![lhs.with_shape([outer, std::slice::from_ref(n)].concat()).into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            // Groups may be out of range.
            checks: self.grouped,
            form: Form::Kernel,
            folding: crate::properties::Folding::Never,
            heavy: true,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let Roles { lhs, codes, scales, groups } = self.roles(operands)?;
        let ([outer @ .., k], [.., n, length]) = (lhs.shape(), codes.shape()) else { return Ok(vec![]) };
        let (k, n) = (*k, *n);
        let rows: usize = outer.iter().product();
        let matrices = if self.grouped { codes.shape()[0] } else { 1 };
        let groups = match groups {
            Some([starts, ids]) => ranges(starts, ids, rows, matrices)?,
            None => vec![(0..rows, 0)],
        };
        let sizes = [outer, &[n]].concat();
        let code_bytes = length * self.storage.dtype().size_in_bytes();
        let scale_bytes =
            self.storage.scales(k) * self.storage.scales_dtype().map_or(0, DType::size_in_bytes);
        let mut weights = allocate::<f32>(k)?;
        weights.resize(k, 0.0);
        dispatch!(lhs.dtype(), T => {
            let elements = lhs.elements::<T>()?;
            let mut lhs = allocate::<f32>(elements.len())?;
            lhs.extend(elements.iter().map(|e| e.to_f64() as f32));
            if self.storage.is_integers() {
                lhs.chunks_mut(k.max(1)).for_each(round_activations);
            }
            let mut results = allocate::<T>(byte_count(T::DTYPE, &sizes)? / size_of::<T>())?;
            results.resize(rows * n, T::from_double(0.0));
            for (rows, matrix) in groups {
                for column in 0..n {
                    let at = matrix * n + column;
                    let codes = &codes.bytes()[at * code_bytes..][..code_bytes];
                    let scales = scales.map_or(&[][..], |scales| &scales.bytes()[at * scale_bytes..][..scale_bytes]);
                    self.storage.dequantize(codes, scales, &mut weights)?;
                    for row in rows.clone() {
                        let terms = lhs[row * k..][..k].iter().zip(&weights);
                        let sum: f64 = terms.map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
                        results[row * n + column] = T::from_double(sum);
                    }
                }
            }
            Ok(vec![HostTensor::from_vec(sizes, results)?])
        })
    }
}

/// The rows of each group and its matrix, without those that have none.
fn ranges(
    starts: &HostTensor,
    ids: &HostTensor,
    rows: usize,
    matrices: usize,
) -> Result<Vec<(Range<usize>, usize)>> {
    let integers = |tensor: &HostTensor| {
        dispatch!(tensor.dtype(), T => {
            tensor.elements::<T>().map(|all| all.iter().map(|e| e.to_i128()).collect::<Vec<_>>())
        })
    };
    let (starts, ids) = (integers(starts)?, integers(ids)?);
    let mut ranges = vec![];
    for (bounds, &id) in starts.windows(2).zip(&ids) {
        match (usize::try_from(bounds[0]), usize::try_from(bounds[1]), usize::try_from(id)) {
            (Ok(start), Ok(end), _) if id < 0 && start <= end && end <= rows => {}
            (Ok(start), Ok(end), Ok(id)) if start <= end && end <= rows && id < matrices => {
                ranges.push((start..end, id));
            }
            _ => bail!(
                value,
                "a group of rows {} to {} with matrix {id} is not among {rows} rows and {matrices} matrices",
                bounds[0],
                bounds[1]
            ),
        }
    }
    Ok(ranges)
}
