//! The reference with deliberate errors: roundings that another correct computation may make, and plain mistakes.

use std::collections::HashMap;

use max_core::scalar::{NumericOp, RealOp};
use max_core::{Bindings, DType, Distribution, Element, Result, ScalarOp, dispatch};
use max_graph::op::Run;
use max_graph::ops::reduce::ReduceKind;
use max_graph::{Body, HostTensor, OpKind, ValueId};

use super::generate::unit;
use super::rng::Rng;

/// How far an op may be off in units of rounding: relative to each element, and to the largest.
fn looseness(kind: &OpKind, operand: Option<DType>, dtype: DType) -> (f64, f64) {
    let exact = matches!(dtype, DType::Float32 | DType::Float64);
    match kind {
        // Small integers are exact in every dtype.
        OpKind::Cast(_) if operand.is_some_and(|o| !o.is_float()) => (0.0, 0.0),
        OpKind::Scalar(ScalarOp::NumericOp(NumericOp::Add | NumericOp::Sub | NumericOp::Mul))
        | OpKind::Scalar(ScalarOp::RealOp(RealOp::Div | RealOp::Sqrt))
        | OpKind::Cast(_) => (if exact { 0.0 } else { 1.0 }, 0.0),
        OpKind::Scalar(ScalarOp::RealOp(_) | ScalarOp::NumericOp(NumericOp::Pow)) => (4.0, 0.0),
        OpKind::Random(random) if random.distribution == Distribution::Normal => (4.0, 0.0),
        OpKind::Reduce(reduce) => match reduce.kind {
            ReduceKind::Sum | ReduceKind::Mean => (1.0, 2.0),
            ReduceKind::Prod => (4.0, 0.0),
            _ => (0.0, 0.0),
        },
        OpKind::Matmul(_) | OpKind::Conv2d(_) => (1.0, 2.0),
        OpKind::Softmax(_) | OpKind::LayerNorm(_) => (4.0, 1.0),
        _ => (0.0, 0.0),
    }
}

/// Runs a body with each op slightly off.
pub fn interpret(
    body: &Body,
    inputs: &[HostTensor],
    bindings: &Bindings,
    variant: u64,
) -> Result<Vec<HostTensor>> {
    let mut rng = Rng::new(variant, 300);
    let mut values: HashMap<ValueId, HostTensor> =
        body.block.arguments.iter().copied().zip(inputs.iter().cloned()).collect();
    for op in body.ops() {
        let operands: Vec<HostTensor> = op.operands.iter().map(|v| values[v].clone()).collect();
        let results = op.kind.eval(&operands, &Run { bindings, environment: &() })?;
        for (&id, result) in op.results.iter().zip(results) {
            let looseness = looseness(&op.kind, operands.first().map(HostTensor::dtype), result.dtype());
            values.insert(id, disturbed(&result, looseness, &mut rng));
        }
    }
    Ok(body.block.results.iter().flatten().map(|v| values[v].clone()).collect())
}

fn disturbed(x: &HostTensor, (own, common): (f64, f64), rng: &mut Rng) -> HostTensor {
    let dtype = x.dtype();
    if !dtype.is_float() || own + common == 0.0 {
        return x.clone();
    }
    // Half-precision results are off by one rounding of their own, not by several.
    let most = if dtype.is_half() { 1.0 } else { f64::INFINITY };
    dispatch!(dtype, T => {
        let elements = x.elements::<T>().unwrap();
        let largest = elements.iter().map(|e| e.to_f64().abs()).filter(|e| e.is_finite()).fold(0.0, f64::max);
        let off = |e: f64, rng: &mut Rng| {
            let size = own.min(most) * e.abs() + if dtype.is_half() { 0.0 } else { common * largest };
            let moved = e + rng.tame() / 2.0 * size * unit(dtype);
            // The sign stays: a sum of squares is never negative.
            if !e.is_finite() { e } else if e < 0.0 { moved.min(0.0) } else { moved.max(0.0) }
        };
        let disturbed = elements.iter().map(|e| T::from_double(off(e.to_f64(), rng))).collect::<Vec<T>>();
        HostTensor::from_vec(x.shape(), disturbed).unwrap()
    })
}

/// The same tensor with one element off by a fraction of the largest: a hundredth, or a tenth for narrow floats.
pub fn mistake(x: &HostTensor) -> Option<HostTensor> {
    let part = if x.dtype().is_half() { 0.1 } else { 0.01 };
    dispatch!(x.dtype(), T => {
        let mut elements = x.elements::<T>().unwrap().to_vec();
        let largest = elements.iter().map(|e| e.to_f64().abs()).filter(|e| e.is_finite()).fold(0.0, f64::max);
        let finite = elements.iter_mut().find(|e| e.to_f64().is_finite() && largest > 0.0)?;
        let off = if T::DTYPE.is_float() { largest * part } else { 1.0 };
        *finite = if T::DTYPE == DType::Bool { T::from_i128(1 - finite.to_i128()) } else { T::from_double(finite.to_f64() + off) };
        HostTensor::from_vec(x.shape(), elements).ok()
    })
}
