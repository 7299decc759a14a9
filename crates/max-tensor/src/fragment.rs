//! The graph that the op functions of one call on tensors record into.
//!
//! Its inputs are the tensors among the operands, in order of first use.

use std::cell::{Cell as Slot, RefCell};
use std::sync::Arc;

use max_core::{Result, bail};
use max_graph::{Body, Graph, OpKind, TensorValue, Value, ValueId};

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
    body: Body,
    /// The tensors that are its inputs.
    pub(crate) operands: Vec<Arc<Cell>>,
    /// The results of the call.
    pub(crate) results: Vec<ValueId>,
}

impl Fragment {
    /// Runs op functions and keeps what they record.
    pub(crate) fn build(build: impl FnOnce() -> Result<Vec<Value>>) -> Result<Fragment> {
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
        let results = results.iter().map(Value::id).collect();
        let operands =
            OPEN.with_borrow_mut(|open| open.last_mut().map(|open| std::mem::take(&mut open.operands)));
        drop(close);
        let body = graph.take_body();
        let fragment = Fragment { graph, body, operands: operands.unwrap_or_default(), results };
        for op in fragment.body.ops() {
            if let OpKind::ConstantExternal(weight) = &op.kind {
                bail!(
                    value,
                    "weight '{}' has no parent graph here and no data yet: it gets its data when a graph that uses it is loaded",
                    weight.name
                );
            }
        }
        Ok(fragment)
    }

    pub(crate) fn body(&self) -> &Body {
        &self.body
    }

    pub(crate) fn body_mut(&mut self) -> &mut Body {
        &mut self.body
    }

    /// The operand that a value is, if it is one.
    pub(crate) fn given(&self, id: &ValueId) -> Option<&Arc<Cell>> {
        let argument = self.body.block.arguments.iter().position(|argument| argument == id)?;
        self.operands.get(argument)
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

/// The allocations of a graph are reused for the next one, unless they are large.
impl Drop for Fragment {
    fn drop(&mut self) {
        const MUCH: usize = 100;
        if self.body.num_values() <= MUCH && self.graph.is_unshared() {
            self.body.clear();
            SPARE.set(Some((self.graph.clone(), std::mem::take(&mut self.body))));
        }
    }
}
