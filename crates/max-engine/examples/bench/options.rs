//! The command line.

use std::path::PathBuf;

/// What to run and where to write it.
#[derive(Debug, Default)]
pub struct Options {
    /// Words of which a benchmark's title must have one; all benchmarks if there are none.
    pub filters: Vec<String>,
    pub threads: Option<usize>,
    /// Small sizes and few runs.
    pub quick: bool,
    /// The tiny rows of `cases/ops.json` in place of the large ones: what a call costs by itself.
    pub small: bool,
    pub json: Option<PathBuf>,
    pub markdown: Option<PathBuf>,
    /// The command line that leads here again.
    pub command: String,
}

impl Options {
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let arguments: Vec<String> = arguments.collect();
        let mut options =
            Options { command: format!("cargo xtask bench {}", arguments.join(" ")), ..Options::default() };
        let mut rest = arguments.into_iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().ok_or(format!("`{argument}` needs a value"));
            match argument.as_str() {
                "--threads" => {
                    let threads = value()?;
                    let threads =
                        threads.parse().map_err(|_| format!("`{threads}` is no number of threads"))?;
                    options.threads = Some(threads);
                }
                "--quick" => options.quick = true,
                "--small" => options.small = true,
                "--json" => options.json = Some(value()?.into()),
                "--markdown" => options.markdown = Some(value()?.into()),
                unknown if unknown.starts_with('-') => return Err(format!("`{unknown}` is no option")),
                _ => options.filters.push(argument),
            }
        }
        Ok(options)
    }

    /// Whether a benchmark is asked for.
    pub fn wants(&self, title: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|word| title.contains(word.as_str()))
    }
}
