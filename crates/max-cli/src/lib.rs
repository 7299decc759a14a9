//! The `max` command, as a function of its arguments, so that the Python package has the same command.
//!
//! Results go to standard output; progress and errors to standard error. Exit status: 0 on success, 1 if something failed,
//! 2 for an invalid command line. A reader that has seen enough and closes the pipe is no failure.

#![forbid(unsafe_code)]

mod arguments;
mod encode;
mod files;
mod generate;
mod list;
mod loading;
mod perplexity;
mod progress;
mod table;
mod vectors;

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};

use clap::{CommandFactory, Parser};

use arguments::{Arguments, Command};

/// Why a command ended early.
enum Failure {
    /// Something went wrong.
    Error(max_core::Error),
    /// Standard output could not be written.
    Output(io::Error),
}

impl From<max_core::Error> for Failure {
    fn from(error: max_core::Error) -> Failure {
        Failure::Error(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

type Outcome = Result<(), Failure>;

/// Runs the command with arguments, of which the first is its name; the result is the exit status.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version arrive here too. If nobody reads them, nobody is missing anything.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    let mut output = BufWriter::new(io::stdout().lock());
    let outcome = execute(arguments.command, &mut output).and_then(|()| Ok(output.flush()?));
    match outcome {
        Ok(()) => 0,
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(Failure::Output(error)) => complain(&format!("cannot write the output: {error}")),
        Err(Failure::Error(error)) => complain(&on_one_line(&error)),
    }
}

fn execute(command: Command, output: &mut dyn Write) -> Outcome {
    match command {
        Command::Generate(arguments) => generate::run(&arguments, output),
        Command::Encode(arguments) => encode::run(&arguments, output),
        Command::Perplexity(arguments) => perplexity::run(&arguments, output),
        Command::List => list::run(output),
        Command::Convert(arguments) => files::convert(&arguments, output),
        Command::Inspect(arguments) => files::inspect(&arguments, output),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "max", &mut script);
            Ok(output.write_all(&script)?)
        }
    }
}

fn complain(message: &str) -> u8 {
    say(&format!("max: {message}\n"));
    1
}

/// Writes to standard error. If it is closed, there is no better place to say so.
fn say(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// An error with what was being done, but without the line of this program that noticed it.
fn on_one_line(error: &max_core::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().filter(|line| !line.starts_with("  at "));
    let line = lines.map(str::trim).collect::<Vec<_>>().join("; ");
    // Names in files may contain anything.
    table::shortened(&line, usize::MAX)
}
