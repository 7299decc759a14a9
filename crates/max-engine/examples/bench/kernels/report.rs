//! The table of kernels, with PyTorch's times if it ran too.

use serde_json::{Value as Json, json};

use super::rows::Kernel;
use crate::columns::{self, Column};
use crate::machine::Machine;
use crate::options::Options;

/// The measurements of one kernel, in seconds.
pub struct Timed {
    pub kernel: Kernel,
    pub ours: f64,
    /// The times of PyTorch's functions; empty if it did not run.
    pub torch: Vec<(String, f64)>,
}

impl Timed {
    /// PyTorch's fastest function.
    fn best(&self) -> Option<&(String, f64)> {
        self.torch.iter().min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// How many times as fast as PyTorch a kernel is.
    fn ratio(&self) -> Option<f64> {
        self.best().map(|(_, theirs)| theirs / self.ours)
    }
}

const OWN: [Column; 9] = [
    Column::text("kernel", 38),
    Column::text("dtype", 8),
    Column::text("operands", 30),
    Column::number("us", 9),
    Column::number("GFLOP/s", 8),
    Column::number("% of peak", 9),
    Column::number("GB/s", 7),
    Column::number("% of copy", 9),
    Column::number("% of read", 9),
];

const TORCH: [Column; 3] =
    [Column::number("PyTorch us", 10), Column::text("by", 14), Column::number("ratio", 6)];

/// The measurements so far.
pub struct Report<'a> {
    options: &'a Options,
    machine: Machine,
    /// The version of PyTorch.
    torch: Option<String>,
    columns: Vec<Column>,
    rows: Vec<Timed>,
}

impl<'a> Report<'a> {
    pub fn new(options: &'a Options, machine: Machine, torch: Option<String>) -> Report<'a> {
        let beside = torch.iter().flat_map(|_| TORCH);
        let columns = OWN.into_iter().chain(beside).collect();
        Report { options, machine, torch, columns, rows: Vec::new() }
    }

    /// What is printed above the rows.
    pub fn head(&self) -> String {
        format!("{}\n\n{}", self.machine, columns::header(&self.columns))
    }

    /// Keeps a measurement and returns its line of the table.
    pub fn add(&mut self, timed: Timed) -> String {
        let line = columns::line(&self.columns, &self.cells(&timed));
        self.rows.push(timed);
        line
    }

    fn cells(&self, timed: &Timed) -> Vec<String> {
        let Timed { kernel, ours, .. } = timed;
        let (bytes, flops) = (kernel.bytes() as f64 / ours, kernel.work.flops() / ours);
        let mut cells = vec![
            kernel.name.clone(),
            kernel.dtype.to_string(),
            kernel.work.describe(),
            format!("{:.1}", ours * 1e6),
            format!("{:.1}", flops / 1e9),
            format!("{:.1}", 100.0 * flops / self.machine.flops),
            format!("{:.2}", bytes / 1e9),
            format!("{:.1}", 100.0 * bytes / self.machine.bandwidth),
            format!("{:.1}", 100.0 * bytes / self.machine.read),
        ];
        if let (Some((name, theirs)), Some(ratio)) = (timed.best(), timed.ratio()) {
            cells.extend([format!("{:.1}", theirs * 1e6), name.clone(), format!("{ratio:.2}")]);
        }
        cells
    }

    /// A line for each group and dtype: the geometric mean of the ratios, and the row with the lowest one.
    pub fn summary(&self) -> Vec<String> {
        let key = |timed: &Timed| format!("{} {}", timed.kernel.group, timed.kernel.dtype);
        let mut keys: Vec<String> = self.rows.iter().map(key).collect();
        keys.sort();
        keys.dedup();
        let line = |wanted: String| {
            let rows = self.rows.iter().filter(|timed| key(timed) == wanted);
            let ratios: Vec<(f64, &Timed)> = rows.filter_map(|timed| Some((timed.ratio()?, timed))).collect();
            let (lowest, row) = ratios.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
            let mean = geometric_mean(ratios.iter().map(|(ratio, _)| *ratio));
            let (count, name, sizes) = (ratios.len(), &row.kernel.name, row.kernel.work.describe());
            Some(format!(
                "{wanted}: geometric mean {mean:.2} times as fast as PyTorch over {count} rows, lowest {lowest:.2} ({name} {sizes})"
            ))
        };
        keys.into_iter().filter_map(line).collect()
    }

    /// Writes the files that were requested.
    pub fn write(&self) -> Result<(), String> {
        self.options.write(|| self.as_json(), || self.as_markdown())
    }

    fn as_json(&self) -> Json {
        let rows = self.rows.iter().map(|timed| {
            let Timed { kernel, ours, torch } = timed;
            let torch: serde_json::Map<String, Json> =
                torch.iter().map(|(name, time)| (name.clone(), json!(time))).collect();
            json!({
                "group": kernel.group, "kernel": kernel.name, "dtype": kernel.dtype.to_string(),
                "operands": kernel.work.operands(), "seconds": ours, "bytes": kernel.bytes(),
                "flops": kernel.work.flops(), "torch_seconds": torch, "ratio": timed.ratio(),
            })
        });
        json!({
            "command": self.options.command(), "cpu": self.machine.cpu, "threads": self.machine.threads,
            "copy_bytes_per_second": self.machine.bandwidth, "peak_flops_per_second": self.machine.flops,
            "torch": self.torch, "rows": rows.collect::<Vec<_>>(),
        })
    }

    fn as_markdown(&self) -> String {
        let beside = self.torch.as_ref().map_or_else(String::new, |version| {
            format!(
                " PyTorch {version} is shown with its fastest function; a ratio above 1 means that max-rs is faster."
            )
        });
        let summary: String = self.summary().iter().map(|line| format!("- {line}\n")).collect();
        let summary = if summary.is_empty() { summary } else { summary + "\n" };
        let table = columns::markdown(&self.columns, self.rows.iter().map(|row| self.cells(row)));
        let (command, machine) = (self.options.command(), &self.machine);
        format!(
            "Generated by `{command}`.\n\n{machine}. A `'` marks an operand that is stored transposed.{beside}\n\n{summary}{table}"
        )
    }
}

fn geometric_mean(ratios: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = ratios.len() as f64;
    (ratios.map(f64::ln).sum::<f64>() / count).exp()
}

#[cfg(test)]
mod tests {
    use super::geometric_mean;

    #[test]
    fn twice_and_half_as_fast_is_as_fast() {
        assert_eq!(geometric_mean([2.0, 0.5].into_iter()), 1.0);
    }
}
