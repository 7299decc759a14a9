//! Unsafe code is explained in place, and exists only in the crates that need it.
//!
//! Clippy requires the same comments, but only sees code compiled for this machine; this rule sees all of it.

use super::source::{self, Line};
use super::{File, Finding};

/// The crates that may contain unsafe code: devices, kernels, Python.
const UNSAFE_CRATES: &[&str] = &["max-driver", "max-kernels", "max-py"];

/// How many lines above an unsafe block its comment may end; other comments and attributes do not count.
const REACH: usize = 6;

/// Every `unsafe` block and `unsafe impl` has its own `// SAFETY:` comment, on its line or above it.
pub fn check_comments(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is(&["rs"])) {
        let lines = source::lines(&file.text);
        for index in 0..lines.len() {
            if let Some(what) = unsafe_site(&lines, index).filter(|_| !is_explained(&lines, index)) {
                findings.push(file.finding(index, format!("`{what}` without a `// SAFETY:` comment")));
            }
        }
    }
    findings
}

/// The root of every crate without unsafe code says `#![forbid(unsafe_code)]`.
pub fn check_forbidden(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let Some((crate_name, path)) = file.in_crate() else {
            continue;
        };
        if !is_root(path) || UNSAFE_CRATES.contains(&crate_name) {
            continue;
        }
        let forbids = |line: &Line| line.code.contains("#![forbid(") && line.code.contains("unsafe_code");
        if !source::lines(&file.text).iter().any(forbids) {
            findings.push(file.finding(0, "`#![forbid(unsafe_code)]` is missing"));
        }
    }
    findings
}

/// Whether a file of a crate is the root of a library or program.
fn is_root(path: &str) -> bool {
    let program =
        path.strip_prefix("src/bin/").is_some_and(|name| name.ends_with(".rs") && !name.contains('/'));
    program || path == "src/lib.rs" || path == "src/main.rs"
}

/// What on this line needs a comment, if anything.
fn unsafe_site(lines: &[Line], index: usize) -> Option<&'static str> {
    let code = &lines[index].code;
    code.match_indices("unsafe").find_map(|(start, word)| {
        let after = &code[start + word.len()..];
        if code[..start].ends_with(source::is_word) || after.starts_with(source::is_word) {
            return None;
        }
        let following = lines[index + 1..].iter().map(|line| line.code.as_str());
        let next = std::iter::once(after).chain(following).map(str::trim).find(|code| !code.is_empty())?;
        match next {
            _ if next.starts_with('{') => Some("unsafe {"),
            _ if next.starts_with("impl") => Some("unsafe impl"),
            _ => None,
        }
    })
}

fn is_explained(lines: &[Line], index: usize) -> bool {
    let says_why = |line: &Line| line.comment.contains("SAFETY:");
    if says_why(&lines[index]) {
        return true;
    }
    let mut code_between = 0;
    for above in (0..index).rev() {
        // Another unsafe block: a comment there, or above it, belongs to that block.
        if unsafe_site(lines, above).is_some() {
            return false;
        }
        if says_why(&lines[above]) {
            return true;
        }
        let code = lines[above].code.trim();
        if code.is_empty() || code.starts_with("#[") {
            continue;
        }
        code_between += 1;
        if code_between == REACH {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::findings_of;
    use super::*;

    fn comments(text: &str) -> Vec<String> {
        findings_of(check_comments, "src/a.rs", text)
    }

    #[test]
    fn a_missing_comment_is_reported() {
        let found = comments("fn f() {\n    unsafe { g() }\n}\nunsafe impl Send for A {}\n");
        let expected = [
            "src/a.rs:2: `unsafe {` without a `// SAFETY:` comment",
            "src/a.rs:4: `unsafe impl` without a `// SAFETY:` comment",
        ];
        assert_eq!(found, expected);
        assert_eq!(comments("let x = unsafe\n{\n").len(), 1);
    }

    #[test]
    fn a_comment_near_by_is_enough() {
        let explained = [
            "// SAFETY: checked above\nunsafe { g() }",
            "unsafe { g() } // SAFETY: checked above",
            "unsafe { // SAFETY: checked above\n g() }",
            "// SAFETY: a long story,\n// told over\n//\n// many\n// lines\n// of\n// text\n// .\nunsafe { g() }",
            "// SAFETY: no fields\n#[cfg(unix)]\n#[allow(dead_code)]\nunsafe impl Send for A {}",
            "// SAFETY: in bounds\nlet x =\n    call(\n        unsafe { g() });",
        ];
        for text in explained {
            assert_eq!(comments(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_comment_far_away_or_of_another_block_is_not() {
        let after = |code: usize| format!("// SAFETY: above\n{}unsafe {{ g() }}", "a();\n".repeat(code));
        assert_eq!(comments(&after(REACH - 1)), [""; 0]);
        assert_eq!(comments(&after(REACH)).len(), 1);
        assert_eq!(comments("unsafe { g() } // SAFETY: one\nunsafe { h() }\n").len(), 1);
        let shared = comments("// SAFETY: one\nunsafe { g() }\nunsafe { h() }\n");
        assert_eq!(shared, ["src/a.rs:3: `unsafe {` without a `// SAFETY:` comment"]);
    }

    #[test]
    fn words_that_need_no_comment_are_left_alone() {
        let text = r#"
            #![forbid(unsafe_code)]
            // an unsafe { block } would be wrong here
            let text = "unsafe { g() }";
            unsafe fn f() {}
            unsafe extern "C" {}
            #[unsafe(no_mangle)]
        "#;
        assert_eq!(comments(text), [""; 0]);
        assert_eq!(findings_of(check_comments, "a.md", "unsafe { g() }"), [""; 0]);
    }

    #[test]
    fn crate_roots_forbid_unsafe_code() {
        let forbidden = |path: &str, text: &str| findings_of(check_forbidden, path, text);
        let found = forbidden("crates/max-graph/src/lib.rs", "//! #![forbid(unsafe_code)]\n");
        assert_eq!(found, ["crates/max-graph/src/lib.rs:1: `#![forbid(unsafe_code)]` is missing"]);
        assert_eq!(forbidden("crates/max-cli/src/main.rs", "").len(), 1);
        assert_eq!(forbidden("crates/max-cli/src/bin/max.rs", "").len(), 1);
        assert_eq!(forbidden("crates/max-graph/src/lib.rs", "//! Doc.\n#![forbid(unsafe_code)]\n"), [""; 0]);
        assert_eq!(forbidden("crates/max-graph/src/ops.rs", ""), [""; 0]);
        assert_eq!(forbidden("crates/max-kernels/src/lib.rs", ""), [""; 0]);
    }
}
