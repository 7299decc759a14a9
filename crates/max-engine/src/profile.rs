//! Where a model spends its time, kernel by kernel: as a table, and as a trace for Chrome or Perfetto.
//!
//! Steps of the host are timed by its clock. Steps of a device are timed by the device: events around them in its stream
//! are read when somebody asks, or when many have accumulated.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Write};
use std::path::Path;
use std::sync::Mutex;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use max_compiler::Program;
use max_core::{DeviceRef, Error, Result};
use max_driver::cuda::Event;

use crate::lock;
use crate::model::ops_of;

/// The timed launches; the oldest are dropped to make room for new ones.
#[derive(Debug)]
pub(crate) struct Profile {
    began: Instant,
    /// The name of each step, for tables and traces.
    names: Vec<String>,
    /// The name of each step, for NVIDIA's profilers.
    ranges: Vec<String>,
    launches: Mutex<Launches>,
}

#[derive(Debug, Default)]
struct Launches {
    kept: VecDeque<Launch>,
    threads: Vec<ThreadId>,
    pending: Vec<Pending>,
    /// For each device, a point in time that is known on both the device's clock and the host's.
    anchors: BTreeMap<u32, Anchor>,
}

/// How many launches are kept.
const KEPT: usize = 1 << 18;

/// The name of a replayed capture, which launches all steps as one. Its step number is one past the last step.
const REPLAY: &str = "replay";

/// How many device launches may wait to be read.
const MOST_PENDING: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Launch {
    step: usize,
    start: Duration,
    time: Duration,
    track: Track,
}

/// Where it ran: on a thread of the host (numbered in order of appearance) or on a GPU.
#[derive(Clone, Copy, Debug)]
enum Track {
    Thread(usize),
    Gpu(u32),
}

/// A device launch that may not have finished yet.
struct Pending {
    step: usize,
    gpu: u32,
    begin: Event,
    end: Event,
}

struct Anchor {
    event: Event,
    at: Duration,
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} on {}", self.step, DeviceRef::gpu(self.gpu))
    }
}

impl fmt::Debug for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.at)
    }
}

impl Profile {
    /// A profile of a program; a detailed one also tells NVIDIA's profilers the ops of each step.
    pub(crate) fn new(program: &Program, detailed: bool) -> Profile {
        let on = |device: DeviceRef| match device {
            DeviceRef::CPU => String::new(),
            device => format!(" on {device}"),
        };
        let steps = program.steps.iter().enumerate();
        let names = steps.map(|(at, step)| format!("{}{}", program.step_name(at), on(step.device)));
        let names: Vec<_> = names.chain([REPLAY.into()]).collect();
        let ranges = match detailed {
            false => names.clone(),
            true => {
                let all = names.iter().enumerate();
                let named = |(at, name): (usize, &String)| match at < program.steps.len() {
                    true => format!("{name}: {}", ops_of(program, at).join(", ")),
                    false => name.clone(),
                };
                all.map(named).collect()
            }
        };
        Profile { began: Instant::now(), names, ranges, launches: Mutex::default() }
    }

    /// What NVIDIA's profilers call a step.
    pub(crate) fn range_name(&self, step: usize) -> &str {
        &self.ranges[step]
    }

    /// Adds a step that ran on the host.
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
        launches.keep(Launch { step, start, time, track: Track::Thread(thread) });
    }

    /// Adds a step that was enqueued between two events.
    pub(crate) fn add_enqueued(
        &self,
        step: usize,
        gpu: u32,
        at: Instant,
        begin: Event,
        end: Event,
    ) -> Result<()> {
        let mut launches = lock(&self.launches);
        let at = at.saturating_duration_since(self.began);
        launches.anchors.entry(gpu).or_insert_with(|| Anchor { event: begin.clone(), at });
        launches.pending.push(Pending { step, gpu, begin, end });
        if launches.pending.len() >= MOST_PENDING { launches.read() } else { Ok(()) }
    }

    fn launches(&self) -> Result<Vec<Launch>> {
        let mut launches = lock(&self.launches);
        launches.read()?;
        Ok(launches.kept.iter().copied().collect())
    }

    /// One line per kernel, slowest first.
    pub(crate) fn table(&self) -> Result<String> {
        let mut by_step: BTreeMap<usize, Vec<Duration>> = BTreeMap::new();
        for launch in self.launches()? {
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
            let name = &self.names[step];
            let _ =
                writeln!(text, "{step:>5} {:>9} {us:>12.1} {mean:>12.2} {share:>5.1}%  {name}", times.len());
        }
        Ok(text)
    }

    /// The launches in the trace format of Chrome and Perfetto.
    pub(crate) fn trace(&self, program: &Program, detailed: bool) -> Result<String> {
        let events = self.launches()?.into_iter().map(|launch| {
            let (start, time) = (launch.start.as_secs_f64() * 1e6, launch.time.as_secs_f64() * 1e6);
            let mut arguments = format!("\"step\":{}", launch.step);
            if detailed && launch.step < program.steps.len() {
                let ops: Vec<_> = ops_of(program, launch.step).iter().map(|op| quote(op)).collect();
                let _ = write!(arguments, ",\"ops\":[{}]", ops.join(","));
            }
            // The host is one process with its threads, each GPU another.
            let (process, thread) = match launch.track {
                Track::Thread(thread) => (1, thread),
                Track::Gpu(id) => (2 + id, 0),
            };
            format!(
                "{{\"name\":{},\"cat\":\"kernel\",\"ph\":\"X\",\"ts\":{start:.3},\"dur\":{time:.3},\"pid\":{process},\"tid\":{thread},\"args\":{{{arguments}}}}}",
                quote(&self.names[launch.step])
            )
        });
        let events: Vec<String> = events.collect();
        Ok(format!("{{\"traceEvents\":[\n{}\n],\"displayTimeUnit\":\"ns\"}}\n", events.join(",\n")))
    }

    /// Writes the trace to a file.
    pub(crate) fn save(&self, program: &Program, detailed: bool, path: &Path) -> Result<()> {
        std::fs::write(path, self.trace(program, detailed)?)
            .map_err(|e| Error::runtime(format!("cannot write the trace to {}: {e}", path.display())))
    }
}

impl Launches {
    fn keep(&mut self, launch: Launch) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(launch);
    }

    /// Waits for pending launches and records how long they took.
    fn read(&mut self) -> Result<()> {
        for Pending { step, gpu, begin, end } in std::mem::take(&mut self.pending) {
            end.synchronize()?;
            let time = moved(Duration::ZERO, end.microseconds_since(&begin)?);
            let Some(anchor) = self.anchors.get_mut(&gpu) else { continue };
            // What one thread added last may have begun before what another thread added earlier.
            let start = moved(anchor.at, begin.microseconds_since(&anchor.event)?);
            // Times are measured from the previous launch, because long intervals lose digits.
            *anchor = Anchor { event: begin, at: start };
            self.keep(Launch { step, start, time, track: Track::Gpu(gpu) });
        }
        Ok(())
    }
}

/// A time plus some microseconds, which may be negative.
fn moved(from: Duration, micros: f64) -> Duration {
    let distance = Duration::from_secs_f64(micros.abs().max(0.0) / 1e6);
    if micros < 0.0 { from.saturating_sub(distance) } else { from + distance }
}

/// A JSON string literal.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_move_both_ways() {
        let at = Duration::from_micros(20);
        assert_eq!(moved(at, 5.0), Duration::from_micros(25));
        // Back and forth.
        assert_eq!(moved(moved(at, -10.0), 10.0), at);
        assert_eq!(moved(at, -30.0), Duration::ZERO);
        assert_eq!(moved(at, f64::NAN), at);
    }
}
