//! Running other programs: commands are announced, output is streamed, and failures name the program.

use std::io::{Read, Write};
use std::process::{Command, ExitStatus, Stdio};

/// Runs a program to completion; its output goes straight to the terminal.
pub fn run(command: &mut Command) -> Result<(), String> {
    announce(command);
    let status = command.status().map_err(|error| cannot_start(command, &error))?;
    check(command, status)
}

/// Like [`run`], and also appends the program's standard output to `captured`, whether it succeeds or not.
pub fn tee(command: &mut Command, captured: &mut String) -> Result<(), String> {
    announce(command);
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| cannot_start(command, &error))?;
    let mut bytes = Vec::new();
    let copied = match child.stdout.take() {
        Some(output) => copy(output, &mut bytes),
        None => Ok(()),
    };
    let status = child.wait().map_err(|error| format!("cannot wait for {}: {error}", shown(command)))?;
    captured.push_str(&String::from_utf8_lossy(&bytes));
    copied.map_err(|error| format!("cannot forward the output of {}: {error}", shown(command)))?;
    check(command, status)
}

/// Runs a program to completion and returns its standard output; standard error goes to the terminal.
pub fn output(command: &mut Command) -> Result<String, String> {
    announce(command);
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| cannot_start(command, &error))?;
    check(command, output.status)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program silently and returns its standard output, or `None` if it fails.
pub fn probe(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn copy(mut from: impl Read, kept: &mut Vec<u8>) -> std::io::Result<()> {
    let mut screen = std::io::stdout();
    let mut chunk = [0; 8192];
    loop {
        let count = from.read(&mut chunk)?;
        if count == 0 {
            return Ok(());
        }
        kept.extend_from_slice(&chunk[..count]);
        screen.write_all(&chunk[..count])?;
        screen.flush()?;
    }
}

fn announce(command: &Command) {
    println!("$ {}", shown(command));
}

fn check(command: &Command, status: ExitStatus) -> Result<(), String> {
    match status.success() {
        true => Ok(()),
        false => Err(format!("`{}` failed ({status})", shown(command))),
    }
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!("cannot start `{}`: {error}", command.get_program().to_string_lossy())
}

/// The command line, with the program's own name in place of its full path.
fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let words: Vec<_> =
        std::iter::once(name).chain(command.get_args()).map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}
