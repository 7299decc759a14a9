//! The cache of keys and values: pages that sequences take and give back.

use max_core::{DType, QuantizationEncoding, Result, bail};
use max_driver::{Buffer, Device};

use super::config::DecoderConfig;

/// How a cache is made.
#[derive(Clone, Copy, Debug)]
pub struct CacheConfig {
    /// The number of tokens of a page.
    pub page_size: usize,
    /// The number of tokens of all pages.
    pub tokens: usize,
    /// The dtype of its elements, or uint8 for blocks of Q8_0.
    pub dtype: DType,
}

/// The pages of a model.
pub struct Cache {
    buffer: Buffer,
    page_size: usize,
    free: Vec<u32>,
    pages: usize,
}

/// The pages of a sequence, and how many of its tokens are in them.
#[derive(Debug, Default)]
pub struct Pages {
    pub(super) pages: Vec<u32>,
    pub(super) length: usize,
}

impl Pages {
    /// The number of tokens that are in the cache.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Forgets all tokens but some of the first ones; their pages stay.
    pub fn shorten(&mut self, length: usize) {
        self.length = self.length.min(length);
    }
}

impl Cache {
    /// An empty cache.
    pub fn new(model: &DecoderConfig, config: CacheConfig, device: &Device) -> Result<Cache> {
        let CacheConfig { page_size, tokens, dtype } = config;
        if page_size == 0 || !page_size.is_power_of_two() {
            bail!(value, "the page size of a cache must be a power of two; got {page_size}");
        }
        let length = match dtype {
            DType::UInt8 => {
                let block = QuantizationEncoding::Q8_0.block_parameters()?;
                if !model.head_dim.is_multiple_of(block.elements_per_block) {
                    bail!(
                        value,
                        "a Q8_0 cache needs heads of a multiple of 32 elements; got {}",
                        model.head_dim
                    );
                }
                model.head_dim / block.elements_per_block * block.block_size
            }
            _ => model.head_dim,
        };
        let pages = tokens.div_ceil(page_size);
        let shape = [pages, 2, model.layers.len(), page_size, model.key_heads, length];
        let bytes = shape.iter().try_fold(dtype.size_in_bytes(), |bytes, &size| bytes.checked_mul(size));
        let (Some(_), Ok(count)) = (bytes, u32::try_from(pages)) else {
            bail!(memory, "a cache of {tokens} tokens is too large");
        };
        let buffer = Buffer::zeros(dtype, &shape, device)
            .map_err(|e| e.context(format!("for a cache of {tokens} tokens")))?;
        Ok(Cache { buffer, page_size, free: (0..count).rev().collect(), pages })
    }

    /// Its memory.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The number of tokens that it has room for.
    pub fn tokens(&self) -> usize {
        self.pages * self.page_size
    }

    /// Takes pages, until a sequence has room for some more tokens.
    pub fn reserve(&mut self, sequence: &mut Pages, more: usize) -> Result<()> {
        let needed = (sequence.length + more).div_ceil(self.page_size).saturating_sub(sequence.pages.len());
        if needed > self.free.len() {
            bail!(
                memory,
                "the cache is full: {more} more tokens need {needed} pages of {} tokens, and {} of {} are free",
                self.page_size,
                self.free.len(),
                self.pages
            );
        }
        let rest = self.free.len() - needed;
        sequence.pages.extend(self.free.drain(rest..).rev());
        Ok(())
    }

    /// Gives the pages of a sequence back.
    pub fn release(&mut self, sequence: Pages) {
        self.free.extend(sequence.pages.into_iter().rev());
    }
}
