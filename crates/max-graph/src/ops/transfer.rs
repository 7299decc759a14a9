//! Transfer: the same tensor on another device.

use max_core::{DeviceRef, Result, TensorType, Type};

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
    /// Moves a tensor to a device.
    TransferTo = "transfer_to" { device: DeviceRef }
}

op_fns! {
    /// Moves a tensor to a device; returns it unchanged if it is there already.
    pub fn transfer_to(x: Operand, device: DeviceRef) -> TensorValue {
        let x = x.tensor()?;
        if x.device() == device { Ok(x) } else { record_one(TransferTo { device }, [&x]) }
    }
}

impl Operation for TransferTo {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [x] = tensors(operands)?;
        Ok(vec![TensorType { device: self.device, ..x.clone() }.into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: false,
            form: Form::Whole,
            folding: Folding::Exactly,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        Ok(vec![operands[0].clone()])
    }
}
