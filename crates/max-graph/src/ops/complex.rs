//! Complex numbers as pairs: the last axis holds the real and the imaginary part.

use max_core::{Dim, Result, bail};

use crate::operand::{Operand, promote};
use crate::ops;
use crate::ops::reshape::reshape_value;
use crate::ops::slice::Index;
use crate::registry::op_fns;
use crate::value::TensorValue;

const TWO: Dim = Dim::Static(2);

op_fns! {
    /// Pairs neighbours along the last axis, whose size must be even, into complex numbers.
    pub fn as_interleaved_complex(x: Operand) -> TensorValue {
        let x = x.tensor()?;
        let Some((last, outer)) = x.shape().split_last() else {
            bail!(value, "as_interleaved_complex needs at least one axis; got a scalar");
        };
        let half = last.floor_div(&TWO)?;
        if half.mul(&TWO)? != *last {
            bail!(value, "as_interleaved_complex needs a last axis of even size; got {last} in {}", x.shape());
        }
        reshape_value(&x, [outer, &[half, TWO]].concat().into())
    }

    /// The product of two complex tensors, with broadcasting.
    pub fn complex_mul(lhs: Operand, rhs: Operand) -> TensorValue {
        let [lhs, rhs] = promote([lhs, rhs])?;
        for side in [&lhs, &rhs] {
            if side.shape().last() != Some(&TWO) {
                bail!(
                    value,
                    "complex_mul needs tensors whose last axis has size 2, for the real and the imaginary part; got {} \
                     and {}",
                    lhs.shape(),
                    rhs.shape()
                );
            }
        }
        let [(a, b), (c, d)] = [parts(&lhs)?, parts(&rhs)?];
        let real = ops::sub(ops::mul(&a, &c), ops::mul(&b, &d))?;
        let imaginary = ops::add(ops::mul(&a, &d), ops::mul(&b, &c))?;
        ops::stack([&real, &imaginary], -1)
    }
}

/// The real and the imaginary part.
fn parts(x: &TensorValue) -> Result<(TensorValue, TensorValue)> {
    let part = |at: i64| ops::slice_tensor(x, vec![Index::Ellipsis, at.into()]);
    Ok((part(0)?, part(1)?))
}
