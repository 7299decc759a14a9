//! The reference interpreter: runs a body op by op, each by its own definition. Every other way to run a graph is
//! compared with it, so it is simple rather than fast.

use std::collections::HashMap;

use max_core::{Bindings, Error, Result, Type, bail};

use crate::host::HostTensor;
use crate::ir::{Body, ValueId};
use crate::op::Run;

/// What a run needs from its environment.
pub trait Environment {
    /// The value of a weight.
    fn weight(&self, name: &str) -> Result<HostTensor>;

    /// Called before each op; an error ends the run.
    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }
}

/// An environment without weights.
impl Environment for () {
    fn weight(&self, name: &str) -> Result<HostTensor> {
        bail!(key, "there is no weight '{name}'")
    }
}

/// Runs a body on inputs.
pub fn interpret(
    body: &Body,
    inputs: &[HostTensor],
    environment: &dyn Environment,
) -> Result<Vec<HostTensor>> {
    interpret_in_place(body, &mut inputs.to_vec(), environment)
}

/// Runs a body on inputs, of which those that are buffers are replaced by their new contents.
pub fn interpret_in_place(
    body: &Body,
    inputs: &mut [HostTensor],
    environment: &dyn Environment,
) -> Result<Vec<HostTensor>> {
    run(body, inputs, &Run { bindings: &Bindings::new(), environment })
}

/// Runs a body as part of another run, whose symbols it knows.
pub(crate) fn run(body: &Body, inputs: &mut [HostTensor], outer: &Run) -> Result<Vec<HostTensor>> {
    let environment = outer.environment;
    let sizes: Vec<_> = inputs.iter().map(HostTensor::shape).collect();
    let types: Vec<_> = body.types_of(&body.block.arguments).collect();
    let mut bindings = bind_inputs(&types, &sizes, outer.bindings)?;
    let mut values: HashMap<ValueId, HostTensor> =
        body.block.arguments.iter().copied().zip(inputs.iter().cloned()).collect();
    let last_use = last_uses(body);
    for (at, op) in body.ops().enumerate() {
        environment.checkpoint()?;
        let mut run_op = || -> Result<()> {
            let operands = op.operands.iter().map(|v| take(&values, *v)).collect::<Result<Vec<_>>>()?;
            let mut results = op.kind.eval(&operands, &Run { bindings: &bindings, environment })?.into_iter();
            for (&id, result) in op.results.iter().zip(results.by_ref()) {
                unify(body.type_of(id), &result, &mut bindings)?;
                values.insert(id, result);
            }
            let buffers = op.operands.iter().filter(|&&id| matches!(body.type_of(id), Type::Buffer(_)));
            for (&buffer, contents) in buffers.zip(results) {
                values.insert(buffer, contents);
            }
            Ok(())
        };
        run_op().map_err(|e| {
            let e = e.context(op.describe(body));
            op.location.iter().cloned().fold(e, Error::at)
        })?;
        for operand in op.operands.iter().chain(&op.results) {
            if last_use.get(operand).is_none_or(|&last| last <= at) {
                values.remove(operand);
            }
        }
    }
    for (input, argument) in inputs.iter_mut().zip(&body.block.arguments) {
        if let (Type::Buffer(_), Some(contents)) = (body.type_of(*argument), values.get(argument)) {
            *input = contents.clone();
        }
    }
    let results = body.block.results.as_deref().unwrap_or_default();
    results.iter().map(|v| take(&values, *v)).collect()
}

fn take(values: &HashMap<ValueId, HostTensor>, id: ValueId) -> Result<HostTensor> {
    values.get(&id).cloned().ok_or_else(|| Error::internal(format!("value %{} was never computed", id.0)))
}

/// The op after which each value is no longer needed; results of the body and its buffers are needed to the end.
fn last_uses(body: &Body) -> HashMap<ValueId, usize> {
    let mut last = HashMap::new();
    for (at, op) in body.ops().enumerate() {
        last.extend(op.operands.iter().map(|&v| (v, at)));
    }
    let buffers = body.block.arguments.iter().filter(|&&v| matches!(body.type_of(v), Type::Buffer(_)));
    last.extend(body.block.results.iter().flatten().chain(buffers).map(|&v| (v, usize::MAX)));
    last
}

/// Checks the sizes of inputs against their types and binds the symbols, in addition to those that are known.
pub fn bind_inputs(types: &[&Type], sizes: &[&[usize]], known: &Bindings) -> Result<Bindings> {
    if types.len() != sizes.len() {
        bail!(value, "the graph takes {} inputs, got {}", types.len(), sizes.len());
    }
    let mut bindings = known.clone();
    let mut pending = Vec::new();
    for (input, (ty, sizes)) in types.iter().zip(sizes).enumerate() {
        let Some((_, shape)) = ty.array() else { bail!(type_, "input{input} of type {ty} cannot be given") };
        if shape.rank() != sizes.len() {
            bail!(
                value,
                "input{input} must have rank {} ({ty}), got rank {} with shape {sizes:?}",
                shape.rank(),
                sizes.len()
            );
        }
        for (axis, (dim, &size)) in shape.iter().zip(*sizes).enumerate() {
            pending.push((input, axis, dim, size as i64));
        }
    }
    // Plain symbols first; the rest is solved or checked as its symbols become known.
    pending.sort_by_key(|(_, _, dim, _)| matches!(dim, max_core::Dim::Algebraic(_)));
    let mut unbound = pending.clone();
    loop {
        let before = unbound.len();
        let mut left = Vec::new();
        for item in unbound {
            if !item.2.bind(item.3, &mut bindings)? {
                left.push(item);
            }
        }
        unbound = left;
        match unbound.first() {
            None => break,
            Some((input, axis, dim, size)) if unbound.len() == before => {
                bail!(
                    value,
                    "cannot tell what {dim} stands for on axis {axis} of input{input}, whose size is {size}"
                )
            }
            Some(_) => {}
        }
    }
    for (input, axis, dim, size) in pending {
        let expected = dim.evaluate(&bindings)?;
        if expected != size {
            let what = match dim.parameters().as_slice() {
                [] => format!("must be {expected}"),
                _ => format!("is the symbolic dimension '{dim}', which is {expected} from the other inputs"),
            };
            bail!(value, "axis {axis} of input{input} ({}) {what}; got {size}", types[input]);
        }
    }
    Ok(bindings)
}

/// Binds the symbols that a result determines and checks the others.
fn unify(ty: &Type, result: &HostTensor, bindings: &mut Bindings) -> Result<()> {
    let Some((dtype, shape)) = ty.array() else { return Ok(()) };
    if dtype != result.dtype() || shape.rank() != result.shape().len() {
        bail!(internal, "an op of type {ty} gave {} {:?}", result.dtype(), result.shape());
    }
    for (dim, &size) in shape.iter().zip(result.shape()) {
        dim.bind(size as i64, bindings)?;
        let expected = dim.evaluate(bindings)?;
        if expected != size as i64 {
            bail!(value, "the symbolic dimension '{dim}' is {expected}, but the result has the size {size}");
        }
    }
    Ok(())
}
