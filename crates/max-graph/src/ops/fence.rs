//! Fence: no op is moved across it.

use max_core::{Result, Type, bail};

use crate::attr::op_struct;
use crate::graph::record;
use crate::host::HostTensor;
use crate::op::{Operation, Run};
use crate::operand::Operands;
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::Value;

op_struct! {
    /// Ops before it run before ops after it, and its operands have been computed when it is reached.
    Fence = "fence" {}
}

op_fns! {
    /// Returns values unchanged; whatever is recorded later runs after what they come from.
    pub fn fence(values: Operands) -> Vec<Value> {
        let values = values.into_values()?;
        if values.is_empty() {
            bail!(value, "fence requires at least one value");
        }
        record(Fence {}, &values)?;
        Ok(values)
    }
}

impl Operation for Fence {
    fn infer(&self, _: &[&Type]) -> Result<Vec<Type>> {
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

    fn eval(&self, _: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        Ok(vec![])
    }
}
