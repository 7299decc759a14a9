//! How long eager ops take: `cargo run --release --example eager`.

use std::time::Instant;

use max::tensor::{Tensor, cache_stats, functional, functions as F};

fn time(name: &str, count: u32, mut work: impl FnMut() -> max::Result<()>) -> max::Result<()> {
    for _ in 0..count / 10 {
        work()?;
    }
    let start = Instant::now();
    for _ in 0..count {
        work()?;
    }
    println!("{name:40} {:8.2} us", start.elapsed().as_secs_f64() * 1e6 / f64::from(count));
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
    println!("{:?}", cache_stats());
    Ok(())
}
