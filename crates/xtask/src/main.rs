//! The repository's own commands, run as `cargo xtask <command>`.
//!
//! `test` is the one command that decides whether a change is good; `tidy` is its first step, the rules
//! no compiler checks. `bench` times the ops, `gpu` packs what a machine with a GPU runs. Standard library
//! only, so that it builds in a second.
//!
//! Exit status: 0 on success, 1 when a check failed, 2 for an invalid command line.
#![forbid(unsafe_code)]

mod bench;
mod chart;
mod exec;
mod gpu;
mod test;
mod tidy;
mod totals;
mod venv;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
The repository's own commands.

Usage: cargo xtask <command>

Commands:
  test [--rust | --python] [--torch] [--real-models] [-- <pytest arguments>]
          Run every check and test: tidy, format, clippy, the Rust tests, the documentation,
          then build the wheel into a private environment and run the Python tests.
            --rust      only the Rust steps
            --python    only the Python steps
            --torch     also install PyTorch, which is large, so that no test is skipped for lack of it
            --real-models
                        also install a published encoder (84 MB) and compare its vectors with those of
                        another implementation
          Arguments after `--` go to pytest.
  tidy    Check the rules no compiler checks: which crate may use which, file sizes,
          documented unsafe code, leftovers. Prints `path:line: message` for each finding.
  bench [<word>...] [--quick] [--small] [--threads N] [--torch PYTHON] [--rounds N]
        [--json FILE] [--markdown FILE]
          Time the ops on large tensors, relative to this machine's copy bandwidth and peak FLOP/s.
            <word>      only benchmarks with one of the words in op, arguments or dtype, e.g. `softmax`;
                        `matmul`, `conv`, `attention` and `sweep` (many shapes of matmul) instead
                        time kernels on the shapes of models in cases/kernels.json, and further
                        words choose among these, e.g. `matmul Llama`
            --quick     smaller tensors, fewer runs
            --small     the tiny tensors of cases/ops.json: the cost of a call by itself
            --threads   how many threads to use (default: one per core)
            --torch     a Python that has PyTorch, to run the same kernels on as many threads;
                        a ratio above 1 means that max-rs is faster
            --rounds    how often the two alternate on a kernel (default: 3)
            --json, --markdown
                        also write the table to a file (relative to the repository root)
  bench --chart
          Draw docs/speed.svg from the figures in benches/speed.tsv.
  gpu [--build | tests | rust [NAME] | python | bench | sanitizer] [<arguments>...]
          Pack everything that the GPU tests and the benchmark against PyTorch need into target/gpu:
          test executables, the wheel, Python tests, cases, pytest, and a script. Take that folder to
          a machine with a GPU, which needs no Rust, and run `sh gpu/run`; `sh gpu/run --help` says
          more. On a machine with a GPU the script runs right away, with the arguments given here.
            --build     only pack
  help    Print this text.

Environment:
  PYTHON            the Python (3.10 or newer) to create the private environment with
  CARGO_TARGET_DIR  where build outputs, the wheel and the environment go (default: target)
";

/// What a command line asks for.
#[derive(Debug, PartialEq)]
enum Command {
    Help,
    Bench(Vec<String>),
    Gpu(gpu::Options),
    Test(test::Options),
    Tidy,
}

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    let command = match parse(&arguments) {
        Ok(command) => command,
        Err(message) => {
            eprintln!("xtask: {message}\n\nTry `cargo xtask --help`.");
            return ExitCode::from(2);
        }
    };
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), String> {
    let root = repository_root();
    std::env::set_current_dir(&root).map_err(|error| format!("cannot enter {}: {error}", root.display()))?;
    match command {
        Command::Help => {
            print!("{HELP}");
            Ok(())
        }
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Gpu(options) => gpu::run(&options),
        Command::Test(options) => test::run(options),
        Command::Tidy => tidy::run(),
    }
}

fn parse(arguments: &[String]) -> Result<Command, String> {
    let Some((command, rest)) = arguments.split_first() else {
        return Err("no command given".into());
    };
    let own = rest.split(|argument| argument == "--").next().unwrap_or_default();
    if own.iter().any(|argument| argument == "--help" || argument == "-h") {
        return Ok(Command::Help);
    }
    match command.as_str() {
        "help" | "--help" | "-h" => Ok(Command::Help),
        "bench" => Ok(Command::Bench(rest.to_vec())),
        "gpu" => gpu::Options::parse(rest).map(Command::Gpu),
        "test" => test::Options::parse(rest).map(Command::Test),
        "tidy" => match rest.first() {
            None => Ok(Command::Tidy),
            Some(extra) => Err(format!("`tidy` takes no arguments, but was given `{extra}`")),
        },
        unknown => Err(format!("unknown command `{unknown}`")),
    }
}

/// The root of the workspace; every command runs from there.
fn repository_root() -> PathBuf {
    // Cargo sets the variable at run time; a binary started by hand falls back to where it was built.
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.ancestors().nth(2).unwrap_or(Path::new(".")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn help_is_offered_everywhere() {
        for line in ["help", "--help", "-h", "test --help", "tidy -h", "bench --help"] {
            assert_eq!(parsed(line), Ok(Command::Help), "{line}");
        }
        assert!(matches!(parsed("test -- --help"), Ok(Command::Test(_))), "pytest's own help");
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        assert!(parsed("").is_err());
        assert!(parsed("frobnicate").unwrap_err().contains("`frobnicate`"));
        assert!(parsed("tidy now").unwrap_err().contains("`now`"));
    }
}
