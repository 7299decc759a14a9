//! Inverse Fourier transforms with real results.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use super::walk::one;
use super::{Ending, no_ending};
use crate::kernel::{Access, Loop, Map, Role, Slot, Walk};
use crate::{Error, Result};

/// Inverse Fourier transforms along an axis: the lines of the source are the first halves of spectra, those of the result
/// the real signals. A spectrum that is too short continues with zeros; what it has too much of is ignored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Irfft<D, M = Slot> {
    /// The product of the sizes before the axis.
    pub outer: D,
    /// The size of the axis in the source.
    pub bins: D,
    /// The size of the axis in the result.
    pub size: D,
    /// The product of the sizes after the axis.
    pub inner: D,
    /// How many numbers an element of the source is: a real part, or a real and an imaginary part.
    pub parts: D,
    /// What the results are divided by.
    pub normalization: Normalization,
    /// Over `[outer, bins, inner, parts]`.
    pub source: Access<D, M>,
    /// Over `[outer, size, inner]`.
    pub out: Access<D, M>,
}

/// What an inverse Fourier transform divides its results by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Normalization {
    /// The length of the signal.
    Backward,
    /// The square root of the length of the signal.
    Ortho,
    /// Nothing.
    Forward,
}

impl Normalization {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Normalization::Backward => "backward",
            Normalization::Ortho => "ortho",
            Normalization::Forward => "forward",
        }
    }

    /// What a signal of a length is multiplied by.
    pub fn scale(self, size: usize) -> f64 {
        match self {
            Normalization::Backward => 1.0 / size as f64,
            Normalization::Ortho => 1.0 / (size as f64).sqrt(),
            Normalization::Forward => 1.0,
        }
    }
}

impl FromStr for Normalization {
    type Err = Error;

    fn from_str(text: &str) -> Result<Normalization> {
        let all = [Normalization::Backward, Normalization::Ortho, Normalization::Forward];
        all.into_iter().find(|normalization| normalization.name() == text).ok_or_else(|| {
            Error::value(format!(
                "'{text}' is not a normalization; expected 'backward', 'ortho' or 'forward'"
            ))
        })
    }
}

no_ending!(Irfft);

impl<D, M> Irfft<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Irfft<E, N>> {
        Ok(Irfft {
            outer: to.size(&self.outer)?,
            bins: to.size(&self.bins)?,
            size: to.size(&self.size)?,
            inner: to.size(&self.inner)?,
            parts: to.size(&self.parts)?,
            normalization: self.normalization,
            source: to.access(&self.source)?,
            out: to.access(&self.out)?,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        let Irfft { outer, bins, size, inner, parts, .. } = self;
        see(Walk::new(Role::Operand, &self.source, &[one(outer), one(bins), one(inner), one(parts)]));
        see(Walk::new(Role::Result, &self.out, &[one(outer), one(size), one(inner)]));
    }
}

impl<D: Display> Irfft<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (bins, size, name) = (&self.bins, &self.size, self.normalization.name());
        writeln!(f, "{} into {} from {bins} bins to size {size} {name}", self.source, self.out)
    }
}
