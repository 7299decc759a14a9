//! Split cuts a tensor into parts along an axis, chunk into equal parts.

use max_core::{Dim, Result, Shape, Strided, Type, bail};

use crate::attr::op_struct;
use crate::graph::record;
use crate::host::HostTensor;
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::rebind::{advice, assert_dim};
use crate::ops::{axis_dim, tensors};
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::{TensorValue, Value};

op_struct! {
    /// Parts of given sizes along an axis.
    Split = "split" { sizes: Shape, axis: usize }
}

op_fns! {
    /// Cuts a tensor into parts whose sizes add up to the dim. For symbolic sizes a rebind asserts it at run time.
    pub fn split(x: Operand, split_sizes: Shape, axis: i64 = 0) -> Vec<TensorValue> {
        let mut x = x.tensor()?;
        let axis = x.shape().axis(axis)?;
        if split_sizes.as_static().is_none() {
            x = assert_dim(x, axis, total(&split_sizes)?, MUST_SUM)?;
        }
        split_value(&x, split_sizes, axis)
    }

    /// Cuts a tensor into equal parts; the number of parts must divide the dim.
    pub fn chunk(x: Operand, chunks: i64, axis: i64 = 0) -> Vec<TensorValue> {
        let x = x.tensor()?;
        let axis = x.shape().axis(axis)?;
        if chunks < 1 {
            bail!(value, "chunk needs at least one chunk, got {chunks}");
        }
        let dim = &x.shape()[axis];
        let part = dim.floor_div(&Dim::Static(chunks))?;
        if part.mul(&Dim::Static(chunks))? != *dim {
            bail!(value, "chunk: {chunks} chunks must statically divide the dim {dim} of {}", x.shape());
        }
        let parts = usize::try_from(chunks).unwrap_or(usize::MAX).min(MAX_PARTS + 1);
        split_value(&x, vec![part; parts].into(), axis)
    }
}

/// The maximum number of parts of a split, so that a small input cannot make a graph huge.
const MAX_PARTS: usize = 1 << 16;

const MUST_SUM: &str = "Split sizes must sum to dimension value";

fn total(sizes: &Shape) -> Result<Dim> {
    sizes.iter().try_fold(Dim::Static(0), |sum, size| sum.add(size))
}

fn split_value(x: &TensorValue, sizes: Shape, axis: usize) -> Result<Vec<TensorValue>> {
    record(Split { sizes, axis }, &[x.into()])?.iter().map(Value::tensor).collect()
}

impl Operation for Split {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [x] = tensors(operands)?;
        let dim = axis_dim(x, self.axis)?;
        if self.sizes.rank() > MAX_PARTS {
            bail!(value, "a split has at most {MAX_PARTS} parts; {} were requested", self.sizes.rank());
        }
        let total = total(&self.sizes)?;
        if total != *dim {
            bail!(value, "{MUST_SUM}: {} sum to {total}, not to {dim}{}", self.sizes, advice([&total, dim]));
        }
        let parts = self.sizes.iter().map(|size| {
            let mut dims = x.shape.to_vec();
            dims[self.axis] = size.clone();
            x.with_shape(dims).into()
        });
        Ok(parts.collect())
    }

    fn properties(&self, signature: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: signature.computes_sizes(),
            form: Form::Part,
            folding: Folding::Exactly,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        let whole = Strided::contiguous(operands[0].shape());
        let mut start = 0;
        let parts = run.sizes(&self.sizes)?.into_iter().map(|size| {
            let mut part = whole.clone();
            part.offset = start * whole.strides[self.axis] as usize;
            part.shape[self.axis] = size;
            start += size;
            operands[0].gathered(&part)
        });
        parts.collect()
    }
}
