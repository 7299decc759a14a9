//! Rebind: asserts at run time that a tensor has a shape that cannot be proven at build time.

use max_core::{Dim, FilterLayout, Result, Shape, TensorType, Type, bail};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::HostTensor;
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::tensors;
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::TensorValue;

op_struct! {
    /// The same tensor with dims that are checked at run time; it binds new symbols.
    Rebind = "rebind" { shape: Shape, message: String, layout: Option<FilterLayout> }
}

op_fns! {
    /// Asserts a shape; a message explains a failure at run time.
    pub fn rebind(x: Operand, shape: Shape, message: String = "") -> TensorValue {
        let x = x.tensor()?;
        record_one(Rebind { shape, message, layout: x.tensor_type().layout }, [&x])
    }

    /// Asserts a shape and says how the axes of a filter are ordered.
    pub fn rebind_filter(x: Operand, shape: Shape, message: String, layout: FilterLayout) -> TensorValue {
        record_one(Rebind { shape, message, layout: Some(layout) }, [&x.tensor()?])
    }
}

/// The tensor with another dim along an axis, asserted at run time unless the two are known to be equal. A dim that is
/// known to differ is left to the type rule of the op that needs the other one.
pub(crate) fn assert_dim(x: TensorValue, axis: usize, dim: Dim, message: &str) -> Result<TensorValue> {
    let own = &x.shape()[axis];
    if *own == dim || own.differs(&dim) {
        return Ok(x);
    }
    let mut dims = x.shape().to_vec();
    dims[axis] = dim;
    rebind(x, Shape::from(dims), message)
}

/// Advice for dims that are not known to be equal: none if all are static, as a rebind cannot help then.
pub(crate) fn advice<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> &'static str {
    match dims.into_iter().all(|dim| dim.as_static().is_some()) {
        true => "",
        false => "; if they are equal at run time, insert an explicit rebind",
    }
}

impl Operation for Rebind {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [x] = tensors(operands)?;
        if x.shape.rank() != self.shape.rank() {
            bail!(
                value,
                "Wrong rank for rebind: {} has rank {}, {} has rank {}",
                x.shape,
                x.shape.rank(),
                self.shape,
                self.shape.rank()
            );
        }
        Ok(vec![TensorType { layout: self.layout, ..x.with_shape(&self.shape) }.into()])
    }

    fn properties(&self, signature: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: signature.shape(0) != Some(&self.shape),
            form: Form::View,
            folding: Folding::Exactly,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        let sizes = operands[0].shape();
        for (dim, &size) in self.shape.iter().zip(sizes) {
            // A symbol that is not bound yet gets its size from this tensor.
            if let Ok(expected) = dim.evaluate(run.bindings)
                && expected != size as i64
            {
                let note = if self.message.is_empty() { "" } else { ": " };
                bail!(
                    value,
                    "rebind shape check failed{note}{}: {} has {dim} = {expected}, got shape {sizes:?}",
                    self.message,
                    self.shape
                );
            }
        }
        Ok(vec![operands[0].clone()])
    }
}
