//! The graph that the op functions of a call on tensors record into.
//!
//! Its inputs are the tensors among the operands, in order of first use. Op functions see nothing of a tensor but its type,
//! so a fragment serves all calls that differ only in their tensors: see [`crate::calls`].

use std::cell::{Cell as Slot, RefCell};
use std::sync::Arc;

use max_core::{Result, bail};
use max_graph::properties::Effects;
use max_graph::{Body, Graph, OpKind, TensorValue, Value, ValueId};

use crate::cache::Known;
use crate::node::Cell;

thread_local! {
    /// The calls that are being recorded, innermost last.
    static OPEN: RefCell<Vec<Open>> = const { RefCell::new(Vec::new()) };
    /// An empty graph whose allocations are reused.
    static SPARE: Slot<Option<(Graph, Body)>> = const { Slot::new(None) };
}

struct Open {
    graph: Graph,
    operands: Vec<Arc<Cell>>,
}

/// What the op functions of one call have recorded.
pub(crate) struct Fragment {
    graph: Graph,
    /// What was recorded; its results are those of the call that must be computed, each once.
    pub(crate) body: Body,
    /// The results of the call. A result that is an input is that tensor.
    pub(crate) results: Vec<ValueId>,
    /// Whether its ops can run later: they only compute, and their results have known sizes.
    pub(crate) can_wait: bool,
    /// The model that computes the results.
    pub(crate) known: Known,
}

impl Fragment {
    /// Runs op functions and keeps what they record, and the tensors that are its inputs.
    pub(crate) fn build(build: impl FnOnce() -> Result<Vec<Value>>) -> Result<(Fragment, Vec<Arc<Cell>>)> {
        struct Close;
        impl Drop for Close {
            fn drop(&mut self) {
                OPEN.with_borrow_mut(|open| open.pop());
            }
        }
        let (graph, body) =
            SPARE.take().unwrap_or_else(|| (Graph::from_body(Body::default()), Body::default()));
        graph.set_body(body);
        OPEN.with_borrow_mut(|open| open.push(Open { graph: graph.clone(), operands: Vec::new() }));
        let close = Close;
        let entered = graph.enter();
        let results = build()?;
        drop(entered);
        for value in &results {
            if value.graph() != &graph {
                bail!(value, "an op on tensors returned a value of graph '{}'", value.graph().name());
            }
        }
        let results: Vec<_> = results.iter().map(Value::id).collect();
        let operands =
            OPEN.with_borrow_mut(|open| open.last_mut().map(|open| std::mem::take(&mut open.operands)));
        drop(close);
        let mut body = graph.take_body();
        let mut computed = results.clone();
        computed.retain(|id| !body.block.arguments.contains(id));
        computed.sort();
        computed.dedup();
        body.block.results = Some(computed);
        let fragment = Fragment { graph, can_wait: can_wait(&body), body, results, known: Known::default() };
        for op in fragment.body.ops() {
            if let OpKind::ConstantExternal(weight) = &op.kind {
                bail!(
                    value,
                    "weight '{}' has no parent graph here and no data yet: it gets its data when a graph that uses it is loaded",
                    weight.name
                );
            }
        }
        Ok((fragment, operands.unwrap_or_default()))
    }

    /// The results that must be computed.
    pub(crate) fn computed(&self) -> &[ValueId] {
        self.body.block.results.as_deref().unwrap_or_default()
    }

    /// The input that a value is, if it is one.
    pub(crate) fn given(&self, id: &ValueId) -> Option<usize> {
        self.body.block.arguments.iter().position(|argument| argument == id)
    }

    /// Whether it is too large to be kept for later.
    pub(crate) fn is_large(&self) -> bool {
        self.body.num_values() > 100
    }

    /// The value of a cell in the fragment of a graph; `None` if the graph is not a fragment.
    pub(crate) fn operand(graph: &Graph, cell: &Arc<Cell>) -> Option<Result<TensorValue>> {
        OPEN.with_borrow_mut(|open| {
            let open = open.last_mut().filter(|open| open.graph == *graph)?;
            match open.operands.iter().position(|operand| Arc::ptr_eq(operand, cell)) {
                Some(known) => Some(graph.input(known)),
                None => Some(open.add(cell)),
            }
        })
    }
}

impl Open {
    fn add(&mut self, cell: &Arc<Cell>) -> Result<TensorValue> {
        if let Some(value) = cell.value() {
            bail!(
                value,
                "a tensor that represents a value of graph '{}' ({}) is used outside of that graph",
                value.graph().name(),
                cell.ty
            );
        }
        let value = self.graph.add_input(&cell.ty)?;
        self.operands.push(cell.clone());
        Ok(value)
    }
}

/// Whether ops can run later: they only compute, and their results have known sizes.
fn can_wait(body: &Body) -> bool {
    let known = |id: &ValueId| {
        body.type_of(*id).array().is_some_and(|(_, shape)| shape.iter().all(|dim| dim.as_static().is_some()))
    };
    body.ops().all(|op| body.properties(op).effects == Effects::NONE && op.results.iter().all(known))
}

/// The allocations of a graph are reused for the next one, unless they are large.
impl Drop for Fragment {
    fn drop(&mut self) {
        if !self.is_large() && self.graph.is_unshared() {
            self.body.clear();
            let spare = (self.graph.clone(), std::mem::take(&mut self.body));
            // Fails where the thread ends, and drops what it kept.
            let _ = SPARE.try_with(|slot| slot.set(Some(spare)));
        }
    }
}
