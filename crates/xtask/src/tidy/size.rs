//! Source files stay short enough to read.

use super::{File, Finding};

/// The most lines a source file may have.
const MOST_LINES: usize = 1000;

/// Exempt: tables and generated code, which nobody reads from top to bottom.
const TABLES: &[&str] = &[];

/// No source file has too many lines, tables aside.
pub fn check_lines(files: &[File]) -> Vec<Finding> {
    let sources = files.iter().filter(|file| file.is(&["rs", "py", "cu"]));
    sources
        .filter(|file| !TABLES.contains(&file.path.as_str()))
        .filter_map(|file| {
            let count = file.text.lines().count();
            let message = format!("{count} lines, more than {MOST_LINES}: split the file by concern");
            (count > MOST_LINES).then(|| file.finding(MOST_LINES, message))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::findings_of;
    use super::*;

    #[test]
    fn the_limit_is_the_last_good_length() {
        for path in ["a.rs", "a.py", "a.cu"] {
            assert_eq!(findings_of(check_lines, path, &"x\n".repeat(1000)), [""; 0]);
            let found = findings_of(check_lines, path, &"x\n".repeat(1001));
            assert_eq!(
                found,
                [format!("{path}:1001: 1001 lines, more than 1000: split the file by concern")]
            );
        }
        assert_eq!(findings_of(check_lines, "a.json", &"x\n".repeat(5000)), [""; 0]);
    }
}
