//! The machine a table was measured on, and its peak rates.

use std::fmt;
use std::fs;

use max_kernels::{Pool, roofline};

/// What percentages are relative to.
pub struct Machine {
    pub cpu: String,
    pub threads: usize,
    /// Bytes read and written per second by a memory copy.
    pub bandwidth: f64,
    /// Bytes read per second.
    pub read: f64,
    /// float32 operations per second.
    pub flops: f64,
}

impl Machine {
    /// Measures the best that a number of threads can do.
    pub fn measure(threads: usize) -> Machine {
        let pool = Pool::new(threads);
        let (bandwidth, read) = (roofline::copy_bandwidth(&pool), roofline::read_bandwidth(&pool));
        Machine { cpu: cpu(), threads, bandwidth, read, flops: roofline::peak_flops(&pool) }
    }
}

/// The machine in one line.
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = if self.threads == 1 { "thread" } else { "threads" };
        let (copy, read, peak) = (self.bandwidth / 1e9, self.read / 1e9, self.flops / 1e9);
        write!(
            f,
            "{}, {} {threads}: copy bandwidth {copy:.1} GB/s, read bandwidth {read:.1} GB/s, peak {peak:.1} GFLOP/s in float32",
            self.cpu, self.threads
        )
    }
}

/// The name of the processor, as the system knows it.
fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or(std::env::consts::ARCH, |(_, name)| name.trim()).to_owned()
}
