//! What a new size costs: an encoder like MiniLM, whose sequences have a length that it has not seen before.

use std::time::{Duration, Instant};

use max::driver::{Buffer, CPU};
use max::dtype::DType;
use max::engine::{InferenceSession, WeightsRegistry};
use max::graph::{DeviceRef, Graph, TensorType, TensorValue, Weight, ops};

const LAYERS: usize = 6;
const WIDTH: usize = 384;
const HEADS: usize = 12;

fn main() -> max::Result<()> {
    let mut weights = WeightsRegistry::new();
    let graph = encoder(&mut weights)?;
    let session = InferenceSession::new([CPU()]);
    let model = session.load_with(&graph, &weights)?;
    let kernels = model.kernel_summaries().len();
    let (mut prepare, mut new, mut known) = (Vec::new(), Vec::new(), Vec::new());
    let mut batch = 0;
    for length in (1..=128).chain((1..=128).rev()) {
        // Every pair of a batch and a length is new.
        batch = if length == 128 { 2 } else { batch.max(1) };
        let tokens = Buffer::from(vec![0.5f32; batch * length * WIDTH]);
        let input = [tokens.view(DType::Float32, Some(&[batch, length, WIDTH]))?];
        let time = |f: &dyn Fn() -> max::Result<()>| {
            let start = Instant::now();
            f().map(|()| start.elapsed())
        };
        let execute = || model.execute(&input).map(drop);
        // Every second size is only prepared, which includes everything but the run.
        if length % 2 == 0 {
            prepare.push(time(&|| model.memory_report(&input).map(drop))?);
            continue;
        }
        let first = time(&execute)?;
        let again = time(&execute)?.min(time(&execute)?);
        new.push(first.saturating_sub(again));
        known.push(again);
    }
    let median = |mut times: Vec<Duration>| {
        times.sort();
        times[times.len() / 2]
    };
    println!("{kernels} kernels, prepared for a new size: {:.1?}", median(prepare));
    println!("the first execution with a new size, beyond a later one: {:.1?}", median(new));
    println!("a later execution: {:.1?}", median(known));
    Ok(())
}

/// Layers of attention and a feed-forward network, on sequences of any length.
fn encoder(registry: &mut WeightsRegistry) -> max::Result<Graph> {
    let tokens = TensorType::new(DType::Float32, ("batch", "length", WIDTH as i64), DeviceRef::CPU);
    let mut weight = |name: String, shape: &[usize]| -> max::Result<TensorValue> {
        let count = shape.iter().product();
        let values = Buffer::from((0..count).map(|i: usize| (i % 7) as f32 * 0.01).collect::<Vec<_>>());
        registry.insert(name.clone(), values.view(DType::Float32, Some(shape))?);
        Weight::new(name, DType::Float32, shape.to_vec(), DeviceRef::CPU)?.value()
    };
    Graph::build("encoder", [tokens], |inputs| {
        let mut x = inputs[0].tensor()?;
        for layer in 0..LAYERS {
            let mut linear = |x: &TensorValue, name: &str, from: usize, to: usize| {
                let matrix = weight(format!("{layer}.{name}"), &[to, from])?;
                let bias = weight(format!("{layer}.{name}.bias"), &[to])?;
                ops::add(ops::matmul(x, ops::transpose(matrix, 0, 1)), bias)
            };
            let heads = |x: TensorValue| {
                let apart = ops::reshape(x, ("batch", "length", HEADS as i64, (WIDTH / HEADS) as i64));
                ops::permute(apart, vec![0, 2, 1, 3])
            };
            let q = heads(linear(&x, "query", WIDTH, WIDTH)?)?;
            let k = heads(linear(&x, "key", WIDTH, WIDTH)?)?;
            let v = heads(linear(&x, "value", WIDTH, WIDTH)?)?;
            let scores = ops::mul(ops::matmul(q, ops::transpose(k, -1, -2)), 0.17);
            let mixed = ops::permute(ops::matmul(ops::softmax(scores, -1), v), vec![0, 2, 1, 3]);
            let mixed = ops::reshape(mixed, ("batch", "length", WIDTH as i64))?;
            let attended = ops::add(linear(&mixed, "output", WIDTH, WIDTH)?, &x)?;
            let wide = ops::gelu(linear(&attended, "wide", WIDTH, 4 * WIDTH)?)?;
            let narrow = ops::add(linear(&wide, "narrow", 4 * WIDTH, WIDTH)?, &attended)?;
            let scale = weight(format!("{layer}.norm"), &[WIDTH])?;
            let shift = weight(format!("{layer}.norm.bias"), &[WIDTH])?;
            x = ops::layer_norm(narrow, scale, shift, 1e-12)?;
        }
        Ok::<_, max::Error>(x)
    })
}
