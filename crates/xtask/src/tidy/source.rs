//! Rust text split into code and comments, so that a rule looks only at the part it means.

/// One line of a source file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// The code, with every string and character literal emptied.
    pub code: String,
    /// The comments, with their slashes.
    pub comment: String,
}

/// Splits Rust text into lines of code and comments.
pub fn lines(text: &str) -> Vec<Line> {
    let mut lines = vec![Line::default()];
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (token, kind) = token(rest, first);
        for (index, piece) in token.split('\n').enumerate() {
            if index > 0 {
                lines.push(Line::default());
            }
            let line = lines.last_mut().expect("it starts with one line");
            match kind {
                Token::Code => line.code.push_str(piece),
                Token::Comment => line.comment.push_str(piece),
                Token::Literal if index == 0 => line.code.push_str("\"\""),
                Token::Literal => {}
            }
        }
        rest = &rest[token.len()..];
    }
    lines
}

/// For each line, whether it belongs to an item under `#[cfg(test)]`.
pub fn in_tests(lines: &[Line]) -> Vec<bool> {
    let mut marks = vec![false; lines.len()];
    for start in 0..lines.len() {
        let code = &lines[start].code;
        let gate = ["#[cfg(test)", "#[cfg(all(test"].iter().find_map(|gate| code.find(gate));
        if let (false, Some(column)) = (marks[start], gate) {
            let end = end_of_item(lines, start, column);
            marks[start..=end].fill(true);
        }
    }
    marks
}

/// The line on which an item ends: at its first `;`, or with its block.
fn end_of_item(lines: &[Line], start: usize, column: usize) -> usize {
    let mut depth = 0;
    for (index, line) in lines.iter().enumerate().skip(start) {
        let from = if index == start { column } else { 0 };
        for c in line.code[from..].chars() {
            match c {
                '{' => depth += 1,
                '}' if depth <= 1 => return index,
                '}' => depth -= 1,
                ';' if depth == 0 => return index,
                _ => {}
            }
        }
    }
    lines.len() - 1
}

#[derive(Clone, Copy)]
enum Token {
    Code,
    Comment,
    Literal,
}

/// The token at the start of a non-empty text.
fn token(text: &str, first: char) -> (&str, Token) {
    let (length, kind) = if text.starts_with("//") {
        (text.find('\n').unwrap_or(text.len()), Token::Comment)
    } else if text.starts_with("/*") {
        (block_comment(text), Token::Comment)
    } else if first == '"' {
        (quoted(text, '"'), Token::Literal)
    } else if first == '\'' {
        character(text).map_or((1, Token::Code), |length| (length, Token::Literal))
    } else if is_word(first) {
        let word = text.find(|c| !is_word(c)).unwrap_or(text.len());
        match raw_string(&text[..word], &text[word..]) {
            Some(length) => (word + length, Token::Literal),
            None => (word, Token::Code),
        }
    } else {
        (first.len_utf8(), Token::Code)
    };
    (&text[..length], kind)
}

/// Whether a character can be part of a name or keyword.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of a comment `/* ... */`, which may be nested.
fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of a literal up to its closing quote.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (index, c) in text.char_indices().skip(1) {
        if c == quote && !escaped {
            return index + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

/// The length of a character literal; `None` when the quote starts a lifetime or label.
fn character(text: &str) -> Option<usize> {
    let mut characters = text.char_indices().skip(1);
    let (_, content) = characters.next()?;
    let (index, after) = characters.next()?;
    match content {
        '\\' => Some(quoted(text, '\'')),
        _ => (after == '\'').then_some(index + 1),
    }
}

/// The length of what follows the prefix of a raw string: `#"..."#`.
fn raw_string(prefix: &str, text: &str) -> Option<usize> {
    if !["r", "br", "cr"].contains(&prefix) {
        return None;
    }
    let hashes = text.len() - text.trim_start_matches('#').len();
    let body = text[hashes..].strip_prefix('"')?;
    let closing = format!("\"{}", "#".repeat(hashes));
    let length = body.find(&closing).map_or(body.len(), |found| found + closing.len());
    Some(hashes + 1 + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Vec<String> {
        lines(text).into_iter().map(|line| line.code).collect()
    }

    #[test]
    fn comments_are_apart_from_code() {
        let split = lines("a // b \"c\n/* d /* e */\nf */ g");
        assert_eq!(split[0], Line { code: "a ".into(), comment: "// b \"c".into() });
        assert_eq!(split[1], Line { code: "".into(), comment: "/* d /* e */".into() });
        assert_eq!(split[2], Line { code: " g".into(), comment: "f */".into() });
    }

    #[test]
    fn literals_are_emptied() {
        assert_eq!(code(r#"f("a // \" b", 'c', '\'', b'"') // d"#), [r#"f("", "", "", b"") "#]);
        assert_eq!(code("r#\"a \" b\nc\"# d"), ["\"\"", " d"]);
        assert_eq!(code("\"a\nb\" c"), ["\"\"", " c"]);
        assert_eq!(code("br\"\\\" x"), ["\"\" x"]);
    }

    #[test]
    fn lifetimes_and_raw_names_are_code() {
        let text = "fn f<'a>(x: &'a str, r#type: &'static u8) -> '_ {";
        assert_eq!(code(text), [text]);
    }

    #[test]
    fn unfinished_text_ends_quietly() {
        for text in ["\"a", "/* a", "r#\"a", "'", "'\\", "b'é"] {
            assert_eq!(lines(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn test_items_are_marked_to_their_end() {
        let text = "a\n#[cfg(test)]\nmod t {\n  fn f() { \"}\" }\n}\nb\n#[cfg(test)]\nmod u;\nc";
        let expected = [false, true, true, true, true, false, true, true, false];
        assert_eq!(in_tests(&lines(text)), expected);
    }
}
