//! How long small calls take, eager ops and models: `cargo run --release --example eager`. `benches/calls.py` times the
//! same calls from Python.

use std::time::{Duration, Instant};

use max::driver::{Buffer, CPU};
use max::dtype::DType;
use max::engine::InferenceSession;
use max::graph::{DeviceRef, Graph, TensorType, ops};
use max::tensor::{Tensor, cache_stats, functional, functions as F, lazy};

fn time(name: &str, count: u32, mut work: impl FnMut() -> max::Result<()>) -> max::Result<()> {
    for _ in 0..count / 10 {
        work()?;
    }
    let start = Instant::now();
    for _ in 0..count {
        work()?;
    }
    println!("{name:40} {:8.3} us", start.elapsed().as_secs_f64() * 1e6 / f64::from(count));
    Ok(())
}

fn main() -> max::Result<()> {
    let x = Tensor::from([1.0f32, -2.0, 3.0, -4.0, 5.0]);
    println!("{}", F::relu(&x)?);
    time("relu, 5 elements", 100_000, || F::relu(&x).map(|_| ()))?;
    time("x + x, 5 elements", 100_000, || (&x + &x).map(|_| ()))?;
    time("x * 2, 5 elements", 100_000, || (&x * 2.0).map(|_| ()))?;
    let mut step = 0.0;
    time("x * a number that varies", 100_000, || {
        step += 1.0;
        (&x * step).map(|_| ())
    })?;
    time("20 ops in a region, 5 elements", 10_000, || {
        functional(|| {
            let mut y = x.clone();
            for _ in 0..20 {
                y = (&y + &x)?;
            }
            Ok(y)
        })
        .map(|_| ())
    })?;
    let (rounds, ops_each) = (2_000, 100);
    let mut recording = Duration::ZERO;
    for _ in 0..rounds {
        let (mut y, start) = (x.clone(), Instant::now());
        y = lazy(|| (0..ops_each).try_fold(y, |y, _| F::relu(&y)))?;
        recording += start.elapsed();
        drop(y);
    }
    println!(
        "{:40} {:8.3} us",
        "relu recorded in lazy",
        recording.as_secs_f64() * 1e6 / f64::from(rounds * ops_each)
    );

    let five = TensorType::new(DType::Float32, [5], DeviceRef::CPU);
    let graph = Graph::build("relu5", [five], |x| ops::relu(&x[0]))?;
    let model = InferenceSession::new([CPU()]).load(&graph)?;
    let input = [Buffer::from([1.0f32, -2.0, 3.0, -4.0, 5.0])];
    time("execute a model of relu, 5 elements", 100_000, || model.execute(&input).map(drop))?;
    println!("{:?}", cache_stats());
    Ok(())
}
