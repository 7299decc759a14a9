//! Times every op and some graphs of several ops, and reports what share of this machine's peak they reach.
//!
//! Run it as `cargo xtask bench`. The peak is measured in the same run on the same number of threads: the bandwidth
//! of a copy for ops that move data, and the rate of fused multiply-adds for matmuls. The words `matmul`, `conv`,
//! `attention` and `sweep` time kernels on the shapes of models instead, and compare them with PyTorch if given a Python
//! that has it.

mod columns;
mod kernels;
mod machine;
mod measure;
mod options;
mod report;
mod suite;
#[path = "../../tests/cases/table.rs"]
mod table;

use std::process::ExitCode;

use max_engine::InferenceSession;

use machine::Machine;
use measure::measure;
use options::Options;
use report::Report;

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("bench: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<(), String> {
    let session = InferenceSession::new([]);
    let session = match options.threads {
        Some(threads) => session.with_num_threads(threads).map_err(|e| e.to_string())?,
        None => session,
    };
    match options.groups.is_empty() {
        true => time_ops(&session, &options),
        false => kernels::run(&session, &options),
    }
}

fn time_ops(session: &InferenceSession, options: &Options) -> Result<(), String> {
    let mut report = Report::new(options, Machine::measure(session.num_threads()));
    println!("{}", report.head());
    let mut failed = 0;
    for bench in suite::suite(options) {
        match bench.case().and_then(|case| measure(session, &case, options.quick)) {
            Ok(measured) => println!("{}", report.add(&bench, measured)),
            Err(error) => {
                eprintln!("{}: {error}", bench.title());
                failed += 1;
            }
        }
    }
    report.write()?;
    if failed == 0 { Ok(()) } else { Err(format!("{failed} benchmarks failed")) }
}
