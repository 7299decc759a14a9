//! `cargo xtask bench`: the benchmark of the ops, an example of the engine that runs with all optimizations.

use crate::exec;
use crate::test::cargo;

/// Builds and runs the benchmark; it reads the arguments itself.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let bench = ["run", "--quiet", "--release", "--package", "max-engine", "--example", "bench", "--"];
    exec::run(cargo().args(bench).args(arguments))
}
