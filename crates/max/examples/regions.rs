//! What regions and buffers cost: an iteration of a loop, an update of one row of a large buffer, and compiling a model of
//! a hundred equal layers.

use std::time::{Duration, Instant};

use max::driver::{Buffer, CPU};
use max::dtype::DType;
use max::engine::{InferenceSession, WeightsRegistry};
use max::graph::{BufferType, DeviceRef, Graph, Shape, TensorType, TensorValue, Value, Weight, ops};

const ITERATIONS: i64 = 100_000;
const WIDTH: usize = 256;
const LAYERS: usize = 100;

fn main() -> max::Result<()> {
    let session = InferenceSession::new([CPU()]);
    loops(&session)?;
    rows(&session)?;
    layers(&session)
}

/// The least time of some runs.
fn best(runs: usize, mut run: impl FnMut() -> max::Result<()>) -> max::Result<Duration> {
    let mut least = Duration::MAX;
    for _ in 0..runs {
        let start = Instant::now();
        run()?;
        least = least.min(start.elapsed());
    }
    Ok(least)
}

/// A loop that counts, and one that refines a square root.
fn loops(session: &InferenceSession) -> max::Result<()> {
    let scalar = |dtype| TensorType::new(dtype, Shape::default(), DeviceRef::CPU);
    let count = Graph::build("count", [scalar(DType::Int64)], |x| {
        ops::while_loop(&x[0], |x| ops::greater(ITERATIONS, &x[0]), |x| ops::add(&x[0], 1i64))
    })?;
    let newton = Graph::build("newton", [scalar(DType::Int64), scalar(DType::Float32)], |x| {
        ops::while_loop(
            vec![x[0].clone(), x[1].clone()],
            |x| ops::greater(ITERATIONS, &x[0]),
            |x| -> max::Result<Vec<Value>> {
                let y = x[1].tensor()?;
                let better = ((&y + (ops::div(2f32, &y)?))? * 0.5f32)?;
                Ok(vec![ops::add(&x[0], 1i64)?.into(), better.into()])
            },
        )
    })?;
    let zero = Buffer::from_slice(&[0i64], &[])?;
    let inputs: [(&Graph, Vec<Buffer>); 2] =
        [(&count, vec![zero.clone()]), (&newton, vec![zero, Buffer::from_slice(&[1f32], &[])?])];
    for (graph, inputs) in inputs {
        let model = session.load(graph)?;
        let time = best(5, || model.execute(&inputs).map(drop))?;
        println!("{}: {:.0} ns per iteration", graph.name(), time.as_nanos() as f64 / ITERATIONS as f64);
    }
    Ok(())
}

/// A model that adds one row to a cache of 100 MB, at a position that it is told.
fn rows(session: &InferenceSession) -> max::Result<()> {
    let shape = [1024i64, 25_600];
    let cache = BufferType::new(DType::Float32, shape, DeviceRef::CPU);
    let row = TensorType::new(DType::Float32, [shape[1]], DeviceRef::CPU);
    let at = TensorType::new(DType::Int64, Shape::default(), DeviceRef::CPU);
    let types = [max::graph::Type::from(cache), row.into(), at.into()];
    let graph = Graph::build("row", types, |x| {
        let at = x[2].tensor()?;
        ops::buffer_store_slice(x[0].buffer()?, &ops::mul(&x[1], 2f32)?, vec![ops::slice::Index::Tensor(at)])
    })?;
    let model = session.load(&graph)?;
    let memory = Buffer::from(vec![0f32; 1024 * 25_600]).view(DType::Float32, Some(&[1024, 25_600]))?;
    let new = Buffer::from(vec![1f32; 25_600]);
    let mut position = 0i64;
    let update = best(1000, || {
        position = (position + 1) % 1024;
        model.execute(&[memory.clone(), new.clone(), Buffer::from_slice(&[position], &[])?]).map(drop)
    })?;
    let copy = best(5, || memory.copy(None).map(drop))?;
    println!("a row of 100 kB of a 100 MB buffer: {update:.1?}; a copy of the buffer: {copy:.1?}");
    Ok(())
}

/// Compiling and running a hundred equal layers: one subgraph that is called, and the same written out.
fn layers(session: &InferenceSession) -> max::Result<()> {
    let mut registry = WeightsRegistry::new();
    for layer in 0..LAYERS {
        for (name, shape) in WEIGHTS {
            let count = shape.iter().product();
            let values = Buffer::from((0..count).map(|i: usize| (i % 7) as f32 * 0.01).collect::<Vec<_>>());
            registry.insert(format!("{layer}.{name}"), values.view(DType::Float32, Some(shape))?);
        }
    }
    let tokens = TensorType::new(DType::Float32, ("n", WIDTH as i64), DeviceRef::CPU);
    let model = |count: usize, calls: bool| {
        Graph::build("layers", [tokens.clone()], |x| -> max::Result<TensorValue> {
            let subgraph = Graph::build("layer", [tokens.clone()], |x| layer(&x[0].tensor()?, ""))?;
            let mut x = x[0].tensor()?;
            for number in 0..count {
                x = match calls {
                    true => ops::call(&subgraph, &x, &format!("{number}."))?[0].tensor()?,
                    false => layer(&x, &format!("{number}."))?,
                };
            }
            Ok(x)
        })
    };
    let input = [Buffer::from(vec![0.5f32; 8 * WIDTH]).view(DType::Float32, Some(&[8, WIDTH]))?];
    for (what, graph) in [
        ("one layer", model(1, false)?),
        ("100 calls of one subgraph", model(LAYERS, true)?),
        ("100 layers written out", model(LAYERS, false)?),
    ] {
        let load = best(5, || {
            max::engine::clear_program_cache();
            session.load_with(&graph, &registry).map(drop)
        })?;
        let model = session.load_with(&graph, &registry)?;
        let run = best(20, || model.execute(&input).map(drop))?;
        println!("{what}: loaded in {load:.1?}, run in {run:.1?}");
    }
    Ok(())
}

const WEIGHTS: [(&str, &[usize]); 4] =
    [("up", &[WIDTH, 4 * WIDTH]), ("down", &[4 * WIDTH, WIDTH]), ("gamma", &[WIDTH]), ("beta", &[WIDTH])];

/// A feed-forward network with a residual connection and a norm.
fn layer(x: &TensorValue, prefix: &str) -> max::Result<TensorValue> {
    let [up, down, gamma, beta] = WEIGHTS.map(|(name, shape)| {
        Weight::new(format!("{prefix}{name}"), DType::Float32, shape.to_vec(), DeviceRef::CPU)?.value()
    });
    let hidden = ops::gelu(ops::matmul(x, up?)?)?;
    ops::layer_norm((x + ops::matmul(&hidden, down?)?)?, gamma?, beta?, 1e-5)
}
