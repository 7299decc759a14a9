//! Passes from body to body that improve a graph before it is lowered.
//!
//! A pass keeps the arguments, the results with their types, and everything a run can observe: prints, and checks that
//! can fail, in their order. Results keep their bits, except after a [`Pass::Rounding`]. What a pass may do with an op that
//! it does not know follows from the op's properties. Each pass takes time linear in the number of ops.

mod attention;
mod canonicalize;
mod cse;
mod dead_code;
mod fold;
mod identities;
mod merge_matmuls;
mod positions;
mod recognize;
mod regions;
mod rewrite;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use max_core::Result;
use max_graph::{Body, Region};

use crate::lower::Options;

/// A function from body to body.
#[derive(Clone, Copy)]
pub enum Pass {
    /// Results keep their bits.
    Exact(fn(&Body) -> Result<Body>),
    /// Results may round differently: it notes the rewrites after which they do.
    Rounding(fn(&Body, &mut Rewrites) -> Result<Body>),
}

/// The names of rewrites after which results may round differently, in the order they were made.
pub type Rewrites = Vec<&'static str>;

impl Pass {
    /// Runs it.
    pub fn run(self, body: &Body, rewrites: &mut Rewrites) -> Result<Body> {
        match self {
            Pass::Exact(pass) => pass(body),
            Pass::Rounding(pass) => pass(body, rewrites),
        }
    }
}

/// The passes with their names, in the order they run.
pub const PASSES: &[(&str, Pass)] = &[
    ("canonicalize", Pass::Exact(canonicalize::canonicalize)),
    ("fold", Pass::Exact(fold::fold)),
    ("regions", Pass::Exact(regions::regions)),
    ("identities", Pass::Exact(identities::identities)),
    ("positions", Pass::Exact(positions::positions)),
    ("cse", Pass::Exact(cse::cse)),
    ("recognize", Pass::Rounding(recognize::recognize)),
    ("attention", Pass::Rounding(attention::attention)),
    ("merge_matmuls", Pass::Rounding(merge_matmuls::merge_matmuls)),
    ("dead_code", Pass::Exact(dead_code::dead_code)),
];

/// Runs all passes, also on regions, each once; a function sees the body after each.
pub fn optimize(
    body: Body,
    options: Options,
    after: &mut dyn FnMut(&str, &Body),
) -> Result<(Body, Rewrites)> {
    let mut rewrites = Rewrites::new();
    let body = optimize_nested(body, options, &mut rewrites, &mut HashMap::new(), after)?;
    Ok((body, rewrites))
}

fn optimize_nested(
    mut body: Body,
    options: Options,
    rewrites: &mut Rewrites,
    known: &mut HashMap<usize, (Region, Region)>,
    after: &mut dyn FnMut(&str, &Body),
) -> Result<Body> {
    for (name, pass) in PASSES {
        let exactly = *name == "fold" && options.fold_exactly;
        let pass = if exactly { Pass::Exact(fold::fold_exactly) } else { *pass };
        body = pass.run(&body, rewrites).map_err(|e| e.context(format!("in the pass {name}")))?;
        if *name == "regions" {
            optimize_regions(&mut body, options, rewrites, known)?;
        }
        if cfg!(debug_assertions) {
            max_graph::verify(&body).map_err(|e| e.context(format!("after the pass {name}")))?;
        }
        after(name, &body);
    }
    Ok(body)
}

/// Runs all passes on the regions of a body that they have not run on yet.
fn optimize_regions(
    body: &mut Body,
    options: Options,
    rewrites: &mut Rewrites,
    known: &mut HashMap<usize, (Region, Region)>,
) -> Result<()> {
    body.map_regions(&mut |region| {
        if let Some((_, optimized)) = known.get(&region.address()) {
            return Ok(optimized.clone());
        }
        let body = optimize_nested(region.body().clone(), options, rewrites, known, &mut |_, _| ())?;
        let optimized = Region::new(body);
        // The old one is kept too, so that no other can have its address.
        known.insert(region.address(), (region.clone(), optimized.clone()));
        Ok(optimized)
    })
}
