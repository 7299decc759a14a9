//! How passes rewrite: they walk a body, record each needed op into a new body, and may replace its results by other
//! values.
//!
//! An op is recorded before a pass looks at it, and removed only if it is replaced and need not run, so no rule can lose
//! an effect or a check. A replacement is only made if it has the type of what it replaces.

use max_core::{DType, Error, Number, Result, ScalarOp, Shape, Type, dispatch};
use max_graph::host::number;
use max_graph::ir::Op;
use max_graph::ops::constant::Constant;
use max_graph::{Body, HostTensor, OpId, OpKind, Properties, ValueId};

use super::dead_code::{Liveness, liveness};

/// A new body under construction, with what patterns ask about it.
pub struct Builder {
    body: Body,
    definitions: Vec<Option<OpId>>,
    splats: Vec<Option<Number>>,
    uses: Vec<u32>,
    current: Option<OpId>,
    spare: bool,
}

/// A small rewrite: the value that replaces another one, if any.
pub type Rule = fn(&mut Builder, ValueId) -> Option<ValueId>;

/// A value is rewritten at most this often, in case rules go in circles.
const MAX_STEPS: usize = 16;

/// Rewrites the results of ops with the first rule that applies, until none does.
pub fn apply(old: &Body, rules: &[(&'static str, Rule)]) -> Result<Body> {
    apply_and_note(old, rules, |_| {})
}

/// Like [`apply`]; a function gets the name of each rule that was applied.
pub fn apply_and_note(
    old: &Body,
    rules: &[(&'static str, Rule)],
    mut note: impl FnMut(&'static str),
) -> Result<Body> {
    rebuild(old, |b, _, op| {
        let &[first] = &b.body.op(op).results[..] else { return None };
        let mut value = first;
        for _ in 0..MAX_STEPS {
            let known = b.body.num_values();
            let mut fits = |rule: Rule| rule(b, value).filter(|&new| b.type_of(new) == b.type_of(value));
            let next = rules.iter().find_map(|(name, rule)| Some((name, fits(*rule)?)));
            let Some((name, next)) = next else { break };
            note(name);
            value = next;
            // Earlier values have already been rewritten.
            if (value.0 as usize) < known {
                break;
            }
        }
        (value != first).then(|| vec![value])
    })
}

/// Records the needed ops of a body again. For each one, a function gets its ids in the old and in the new body and may
/// return replacements for its results.
pub fn rebuild(
    old: &Body,
    mut replace: impl FnMut(&mut Builder, OpId, OpId) -> Option<Vec<ValueId>>,
) -> Result<Body> {
    let Liveness { needed, uses } = liveness(old);
    let arguments = old.types_of(&old.block.arguments).cloned();
    let mut b = Builder {
        body: Body::new(old.name.clone(), arguments),
        definitions: Vec::new(),
        splats: Vec::new(),
        uses: Vec::new(),
        current: None,
        spare: false,
    };
    b.body.reserve_like(old);
    let mut new_values = vec![None; old.num_values()];
    for (argument, &new) in old.block.arguments.iter().zip(&b.body.block.arguments) {
        new_values[argument.0 as usize] = Some(new);
    }
    b.track(old.block.arguments.iter().map(|v| uses[v.0 as usize]));
    let find = |new_values: &[Option<ValueId>], old: &ValueId| {
        new_values[old.0 as usize]
            .ok_or_else(|| Error::internal(format!("value %{} has no definition", old.0)))
    };
    for (&id, _) in old.block.ops.iter().zip(needed).filter(|(_, needed)| *needed) {
        let op = old.op(id);
        let operands = op.operands.iter().map(|v| find(&new_values, v)).collect::<Result<Vec<_>>>()?;
        let types = old.types_of(&op.results).cloned();
        let at = b.body.block.ops.len();
        let new = b.body.push_typed(op.kind.clone(), operands, types, op.location.clone());
        b.define(new, op.results.iter().map(|r| uses[r.0 as usize]));
        (b.current, b.spare) = (Some(new), false);
        let fits = |b: &Builder, values: &Vec<ValueId>| {
            b.body.types_of(values).eq(b.body.types_of(&b.body.op(new).results))
        };
        let replaced = replace(&mut b, id, new).filter(|values| fits(&b, values));
        let needless = |Properties { effects, checks, .. }| !effects.show() && (b.spare || !checks);
        if replaced.is_some() && needless(b.properties(b.op(new))) {
            b.body.block.ops.remove(at);
        }
        let values = replaced.as_ref().unwrap_or(&b.body.op(new).results);
        for (result, value) in op.results.iter().zip(values) {
            new_values[result.0 as usize] = Some(*value);
            if replaced.is_some() {
                b.uses[value.0 as usize] += uses[result.0 as usize];
            }
        }
    }
    let results =
        old.block.results.as_ref().map(|results| results.iter().map(|v| find(&new_values, v)).collect());
    b.body.block.results = results.transpose()?;
    Ok(b.body)
}

impl Builder {
    /// Keeps track of what patterns ask about new values.
    fn track(&mut self, uses: impl Iterator<Item = u32>) {
        self.uses.extend(uses);
        self.definitions.resize(self.uses.len(), None);
        self.splats.resize(self.uses.len(), None);
    }

    fn define(&mut self, op: OpId, uses: impl Iterator<Item = u32>) {
        self.track(uses);
        let Op { kind, results, .. } = self.body.op(op);
        for result in results {
            self.definitions[result.0 as usize] = Some(op);
            if let OpKind::Constant(constant) = kind {
                self.splats[result.0 as usize] = splat(&constant.value);
            }
        }
    }

    /// Records an op with one result in place of the one that is rewritten, if its type rule allows it.
    pub fn push(&mut self, kind: impl Into<OpKind>, operands: impl Into<Vec<ValueId>>) -> Option<ValueId> {
        let location = self.current.and_then(|op| self.body.op(op).location.clone());
        let op = self.body.push(kind.into(), operands.into(), location).ok()?;
        self.define(op, std::iter::repeat_n(0, self.body.op(op).results.len()));
        match self.body.op(op).results[..] {
            [result] => Some(result),
            _ => None,
        }
    }

    /// Records a one-number constant with the dtype and device of a value.
    pub fn push_number(&mut self, number: Number, like: ValueId) -> Option<ValueId> {
        let device = self.type_of(like).device()?;
        let value = HostTensor::scalar(number, self.dtype(like)?).ok()?;
        self.push(Constant { value, device }, [])
    }

    /// Declares that the op that is rewritten need not run if it is replaced: it is known not to fail.
    pub fn spare(&mut self) {
        self.spare = true;
    }

    /// An op of the new body.
    pub fn op(&self, id: OpId) -> &Op {
        self.body.op(id)
    }

    /// What an op of the new body may do.
    pub fn properties(&self, op: &Op) -> Properties {
        self.body.properties(op)
    }

    /// The op that defines a value.
    pub fn definition(&self, value: ValueId) -> Option<&Op> {
        self.definitions[value.0 as usize].map(|id| self.body.op(id))
    }

    /// The kind of the op that defines a value.
    pub fn kind(&self, value: ValueId) -> Option<&OpKind> {
        self.definition(value).map(|op| &op.kind)
    }

    /// The only operand of the op that defines a value.
    pub fn operand(&self, value: ValueId) -> Option<ValueId> {
        match self.definition(value)?.operands[..] {
            [operand] => Some(operand),
            _ => None,
        }
    }

    /// The type of a value.
    pub fn type_of(&self, value: ValueId) -> &Type {
        self.body.type_of(value)
    }

    /// The dtype of a tensor.
    pub fn dtype(&self, value: ValueId) -> Option<DType> {
        self.type_of(value).array().map(|(dtype, _)| dtype)
    }

    /// The shape of a tensor.
    pub fn shape(&self, value: ValueId) -> Option<&Shape> {
        self.type_of(value).array().map(|(_, shape)| shape)
    }

    /// Whether a value has float elements.
    pub fn is_float(&self, value: ValueId) -> bool {
        self.dtype(value).is_some_and(DType::is_float)
    }

    /// Whether a value has at most this many uses.
    pub fn used_up_to(&self, times: u32, value: ValueId) -> bool {
        self.uses[value.0 as usize] <= times
    }

    /// Whether an op may be left unused without anyone noticing.
    pub fn is_pure(&self, value: ValueId) -> bool {
        self.definition(value).is_none_or(|op| !self.properties(op).must_run())
    }

    /// The data of a value, if it is a constant.
    pub fn constant(&self, value: ValueId) -> Option<&HostTensor> {
        match self.kind(value)? {
            OpKind::Constant(constant) => Some(&constant.value),
            _ => None,
        }
    }

    /// The number that all elements of a constant share.
    pub fn splat(&self, value: ValueId) -> Option<Number> {
        self.splats[value.0 as usize]
    }

    /// The float that all elements of a constant share.
    pub fn float(&self, value: ValueId) -> Option<f64> {
        match self.splat(value)? {
            Number::Float(f) => Some(f),
            _ => None,
        }
    }

    /// The operand of a scalar op.
    pub fn unary(&self, value: ValueId, op: impl Into<ScalarOp>) -> Option<ValueId> {
        let definition = self.definition(value)?;
        match definition.operands[..] {
            [x] if definition.kind == OpKind::Scalar(op.into()) => Some(x),
            _ => None,
        }
    }

    /// The operands of a scalar op.
    pub fn binary(&self, value: ValueId, op: impl Into<ScalarOp>) -> Option<[ValueId; 2]> {
        let definition = self.definition(value)?;
        match definition.operands[..] {
            [x, y] if definition.kind == OpKind::Scalar(op.into()) => Some([x, y]),
            _ => None,
        }
    }

    /// The operands of a scalar op in both orders; none if it is a different op.
    pub fn both_orders<O: Into<ScalarOp>>(
        &self,
        value: ValueId,
        op: O,
    ) -> impl Iterator<Item = [ValueId; 2]> + use<O> {
        self.binary(value, op).into_iter().flat_map(|[x, y]| [[x, y], [y, x]])
    }

    /// The operand of a scalar op whose other operand, on the right, is a uniform float.
    pub fn with_float(&self, value: ValueId, op: impl Into<ScalarOp>) -> Option<(ValueId, f64)> {
        let [x, y] = self.binary(value, op)?;
        Some((x, self.float(y)?))
    }
}

/// How many elements of a constant are compared at most.
const SPLAT_LIMIT: usize = 1 << 16;

/// The number that all elements share.
fn splat(tensor: &HostTensor) -> Option<Number> {
    let size = tensor.dtype().size_in_bytes();
    let first = tensor.bytes().get(..size)?;
    if tensor.num_elements() > SPLAT_LIMIT || tensor.bytes().chunks_exact(size).any(|e| e != first) {
        return None;
    }
    dispatch!(tensor.dtype(), T => tensor.elements::<T>().ok()?.first().map(|e| number(*e)))
}
