//! `Graph`: a shared handle on a body being built, and the stack of graphs being built on this thread.
//!
//! Ops record into the current graph, the innermost one entered; values remember their graph, so a value of
//! another graph is refused. While the region of an op is built, it is a graph nested in that of the op: what it uses from
//! there is captured, which makes it an argument. The location of the user's call is kept with each op and put on each error.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use max_core::{Error, Location, Result, TensorType, Type, bail};

use crate::custom::KernelLibrary;
use crate::host::HostTensor;
use crate::ir::{Body, ValueId};
use crate::op::OpKind;
use crate::operand::{Operand, Operands};
use crate::ops::constant::{Constant, ConstantExternal};
use crate::ops::fence::Fence;
use crate::region::Region;
use crate::value::{TensorValue, Value};
use crate::weight::Weight;

/// A graph being built, or built. Cloning makes another handle on the same graph.
#[derive(Clone)]
pub struct Graph(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// The graph whose values it may use, if it becomes the region of an op.
    parent: Option<Graph>,
}

struct State {
    body: Body,
    /// Values of the parent, and the arguments that stand for them.
    captures: Vec<(ValueId, ValueId)>,
    /// What calls of this graph run.
    callee: Option<Callee>,
    weights: HashMap<String, AddedWeight>,
    seed: Option<Seed>,
    library: KernelLibrary,
}

/// The seed of random numbers, and how many draws there have been since it was set.
struct Seed {
    value: ValueId,
    draws: u64,
}

/// A graph as calls run it: a region whose last arguments are its weights.
#[derive(Clone)]
pub(crate) struct Callee {
    pub(crate) region: Region,
    /// Each with its name, its type and the object that it came from.
    pub(crate) weights: Vec<(String, TensorType, u64)>,
}

/// The difference between the seeds of consecutive draws: 2**64 divided by the golden ratio, rounded to an odd number,
/// whose multiples are all different.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A weight that is in the graph: the object it came from, and its value.
struct AddedWeight {
    identity: u64,
    value: ValueId,
}

thread_local! {
    static CURRENT: RefCell<Vec<Graph>> = const { RefCell::new(Vec::new()) };
    static CALL_SITE: RefCell<CallSite> = const { RefCell::new(CallSite::Unknown) };
}

/// What is known about where the user's program called the op that is being recorded.
enum CallSite {
    /// Nothing yet: the next call to [`located`] or [`unlocated`] sets it.
    Unknown,
    /// The caller tracks it, so ops and errors carry no location.
    TrackedByCaller,
    /// This location.
    At(Location),
}

/// Regions of ops.
impl Graph {
    /// The graphs as regions that take the same captures after their own inputs, and those captures as values of this graph.
    pub(crate) fn close<const N: usize>(&self, nested: [&Graph; N]) -> Result<([Region; N], Vec<Value>)> {
        let mut outer: Vec<ValueId> = Vec::new();
        for graph in nested {
            if graph.0.parent.as_ref() != Some(self) {
                bail!(value, "region '{}' was built for another graph than '{}'", graph.name(), self.name());
            }
            for &(value, _) in &graph.state().captures {
                if !outer.contains(&value) {
                    outer.push(value);
                }
            }
        }
        let state = self.state();
        let regions = nested.map(|graph| {
            let nested = graph.state();
            let mut body = nested.body.clone();
            let inputs = body.block.arguments.len() - nested.captures.len();
            let mut arguments = body.block.arguments[..inputs].to_vec();
            for value in &outer {
                let known = nested.captures.iter().find(|(known, _)| known == value).map(|(_, inner)| *inner);
                arguments
                    .push(known.unwrap_or_else(|| body.add_argument(state.body.type_of(*value).clone())));
            }
            body.block.arguments = arguments;
            Region::new(body)
        });
        Ok((regions, outer.into_iter().map(|id| self.value(&state.body, id)).collect()))
    }

    /// Records the ops of another graph into this one, on values of this one or of those around it.
    pub(crate) fn inline(&self, body: &Body, arguments: &[Value]) -> Result<Vec<Value>> {
        let arguments =
            arguments.iter().map(|value| self.own(value, &body.name)).collect::<Result<Vec<_>>>()?;
        let mut state = self.state();
        let results = state.body.inline(body, &arguments)?;
        Ok(results.into_iter().map(|id| self.value(&state.body, id)).collect())
    }

    /// What a call of this graph runs; the same region for all calls, unless the graph has changed in between.
    pub(crate) fn callee(&self) -> Result<Callee> {
        let mut state = self.state();
        if self.0.parent.is_some() {
            bail!(value, "graph '{}' is a region of another graph, which cannot be called", state.body.name);
        }
        let is_same = |known: &Callee| {
            let (old, new) = (&known.region.body().block, &state.body.block);
            old.ops.len() + known.weights.len() == new.ops.len() && old.results == new.results
        };
        if let Some(known) = state.callee.as_ref().filter(|known| is_same(known)) {
            return Ok(known.clone());
        }
        let mut body = state.body.clone();
        let mut weights = Vec::new();
        for id in std::mem::take(&mut body.block.ops) {
            match &body.op(id).kind {
                OpKind::ConstantExternal(weight) => {
                    let result = body.op(id).results[0];
                    if let Type::Tensor(ty) = body.type_of(result) {
                        let identity = state.weights.get(&weight.name).map_or(0, |added| added.identity);
                        weights.push((weight.name.clone(), ty.clone(), identity));
                    }
                    body.block.arguments.push(result);
                }
                _ => body.block.ops.push(id),
            }
        }
        let callee = Callee { region: Region::new(body), weights };
        state.callee = Some(callee.clone());
        Ok(callee)
    }
}

impl Graph {
    /// A graph with inputs of the given types and no ops yet.
    #[track_caller]
    pub fn new<T: Into<Type>>(
        name: impl Into<String>,
        input_types: impl IntoIterator<Item = T>,
    ) -> Result<Graph> {
        let types: Vec<Type> = input_types.into_iter().map(Into::into).collect();
        types.iter().try_for_each(Type::validate).map_err(|e| e.at(Location::caller()))?;
        Ok(Graph::from_body(Body::new(name, types)))
    }

    /// A graph whose outputs are computed by a function of its inputs.
    ///
    /// ```
    /// use max_core::{DType, DeviceRef, TensorType};
    /// use max_graph::{Graph, ops};
    ///
    /// let x = TensorType::new(DType::Float32, ["batch"], DeviceRef::CPU);
    /// let graph = Graph::build("double", [x], |x| &x[0] + &x[0])?;
    /// assert_eq!(graph.output_types()?[0].to_string(), "float32[batch]");
    /// # Ok::<(), max_core::Error>(())
    /// ```
    #[track_caller]
    pub fn build<T: Into<Type>, O: Into<Operands>>(
        name: impl Into<String>,
        input_types: impl IntoIterator<Item = T>,
        forward: impl FnOnce(&[Value]) -> O,
    ) -> Result<Graph> {
        let graph = Graph::new(name, input_types)?;
        let scope = graph.enter();
        let outputs = forward(&graph.inputs());
        graph.output(outputs)?;
        drop(scope);
        Ok(graph)
    }

    /// A graph over a finished body.
    pub fn from_body(body: Body) -> Graph {
        let external = body.ops().filter_map(|op| match &op.kind {
            OpKind::ConstantExternal(c) => {
                Some((c.name.clone(), AddedWeight { identity: 0, value: op.results[0] }))
            }
            _ => None,
        });
        let weights = external.collect();
        Graph::with_parent(body, weights, None)
    }

    fn with_parent(body: Body, weights: HashMap<String, AddedWeight>, parent: Option<Graph>) -> Graph {
        let library = parent.as_ref().map(Graph::library).unwrap_or_default();
        let state = State { body, captures: Vec::new(), callee: None, weights, seed: None, library };
        Graph(Arc::new(Shared { state: Mutex::new(state), parent }))
    }

    /// A graph that becomes a region of an op of this one: it may use values of this one, and its weights are weights of
    /// this one.
    #[track_caller]
    pub fn nested<T: Into<Type>>(
        &self,
        name: impl Into<String>,
        input_types: impl IntoIterator<Item = T>,
    ) -> Result<Graph> {
        let types: Vec<Type> = input_types.into_iter().map(Into::into).collect();
        types.iter().try_for_each(Type::validate).map_err(|e| e.at(Location::caller()))?;
        Ok(Graph::with_parent(Body::new(name, types), HashMap::new(), Some(self.clone())))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held cannot leave a half-made op: bodies change by appending whole ops.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same graph, whose custom ops are found in a library by their names.
    pub fn with_library(self, library: &KernelLibrary) -> Graph {
        self.state().library = library.clone();
        self
    }

    /// Where its custom ops are found.
    pub fn library(&self) -> KernelLibrary {
        self.state().library.clone()
    }

    /// A copy of the graph as data.
    pub fn body(&self) -> Body {
        self.state().body.clone()
    }

    /// The number of ops.
    pub fn num_ops(&self) -> usize {
        self.state().body.block.ops.len()
    }

    /// Whether this is the only handle on the graph, values included.
    pub fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Replaces the data of the graph.
    pub fn set_body(&self, body: Body) {
        self.state().body = body;
    }

    /// Moves the graph's data out; the graph is empty afterwards.
    pub fn take_body(&self) -> Body {
        let mut state = self.state();
        (state.weights, state.seed, state.callee) = (HashMap::new(), None, None);
        state.captures.clear();
        std::mem::take(&mut state.body)
    }

    /// The name.
    pub fn name(&self) -> String {
        self.state().body.name.clone()
    }

    /// The inputs, as values to compute with.
    pub fn inputs(&self) -> Vec<Value> {
        let state = self.state();
        state.body.block.arguments.iter().map(|&id| self.value(&state.body, id)).collect()
    }

    /// An input by index; it must be a tensor.
    pub fn input(&self, number: usize) -> Result<TensorValue> {
        let state = self.state();
        match state.body.block.arguments.get(number) {
            Some(&id) => self.tensor_value(&state.body, id),
            None => bail!(index, "graph '{}' has no input {number}", state.body.name),
        }
    }

    /// Appends an input.
    #[track_caller]
    pub fn add_input(&self, ty: &TensorType) -> Result<TensorValue> {
        ty.validate().map_err(|e| e.at(Location::caller()))?;
        let input = self.state().body.add_argument(ty.clone().into());
        Ok(TensorValue::new(self.clone(), input, ty.clone()))
    }

    /// Sets what the graph returns.
    #[track_caller]
    pub fn output(&self, outputs: impl Into<Operands>) -> Result<()> {
        located("output", Location::caller(), || {
            let scope = self.enter();
            let outputs = outputs.into().into_values()?;
            drop(scope);
            let outputs = outputs.iter().map(|value| self.own(value, "output")).collect::<Result<_>>()?;
            self.state().body.block.results = Some(outputs);
            Ok(())
        })
    }

    /// Whatever is recorded later, on any device, runs after all that has been recorded so far.
    pub fn merge_device_chains(&self) -> Result<()> {
        self.state().body.push(Fence {}.into(), Vec::new(), current_location()).map(|_| ())
    }

    /// The outputs, once they are set.
    pub fn outputs(&self) -> Result<Vec<Value>> {
        let state = self.state();
        match &state.body.block.results {
            Some(results) => Ok(results.iter().map(|&id| self.value(&state.body, id)).collect()),
            None => bail!(value, "graph '{}' has no output yet: call output() first", state.body.name),
        }
    }

    /// The types of the outputs, once they are set.
    pub fn output_types(&self) -> Result<Vec<Type>> {
        let state = self.state();
        match &state.body.block.results {
            Some(results) => Ok(state.body.types_of(results).cloned().collect()),
            None => bail!(value, "graph '{}' has no output yet: call output() first", state.body.name),
        }
    }

    /// Adds a weight; adding the same weight again returns the same value. Of a shard, the whole is added.
    #[track_caller]
    pub fn add_weight(&self, weight: &Weight) -> Result<TensorValue> {
        if weight.whole().is_some() {
            let _scope = self.enter();
            return weight.value();
        }
        located("add_weight", Location::caller(), || {
            self.weight_value(&weight.name(), weight.tensor_type(), weight.identity(), false)
        })
    }

    /// The value of an external constant; a `shared` name may be used again with the same type.
    pub(crate) fn weight_value(
        &self,
        name: &str,
        ty: &TensorType,
        identity: u64,
        shared: bool,
    ) -> Result<TensorValue> {
        if let Some(parent) = &self.0.parent {
            let outer = parent.weight_value(name, ty, identity, shared)?;
            let inner = self.own(&outer.into(), "a weight")?;
            return Ok(TensorValue::new(self.clone(), inner, ty.clone()));
        }
        let mut state = self.state();
        if let Some(added) = state.weights.get(name) {
            let value = self.tensor_value(&state.body, added.value)?;
            return match value.tensor_type() == ty {
                true if shared || added.identity == identity => Ok(value),
                true => Err(Error::value(format!(
                    "weight '{name}' already exists in graph '{}'",
                    state.body.name
                ))),
                false => Err(Error::value(format!(
                    "weight '{name}' already exists in graph '{}' with a different type: {} instead of {ty}",
                    state.body.name,
                    value.tensor_type()
                ))),
            };
        }
        let TensorType { dtype, shape, device, layout } = ty.clone();
        let kind = ConstantExternal { name: name.into(), dtype, shape, device, layout };
        let op = state.body.push(kind.into(), Vec::new(), current_location())?;
        let value = state.body.op(op).results[0];
        state.weights.insert(name.into(), AddedWeight { identity, value });
        self.tensor_value(&state.body, value)
    }

    /// Sets the seed for the draws that follow.
    pub(crate) fn set_seed(&self, seed: &TensorValue) -> Result<()> {
        let value = self.own(&seed.into(), "random.set_seed")?;
        self.state().seed = Some(Seed { value, draws: 0 });
        Ok(())
    }

    /// The seed for the next draw, different for each.
    pub(crate) fn next_seed(&self) -> Result<TensorValue> {
        let own = self.state().seed.is_some();
        if let Some(parent) = self.0.parent.as_ref().filter(|_| !own) {
            let entered = parent.enter();
            let outer = parent.next_seed()?;
            drop(entered);
            let ty = outer.tensor_type().clone();
            let inner = self.own(&outer.into(), "random")?;
            return Ok(TensorValue::new(self.clone(), inner, ty));
        }
        let (seed, draws) = {
            let mut state = self.state();
            let state = &mut *state;
            let Some(seed) = &mut state.seed else {
                bail!(runtime, "No seed set: call ops.random.set_seed() before drawing random numbers");
            };
            seed.draws += 1;
            (self.tensor_value(&state.body, seed.value)?, seed.draws - 1)
        };
        if draws == 0 {
            return Ok(seed);
        }
        let step = HostTensor::from_vec([], vec![draws.wrapping_mul(SEED_STEP)])?.cast(seed.dtype())?;
        crate::ops::add(&seed, record_one(Constant { value: step, device: seed.device() }, []))
    }

    /// Makes this the current graph until the scope is dropped.
    pub fn enter(&self) -> Scope {
        CURRENT.with_borrow_mut(|stack| stack.push(self.clone()));
        Scope { graph: self.clone(), _not_send: std::marker::PhantomData }
    }

    /// How many graphs are being built on this thread, nested in one another.
    pub fn depth() -> usize {
        CURRENT.with_borrow(Vec::len)
    }

    /// The graph that ops record into.
    pub fn current() -> Result<Graph> {
        let top = CURRENT.with_borrow(|stack| stack.last().cloned());
        top.ok_or_else(|| {
            Error::lookup("No graph found: ops and weights can only be used while a graph is being built")
        })
    }

    /// The id of a value here: its own, or that of the argument that stands for a value of the surrounding graphs.
    fn own(&self, value: &Value, user: &str) -> Result<ValueId> {
        if value.graph() == self {
            return Ok(value.id());
        }
        if !self.is_inside(value.graph()) {
            return self.refuse(value, user);
        }
        let Some(parent) = &self.0.parent else { return self.refuse(value, user) };
        let outer = parent.own(value, user)?;
        let mut state = self.state();
        if let Some(&(_, inner)) = state.captures.iter().find(|(known, _)| *known == outer) {
            return Ok(inner);
        }
        let inner = state.body.add_argument(value.type_().clone());
        state.captures.push((outer, inner));
        Ok(inner)
    }

    /// Whether it is nested in another graph, whose values it may use.
    pub fn is_inside(&self, other: &Graph) -> bool {
        let mut parent = self.0.parent.as_ref();
        while let Some(graph) = parent {
            if graph == other {
                return true;
            }
            parent = graph.0.parent.as_ref();
        }
        false
    }

    fn refuse<T>(&self, value: &Value, user: &str) -> Result<T> {
        let (owner, ty) = (value.graph(), value.type_());
        let here = match self.name() {
            // An op on tensors: the user has not made a graph here.
            name if name.is_empty() => "outside of it".into(),
            name => format!("in graph '{name}'"),
        };
        bail!(
            value,
            "a value of graph '{}' ({ty}) is used by {user} {here}: values belong to one graph",
            owner.name()
        )
    }

    fn tensor_value(&self, body: &Body, id: ValueId) -> Result<TensorValue> {
        match body.type_of(id) {
            Type::Tensor(ty) => Ok(TensorValue::new(self.clone(), id, ty.clone())),
            other => bail!(type_, "expected a tensor, got a value of type {other}"),
        }
    }

    fn value(&self, body: &Body, id: ValueId) -> Value {
        Value::new(self.clone(), id, body.type_of(id))
    }
}

/// Records an op into the current graph.
pub(crate) fn record(kind: impl Into<OpKind>, operands: &[Value]) -> Result<Vec<Value>> {
    let (graph, kind) = (Graph::current()?, kind.into());
    let operands = operands.iter().map(|operand| graph.own(operand, kind.name()));
    let operands = operands.collect::<Result<_>>()?;
    let mut state = graph.state();
    let op = state.body.push(kind, operands, current_location())?;
    Ok(state.body.op(op).results.iter().map(|&id| graph.value(&state.body, id)).collect())
}

/// Records an op whose result is one tensor.
pub fn record_one<'a>(
    kind: impl Into<OpKind>,
    operands: impl IntoIterator<Item = &'a TensorValue>,
) -> Result<TensorValue> {
    let (graph, kind) = (Graph::current()?, kind.into());
    let operands = operands.into_iter().map(|operand| match operand.graph() == &graph {
        true => Ok(operand.id()),
        false => graph.own(&operand.into(), kind.name()),
    });
    let operands = operands.collect::<Result<_>>()?;
    let mut state = graph.state();
    let op = state.body.push(kind, operands, current_location())?;
    match state.body.op(op).results.first() {
        Some(&id) => graph.tensor_value(&state.body, id),
        None => Err(Error::internal("an op that should have a result has none")),
    }
}

/// Runs a builder under the location of the user's call: ops remember it and errors carry it. An outer location takes
/// precedence, so composite ops report where they were called.
pub fn located<R>(what: &str, location: Location, build: impl FnOnce() -> Result<R>) -> Result<R> {
    at_call_site(|| CallSite::At(location.clone()), build).map_err(|(e, outermost)| match outermost {
        true => e.context_or(|| format!("in {what}")).at(location),
        false => e,
    })
}

/// Runs a builder whose call site is known to the code that handles its errors.
pub fn unlocated<R>(what: &str, build: impl FnOnce() -> Result<R>) -> Result<R> {
    at_call_site(|| CallSite::TrackedByCaller, build).map_err(|(e, outermost)| match outermost {
        true => e.context_or(|| format!("in {what}")),
        false => e,
    })
}

/// Runs a builder under a call site, unless one is set already; errors say whether this was the outermost.
fn at_call_site<R>(
    site: impl FnOnce() -> CallSite,
    build: impl FnOnce() -> Result<R>,
) -> std::result::Result<R, (Error, bool)> {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            CALL_SITE.set(CallSite::Unknown);
        }
    }
    if CALL_SITE.with_borrow(|site| !matches!(site, CallSite::Unknown)) {
        return build().map_err(|e| (e, false));
    }
    CALL_SITE.set(site());
    let _reset = Reset;
    build().map_err(|e| (e, true))
}

/// The location in the user's program of the call that is being processed.
pub fn current_location() -> Option<Location> {
    CALL_SITE.with_borrow(|site| match site {
        CallSite::At(location) => Some(location.clone()),
        _ => None,
    })
}

/// A number that is unique to one weight.
pub(crate) fn unique_identity() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A guard: while it lives, its graph is current on this thread.
pub struct Scope {
    graph: Graph,
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        // Its own entry, wherever it is: scopes may be dropped in any order.
        CURRENT.with_borrow_mut(|stack| {
            if let Some(at) = stack.iter().rposition(|graph| *graph == self.graph) {
                stack.remove(at);
            }
        });
    }
}

/// Identity: two handles on the same graph.
impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Graph {}

/// The text form, with large constants elided.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::text::print(&self.state().body, crate::text::Constants::Elided))
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph('{}')", self.name())
    }
}

impl From<Result<()>> for Operands {
    fn from(nothing: Result<()>) -> Operands {
        Operands::from(nothing.map(|()| Vec::<Value>::new()))
    }
}

impl From<()> for Operands {
    fn from((): ()) -> Operands {
        Operands::from(Vec::<Operand>::new())
    }
}
