//! Print: shows a tensor each time the graph runs.

use max_core::{Result, Type, dispatch};

use crate::attr::op_struct;
use crate::door::op_fns;
use crate::graph::record;
use crate::host::{HostTensor, number};
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::tensors;

op_struct! {
    /// Writes a label and the elements to standard output.
    Print = "print" { label: String }
}

op_fns! {
    /// Shows a tensor under a label whenever the graph runs.
    pub fn print(value: Operand, label: String = "debug_tensor") -> () {
        record(Print { label }, &[value.tensor()?.into()]).map(|_| ())
    }
}

/// How many elements are shown.
const SHOWN: usize = 64;

impl Operation for Print {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [_] = tensors(operands)?;
        Ok(vec![])
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let x = &operands[0];
        let shown = dispatch!(x.dtype(), T => {
            let elements = x.elements::<T>()?;
            elements.iter().take(SHOWN).map(|e| number(*e).to_string()).collect::<Vec<_>>()
        });
        let rest = if x.num_elements() > SHOWN { ", ..." } else { "" };
        println!(
            "{} = tensor([{}{rest}], dtype={}, shape={:?})",
            self.label,
            shown.join(", "),
            x.dtype(),
            x.shape()
        );
        Ok(vec![])
    }
}
