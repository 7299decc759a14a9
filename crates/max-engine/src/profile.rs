//! Where the time of a model goes, kernel by kernel: as a table, and as a trace for Chrome or Perfetto.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use max_compiler::Program;
use max_core::{Error, Result};

use crate::lock;
use crate::model::ops_of;

/// The launches that were timed; the oldest make room for new ones.
#[derive(Debug)]
pub(crate) struct Profile {
    began: Instant,
    launches: Mutex<Launches>,
}

#[derive(Debug, Default)]
struct Launches {
    kept: std::collections::VecDeque<Launch>,
    threads: Vec<std::thread::ThreadId>,
}

/// How many launches are kept.
const KEPT: usize = 1 << 18;

#[derive(Clone, Copy, Debug)]
struct Launch {
    step: usize,
    start: Duration,
    time: Duration,
    thread: usize,
}

impl Default for Profile {
    fn default() -> Profile {
        Profile { began: Instant::now(), launches: Mutex::default() }
    }
}

impl Profile {
    pub(crate) fn add(&self, step: usize, started: Instant) {
        let time = started.elapsed();
        let start = started.saturating_duration_since(self.began);
        let id = std::thread::current().id();
        let mut launches = lock(&self.launches);
        let known = launches.threads.iter().position(|&own| own == id);
        let thread = known.unwrap_or_else(|| {
            launches.threads.push(id);
            launches.threads.len() - 1
        });
        if launches.kept.len() == KEPT {
            launches.kept.pop_front();
        }
        launches.kept.push_back(Launch { step, start, time, thread });
    }

    fn launches(&self) -> Vec<Launch> {
        let launches = lock(&self.launches);
        launches.kept.iter().copied().collect()
    }

    /// One line a kernel, the one that took longest first.
    pub(crate) fn table(&self, program: &Program) -> String {
        let mut by_step: BTreeMap<usize, Vec<Duration>> = BTreeMap::new();
        for launch in self.launches() {
            by_step.entry(launch.step).or_default().push(launch.time);
        }
        let total: Duration = by_step.values().flatten().sum();
        let mut rows: Vec<_> =
            by_step.into_iter().map(|(step, times)| (times.iter().sum::<Duration>(), step, times)).collect();
        rows.sort_by_key(|(sum, step, _)| (std::cmp::Reverse(*sum), *step));
        let mut text = format!(
            "{:>5} {:>9} {:>12} {:>12} {:>6}  kernel\n",
            "step", "launches", "total us", "mean us", "share"
        );
        for (sum, step, times) in rows {
            let share = 100.0 * sum.as_secs_f64() / total.as_secs_f64().max(f64::MIN_POSITIVE);
            let us = sum.as_secs_f64() * 1e6;
            let mean = us / times.len() as f64;
            let name = program.step_name(step);
            let _ =
                writeln!(text, "{step:>5} {:>9} {us:>12.1} {mean:>12.2} {share:>5.1}%  {name}", times.len());
        }
        text
    }

    /// The launches in the format of Chrome's and Perfetto's trace viewers.
    pub(crate) fn trace(&self, program: &Program, detailed: bool) -> String {
        let events = self.launches().into_iter().map(|launch| {
            let (start, time) = (launch.start.as_secs_f64() * 1e6, launch.time.as_secs_f64() * 1e6);
            let mut arguments = format!("\"step\":{}", launch.step);
            if detailed {
                let ops: Vec<_> = ops_of(program, launch.step).iter().map(|op| quote(op)).collect();
                let _ = write!(arguments, ",\"ops\":[{}]", ops.join(","));
            }
            format!(
                "{{\"name\":{},\"cat\":\"kernel\",\"ph\":\"X\",\"ts\":{start:.3},\"dur\":{time:.3},\"pid\":1,\"tid\":{},\"args\":{{{arguments}}}}}",
                quote(&program.step_name(launch.step)),
                launch.thread
            )
        });
        let events: Vec<String> = events.collect();
        format!("{{\"traceEvents\":[\n{}\n],\"displayTimeUnit\":\"ns\"}}\n", events.join(",\n"))
    }

    /// Writes the trace to a file.
    pub(crate) fn save(&self, program: &Program, detailed: bool, path: &Path) -> Result<()> {
        std::fs::write(path, self.trace(program, detailed))
            .map_err(|e| Error::runtime(format!("cannot write the trace to {}: {e}", path.display())))
    }
}

/// A text as JSON writes it.
fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(quoted, "\\u{:04x}", c as u32);
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
