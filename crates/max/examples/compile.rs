//! How long compiling takes: a relu of five elements, and graphs of up to 20,000 ops.

use std::time::{Duration, Instant};

use max::driver::{Buffer, CPU};
use max::dtype::DType;
use max::engine::{InferenceSession, clear_program_cache};
use max::graph::{DeviceRef, Graph, TensorType, ops};

fn main() -> max::Result<()> {
    let session = InferenceSession::new([CPU()]);
    let five = TensorType::new(DType::Float32, [5], DeviceRef::CPU);
    let relu = Graph::build("relu", [five], |x| ops::relu(&x[0]))?;
    report("relu of five elements: load", &mut || {
        clear_program_cache();
        session.load(&relu).map(drop)
    })?;
    report("relu of five elements: load again", &mut || session.load(&relu).map(drop))?;
    let model = session.load(&relu)?;
    let input = [Buffer::from([1.0f32, -2.0, 3.0, -4.0, 5.0])];
    report("relu of five elements: execute", &mut || model.execute(&input).map(drop))?;

    for count in [200, 2_000, 20_000] {
        let graph = mixed(count)?;
        let what = format!("{count} ops: load");
        report(&what, &mut || {
            clear_program_cache();
            session.load(&graph).map(drop)
        })?;
    }
    Ok(())
}

/// A graph of many kinds of ops, none of which can be eliminated.
fn mixed(count: usize) -> max::Result<Graph> {
    let ty = TensorType::new(DType::Float32, ("batch", 64), DeviceRef::CPU);
    let weight = TensorType::new(DType::Float32, (64, 64), DeviceRef::CPU);
    Graph::build("mixed", [ty, weight], |inputs| {
        let (mut x, w) = (inputs[0].tensor()?, inputs[1].tensor()?);
        for i in 0..count {
            x = match i % 8 {
                0 => ops::relu(&x)?,
                1 => (&x + 1.0)?,
                2 => ops::matmul(&x, &w)?,
                3 => ops::softmax(&x, -1)?,
                4 => (&x * &x)?,
                5 => ops::reshape(&x, ("batch", 8, 8))?,
                6 => ops::reshape(ops::permute(&x, vec![0, 2, 1])?, ("batch", 64))?,
                _ => ops::exp(&x)?,
            };
        }
        Ok::<_, max::Error>(x)
    })
}

/// Prints the median time of a function.
fn report(what: &str, f: &mut dyn FnMut() -> max::Result<()>) -> max::Result<()> {
    let mut times: Vec<Duration> = Vec::new();
    let begin = Instant::now();
    while times.len() < 5 || begin.elapsed() < Duration::from_millis(200) && times.len() < 2_000 {
        let start = Instant::now();
        f()?;
        times.push(start.elapsed());
    }
    times.sort();
    println!("{what:40} {:>12.2?}", times[times.len() / 2]);
    Ok(())
}
