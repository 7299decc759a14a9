//! The gated product of feed-forward layers.

use crate::operand::Operand;
use crate::ops;
use crate::registry::op_fns;
use crate::value::TensorValue;

op_fns! {
    /// `silu(a x b0^T) * (a x b1^T)`: the product with one matrix, gated by that with another.
    pub fn swish_glu(a: Operand, b0: Operand, b1: Operand) -> TensorValue {
        let a = a.tensor()?;
        let product = |b: Operand| ops::matmul(&a, ops::transpose(b.like(&a)?, -2, -1)?);
        ops::mul(ops::silu(product(b0)?)?, product(b1)?)
    }
}
