//! The table of results: on the screen, as Markdown and as JSON.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use crate::measure::Measured;
use crate::options::Options;
use crate::suite::Bench;

/// How to read a share above one hundred.
const CACHED: &str = "A share of the copy bandwidth above 100% means that part of the data stayed in the last cache; copies are of memory.";

/// What was found so far.
pub struct Report {
    command: String,
    cpu: String,
    threads: usize,
    /// The best this machine does: bytes and operations in a second.
    bandwidth: f64,
    flops: f64,
    rows: Vec<Row>,
    json: Option<PathBuf>,
    markdown: Option<PathBuf>,
}

struct Row {
    name: String,
    dtype: String,
    measured: Measured,
}

const COLUMNS: [(&str, usize); 9] = [
    ("op", 28),
    ("dtype", 8),
    ("inputs", 30),
    ("compile us", 10),
    ("execute us", 10),
    ("GB/s", 8),
    ("% of copy", 9),
    ("GFLOP/s", 8),
    ("% of peak", 9),
];

impl Report {
    pub fn new(options: &Options, threads: usize, bandwidth: f64, flops: f64) -> Report {
        let (json, markdown) = (options.json.clone(), options.markdown.clone());
        let command = options.command();
        Report { command, cpu: cpu(), threads, bandwidth, flops, rows: vec![], json, markdown }
    }

    /// The machine and its best, in a line.
    pub fn machine(&self) -> String {
        let threads = if self.threads == 1 { "1 thread".into() } else { format!("{} threads", self.threads) };
        let (copy, peak) = (self.bandwidth / 1e9, self.flops / 1e9);
        format!("{}, {threads}: copies {copy:.1} GB/s, computes {peak:.1} GFLOP/s in float32", self.cpu)
    }

    pub fn header(&self) -> String {
        aligned(COLUMNS.map(|(name, _)| name.to_owned()))
    }

    /// Keeps what was measured and gives its line of the table.
    pub fn add(&mut self, bench: &Bench, measured: Measured) -> String {
        self.rows.push(Row { name: bench.name.clone(), dtype: bench.dtype.to_string(), measured });
        self.rows.last().map_or_else(String::new, |row| aligned(self.cells(row)))
    }

    fn cells(&self, row: &Row) -> [String; 9] {
        let m = &row.measured;
        let shape = |sizes: &Vec<usize>| match sizes.is_empty() {
            true => "scalar".into(),
            false => sizes.iter().map(usize::to_string).collect::<Vec<_>>().join("x"),
        };
        let (bytes, flops) = (m.bytes as f64 / m.execute, m.flops / m.execute);
        let computes = |text: String| if m.flops > 0.0 { text } else { String::new() };
        [
            row.name.clone(),
            row.dtype.clone(),
            m.shapes.iter().map(shape).collect::<Vec<_>>().join(" "),
            format!("{:.1}", m.compile * 1e6),
            format!("{:.1}", m.execute * 1e6),
            format!("{:.2}", bytes / 1e9),
            format!("{:.1}", 100.0 * bytes / self.bandwidth),
            computes(format!("{:.1}", flops / 1e9)),
            computes(format!("{:.1}", 100.0 * flops / self.flops)),
        ]
    }

    /// Writes the files that were asked for.
    pub fn write(&self) -> Result<(), String> {
        let save = |path: &Path, text: String| {
            fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
        };
        if let Some(path) = &self.json {
            save(path, format!("{:#}\n", self.as_json()))?;
        }
        if let Some(path) = &self.markdown {
            save(path, self.as_markdown())?;
        }
        Ok(())
    }

    fn as_json(&self) -> Json {
        let rows = self.rows.iter().map(|Row { name, dtype, measured: m }| {
            json!({
                "op": name, "dtype": dtype, "inputs": m.shapes, "compile_seconds": m.compile,
                "execute_seconds": m.execute, "bytes": m.bytes, "flops": m.flops,
            })
        });
        json!({
            "command": self.command, "cpu": self.cpu, "threads": self.threads,
            "copy_bytes_per_second": self.bandwidth, "peak_flops_per_second": self.flops,
            "rows": rows.collect::<Vec<_>>(),
        })
    }

    fn as_markdown(&self) -> String {
        let line = |cells: [String; 9]| format!("| {} |\n", cells.join(" | "));
        let rules = COLUMNS.map(|(name, _)| if TEXT.contains(&name) { "---".into() } else { "---:".into() });
        let rows: String = self.rows.iter().map(|row| line(self.cells(row))).collect();
        let head = line(COLUMNS.map(|(name, _)| name.to_owned())) + &line(rules);
        format!("Made by `{}`.\n\n{}. {CACHED}\n\n{head}{rows}", self.command, self.machine())
    }
}

/// The columns that are no numbers.
const TEXT: [&str; 3] = ["op", "dtype", "inputs"];

fn aligned(cells: [String; 9]) -> String {
    let columns = cells.iter().zip(COLUMNS).map(|(cell, (name, width))| match TEXT.contains(&name) {
        true => format!("{cell:width$}"),
        false => format!("{cell:>width$}"),
    });
    columns.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

/// The name of the processor, as the system knows it.
fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or(std::env::consts::ARCH, |(_, name)| name.trim()).to_owned()
}
