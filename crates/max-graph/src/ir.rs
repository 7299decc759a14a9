//! The graph as data: values and ops in arenas, named by small ids.
//!
//! Every value is defined once, by the block's arguments or by one op; the ops of the
//! block are ordered so that each value is defined before it is used. [`crate::verify()`] checks this.

use max_core::memory::{require_memory, try_reserve};
use max_core::{Location, Result, Type};

use crate::op::OpKind;
use crate::properties::{Properties, Signature};

/// Identifies a value of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// Identifies an op of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u32);

/// One op: what it does, to which values, and which values it defines.
#[derive(Clone, Debug)]
pub struct Op {
    /// What it does.
    pub kind: OpKind,
    /// The values it reads.
    pub operands: Vec<ValueId>,
    /// The values it defines.
    pub results: Vec<ValueId>,
    /// Where in the user's program it was recorded.
    pub location: Option<Location>,
}

/// After so many ops memory is asked for again.
const STRETCH: usize = 4096;

/// More than the ops of a stretch allocate one by one: their operands, results, attributes and types.
const STRETCH_BYTES: usize = STRETCH * (4 << 10);

/// A sequence of ops with arguments and results.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// The values passed in.
    pub arguments: Vec<ValueId>,
    /// The ops, in order.
    pub ops: Vec<OpId>,
    /// The values returned, once they are set.
    pub results: Option<Vec<ValueId>>,
}

/// A whole graph as plain data.
#[derive(Clone, Debug, Default)]
pub struct Body {
    /// The name of the graph.
    pub name: String,
    /// What the graph does.
    pub block: Block,
    ops: Vec<Op>,
    types: Vec<Type>,
}

impl Body {
    /// A body with arguments and no ops yet.
    pub fn new(name: impl Into<String>, arguments: impl IntoIterator<Item = Type>) -> Body {
        let mut body = Body { name: name.into(), ..Body::default() };
        for ty in arguments {
            body.add_argument(ty);
        }
        body
    }

    /// Removes everything but keeps the allocated capacity.
    pub fn clear(&mut self) {
        self.name.clear();
        self.block.arguments.clear();
        self.block.ops.clear();
        self.block.results = None;
        self.ops.clear();
        self.types.clear();
    }

    /// Appends an argument.
    pub fn add_argument(&mut self, ty: Type) -> ValueId {
        let argument = self.define(ty);
        self.block.arguments.push(argument);
        argument
    }

    fn define(&mut self, ty: Type) -> ValueId {
        self.types.push(ty);
        ValueId(self.types.len() as u32 - 1)
    }

    /// Reserves capacity for as many ops and values as another body has.
    pub fn reserve_like(&mut self, other: &Body) {
        self.block.ops.reserve(other.block.ops.len());
        self.ops.reserve(other.block.ops.len());
        self.types.reserve(other.types.len());
    }

    /// The number of values.
    pub fn num_values(&self) -> usize {
        self.types.len()
    }

    /// An op.
    pub fn op(&self, id: OpId) -> &Op {
        &self.ops[id.0 as usize]
    }

    /// The ops of the block, in order.
    pub fn ops(&self) -> impl Iterator<Item = &Op> {
        self.block.ops.iter().map(|&id| self.op(id))
    }

    /// What an op of this body may do.
    pub fn properties(&self, op: &Op) -> Properties {
        op.kind.properties(Signature::new(self, op))
    }

    /// The type of a value.
    pub fn type_of(&self, value: ValueId) -> &Type {
        &self.types[value.0 as usize]
    }

    /// The types of values.
    pub fn types_of<'a>(&'a self, values: &'a [ValueId]) -> impl Iterator<Item = &'a Type> {
        values.iter().map(|&v| self.type_of(v))
    }

    /// Infers the types of an op's results and appends it.
    pub fn push(&mut self, kind: OpKind, operands: Vec<ValueId>, location: Option<Location>) -> Result<OpId> {
        let types: Vec<&Type> = self.types_of(&operands).collect();
        let results = kind.infer(&types).map_err(|e| e.context(describe(&kind, &types)))?;
        self.make_room(results.len())?;
        Ok(self.push_typed(kind, operands, results, location))
    }

    /// Makes room for one more op, or says that the system refuses it.
    fn make_room(&mut self, results: usize) -> Result<()> {
        const WHAT: &str = "the ops of a graph";
        if !self.ops.is_empty() && self.ops.len().is_multiple_of(STRETCH) {
            require_memory(STRETCH_BYTES, WHAT)?;
        }
        try_reserve(&mut self.block.ops, 1, WHAT)?;
        try_reserve(&mut self.ops, 1, WHAT)?;
        try_reserve(&mut self.types, results, WHAT)
    }

    /// Appends an op whose result types are already known. Callers that build large bodies this way check for memory first.
    pub fn push_typed(
        &mut self,
        kind: OpKind,
        operands: Vec<ValueId>,
        types: impl IntoIterator<Item = Type>,
        location: Option<Location>,
    ) -> OpId {
        let results = types.into_iter().map(|ty| self.define(ty)).collect();
        let id = OpId(self.ops.len() as u32);
        self.ops.push(Op { kind, operands, results, location });
        self.block.ops.push(id);
        id
    }
}

/// An op with its operands' types, for messages.
fn describe(kind: &OpKind, operands: &[&Type]) -> String {
    let operands: Vec<_> = operands.iter().map(|t| t.to_string()).collect();
    format!("in {}({})", kind.title(), operands.join(", "))
}

impl Op {
    /// The op with its operands' types, for messages.
    pub fn describe(&self, body: &Body) -> String {
        describe(&self.kind, &body.types_of(&self.operands).collect::<Vec<_>>())
    }
}
