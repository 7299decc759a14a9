//! Regions: branches, loop bodies and subgraphs. Each is a body of its own, isolated from what surrounds it: everything it
//! uses is an argument, and its op has an operand for each.
//!
//! Regions are shared, not copied: a subgraph that is called a hundred times is one region, and whatever is computed once
//! per region (passes, programs) is keyed by its address.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use max_core::{Dim, Result, Type, bail};

use crate::attr::Attr;
use crate::ir::Body;
use crate::properties::Effects;

/// A finished body that an op runs. Cloning makes another handle on it; handles are equal if they are on the same body.
#[derive(Clone, Debug)]
pub struct Region(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    body: Body,
    effects: Effects,
    checks: bool,
}

impl Region {
    /// A region with this body.
    pub fn new(body: Body) -> Region {
        let mut effects = Effects::NONE;
        let mut checks = false;
        for op in body.ops() {
            let properties = body.properties(op);
            effects = effects.and(properties.effects);
            checks |= properties.checks;
        }
        Region(Arc::new(Shared { body, effects, checks }))
    }

    /// Its body.
    pub fn body(&self) -> &Body {
        &self.0.body
    }

    /// The effects of all its ops.
    pub fn effects(&self) -> Effects {
        self.0.effects
    }

    /// Whether one of its ops can fail or binds a symbol.
    pub fn checks(&self) -> bool {
        self.0.checks
    }

    /// What identifies it while it lives.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// The types of its results.
    pub fn result_types(&self) -> impl Iterator<Item = &Type> {
        let body = self.body();
        body.types_of(body.block.results.as_deref().unwrap_or_default())
    }

    /// Checks that it takes these operands, and returns the types of its results.
    pub fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let body = self.body();
        let arguments = &body.block.arguments;
        if arguments.len() != operands.len() {
            bail!(value, "Expected {} args, got {}", arguments.len(), operands.len());
        }
        for (number, (expected, given)) in body.types_of(arguments).zip(operands).enumerate() {
            if expected != *given {
                bail!(value, "argument {number} has the wrong type: expected {expected}, got {given}");
            }
        }
        if body.block.results.is_none() {
            bail!(
                value,
                "graph '{}' has no output: call output() with the values it should return",
                body.name
            );
        }
        if let Some(buffer) = self.result_types().find(|ty| !matches!(ty, Type::Tensor(_))) {
            bail!(
                value,
                "'{}' returns a value of type {buffer}; only tensors can be returned here",
                body.name
            );
        }
        Ok(self.result_types().cloned().collect())
    }
}

impl PartialEq for Region {
    fn eq(&self, other: &Region) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// All regions in a body, each once, those inside others first.
pub fn regions(body: &Body) -> Vec<Region> {
    fn collect(body: &Body, known: &mut HashSet<usize>, found: &mut Vec<Region>) {
        if body.nesting() == 0 {
            return;
        }
        for region in body.ops().flat_map(|op| op.kind.regions()) {
            if known.insert(region.address()) {
                collect(region.body(), known, found);
                found.push(region.clone());
            }
        }
    }
    let mut found = Vec::new();
    collect(body, &mut HashSet::new(), &mut found);
    found
}

/// The symbols that a body uses but whose sizes its arguments do not determine: whoever runs it must know them.
pub fn outer_symbols(body: &Body) -> BTreeSet<Arc<str>> {
    let mut used = BTreeSet::new();
    let mut add = |dim: &Dim| used.extend(dim.parameters());
    for body in regions(body).iter().map(Region::body).chain([body]) {
        for op in body.ops() {
            let shapes = body.types_of(&op.results).filter_map(Type::array);
            shapes.flat_map(|(_, shape)| shape.iter()).for_each(&mut add);
            op.kind.visit(&mut |_, attr, _| match attr {
                Attr::Dim(dim) => add(&dim),
                Attr::Dims(dims) => dims.iter().for_each(&mut add),
                _ => {}
            });
        }
    }
    let given = body.types_of(&body.block.arguments).filter_map(Type::array);
    for dim in given.flat_map(|(_, shape)| shape.iter()) {
        if let Dim::Symbolic(name) = dim {
            used.remove(name);
        }
    }
    used
}
