//! Pictures of compiled models: the graph, and which ops became which kernel.

mod arrange;
mod homes;
mod layered;
mod scene;
mod svg;

use std::fmt::Write;

use max_compiler::Program;
use max_graph::{OpId, OpKind};

use crate::Model;

impl Model {
    /// The graph and its kernels as an SVG document.
    ///
    /// Inputs, weights, constants, ops and outputs are nodes. The ops of one kernel share a box; views, which only change how
    /// memory is interpreted, are outside. In a large graph each kernel is one node, and of a huge one only the first
    /// kernels are shown. The same model always gives the same text.
    pub fn picture(&self) -> String {
        picture(self.program())
    }

    /// What was fused: a line per kernel with its ops and what it writes, and one for ops that cost nothing at run time.
    ///
    /// ```text
    /// kernel 0  matmul     matmul, add, relu  -> float32[64, 128]
    /// kernel 1  loop       softmax  -> float32[64, 10]
    /// views                permute
    /// ```
    pub fn fusion_summary(&self) -> String {
        fusion_summary(self.program())
    }
}

fn picture(program: &Program) -> String {
    let scene = scene::Scene::of(program);
    let places = arrange::arrange(&scene);
    let summary = format!(
        "{} in {}",
        counted(program.source.ops().filter(|op| !is_data(&op.kind)).count(), "op"),
        counted(program.steps.len(), "kernel")
    );
    svg::document(&program.source.name, &summary, &scene, &places)
}

fn fusion_summary(program: &Program) -> String {
    let name = |&op: &OpId| program.source.op(op).kind.name();
    let label = |number: usize| format!("kernel {number}");
    let width = label(program.steps.len().saturating_sub(1)).len();
    let mut text = String::new();
    let mut computed = std::collections::HashSet::new();
    for (number, step) in program.steps.iter().enumerate() {
        let ops = if step.ops.is_empty() { "copy".into() } else { listed(step.ops.iter().map(name)) };
        let (kind, written) = (program.step_kind(number), scene::written(program, number));
        let _ = write!(text, "{:width$}  {kind:9}  {ops}", label(number));
        let _ = match written.is_empty() {
            true => writeln!(text),
            false => writeln!(text, "  -> {}", svg::shorten(&written, LONGEST_TYPES)),
        };
        computed.extend(step.ops.iter().copied());
    }
    let is_view = |op: &&OpId| !computed.contains(*op) && !is_data(&program.source.op(**op).kind);
    let mut views: Vec<_> = program.source.block.ops.iter().filter(is_view).map(name).collect();
    views.sort();
    if !views.is_empty() {
        let _ = writeln!(text, "{:width$}             {}", "views", listed(views.into_iter()));
    }
    text
}

/// The most characters shown of the types that a kernel writes.
const LONGEST_TYPES: usize = 100;
/// The most op names shown.
const MOST_NAMES: usize = 24;

/// Names in order; repeated names are listed once.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut runs: Vec<(&str, usize)> = Vec::new();
    for name in names {
        match runs.last_mut() {
            Some((last, count)) if *last == name => *count += 1,
            _ => runs.push((name, 1)),
        }
    }
    let told = runs.iter().take(MOST_NAMES);
    let mut told: Vec<String> = told
        .map(|(name, count)| if *count == 1 { name.to_string() } else { format!("{name} x{count}") })
        .collect();
    let more: usize = runs.iter().skip(MOST_NAMES).map(|(_, count)| count).sum();
    if more > 0 {
        told.push(format!("{more} more"));
    }
    told.join(", ")
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Whether an op only provides data.
fn is_data(kind: &OpKind) -> bool {
    matches!(kind, OpKind::Constant(_) | OpKind::ConstantExternal(_))
}
