//! Where ops on tensors go: into the graph under construction, into a region, or straight to execution.
//!
//! An op function records into a graph. For tensors that graph is a [`Fragment`], made for the one call. Outside any
//! region the fragment runs immediately; in a region its ops become nodes.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use max_core::{Location, Result, Type, bail};
use max_driver::{Buffer, Device};
use max_graph::graph::located;
use max_graph::{Graph, OpKind, TensorValue, Value, ValueId};

use crate::cache::host_buffer;
use crate::fragment::Fragment;
use crate::lock;
use crate::node::{Cell, Node, State};
use crate::realize::{Checkpoint, Reason, execute, realize, realized};
use crate::tensor::Tensor;

/// When the ops of a region run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegionKind {
    /// Before their call returns.
    Bare,
    /// When a result is read, or together when the region ends.
    Eager,
    /// When a result is read.
    Lazy,
}

/// A section of a program whose ops are recorded first and run later. Cloning makes another handle on it.
#[derive(Clone)]
pub struct Region(Arc<Inner>);

struct Inner {
    kind: RegionKind,
    recorded: Mutex<Vec<Weak<Cell>>>,
}

/// Longer chains of ops do not wait: their operands are computed first.
const MOST_WAITING: usize = 1000;

thread_local! {
    /// The regions entered on this thread, each with the number of graphs entered before it.
    static REGIONS: RefCell<Vec<(Region, usize)>> = const { RefCell::new(Vec::new()) };
}

/// Runs a function as one region: its ops are recorded, and one program computes what is still held of them at the end.
/// Inside another region, or inside a graph, it joins that.
///
/// If the function fails, nothing is computed.
#[track_caller]
pub fn functional<R>(function: impl FnOnce() -> Result<R>) -> Result<R> {
    if !matches!(Scope::current(), Scope::None) {
        return function();
    }
    let location = Location::caller();
    let region = Region::new(RegionKind::Eager);
    let entered = region.enter();
    let result = function()?;
    drop(entered);
    located("functional", location, || region.realize_all())?;
    Ok(result)
}

/// Runs a function whose tensors are computed only if and when they are read.
pub fn lazy<R>(function: impl FnOnce() -> R) -> R {
    let _entered = Region::new(RegionKind::Lazy).enter();
    function()
}

/// Where an op that is called now goes.
enum Scope {
    None,
    Graph,
    Region(Region),
}

impl Scope {
    /// The innermost region or graph on this thread.
    fn current() -> Scope {
        let graphs = Graph::depth();
        REGIONS.with_borrow(|regions| match regions.last() {
            Some((region, outside)) if *outside == graphs => Scope::Region(region.clone()),
            _ if graphs > 0 => Scope::Graph,
            _ => Scope::None,
        })
    }
}

/// Calls op functions with tensors among their operands, in the current scope.
pub(crate) fn call(build: impl FnOnce() -> Result<Vec<Value>>) -> Result<Vec<Tensor>> {
    static BARE: OnceLock<Region> = OnceLock::new();
    match Scope::current() {
        Scope::Graph => build()?.into_iter().map(|value| value.tensor().map(Tensor::from_value)).collect(),
        Scope::Region(region) => region.record(build),
        Scope::None => BARE.get_or_init(|| Region::new(RegionKind::Bare)).record(build),
    }
}

/// Like [`call`], with one result.
pub(crate) fn call_one(build: impl FnOnce() -> Result<TensorValue>) -> Result<Tensor> {
    match call(|| Ok(vec![build()?.into()]))?.pop() {
        Some(tensor) => Ok(tensor),
        None => bail!(internal, "an op on tensors returned no result"),
    }
}

impl Region {
    /// A new region without recorded ops.
    pub fn new(kind: RegionKind) -> Region {
        Region(Arc::new(Inner { kind, recorded: Mutex::default() }))
    }

    /// When its ops run.
    pub fn kind(&self) -> RegionKind {
        self.0.kind
    }

    /// Makes it the current region of this thread, until the guard is dropped.
    pub fn enter(&self) -> Entered {
        REGIONS.with_borrow_mut(|regions| regions.push((self.clone(), Graph::depth())));
        Entered { region: self.clone(), _not_send: std::marker::PhantomData }
    }

    /// The recorded tensors that somebody holds and that are not computed yet.
    pub fn pending(&self) -> Vec<Tensor> {
        let cells = lock(&self.0.recorded).iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
        let wanted = |cell: &Arc<Cell>| cell.is_held() && cell.is_pending();
        cells.into_iter().filter(wanted).map(Tensor::of).collect()
    }

    /// Computes all pending tensors in one program.
    pub fn realize_all(&self) -> Result<()> {
        self.realize_all_until(&|| Ok(()))
    }

    /// Like [`Region::realize_all`], but calls `checkpoint` before each kernel; an error stops it.
    pub fn realize_all_until(&self, checkpoint: Checkpoint) -> Result<()> {
        let cells: Vec<_> = self.pending().iter().map(|tensor| tensor.cell().clone()).collect();
        realize(&cells, Reason::EndOfRegion, checkpoint)?;
        // Other threads may have recorded something meanwhile.
        lock(&self.0.recorded).retain(|cell| cell.upgrade().is_some_and(|cell| cell.is_pending()));
        Ok(())
    }

    /// Records the ops that op functions apply to tensors, and returns their results.
    pub fn record(&self, build: impl FnOnce() -> Result<Vec<Value>>) -> Result<Vec<Tensor>> {
        let (fragment, operands) = Fragment::build(build)?;
        self.settle(&fragment, operands, &|| Ok(()))
    }

    /// Runs a fragment on operands now, or makes nodes of its ops.
    pub(crate) fn settle(
        &self,
        fragment: &Fragment,
        operands: Vec<Arc<Cell>>,
        checkpoint: Checkpoint,
    ) -> Result<Vec<Tensor>> {
        if self.0.kind == RegionKind::Bare || !fragment.can_wait {
            return run(fragment, &operands, checkpoint);
        }
        let waiting = operands.iter().filter(|cell| cell.depth() >= MOST_WAITING);
        let waiting: Vec<_> = waiting.cloned().collect();
        if !waiting.is_empty() {
            realize(&waiting, Reason::ManyOpsWaiting, checkpoint)?;
        }
        Ok(self.keep(fragment, operands))
    }

    /// Turns the ops of a fragment into nodes.
    fn keep(&self, fragment: &Fragment, operands: Vec<Arc<Cell>>) -> Vec<Tensor> {
        let body = &fragment.body;
        let mut cells: Vec<Option<Arc<Cell>>> = vec![None; body.num_values()];
        for (argument, cell) in body.block.arguments.iter().zip(operands) {
            cells[argument.0 as usize] = Some(cell);
        }
        for op in body.ops() {
            let operands: Vec<_> = op.operands.iter().filter_map(|id| cells[id.0 as usize].clone()).collect();
            let depth = 1 + operands.iter().map(|cell| cell.depth()).max().unwrap_or(0);
            let types = body.types_of(&op.results).cloned().collect();
            let node =
                Arc::new(Node { kind: op.kind.clone(), operands, types, depth, results: OnceLock::new() });
            let made = op.results.iter().enumerate().filter_map(|(number, id)| match body.type_of(*id) {
                Type::Tensor(ty) => {
                    let cell = Cell::new(ty.clone(), State::Pending(node.clone(), number));
                    cells[id.0 as usize] = Some(cell.clone());
                    Some(Arc::downgrade(&cell))
                }
                _ => None,
            });
            let made = made.collect();
            node.results.get_or_init(|| made);
        }
        let results = fragment.results.iter().filter_map(|id| cells[id.0 as usize].clone());
        let results: Vec<_> = results.map(Tensor::of).collect();
        let mut recorded = lock(&self.0.recorded);
        // Cells that nobody can use any more are removed from time to time, so that a long region stays small.
        if recorded.len() == recorded.capacity() {
            recorded.retain(|cell| cell.strong_count() > 0);
        }
        recorded.extend(results.iter().map(|tensor| Arc::downgrade(tensor.cell())));
        results
    }
}

/// Runs a fragment now.
fn run(fragment: &Fragment, operands: &[Arc<Cell>], checkpoint: Checkpoint) -> Result<Vec<Tensor>> {
    let mut inputs = Vec::with_capacity(operands.len());
    for cell in operands {
        inputs.push(match cell.buffer() {
            Some(buffer) => buffer,
            None => realized(cell, Reason::ReadByOp, checkpoint)?,
        });
    }
    let computed = fragment.computed();
    let output =
        |(id, buffer): (&ValueId, Buffer)| Tensor::of(Cell::computed(fragment.body.type_of(*id), buffer));
    let outputs: Vec<Tensor> =
        computed.iter().zip(compute(fragment, inputs, checkpoint)?).map(output).collect();
    if fragment.results == computed {
        return Ok(outputs);
    }
    let result = |id: &ValueId| match fragment.given(id) {
        Some(operand) => operands.get(operand).cloned().map(Tensor::of),
        None => computed.binary_search(id).ok().map(|output| outputs[output].clone()),
    };
    Ok(fragment.results.iter().filter_map(result).collect())
}

/// The results of a fragment that must be computed.
fn compute(fragment: &Fragment, inputs: Vec<Buffer>, checkpoint: Checkpoint) -> Result<Vec<Buffer>> {
    let body = &fragment.body;
    match body.block.ops[..] {
        [] => return Ok(Vec::new()),
        [op] => match (&body.op(op).kind, &inputs[..]) {
            // There is nothing to compute, but the data may belong to somebody else.
            (OpKind::Constant(constant), _) => {
                let device = Device::from_ref(constant.device)?;
                return Ok(vec![host_buffer(&constant.value)?.copy(Some(&device))?]);
            }
            (OpKind::TransferTo(transfer), [input]) => {
                return Ok(vec![input.to(&Device::from_ref(transfer.device)?)?]);
            }
            _ => {}
        },
        _ => {}
    }
    execute(body, &fragment.known, inputs, Reason::BareOp, checkpoint)
}

/// While it lives, ops of this thread go to a region.
pub struct Entered {
    region: Region,
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // Its own entry, wherever that is: guards may be dropped in any order.
        REGIONS.with_borrow_mut(|regions| {
            if let Some(at) = regions.iter().rposition(|(region, _)| Arc::ptr_eq(&region.0, &self.region.0)) {
                regions.remove(at);
            }
        });
    }
}
