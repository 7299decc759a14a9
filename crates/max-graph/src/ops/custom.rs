//! Custom ops in graphs.

use std::sync::Arc;

use max_core::{DeviceRef, Parameters, Result, Type, bail};

use crate::attr::op_struct;
use crate::custom::{BodyFn, CustomOp, CustomRef, Meaning};
use crate::graph::{Graph, record};
use crate::host::HostTensor;
use crate::op::{Operation, Run};
use crate::operand::Operands;
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::{TensorValue, Value};

op_struct! {
    /// A custom op on a device, with the types of its results.
    Custom = "custom" { op: Arc<CustomOp>, device: DeviceRef, parameters: Parameters, types: Vec<Type> }
}

op_fns! {
    /// Calls a custom op, which the libraries of the graph have under this name, on a device. Its signature and rule are
    /// checked now. Buffers among the operands are changed in place.
    pub fn custom(
        name: CustomRef,
        device: DeviceRef,
        values: Operands,
        out_types: Vec<Type>,
        parameters: Parameters = (),
    ) -> Vec<Value> {
        call(name, device, values.into_values()?, out_types, parameters)
    }

    /// Calls a custom op that changes buffers: at least one operand is a buffer.
    pub fn inplace_custom(
        name: CustomRef,
        device: DeviceRef,
        values: Operands,
        out_types: Vec<Type>,
        parameters: Parameters = (),
    ) -> Vec<Value> {
        let values = values.into_values()?;
        if !values.iter().any(|value| matches!(value.type_(), Type::Buffer(_))) {
            bail!(type_, "inplace_custom expects a buffer among its values; use custom for an op on tensors only");
        }
        call(name, device, values, out_types, parameters)
    }
}

fn call(
    op: CustomRef,
    device: DeviceRef,
    values: Vec<Value>,
    types: Vec<Type>,
    parameters: Parameters,
) -> Result<Vec<Value>> {
    let op = match op {
        CustomRef::Op(op) => op,
        CustomRef::Name(name) => Graph::current()?.library().find(&name)?,
    };
    match op.meaning() {
        Meaning::Body(body) => inline(&op, body, device, &values, &types, &parameters),
        Meaning::Kernel(..) => record(Custom { op, device, parameters, types }, &values),
    }
}

/// Records the ops that an op stands for.
fn inline(
    op: &CustomOp,
    body: &BodyFn,
    device: DeviceRef,
    values: &[Value],
    types: &[Type],
    parameters: &Parameters,
) -> Result<Vec<Value>> {
    let operands: Vec<&Type> = values.iter().map(Value::type_).collect();
    op.check(&operands, &types.iter().collect::<Vec<_>>(), parameters, device)?;
    let values = values.iter().map(Value::tensor).collect::<Result<Vec<TensorValue>>>()?;
    let results: Vec<Value> = body(&values, parameters)?.into_iter().map(Value::from).collect();
    if !results.iter().map(Value::type_).eq(types) {
        let list = |types: &mut dyn Iterator<Item = &Type>| {
            types.map(Type::to_string).collect::<Vec<_>>().join(", ")
        };
        bail!(
            value,
            "the body of custom op '{}' returns ({}), but its out_types are ({})",
            op.name(),
            list(&mut results.iter().map(Value::type_)),
            list(&mut types.iter())
        );
    }
    Ok(results)
}

impl Operation for Custom {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        self.op.check(operands, &self.types.iter().collect::<Vec<_>>(), &self.parameters, self.device)?;
        Ok(self.types.clone())
    }

    fn properties(&self, signature: Signature) -> Properties {
        let mutable = signature.operands().any(|ty| matches!(ty, Type::Buffer(_)));
        Properties {
            effects: Effects { reads: mutable, writes: mutable, observable: false },
            checks: true,
            form: Form::Whole,
            folding: Folding::Never,
            heavy: true,
            rounds_operands: true,
        }
    }

    fn eval(&self, _: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        bail!(not_implemented, "the reference interpreter does not run custom op '{}'", self.op.name())
    }
}
