//! From pending tensors to real ones: a graph of what they need, a model for it, one execution.
//!
//! Results on the way that somebody holds become real too, so that nothing is computed twice. The exception is ops that
//! only move or repeat elements: keeping them would take memory and save no work. What nobody holds is never computed for
//! its own sake. No lock is held while a model runs: two threads that need the same tensor both compute it, and the first
//! result stays.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use max_core::{Error, Result, bail};
use max_driver::Buffer;
use max_graph::graph::current_location;
use max_graph::{Body, ValueId};

use crate::cache::{self, Found, Known};
use crate::node::{Cell, Node, State};
use crate::trace::{Realization, is_tracing, tell};

/// Called before each kernel; an error stops the execution.
pub type Checkpoint<'a> = &'a dyn Fn() -> Result<()>;

/// Why something was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// An op was called outside any region.
    BareOp,
    /// A region ended.
    EndOfRegion,
    /// Somebody read a pending tensor.
    Read,
    /// An op that had to run immediately read a pending tensor.
    ReadByOp,
    /// A pending tensor was used in a graph under construction.
    UsedInGraph,
    /// The chain of pending ops became too long.
    ManyOpsWaiting,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::BareOp => "a bare op",
            Reason::EndOfRegion => "the end of a region",
            Reason::Read => "a read",
            Reason::ReadByOp => "an op that could not wait",
            Reason::UsedInGraph => "a use in a graph",
            Reason::ManyOpsWaiting => "too many ops in a row",
        })
    }
}

/// Gives cells their memory, and everything else that is held and computed on the way.
pub(crate) fn realize(cells: &[Arc<Cell>], reason: Reason, checkpoint: Checkpoint) -> Result<()> {
    let mut staged = Staged::default();
    for cell in cells {
        staged.stage(cell)?;
    }
    let Staged { mut body, sources, nodes, .. } = staged;
    let asked_for: HashSet<*const Cell> = cells.iter().map(Arc::as_ptr).collect();
    let mut filled: Vec<(ValueId, Arc<Cell>)> = Vec::new();
    for node in nodes.values() {
        let results = node.values.iter().zip(&node.cells);
        let alive = results.filter_map(|(&value, cell)| Some((value, cell.upgrade()?)));
        filled.extend(alive.filter(|(_, cell)| {
            asked_for.contains(&Arc::as_ptr(cell)) || cell.is_held() && !node.moves_only
        }));
    }
    if filled.is_empty() {
        return Ok(());
    }
    // The order of a hash map varies, but the same graph must compile every time.
    filled.sort_by_key(|(value, _)| *value);
    body.block.results = Some(filled.iter().map(|(value, _)| *value).collect());
    let buffers = execute(&body, &Known::default(), sources, reason, checkpoint)?;
    for ((_, cell), buffer) in filled.iter().zip(buffers) {
        cell.fill(buffer);
    }
    Ok(())
}

/// The memory of a cell, computed if necessary.
pub(crate) fn realized(cell: &Arc<Cell>, reason: Reason, checkpoint: Checkpoint) -> Result<Buffer> {
    realize(std::slice::from_ref(cell), reason, checkpoint)?;
    cell.buffer().ok_or_else(|| Error::internal("a realized tensor has no memory"))
}

/// Runs a graph on its inputs.
pub(crate) fn execute(
    body: &Body,
    known: &Known,
    inputs: Vec<Buffer>,
    reason: Reason,
    checkpoint: Checkpoint,
) -> Result<Vec<Buffer>> {
    let started = is_tracing().then(Instant::now);
    let Found { model, inputs, compiled } = cache::find(body, known, inputs)?;
    let found = started.map(|started| started.elapsed());
    let outputs = model.execute_until(&inputs, checkpoint)?;
    if let (Some(started), Some(preparing)) = (started, found) {
        tell(Realization {
            reason,
            location: current_location(),
            ops: body.block.ops.len(),
            tensors: outputs.len(),
            compiled,
            preparing,
            running: started.elapsed() - preparing,
            model,
        });
    }
    Ok(outputs)
}

/// The graph of pending tensors, as it is put together.
#[derive(Default)]
struct Staged {
    body: Body,
    sources: Vec<Buffer>,
    /// The state of each cell when it was visited; other threads may realize it meanwhile.
    visited: HashMap<*const Cell, Visited>,
    nodes: HashMap<*const Node, Emitted>,
}

/// An op in the graph.
struct Emitted {
    /// Its results in the graph.
    values: Vec<ValueId>,
    /// The cells of its results.
    cells: Vec<Weak<Cell>>,
    /// Whether it, and everything pending that it reads, only moves or repeats elements.
    moves_only: bool,
}

#[derive(Clone)]
enum Visited {
    Source(ValueId),
    Result(*const Node, usize),
}

/// The remaining work, a stack instead of recursion: chains of ops may be long.
enum Todo {
    Visit(Arc<Cell>),
    Emit(Arc<Node>),
}

impl Staged {
    /// Adds a cell and everything it needs.
    fn stage(&mut self, cell: &Arc<Cell>) -> Result<()> {
        let mut todo = vec![Todo::Visit(cell.clone())];
        while let Some(next) = todo.pop() {
            match next {
                Todo::Visit(cell) => self.visit(&cell, &mut todo)?,
                Todo::Emit(node) => self.emit(&node)?,
            }
        }
        Ok(())
    }

    fn visit(&mut self, cell: &Arc<Cell>, todo: &mut Vec<Todo>) -> Result<()> {
        if self.visited.contains_key(&Arc::as_ptr(cell)) {
            return Ok(());
        }
        let visited = match cell.state() {
            State::Real(buffer) => {
                self.sources.push(buffer);
                Visited::Source(self.body.add_argument(cell.ty.clone().into()))
            }
            State::Pending(node, number) => {
                let address = Arc::as_ptr(&node);
                if !self.nodes.contains_key(&address) {
                    todo.push(Todo::Emit(node.clone()));
                    todo.extend(node.operands.iter().rev().cloned().map(Todo::Visit));
                }
                Visited::Result(address, number)
            }
            State::Value(value) => bail!(
                type_,
                "this tensor represents a value of graph '{}' ({}), which is still being built: it has no elements to read",
                value.graph().name(),
                cell.ty
            ),
        };
        self.visited.insert(Arc::as_ptr(cell), visited);
        Ok(())
    }

    fn emit(&mut self, node: &Arc<Node>) -> Result<()> {
        let address = Arc::as_ptr(node);
        if self.nodes.contains_key(&address) {
            return Ok(());
        }
        let operands = node.operands.iter().map(|cell| self.value(cell)).collect::<Result<Vec<_>>>()?;
        // A source location belongs to one call, but the model serves many.
        let op = self.body.push_typed(node.kind.clone(), operands, node.types.iter().cloned(), None);
        let values = self.body.op(op).results.clone();
        let cells = node.results.get().cloned().unwrap_or_default();
        let moved = |cell: &Arc<Cell>| match self.visited.get(&Arc::as_ptr(cell)) {
            Some(Visited::Result(node, _)) => self.nodes.get(node).is_some_and(|node| node.moves_only),
            _ => true,
        };
        let free = self.body.properties(self.body.op(op)).form.is_free();
        let moves_only = free && node.operands.iter().all(moved);
        self.nodes.insert(address, Emitted { values, cells, moves_only });
        Ok(())
    }

    fn value(&self, cell: &Arc<Cell>) -> Result<ValueId> {
        let value = match self.visited.get(&Arc::as_ptr(cell)) {
            Some(Visited::Source(value)) => Some(*value),
            Some(Visited::Result(node, number)) => {
                self.nodes.get(node).and_then(|node| node.values.get(*number).copied())
            }
            None => None,
        };
        value.ok_or_else(|| Error::internal("an op was staged before its operands"))
    }
}
