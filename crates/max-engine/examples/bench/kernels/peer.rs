//! The other side: a Python process with PyTorch that runs the same kernels and answers requests line by line.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::rows::Kernel;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/bench/torch_side.py");

/// A running process.
pub struct Peer {
    child: Child,
    /// Closed to make the process exit.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    python: String,
    /// The version of PyTorch.
    pub version: String,
}

impl Peer {
    /// Starts an interpreter that uses this many threads.
    pub fn start(python: &Path, threads: usize) -> Result<Peer, String> {
        let name = python.display().to_string();
        let mut child = Command::new(python)
            .arg(SCRIPT)
            .env("OMP_NUM_THREADS", threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot run `{name}`: {error}"))?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("cannot open pipes to `{name}`"));
        };
        let answers = BufReader::new(answers);
        let mut peer =
            Peer { child, requests: Some(requests), answers, python: name, version: String::new() };
        let answer = peer.ask(&json!({ "threads": threads }))?;
        peer.version = answer["version"].as_str().unwrap_or("of unknown version").to_owned();
        Ok(peer)
    }

    /// Makes the operands of a kernel. Returns the sum of the magnitudes of its results.
    pub fn prepare(&mut self, kernel: &Kernel) -> Result<f64, String> {
        let answer = self.ask(&kernel.request())?;
        answer["sum"].as_f64().ok_or_else(|| self.nonsense(&answer))
    }

    /// Median times in seconds by the names of the functions that were timed, each for this long.
    pub fn measure(&mut self, time: Duration) -> Result<Vec<(String, f64)>, String> {
        let answer = self.ask(&json!({ "seconds": time.as_secs_f64() }))?;
        let times = answer["times"].as_object().into_iter().flatten();
        let times =
            times.map(|(name, time)| Some((name.clone(), time.as_f64()?))).collect::<Option<Vec<_>>>();
        times.filter(|times| !times.is_empty()).ok_or_else(|| self.nonsense(&answer))
    }

    fn ask(&mut self, request: &Json) -> Result<Json, String> {
        let mut line = String::new();
        // A process that has died is noticed when reading: its last words say more than a broken pipe.
        if let Some(requests) = &mut self.requests {
            let _ = writeln!(requests, "{request}");
        }
        match self.answers.read_line(&mut line) {
            Ok(0) => return Err(format!("`{}` exited without an answer", self.python)),
            Err(error) => return Err(format!("cannot read from `{}`: {error}", self.python)),
            Ok(_) => {}
        }
        let answer: Json =
            serde_json::from_str(&line).map_err(|_| self.nonsense(&Json::from(line.trim())))?;
        match answer["error"].as_str() {
            Some(error) => Err(format!("`{}`: {error}", self.python)),
            None => Ok(answer),
        }
    }

    fn nonsense(&self, answer: &Json) -> String {
        format!("`{}` gave an unexpected answer: {answer}", self.python)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.requests = None;
        let _ = self.child.wait();
    }
}
