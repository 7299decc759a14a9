//! Caches of keys and values in pages: where the tokens of sequences are, and how they are stored.
//!
//! What tables say is read once and checked, and nothing else is used afterwards, because another thread may change them
//! meanwhile.

use max_core::kernel::{Access, Limits, PagedStore, Pages, Placed, StoredPart, Tables};
use max_core::{DType, Element, QuantizationEncoding, Result, bail, bf16, f16};

use crate::attention::Context;
use crate::indexed::Along;
use crate::matmul::count;
use crate::{Memory, Pool};

/// Roughly how many elements a task stores.
const TASK: usize = 1 << 15;

/// The elements and bytes of a block of Q8_0: a scale and a byte for each element.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 34;

/// A cache, and the tables that say what is where.
#[derive(Debug)]
pub(crate) struct Cache {
    sizes: [usize; 6],
    tokens: usize,
    sequences: usize,
    most: usize,
    is_encoded: bool,
    cache: Along<6>,
    starts: Along<1>,
    lengths: Along<1>,
    table: Along<2>,
    layer: Along<0>,
}

impl Cache {
    pub(crate) fn new(pages: &Pages<i64>, cache: &Access<i64>) -> Result<Cache> {
        let Pages { sizes, depth, tokens, sequences, ends, most, starts, lengths, table, layer } = pages;
        let is_encoded = cache.dtype == DType::UInt8;
        let length = if is_encoded { encoded_length(*depth)? } else { *depth };
        let integers = [starts, lengths, table, layer].iter().all(|access| access.dtype == DType::Int64);
        if !integers || sizes[5] != length || *ends != sequences + 1 {
            bail!(internal, "a cache of the sizes {sizes:?} for {sequences} sequences of the depth {depth}");
        }
        // The elements of a head are beside each other.
        if cache.strides.last() != Some(&1) && length > 1 {
            bail!(internal, "a cache with the strides {:?}", cache.strides);
        }
        if sizes[3] < 1 {
            bail!(value, "pages must have room for a token; they have the size {}", sizes[3]);
        }
        if !sizes.contains(&0) {
            count(sizes)?;
        }
        count(&[*tokens, *sequences, 1])?;
        Ok(Cache {
            sizes: sizes.map(|size| size as usize),
            tokens: *tokens as usize,
            sequences: *sequences as usize,
            most: *most as usize,
            is_encoded,
            cache: Along::new(cache, [0, 1, 2, 3, 4, 5]),
            starts: Along::new(starts, [0]),
            lengths: Along::new(lengths, [0]),
            table: Along::new(table, [0, 1]),
            layer: Along::new(layer, []),
        })
    }

    /// Whether it has blocks of Q8_0.
    pub(crate) fn is_encoded(&self) -> bool {
        self.is_encoded
    }

    /// The number of tokens of a page.
    pub(crate) fn page(&self) -> usize {
        self.sizes[3]
    }

    /// The distance between the tokens of a page.
    pub(crate) fn token_stride(&self) -> isize {
        self.cache.strides[3]
    }

    /// The address of a token of a context, for a part and a head.
    pub(crate) fn at(
        &self,
        memory: &[Memory],
        context: &Context,
        part: usize,
        token: usize,
        head: usize,
    ) -> *mut u8 {
        let page = context.pages[token / self.page()];
        self.cache.at(memory, [page, part, context.layer, token % self.page(), head, 0])
    }

    /// Reads and checks the tables.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn read(&self, memory: &[Memory]) -> Result<Placed> {
        // SAFETY: the caller guarantees that the tables can be read; they may be unaligned.
        let number = |place: *mut u8| unsafe { place.cast::<i64>().read_unaligned() };
        let [pages, _, layers, page, ..] = self.sizes;
        let tables = Tables {
            start: &|at| number(self.starts.at(memory, [at])),
            cached: &|sequence| number(self.lengths.at(memory, [sequence])),
            page: &|sequence, column| number(self.table.at(memory, [sequence, column])),
            layer: number(self.layer.at(memory, [])),
        };
        let (tokens, sequences, most) = (self.tokens, self.sequences, self.most);
        Limits { pages, layers, page, tokens, sequences, most }.place(&tables)
    }
}

/// The bytes of a row of Q8_0 blocks.
fn encoded_length(depth: i64) -> Result<i64> {
    match depth % BLOCK as i64 {
        0 => Ok(depth / BLOCK as i64 * BLOCK_BYTES as i64),
        _ => bail!(value, "a Q8_0 cache needs heads of a multiple of {BLOCK} elements; got {depth}"),
    }
}

/// Decodes rows of Q8_0 blocks, which are some bytes apart, to contiguous floats.
///
/// # Safety
///
/// The rows can be read, and there is room for their elements.
pub(crate) unsafe fn decode_q8_0(from: *const u8, stride: isize, [rows, columns]: [usize; 2], to: *mut f32) {
    for row in 0..rows {
        for block in 0..columns / BLOCK {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let from = from.offset(row as isize * stride).add(block * BLOCK_BYTES);
                let scale = f16::from_bits(u16::from_le_bytes(from.cast::<[u8; 2]>().read())).to_f32();
                let codes = from.add(2).cast::<[i8; BLOCK]>().read();
                let to = to.add(row * columns + block * BLOCK).cast::<[f32; BLOCK]>();
                to.write_unaligned(codes.map(|code| scale * f32::from(code)));
            }
        }
    }
}

/// A store that is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedStore {
    cache: Cache,
    depth: usize,
    /// Where the rows of each part are.
    parts: Vec<(usize, Along<3>)>,
    store: Store,
}

/// Stores a row of floats with a stride at an address.
type Store = unsafe fn((*const f32, isize), usize, *mut u8) -> Result<()>;

impl PreparedStore {
    pub(crate) fn new(k: &PagedStore<i64>) -> Result<PreparedStore> {
        let cache = Cache::new(&k.pages, &k.cache)?;
        let mut parts = Vec::with_capacity(k.parts.len());
        for StoredPart { part, source } in &k.parts {
            if source.dtype != DType::Float32 {
                bail!(
                    not_implemented,
                    "a store of {} in a cache on a host; cast it to float32",
                    source.dtype
                );
            }
            if *part >= cache.sizes[1] {
                bail!(internal, "a store to part {part} of {:?}", cache.sizes);
            }
            parts.push((*part, Along::new(source, [0, 1, 2])));
        }
        let store: Store = match k.cache.dtype {
            DType::Float32 => store::<f32>,
            DType::Float16 => store::<f16>,
            DType::BFloat16 => store::<bf16>,
            DType::UInt8 => store_q8_0,
            other => {
                bail!(value, "a cache has float32, float16, bfloat16 or Q8_0 blocks; got {other}")
            }
        };
        Ok(PreparedStore { cache, depth: k.pages.depth as usize, parts, store })
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        let placed = unsafe { self.cache.read(memory)? };
        let heads = self.cache.sizes[4];
        if heads == 0 || self.depth == 0 {
            return Ok(());
        }
        let failed = std::sync::Mutex::new(Ok(()));
        let some = (TASK / (heads * self.depth)).max(1);
        let works =
            placed.sequences.iter().flat_map(|sequence| self.parts.iter().map(move |of| (sequence, of)));
        for (sequence, (part, source)) in works {
            let context = Context {
                first: sequence.first,
                queries: sequence.count,
                keys: sequence.cached + sequence.count,
                block: self.cache.page(),
                pages: &placed.pages[sequence.pages.clone()],
                layer: placed.layer,
            };
            pool.run(sequence.count.div_ceil(some), &|task| {
                for token in task * some..sequence.count.min((task + 1) * some) {
                    for head in 0..heads {
                        let from = source.at(memory, [sequence.first + token, head, 0]).cast_const();
                        let to = self.cache.at(memory, &context, *part, sequence.cached + token, head);
                        // SAFETY: the caller guarantees the memory, and the pages are inside of the cache. Sequences that
                        // share a page that both write to are the user's mistake, and leave the bytes of one of them.
                        let stored =
                            unsafe { (self.store)((from.cast(), source.strides[2]), self.depth, to) };
                        if stored.is_err()
                            && let Ok(mut failed) = failed.lock()
                        {
                            *failed = stored;
                        }
                    }
                }
            });
        }
        failed.into_inner().unwrap_or(Ok(()))
    }
}

/// # Safety
///
/// The row can be read, and there is room for it.
unsafe fn store<T: Element>(from: (*const f32, isize), count: usize, to: *mut u8) -> Result<()> {
    let to = to.cast::<T>();
    for i in 0..count {
        // SAFETY: guaranteed by the caller. Elements need not be aligned.
        unsafe {
            let value = from.0.offset(i as isize * from.1).read_unaligned();
            to.add(i).write_unaligned(T::from_double(f64::from(value)));
        }
    }
    Ok(())
}

/// # Safety
///
/// The row can be read, and there is room for its blocks.
unsafe fn store_q8_0(from: (*const f32, isize), count: usize, to: *mut u8) -> Result<()> {
    let mut values = [0.0f32; BLOCK];
    for block in 0..count / BLOCK {
        for (i, value) in values.iter_mut().enumerate() {
            // SAFETY: guaranteed by the caller. Elements need not be aligned.
            *value = unsafe { from.0.offset((block * BLOCK + i) as isize * from.1).read_unaligned() };
        }
        let encoded = QuantizationEncoding::Q8_0.quantize(&values)?;
        // SAFETY: as above.
        unsafe { to.add(block * BLOCK_BYTES).copy_from_nonoverlapping(encoded.as_ptr(), BLOCK_BYTES) };
    }
    Ok(())
}

#[cfg(test)]
mod tests;
