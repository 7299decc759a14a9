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
}

impl Options {
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options::default();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("`{argument}` needs a value"));
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

    /// The command line that measures the same again.
    pub fn command(&self) -> String {
        let mut words = vec!["cargo xtask bench".to_owned()];
        words.extend(self.filters.iter().map(|word| format!("'{word}'")));
        words.extend(self.threads.map(|threads| format!("--threads {threads}")));
        words.extend(self.quick.then(|| "--quick".to_owned()));
        words.extend(self.small.then(|| "--small".to_owned()));
        words.join(" ")
    }

    /// Whether a benchmark is asked for.
    pub fn wants(&self, title: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|word| title.contains(word.as_str()))
    }
}
