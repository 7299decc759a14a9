//! What graphs that differ only in sizes and numbers have in common.
//!
//! The *structure* of a graph is everything but the sizes of its inputs and the values of its numbers. Equal sizes are one
//! *size* of the structure, wherever they appear, so a graph is its structure with sizes and numbers filled in. Sizes of
//! 0 and 1 are part of the structure: they decide how shapes broadcast. Sizes that follow from others are described by
//! how they follow ([`derive`]). [`specialize`] makes a graph to compile, in which the varying sizes are symbols and the
//! varying numbers are inputs.

mod derive;

use std::hash::{Hash, Hasher};

use max_core::scalar::NumericOp;
use max_core::{Bindings, Dim, Error, Result, ScalarOp, Shape, TensorType, Type, bail};
use max_graph::attr::Attr;
use max_graph::ir::Op;
use max_graph::ops::constant::Constant;
use max_graph::{Body, HostTensor, OpKind, ValueId};

use derive::{Derived, derive};

/// How many sizes a structure distinguishes; further ones are part of it.
const MOST_SIZES: usize = 64;

/// The structure of a graph, and what fills it in.
pub(crate) struct Structure {
    /// The structure, encoded as words: equal only for equal structures.
    pub(crate) key: Vec<u64>,
    /// The sizes of inputs, in order of appearance.
    pub(crate) sizes: Vec<i64>,
    /// Rank-0 constants, in order.
    pub(crate) numbers: Vec<Constant>,
    /// Other constants, in order; they are inputs of the model.
    pub(crate) arrays: Vec<Constant>,
}

/// What has been seen of a size or a number over several graphs of one structure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Variation<T> {
    /// It always had this value.
    Constant(T),
    /// It varied.
    Varies,
}

impl<T: PartialEq> Variation<T> {
    /// Whether a model made for what was seen also serves this value.
    pub(crate) fn covers(&self, value: &T) -> bool {
        match self {
            Variation::Constant(known) => known == value,
            Variation::Varies => true,
        }
    }

    /// What has been seen, with one more value.
    pub(crate) fn and(self, value: &T) -> Variation<T> {
        if self.covers(value) { self } else { Variation::Varies }
    }
}

/// What must not vary among the graphs of a structure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rigid {
    Sizes,
    Numbers,
}

/// The kinds of constants that a structure distinguishes.
enum Role {
    /// A number that may vary.
    Number,
    /// A number that decides how its op is compiled.
    Fixed,
    Array,
}

fn role(constant: &HostTensor, value: ValueId, exponents: &[ValueId]) -> Role {
    match constant.shape() {
        [] if exponents.contains(&value) => Role::Fixed,
        [] => Role::Number,
        _ => Role::Array,
    }
}

/// The exponents of powers: a square is computed differently from other powers.
fn exponents(body: &Body) -> Vec<ValueId> {
    let power = |op: &&Op| op.kind == OpKind::Scalar(ScalarOp::NumericOp(NumericOp::Pow));
    body.ops().filter(power).filter_map(|op| op.operands.last().copied()).collect()
}

impl Structure {
    pub(crate) fn of(body: &Body) -> Structure {
        let key = Vec::with_capacity(16 + 8 * body.block.ops.len());
        let mut structure = Structure { key, sizes: Vec::new(), numbers: Vec::new(), arrays: Vec::new() };
        structure.key.extend([body.block.arguments.len() as u64, body.block.ops.len() as u64]);
        // Operands are referred to by number, and inputs share the numbering of results.
        structure.key.extend(body.block.arguments.iter().map(|id| id.0 as u64));
        for ty in body.types_of(&body.block.arguments) {
            match ty {
                Type::Tensor(ty) => structure.tensor(ty),
                other => structure.hash(&other),
            }
        }
        // All sizes before all ops: a dim that equals the size of an array is that size wherever it appears.
        for op in body.ops() {
            if let OpKind::Constant(constant) = &op.kind {
                constant.value.shape().iter().for_each(|&size| structure.size(size as i64));
            }
        }
        let exponents = exponents(body);
        for op in body.ops() {
            structure.op(op, body, &exponents);
        }
        let results = body.block.results.iter().flatten();
        structure.key.extend(results.map(|id| id.0 as u64));
        structure
    }

    /// Turns a key into the one for graphs of only these sizes, or only these numbers.
    pub(crate) fn make_rigid(&self, key: &mut Vec<u64>, rigid: Rigid) {
        match rigid {
            Rigid::Sizes => {
                key.push(u64::MAX);
                key.extend(self.sizes.iter().map(|&size| size as u64));
            }
            Rigid::Numbers => {
                key.push(u64::MAX - 1);
                for number in &self.numbers {
                    number.value.bytes().hash(&mut Words(key));
                }
            }
        }
    }

    fn hash(&mut self, value: &(impl Hash + ?Sized)) {
        value.hash(&mut Words(&mut self.key));
    }

    fn tensor(&mut self, ty: &TensorType) {
        self.hash(&(ty.dtype, ty.device, ty.layout));
        self.key.push(ty.shape.rank() as u64);
        for dim in ty.shape.iter() {
            if let Dim::Static(size) = dim {
                self.size(*size);
            }
            self.dim(dim);
        }
    }

    /// The size of an input or an array.
    fn size(&mut self, size: i64) {
        if size > 1 && self.sizes.len() < MOST_SIZES && !self.sizes.contains(&size) {
            self.sizes.push(size);
        }
    }

    /// A size of the structure by its number, any other dim as it is.
    fn dim(&mut self, dim: &Dim) {
        self.attribute_dim(dim, None);
    }

    /// A size of the structure by its number, a size that follows from others by how it follows, any other dim as it is.
    fn attribute_dim(&mut self, dim: &Dim, derived: Option<Derived>) {
        match (dim, derived) {
            (Dim::Static(size), derived) => {
                match (self.sizes.iter().position(|known| known == size), derived) {
                    (Some(number), _) => self.key.extend([1, number as u64]),
                    (None, Some(derived)) if *size > 1 => {
                        self.key.push(3);
                        self.hash(&derived);
                    }
                    (None, _) => self.key.extend([0, *size as u64]),
                }
            }
            (other, _) => {
                self.key.push(2);
                self.hash(other);
            }
        }
    }

    fn op(&mut self, op: &Op, body: &Body, exponents: &[ValueId]) {
        match &op.kind {
            OpKind::Constant(constant) => {
                self.hash(&(std::mem::discriminant(&op.kind), constant.device, constant.value.dtype()));
                match role(&constant.value, op.results[0], exponents) {
                    Role::Number => self.numbers.push(constant.clone()),
                    Role::Fixed => {
                        self.key.push(u64::MAX);
                        self.hash(&**constant.value.bytes());
                    }
                    Role::Array => {
                        self.arrays.push(constant.clone());
                        self.key.push(constant.value.shape().len() as u64);
                        for &size in constant.value.shape() {
                            self.dim(&Dim::Static(size as i64));
                        }
                    }
                }
            }
            OpKind::Scalar(scalar) => self.hash(&(std::mem::discriminant(&op.kind), scalar)),
            kind => {
                self.hash(&std::mem::discriminant(kind));
                let mut derived = derive(op, body).into_iter();
                let mut next = || derived.next().flatten();
                kind.visit(&mut |_, attr, sizes| match attr {
                    Attr::Dim(dim) if sizes => self.attribute_dim(&dim, next()),
                    Attr::Dims(dims) if sizes => {
                        self.key.push(dims.rank() as u64);
                        dims.iter().for_each(|dim| self.attribute_dim(dim, next()));
                    }
                    other => other.feed(&mut Words(&mut self.key)),
                });
            }
        }
        self.key.push(op.operands.len() as u64);
        self.key.extend(op.operands.iter().map(|id| id.0 as u64));
    }
}

/// A hasher that keeps everything that is hashed.
pub(crate) struct Words<'a>(pub(crate) &'a mut Vec<u64>);

impl Hasher for Words<'_> {
    fn write(&mut self, bytes: &[u8]) {
        self.0.push(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0.push(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, i: u8) {
        self.0.push(i.into());
    }

    fn write_u32(&mut self, i: u32) {
        self.0.push(i.into());
    }

    fn write_u64(&mut self, i: u64) {
        self.0.push(i);
    }

    fn write_usize(&mut self, i: usize) {
        self.0.push(i as u64);
    }

    fn finish(&self) -> u64 {
        0
    }
}

/// Names for varying sizes, by number, distinct from the graph's own symbols.
fn symbols(body: &Body) -> impl Fn(usize) -> String {
    let values = (0..body.num_values()).filter_map(|id| body.type_of(ValueId(id as u32)).array());
    let own: Vec<_> = values.flat_map(|(_, shape)| shape.parameters()).collect();
    let mut prefix = String::from("_size");
    while own.iter().any(|name| name.starts_with(&prefix)) {
        prefix.insert(0, '_');
    }
    move |number| format!("{prefix}{number}")
}

/// A graph to compile for all graphs of a structure whose sizes and numbers are covered by what was seen. Its inputs are
/// those of the graph, then its arrays, then the numbers that vary.
///
/// It fails if an op cannot be recorded for varying sizes.
pub(crate) fn specialize(
    body: &Body,
    sizes: &[(i64, Variation<i64>)],
    numbers: &[Variation<HostTensor>],
) -> Result<Body> {
    let mut new = Body::new(name(body), []);
    new.reserve_like(body);
    let mut values: Vec<Option<ValueId>> = vec![None; body.num_values()];
    let symbol = symbols(body);
    let general = |dim: &Dim| match dim {
        Dim::Static(size) => {
            match sizes.iter().position(|(own, seen)| own == size && *seen == Variation::Varies) {
                Some(number) => Dim::symbolic(&symbol(number)),
                None => Ok(dim.clone()),
            }
        }
        other => Ok(other.clone()),
    };
    let general_shape = |shape: &Shape| shape.iter().map(general).collect::<Result<Shape>>();
    let general_type = |ty: &Type| match ty {
        Type::Tensor(ty) => Ok(Type::from(TensorType { shape: general_shape(&ty.shape)?, ..ty.clone() })),
        other => Ok(other.clone()),
    };
    for &argument in &body.block.arguments {
        values[argument.0 as usize] = Some(new.add_argument(general_type(body.type_of(argument))?));
    }
    let exponents = exponents(body);
    // Two passes over the constants: all arrays come before all numbers.
    for lift_arrays in [true, false] {
        let mut number = 0..;
        for op in body.ops() {
            let OpKind::Constant(constant) = &op.kind else { continue };
            let result = op.results[0];
            let lift = match role(&constant.value, result, &exponents) {
                Role::Array => lift_arrays,
                Role::Number => {
                    let seen = number.next().and_then(|number: usize| numbers.get(number));
                    !lift_arrays && seen == Some(&Variation::Varies)
                }
                Role::Fixed => false,
            };
            if lift {
                values[result.0 as usize] = Some(new.add_argument(general_type(body.type_of(result))?));
            }
        }
    }
    let bindings: Bindings =
        sizes.iter().enumerate().map(|(number, (own, _))| (symbol(number).into(), *own)).collect();
    let missing = || Error::internal("an op reads a value that does not exist");
    for op in body.ops() {
        if op.results.first().is_some_and(|id| values[id.0 as usize].is_some()) {
            continue;
        }
        let operands = op.operands.iter().map(|id| values[id.0 as usize].ok_or_else(missing));
        let operands = operands.collect::<Result<Vec<_>>>()?;
        let mut derived = derive(op, body).into_iter();
        let mut attribute = |dim: &Dim| match (dim, derived.next().flatten()) {
            (Dim::Static(size @ 2..), Some(derived)) if sizes.iter().all(|(own, _)| own != size) => {
                match operands.first().map(|&operand| new.type_of(operand)) {
                    Some(Type::Tensor(ty)) => derived.of(&ty.shape),
                    _ => Ok(dim.clone()),
                }
            }
            _ => general(dim),
        };
        let kind = general_kind(&op.kind, &mut attribute)?;
        // A source location belongs to one graph, but this one serves many.
        let pushed = new.push(kind, operands, None)?;
        for (old, &new_result) in op.results.iter().zip(&new.op(pushed).results) {
            same_sizes(body.type_of(*old), new.type_of(new_result), &bindings)?;
            values[old.0 as usize] = Some(new_result);
        }
    }
    let results = body.block.results.iter().flatten().map(|id| values[id.0 as usize].ok_or_else(missing));
    new.block.results = Some(results.collect::<Result<_>>()?);
    Ok(new)
}

/// The same graph with other dims.
#[cfg(test)]
pub(crate) fn at_sizes(body: &Body, dim: &dyn Fn(&Dim) -> Result<Dim>) -> Result<Body> {
    let mut new = Body::default();
    let mut values: Vec<ValueId> = vec![ValueId(0); body.num_values()];
    for &argument in &body.block.arguments {
        let Type::Tensor(ty) = body.type_of(argument) else { bail!(type_, "an input is not a tensor") };
        let shape = ty.shape.iter().map(dim).collect::<Result<Shape>>()?;
        values[argument.0 as usize] = new.add_argument(TensorType { shape, ..ty.clone() }.into());
    }
    for op in body.ops() {
        let operands = op.operands.iter().map(|id| values[id.0 as usize]).collect();
        let pushed = new.push(general_kind(&op.kind, &mut |own| dim(own))?, operands, None)?;
        for (old, new) in op.results.iter().zip(&new.op(pushed).results) {
            values[old.0 as usize] = *new;
        }
    }
    let results = body.block.results.iter().flatten().map(|id| values[id.0 as usize]);
    new.block.results = Some(results.collect());
    Ok(new)
}

/// What messages call a graph: its ops, if there are few.
fn name(body: &Body) -> String {
    let ops = body.ops().map(|op| op.kind.name()).filter(|name| *name != "constant");
    let ops: Vec<_> = ops.collect();
    if ops.len() <= 4 { ops.join("+") } else { format!("region of {} ops", ops.len()) }
}

/// The op with varying sizes in place of the current ones.
fn general_kind(kind: &OpKind, general: &mut dyn FnMut(&Dim) -> Result<Dim>) -> Result<OpKind> {
    let (mut flags, mut any) = (Vec::new(), false);
    kind.visit(&mut |_, _, sizes| {
        flags.push(sizes);
        any |= sizes;
    });
    if !any {
        return Ok(kind.clone());
    }
    let attrs = kind.attrs().into_iter().zip(flags).map(|((name, attr), sizes)| {
        let attr = match attr {
            Attr::Dim(dim) if sizes => Attr::Dim(general(&dim)?),
            Attr::Dims(dims) if sizes => Attr::Dims(dims.iter().map(&mut *general).collect::<Result<_>>()?),
            other => other,
        };
        Ok((name, attr))
    });
    OpKind::from_attrs(kind.name(), attrs.collect::<Result<_>>()?)
}

/// Checks that a general type evaluates to the actual type for the current sizes.
fn same_sizes(own: &Type, general: &Type, bindings: &Bindings) -> Result<()> {
    match (own.array(), general.array()) {
        (Some((dtype, own)), Some((general_dtype, general))) if dtype == general_dtype => {
            let known = own.evaluate(&Bindings::new());
            // A size that depends on data is checked when it is known.
            if known.is_err() || known == general.evaluate(bindings) {
                return Ok(());
            }
        }
        _ if own == general => return Ok(()),
        _ => {}
    }
    bail!(internal, "{general} does not evaluate to {own}")
}
