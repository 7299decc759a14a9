//! Kernels on this side: graphs with their operands, as a model has them, and the times of their runs.

use std::time::Duration;

use max_core::{DType, DeviceRef, Element, Result, Shape, TensorType, dispatch};
use max_driver::Buffer;
use max_engine::{InferenceSession, Model};
use max_graph::ops::conv::ConvOptions;
use max_graph::{Graph, HostTensor, TensorValue, Value, ops};

use super::rows::{Kernel, Side, Work};
use crate::measure::median;

/// A kernel with all copies of its operands.
pub struct Ready {
    copies: Vec<(Model, Vec<Buffer>)>,
    next: usize,
}

impl Ready {
    pub fn new(session: &InferenceSession, kernel: &Kernel) -> Result<Ready> {
        let copies =
            (0..kernel.copies()).map(|copy| load(session, kernel, copy)).collect::<Result<Vec<_>>>()?;
        let mut ready = Ready { copies, next: 0 };
        (0..ready.copies.len()).try_for_each(|_| ready.run())?;
        Ok(ready)
    }

    fn run(&mut self) -> Result<()> {
        let (model, inputs) = &self.copies[self.next];
        self.next = (self.next + 1) % self.copies.len();
        model.execute(inputs).map(drop)
    }

    /// The median time of a run, in seconds.
    pub fn measure(&mut self, time: Duration) -> Result<f64> {
        median(time, 1, || self.run())
    }

    /// The sum of the magnitudes of the first copy's results: what both sides must agree on.
    pub fn sum(&self) -> Result<f64> {
        let (model, inputs) = &self.copies[0];
        let outputs = model.execute(inputs)?;
        let mut sum = 0.0;
        for output in &outputs {
            sum += dispatch!(output.dtype(), T => output.to_vec::<T>()?.iter().map(|e| e.to_f64().abs()).sum::<f64>());
        }
        Ok(sum)
    }
}

/// How many rows of weights are quantized.
const ROWS: usize = 64;

fn load(session: &InferenceSession, kernel: &Kernel, copy: usize) -> Result<(Model, Vec<Buffer>)> {
    let shapes = shapes(&kernel.work);
    let given = if kernel.constant { 1 } else { shapes.len() };
    let mut operands: Vec<HostTensor> = shapes
        .into_iter()
        .enumerate()
        .map(|(at, shape)| operand(kernel.dtype, shape, copy + at))
        .collect::<Result<_>>()?;
    if let Work::Quantized { k, n, encoding, .. } = kernel.work {
        // Some rows are quantized, and repeat.
        let floats = operands.remove(1).elements::<f32>()?.into_owned();
        let some = encoding.quantize(&floats[..k * n.min(ROWS)])?;
        let row = some.len() / n.clamp(1, ROWS);
        let bytes = some.iter().copied().cycle().take(n * row).collect();
        operands.push(HostTensor::from_vec::<u8>([n, row], bytes)?);
    }
    let constants = operands.split_off(given);
    let ty = |value: &HostTensor| {
        TensorType::new(value.dtype(), value.shape().iter().copied().collect::<Shape>(), DeviceRef::CPU)
    };
    let graph = Graph::new("kernel", operands.iter().map(ty))?;
    let scope = graph.enter();
    let mut values = graph.inputs().iter().map(Value::tensor).collect::<Result<Vec<_>>>()?;
    for constant in constants {
        values.push(ops::constant(constant, None, None)?);
    }
    graph.output(build(&kernel.work, &values)?)?;
    drop(scope);
    // Copies are aligned as the driver's buffers are, to a cache line.
    let buffer =
        |v: &HostTensor| Buffer::from_host_bytes(v.bytes().clone(), v.dtype(), v.shape())?.copy(None);
    Ok((session.load(&graph)?, operands.iter().map(buffer).collect::<Result<_>>()?))
}

/// Made-up numbers between -1 and 1 that repeat with a prime period; the other side makes the same.
fn operand(dtype: DType, shape: Vec<usize>, seed: usize) -> Result<HostTensor> {
    const PERIOD: usize = 6007;
    let count: usize = shape.iter().product();
    dispatch!(dtype, T => {
        let draw = |i: usize| T::from_double(((i + seed) * 7919 % PERIOD) as f64 / 3003.0 - 1.0);
        let period: Vec<T> = (0..PERIOD).map(draw).collect();
        let mut elements = Vec::with_capacity(count);
        while elements.len() < count {
            elements.extend_from_slice(&period[..PERIOD.min(count - elements.len())]);
        }
        HostTensor::from_vec(shape, elements)
    })
}

/// The operands of a graph. Queries that share keys get an axis of their own, along which the keys broadcast.
fn shapes(work: &Work) -> Vec<Vec<usize>> {
    match *work {
        Work::Attention { batch, heads, kv_heads, queries, keys, depth, .. } => {
            let cached = vec![batch, kv_heads, 1, keys, depth];
            vec![vec![batch, kv_heads, heads / kv_heads, queries, depth], cached.clone(), cached]
        }
        _ => work.operands(),
    }
}

fn build(work: &Work, values: &[TensorValue]) -> Result<TensorValue> {
    match (work, values) {
        (Work::Matmul { transposed, .. }, [left, right]) => match transposed {
            None => ops::matmul(left, right),
            Some(Side::Left) => ops::matmul(ops::transpose(left, 0, 1), right),
            Some(Side::Right) => ops::matmul(left, ops::transpose(right, 0, 1)),
        },
        (&Work::Quantized { encoding, .. }, [left, right]) => ops::qmatmul(encoding, None, left, vec![right]),
        (&Work::Conv { stride, padding, groups, .. }, [input, filter]) => {
            let options = ConvOptions {
                stride: [stride as i64; 2],
                padding: [padding as i64; 4],
                groups: groups as i64,
                ..ConvOptions::default()
            };
            ops::conv2d(input, filter, None, options)
        }
        (&Work::Attention { queries, keys, depth, causal, .. }, [query, key, value]) => {
            let scores = ops::matmul(query, ops::transpose(key, -1, -2));
            let mut scores = ops::mul(scores, 1.0 / (depth as f64).sqrt())?;
            if causal {
                scores = ops::add(scores, hides_later_keys(value.dtype(), queries, keys)?)?;
            }
            ops::matmul(ops::softmax(scores, -1), value)
        }
        (work, _) => max_core::bail!(internal, "{} with {} operands", work.describe(), values.len()),
    }
}

/// A mask to add to scores: zero, and minus infinity where a key comes after its query.
fn hides_later_keys(dtype: DType, queries: usize, keys: usize) -> Result<TensorValue> {
    let hides = |at: usize| if at % keys > at / keys { f64::NEG_INFINITY } else { 0.0 };
    let mask = (0..queries * keys).map(hides).collect::<Vec<f64>>();
    ops::constant(HostTensor::from_vec([queries, keys], mask)?.cast(dtype)?, None, None)
}
