//! What rendering a template may take.
//!
//! Everything that a template does, looks at and makes is paid for before it happens, and nothing is paid back. So the time and
//! the memory of a template are bounded, whatever it is made of: there is no operation that has a limit of its own.

use super::value::{Form, Value};

/// The most steps: parts of expressions, statements, and bytes that are looked at, of which a step has [`STRIDE`].
const STEPS: usize = 16_000_000;

/// The most bytes of all values and texts together.
const BYTES: usize = 128_000_000;

/// How many bytes are looked at in a step.
const STRIDE: usize = 16;

/// What an item of a list takes in memory, with a text of its own.
const ITEM: usize = 64;

/// What a name takes in memory where values have names.
const NAME: usize = 96;

/// The most letters of a message.
const MOST_MESSAGE: usize = 1000;

/// What is wrong with a template, and in which line, once that is known.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) message: String,
    pub(super) line: Option<usize>,
}

/// A result, or what is wrong.
pub(super) type Outcome<T> = Result<T, Fault>;

impl Fault {
    pub(super) fn new(message: &str) -> Fault {
        Fault { message: shortened(message, MOST_MESSAGE), line: None }
    }

    /// The fault, in a line if it has none yet.
    pub(super) fn at(self, line: usize) -> Fault {
        Fault { line: self.line.or(Some(line)), ..self }
    }
}

/// A text, or the start of a long one.
pub(super) fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into(),
    }
}

/// Returns a fault with a message.
macro_rules! fault {
    ($($message:tt)*) => {
        return Err($crate::text::chat::budget::Fault::new(&format!($($message)*)))
    };
}
pub(super) use fault;

/// What is left of what rendering may take.
pub(super) struct Budget {
    steps: usize,
    bytes: usize,
}

impl Budget {
    pub(super) fn new() -> Budget {
        Budget { steps: STEPS, bytes: BYTES }
    }

    /// Pays for some steps.
    pub(super) fn steps(&mut self, count: usize) -> Outcome<()> {
        match self.steps.checked_sub(count) {
            Some(left) => self.steps = left,
            None => fault!("it takes more than {} million steps", STEPS / 1_000_000),
        }
        Ok(())
    }

    /// Pays for a look at some bytes.
    pub(super) fn look(&mut self, bytes: usize) -> Outcome<()> {
        self.steps(1 + bytes / STRIDE)
    }

    /// Pays for some bytes that are made.
    pub(super) fn make(&mut self, bytes: usize) -> Outcome<()> {
        match self.bytes.checked_sub(bytes) {
            Some(left) => self.bytes = left,
            None => fault!("it makes more than {} MB of text and lists", BYTES / 1_000_000),
        }
        self.look(bytes)
    }

    /// Pays for a name that gets a value.
    pub(super) fn name(&mut self, name: &str) -> Outcome<()> {
        self.look(name.len())?;
        self.make(NAME)
    }

    /// Pays for comparing a name with others.
    pub(super) fn compare(&mut self, name: &str, others: usize) -> Outcome<()> {
        self.steps(others.saturating_mul(1 + name.len() / STRIDE))
    }

    /// Adds to a text.
    pub(super) fn push(&mut self, to: &mut String, text: &str) -> Outcome<()> {
        self.make(text.len())?;
        to.push_str(text);
        Ok(())
    }

    /// Adds to what becomes a list.
    pub(super) fn push_item(&mut self, to: &mut Vec<Value>, item: Value) -> Outcome<()> {
        self.make(ITEM)?;
        to.push(item);
        Ok(())
    }

    /// A text as a value.
    pub(super) fn text(&mut self, text: &str) -> Outcome<Value> {
        self.make(text.len())?;
        Ok(Value::Text(text.into()))
    }

    /// A list of some values.
    pub(super) fn list(&mut self, values: impl IntoIterator<Item = Value>) -> Outcome<Value> {
        self.formed(Form::List, values)
    }

    /// Some values in some form.
    pub(super) fn formed(&mut self, form: Form, values: impl IntoIterator<Item = Value>) -> Outcome<Value> {
        let mut items = Vec::new();
        for value in values {
            self.push_item(&mut items, value)?;
        }
        Value::formed(form, items)
    }
}
