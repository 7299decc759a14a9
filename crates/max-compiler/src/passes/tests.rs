//! Tests of the passes on graphs written as text: what each makes of a graph, and that the meaning stays the same.

mod goldens;
mod meaning;
mod patterns;

use max_graph::Body;
use max_graph::text::{Constants, parse, print};

use super::{PASSES, Pass, Rewrites, optimize};
use crate::lower::Options;

const OPTIONS: Options = Options { fuse: true, fold_exactly: false, nccl: false };

/// A body from arguments and ops, where `f32 1.0` is short for a constant, and likewise for other dtypes.
fn graph(arguments: &str, ops: &str) -> Body {
    let lines = ops.lines().map(|line| {
        let short = line.split_once(" = ").and_then(|(name, constant)| {
            let (dtype, number) = constant.split_once(' ')?;
            let dtype = match dtype {
                "f16" => "float16",
                "f32" => "float32",
                "i32" => "int32",
                "bool" => "bool",
                _ => return None,
            };
            Some(format!(
                "{name} = constant() {{value = dense({dtype}[], [{number}]), device = \"cpu:0\"}} : {dtype}[]\n"
            ))
        });
        short.unwrap_or_else(|| format!("{line}\n"))
    });
    let text = format!("graph \"g\"({arguments}) {{\n{}}}", lines.collect::<String>());
    parse(&text).unwrap_or_else(|e| panic!("{e} in {text}"))
}

/// A body after one pass.
fn pass(name: &str, body: &Body) -> Body {
    let (_, pass) = PASSES.iter().find(|(own, _)| *own == name).expect("a pass of that name");
    pass.run(body, &mut Rewrites::new()).unwrap()
}

/// A body after all passes.
fn optimized(body: &Body) -> Body {
    optimize(body.clone(), OPTIONS, &mut |_, _| {}).unwrap().0
}

/// The text of a body after one pass.
fn after(name: &str, body: &Body) -> String {
    let body = pass(name, body);
    max_graph::verify(&body).unwrap();
    print(&pass("dead_code", &body), Constants::Full)
}

/// The text of a body after all passes.
fn after_all(body: &Body) -> String {
    print(&optimized(body), Constants::Full)
}
