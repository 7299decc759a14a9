//! Parses dims from their printed form: `+`, `-`, `*`, `//`, `%`, parentheses, names and integers.

use std::str::FromStr;

use super::{Dim, in_name};
use crate::{Error, Result, bail};

/// The maximum nesting of parentheses and signs.
const MAX_DEPTH: usize = 64;

impl FromStr for Dim {
    type Err = Error;

    fn from_str(text: &str) -> Result<Dim> {
        let mut parser = Parser { rest: text, depth: 0 };
        let shown = || text.chars().take(60).collect::<String>();
        let dim = parser.sum().map_err(|e| e.context(format!("in the dimension '{}'", shown())))?;
        match parser.rest.trim_start() {
            "" => Ok(dim),
            rest => {
                let rest: String = rest.chars().take(20).collect();
                bail!(value, "'{}' is not a dimension: unexpected '{rest}'", shown())
            }
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn eat(&mut self, token: &str) -> bool {
        match self.rest.trim_start().strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn take(&mut self, keep: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest.trim_start();
        let end = rest.find(|c| !keep(c)).unwrap_or(rest.len());
        self.rest = &rest[end..];
        &rest[..end]
    }

    fn sum(&mut self) -> Result<Dim> {
        let mut dim = self.product()?;
        loop {
            dim = if self.eat("+") {
                dim.add(&self.product()?)?
            } else if self.eat("-") {
                dim.sub(&self.product()?)?
            } else {
                return Ok(dim);
            };
        }
    }

    fn product(&mut self) -> Result<Dim> {
        let mut dim = self.factor()?;
        loop {
            dim = if self.eat("*") {
                dim.mul(&self.factor()?)?
            } else if self.eat("//") {
                dim.floor_div(&self.factor()?)?
            } else if self.eat("%") {
                dim.modulo(&self.factor()?)?
            } else {
                return Ok(dim);
            };
        }
    }

    fn factor(&mut self) -> Result<Dim> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            bail!(value, "more than {MAX_DEPTH} nested parentheses");
        }
        let dim = if self.eat("(") {
            let dim = self.sum()?;
            if !self.eat(")") {
                bail!(value, "missing ')'");
            }
            dim
        } else if self.eat("-") {
            if self.rest.starts_with(|c: char| c.is_ascii_digit()) {
                self.integer("-")?
            } else {
                self.factor()?.neg()?
            }
        } else if self.rest.trim_start().starts_with(|c: char| c.is_ascii_digit()) {
            self.integer("")?
        } else {
            Dim::symbolic(self.take(in_name))?
        };
        self.depth -= 1;
        Ok(dim)
    }

    fn integer(&mut self, sign: &str) -> Result<Dim> {
        let text = format!("{sign}{}", self.take(|c| c.is_ascii_digit()));
        text.parse().map(Dim::Static).map_err(|_| Error::value(format!("dimension {text} exceeds 64 bits")))
    }
}
