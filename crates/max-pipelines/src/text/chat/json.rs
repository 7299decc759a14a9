//! Values as JSON, in the form that Python writes.

use super::budget::{Budget, Outcome, fault};
use super::value::{Value, shown_float};

/// The widest indentation of a level.
const MOST_INDENT: i64 = 16;

/// A value as JSON on one line, or indented. The options are those of Python's function: the indentation, whether only ASCII
/// is written, which never is, the two separators, and whether keys are sorted.
pub(super) fn text(value: &Value, options: [Option<Value>; 4], budget: &mut Budget) -> Outcome<String> {
    let [indent, _, separators, sort_keys] = options;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(indent) => Some(indent.as_int()?.clamp(0, MOST_INDENT) as usize),
    };
    let (item, key) = match &separators {
        None | Some(Value::None) => (if indent.is_some() { "," } else { ", " }, ": "),
        Some(Value::List(list)) if list.items.len() == 2 => {
            (&**list.items[0].as_text()?, &**list.items[1].as_text()?)
        }
        Some(_) => fault!("its separators are two texts"),
    };
    if sort_keys.is_some_and(|sort| sort.is_true()) {
        fault!("its keys stay in their order");
    }
    let mut writer = Writer { text: String::new(), indent, item, key, budget };
    writer.value(value, 0)?;
    Ok(writer.text)
}

struct Writer<'a> {
    text: String,
    indent: Option<usize>,
    /// What is between items, and between a key and its value.
    item: &'a str,
    key: &'a str,
    budget: &'a mut Budget,
}

impl Writer<'_> {
    fn push(&mut self, text: &str) -> Outcome<()> {
        self.budget.push(&mut self.text, text)
    }

    /// A new line at a depth, where there are lines.
    fn line(&mut self, depth: usize) -> Outcome<()> {
        match self.indent {
            Some(indent) => self.push(&format!("\n{:1$}", "", indent * depth)),
            None => Ok(()),
        }
    }

    fn value(&mut self, value: &Value, depth: usize) -> Outcome<()> {
        self.budget.steps(1)?;
        match value {
            Value::None => self.push("null"),
            Value::Bool(value) => self.push(if *value { "true" } else { "false" }),
            Value::Int(value) => self.push(&value.to_string()),
            Value::Float(value) => self.push(&shown_float(*value)),
            Value::Text(text) => self.quoted(text),
            Value::List(list) => {
                let items = list.items.iter();
                self.between(["[", "]"], depth, items, |writer, item| writer.value(item, depth + 1))
            }
            Value::Map(map) => self.between(["{", "}"], depth, map.entries.iter(), |writer, (key, value)| {
                match key {
                    Value::Text(key) => writer.quoted(key)?,
                    Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                        writer.push("\"")?;
                        writer.value(key, depth)?;
                        writer.push("\"")?;
                    }
                    other => fault!("{} is no key of JSON", other.kind()),
                }
                writer.push(writer.key)?;
                writer.value(value, depth + 1)
            }),
            other => fault!("{} cannot be written as JSON", other.kind()),
        }
    }

    /// Items in brackets.
    fn between<T>(
        &mut self,
        [open, close]: [&str; 2],
        depth: usize,
        items: impl ExactSizeIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T) -> Outcome<()>,
    ) -> Outcome<()> {
        let is_empty = items.len() == 0;
        self.push(open)?;
        for (number, item) in items.enumerate() {
            if number > 0 {
                self.push(self.item)?;
            }
            self.line(depth + 1)?;
            write(self, item)?;
        }
        if !is_empty {
            self.line(depth)?;
        }
        self.push(close)
    }

    /// A text with what JSON escapes.
    fn quoted(&mut self, text: &str) -> Outcome<()> {
        self.push("\"")?;
        let mut rest = text;
        while let Some(place) = rest.find(|letter: char| matches!(letter, '"' | '\\' | '\0'..' ')) {
            self.push(&rest[..place])?;
            match rest.as_bytes()[place] {
                b'"' => self.push("\\\"")?,
                b'\\' => self.push("\\\\")?,
                b'\n' => self.push("\\n")?,
                b'\r' => self.push("\\r")?,
                b'\t' => self.push("\\t")?,
                0x8 => self.push("\\b")?,
                0xc => self.push("\\f")?,
                other => self.push(&format!("\\u{other:04x}"))?,
            }
            rest = &rest[place + 1..];
        }
        self.push(rest)?;
        self.push("\"")
    }
}
