//! Matmuls, convolutions and attention on the shapes of models: how close each comes to the machine's peak, and how many
//! times as fast it is as PyTorch.
//!
//! The two sides alternate on each kernel for several rounds, so that noise affects both alike. A time is the lowest
//! median of all rounds: threads that spin while they wait suffer most from other work on the machine, so disturbed
//! rounds must not count. The results are compared too, to be sure that both sides compute the same thing.

mod graphs;
mod peer;
mod report;
mod rows;

use std::time::Duration;

use max_engine::InferenceSession;

use crate::machine::Machine;
use crate::options::Options;
use graphs::Ready;
use peer::Peer;
use report::{Report, Timed};
use rows::{Kernel, Work};

/// The words that choose kernels: groups of rows.
pub const GROUPS: [&str; 5] = ["matmul", "quantized", "conv", "attention", "sweep"];

const ROUNDS: usize = 3;

/// Measures the requested kernels.
pub fn run(session: &InferenceSession, options: &Options) -> Result<(), String> {
    let kernels = rows::kernels(options)?;
    let threads = session.num_threads();
    let mut peer = options.torch.as_deref().map(|python| Peer::start(python, threads)).transpose()?;
    let version = peer.as_ref().map(|peer| peer.version.clone());
    let mut report = Report::new(options, Machine::measure(threads), version);
    println!("{}", report.head());
    let mut failed = 0;
    for kernel in kernels {
        match time(session, options, &kernel, peer.as_mut()) {
            Ok((ours, torch)) => println!("{}", report.add(Timed { kernel, ours, torch })),
            Err(error) => {
                eprintln!("{} {}: {error}", kernel.title(), kernel.work.describe());
                failed += 1;
            }
        }
    }
    let summary = report.summary();
    if !summary.is_empty() {
        println!("\n{}", summary.join("\n"));
    }
    report.write()?;
    if failed == 0 { Ok(()) } else { Err(format!("{failed} kernels failed")) }
}

type Times = Vec<(String, f64)>;

/// The times of both sides.
fn time(
    session: &InferenceSession,
    options: &Options,
    kernel: &Kernel,
    mut peer: Option<&mut Peer>,
) -> Result<(f64, Times), String> {
    let mut ready = Ready::new(session, kernel).map_err(|e| e.to_string())?;
    if let Some(peer) = &mut peer {
        agree(kernel, ready.sum().map_err(|e| e.to_string())?, peer.prepare(kernel)?)?;
    }
    let rounds = options.rounds.unwrap_or(if options.quick { 1 } else { ROUNDS });
    let turn = Duration::from_millis(if options.quick { 10 } else { 30 });
    let (mut ours, mut theirs) = (Vec::new(), Vec::<(String, Vec<f64>)>::new());
    for _ in 0..rounds {
        ours.push(ready.measure(turn).map_err(|e| e.to_string())?);
        let Some(peer) = &mut peer else { continue };
        for (name, time) in peer.measure(turn)? {
            match theirs.iter_mut().find(|(known, _)| *known == name) {
                Some((_, times)) => times.push(time),
                None => theirs.push((name, vec![time])),
            }
        }
    }
    Ok((lowest(ours), theirs.into_iter().map(|(name, times)| (name, lowest(times))).collect()))
}

/// Whether the sums of magnitudes of both sides' results agree, up to the rounding of short floats and
/// of weights.
fn agree(kernel: &Kernel, ours: f64, theirs: f64) -> Result<(), String> {
    let apart = (ours - theirs).abs() / ours.abs().max(theirs.abs()).max(f64::MIN_POSITIVE);
    let allowed = if matches!(kernel.work, Work::Quantized { .. }) { 0.1 } else { 0.01 };
    if apart <= allowed {
        Ok(())
    } else {
        Err(format!("the results sum up to {ours} here and to {theirs} in PyTorch"))
    }
}

fn lowest(times: Vec<f64>) -> f64 {
    times.into_iter().fold(f64::INFINITY, f64::min)
}
