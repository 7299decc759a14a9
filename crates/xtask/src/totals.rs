//! How many tests ran: parsed from the output of `cargo test` and pytest, shown as one closing line.

use std::fmt;

/// Counts of tests; displays as the closing line, `N passed, M failed, K skipped`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl Totals {
    /// Adds every `test result:` line of a `cargo test` run. It is an error if there is none.
    pub fn add_cargo(&mut self, output: &str) -> Result<(), String> {
        let mut found = false;
        for line in output.lines().map(plain) {
            let Some(result) = line.trim_start().strip_prefix("test result: ") else {
                continue;
            };
            // After the verdict: "ok. 3 passed; 0 failed; 1 ignored; 0 measured; ...".
            let counts = result.split_once(". ").map_or("", |(_, counts)| counts);
            for (count, word) in counts.split("; ").filter_map(counted) {
                self.add(count, word);
            }
            found = true;
        }
        if found { Ok(()) } else { Err("cargo test printed no `test result:` line".into()) }
    }

    /// Adds pytest's closing line, `N passed, M skipped in 0.12s`. It is an error if there is none.
    pub fn add_pytest(&mut self, output: &str) -> Result<(), String> {
        let closing = output.lines().rev().map(plain).find_map(|line| pytest_counts(&line));
        let counts = closing.ok_or("pytest printed no closing line with counts")?;
        for (count, word) in counts {
            self.add(count, &word);
        }
        Ok(())
    }

    fn add(&mut self, count: u64, word: &str) {
        match word {
            "passed" | "xpassed" => self.passed += count,
            "failed" | "error" | "errors" => self.failed += count,
            "ignored" | "skipped" | "xfailed" => self.skipped += count,
            _ => {}
        }
    }
}

/// The counts of a line like `3 passed, 1 warning in 0.12s`; `None` for any other line.
fn pytest_counts(line: &str) -> Option<Vec<(u64, String)>> {
    const WORDS: [&str; 10] = [
        "passed",
        "failed",
        "skipped",
        "xfailed",
        "xpassed",
        "error",
        "errors",
        "deselected",
        "warning",
        "warnings",
    ];
    let (counts, _seconds) = line.trim_matches(['=', ' ']).rsplit_once(" in ")?;
    counts
        .split(", ")
        .map(|part| counted(part).filter(|(_, word)| WORDS.contains(word)))
        .map(|pair| pair.map(|(count, word)| (count, word.to_owned())))
        .collect()
}

/// `"3 passed"` as `(3, "passed")`.
fn counted(part: &str) -> Option<(u64, &str)> {
    let (count, word) = part.trim().split_once(' ')?;
    Some((count.parse().ok()?, word))
}

/// The line without terminal colours.
fn plain(line: &str) -> String {
    let mut pieces = line.split("\x1b[");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        text.push_str(piece.split_once('m').map_or(piece, |(_, after)| after));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_results_add_up() {
        let output = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.00s\n\
            test result: \x1b[31mFAILED\x1b[0m. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let mut totals = Totals::default();
        totals.add_cargo(output).unwrap();
        assert_eq!(totals.to_string(), "5 passed, 4 failed, 1 skipped");
        assert!(totals.add_cargo("error: could not compile").is_err());
    }

    #[test]
    fn pytest_closing_lines_are_read() {
        let cases = [
            ("5 passed in 0.12s", (5, 0, 0)),
            ("....s\n5 passed, 2 skipped, 1 warning in 65.00s (0:01:05)\n", (5, 0, 2)),
            ("== \x1b[31m1 failed\x1b[0m, 3 passed, 1 xfailed, 2 errors in 1.00s ==", (3, 3, 1)),
            ("9 passed in 1.00s\n2 passed in 0.10s\n", (2, 0, 0)),
        ];
        for (output, (passed, failed, skipped)) in cases {
            let mut totals = Totals::default();
            totals.add_pytest(output).unwrap();
            assert_eq!(totals, Totals { passed, failed, skipped }, "{output}");
        }
        for output in ["", "no tests ran in 0.01s", "3 apples in 2 baskets"] {
            assert!(Totals::default().add_pytest(output).is_err(), "{output}");
        }
    }
}
