//! From a graph to a program: `compile(&graph, &target)`, a pure function.
//!
//! A [`Program`] owns all it needs to run; the engine binds weights and inputs to it. Compiling checks what
//! can be checked once: that the graph is whole, and that the target has the devices it names.

#![forbid(unsafe_code)]

pub mod passes;

use std::collections::BTreeSet;
use std::sync::Arc;

use max_core::{DeviceRef, Result, TensorType, Type, bail};
use max_graph::{Body, Graph, OpKind, verify};

/// What a program is compiled for.
#[derive(Clone, Debug)]
pub struct Target {
    /// The devices that values may live on.
    pub devices: Vec<DeviceRef>,
}

/// A compiled graph: immutable, shared by the models and threads that run it.
#[derive(Clone, Debug)]
pub struct Program {
    body: Arc<Body>,
    weights: Vec<(String, TensorType)>,
}

/// Compiles a graph for a target.
pub fn compile(graph: &Graph, target: &Target) -> Result<Program> {
    let body = graph.body();
    verify(&body)?;
    check_devices(&body, target)?;
    let weights = body.ops().filter_map(|op| match &op.kind {
        OpKind::ConstantExternal(c) => match body.type_of(op.results[0]) {
            Type::Tensor(ty) => Some((c.name.clone(), ty.clone())),
            _ => None,
        },
        _ => None,
    });
    let weights = weights.collect();
    Ok(Program { body: Arc::new(body), weights })
}

fn check_devices(body: &Body, target: &Target) -> Result<()> {
    let values = body.block.arguments.iter().chain(body.ops().flat_map(|op| &op.results));
    let used: BTreeSet<DeviceRef> = values.filter_map(|&v| body.type_of(v).device()).collect();
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

impl Program {
    /// The name of the graph.
    pub fn name(&self) -> &str {
        &self.body.name
    }

    /// The types of the inputs.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = &Type> {
        self.body.block.arguments.iter().map(|&v| self.body.type_of(v))
    }

    /// The types of the outputs.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = &Type> {
        self.body.block.results.as_deref().unwrap_or_default().iter().map(|&v| self.body.type_of(v))
    }

    /// The weights it needs, by name.
    pub fn weights(&self) -> &[(String, TensorType)] {
        &self.weights
    }

    /// What it runs.
    pub fn body(&self) -> &Body {
        &self.body
    }
}

#[cfg(test)]
mod tests {
    use max_core::{DType, ErrorKind};
    use max_graph::ops;

    use super::*;

    const CPU: Target = Target { devices: Vec::new() };

    fn target(devices: &[DeviceRef]) -> Target {
        Target { devices: devices.to_vec() }
    }

    #[test]
    fn a_program_knows_its_interface() {
        let ty = TensorType::new(DType::Float32, ["n"], DeviceRef::CPU);
        let graph = Graph::build("g", [ty.clone()], |x| {
            let w = ops::constant_external("w".to_string(), ty.clone())?;
            ops::add(&x[0], w)
        });
        let program = compile(&graph.unwrap(), &target(&[DeviceRef::CPU])).unwrap();
        assert_eq!(program.inputs().next().unwrap(), &Type::from(ty.clone()));
        assert_eq!(program.weights(), [("w".to_string(), ty)]);
        assert_eq!(program.outputs().len(), 1);
    }

    #[test]
    fn what_cannot_run_is_refused() {
        let ty = TensorType::new(DType::Float32, ["n"], DeviceRef::gpu(1));
        let unfinished = Graph::new("unfinished", [ty.clone()]).unwrap();
        assert!(compile(&unfinished, &CPU).unwrap_err().message().contains("no output"));
        let graph = Graph::build("far", [ty], |x| ops::relu(&x[0])).unwrap();
        let error = compile(&graph, &target(&[DeviceRef::CPU])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Value);
        assert!(error.message().contains("gpu:1") && error.message().contains("cpu:0"));
    }
}
