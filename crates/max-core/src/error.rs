//! The one error type: a kind, a human-readable message, and where it happened.
//!
//! The kind decides the exception class in Python; the message names the op, its operands and what was
//! expected; the context lists where in the user's program the failing value was made.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::panic::Location as Caller;
use std::sync::Arc;

/// The result of every operation that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, in terms of Python's exception classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A value of the right type that is not acceptable.
    Value,
    /// A value of the wrong type.
    Type,
    /// An index or an axis out of range.
    Index,
    /// A name that is not in a mapping.
    Key,
    /// Something that was not found in its context, such as the current graph.
    Lookup,
    /// Division by a dimension that is zero.
    ZeroDivision,
    /// A documented feature that is not implemented yet.
    NotImplemented,
    /// A failed allocation.
    Memory,
    /// A failure at run time: files, devices, execution.
    Runtime,
    /// A bug in max-rs itself.
    Internal,
}

/// A location in the user's source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The file, as the compiler or the interpreter names it.
    pub file: FileName,
    /// The line, counted from one.
    pub line: u32,
}

/// The name of a file. There are many locations in few files, so names are shared.
#[derive(Clone, Debug)]
pub enum FileName {
    /// Known at compile time.
    Static(&'static str),
    /// Known at run time.
    Shared(Arc<str>),
}

impl Deref for FileName {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            FileName::Static(name) => name,
            FileName::Shared(name) => name,
        }
    }
}

impl From<&'static str> for FileName {
    fn from(name: &'static str) -> FileName {
        FileName::Static(name)
    }
}

impl PartialEq for FileName {
    fn eq(&self, other: &FileName) -> bool {
        **self == **other
    }
}

impl Eq for FileName {}

impl Hash for FileName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl Location {
    /// The location of the nearest caller that is not marked `#[track_caller]`.
    #[track_caller]
    pub fn caller() -> Self {
        let caller = Caller::caller();
        Location { file: caller.file().into(), line: caller.line() }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// An error: see the module.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    message: String,
    context: Vec<String>,
    location: Option<Location>,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $kind:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(message: impl Into<String>) -> Self {
            Error::new(ErrorKind::$kind, message)
        })*
    };
}

impl Error {
    /// An error of a kind; [`Error::at`] adds its location in the user's program.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner { kind, message: message.into(), context: Vec::new(), location: None }))
    }

    constructors! {
        /// An unacceptable value.
        value => Value;
        /// A wrong type.
        type_ => Type;
        /// An index out of range.
        index => Index;
        /// A missing name.
        key => Key;
        /// Something not found in its context.
        lookup => Lookup;
        /// A division by zero.
        zero_division => ZeroDivision;
        /// A feature that is not implemented yet.
        not_implemented => NotImplemented;
        /// A failed allocation.
        memory => Memory;
        /// A failure at run time.
        runtime => Runtime;
        /// A bug in max-rs itself.
        internal => Internal;
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message alone, without context and location.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The location of the failing call in the user's program, if known.
    pub fn location(&self) -> Option<&Location> {
        self.0.location.as_ref()
    }

    /// Puts text before the message.
    #[must_use]
    pub fn prefixed(mut self, prefix: &str) -> Self {
        self.0.message.insert_str(0, prefix);
        self
    }

    /// Adds a line of context that says what was being done; the outermost comes last.
    #[must_use]
    pub fn context(mut self, line: impl Into<String>) -> Self {
        self.0.context.push(line.into());
        self
    }

    /// Adds a line of context unless there is one already.
    #[must_use]
    pub fn context_or(self, line: impl FnOnce() -> String) -> Self {
        if self.0.context.is_empty() { self.context(line()) } else { self }
    }

    /// Sets the user's location unless an inner call has set it.
    #[must_use]
    pub fn at(mut self, location: Location) -> Self {
        self.0.location.get_or_insert(location);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.kind == ErrorKind::Internal {
            f.write_str("a bug in max-rs, please report it: ")?;
        }
        f.write_str(&self.0.message)?;
        for line in &self.0.context {
            write!(f, "\n  {line}")?;
        }
        match &self.0.location {
            Some(location) => write!(f, "\n  at {location}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {}

/// Returns early with an error of a kind: `bail!(value, "wrong {}", x)`.
#[macro_export]
macro_rules! bail {
    ($kind:ident, $($message:tt)*) => {
        return Err($crate::Error::$kind(format!($($message)*)))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_message_context_and_first_location() {
        let inner = Location { file: "a.rs".into(), line: 3 };
        let outer = Location { file: "b.rs".into(), line: 9 };
        let error = Error::value("bad axis").context("in op sum").at(inner).at(outer);
        assert_eq!(error.to_string(), "bad axis\n  in op sum\n  at a.rs:3");
        assert_eq!(error.kind(), ErrorKind::Value);
    }
}
