//! The graph as data: values and ops in arenas, named by small ids.
//!
//! Every value is defined once, by the block's arguments or by one op; the ops of the block are ordered so that each value
//! is defined before it is used, and ops with effects are in the order of their effects. [`crate::verify()`] checks what can
//! be checked. Branches, loop bodies and subgraphs are bodies of their own that see nothing of what surrounds them: see
//! [`Region`].

use max_core::memory::{require_memory, try_reserve};
use max_core::{Location, Result, Type, bail};

use crate::op::OpKind;
use crate::properties::{Properties, Signature};
use crate::region::Region;

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

/// How deep regions may be nested: whatever walks them recursively must not run out of stack.
pub const MOST_NESTED: u32 = 64;

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
    nesting: u32,
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
        self.nesting = 0;
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

    /// How deep regions are nested in it; 0 if it has none.
    pub fn nesting(&self) -> u32 {
        self.nesting
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

    /// Replaces every region by another that takes and returns the same types.
    pub fn map_regions(&mut self, map: &mut dyn FnMut(&Region) -> Result<Region>) -> Result<()> {
        if self.nesting == 0 {
            return Ok(());
        }
        for region in self.ops.iter_mut().flat_map(|op| op.kind.regions_mut()) {
            *region = map(region)?;
        }
        Ok(())
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
        let nesting = kind.regions().iter().map(|region| region.body().nesting + 1).max();
        if nesting.is_some_and(|nesting| nesting > MOST_NESTED) {
            bail!(value, "{} nests regions more than {MOST_NESTED} deep", kind.name());
        }
        let id = self.push_typed(kind, operands, results, location);
        self.check_buffers(id).inspect_err(|_| {
            self.block.ops.pop();
        })?;
        Ok(id)
    }

    /// What an op writes through one operand, it must not have under another name too.
    fn check_buffers(&self, id: OpId) -> Result<()> {
        let op = self.op(id);
        let is_buffer = |value: &ValueId| matches!(self.type_of(*value), Type::Buffer(_));
        let twice = |at: usize| is_buffer(&op.operands[at]) && op.operands[..at].contains(&op.operands[at]);
        match (1..op.operands.len()).find(|&at| twice(at)) {
            Some(at) if self.properties(op).effects.writes => {
                bail!(
                    value,
                    "{} is given one buffer twice, as its operand {at} again, and may write it",
                    op.kind.name()
                )
            }
            _ => Ok(()),
        }
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

    /// Appends the ops of another body, on values of this one in place of its arguments, and returns its results.
    pub fn inline(&mut self, other: &Body, arguments: &[ValueId]) -> Result<Vec<ValueId>> {
        let mut own: Vec<Option<ValueId>> = vec![None; other.num_values()];
        for (argument, &value) in other.block.arguments.iter().zip(arguments) {
            own[argument.0 as usize] = Some(value);
        }
        let find = |own: &[Option<ValueId>], value: &ValueId| match own[value.0 as usize] {
            Some(value) => Ok(value),
            None => bail!(internal, "value %{} has no definition", value.0),
        };
        for op in other.ops() {
            let operands = op.operands.iter().map(|value| find(&own, value)).collect::<Result<_>>()?;
            self.make_room(op.results.len())?;
            let types = other.types_of(&op.results).cloned();
            let id = self.push_typed(op.kind.clone(), operands, types, op.location.clone());
            for (result, new) in op.results.iter().zip(&self.op(id).results) {
                own[result.0 as usize] = Some(*new);
            }
        }
        other.block.results.iter().flatten().map(|value| find(&own, value)).collect()
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
        let nesting = kind.regions().iter().map(|region| region.body().nesting + 1).max();
        self.nesting = self.nesting.max(nesting.unwrap_or(0));
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
