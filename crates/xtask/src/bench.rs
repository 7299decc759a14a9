//! `cargo xtask bench`: the benchmark of the ops, an example of max-engine built in release mode.

use crate::exec;
use crate::test::cargo;

/// Builds and runs the benchmark, which parses the arguments itself.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let bench = ["run", "--quiet", "--release", "--package", "max-engine", "--example", "bench", "--"];
    exec::run(cargo().args(bench).args(arguments))
}
