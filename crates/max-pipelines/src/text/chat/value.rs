//! The values of templates, which are those of Python.
//!
//! A value never changes, and namespaces are only known by their numbers. So no value contains itself, and none is nested
//! deeper than [`MOST_DEPTH`]: comparing, showing and dropping one may follow its structure.

use std::cmp::Ordering;
use std::sync::Arc;

use super::budget::{Budget, Outcome, fault};

/// How deep values are nested.
const MOST_DEPTH: usize = 64;

/// A value.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// What a name means that has no meaning.
    Undefined,
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Arc<str>),
    /// A list, a tuple or a generator.
    List(Arc<List>),
    Map(Arc<Map>),
    /// What `loop` is in a loop.
    Loop(Arc<Loop>),
    /// The number of a namespace of the machine.
    Namespace(usize),
    /// The number of a macro of the template.
    Macro(usize),
    /// The name of a function that every template has, or of a method that is not called.
    Function(&'static str),
}

/// Items, what they are together, and how deep they are nested.
#[derive(Debug)]
pub(super) struct List {
    pub(super) items: Vec<Value>,
    pub(super) form: Form,
    depth: usize,
}

/// What items are together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    List,
    Tuple,
    /// What some filters give: it can be iterated over, and is true even if it has no items.
    Generator,
}

/// Keys and values in their order, and how deep they are nested.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) entries: Vec<(Value, Value)>,
    depth: usize,
}

/// What is iterated over, and how far.
#[derive(Debug)]
pub(super) struct Loop {
    pub(super) list: Arc<List>,
    pub(super) index: usize,
}

impl Value {
    /// A list of values.
    pub(super) fn list(items: Vec<Value>) -> Outcome<Value> {
        Value::formed(Form::List, items)
    }

    /// Values in some form.
    pub(super) fn formed(form: Form, items: Vec<Value>) -> Outcome<Value> {
        let depth = depth_around(items.iter())?;
        Ok(Value::List(Arc::new(List { items, form, depth })))
    }

    /// A map of keys, which differ, and values.
    pub(super) fn map(entries: Vec<(Value, Value)>) -> Outcome<Value> {
        let depth = depth_around(entries.iter().flat_map(|(key, value)| [key, value]))?;
        Ok(Value::Map(Arc::new(Map { entries, depth })))
    }

    fn depth(&self) -> usize {
        match self {
            Value::List(list) => list.depth,
            Value::Map(map) => map.depth,
            Value::Loop(state) => state.list.depth,
            _ => 0,
        }
    }

    /// What it is, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Undefined => "what is undefined",
            Value::None => "none",
            Value::Bool(_) => "a truth value",
            Value::Int(_) | Value::Float(_) => "a number",
            Value::Text(_) => "a text",
            Value::List(list) => match list.form {
                Form::List => "a list",
                Form::Tuple => "a tuple",
                Form::Generator => "a generator",
            },
            Value::Map(_) => "a map",
            Value::Loop(_) => "a loop",
            Value::Namespace(_) => "a namespace",
            Value::Macro(_) => "a macro",
            Value::Function(_) => "a function",
        }
    }

    /// Whether it counts as true.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Undefined | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Text(text) => !text.is_empty(),
            Value::List(list) => list.form == Form::Generator || !list.items.is_empty(),
            Value::Map(map) => !map.entries.is_empty(),
            Value::Loop(_) | Value::Namespace(_) | Value::Macro(_) | Value::Function(_) => true,
        }
    }

    /// The text, or a fault.
    pub(super) fn as_text(&self) -> Outcome<&Arc<str>> {
        match self {
            Value::Text(text) => Ok(text),
            other => fault!("a text was expected, not {}", other.kind()),
        }
    }

    /// The integer, or a fault.
    pub(super) fn as_int(&self) -> Outcome<i64> {
        match self {
            Value::Int(value) => Ok(*value),
            Value::Bool(value) => Ok((*value).into()),
            other => fault!("an integer was expected, not {}", other.kind()),
        }
    }

    /// The number as a float, if it is one.
    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Bool(value) => Some((*value).into()),
            Value::Int(value) => Some(*value as f64),
            Value::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// The value of a key in a map.
    pub(super) fn entry(&self, key: &Value, budget: &mut Budget) -> Outcome<Option<Value>> {
        if let Value::Map(map) = self {
            for (known, value) in &map.entries {
                if known.equals(key, budget)? {
                    return Ok(Some(value.clone()));
                }
            }
        }
        Ok(None)
    }

    /// Whether two values are equal.
    pub(super) fn equals(&self, other: &Value, budget: &mut Budget) -> Outcome<bool> {
        budget.steps(1)?;
        Ok(match (self, other) {
            (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
            (Value::Text(a), Value::Text(b)) => {
                a.len() == b.len() && {
                    budget.look(a.len())?;
                    a == b
                }
            }
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::List(a), Value::List(b)) => {
                if a.form != b.form || a.items.len() != b.items.len() {
                    return Ok(false);
                }
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, budget)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Map(a), Value::Map(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &a.entries {
                    match other.entry(key, budget)? {
                        Some(found) if value.equals(&found, budget)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Value::Namespace(a), Value::Namespace(b)) | (Value::Macro(a), Value::Macro(b)) => a == b,
            _ => matches!((self.as_float(), other.as_float()), (Some(a), Some(b)) if a == b),
        })
    }

    /// The order of two numbers or two texts, or of two lists by the first items that differ.
    pub(super) fn order(&self, other: &Value, budget: &mut Budget) -> Outcome<Option<Ordering>> {
        budget.steps(1)?;
        match (self, other) {
            (Value::Text(a), Value::Text(b)) => {
                budget.look(a.len().min(b.len()))?;
                return Ok(Some(a.cmp(b)));
            }
            (Value::Int(a), Value::Int(b)) => return Ok(Some(a.cmp(b))),
            (Value::List(a), Value::List(b)) if a.form == b.form && a.form != Form::Generator => {
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, budget)? {
                        return a.order(b, budget);
                    }
                }
                return Ok(Some(a.items.len().cmp(&b.items.len())));
            }
            _ => {}
        }
        match (self.as_float(), other.as_float()) {
            (Some(a), Some(b)) => Ok(a.partial_cmp(&b)),
            _ => fault!("{} and {} have no order", self.kind(), other.kind()),
        }
    }

    /// Adds what Python's `str` gives to a text.
    pub(super) fn show(&self, to: &mut String, budget: &mut Budget) -> Outcome<()> {
        match self {
            Value::Text(text) => budget.push(to, text),
            Value::Undefined => Ok(()),
            other => other.represent(to, budget),
        }
    }

    /// Adds what Python's `repr` gives to a text.
    pub(super) fn represent(&self, to: &mut String, budget: &mut Budget) -> Outcome<()> {
        budget.steps(1)?;
        match self {
            Value::Undefined => budget.push(to, "Undefined"),
            Value::None => budget.push(to, "None"),
            Value::Bool(true) => budget.push(to, "True"),
            Value::Bool(false) => budget.push(to, "False"),
            Value::Int(value) => budget.push(to, &value.to_string()),
            Value::Float(value) => budget.push(to, &shown_float(*value)),
            Value::Text(text) => quote(text, to, budget),
            Value::List(list) if list.form != Form::Generator => {
                let is_tuple = list.form == Form::Tuple;
                budget.push(to, if is_tuple { "(" } else { "[" })?;
                for (number, item) in list.items.iter().enumerate() {
                    budget.push(to, if number > 0 { ", " } else { "" })?;
                    item.represent(to, budget)?;
                }
                budget.push(
                    to,
                    match list.items.len() {
                        1 if is_tuple => ",)",
                        _ if is_tuple => ")",
                        _ => "]",
                    },
                )
            }
            Value::Map(map) => {
                budget.push(to, "{")?;
                for (number, (key, value)) in map.entries.iter().enumerate() {
                    budget.push(to, if number > 0 { ", " } else { "" })?;
                    key.represent(to, budget)?;
                    budget.push(to, ": ")?;
                    value.represent(to, budget)?;
                }
                budget.push(to, "}")
            }
            Value::List(_) | Value::Loop(_) | Value::Namespace(_) | Value::Macro(_) | Value::Function(_) => {
                fault!("{} is no text", self.kind())
            }
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.into())
    }
}

impl From<char> for Value {
    fn from(letter: char) -> Value {
        Value::Text((&*letter.encode_utf8(&mut [0; 4])).into())
    }
}

/// The depth of what contains some values.
fn depth_around<'a>(values: impl Iterator<Item = &'a Value>) -> Outcome<usize> {
    let depth = values.map(Value::depth).max().unwrap_or(0) + 1;
    if depth > MOST_DEPTH {
        fault!("its values are nested deeper than {MOST_DEPTH}");
    }
    Ok(depth)
}

/// A float as Python shows it.
pub(super) fn shown_float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = value.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// Whether a letter is white space for Python, which counts the separators of ASCII too.
pub(super) fn is_space(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, '\x1c'..='\x1f')
}

/// Adds a text in quotes, as Python writes it, to a text.
fn quote(text: &str, to: &mut String, budget: &mut Budget) -> Outcome<()> {
    // At most `\x7f` for a byte.
    budget.make(text.len().saturating_mul(4) + 2)?;
    // What cannot be printed is escaped in a text of Rust too, where no accent is escaped but the first letter.
    let mut pair = String::from("a");
    let mut is_printed = |letter: char| {
        pair.truncate(1);
        pair.push(letter);
        matches!(letter, ' '..='~') || pair.escape_debug().count() == 2
    };
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    to.push(mark);
    for letter in text.chars() {
        match letter {
            '\\' => to.push_str("\\\\"),
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            '\t' => to.push_str("\\t"),
            letter if letter == mark => to.extend(['\\', letter]),
            letter if is_printed(letter) => to.push(letter),
            letter => to.push_str(&match letter as u32 {
                code @ ..0x100 => format!("\\x{code:02x}"),
                code @ ..0x1_0000 => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            }),
        }
    }
    to.push(mark);
    Ok(())
}
