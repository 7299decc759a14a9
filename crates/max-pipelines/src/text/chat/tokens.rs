//! The text of a template as tokens.
//!
//! White space is as with `trim_blocks` and `lstrip_blocks`: a line break after a tag goes, and so does the space before one
//! that starts its line. Signs inside the brackets of a tag say otherwise: `-` takes all white space on its side, `+` none.

use std::sync::Arc;

use super::budget::{Fault, Outcome, fault};
use super::value::is_space;

/// The most bytes of a name.
const MOST_NAME: usize = 1000;

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// What is written as it is.
    Data(Arc<str>),
    /// The start of a value to be written: `{{`.
    Value,
    /// The start of a statement: `{%`.
    Statement,
    /// The end of either.
    Close,
    Name(Arc<str>),
    Text(Arc<str>),
    Int(i64),
    Float(f64),
    Sign(&'static str),
    /// The end of the template.
    End,
}

/// The signs, longer ones before those that they start with.
const SIGNS: &[&str] = &[
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", ".", ",", ":", "|", "(",
    ")", "[", "]", "{", "}",
];

/// The tokens of a template, each with its line; the last one is the end.
pub(super) fn read(source: &str) -> Outcome<Vec<(Token, usize)>> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { rest: source, line: 1, starts_line: true, tokens: Vec::new() };
    while !lexer.rest.is_empty() {
        let line = lexer.line;
        lexer.part().map_err(|fault| fault.at(line))?;
    }
    lexer.push(Token::End);
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    /// Whether what comes next starts a line.
    starts_line: bool,
    tokens: Vec<(Token, usize)>,
}

impl Lexer<'_> {
    fn push(&mut self, token: Token) {
        self.tokens.push((token, self.line));
    }

    /// Goes on by some bytes.
    fn skip(&mut self, count: usize) {
        let (skipped, rest) = self.rest.split_at(count);
        self.line += skipped.matches('\n').count();
        if let Some(last) = skipped.chars().next_back() {
            self.starts_line = last == '\n';
        }
        self.rest = rest;
    }

    /// Reads data, and the tag after it if there is one.
    fn part(&mut self) -> Outcome<()> {
        let rest = self.rest;
        let is_tag = |at: &usize| matches!(rest.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#'));
        let Some(at) = rest.match_indices('{').map(|(at, _)| at).find(is_tag) else {
            self.data(rest, None, false);
            return Ok(());
        };
        let kind = rest.as_bytes()[at + 1];
        let sign = sign_of(&rest[at + 2..]);
        self.data(&rest[..at], sign, kind != b'{');
        self.skip(2 + usize::from(sign.is_some()));
        match kind {
            b'#' => {
                let Some(end) = self.rest.find("#}") else { fault!("a comment is never closed") };
                let sign = self.rest[..end].chars().next_back();
                self.skip(end);
                self.close(sign.filter(|sign| matches!(sign, '-' | '+')), true);
                Ok(())
            }
            b'%' => match lone(self.rest, "raw") {
                Some((length, sign)) => self.raw(length, sign),
                None => self.tag(Token::Statement, "%}"),
            },
            _ => self.tag(Token::Value, "}}"),
        }
    }

    /// Reads data up to a tag with a sign, less the white space that goes with the tag.
    fn data(&mut self, data: &str, sign: Option<char>, trims_line: bool) {
        let kept = match sign {
            Some('-') => data.trim_end_matches(is_space),
            None if trims_line => {
                let first = if self.starts_line { Some(0) } else { None };
                let line = data.rfind('\n').map(|at| at + 1).or(first);
                line.filter(|&line| data[line..].trim_matches(is_space).is_empty())
                    .map_or(data, |line| &data[..line])
            }
            _ => data,
        };
        if !kept.is_empty() {
            self.push(Token::Data(kept.into()));
        }
        self.skip(data.len());
    }

    /// Reads what is written as it is, tags and all. It begins after some bytes, and a sign before the end of a tag.
    fn raw(&mut self, length: usize, sign: Option<char>) -> Outcome<()> {
        self.skip(length);
        self.close(sign, false);
        let rest = self.rest;
        for (at, open) in rest.match_indices("{%") {
            let tag = &rest[at + open.len()..];
            let sign = sign_of(tag);
            let start = usize::from(sign.is_some());
            if let Some((length, last)) = lone(&tag[start..], "endraw") {
                self.data(&rest[..at], sign, true);
                self.skip(open.len() + start + length);
                self.close(last, true);
                return Ok(());
            }
        }
        fault!("'{{% endraw %}}' is missing")
    }

    /// Goes beyond the two bytes that close a tag, and the white space that belongs to them.
    fn close(&mut self, sign: Option<char>, trims_line: bool) {
        self.skip(2);
        match sign {
            Some('-') => self.skip(self.rest.len() - self.rest.trim_start_matches(is_space).len()),
            None if trims_line && self.rest.starts_with('\n') => self.skip(1),
            _ => {}
        }
    }

    /// Reads what is in a tag.
    fn tag(&mut self, open: Token, end: &str) -> Outcome<()> {
        let trims_line = open == Token::Statement;
        self.push(open);
        let mut brackets = 0usize;
        loop {
            self.skip(self.rest.len() - self.rest.trim_start_matches(is_space).len());
            let Some(first) = self.rest.chars().next() else {
                fault!("a tag is never closed: '{end}' is missing")
            };
            let sign = sign_of(self.rest);
            if brackets == 0 && self.rest[usize::from(sign.is_some())..].starts_with(end) {
                self.push(Token::Close);
                self.skip(usize::from(sign.is_some()));
                self.close(sign, trims_line);
                return Ok(());
            }
            let token = if first.is_alphabetic() || first == '_' {
                let name = self.take_while(|letter| letter.is_alphanumeric() || letter == '_');
                if name.len() > MOST_NAME {
                    fault!("a name has {} bytes, more than {MOST_NAME}", name.len());
                }
                Token::Name(name.into())
            } else if first.is_ascii_digit() {
                self.number()?
            } else if first == '"' || first == '\'' {
                self.text(first)?
            } else if let Some(sign) = SIGNS.iter().find(|sign| self.rest.starts_with(**sign)) {
                match *sign {
                    "(" | "[" | "{" => brackets += 1,
                    ")" | "]" | "}" => brackets = brackets.saturating_sub(1),
                    _ => {}
                }
                self.skip(sign.len());
                Token::Sign(sign)
            } else {
                fault!("'{first}' has no meaning in a tag");
            };
            self.push(token);
        }
    }

    fn take_while(&mut self, holds: impl Fn(char) -> bool) -> String {
        let length = self.rest.find(|letter| !holds(letter)).unwrap_or(self.rest.len());
        let taken = self.rest[..length].to_string();
        self.skip(length);
        taken
    }

    fn number(&mut self) -> Outcome<Token> {
        let mut digits = self.take_while(|letter| letter.is_ascii_digit() || letter == '_');
        let mut is_float = false;
        let mut after = self.rest.chars();
        if after.next() == Some('.') && after.next().is_some_and(|digit| digit.is_ascii_digit()) {
            is_float = true;
            self.skip(1);
            digits += ".";
            digits += &self.take_while(|letter| letter.is_ascii_digit() || letter == '_');
        }
        let exponent =
            self.rest.strip_prefix(['e', 'E']).map(|rest| rest.strip_prefix(['-', '+']).unwrap_or(rest));
        if exponent.is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit())) {
            is_float = true;
            let sign = usize::from(self.rest[1..].starts_with(['-', '+']));
            digits += &self.rest[..1 + sign];
            self.skip(1 + sign);
            digits += &self.take_while(|letter| letter.is_ascii_digit());
        }
        let digits = digits.replace('_', "");
        if is_float {
            digits.parse().map(Token::Float).map_err(|_| Fault::new("a number is wrong"))
        } else {
            digits.parse().map(Token::Int).map_err(|_| Fault::new("a number is too large"))
        }
    }

    /// A text between two marks, with what Python's escapes stand for.
    fn text(&mut self, mark: char) -> Outcome<Token> {
        let mut text = String::new();
        let mut letters = self.rest.char_indices().skip(1).peekable();
        loop {
            let Some((at, letter)) = letters.next() else { fault!("a text is never closed") };
            if letter == mark {
                self.skip(at + 1);
                return Ok(Token::Text(text.into()));
            }
            if letter != '\\' {
                text.push(letter);
                continue;
            }
            let Some((_, escaped)) = letters.next() else { fault!("a text is never closed") };
            let digits = match escaped {
                'x' => 2,
                'u' => 4,
                'U' => 8,
                _ => 0,
            };
            match escaped {
                '\n' => {}
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                'a' => text.push('\x07'),
                'b' => text.push('\x08'),
                'f' => text.push('\x0c'),
                'v' => text.push('\x0b'),
                '0'..='7' => {
                    let mut code = escaped.to_digit(8).unwrap_or(0);
                    for _ in 0..2 {
                        let Some(digit) = letters.peek().and_then(|(_, digit)| digit.to_digit(8)) else {
                            break;
                        };
                        code = code * 8 + digit;
                        letters.next();
                    }
                    text.extend(char::from_u32(code));
                }
                '\\' | '\'' | '"' => text.push(escaped),
                'x' | 'u' | 'U' => {
                    let code = letters.by_ref().take(digits).map(|(_, digit)| digit.to_digit(16));
                    let code = code.collect::<Option<Vec<_>>>().filter(|code| code.len() == digits);
                    let code = code.map(|code| code.iter().fold(0u32, |all, digit| (all << 4) | digit));
                    match code.and_then(char::from_u32) {
                        Some(letter) => text.push(letter),
                        None => fault!("'\\{escaped}' is not followed by {digits} digits of a character"),
                    }
                }
                other => text.extend(['\\', other]),
            }
        }
    }
}

/// The sign that a text starts with, if it is one of those that say what becomes of white space.
fn sign_of(text: &str) -> Option<char> {
    text.chars().next().filter(|sign| matches!(sign, '-' | '+'))
}

/// How many bytes are left of a tag up to the end of it, and the sign before that, if the tag says only a word.
fn lone(tag: &str, word: &str) -> Option<(usize, Option<char>)> {
    let after = tag.trim_start_matches(is_space).strip_prefix(word)?.trim_start_matches(is_space);
    let sign = sign_of(after);
    let end = &after[usize::from(sign.is_some())..];
    end.starts_with("%}").then(|| (tag.len() - end.len(), sign))
}
