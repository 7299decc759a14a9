//! Permute: reorders the axes of a tensor.

use max_core::shape::resolve_axis;
use max_core::{Error, Result, Shape, Strided, Type, bail};

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
    /// Axis `i` of the result is axis `dims[i]` of the operand.
    Permute = "permute" { dims: Vec<usize> }
}

op_fns! {
    /// Reorders all axes.
    pub fn permute(x: Operand, dims: Vec<i64>) -> TensorValue {
        let x = x.tensor()?;
        let resolved = dims.iter().map(|&axis| resolve(axis, x.rank(), "permute")).collect::<Result<Vec<_>>>()?;
        permute_value(&x, resolved)
    }

    /// Swaps two axes.
    pub fn transpose(x: Operand, axis_1: i64, axis_2: i64) -> TensorValue {
        let x = x.tensor()?;
        let mut dims: Vec<usize> = (0..x.rank()).collect();
        dims.swap(resolve(axis_1, x.rank(), "transpose")?, resolve(axis_2, x.rank(), "transpose")?);
        permute_value(&x, dims)
    }
}

/// Records a permutation, or nothing if it is the identity.
pub(crate) fn permute_value(x: &TensorValue, dims: Vec<usize>) -> Result<TensorValue> {
    let unchanged = dims.len() == x.rank() && dims.iter().enumerate().all(|(i, &d)| i == d);
    if unchanged { Ok(x.clone()) } else { record_one(Permute { dims }, [x]) }
}

fn resolve(axis: i64, rank: usize, op: &str) -> Result<usize> {
    resolve_axis(axis, rank)
        .ok_or_else(|| Error::index(format!("{op} axis {axis} is out of range for a tensor of rank {rank}")))
}

impl Operation for Permute {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [x] = tensors(operands)?;
        if self.dims.len() != x.shape.rank() {
            bail!(
                value,
                "permute needs one dim for each of the {} axes; got {:?}",
                x.shape.rank(),
                self.dims
            );
        }
        let mut seen = vec![false; self.dims.len()];
        for &dim in &self.dims {
            match seen.get_mut(dim) {
                Some(seen) if !*seen => *seen = true,
                Some(_) => bail!(value, "permute dims may not contain duplicate dimensions: {:?}", self.dims),
                None => {
                    bail!(index, "permute dim {dim} is out of range for a tensor of rank {}", x.shape.rank())
                }
            }
        }
        let dims: Shape = self.dims.iter().map(|&d| &x.shape[d]).collect();
        Ok(vec![x.with_shape(dims).into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: false,
            form: Form::View,
            folding: Folding::Exactly,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let own = Strided::contiguous(operands[0].shape());
        let pick = |from: &[isize]| self.dims.iter().map(|&d| from[d]).collect();
        let shape = self.dims.iter().map(|&d| own.shape[d]).collect();
        Ok(vec![operands[0].gathered(&Strided { shape, strides: pick(&own.strides), offset: 0 })?])
    }
}
