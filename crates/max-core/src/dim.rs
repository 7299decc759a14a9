//! Tensor dimensions: static, symbolic, or algebraic over symbols, always in canonical form.
//!
//! Arithmetic normalizes, so equality of two dims is equality of their forms. All arithmetic is checked: a
//! result beyond 64 bits, or an expression beyond [`MAX_SIZE`] parts, is an error and never a wrong size.

mod expr;
mod parse;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

pub use expr::{Expr, MAX_SIZE};

use crate::{Error, Result, bail};

/// The size of one axis of a tensor.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dim {
    /// A known size.
    Static(i64),
    /// An unknown size with a name; equal names are equal sizes.
    Symbolic(Arc<str>),
    /// An expression over symbols that is neither of the above.
    Algebraic(Arc<Expr>),
}

/// The sizes that symbols have in one execution.
pub type Bindings = BTreeMap<Arc<str>, i64>;

impl Dim {
    /// A symbolic dim. The name starts with an ASCII letter or an underscore; letters and numbers of any script may
    /// follow.
    pub fn symbolic(name: &str) -> Result<Dim> {
        check_name(name)?;
        Ok(Dim::Symbolic(name.into()))
    }

    /// Checks that all symbols have valid names.
    pub fn validate(&self) -> Result<()> {
        self.parameters().iter().try_for_each(|name| check_name(name))
    }

    /// The size, if it is known.
    pub fn as_static(&self) -> Option<i64> {
        match self {
            Dim::Static(size) => Some(*size),
            _ => None,
        }
    }

    /// The sum.
    pub fn add(&self, other: &Dim) -> Result<Dim> {
        if let Some(size) = self.statics(other, i64::checked_add) {
            return Ok(Dim::Static(size));
        }
        self.expr().add(&other.expr()).map(Dim::from_expr)
    }

    /// The difference.
    pub fn sub(&self, other: &Dim) -> Result<Dim> {
        if let Some(size) = self.statics(other, i64::checked_sub) {
            return Ok(Dim::Static(size));
        }
        self.expr().add(&other.expr().scale(-1)?).map(Dim::from_expr)
    }

    /// The product.
    pub fn mul(&self, other: &Dim) -> Result<Dim> {
        if let Some(size) = self.statics(other, i64::checked_mul) {
            return Ok(Dim::Static(size));
        }
        self.expr().mul(&other.expr()).map(Dim::from_expr)
    }

    /// The quotient, rounded down.
    pub fn floor_div(&self, other: &Dim) -> Result<Dim> {
        self.expr().floor_div(&other.expr()).map(Dim::from_expr)
    }

    /// The remainder of floor division, with the sign of the divisor: `a - (a // b) * b`.
    pub fn modulo(&self, other: &Dim) -> Result<Dim> {
        self.sub(&self.floor_div(other)?.mul(other)?)
    }

    /// The negation.
    pub fn neg(&self) -> Result<Dim> {
        self.expr().scale(-1).map(Dim::from_expr)
    }

    /// Whether the two are different sizes for all values of their symbols.
    pub fn differs(&self, other: &Dim) -> bool {
        self.sub(other).is_ok_and(|difference| difference.as_static().is_some_and(|size| size != 0))
    }

    /// The names it depends on, sorted.
    pub fn parameters(&self) -> Vec<Arc<str>> {
        let mut names = std::collections::BTreeSet::new();
        match self {
            Dim::Static(_) => {}
            Dim::Symbolic(name) => {
                names.insert(name.clone());
            }
            Dim::Algebraic(expr) => expr.collect_symbols(&mut names),
        }
        names.into_iter().collect()
    }

    /// The dim with some symbols replaced by other dims, all at once: replacements are not replaced again.
    pub fn substitute(&self, replace: &dyn Fn(&str) -> Option<Dim>) -> Result<Dim> {
        match self {
            Dim::Static(_) => Ok(self.clone()),
            Dim::Symbolic(name) => Ok(replace(name).unwrap_or_else(|| self.clone())),
            Dim::Algebraic(expr) => {
                expr.substitute(&|name| replace(name).map(|d| d.expr())).map(Dim::from_expr)
            }
        }
    }

    /// The size under bindings; an unbound symbol, a division by zero or an overflow is an error.
    pub fn evaluate(&self, bindings: &Bindings) -> Result<i64> {
        if let Dim::Static(size) = self {
            return Ok(*size);
        }
        let bound = self.substitute(&|name| bindings.get(name).map(|&size| Dim::Static(size)))?;
        bound.as_static().ok_or_else(|| {
            let unbound: Vec<_> = bound.parameters().iter().map(|p| format!("'{p}'")).collect();
            Error::value(format!(
                "cannot evaluate {self}: symbolic dimension {} is not bound to a size",
                unbound.join(", ")
            ))
        })
    }

    /// Learns from the actual size of an axis: binds the only unknown symbol if the dim is linear in it.
    /// Returns whether all symbols of the dim are bound afterwards; sizes are compared by the caller.
    pub fn bind(&self, size: i64, bindings: &mut Bindings) -> Result<bool> {
        let rest = self.substitute(&|name| bindings.get(name).map(|&s| Dim::Static(s)))?;
        let found = match &rest {
            Dim::Static(_) => return Ok(true),
            Dim::Symbolic(name) => Some((name.clone(), size)),
            Dim::Algebraic(expr) => expr.solve(size),
        };
        match found {
            Some((name, value)) if value < 0 => {
                bail!(
                    value,
                    "the size {size} for {self} makes the symbolic dimension '{name}' negative: {value}"
                )
            }
            Some((name, value)) => {
                bindings.insert(name, value);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// The result for two static sizes, unless it overflows: the common case, which needs no expression.
    fn statics(&self, other: &Dim, f: impl FnOnce(i64, i64) -> Option<i64>) -> Option<i64> {
        f(self.as_static()?, other.as_static()?)
    }

    fn expr(&self) -> Expr {
        match self {
            Dim::Static(size) => Expr::constant(*size),
            Dim::Symbolic(name) => Expr::symbol(name.clone()),
            Dim::Algebraic(expr) => (**expr).clone(),
        }
    }

    fn from_expr(expr: Expr) -> Dim {
        match (expr.as_constant(), expr.as_symbol()) {
            (Some(size), _) => Dim::Static(size),
            (_, Some(name)) => Dim::Symbolic(name),
            _ => Dim::Algebraic(Arc::new(expr)),
        }
    }
}

/// Prints `x + 4`; with `{:#}` the leaves are written as constructors: `Dim('x') + Dim(4)`.
impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Static(size) if f.alternate() => write!(f, "Dim({size})"),
            Dim::Static(size) => write!(f, "{size}"),
            Dim::Symbolic(name) if f.alternate() => write!(f, "Dim('{name}')"),
            Dim::Symbolic(name) => f.write_str(name),
            Dim::Algebraic(expr) => expr.fmt(f),
        }
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#}")
    }
}

macro_rules! from_integers {
    ($($int:ty)*) => {$(
        impl From<$int> for Dim {
            fn from(size: $int) -> Dim {
                Dim::Static(size as i64)
            }
        }
    )*};
}
from_integers!(i32 i64 u32);

/// Sizes beyond 63 bits saturate at the largest one, which no tensor can have.
impl From<usize> for Dim {
    fn from(size: usize) -> Dim {
        Dim::Static(i64::try_from(size).unwrap_or(i64::MAX))
    }
}

/// A name that is not an identifier is rejected when the dim enters a graph, by [`Dim::validate`].
impl From<&str> for Dim {
    fn from(name: &str) -> Dim {
        Dim::Symbolic(name.into())
    }
}

fn check_name(name: &str) -> Result<()> {
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') || !name.chars().all(in_name) {
        let shown: String = name.chars().take(60).collect();
        bail!(
            value,
            "Invalid name for symbolic dimension: {shown:?}; expected letters, digits and underscores, the first of them \
             an ASCII letter or an underscore"
        );
    }
    Ok(())
}

/// Whether a character may occur in a name: an underscore, or a letter or a digit of any script.
fn in_name(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

impl From<&Dim> for Dim {
    fn from(dim: &Dim) -> Dim {
        dim.clone()
    }
}

#[cfg(test)]
mod tests;
