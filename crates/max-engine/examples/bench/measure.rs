//! One benchmark: how long its graph takes to load and to run, and how much it moves and computes.

use std::time::{Duration, Instant};

use max_core::{Bindings, ConvInputLayout, Result};
use max_driver::Buffer;
use max_engine::InferenceSession;
use max_graph::interpret::bind_inputs;
use max_graph::ir::Op;
use max_graph::{Body, HostTensor, OpKind};

use crate::table::Case;

/// What was measured.
pub struct Measured {
    /// The shapes of the inputs.
    pub shapes: Vec<Vec<usize>>,
    /// The median time of a load, in seconds.
    pub compile: f64,
    /// The median time of an execution, in seconds.
    pub execute: f64,
    /// The bytes of inputs and outputs that an execution touches.
    pub bytes: usize,
    /// The operations of matmuls and convolutions.
    pub flops: f64,
}

pub fn measure(session: &InferenceSession, case: &Case, quick: bool) -> Result<Measured> {
    let buffer = |v: &HostTensor| Buffer::from_host_bytes(v.bytes().clone(), v.dtype(), v.shape());
    let inputs = case.inputs.iter().map(buffer).collect::<Result<Vec<_>>>()?;
    let model = session.load(&case.graph)?;
    // This is also the warm-up run.
    let outputs = model.execute(&inputs)?;
    let bytes = bytes(&case.graph.body(), &inputs, &outputs);
    drop(outputs);
    let time = Duration::from_millis(if quick { 20 } else { 300 });
    Ok(Measured {
        shapes: inputs.iter().map(|b| b.shape().to_vec()).collect(),
        compile: median(time / 10, 3, || session.load(&case.graph).map(drop))?,
        execute: median(time, 3, || model.execute(&inputs).map(drop))?,
        bytes,
        flops: flops(&case.graph.body(), &inputs).unwrap_or(0.0),
    })
}

/// The median time of as many runs as fit in a time, at least some and at most ten thousand.
pub fn median(time: Duration, least: usize, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < least.max(1) || begin.elapsed() < time && times.len() < 10_000 {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// The bytes of inputs and outputs; of an input that is only gathered from, no more than is taken.
fn bytes(body: &Body, inputs: &[Buffer], outputs: &[Buffer]) -> usize {
    let written: usize = outputs.iter().map(Buffer::num_bytes).sum();
    let read = body.block.arguments.iter().zip(inputs).map(|(id, buffer)| {
        let gathered = |op: &Op| matches!(op.kind, OpKind::Gather(_)) && op.operands[0] == *id;
        let picked = body.ops().filter(|op| op.operands.contains(id)).all(gathered);
        if picked { buffer.num_bytes().min(written) } else { buffer.num_bytes() }
    });
    read.sum::<usize>() + written
}

/// The multiplications and additions of matmuls and convolutions.
fn flops(body: &Body, inputs: &[Buffer]) -> Result<f64> {
    let types: Vec<_> = body.types_of(&body.block.arguments).collect();
    let sizes: Vec<&[usize]> = inputs.iter().map(Buffer::shape).collect();
    let bindings = bind_inputs(&types, &sizes, &Bindings::new())?;
    let evaluate = |value| {
        let shape = body.type_of(value).array().map(|(_, shape)| shape.clone());
        shape.unwrap_or_default().evaluate(&bindings)
    };
    let mut total = 0.0;
    for op in body.ops() {
        let terms = match &op.kind {
            OpKind::Matmul(_) => evaluate(op.operands[0])?.last().copied().unwrap_or(1),
            OpKind::Conv2d(conv) => {
                let channels = if conv.input_layout == ConvInputLayout::NCHW { 1 } else { 3 };
                let filters = evaluate(op.results[0])?.get(channels).copied().unwrap_or(1);
                evaluate(op.operands[1])?.iter().product::<usize>().checked_div(filters).unwrap_or(0)
            }
            _ => continue,
        };
        total += 2.0 * evaluate(op.results[0])?.iter().product::<usize>() as f64 * terms as f64;
    }
    Ok(total)
}
