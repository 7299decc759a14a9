//! Print: prints a tensor, or just text, each time the graph runs.

use std::io::Write;
use std::sync::{PoisonError, RwLock};

use max_core::{Result, Type, bail, dispatch};

use crate::attr::op_struct;
use crate::graph::record;
use crate::host::{HostTensor, number};
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::tensors;
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::{Arg, FromArg, op_fns};

op_struct! {
    /// Writes a label and the elements of the operand, if there is one, to standard output.
    Print = "print" { label: String }
}

/// What can be printed.
pub enum Printable {
    /// A tensor under a label.
    Tensor(Operand),
    /// Plain text.
    Text(String),
}

impl<O: Into<Operand>> From<O> for Printable {
    fn from(operand: O) -> Printable {
        Printable::Tensor(operand.into())
    }
}

impl From<&str> for Printable {
    fn from(text: &str) -> Printable {
        Printable::Text(text.into())
    }
}

impl FromArg for Printable {
    fn from_arg(arg: Arg) -> Result<Printable> {
        match arg {
            Arg::Str(text) => Ok(Printable::Text(text)),
            other => Operand::from_arg(other).map(Printable::Tensor),
        }
    }
}

op_fns! {
    /// Prints a tensor under a label, or just text, each time the graph runs.
    pub fn print(value: Printable, label: String = "debug_tensor") -> () {
        let recorded = match value {
            Printable::Tensor(operand) => record(Print { label }, &[operand.tensor()?.into()]),
            Printable::Text(label) => record(Print { label }, &[]),
        };
        recorded.map(|_| ())
    }
}

/// Where printed lines go. A line that cannot be written is dropped; the graph keeps running.
static WRITER: RwLock<fn(&str)> = RwLock::new(|line| {
    let _ = writeln!(std::io::stdout(), "{line}");
});

/// Redirects printed lines from standard output to a function.
pub fn set_writer(writer: fn(&str)) {
    *WRITER.write().unwrap_or_else(PoisonError::into_inner) = writer;
}

fn write_line(line: &str) {
    let writer = *WRITER.read().unwrap_or_else(PoisonError::into_inner);
    writer(line);
}

/// The maximum number of elements printed; of more, as many from either end.
const SHOWN: usize = 64;
const ENDS: usize = 16;

impl Operation for Print {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        if operands.len() > 1 {
            bail!(value, "print takes at most one tensor, got {}", operands.len());
        }
        if !operands.is_empty() {
            tensors::<1>(operands)?;
        }
        Ok(vec![])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects { observable: true, ..Effects::NONE },
            checks: false,
            form: Form::Whole,
            folding: Folding::Never,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let Some(x) = operands.first() else {
            write_line(&self.label);
            return Ok(vec![]);
        };
        let shown = dispatch!(x.dtype(), T => {
            let elements = x.elements::<T>()?;
            let text = |e: &T| number(*e).to_string();
            match elements.len() > SHOWN {
                true => {
                    let (first, last) = (&elements[..ENDS], &elements[elements.len() - ENDS..]);
                    first.iter().map(text).chain(["...".into()]).chain(last.iter().map(text)).collect::<Vec<_>>()
                }
                false => elements.iter().map(text).collect(),
            }
        });
        write_line(&format!(
            "{} = tensor([{}], dtype={}, shape={:?})",
            self.label,
            shown.join(", "),
            x.dtype(),
            x.shape()
        ));
        Ok(vec![])
    }
}
