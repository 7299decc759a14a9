//! The command line.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::kernels::GROUPS;

/// What to run and where to write it.
#[derive(Debug, Default)]
pub struct Options {
    /// A benchmark's title must contain one of these words; all benchmarks run if there are none.
    pub filters: Vec<String>,
    /// The groups of kernels that are timed instead of the ops.
    pub groups: Vec<&'static str>,
    pub threads: Option<usize>,
    /// Small sizes and few runs.
    pub quick: bool,
    /// The tiny rows of `cases/ops.json` instead of the large ones: the cost of a call by itself.
    pub small: bool,
    /// A Python with PyTorch, which runs the kernels too.
    pub torch: Option<PathBuf>,
    /// How often the two sides alternate on a kernel.
    pub rounds: Option<usize>,
    pub json: Option<PathBuf>,
    pub markdown: Option<PathBuf>,
}

impl Options {
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options::default();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("`{argument}` needs a value"));
            match argument.as_str() {
                "--threads" => options.threads = Some(count(&value()?, "threads")?),
                "--rounds" => options.rounds = Some(count(&value()?, "rounds")?),
                "--quick" => options.quick = true,
                "--small" => options.small = true,
                "--torch" => options.torch = Some(value()?.into()),
                "--json" => options.json = Some(value()?.into()),
                "--markdown" => options.markdown = Some(value()?.into()),
                unknown if unknown.starts_with('-') => return Err(format!("unknown option `{unknown}`")),
                _ => options.filters.push(argument),
            }
        }
        if !options.small {
            options.groups =
                GROUPS.into_iter().filter(|group| options.filters.iter().any(|w| w == group)).collect();
            options.filters.retain(|word| !GROUPS.contains(&word.as_str()));
        }
        let kernels_only = [("--torch", options.torch.is_some()), ("--rounds", options.rounds.is_some())];
        match kernels_only.iter().find(|(_, given)| *given && options.groups.is_empty()) {
            Some((name, _)) => {
                Err(format!("`{name}` is for kernels; name some of them: {}", GROUPS.join(", ")))
            }
            None => Ok(options),
        }
    }

    /// The command line that measures the same again.
    pub fn command(&self) -> String {
        let mut words = vec!["cargo xtask bench".to_owned()];
        words.extend(self.groups.iter().map(|group| (*group).to_owned()));
        words.extend(self.filters.iter().map(|word| format!("'{word}'")));
        words.extend(self.threads.map(|threads| format!("--threads {threads}")));
        words.extend(self.quick.then(|| "--quick".to_owned()));
        words.extend(self.small.then(|| "--small".to_owned()));
        words.extend(self.torch.as_ref().map(|_| "--torch python".to_owned()));
        words.extend(self.rounds.map(|rounds| format!("--rounds {rounds}")));
        words.join(" ")
    }

    /// Whether a benchmark was requested.
    pub fn wants(&self, title: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|word| title.contains(word.as_str()))
    }

    /// Writes the files that were requested.
    pub fn write(&self, json: impl Fn() -> Json, markdown: impl Fn() -> String) -> Result<(), String> {
        let save = |path: &Path, text: String| {
            fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
        };
        if let Some(path) = &self.json {
            save(path, format!("{:#}\n", json()))?;
        }
        self.markdown.as_ref().map_or(Ok(()), |path| save(path, markdown()))
    }
}

fn count(text: &str, of: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or(format!("`{text}` is not a number of {of}"))
}

#[cfg(test)]
mod tests {
    use super::Options;

    fn parsed(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn words_choose_kernels_or_ops() {
        let options = parsed("matmul Llama conv --torch some/python --rounds 5").unwrap();
        assert_eq!(
            (&options.groups[..], &options.filters[..]),
            (&["matmul", "conv"][..], &["Llama".to_owned()][..])
        );
        assert_eq!(options.command(), "cargo xtask bench matmul conv 'Llama' --torch python --rounds 5");
        assert!(parsed("softmax").unwrap().groups.is_empty());
        let small = parsed("matmul --small").unwrap();
        assert!(small.groups.is_empty() && small.wants("matmul float32"));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        assert!(parsed("--torch python").unwrap_err().contains("name some of them: matmul"));
        assert!(parsed("matmul --rounds 0").unwrap_err().contains("`0`"));
        assert!(parsed("--fast").unwrap_err().contains("`--fast`"));
        assert!(parsed("matmul --torch").unwrap_err().contains("needs a value"));
    }
}
