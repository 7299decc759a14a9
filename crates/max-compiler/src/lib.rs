//! From a graph to a program: `compile(&graph, &target)`, a pure function.
//!
//! The graph is checked and rewritten, its view ops become layouts, the rest is fused into groups that become kernels
//! (`max_core::kernel`), and temporaries get lifetimes. A [`Program`] is compiled once for all sizes of its symbols;
//! [`Program::bind`] binds it to the sizes of an execution and plans the arenas for them.

#![forbid(unsafe_code)]

mod bind;
mod layout;
mod lower;
pub mod passes;
pub mod plan;
pub mod program;

use std::collections::BTreeSet;
use std::fmt::{self, Display};

use max_core::{DeviceRef, Result, bail};
use max_graph::region::regions;
use max_graph::{Body, Region, text, verify};

pub use bind::{Bound, Data, Shapes};
pub use lower::Options;
pub use plan::MemoryPlan;
pub use program::Program;

/// What a program is compiled for.
#[derive(Clone, Debug)]
pub struct Target {
    /// The devices that values may be on.
    pub devices: Vec<DeviceRef>,
    /// How it is compiled.
    pub options: Options,
}

/// Compiles a graph for a target. `after` sees the name and the result of each stage.
pub fn compile(body: Body, target: &Target, after: &mut dyn FnMut(&str, &dyn Display)) -> Result<Program> {
    verify(&body)?;
    check_devices(&body, target)?;
    let (body, rounding) =
        passes::optimize(body, target.options, &mut |pass, body| after(pass, &Text(body)))?;
    let program = Program { rounding, ..lower::lower(body, &mut lower::Regions::new(target.options))? };
    after("program", &program);
    Ok(program)
}

/// A body in its text form.
struct Text<'a>(&'a Body);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::print(self.0, text::Constants::Elided))
    }
}

fn check_devices(body: &Body, target: &Target) -> Result<()> {
    let mut used = BTreeSet::new();
    let nested = regions(body);
    for body in nested.iter().map(Region::body).chain([body]) {
        let values = body.block.arguments.iter().chain(body.ops().flat_map(|op| &op.results));
        used.extend(values.filter_map(|&v| body.type_of(v).device()));
    }
    match used.iter().find(|d| !target.devices.contains(d)) {
        None => Ok(()),
        Some(missing) => {
            let devices: Vec<_> = target.devices.iter().map(|d| d.to_string()).collect();
            bail!(
                value,
                "graph '{}' has values on {missing}, but the session's devices are {}",
                body.name,
                devices.join(", ")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use max_core::{DType, ErrorKind, TensorType, Type};
    use max_graph::{Graph, ops};

    use super::*;

    fn build(graph: &Graph, devices: &[DeviceRef]) -> Result<Program> {
        let target =
            Target { devices: devices.to_vec(), options: Options { fuse: true, fold_exactly: false } };
        compile(graph.body(), &target, &mut |_, _| ())
    }

    #[test]
    fn a_program_knows_its_interface() {
        let ty = TensorType::new(DType::Float32, ["n"], DeviceRef::CPU);
        let graph = Graph::build("g", [ty.clone()], |x| {
            let w = ops::constant_external("w".to_string(), ty.clone())?;
            ops::add(&x[0], w)
        });
        let program = build(&graph.unwrap(), &[DeviceRef::CPU]).unwrap();
        assert_eq!(&program.inputs[0], &Type::from(ty.clone()));
        assert_eq!(program.weights, [("w".to_string(), ty)]);
        assert_eq!(program.outputs.len(), 1);
    }

    #[test]
    fn what_cannot_run_is_refused() {
        let ty = TensorType::new(DType::Float32, ["n"], DeviceRef::gpu(1));
        let unfinished = Graph::new("unfinished", [ty.clone()]).unwrap();
        assert!(build(&unfinished, &[]).unwrap_err().message().contains("no output"));
        let graph = Graph::build("far", [ty], |x| ops::relu(&x[0])).unwrap();
        let error = build(&graph, &[DeviceRef::CPU]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Value);
        assert!(error.message().contains("gpu:1") && error.message().contains("cpu:0"));
    }
}
