//! Passes from body to body that improve a graph before it is lowered.
//!
//! A pass keeps the arguments, the results with their types, and everything a run can observe: prints, and checks that
//! can fail, in their order. Results keep their bits, except where a pattern becomes a named op (`recognize`, `attention`,
//! `merge_matmuls`): those may round differently. Each pass takes time linear in the number of ops.

mod attention;
mod canonicalize;
mod cse;
mod dead_code;
mod fold;
mod identities;
mod merge_matmuls;
mod recognize;
mod rewrite;

#[cfg(test)]
mod tests;

use max_core::Result;
use max_graph::Body;

use crate::lower::Options;

/// A function from body to body.
pub type Pass = fn(&Body) -> Result<Body>;

/// The passes with their names, in the order they run.
pub const PASSES: &[(&str, Pass)] = &[
    ("canonicalize", canonicalize::canonicalize),
    ("fold", fold::fold),
    ("identities", identities::identities),
    ("cse", cse::cse),
    ("recognize", recognize::recognize),
    ("attention", attention::attention),
    ("merge_matmuls", merge_matmuls::merge_matmuls),
    ("dead_code", dead_code::dead_code),
];

/// Runs all passes; a function sees the body after each.
pub fn optimize(body: Body, options: Options, after: &mut dyn FnMut(&str, &Body)) -> Result<Body> {
    PASSES.iter().try_fold(body, |body, (name, pass)| {
        let pass = if *name == "fold" && options.fold_exactly { fold::fold_exactly } else { *pass };
        let body = pass(&body).map_err(|e| e.context(format!("in the pass {name}")))?;
        if cfg!(debug_assertions) {
            max_graph::verify(&body).map_err(|e| e.context(format!("after the pass {name}")))?;
        }
        after(name, &body);
        Ok(body)
    })
}
