//! Broadcast: a tensor repeated along axes of size one and along new leading axes.

use max_core::{Dim, Result, Shape, Type, bail};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::HostTensor;
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::tensors;
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::{Arg, FromArg, op_fns};
use crate::value::TensorValue;

op_struct! {
    /// Repeats a tensor to a shape. A second operand gives the sizes at run time; the shape then names them.
    BroadcastTo = "broadcast_to" { shape: Shape }
}

/// What a tensor is broadcast to: a shape, or a vector of sizes known only at run time.
pub enum Target {
    /// Dims.
    Shape(Shape),
    /// A tensor with the sizes, and the dims that name them.
    Sizes(Operand, Shape),
}

impl<S: Into<Shape>> From<S> for Target {
    fn from(shape: S) -> Target {
        Target::Shape(shape.into())
    }
}

impl FromArg for Target {
    fn from_arg(arg: Arg) -> Result<Target> {
        match arg {
            Arg::Value(_) | Arg::Object(_) => {
                bail!(value, "broadcast_to needs out_dims when the shape is a tensor")
            }
            Arg::List(pair) if matches!(pair.as_slice(), [_, Arg::List(_) | Arg::Shape(_)]) => {
                let mut pair = pair.into_iter();
                let mut next = || pair.next().unwrap_or(Arg::None);
                Ok(Target::Sizes(Operand::from_arg(next())?, Shape::from_arg(next())?))
            }
            other => Shape::from_arg(other).map(Target::Shape),
        }
    }
}

op_fns! {
    /// Repeats a tensor to a shape that its own broadcasts to.
    pub fn broadcast_to(x: Operand, shape: Target) -> TensorValue {
        let x = x.tensor()?;
        match shape {
            Target::Shape(shape) if *x.shape() == shape => Ok(x),
            Target::Shape(shape) => record_one(BroadcastTo { shape }, [&x]),
            Target::Sizes(sizes, shape) => record_one(BroadcastTo { shape }, [&x, &sizes.tensor()?]),
        }
    }
}

impl Operation for BroadcastTo {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let x = if operands.len() == 2 {
            let [x, sizes] = tensors(operands)?;
            let rank = self.shape.rank() as i64;
            if !sizes.dtype.is_integral() || sizes.shape != Shape::from([rank]) {
                bail!(value, "the target shape must be a vector of {rank} integers; got {sizes}");
            }
            x
        } else {
            let [x] = tensors(operands)?;
            x
        };
        let Some(missing) = self.shape.rank().checked_sub(x.shape.rank()) else {
            bail!(value, "cannot broadcast {} to {}, which has a lower rank", x.shape, self.shape);
        };
        for (own, target) in x.shape.iter().zip(&self.shape[missing..]) {
            let dynamic = operands.len() == 2;
            if *own != Dim::Static(1) && own != target && !dynamic {
                bail!(
                    value,
                    "cannot broadcast {} to {}: each input dimension must be either 1 or equal to corresponding output \
                     dimension; {own} is not {target}",
                    x.shape,
                    self.shape
                );
            }
        }
        Ok(vec![x.with_shape(&self.shape).into()])
    }

    fn properties(&self, signature: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: signature.operands().count() == 2 || signature.computes_sizes(),
            form: Form::Part,
            // A repeated constant is better kept short.
            folding: Folding::Never,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        let x = &operands[0];
        let sizes = match operands.get(1) {
            None => run.sizes(&self.shape)?,
            Some(sizes) => Shape::from(sizes.to_integers()?).evaluate(run.bindings)?,
        };
        let missing = sizes.len() - x.shape().len();
        if x.shape().iter().zip(&sizes[missing..]).any(|(&own, &target)| own != 1 && own != target) {
            bail!(value, "cannot broadcast shape {:?} to {sizes:?}", x.shape());
        }
        crate::host::byte_count(x.dtype(), &sizes)?;
        Ok(vec![x.gathered(&x.broadcast_layout(&sizes))?])
    }
}
