//! The `max` command: see `max_cli`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(max_cli::run(std::env::args_os()))
}
