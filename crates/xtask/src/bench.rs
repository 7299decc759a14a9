//! `cargo xtask bench`: the benchmark of the ops, an example of max-engine built in release mode.

use crate::test::cargo;
use crate::{chart, exec};

/// Draws the chart, or builds and runs the benchmark, which parses the arguments itself.
pub fn run(arguments: &[String]) -> Result<(), String> {
    if arguments == ["--chart"] {
        return chart::run();
    }
    let bench = ["run", "--quiet", "--release", "--package", "max-engine", "--example", "bench", "--"];
    exec::run(cargo().args(bench).args(arguments))
}
