//! The table of the ops: on the screen, as Markdown and as JSON.

use serde_json::{Value as Json, json};

use crate::columns::{self, Column};
use crate::machine::Machine;
use crate::measure::Measured;
use crate::options::Options;
use crate::suite::Bench;

/// How to read a share above one hundred.
const CACHED: &str = "A share of the copy bandwidth above 100% means that part of the data stayed in the last cache; copies are of memory.";

/// What was found so far.
pub struct Report<'a> {
    options: &'a Options,
    machine: Machine,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    dtype: String,
    measured: Measured,
}

const COLUMNS: &[Column] = &[
    Column::text("op", 28),
    Column::text("dtype", 8),
    Column::text("inputs", 30),
    Column::number("compile us", 10),
    Column::number("execute us", 10),
    Column::number("GB/s", 8),
    Column::number("% of copy", 9),
    Column::number("GFLOP/s", 8),
    Column::number("% of peak", 9),
];

impl<'a> Report<'a> {
    pub fn new(options: &'a Options, machine: Machine) -> Report<'a> {
        Report { options, machine, rows: Vec::new() }
    }

    /// What stands above the rows.
    pub fn head(&self) -> String {
        format!("{}\n\n{}", self.machine, columns::header(COLUMNS))
    }

    /// Keeps what was measured and gives its line of the table.
    pub fn add(&mut self, bench: &Bench, measured: Measured) -> String {
        let row = Row { name: bench.name.clone(), dtype: bench.dtype.to_string(), measured };
        let line = columns::line(COLUMNS, &self.cells(&row));
        self.rows.push(row);
        line
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let m = &row.measured;
        let (bytes, flops) = (m.bytes as f64 / m.execute, m.flops / m.execute);
        let computes = |text: String| if m.flops > 0.0 { text } else { String::new() };
        vec![
            row.name.clone(),
            row.dtype.clone(),
            columns::shapes(&m.shapes),
            format!("{:.1}", m.compile * 1e6),
            format!("{:.1}", m.execute * 1e6),
            format!("{:.2}", bytes / 1e9),
            format!("{:.1}", 100.0 * bytes / self.machine.bandwidth),
            computes(format!("{:.1}", flops / 1e9)),
            computes(format!("{:.1}", 100.0 * flops / self.machine.flops)),
        ]
    }

    /// Writes the files that were asked for.
    pub fn write(&self) -> Result<(), String> {
        self.options.write(|| self.as_json(), || self.as_markdown())
    }

    fn as_json(&self) -> Json {
        let rows = self.rows.iter().map(|Row { name, dtype, measured: m }| {
            json!({
                "op": name, "dtype": dtype, "inputs": m.shapes, "compile_seconds": m.compile,
                "execute_seconds": m.execute, "bytes": m.bytes, "flops": m.flops,
            })
        });
        json!({
            "command": self.options.command(), "cpu": self.machine.cpu, "threads": self.machine.threads,
            "copy_bytes_per_second": self.machine.bandwidth, "peak_flops_per_second": self.machine.flops,
            "rows": rows.collect::<Vec<_>>(),
        })
    }

    fn as_markdown(&self) -> String {
        let table = columns::markdown(COLUMNS, self.rows.iter().map(|row| self.cells(row)));
        format!("Made by `{}`.\n\n{}. {CACHED}\n\n{table}", self.options.command(), self.machine)
    }
}
