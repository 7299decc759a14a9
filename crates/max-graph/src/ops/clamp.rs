//! Clamp: limits elements to a range.

use crate::operand::Operand;
use crate::ops;
use crate::registry::{Arg, op_fns};
use crate::value::TensorValue;

op_fns! {
    /// Limits elements to at least `lower_bound` and at most `upper_bound`, where given; the upper bound wins.
    pub fn clamp(
        x: Operand, lower_bound: Option<Operand> = Arg::None, upper_bound: Option<Operand> = Arg::None,
    ) -> TensorValue {
        let mut x = x.tensor()?;
        if let Some(bound) = lower_bound {
            x = ops::max(x, bound)?;
        }
        if let Some(bound) = upper_bound {
            x = ops::min(x, bound)?;
        }
        Ok(x)
    }
}
