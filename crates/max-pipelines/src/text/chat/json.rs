//! Values as JSON in the form that Python writes by default.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// The deepest value.
const DEPTH: usize = 64;

/// A value as JSON on one line, or indented.
pub(super) fn text(value: &Value, indent: Option<usize>) -> Result<String, Error> {
    let mut text = String::new();
    write(value, indent, 0, &mut text)?;
    Ok(text)
}

fn write(value: &Value, indent: Option<usize>, depth: usize, to: &mut String) -> Result<(), Error> {
    if depth > DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "the value is nested too deeply for JSON"));
    }
    let line = |to: &mut String, depth: usize| {
        if let Some(indent) = indent {
            to.push('\n');
            to.extend(std::iter::repeat_n(' ', indent.min(16) * depth));
        }
    };
    let separator = if indent.is_some() { "," } else { ", " };
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => to.push_str("null"),
        ValueKind::Bool => to.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => {
            // Writing to a string cannot fail.
            let _ = write!(to, "{value}");
        }
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), to),
        ValueKind::Map => {
            to.push('{');
            for (number, key) in value.try_iter()?.enumerate() {
                to.push_str(if number > 0 { separator } else { "" });
                line(to, depth + 1);
                quoted(&key.to_string(), to);
                to.push_str(": ");
                write(&value.get_item(&key)?, indent, depth + 1, to)?;
            }
            if value.len().is_some_and(|count| count > 0) {
                line(to, depth);
            }
            to.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            to.push('[');
            let mut any = false;
            for item in value.try_iter()? {
                to.push_str(if any { separator } else { "" });
                line(to, depth + 1);
                write(&item, indent, depth + 1, to)?;
                any = true;
            }
            if any {
                line(to, depth);
            }
            to.push(']');
        }
        kind => return Err(Error::new(ErrorKind::InvalidOperation, format!("a {kind} is no JSON"))),
    }
    Ok(())
}

/// A text with what JSON escapes.
fn quoted(text: &str, to: &mut String) {
    to.push('"');
    for letter in text.chars() {
        match letter {
            '"' => to.push_str("\\\""),
            '\\' => to.push_str("\\\\"),
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            '\t' => to.push_str("\\t"),
            '\u{8}' => to.push_str("\\b"),
            '\u{c}' => to.push_str("\\f"),
            letter if (letter as u32) < 0x20 => {
                // Writing to a string cannot fail.
                let _ = write!(to, "\\u{:04x}", letter as u32);
            }
            letter => to.push(letter),
        }
    }
    to.push('"');
}
