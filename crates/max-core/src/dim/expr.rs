//! Integer polynomials over symbols and floor quotients, in canonical form.
//!
//! A term is a coefficient times a sorted product of atoms; an expression is a sum of terms with distinct
//! products and no zero coefficients, higher degrees first, the constant last. Modulo is not an atom:
//! it is expressed with a floor quotient, so that `(x // 4) * 4 + x % 4` is `x`.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::{Error, Result, bail};

/// The maximum number of parts of an expression: its terms, their symbols, and the parts of quotients, with repeated
/// ones counted each time. It bounds the time of everything that walks an expression.
pub const MAX_SIZE: usize = 512;

/// A canonical expression; see the module.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Expr {
    terms: Vec<Term>,
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Term {
    atoms: Vec<Atom>,
    coefficient: i64,
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Atom {
    Symbol(Arc<str>),
    Quotient(Arc<Quotient>),
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Quotient {
    numerator: Expr,
    denominator: Expr,
    /// The size of both, cached.
    size: usize,
}

fn overflow() -> Error {
    Error::value("dimension arithmetic overflows 64 bits")
}

/// Higher degree first, then by atoms.
fn order(a: &[Atom], b: &[Atom]) -> Ordering {
    b.len().cmp(&a.len()).then_with(|| a.cmp(b))
}

/// `a` without the atoms of `b`, if it has all of them.
fn divide_atoms(a: &[Atom], b: &[Atom]) -> Option<Vec<Atom>> {
    let mut rest = a.to_vec();
    for atom in b {
        let at = rest.iter().position(|r| r == atom)?;
        rest.remove(at);
    }
    Some(rest)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Term {
    /// The exact quotient of two terms, if there is one.
    fn divide(&self, by: &Term) -> Option<Term> {
        let exact = by.coefficient != 0 && self.coefficient.checked_rem(by.coefficient)? == 0;
        if !exact {
            return None;
        }
        let coefficient = self.coefficient.checked_div(by.coefficient)?;
        divide_atoms(&self.atoms, &by.atoms).map(|atoms| Term { atoms, coefficient })
    }
}

impl Expr {
    pub(super) fn constant(value: i64) -> Expr {
        Expr::from(Term { atoms: Vec::new(), coefficient: value })
    }

    pub(super) fn symbol(name: Arc<str>) -> Expr {
        Expr::from(Term { atoms: vec![Atom::Symbol(name)], coefficient: 1 })
    }

    fn quotient(numerator: Expr, denominator: Expr) -> Result<Expr> {
        let size = numerator.size() + denominator.size();
        let atom = Atom::Quotient(Arc::new(Quotient { numerator, denominator, size }));
        Expr::from(Term { atoms: vec![atom], coefficient: 1 }).bounded()
    }

    fn size(&self) -> usize {
        let atom_size = |atom: &Atom| match atom {
            Atom::Symbol(_) => 1,
            Atom::Quotient(q) => 1 + q.size,
        };
        self.terms.iter().map(|t| 1 + t.atoms.iter().map(atom_size).sum::<usize>()).sum()
    }

    fn bounded(self) -> Result<Expr> {
        if self.size() > MAX_SIZE {
            bail!(value, "dimension expression is too large: more than {MAX_SIZE} parts");
        }
        Ok(self)
    }

    pub(super) fn as_constant(&self) -> Option<i64> {
        match self.terms.as_slice() {
            [] => Some(0),
            [Term { atoms, coefficient }] if atoms.is_empty() => Some(*coefficient),
            _ => None,
        }
    }

    pub(super) fn as_symbol(&self) -> Option<Arc<str>> {
        match self.terms.as_slice() {
            [Term { atoms, coefficient: 1 }] => match atoms.as_slice() {
                [Atom::Symbol(name)] => Some(name.clone()),
                _ => None,
            },
            _ => None,
        }
    }

    /// Brings terms into canonical form.
    fn collect(terms: impl IntoIterator<Item = Term>) -> Result<Expr> {
        let mut terms: Vec<Term> = terms.into_iter().collect();
        terms.sort_by(|a, b| order(&a.atoms, &b.atoms));
        let mut sum: Vec<Term> = Vec::with_capacity(terms.len());
        for term in terms {
            match sum.last_mut() {
                Some(last) if last.atoms == term.atoms => {
                    last.coefficient = last.coefficient.checked_add(term.coefficient).ok_or_else(overflow)?;
                }
                _ => sum.push(term),
            }
        }
        sum.retain(|t| t.coefficient != 0);
        Expr { terms: sum }.bounded()
    }

    pub(super) fn add(&self, other: &Expr) -> Result<Expr> {
        Expr::collect(self.terms.iter().chain(&other.terms).cloned())
    }

    pub(super) fn scale(&self, factor: i64) -> Result<Expr> {
        self.mul(&Expr::constant(factor))
    }

    pub(super) fn mul(&self, other: &Expr) -> Result<Expr> {
        let mut terms = Vec::new();
        for a in &self.terms {
            for b in &other.terms {
                let mut atoms = [a.atoms.as_slice(), &b.atoms].concat();
                atoms.sort();
                let coefficient = a.coefficient.checked_mul(b.coefficient).ok_or_else(overflow)?;
                terms.push(Term { atoms, coefficient });
            }
        }
        Expr::collect(terms)
    }

    pub(super) fn floor_div(&self, by: &Expr) -> Result<Expr> {
        match (by.as_constant(), by.terms.as_slice()) {
            (Some(0), _) => bail!(zero_division, "dimension divided by zero: {self} // 0"),
            (Some(1), _) => Ok(self.clone()),
            (Some(constant), _) if constant < 0 => match constant.checked_neg() {
                Some(positive) => self.scale(-1)?.div_constant(positive),
                None => Err(overflow()),
            },
            (Some(constant), _) => self.div_constant(constant),
            (None, [term]) => {
                let (whole, rest) = self.divide_terms(term);
                let rest = Expr { terms: rest };
                let whole = Expr::collect(whole)?;
                if rest.terms.is_empty() { Ok(whole) } else { whole.add(&Expr::quotient(rest, by.clone())?) }
            }
            (None, _) => match self.divide_exactly(by) {
                Ok(Some(quotient)) => Ok(quotient),
                _ => Expr::quotient(self.clone(), by.clone()),
            },
        }
    }

    /// The exact quotients of the terms that a term divides, and the terms it does not.
    fn divide_terms(&self, by: &Term) -> (Vec<Term>, Vec<Term>) {
        let (mut whole, mut rest) = (Vec::new(), Vec::new());
        for term in &self.terms {
            match term.divide(by) {
                Some(quotient) => whole.push(quotient),
                None => rest.push(term.clone()),
            }
        }
        (whole, rest)
    }

    /// Floor division by a positive constant: multiples of it leave the quotient, common factors cancel.
    fn div_constant(&self, by: i64) -> Result<Expr> {
        let (mut whole, mut rest) = self.divide_terms(&Term { atoms: Vec::new(), coefficient: by });
        let offset = rest.pop_if(|t| t.atoms.is_empty()).map_or(0, |t| t.coefficient);
        whole.push(Term { atoms: Vec::new(), coefficient: offset.div_euclid(by) });
        let whole = Expr::collect(whole)?;
        if rest.is_empty() {
            return Ok(whole);
        }
        // floor((g*a + k) / (g*b)) = floor((a + floor(k / g)) / b) for integer a.
        let common = rest.iter().fold(by.unsigned_abs(), |g, t| gcd(t.coefficient.unsigned_abs(), g)) as i64;
        for term in &mut rest {
            term.coefficient /= common;
        }
        let offset = offset.rem_euclid(by).div_euclid(common);
        let (numerator, by) = (Expr { terms: rest }.add(&Expr::constant(offset))?, by / common);
        if by == 1 {
            return whole.add(&numerator);
        }
        whole.add(&numerator.nested_quotient(by)?)
    }

    /// `(x // a) // b` is `x // (a * b)` for positive constants.
    fn nested_quotient(self, by: i64) -> Result<Expr> {
        if let [Term { atoms, coefficient: 1 }] = self.terms.as_slice()
            && let [Atom::Quotient(inner)] = atoms.as_slice()
            && let Some(constant) = inner.denominator.as_constant()
            && let Some(product) = constant.checked_mul(by)
        {
            return inner.numerator.div_constant(product);
        }
        Expr::quotient(self, Expr::constant(by))
    }

    /// Polynomial long division, if the remainder is zero.
    fn divide_exactly(&self, by: &Expr) -> Result<Option<Expr>> {
        let (mut rest, mut quotient) = (self.clone(), Expr { terms: Vec::new() });
        while let Some(lead) = rest.terms.first() {
            let Some(term) = by.terms.first().and_then(|b| lead.divide(b)) else { return Ok(None) };
            let step = Expr::from(term);
            rest = rest.add(&step.mul(by)?.scale(-1)?)?;
            quotient = quotient.add(&step)?;
        }
        Ok(Some(quotient))
    }

    pub(super) fn collect_symbols(&self, into: &mut BTreeSet<Arc<str>>) {
        for atom in self.terms.iter().flat_map(|t| &t.atoms) {
            match atom {
                Atom::Symbol(name) => {
                    into.insert(name.clone());
                }
                Atom::Quotient(q) => {
                    q.numerator.collect_symbols(into);
                    q.denominator.collect_symbols(into);
                }
            }
        }
    }

    pub(super) fn substitute(&self, replace: &dyn Fn(&str) -> Option<Expr>) -> Result<Expr> {
        let mut sum = Expr { terms: Vec::new() };
        for term in &self.terms {
            let mut product = Expr::constant(term.coefficient);
            for atom in &term.atoms {
                let factor = match atom {
                    Atom::Symbol(name) => replace(name).unwrap_or_else(|| Expr::symbol(name.clone())),
                    Atom::Quotient(q) => {
                        q.numerator.substitute(replace)?.floor_div(&q.denominator.substitute(replace)?)?
                    }
                };
                product = product.mul(&factor)?;
            }
            sum = sum.add(&product)?;
        }
        Ok(sum)
    }

    /// Solves `c * symbol + k = value`, if the expression has that form and the solution is an integer.
    pub(super) fn solve(&self, value: i64) -> Option<(Arc<str>, i64)> {
        let (first, rest) = self.terms.split_first()?;
        let [Atom::Symbol(name)] = first.atoms.as_slice() else { return None };
        let offset = Expr { terms: rest.to_vec() }.as_constant()?;
        let scaled = value.checked_sub(offset)?;
        (scaled.checked_rem(first.coefficient)? == 0).then(|| (name.clone(), scaled / first.coefficient))
    }
}

impl From<Term> for Expr {
    fn from(term: Term) -> Expr {
        Expr { terms: if term.coefficient == 0 { Vec::new() } else { vec![term] } }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leaves = f.alternate();
        if self.terms.is_empty() {
            return f.write_str(&number(0, leaves));
        }
        let several = self.terms.len() > 1;
        for (i, term) in self.terms.iter().enumerate() {
            if i > 0 {
                f.write_str(" + ")?;
            }
            let text = term.text(leaves);
            let compound = several && text.compound;
            write!(f, "{}{}{}", if compound { "(" } else { "" }, text.text, if compound { ")" } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#}")
    }
}

fn number(value: i64, leaves: bool) -> String {
    if leaves { format!("Dim({value})") } else { value.to_string() }
}

/// A piece of printed text and whether it needs parentheses inside a larger one.
struct Piece {
    text: String,
    compound: bool,
}

impl Piece {
    fn wrapped(self) -> String {
        if self.compound { format!("({})", self.text) } else { self.text }
    }
}

impl Term {
    fn text(&self, leaves: bool) -> Piece {
        let mut factors: Vec<Piece> = self.atoms.iter().map(|a| a.text(leaves)).collect();
        if self.coefficient != 1 || factors.is_empty() {
            factors.push(Piece { text: number(self.coefficient, leaves), compound: false });
        }
        match factors.len() {
            1 => factors.remove(0),
            _ => {
                let factors: Vec<_> = factors.into_iter().map(Piece::wrapped).collect();
                Piece { text: factors.join(" * "), compound: true }
            }
        }
    }
}

impl Atom {
    fn text(&self, leaves: bool) -> Piece {
        match self {
            Atom::Symbol(name) => Piece {
                text: if leaves { format!("Dim('{name}')") } else { name.to_string() },
                compound: false,
            },
            Atom::Quotient(q) => {
                let (numerator, denominator) = (q.numerator.piece(leaves), q.denominator.piece(leaves));
                Piece { text: format!("{numerator} // {denominator}"), compound: true }
            }
        }
    }
}

impl Expr {
    /// The text as an operand of another operator.
    fn piece(&self, leaves: bool) -> String {
        match self.terms.as_slice() {
            [] => number(0, leaves),
            [term] => term.text(leaves).wrapped(),
            _ if leaves => format!("({self:#})"),
            _ => format!("({self})"),
        }
    }
}
