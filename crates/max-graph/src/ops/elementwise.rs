//! Elementwise ops: every row of the scalar table as an op with broadcasting.

use max_core::scalar::{CompareOp, LogicalOp, NumericOp, RealOp};
use max_core::{
    Bool, DType, Dim, Element, Result, ScalarOp, Shape, TensorType, Type, bail, dispatch, scalar_table,
};

use crate::graph::record_one;
use crate::host::{HostTensor, allocate, byte_count};
use crate::op::{Operation, Run};
use crate::operand::{Operand, promote};
use crate::ops::cast::cast_value;
use crate::ops::rebind::advice;
use crate::ops::{check_alike, counted_tensors};
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::TensorValue;

macro_rules! functions {
    ($($(#[$table_doc:meta])* $table:ident<$L:ident: $bound:ident> -> $out:ty {
        $(#[doc = $doc:literal] $variant:ident = $function:ident($($x:ident),+) $($name:literal)? => $body:expr;)*
    })*) => {
        op_fns! {
            $($(#[doc = $doc]
            pub fn $function($($x: Operand),+) -> TensorValue $(as $name)? {
                elementwise($table::$variant.into(), [$($x),+])
            })*)*
        }
    };
}

scalar_table!(functions);

fn elementwise<const N: usize>(op: ScalarOp, operands: [Operand; N]) -> Result<TensorValue> {
    let mut values = promote(operands)?;
    // True division: the quotient of two integers is a float.
    if op == ScalarOp::RealOp(RealOp::Div) && !values[0].dtype().is_float() {
        for value in &mut values {
            *value = cast_value(value, DType::Float64)?;
        }
    }
    record_one(op, &values)
}

/// The shape that operands broadcast to; the error names the shapes and suggests a fix.
pub(crate) fn broadcast_shapes<'a>(shapes: impl IntoIterator<Item = &'a Shape>) -> Result<Shape> {
    let mut result = Shape::default();
    for shape in shapes {
        result = match result.broadcast(shape) {
            Some(shape) => shape,
            None => bail!(
                value,
                "shapes {result} and {shape} do not broadcast: their dims are neither equivalent nor broadcastable{}",
                advice(unequal(&result, shape))
            ),
        };
    }
    Ok(result)
}

/// The dims that keep two shapes from broadcasting.
fn unequal<'a>(a: &'a Shape, b: &'a Shape) -> impl Iterator<Item = &'a Dim> {
    let one = &Dim::Static(1);
    let pairs = a.iter().rev().zip(b.iter().rev());
    pairs.filter(move |(a, b)| a != b && *a != one && *b != one).flat_map(|(a, b)| [a, b])
}

impl Operation for ScalarOp {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let operands = counted_tensors(operands, self.arity())?;
        if let ScalarOp::LogicalOp(_) = self
            && let Some(other) = operands.iter().find(|t| t.dtype != DType::Bool)
        {
            bail!(value, "Inputs must be bools; got {}", other.dtype);
        }
        check_alike(&operands)?;
        let shape = broadcast_shapes(operands.iter().map(|t| &t.shape))?;
        let first = operands[0];
        Ok(vec![TensorType::new(self.result_dtype(first.dtype), shape, first.device).into()])
    }

    fn properties(&self, signature: Signature) -> Properties {
        let exact = signature.dtype(0).is_some_and(|dtype| self.is_exact(dtype));
        Properties {
            effects: Effects::NONE,
            checks: false,
            form: Form::Elementwise,
            folding: if exact { Folding::Exactly } else { Folding::Approximately },
            heavy: false,
            rounds_operands: matches!(self, ScalarOp::CompareOp(_)),
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let operands = [&operands[0], operands.last().unwrap_or(&operands[0])];
        let result = match *self {
            ScalarOp::NumericOp(op) => dispatch!(operands[0].dtype(), T => {
                map(operands, |x: [T; 2]| T::from_lane(op.apply(x.map(T::to_lane))))
            }),
            ScalarOp::RealOp(op) => dispatch!(operands[0].dtype(), T => {
                map(operands, |x: [T; 2]| T::from_real(op.apply(x.map(T::to_real))))
            }),
            ScalarOp::CompareOp(op) => dispatch!(operands[0].dtype(), T => {
                map(operands, |x: [T; 2]| op.apply(x.map(T::to_lane)))
            }),
            ScalarOp::LogicalOp(op) => map(operands, |x: [Bool; 2]| op.apply(x)),
        };
        Ok(vec![result?])
    }
}

/// The sizes that operands broadcast to in an execution.
pub(crate) fn broadcast_sizes(shapes: &[&[usize]]) -> Result<Vec<usize>> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut sizes = vec![1; rank];
    for shape in shapes {
        let missing = rank - shape.len();
        for (size, &own) in sizes[missing..].iter_mut().zip(*shape) {
            match (*size, own) {
                (a, b) if a == b || b == 1 => {}
                (1, b) => *size = b,
                (a, b) => bail!(value, "sizes {a} and {b} do not broadcast"),
            }
        }
    }
    Ok(sizes)
}

/// Applies a function to the elements of two operands, with broadcasting.
fn map<T: Element, O: Element>(operands: [&HostTensor; 2], f: impl Fn([T; 2]) -> O) -> Result<HostTensor> {
    let sizes = broadcast_sizes(&operands.map(HostTensor::shape))?;
    byte_count(O::DTYPE, &sizes)?;
    let [a, b] = [operands[0].elements::<T>()?, operands[1].elements::<T>()?];
    let [at_a, at_b] = operands.map(|t| t.broadcast_layout(&sizes));
    let mut results = allocate(at_a.num_elements())?;
    results.extend(at_a.positions().zip(at_b.positions()).map(|(i, j)| f([a[i], b[j]])));
    HostTensor::from_vec(sizes, results)
}
