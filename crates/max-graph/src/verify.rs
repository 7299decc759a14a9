//! Checks the invariants of a body; runs after parsing, and after every pass in debug builds.

use max_core::{Result, bail};

use crate::ir::Body;
use crate::op::OpKind;
use crate::region::regions;

/// Checks that every value is defined once and before its use, and that every result has the type its op infers, in a body
/// and in its regions. Weights are operands of regions, so regions have none of their own.
pub fn verify(body: &Body) -> Result<()> {
    for region in regions(body) {
        verify_one(region.body())?;
        if let Some(op) = region.body().ops().find(|op| matches!(op.kind, OpKind::ConstantExternal(_))) {
            bail!(
                value,
                "region '{}' has a weight of its own, {}",
                region.body().name,
                op.describe(region.body())
            );
        }
    }
    verify_one(body)
}

/// Checks a body without its regions.
fn verify_one(body: &Body) -> Result<()> {
    let mut defined = vec![false; body.num_values()];
    for &argument in &body.block.arguments {
        body.type_of(argument).validate()?;
        defined[argument.0 as usize] = true;
    }
    for op in body.ops() {
        for &operand in &op.operands {
            if !defined[operand.0 as usize] {
                bail!(internal, "value %{} is used before it is defined, {}", operand.0, op.describe(body));
            }
        }
        let types: Vec<_> = body.types_of(&op.operands).collect();
        let expected = op.kind.infer(&types)?;
        if !expected.iter().eq(body.types_of(&op.results)) {
            bail!(internal, "the results of an op do not have the types {expected:?}, {}", op.describe(body));
        }
        for &result in &op.results {
            if std::mem::replace(&mut defined[result.0 as usize], true) {
                bail!(internal, "value %{} is defined twice", result.0);
            }
        }
    }
    match &body.block.results {
        Some(results) => match results.iter().find(|r| !defined[r.0 as usize]) {
            Some(result) => bail!(internal, "the result %{} is not defined", result.0),
            None => Ok(()),
        },
        None => bail!(
            value,
            "graph '{}' has no output: call output() with the values it should return",
            body.name
        ),
    }
}
