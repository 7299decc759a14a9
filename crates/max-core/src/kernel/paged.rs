//! A cache of keys and values in pages: attention to it, and what is stored in it.

use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::ops::Range;

use super::walk::one;
use super::{Ending, epilogue, no_ending};
use crate::kernel::{Access, Loop, Map, Role, Slot, Walk};
use crate::{Result, bail};

/// The tokens of sequences, one sequence after the other, and where a cache has them. Lengths and pages are data: they change
/// from one execution to the next, and no size does.
///
/// The cache is walked over `[pages, parts, layers, tokens of a page, heads, length]`, where the parts are keys and values. A
/// cache of bytes has blocks of Q8_0, else its elements are floats, and the length is the depth.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pages<D, M = Slot> {
    /// The sizes of the cache.
    pub sizes: [D; 6],
    /// The number of elements of a key and of a value.
    pub depth: D,
    /// The number of tokens of all sequences that are computed now.
    pub tokens: D,
    /// The number of sequences.
    pub sequences: D,
    /// One more than the number of sequences.
    pub ends: D,
    /// The most pages of a sequence.
    pub most: D,
    /// Over `[ends]`: where the tokens of each sequence start, and where those of the last one end.
    pub starts: Access<D, M>,
    /// Over `[sequences]`: how many tokens of each are in the cache already.
    pub lengths: Access<D, M>,
    /// Over `[sequences, most]`: the pages of each, in the order of their tokens.
    pub table: Access<D, M>,
    /// The layer, a scalar.
    pub layer: Access<D, M>,
}

/// `softmax(query x transposed keys * scale) x values` of the tokens of sequences to those in a cache, passed to an epilogue
/// over `[heads, tokens, depth]`. A token's own keys and values, and those of the tokens before it, are in the cache.
#[derive(Clone, Debug, PartialEq)]
pub struct PagedAttention<D, M = Slot> {
    /// Where keys and values are.
    pub pages: Pages<D, M>,
    /// The number of heads of the queries, a multiple of those of the cache.
    pub heads: D,
    /// Over `[heads, tokens, depth]`.
    pub query: Access<D, M>,
    /// Over the sizes of the cache.
    pub cache: Access<D, M>,
    /// The factor for the scores.
    pub scale: f64,
    /// Whether a token attends only to those up to itself.
    pub causal: bool,
    /// With `causal`, how many of these tokens, counted from the last, a token attends to; zero for all.
    pub window: usize,
    /// The bound that scores approach, or zero: they become `softcap * tanh(score / softcap)`.
    pub softcap: f64,
    /// What happens to the result.
    pub epilogue: Loop<D, M>,
}

/// Stores keys and values of tokens in a cache, after those of their sequences that are there already.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PagedStore<D, M = Slot> {
    /// Where they go.
    pub pages: Pages<D, M>,
    /// What is stored: each in another part of the cache.
    pub parts: Vec<StoredPart<D, M>>,
    /// Over the sizes of the cache.
    pub cache: Access<D, M>,
}

/// What is stored in a part of a cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoredPart<D, M = Slot> {
    /// The part.
    pub part: usize,
    /// Over `[tokens, heads, depth]`.
    pub source: Access<D, M>,
}

epilogue!(PagedAttention, k => [one(&k.heads), one(&k.pages.tokens), one(&k.pages.depth)]);
no_ending!(PagedStore);

impl<D, M> Pages<D, M> {
    fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Pages<E, N>> {
        Ok(Pages {
            sizes: to.array(&self.sizes)?,
            depth: to.size(&self.depth)?,
            tokens: to.size(&self.tokens)?,
            sequences: to.size(&self.sequences)?,
            ends: to.size(&self.ends)?,
            most: to.size(&self.most)?,
            starts: to.access(&self.starts)?,
            lengths: to.access(&self.lengths)?,
            table: to.access(&self.table)?,
            layer: to.access(&self.layer)?,
        })
    }

    fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        see(Walk::new(Role::Operand, &self.starts, &[one(&self.ends)]));
        see(Walk::new(Role::Operand, &self.lengths, &[one(&self.sequences)]));
        see(Walk::new(Role::Operand, &self.table, &[one(&self.sequences), one(&self.most)]));
        see(Walk::new(Role::Operand, &self.layer, &[]));
    }
}

impl<D, M> PagedAttention<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<PagedAttention<E, N>> {
        Ok(PagedAttention {
            pages: self.pages.map(to)?,
            heads: to.size(&self.heads)?,
            query: to.access(&self.query)?,
            cache: to.access(&self.cache)?,
            scale: self.scale,
            causal: self.causal,
            window: self.window,
            softcap: self.softcap,
            epilogue: to.ending(&self.epilogue)?,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        let Pages { sizes, tokens, depth, .. } = &self.pages;
        see(Walk::new(Role::Operand, &self.query, &[one(&self.heads), one(tokens), one(depth)]));
        see(Walk::new(Role::Operand, &self.cache, &[sizes]));
        self.pages.walk(see);
        self.epilogue.walk(see);
    }
}

impl<D, M> PagedStore<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<PagedStore<E, N>> {
        let parts = self
            .parts
            .iter()
            .map(|StoredPart { part, source }| Ok(StoredPart { part: *part, source: to.access(source)? }));
        let parts = parts.collect::<Result<_>>()?;
        Ok(PagedStore { pages: self.pages.map(to)?, parts, cache: to.access(&self.cache)? })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        let Pages { sizes, tokens, depth, .. } = &self.pages;
        for StoredPart { source, .. } in &self.parts {
            see(Walk::new(Role::Operand, source, &[one(tokens), one(&sizes[4]), one(depth)]));
        }
        self.pages.walk(see);
        see(Walk::new(Role::Result, &self.cache, &[sizes]));
    }
}

impl<D: Hash, M: Hash> Hash for PagedAttention<D, M> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.pages, &self.heads, &self.query, &self.cache).hash(state);
        (self.scale.to_bits(), self.causal, self.window, self.softcap.to_bits(), &self.epilogue).hash(state);
    }
}

impl<D: Display> Pages<D> {
    fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Pages { starts, lengths, table, layer, .. } = self;
        write!(f, "rows {starts} lengths {lengths} pages {table} layer {layer} ")
    }
}

impl<D: Display> PagedAttention<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} scale {} ", self.query, self.cache, self.scale)?;
        self.pages.write(f)?;
        if self.causal {
            f.write_str("causal ")?;
        }
        if self.window > 0 {
            write!(f, "window {} ", self.window)?;
        }
        if self.softcap > 0.0 {
            write!(f, "softcap {} ", self.softcap)?;
        }
        self.epilogue.write(f)
    }
}

impl<D: Display> PagedStore<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for StoredPart { part, source } in &self.parts {
            write!(f, "{source} into part {part} ")?;
        }
        write!(f, "of {} ", self.cache)?;
        self.pages.write(f)?;
        writeln!(f)
    }
}

/// The sizes that tables must fit.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The number of pages of a cache.
    pub pages: usize,
    /// The number of its layers.
    pub layers: usize,
    /// The number of tokens of a page.
    pub page: usize,
    /// The number of tokens of all sequences.
    pub tokens: usize,
    /// The number of sequences.
    pub sequences: usize,
    /// The most pages of a sequence.
    pub most: usize,
}

/// What tables say.
pub struct Tables<'a> {
    /// Where the tokens of a sequence start.
    pub start: &'a dyn Fn(usize) -> i64,
    /// How many tokens of a sequence are in the cache.
    pub cached: &'a dyn Fn(usize) -> i64,
    /// A page of a sequence.
    pub page: &'a dyn Fn(usize, usize) -> i64,
    /// The layer.
    pub layer: i64,
}

/// The sequences of an execution, their pages one after the other, and the layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The sequences.
    pub sequences: Vec<Sequence>,
    /// The pages of all of them.
    pub pages: Vec<usize>,
    /// The layer.
    pub layer: usize,
}

/// A sequence of an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Its first token.
    pub first: usize,
    /// The number of its tokens that are computed now.
    pub count: usize,
    /// The number of its tokens that are in the cache already.
    pub cached: usize,
    /// Which pages are for all of them.
    pub pages: Range<usize>,
}

impl Limits {
    /// Reads tables; an error if what they say does not fit. Each number is read once.
    pub fn place(&self, tables: &Tables) -> Result<Placed> {
        let Limits { pages, layers, page, tokens, sequences, most } = *self;
        let Some(layer) = usize::try_from(tables.layer).ok().filter(|&layer| layer < layers) else {
            bail!(index, "layer {} is out of range for a cache with {layers} layers", tables.layer);
        };
        let mut placed = Placed { sequences: Vec::new(), pages: Vec::new(), layer };
        crate::memory::try_reserve(&mut placed.sequences, sequences, "the sequences of a batch")?;
        let room = most.min(pages).saturating_mul(page);
        let mut first = self.offset(0, (tables.start)(0), 0)?;
        for sequence in 0..sequences {
            let end = self.offset(sequence + 1, (tables.start)(sequence + 1), first)?;
            let (count, cached) = (end - first, (tables.cached)(sequence));
            let fits = |&cached: &usize| cached.checked_add(count).is_some_and(|all| all <= room);
            let Some(cached) = usize::try_from(cached).ok().filter(fits) else {
                bail!(
                    index,
                    "sequence {sequence} has {cached} tokens in the cache and {count} new ones, but pages for {room}"
                );
            };
            let (begin, used) = (placed.pages.len(), (cached + count).div_ceil(page));
            crate::memory::try_reserve(&mut placed.pages, used, "the pages of a sequence")?;
            for column in 0..used {
                let own = (tables.page)(sequence, column);
                let Some(own) = usize::try_from(own).ok().filter(|&own| own < pages) else {
                    bail!(
                        index,
                        "page {own} of sequence {sequence} is out of range for a cache with {pages} pages"
                    );
                };
                placed.pages.push(own);
            }
            placed.sequences.push(Sequence { first, count, cached, pages: begin..begin + used });
            first = end;
        }
        match first == tokens {
            true => Ok(placed),
            false => bail!(index, "the last row offset is {first}, but there are {tokens} tokens"),
        }
    }

    /// A row offset, which may not be below the one before; the first one is zero.
    fn offset(&self, at: usize, offset: i64, before: usize) -> Result<usize> {
        let most = if at == 0 { 0 } else { self.tokens };
        match usize::try_from(offset).ok().filter(|offset| (before..=most).contains(offset)) {
            Some(offset) => Ok(offset),
            None => bail!(index, "row offset {offset} at {at} is not between {before} and {most}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(starts: &[i64], cached: &[i64], table: &[[i64; 2]], layer: i64) -> Result<Placed> {
        let limits = Limits { pages: 5, layers: 2, page: 4, tokens: 6, sequences: cached.len(), most: 2 };
        limits.place(&Tables {
            start: &|at| starts[at],
            cached: &|sequence| cached[sequence],
            page: &|sequence, column| table[sequence][column],
            layer,
        })
    }

    #[test]
    fn pages_are_found() {
        let placed = place(&[0, 1, 6], &[4, 0], &[[3, 1], [0, 4]], 1).unwrap();
        assert_eq!((placed.pages, placed.layer), (vec![3, 1, 0, 4], 1));
        let second = Sequence { first: 1, count: 5, cached: 0, pages: 2..4 };
        assert_eq!(placed.sequences, [Sequence { first: 0, count: 1, cached: 4, pages: 0..2 }, second]);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let message = |starts: &[i64], cached: &[i64], table: &[[i64; 2]], layer| {
            place(starts, cached, table, layer).unwrap_err().to_string()
        };
        let table = &[[3, 1], [0, 9]];
        assert!(message(&[0, 1, 6], &[0, 0], table, 0).contains("page 9 of sequence 1"));
        assert!(
            message(&[0, 1, 6], &[8, 0], table, 0)
                .contains("8 tokens in the cache and 1 new ones, but pages for 8")
        );
        assert!(message(&[0, 1, 6], &[-1, 0], table, 0).contains("-1 tokens"));
        assert!(message(&[0, 1, 6], &[i64::MAX, 0], table, 0).contains("pages for 8"));
        assert!(message(&[0, 4, 3], &[0, 0], table, 0).contains("row offset 3 at 2"));
        assert!(message(&[1, 4, 6], &[0, 0], table, 0).contains("row offset 1 at 0"));
        assert!(message(&[0, 2, 5], &[0, 0], &[[0, 0]; 2], 0).contains("the last row offset is 5"));
        assert!(message(&[0, 7, 6], &[0, 0], table, 0).contains("row offset 7 at 1"));
        assert!(message(&[0, 1, 6], &[0, 0], table, 2).contains("layer 2 is out of range"));
    }
}
