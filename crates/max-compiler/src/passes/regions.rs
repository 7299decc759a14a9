//! Passes between a body and its regions: what is decided already is not decided again, what a region can make itself is not
//! passed to it, and a subgraph that is called once becomes part of its caller.

use std::collections::HashMap;

use max_core::{Result, Type};
use max_graph::ir::Op;
use max_graph::ops::control::{Cond, While};
use max_graph::properties::Form;
use max_graph::{Body, OpId, OpKind, Region, ValueId};

/// Simplifies the ops that run regions.
pub fn regions(body: &Body) -> Result<Body> {
    if body.nesting() == 0 {
        return Ok(body.clone());
    }
    let mut calls: HashMap<usize, usize> = HashMap::new();
    for region in body.ops().flat_map(|op| op.kind.regions()) {
        *calls.entry(region.address()).or_default() += 1;
    }
    let mut new = Rebuilt {
        body: Body::new(body.name.clone(), body.types_of(&body.block.arguments).cloned()),
        sources: HashMap::new(),
    };
    let mut values: Vec<Option<ValueId>> = vec![None; body.num_values()];
    for (old, new) in body.block.arguments.iter().zip(&new.body.block.arguments) {
        values[old.0 as usize] = Some(*new);
    }
    let find = |values: &[Option<ValueId>], value: &ValueId| match values[value.0 as usize] {
        Some(value) => Ok(value),
        None => Err(max_core::Error::internal(format!("value %{} has no definition", value.0))),
    };
    for op in body.ops() {
        let operands = op.operands.iter().map(|value| find(&values, value)).collect::<Result<Vec<_>>>()?;
        let types = body.types_of(&op.results);
        let results = match &op.kind {
            OpKind::Call(call) if calls[&call.regions[0].address()] == 1 => {
                new.body.inline(call.regions[0].body(), &operands)?
            }
            OpKind::Cond(cond) => new.cond(op, cond, &operands, types)?,
            OpKind::While(repeat) => new.repeat(op, repeat, &operands)?,
            kind => new.push(op, kind.clone(), operands, types),
        };
        for (old, value) in op.results.iter().zip(results) {
            values[old.0 as usize] = Some(value);
        }
    }
    let results = body.block.results.as_ref();
    new.body.block.results =
        results.map(|results| results.iter().map(|value| find(&values, value)).collect()).transpose()?;
    Ok(new.body)
}

/// A body that is built again.
struct Rebuilt {
    body: Body,
    /// The ops that make values from nothing, by those values.
    sources: HashMap<ValueId, OpId>,
}

impl Rebuilt {
    fn push<'a>(
        &mut self,
        old: &Op,
        kind: OpKind,
        operands: Vec<ValueId>,
        types: impl Iterator<Item = &'a Type>,
    ) -> Vec<ValueId> {
        let id = self.body.push_typed(kind, operands, types.cloned(), old.location.clone());
        let op = self.body.op(id);
        let is_weight = matches!(op.kind, OpKind::ConstantExternal(_));
        let results = op.results.clone();
        if self.body.properties(op).form == Form::Source && !is_weight {
            self.sources.extend(results.iter().map(|&result| (result, id)));
        }
        results
    }

    /// Whether a flag is known, and what it is.
    fn flag(&self, value: ValueId) -> Option<bool> {
        match &self.body.op(*self.sources.get(&value)?).kind {
            OpKind::Constant(constant) => constant.value.bytes().first().map(|&byte| byte != 0),
            _ => None,
        }
    }

    fn cond<'a>(
        &mut self,
        op: &Op,
        cond: &Cond,
        operands: &[ValueId],
        types: impl Iterator<Item = &'a Type>,
    ) -> Result<Vec<ValueId>> {
        let (flag, given) = (operands[0], &operands[1..]);
        if let Some(flag) = self.flag(flag) {
            return self.body.inline(cond.regions[usize::from(!flag)].body(), given);
        }
        let used = |at: usize| cond.regions.iter().any(|region| is_used(region.body(), at));
        let passed: Vec<usize> =
            (0..given.len()).filter(|&at| used(at) && !self.sources.contains_key(&given[at])).collect();
        let regions = cond.regions.iter().map(|region| self.narrowed(region, given, &passed, None));
        let regions = regions.collect::<Result<Vec<_>>>()?;
        let operands = [flag].into_iter().chain(passed.iter().map(|&at| given[at])).collect();
        Ok(self.push(op, Cond { regions }.into(), operands, types))
    }

    fn repeat(&mut self, op: &Op, repeat: &While, operands: &[ValueId]) -> Result<Vec<ValueId>> {
        let (flag, given) = (operands[0], &operands[1..]);
        if self.flag(flag) == Some(false) {
            return Ok(given[..op.results.len()].to_vec());
        }
        let region = &repeat.regions[0];
        let block = &region.body().block;
        let returned = block.results.as_deref().unwrap_or_default();
        // What a run passes on unchanged is the same in all runs.
        let carried =
            (0..op.results.len()).partition::<Vec<usize>, _>(|&at| returned[at] != block.arguments[at]);
        let (carried, constant) = carried;
        let rest = constant.iter().copied().chain(op.results.len()..given.len());
        let passed = rest.filter(|&at| is_used(region.body(), at) && !self.sources.contains_key(&given[at]));
        let passed: Vec<usize> = carried.iter().copied().chain(passed).collect();
        let kept: Vec<usize> = carried.iter().copied().chain([returned.len() - 1]).collect();
        let region = self.narrowed(region, given, &passed, Some(&kept))?;
        let types: Vec<Type> = region.result_types().take(carried.len()).cloned().collect();
        let operands = [flag].into_iter().chain(passed.iter().map(|&at| given[at])).collect();
        let results = self.push(op, While { regions: vec![region] }.into(), operands, types.iter());
        let result = |at: usize| match carried.iter().position(|&own| own == at) {
            Some(own) => results[own],
            None => given[at],
        };
        Ok((0..op.results.len()).map(result).collect())
    }

    /// A region that is passed only some of its arguments, in this order. It makes sources itself; whatever else is not
    /// passed is not used. Only some of its results may be kept.
    fn narrowed(
        &self,
        region: &Region,
        given: &[ValueId],
        passed: &[usize],
        kept: Option<&[usize]>,
    ) -> Result<Region> {
        let old = region.body();
        let types = passed.iter().map(|&at| old.type_of(old.block.arguments[at]).clone());
        let mut body = Body::new(old.name.clone(), types);
        let mut arguments = Vec::with_capacity(given.len());
        for (at, value) in given.iter().enumerate() {
            let argument = match (passed.iter().position(|&own| own == at), self.sources.get(value)) {
                (Some(own), _) => body.block.arguments[own],
                (None, Some(&source)) => {
                    let Op { kind, location, .. } = self.body.op(source);
                    let ty = self.body.type_of(*value).clone();
                    let made = body.push_typed(kind.clone(), vec![], [ty], location.clone());
                    body.op(made).results[0]
                }
                // It is not used: any value will do.
                (None, None) => ValueId(0),
            };
            arguments.push(argument);
        }
        let results = body.inline(old, &arguments)?;
        body.block.results = Some(match kept {
            Some(kept) => kept.iter().map(|&at| results[at]).collect(),
            None => results,
        });
        Ok(Region::new(body))
    }
}

/// Whether a body uses an argument.
fn is_used(body: &Body, argument: usize) -> bool {
    let value = body.block.arguments[argument];
    let results = body.block.results.iter().flatten();
    body.ops().flat_map(|op| &op.operands).chain(results).any(|&used| used == value)
}
