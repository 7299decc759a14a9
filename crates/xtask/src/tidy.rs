//! `cargo xtask tidy`: the rules of the repository that no compiler checks.
//!
//! Each rule is a pure function from the repository's text files to findings, in a file of its own;
//! [`RULES`] is the list.

mod files;
mod layers;
mod leftovers;
mod manifest;
mod safety;
mod size;
mod source;

use std::fmt;
use std::path::Path;

/// A rule looks at all files and reports what to fix.
type Rule = fn(&[File]) -> Vec<Finding>;

/// Every rule.
const RULES: &[Rule] = &[
    layers::check_dependencies,
    layers::check_quarantine,
    size::check_lines,
    safety::check_comments,
    safety::check_forbidden,
    leftovers::check_conflicts,
    leftovers::check_placeholders,
    leftovers::check_trailing_space,
    crate::chart::check,
];

/// A text file of the repository.
pub struct File {
    /// Relative to the repository root, with `/` between the parts.
    pub path: String,
    pub text: String,
}

/// One thing to fix; displays as `path:line: message`.
#[derive(Debug, PartialEq)]
pub struct Finding {
    pub path: String,
    /// Counted from one.
    pub line: usize,
    pub message: String,
}

impl File {
    /// Whether the file's name ends in one of these extensions.
    pub fn is(&self, extensions: &[&str]) -> bool {
        let extension = Path::new(&self.path).extension();
        extension.is_some_and(|found| extensions.iter().any(|wanted| found == *wanted))
    }

    /// The crate folder that contains the file, and its path there: `crates/max-core/src/lib.rs` is
    /// `("max-core", "src/lib.rs")`.
    pub fn in_crate(&self) -> Option<(&str, &str)> {
        self.path.strip_prefix("crates/")?.split_once('/')
    }

    /// A finding about the line with this index, counted from zero.
    pub fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line: line + 1, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Checks the repository in the current folder and prints what it finds.
pub fn run() -> Result<(), String> {
    let files = files::read(Path::new("."))?;
    let findings = check(&files);
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("tidy: {} files, nothing to fix", files.len());
            Ok(())
        }
        1 => Err("tidy found 1 thing to fix".into()),
        count => Err(format!("tidy found {count} things to fix")),
    }
}

fn check(files: &[File]) -> Vec<Finding> {
    let mut findings: Vec<_> = RULES.iter().flat_map(|rule| rule(files)).collect();
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    findings
}

/// For the tests of the rules: what a rule reports about one file, as displayed.
#[cfg(test)]
fn findings_of(rule: Rule, path: &str, text: &str) -> Vec<String> {
    let file = File { path: path.into(), text: text.into() };
    rule(&[file]).iter().map(Finding::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_sorted_and_shown_with_their_place() {
        let files = ["b.md", "a.md"].map(|path| File { path: path.into(), text: "one\ntwo \n".into() });
        let shown: Vec<_> = check(&files).iter().map(Finding::to_string).collect();
        assert_eq!(shown, ["a.md:2: trailing whitespace", "b.md:2: trailing whitespace"]);
    }
}
