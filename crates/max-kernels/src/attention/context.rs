//! What rows attend to.

use max_core::Element;

use super::rows::Rows;
use super::weight::Real;
use crate::matmul::{Matrix, Operand};
use crate::pages::{Cache, decode_q8_0};

/// Queries and the keys they see, in blocks of equal size from the first key on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    /// The first query, among those of the kernel, and their number.
    pub(crate) first: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    /// How many keys there are in a block.
    pub(crate) block: usize,
    /// The pages that the keys are in, and the layer of these, if they are in a cache.
    pub(crate) pages: &'a [usize],
    pub(crate) layer: usize,
}

/// Where keys and values are.
#[derive(Debug)]
pub(super) enum Source {
    Operands {
        /// Transposed, so that its columns are the keys.
        key: Operand,
        value: Operand,
    },
    Cache(Cache),
}

impl Context<'_> {
    /// The number of keys in the block that starts with a key.
    pub(super) fn taken(&self, start: usize) -> usize {
        self.block.min(self.keys - start)
    }

    /// The range of keys that a query sees: start and end.
    pub(super) fn visible(&self, query: usize, causal: bool, window: usize) -> [usize; 2] {
        if !causal {
            return [0, self.keys];
        }
        let end = (query + 1 + self.keys).saturating_sub(self.queries);
        let start = if window > 0 { end.saturating_sub(window) } else { 0 };
        [start, end]
    }
}

impl<L: Real> Rows<'_, L> {
    /// Whether keys and values are decoded before they are used.
    pub(super) fn decodes(&self) -> bool {
        matches!(&self.k.source, Source::Cache(cache) if cache.is_encoded())
    }

    /// The number of elements of a decoded block of keys and of values.
    pub(super) fn decoded(&self) -> usize {
        if self.decodes() {
            self.context.keys.min(self.context.block) * (self.k.depth + self.k.width)
        } else {
            0
        }
    }

    /// The distances between values and between their elements.
    pub(super) fn value_strides(&self) -> [isize; 2] {
        match &self.k.source {
            Source::Operands { value, .. } => value.at::<u8>(self.memory, 0).strides,
            Source::Cache(cache) => [cache.token_stride(), 1],
        }
    }

    /// A block of keys, transposed, and of values, as they are or decoded.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, whose keys and values have type `T`, unless they are decoded to it; there is room
    /// for a [`decoded`](Rows::decoded) block.
    pub(super) unsafe fn block_of<T: Element<Lane = L>>(
        &self,
        start: usize,
        decoded: *mut L,
    ) -> [Matrix<T>; 2] {
        let (k, taken) = (self.k, self.context.taken(start));
        let cache = match &k.source {
            Source::Operands { key, value } => {
                let index = k.heads.index(self.group, 0);
                let (key, value) = (key.at::<T>(self.memory, index), value.at::<T>(self.memory, index));
                return [key.part([0, start], [k.depth, taken]), value.part([start, 0], [taken, k.width])];
            }
            Source::Cache(cache) => cache,
        };
        let from = [0, 1].map(|part| cache.at(self.memory, &self.context, part, start, self.group));
        let matrices = [0, 1].map(|part| {
            let size = [taken, if part == 0 { k.depth } else { k.width }];
            if !cache.is_encoded() {
                return Matrix { start: from[part].cast::<T>(), strides: [cache.token_stride(), 1], size };
            }
            let to = decoded.wrapping_add(part * taken * k.depth);
            // SAFETY: the rows are in the cache; there is room for them, of floats that are as wide as lanes.
            unsafe { decode_q8_0(from[part], cache.token_stride(), size, to.cast()) };
            Matrix { start: to.cast_const().cast::<T>(), strides: [size[1] as isize, 1], size }
        });
        let [Matrix { start, strides: [down, along], size: [keys, depth] }, values] = matrices;
        [Matrix { start, strides: [along, down], size: [depth, keys] }, values]
    }
}
