//! What is left behind by mistake: merge conflicts, placeholders, trailing whitespace.

use super::source;
use super::{File, Finding};

/// Macros that mark unfinished code or print for debugging.
const PLACEHOLDERS: &[&str] = &["todo!", "unimplemented!", "dbg!"];

/// No file has merge conflict markers.
pub fn check_conflicts(files: &[File]) -> Vec<Finding> {
    // The middle marker is left out: in Markdown it underlines a heading.
    let is_mark = |line: &str| ["<", "|", ">"].iter().any(|mark| line.starts_with(&(mark.repeat(7) + " ")));
    each_line(files.iter(), is_mark, "merge conflict")
}

/// No source line ends in whitespace.
pub fn check_trailing_space(files: &[File]) -> Vec<Finding> {
    let sources = files.iter().filter(|file| file.is(&["rs", "py", "md"]));
    each_line(sources, |line| line.ends_with(char::is_whitespace), "trailing whitespace")
}

/// Outside tests, no code is unfinished or prints for debugging.
pub fn check_placeholders(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is(&["rs"]) && !is_test(&file.path)) {
        let lines = source::lines(&file.text);
        let in_tests = source::in_tests(&lines);
        for (index, line) in lines.iter().enumerate().filter(|(index, _)| !in_tests[*index]) {
            let found = PLACEHOLDERS.iter().filter(|name| calls(&line.code, name));
            findings.extend(found.map(|name| file.finding(index, format!("`{name}` outside tests"))));
        }
    }
    findings
}

fn each_line<'a>(
    files: impl Iterator<Item = &'a File>,
    is_bad: impl Fn(&str) -> bool,
    message: &str,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let lines = file.text.split('\n').enumerate();
        findings
            .extend(lines.filter(|(_, line)| is_bad(line)).map(|(index, _)| file.finding(index, message)));
    }
    findings
}

/// Whether a file contains only tests.
fn is_test(path: &str) -> bool {
    path.split('/').any(|part| ["tests", "benches", "tests.rs"].contains(&part))
}

/// Whether code calls a macro, and not one whose name merely ends the same.
fn calls(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(start, _)| {
        let after = code[start + name.len()..].trim_start();
        !code[..start].ends_with(source::is_word) && after.starts_with(['(', '[', '{'])
    })
}

#[cfg(test)]
mod tests {
    use super::super::findings_of;
    use super::*;

    #[test]
    fn conflict_marks_are_reported() {
        let mark = |c: &str| c.repeat(7);
        let text = format!("{} HEAD\na\n{}\nb\n{} other\n", mark("<"), mark("="), mark(">"));
        assert_eq!(
            findings_of(check_conflicts, "a.toml", &text),
            ["a.toml:1: merge conflict", "a.toml:5: merge conflict"]
        );
        assert_eq!(findings_of(check_conflicts, "a.md", "Title\n=======\n a <<<<<<< b\n"), [""; 0]);
    }

    #[test]
    fn placeholders_are_reported_outside_tests() {
        let text = "fn f() { todo!() }\nfn g() { dbg!(1); unimplemented!(\"x\") }\n";
        let expected = [
            "src/a.rs:1: `todo!` outside tests",
            "src/a.rs:2: `unimplemented!` outside tests",
            "src/a.rs:2: `dbg!` outside tests",
        ];
        assert_eq!(findings_of(check_placeholders, "src/a.rs", text), expected);
        let inline = format!("#[cfg(test)]\nmod tests {{\n{text}}}\n");
        assert_eq!(findings_of(check_placeholders, "src/a.rs", &inline), [""; 0]);
        assert_eq!(findings_of(check_placeholders, "crates/max-core/tests/a.rs", text), [""; 0]);
        assert_eq!(findings_of(check_placeholders, "src/a/tests.rs", text), [""; 0]);
    }

    #[test]
    fn placeholders_in_words_strings_and_comments_are_not_calls() {
        let text = "// todo!()\nlet s = \"dbg!(1)\";\nmy_todo!();\nx.todo != y;\n";
        assert_eq!(findings_of(check_placeholders, "src/a.rs", text), [""; 0]);
    }

    #[test]
    fn trailing_space_is_reported() {
        let text = "a\nb \nc\t\nd\r\n";
        let lines: Vec<_> = [2, 3, 4].map(|line| format!("a.py:{line}: trailing whitespace")).into();
        assert_eq!(findings_of(check_trailing_space, "a.py", text), lines);
        assert_eq!(findings_of(check_trailing_space, "a.txt", text), [""; 0]);
    }
}
