//! Non-maximum suppression: the best boxes, without those that overlap a better one too much.

use max_core::{DType, Dim, Element, Result, Shape, TensorType, Type, bail, dispatch};

use crate::attr::op_struct;
use crate::graph::record;
use crate::host::{HostTensor, allocate, byte_count};
use crate::op::{Operation, Run};
use crate::operand::{Operand, promote};
use crate::ops::cast::cast_value;
use crate::ops::rebind::assert_dim;
use crate::ops::reshape::reshape_value;
use crate::ops::slice::{Bound, Index, Indices};
use crate::ops::{slice_tensor, tensors};
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::{TensorValue, Value};

op_struct! {
    /// The selected boxes, a row of batch, class and box each, and how many there are; the rows after those are undefined.
    Suppress = "non_maximum_suppression" {}
}

op_fns! {
    /// Selects boxes by their scores. For each batch and class, the box with the best score is selected, and all boxes
    /// whose intersection with it is more than `iou_threshold` of the union are dropped; then the best of those left, and so
    /// on. Boxes whose score is not above `score_threshold`, or is NaN, are never selected; of equal scores the first is
    /// best.
    ///
    /// Boxes `[batches, boxes, 4]` are two opposite corners each, in any order, and scores are `[batches, classes, boxes]`.
    /// A row of the result is a batch, a class and a box; `out_dim` names the number of rows.
    pub fn non_maximum_suppression(
        boxes: Operand, scores: Operand, max_output_boxes_per_class: Operand, iou_threshold: Operand,
        score_threshold: Operand, out_dim: Dim = "num_selected",
    ) -> TensorValue {
        let [boxes, scores] = promote([boxes, scores])?;
        if boxes.rank() != 3 || scores.rank() != 3 {
            bail!(
                value,
                "non_maximum_suppression needs boxes [batches, boxes, 4] and scores [batches, classes, boxes]; got {} and {}",
                boxes.shape(), scores.shape()
            );
        }
        if !boxes.dtype().is_float() {
            bail!(value, "non_maximum_suppression needs boxes and scores of floats; got {}", boxes.dtype());
        }
        // Narrow floats are compared as float32.
        let wide = if boxes.dtype() == DType::Float64 { DType::Float64 } else { DType::Float32 };
        let boxes = assert_dim(cast_value(&boxes, wide)?, 2, Dim::Static(4), "a box has four coordinates")?;
        let scores = cast_value(&scores, wide)?;
        let same = "boxes and scores must have as many batches and boxes";
        let scores = assert_dim(scores, 0, boxes.shape()[0].clone(), same)?;
        let scores = assert_dim(scores, 2, boxes.shape()[1].clone(), same)?;
        let scalar = |name: &str, value: Operand, dtype: DType| {
            let value = value.weak(dtype, boxes.device())?;
            if value.shape().num_elements()? != Dim::Static(1) || value.dtype().is_float() != dtype.is_float() {
                bail!(value, "non_maximum_suppression {name} must be a scalar of type {dtype}; got {}", value.tensor_type());
            }
            reshape_value(&cast_value(&value, dtype)?, Shape::from(Vec::<Dim>::new()))
        };
        let most = scalar("max_output_boxes_per_class", max_output_boxes_per_class, DType::Int64)?;
        let overlap = scalar("iou_threshold", iou_threshold, wide)?;
        let least = scalar("score_threshold", score_threshold, wide)?;
        let operands = [&boxes, &scores, &most, &overlap, &least].map(Value::from);
        let results = record(Suppress {}, &operands)?.iter().map(Value::tensor).collect::<Result<Vec<_>>>()?;
        let [rows, count] = &results[..] else { bail!(internal, "a suppression has two results") };
        let (start, stop) = (Bound::Natural, Bound::Tensor(count.clone()));
        let index = Index::Slice { start, stop, step: 1, out_dim: Some(out_dim) };
        slice_tensor(rows, Indices::from(vec![index]))
    }
}

impl Operation for Suppress {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [boxes, scores, most, overlap, least] = tensors(operands)?;
        let dtype = boxes.dtype;
        if !matches!(dtype, DType::Float32 | DType::Float64)
            || [scores, overlap, least].into_iter().any(|tensor| tensor.dtype != dtype)
            || most.dtype != DType::Int64
        {
            bail!(value, "non_maximum_suppression of {boxes}, {scores}, {most}, {overlap} and {least}");
        }
        if let Some(other) =
            [scores, most, overlap, least].into_iter().find(|other| other.device != boxes.device)
        {
            bail!(
                value,
                "Input values must be on the same device; got {} and {}",
                boxes.device,
                other.device
            );
        }
        if [most, overlap, least].into_iter().any(|tensor| tensor.shape.rank() != 0) {
            bail!(
                value,
                "non_maximum_suppression thresholds must be scalars; got {most}, {overlap} and {least}"
            );
        }
        let ([batches, count, corners], [batches_too, _, count_too]) = (&boxes.shape[..], &scores.shape[..])
        else {
            bail!(
                value,
                "non_maximum_suppression needs rank-3 boxes and scores; got {} and {}",
                boxes.shape,
                scores.shape
            );
        };
        if batches != batches_too || count != count_too || *corners != Dim::Static(4) {
            bail!(
                value,
                "non_maximum_suppression needs boxes [batches, boxes, 4] and scores [batches, classes, boxes]; got {} and {}",
                boxes.shape,
                scores.shape
            );
        }
        let result = |shape: Shape| Type::from(TensorType { dtype: DType::Int64, ..boxes.with_shape(shape) });
        let rows = scores.shape.num_elements()?;
        Ok(vec![result(Shape::from(vec![rows, Dim::Static(3)])), result(Shape::from(Vec::<Dim>::new()))])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: false,
            form: Form::Whole,
            folding: Folding::Never,
            heavy: true,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        dispatch!(operands[0].dtype(), T => evaluate::<T>(operands))
    }
}

fn evaluate<T: Element>(operands: &[HostTensor]) -> Result<Vec<HostTensor>> {
    let (boxes, scores) = (operands[0].elements::<T>()?, operands[1].elements::<T>()?);
    let &[batches, classes, count] = operands[1].shape() else { bail!(internal, "scores of another rank") };
    let most = operands[2].to_integers()?.first().copied().unwrap_or(0);
    let scalar = |operand: usize| Ok::<_, max_core::Error>(operands[operand].elements::<T>()?[0].to_f64());
    let (overlap, least) = (scalar(3)?, scalar(4)?);
    let sizes = [batches * classes * count, 3];
    let len = byte_count(DType::Int64, &sizes)? / size_of::<i64>();
    let mut rows = allocate::<i64>(len)?;
    for (batch, class) in (0..batches).flat_map(|batch| (0..classes).map(move |class| (batch, class))) {
        let score = |at: usize| scores[(batch * classes + class) * count + at].to_f64();
        let corners =
            |at: usize| -> [f64; 4] { std::array::from_fn(|i| boxes[(batch * count + at) * 4 + i].to_f64()) };
        let mut left: Vec<usize> = (0..count).filter(|&at| score(at) > least).collect();
        // NaN is not above anything, so scores compare; equal ones stay in order.
        left.sort_by(|&a, &b| score(b).partial_cmp(&score(a)).unwrap_or(std::cmp::Ordering::Equal));
        let mut selected = 0;
        while selected < most && !left.is_empty() {
            let best = left.remove(0);
            rows.extend([batch as i64, class as i64, best as i64]);
            left.retain(|&at| !overlaps(corners(best), corners(at), overlap));
            selected += 1;
        }
    }
    let found = rows.len() as i64 / 3;
    rows.resize(len, 0);
    Ok(vec![HostTensor::from_vec(sizes, rows)?, HostTensor::from_vec(Vec::<usize>::new(), vec![found])?])
}

/// Whether the intersection of two boxes is more than a share of their union.
fn overlaps(a: [f64; 4], b: [f64; 4], share: f64) -> bool {
    let side = |x: [f64; 4], axis: usize| (x[axis].min(x[axis + 2]), x[axis].max(x[axis + 2]));
    let area = |x: [f64; 4]| (side(x, 0).1 - side(x, 0).0) * (side(x, 1).1 - side(x, 1).0);
    let common = |axis: usize| {
        let (a, b) = (side(a, axis), side(b, axis));
        (a.1.min(b.1) - a.0.max(b.0)).max(0.0)
    };
    let both = common(0) * common(1);
    area(a) > 0.0 && area(b) > 0.0 && both / (area(a) + area(b) - both) > share
}
