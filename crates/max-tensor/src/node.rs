//! What a tensor is made of: a cell that has memory or knows the op that will fill it.
//!
//! Cells point to the nodes that compute them, nodes to the cells they read; pointers in the other direction are weak. So
//! a recorded op lives exactly as long as somebody may still want its result.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use max_core::{Result, TensorType, Type, bail};
use max_driver::{Buffer, Device};
use max_graph::ops::constant::Constant;
use max_graph::{Graph, HasTensorValue, HostTensor, OpKind, TensorValue};

use crate::fragment::Fragment;
use crate::lock;
use crate::realize::{Reason, realized};

/// The content of a tensor, shared by its handles and by the ops that read it.
pub(crate) struct Cell {
    /// Its type, with static sizes unless it is a value of a graph.
    pub(crate) ty: TensorType,
    state: Mutex<State>,
    /// How many tensor handles the user holds.
    users: AtomicUsize,
}

/// Where the elements of a cell are.
#[derive(Clone)]
pub(crate) enum State {
    /// In memory.
    Real(Buffer),
    /// The numbered result of an op that has not run.
    Pending(Arc<Node>, usize),
    /// A value of a graph under construction.
    Value(TensorValue),
}

/// A recorded op.
pub(crate) struct Node {
    pub(crate) kind: OpKind,
    pub(crate) operands: Vec<Arc<Cell>>,
    /// The types of its results.
    pub(crate) types: Vec<Type>,
    /// The length of the longest chain of pending ops that ends here.
    pub(crate) depth: usize,
    /// The cells of its results.
    pub(crate) results: OnceLock<Vec<Weak<Cell>>>,
}

impl Cell {
    pub(crate) fn new(ty: TensorType, state: State) -> Arc<Cell> {
        Arc::new(Cell { ty, state: Mutex::new(state), users: AtomicUsize::new(0) })
    }

    pub(crate) fn real(buffer: Buffer) -> Arc<Cell> {
        let ty = TensorType::new(buffer.dtype(), sizes(&buffer), buffer.device().device_ref());
        Cell::new(ty, State::Real(buffer))
    }

    /// The result of an op; sizes that its type does not know come from the buffer.
    pub(crate) fn computed(ty: &Type, buffer: Buffer) -> Arc<Cell> {
        match ty {
            Type::Tensor(ty) if ty.shape.iter().all(|dim| dim.as_static().is_some()) => {
                Cell::new(ty.clone(), State::Real(buffer))
            }
            _ => Cell::real(buffer),
        }
    }

    /// The graph value it represents, if any.
    pub(crate) fn value(&self) -> Option<TensorValue> {
        match &*lock(&self.state) {
            State::Value(value) => Some(value.clone()),
            _ => None,
        }
    }

    /// Whether it represents a value of a graph.
    pub(crate) fn is_value(&self) -> bool {
        matches!(*lock(&self.state), State::Value(_))
    }

    /// Whether it is still to be computed.
    pub(crate) fn is_pending(&self) -> bool {
        matches!(*lock(&self.state), State::Pending(..))
    }

    /// Whether it has memory.
    pub(crate) fn is_real(&self) -> bool {
        matches!(*lock(&self.state), State::Real(_))
    }

    pub(crate) fn state(&self) -> State {
        lock(&self.state).clone()
    }

    /// The memory, if any.
    pub(crate) fn buffer(&self) -> Option<Buffer> {
        match &*lock(&self.state) {
            State::Real(buffer) => Some(buffer.clone()),
            _ => None,
        }
    }

    /// The length of the chain of pending ops that computes it.
    pub(crate) fn depth(&self) -> usize {
        match &*lock(&self.state) {
            State::Pending(node, _) => node.depth,
            _ => 0,
        }
    }

    /// Sets its memory, unless another thread did so first.
    pub(crate) fn fill(&self, buffer: Buffer) {
        let mut state = lock(&self.state);
        if let State::Real(_) = *state {
            return;
        }
        let computed_by = std::mem::replace(&mut *state, State::Real(buffer));
        drop(state);
        // Dropped only now, after unlocking: ops that nobody else needs are freed with it.
        drop(computed_by);
    }

    /// Whether the user holds a tensor handle on it.
    pub(crate) fn is_held(&self) -> bool {
        self.users.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn hold(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn release(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The sizes of a buffer as dims.
fn sizes(buffer: &Buffer) -> max_core::Shape {
    buffer.shape().iter().copied().collect()
}

/// In an op on tensors a cell is one of its operands; in an explicitly built graph it is a constant.
impl HasTensorValue for Cell {
    fn tensor_value(self: Arc<Self>) -> Result<TensorValue> {
        let graph = Graph::current()?;
        if let Some(value) = Fragment::operand(&graph, &self) {
            return value;
        }
        if let Some(value) = self.value() {
            if value.graph() == &graph || graph.is_inside(value.graph()) {
                return Ok(value);
            }
            bail!(
                value,
                "a tensor that represents a value of graph '{}' ({}) is used in graph '{}'",
                value.graph().name(),
                self.ty,
                graph.name()
            );
        }
        let copy = realized(&self, Reason::UsedInGraph, &|| Ok(()))?.copy(Some(&Device::cpu()))?;
        let value = HostTensor::new(copy.dtype(), copy.shape(), copy.host_bytes()?)?;
        max_graph::graph::record_one(Constant { value, device: self.ty.device }, [])
    }
}
