//! Control flow: ops that run regions.
//!
//! A `cond` runs one of two regions. A `while` runs its region as long as a condition holds: the first condition is an
//! operand, and each run returns, after the values it passes on, whether there is another. A `call` runs a region that other
//! calls may run too; the weights of the called graph are operands of each call.

use max_core::{DType, DeviceRef, Result, TensorType, Type, bail};

use crate::attr::op_struct;
use crate::graph::{Graph, record};
use crate::host::HostTensor;
use crate::interpret;
use crate::op::{Operation, Run};
use crate::operand::{Operand, Operands};
use crate::properties::{Folding, Form, Properties, Signature};
use crate::region::Region;
use crate::registry::op_fns;
use crate::value::{TensorValue, Value};

op_struct! {
    /// Runs the first region if the first operand is true, else the second one, on the other operands.
    Cond = "cond" { regions: Vec<Region> }
}

op_struct! {
    /// Runs its region as long as there is to be another run: the first operand says so for the first run, the last result
    /// of each run for the next. The other results of a run are the first operands of the next one; operands beyond these
    /// are the same in all runs.
    While = "while" { regions: Vec<Region> }
}

op_struct! {
    /// Runs its region on the operands.
    Call = "call" { regions: Vec<Region> }
}

/// Runs one of two functions, depending on a scalar.
///
/// ```
/// use max_core::{DType, DeviceRef, TensorType};
/// use max_graph::{Graph, ops};
///
/// let x = TensorType::new(DType::Float32, ["n"], DeviceRef::CPU);
/// let flag = TensorType::new(DType::Bool, [] as [i64; 0], DeviceRef::CPU);
/// let graph = Graph::build("cond", [x.clone(), flag], |inputs| {
///     let [x, flag] = inputs else { unreachable!() };
///     ops::cond(flag, Some(vec![x.type_().clone()]), || ops::relu(x), || ops::exp(x))
/// })?;
/// assert_eq!(graph.output_types()?, [x.into()]);
/// # Ok::<(), max_core::Error>(())
/// ```
#[track_caller]
pub fn cond<T: Into<Operands>, E: Into<Operands>>(
    predicate: impl Into<Operand>,
    out_types: Option<Vec<Type>>,
    then: impl FnOnce() -> T,
    otherwise: impl FnOnce() -> E,
) -> Result<Vec<Value>> {
    let graph = Graph::current()?;
    let then = region(&graph, "then", &[], |_| then())?;
    let otherwise = region(&graph, "else", &[], |_| otherwise())?;
    cond_of(predicate, out_types, then, otherwise)
}

/// Runs a function on values, and then on its own results, as long as a predicate of the values holds.
#[track_caller]
pub fn while_loop<P: Into<Operands>, B: Into<Operands>>(
    initial_values: impl Into<Operands>,
    predicate: impl FnOnce(&[Value]) -> P,
    body: impl FnOnce(&[Value]) -> B,
) -> Result<Vec<Value>> {
    let graph = Graph::current()?;
    let values = initial_values.into().into_values()?;
    let types: Vec<Type> = values.iter().map(|value| value.type_().clone()).collect();
    let predicate = region(&graph, "predicate", &types, predicate)?;
    let body = region(&graph, "body", &types, body)?;
    while_of(values, predicate, body)
}

/// Runs a graph that was made with [`Graph::new`] as part of the current one. The names of its weights get a prefix.
#[track_caller]
pub fn call(graph: &Graph, args: impl Into<Operands>, prefix: &str) -> Result<Vec<Value>> {
    call_of(graph.clone(), args, prefix.to_string(), Vec::new())
}

/// A graph nested in another, built by a function of its inputs.
#[track_caller]
fn region<O: Into<Operands>>(
    parent: &Graph,
    name: &str,
    types: &[Type],
    build: impl FnOnce(&[Value]) -> O,
) -> Result<Graph> {
    let graph = parent.nested(name, types.iter().cloned())?;
    let entered = graph.enter();
    let outputs = build(&graph.inputs());
    graph.output(outputs)?;
    drop(entered);
    Ok(graph)
}

op_fns! {
    /// Runs one of two nested graphs, depending on a scalar.
    pub fn cond_of(pred: Operand, out_types: Option<Vec<Type>>, then: Graph, otherwise: Graph) -> Vec<Value> as "cond" {
        let pred = predicate(pred.tensor()?)?;
        let expected = out_types.unwrap_or_default();
        for (branch, graph) in [("then_fn", &then), ("else_fn", &otherwise)] {
            check_results(branch, &expected, &graph.output_types()?)?;
        }
        let (regions, captures) = Graph::current()?.close([&then, &otherwise])?;
        let operands: Vec<Value> = [pred.into()].into_iter().chain(captures).collect();
        record(Cond { regions: regions.to_vec() }, &operands)
    }

    /// Runs a nested graph on values and then on its own results, as long as another one holds for them.
    pub fn while_of(initial_values: Operands, predicate: Graph, body: Graph) -> Vec<Value> as "while_loop" {
        let initial = initial_values.into_values()?;
        if initial.is_empty() {
            bail!(value, "while_loop requires at least one initial value");
        }
        if let Some(buffer) = initial.iter().find(|value| !matches!(value.type_(), Type::Tensor(_))) {
            bail!(
                not_implemented,
                "buffers are not supported in while loops as values that are carried: use {} in the body instead",
                buffer.type_()
            );
        }
        let types: Vec<Type> = initial.iter().map(|value| value.type_().clone()).collect();
        match &predicate.output_types()?[..] {
            [Type::Tensor(flag)] if is_flag(flag) => check_host(flag)?,
            other => bail!(
                value,
                "the predicate of while_loop must return one scalar of type bool; Results don't match expected types: got {}",
                list(other)
            ),
        }
        check_results("body", &types, &body.output_types()?)?;
        let graph = Graph::current()?;
        let ([condition], outside) = graph.close([&predicate])?;
        let first = graph.inline(condition.body(), &[&initial[..], &outside].concat())?;
        let next: Vec<Value> = body.outputs()?.into_iter().chain(outside).collect();
        let again = body.inline(condition.body(), &next)?;
        body.output(next[..types.len()].iter().cloned().chain(again).collect::<Vec<_>>())?;
        let ([region], captures) = graph.close([&body])?;
        let operands: Vec<Value> = first.into_iter().chain(initial).chain(captures).collect();
        record(While { regions: vec![region] }, &operands)
    }

    /// Runs a graph as part of the current one. The names of its weights get a prefix, except some that stay as they are.
    pub fn call_of(graph: Graph, args: Operands, prefix: String, unprefixed: Vec<String>) -> Vec<Value> as "call" {
        let (caller, callee) = (Graph::current()?, graph.callee()?);
        let mut operands = args.into_values()?;
        let inputs = callee.region.body().block.arguments.len() - callee.weights.len();
        if operands.len() != inputs {
            bail!(value, "graph '{}': Expected {inputs} args, got {}", graph.name(), operands.len());
        }
        for (name, ty, identity) in &callee.weights {
            let prefix = if unprefixed.contains(name) { "" } else { &prefix };
            let identity = if prefix.is_empty() { *identity } else { 0 };
            let weight = caller.weight_value(&format!("{prefix}{name}"), ty, identity, true)?;
            operands.push(weight.into());
        }
        record(Call { regions: vec![callee.region] }, &operands)
            .map_err(|e| e.context(format!("in a call of graph '{}'", graph.name())))
    }
}

fn is_flag(ty: &TensorType) -> bool {
    ty.dtype == DType::Bool && ty.shape.rank() == 0
}

/// A scalar that decides, on the host.
fn predicate(value: TensorValue) -> Result<TensorValue> {
    if !is_flag(value.tensor_type()) {
        bail!(value, "the predicate must be a scalar of type bool; got {}", value.tensor_type());
    }
    check_host(value.tensor_type())?;
    Ok(value)
}

/// The host decides.
fn check_host(flag: &TensorType) -> Result<()> {
    if flag.device != DeviceRef::CPU {
        bail!(
            value,
            "the predicate must reside on CPU; got {flag}, which an explicit transfer_to would bring there"
        );
    }
    Ok(())
}

fn check_results(what: &str, expected: &[Type], found: &[Type]) -> Result<()> {
    if expected != found {
        bail!(
            value,
            "Results don't match expected types: {what} returns {}; expected {}",
            list(found),
            list(expected)
        );
    }
    Ok(())
}

fn list(types: &[Type]) -> String {
    let types: Vec<_> = types.iter().map(Type::to_string).collect();
    format!("[{}]", types.join(", "))
}

/// What an op that runs regions may do: what they may.
fn properties(regions: &[Region], own: impl Fn(&Region) -> bool) -> Properties {
    let none = crate::properties::Effects::NONE;
    Properties {
        effects: regions.iter().fold(none, |effects, region| effects.and(region.effects())),
        checks: regions.iter().any(own),
        form: Form::Whole,
        folding: Folding::Never,
        heavy: true,
        rounds_operands: false,
    }
}

/// Results, followed by the buffers among the operands.
fn run(region: &Region, operands: &[HostTensor], outer: &Run) -> Result<(Vec<HostTensor>, Vec<HostTensor>)> {
    let body = region.body();
    let mut inputs = operands.to_vec();
    let results = interpret::run(body, &mut inputs, outer)?;
    let is_buffer = |argument: &_| matches!(body.type_of(*argument), Type::Buffer(_));
    let inputs = inputs.into_iter().zip(&body.block.arguments);
    Ok((results, inputs.filter(|(_, argument)| is_buffer(argument)).map(|(input, _)| input).collect()))
}

/// Whether a scalar on the host says yes.
fn holds(flag: &HostTensor) -> bool {
    flag.bytes().first().is_some_and(|&byte| byte != 0)
}

fn split<'a, 'b>(operands: &'a [&'b Type], what: &str) -> Result<&'a [&'b Type]> {
    match operands {
        [Type::Tensor(flag), rest @ ..] if is_flag(flag) && flag.device == DeviceRef::CPU => Ok(rest),
        _ => bail!(value, "{what} needs a scalar of type bool on the host as its first operand"),
    }
}

impl Operation for Cond {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let rest = split(operands, "cond")?;
        let [then, otherwise] = &self.regions[..] else {
            bail!(value, "cond has two regions; got {}", self.regions.len())
        };
        let types = then.infer(rest)?;
        check_results("the second region", &types, &otherwise.infer(rest)?)?;
        Ok(types)
    }

    fn properties(&self, _: Signature) -> Properties {
        properties(&self.regions, Region::checks)
    }

    fn regions(&self) -> &[Region] {
        &self.regions
    }

    fn regions_mut(&mut self) -> &mut [Region] {
        &mut self.regions
    }

    fn eval(&self, operands: &[HostTensor], outer: &Run) -> Result<Vec<HostTensor>> {
        let region = &self.regions[usize::from(!holds(&operands[0]))];
        let (results, buffers) = run(region, &operands[1..], outer)?;
        Ok([results, buffers].concat())
    }
}

impl Operation for While {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let rest = split(operands, "while")?;
        let [body] = &self.regions[..] else {
            bail!(value, "while has one region; got {}", self.regions.len())
        };
        let mut types = body.infer(rest)?;
        match types.pop() {
            Some(Type::Tensor(flag)) if is_flag(&flag) && flag.device == DeviceRef::CPU => {}
            _ => bail!(value, "the last result of a loop must be a scalar of type bool on the host"),
        }
        if types.len() > rest.len() || types.iter().zip(rest).any(|(result, operand)| result != *operand) {
            bail!(value, "a loop passes on {}, but takes values of other types", list(&types));
        }
        Ok(types)
    }

    /// A loop may not end, which is something that can be noticed.
    fn properties(&self, _: Signature) -> Properties {
        properties(&self.regions, |_| true)
    }

    fn regions(&self) -> &[Region] {
        &self.regions
    }

    fn regions_mut(&mut self) -> &mut [Region] {
        &mut self.regions
    }

    fn eval(&self, operands: &[HostTensor], outer: &Run) -> Result<Vec<HostTensor>> {
        let body = self.regions[0].body();
        let carried = body.block.results.as_ref().map_or(0, Vec::len).saturating_sub(1);
        let (mut again, mut values) = (holds(&operands[0]), operands[1..].to_vec());
        while again {
            outer.environment.checkpoint()?;
            let results = interpret::run(body, &mut values, outer)?;
            again = results.last().is_some_and(holds);
            for (value, result) in values.iter_mut().zip(results).take(carried) {
                *value = result;
            }
        }
        let buffers = values.iter().zip(&body.block.arguments);
        let buffers = buffers.filter(|(_, argument)| matches!(body.type_of(**argument), Type::Buffer(_)));
        let buffers: Vec<_> = buffers.map(|(value, _)| value.clone()).collect();
        Ok(values[..carried].iter().cloned().chain(buffers).collect())
    }
}

impl Operation for Call {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [region] = &self.regions[..] else {
            bail!(value, "call has one region; got {}", self.regions.len())
        };
        region.infer(operands)
    }

    fn properties(&self, _: Signature) -> Properties {
        properties(&self.regions, Region::checks)
    }

    fn regions(&self) -> &[Region] {
        &self.regions
    }

    fn regions_mut(&mut self) -> &mut [Region] {
        &mut self.regions
    }

    fn eval(&self, operands: &[HostTensor], outer: &Run) -> Result<Vec<HostTensor>> {
        let (results, buffers) = run(&self.regions[0], operands, outer)?;
        Ok([results, buffers].concat())
    }
}
