//! Matmuls of one matrix with several constant ones become one matmul, whose parts are views.
//!
//! Constant biases that are added to them are joined too, so that the one matmul ends in one addition. Data that is only
//! known at load or run time is not joined, because that would be a copy: lowering makes one step of such matmuls instead,
//! which reads each right operand where it is (`lower/together.rs`).

use std::collections::{HashMap, HashSet};

use max_core::scalar::NumericOp;
use max_core::{Bindings, Dim, Element, Result, ScalarOp, Shape, Type, dispatch};
use max_graph::op::Run;
use max_graph::ops::concat::Concat;
use max_graph::ops::constant::Constant;
use max_graph::ops::matmul::Matmul;
use max_graph::ops::slice::Slice;
use max_graph::properties::Form;
use max_graph::{Body, HostTensor, OpId, OpKind, ValueId};

use super::Rewrites;
use super::dead_code::{Liveness, liveness};
use super::rewrite::{Builder, rebuild};

/// The most bytes of joined constants in one graph.
const MAX_BYTES: usize = 256 << 20;

/// Joins the constants on the right of matmuls that share their left operand.
pub fn merge_matmuls(body: &Body, rewrites: &mut Rewrites) -> Result<Body> {
    let mut groups = groups(body);
    let mut parts: HashMap<OpId, ValueId> = HashMap::new();
    rebuild(body, |b, old, new| {
        if let Some(group) = groups.remove(&old) {
            let &[lhs, _] = &b.op(new).operands[..] else { return None };
            let slices = merge(b, lhs, &group)?;
            rewrites.push("merged matmuls");
            parts.extend(group.iter().map(Product::last).zip(slices));
        }
        parts.remove(&old).map(|part| vec![part])
    })
}

/// A matmul with a constant on its right.
struct Product {
    op: OpId,
    value: ValueId,
    weights: Constant,
    /// The bias added to each of its rows, and the op that adds it.
    bias: Option<(OpId, HostTensor)>,
}

impl Product {
    /// The op whose result is a part of the joined matmul.
    fn last(&self) -> OpId {
        self.bias.as_ref().map_or(self.op, |(op, _)| *op)
    }

    fn columns(&self) -> usize {
        self.weights.value.shape()[1]
    }

    fn bytes(&self) -> usize {
        self.weights.value.bytes().len()
    }
}

/// Matmuls to be joined, by the op of the first.
fn groups(body: &Body) -> HashMap<OpId, Vec<Product>> {
    let live = liveness(body);
    let mut groups = candidates(body, &live);
    if groups.is_empty() {
        return HashMap::new();
    }
    let users = Users::new(body, &live);
    for group in &mut groups {
        group.iter_mut().for_each(|product| product.bias = users.bias(product));
        let continued = |product: &Product| users.continue_in_place(body.op(product.last()).results[0]);
        // Two loops at the ends of two matmuls move less data than a loop over parts of one; one loop instead of more than
        // two is worth it.
        if group.iter().filter(|product| continued(product)).count() <= 2 {
            group.retain(|product| !continued(product));
        }
    }
    let mut room = MAX_BYTES;
    groups.retain(|group| {
        let bytes = group.iter().map(Product::bytes).sum();
        group.len() > 1 && room.checked_sub(bytes).map(|left| room = left).is_some()
    });
    groups.into_iter().map(|group| (group[0].op, group)).collect()
}

/// Matmuls that share their left operand, in the order of their ops.
fn candidates(body: &Body, live: &Liveness) -> Vec<Vec<Product>> {
    let mut constants: HashMap<ValueId, &Constant> = HashMap::new();
    let mut by_lhs: HashMap<ValueId, Vec<Product>> = HashMap::new();
    for (&id, _) in body.block.ops.iter().zip(&live.needed).filter(|(_, needed)| **needed) {
        let op = body.op(id);
        match (&op.kind, &op.operands[..]) {
            (OpKind::Constant(constant), _) if constant.value.shape().len() == 2 => {
                constants.insert(op.results[0], constant);
            }
            // A constant with other uses would be kept twice.
            (OpKind::Matmul(_), [lhs, rhs]) if live.uses[rhs.0 as usize] == 1 => {
                if let Some(&constant) = constants.get(rhs) {
                    let weights = constant.clone();
                    let product = Product { op: id, value: op.results[0], weights, bias: None };
                    by_lhs.entry(*lhs).or_default().push(product);
                }
            }
            _ => {}
        }
    }
    let mut groups: Vec<_> = by_lhs.into_values().filter(|group| group.len() > 1).collect();
    groups.sort_by_key(|group| group[0].op);
    groups
}

/// The users of each value.
struct Users<'a> {
    body: &'a Body,
    ops: HashMap<ValueId, Vec<OpId>>,
    constants: HashMap<ValueId, &'a HostTensor>,
    results: HashSet<ValueId>,
}

impl Users<'_> {
    fn new<'a>(body: &'a Body, live: &Liveness) -> Users<'a> {
        let results = body.block.results.iter().flatten().copied().collect();
        let mut users = Users { body, ops: HashMap::new(), constants: HashMap::new(), results };
        for (&id, _) in body.block.ops.iter().zip(&live.needed).filter(|(_, needed)| **needed) {
            let op = body.op(id);
            op.operands.iter().for_each(|&value| users.ops.entry(value).or_default().push(id));
            if let OpKind::Constant(constant) = &op.kind {
                users.constants.insert(op.results[0], &constant.value);
            }
        }
        users
    }

    fn of(&self, value: ValueId) -> &[OpId] {
        self.ops.get(&value).map_or(&[], Vec::as_slice)
    }

    /// The constant row that is added to a matmul, if that is its only use.
    fn bias(&self, product: &Product) -> Option<(OpId, HostTensor)> {
        let &[user] = self.of(product.value) else { return None };
        let op = self.body.op(user);
        let row = match (&op.kind, &op.operands[..]) {
            (OpKind::Scalar(ScalarOp::NumericOp(NumericOp::Add)), &[x, y]) if x == product.value => y,
            (OpKind::Scalar(ScalarOp::NumericOp(NumericOp::Add)), &[x, _]) => x,
            _ => return None,
        };
        let constant = self.constants.get(&row)?;
        let columns = product.columns();
        let is_row = constant.shape().last() == Some(&columns) && constant.num_elements() == columns;
        let kept = self.body.type_of(op.results[0]) == self.body.type_of(product.value);
        let apart = !self.results.contains(&product.value) && is_row && kept;
        apart.then(|| constant.reshaped([columns]).ok().map(|row| (user, row))).flatten()
    }

    /// Whether later ops continue with a value in the loop of its kernel, or need it in memory of its own.
    fn continue_in_place(&self, value: ValueId) -> bool {
        let form = |user: &OpId| self.body.properties(self.body.op(*user)).form;
        if self.of(value).iter().any(|user| form(user) == Form::Elementwise) {
            return true;
        }
        let mut whole = vec![value];
        while let Some(value) = whole.pop() {
            if self.results.contains(&value) {
                return true;
            }
            for user in self.of(value) {
                match form(user) {
                    Form::Whole => return true,
                    Form::View => whole.extend(&self.body.op(*user).results),
                    Form::Source | Form::Part | Form::Elementwise | Form::Kernel => {}
                }
            }
        }
        false
    }
}

/// The parts of one matmul, one slice per constant.
fn merge(b: &mut Builder, lhs: ValueId, group: &[Product]) -> Option<Vec<ValueId>> {
    let device = group.first()?.weights.device;
    let weights = join(group.iter().map(|product| product.weights.value.clone()), 1)?;
    let rhs = b.push(Constant { value: weights, device }, [])?;
    let mut product = b.push(Matmul {}, [lhs, rhs])?;
    if group.iter().any(|product| product.bias.is_some()) {
        let dtype = b.dtype(product)?;
        // Adding negative zero changes nothing.
        let nothing = |columns| dispatch!(dtype, T => HostTensor::from_vec([columns], vec![T::from_double(-0.0); columns]).ok());
        let row = |part: &Product| match &part.bias {
            Some((_, row)) => Some(row.clone()),
            None => nothing(part.columns()),
        };
        let rows = group.iter().map(row).collect::<Option<Vec<_>>>()?;
        let bias = b.push(Constant { value: join(rows.into_iter(), 0)?, device }, [])?;
        product = b.push(ScalarOp::from(NumericOp::Add), [product, bias])?;
    }
    let Type::Tensor(ty) = b.type_of(product).clone() else { return None };
    let last = ty.shape.rank().checked_sub(1)?;
    let mut start = 0;
    let slices = group.iter().map(|part| {
        let size = part.columns() as i64;
        let (mut starts, mut sizes) = (vec![Dim::Static(0); last + 1], ty.shape.to_vec());
        (starts[last], sizes[last]) = (Dim::Static(start), Dim::Static(size));
        start += size;
        b.push(
            Slice { starts: starts.into(), sizes: Shape::from(sizes), steps: vec![1; last + 1] },
            [product],
        )
    });
    slices.collect()
}

/// Constants one after the other.
fn join(parts: impl Iterator<Item = HostTensor>, axis: usize) -> Option<HostTensor> {
    let run = Run { bindings: &Bindings::new(), environment: &() };
    OpKind::from(Concat { axis }).eval(&parts.collect::<Vec<_>>(), &run).ok()?.pop()
}
