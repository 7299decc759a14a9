//! Values as JSON, in the form that Python writes.

use std::sync::Arc;

use super::budget::{Budget, Outcome, fault};
use super::operators;
use super::value::{Form, Value, shown_float};

/// A value as JSON on one line, or indented. The options are those of Transformers: whether only ASCII is written, the
/// indentation, the two separators, and whether keys are sorted.
pub(super) fn text(value: &Value, options: [Option<Value>; 4], budget: &mut Budget) -> Outcome<String> {
    let [ensure_ascii, indent, separators, sort_keys] = options;
    let [is_ascii, is_sorted] =
        [ensure_ascii, sort_keys].map(|option| option.is_some_and(|option| option.is_true()));
    let indent = match &indent {
        None | Some(Value::None) => None,
        Some(indent) => Some(operators::indentation(indent, budget)?),
    };
    let (item, key) = match &separators {
        None | Some(Value::None) => (if indent.is_some() { "," } else { ", " }, ": "),
        Some(Value::List(list)) if list.items.len() == 2 => {
            (&**list.items[0].as_text()?, &**list.items[1].as_text()?)
        }
        Some(_) => fault!("its separators are two texts"),
    };
    let mut writer = Writer { text: String::new(), is_ascii, is_sorted, indent, item, key, budget };
    writer.value(value, 0)?;
    Ok(writer.text)
}

struct Writer<'a> {
    text: String,
    is_ascii: bool,
    is_sorted: bool,
    indent: Option<Arc<str>>,
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
        let Some(indent) = self.indent.clone() else { return Ok(()) };
        self.push("\n")?;
        (0..depth).try_for_each(|_| self.push(&indent))
    }

    fn value(&mut self, value: &Value, depth: usize) -> Outcome<()> {
        self.budget.steps(1)?;
        match value {
            Value::None => self.push("null"),
            Value::Bool(value) => self.push(if *value { "true" } else { "false" }),
            Value::Int(value) => self.push(&value.to_string()),
            Value::Float(value) if value.is_nan() => self.push("NaN"),
            Value::Float(value) if value.is_infinite() => {
                self.push(if *value > 0.0 { "Infinity" } else { "-Infinity" })
            }
            Value::Float(value) => self.push(&shown_float(*value)),
            Value::Text(text) => self.quoted(text),
            Value::List(list) if list.form != Form::Generator => {
                let items = list.items.iter();
                self.between(["[", "]"], depth, items, |writer, item| writer.value(item, depth + 1))
            }
            Value::Map(map) if self.is_sorted => {
                let mut keyed = Vec::new();
                for entry in &map.entries {
                    self.budget.make(2 * size_of::<(Value, &(Value, Value))>())?;
                    keyed.push((entry.0.clone(), entry));
                }
                let entries = operators::ordered(keyed, false, self.budget)?;
                self.entries(entries.into_iter(), depth)
            }
            Value::Map(map) => self.entries(map.entries.iter(), depth),
            other => fault!("{} cannot be written as JSON", other.kind()),
        }
    }

    /// Keys and their values.
    fn entries<'e>(
        &mut self,
        entries: impl ExactSizeIterator<Item = &'e (Value, Value)>,
        depth: usize,
    ) -> Outcome<()> {
        self.between(["{", "}"], depth, entries, |writer, (key, value)| {
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
        })
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
        let is_ascii = self.is_ascii;
        let is_escaped = |letter: char| match letter {
            '"' | '\\' | '\0'..' ' => true,
            letter => is_ascii && letter > '~',
        };
        let mut rest = text;
        while let Some((place, letter)) = rest.char_indices().find(|(_, letter)| is_escaped(*letter)) {
            self.push(&rest[..place])?;
            match letter {
                '"' => self.push("\\\"")?,
                '\\' => self.push("\\\\")?,
                '\n' => self.push("\\n")?,
                '\r' => self.push("\\r")?,
                '\t' => self.push("\\t")?,
                '\u{8}' => self.push("\\b")?,
                '\u{c}' => self.push("\\f")?,
                letter => {
                    for unit in letter.encode_utf16(&mut [0; 2]) {
                        self.push(&format!("\\u{unit:04x}"))?;
                    }
                }
            }
            rest = &rest[place + letter.len_utf8()..];
        }
        self.push(rest)?;
        self.push("\"")
    }
}
