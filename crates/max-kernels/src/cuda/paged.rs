//! Caches of keys and values in pages on a GPU: what is stored in them, and attention to them.
//!
//! Caches of 16-bit floats are read by tensor cores, of warpgroups (`flash.rs`) or of warps (`tensor.cu`): many tokens of a
//! sequence by a block per tile of them, few by blocks that have a part of the keys each. Every other cache is read row by row
//! (`rows.cu`).

use max_core::kernel::{Access, PagedAttention, PagedStore, Pages, StoredPart};
use max_core::{DType, Result, bail};
use max_driver::cuda::Source;

use super::attention::in_pieces;
use super::flash::{self, Shape};
use super::matmul::fused::{self, FusedEpilogue};
use super::matmul::row_major;
use super::text::typed;
use super::{Address, Call, Param, Plan, PlannedLaunch, SCRATCH};

/// The rows of a product on tensor cores, and the tokens and keys of a tile.
const ROWS: i64 = 16;
const TILE: i64 = 64;

/// The rows of a product of warpgroups, and the tokens whose keys are copied together.
const GROUP_ROWS: i64 = 64;
const COPIED_TOKENS: i64 = 16;

/// How many parts of the keys are combined at a time.
const COMBINED: i64 = 32;

/// The longest keys that fit the registers of tensor cores.
const MOST_DEPTH: i64 = 256;

/// The most pages of a sequence whose numbers fit shared memory beside the tiles.
const MOST_PAGES: i64 = 1 << 14;

/// The most blocks of a grid along its second axis.
const MOST_HEADS: i64 = 65_535;

/// The blocks that a multiprocessor has at a time when keys are divided.
const BLOCKS: i64 = 3;

/// The elements and bytes of a block of Q8_0.
const BLOCK: i64 = 32;
const BLOCK_BYTES: i64 = 34;

impl Plan {
    /// Adds a store.
    pub(super) fn paged_store(&mut self, k: &PagedStore<i64>) -> Result<()> {
        let cache = Cache::new(&k.pages, &k.cache)?;
        let rows = k.pages.tokens.saturating_mul(cache.heads);
        if rows <= 0 || cache.depth == 0 {
            return Ok(());
        }
        // A row of the grid has one part, and functions know two.
        k.parts.chunks(2).try_for_each(|parts| self.store_parts(k, &cache, parts, rows))
    }

    fn store_parts(
        &mut self,
        k: &PagedStore<i64>,
        cache: &Cache,
        parts: &[StoredPart<i64>],
        rows: i64,
    ) -> Result<()> {
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Ok(()) };
        let known = k.pages.sizes[1];
        let wrong = |of: &StoredPart<i64>| of.part as i64 >= known || of.source.dtype != first.source.dtype;
        if !is_read(first.source.dtype) || wrong(first) || wrong(last) {
            bail!(
                internal,
                "a store of {} to parts {} and {} of {known}",
                first.source.dtype,
                first.part,
                last.part
            );
        }
        let [page, part, layer, token, head, _] = cache.strides;
        let to = |of: &StoredPart<i64>| {
            Address::of(&Access { offset: k.cache.offset + of.part as i64 * part, ..k.cache.clone() })
        };
        let mut params = Vec::new();
        for of in [first, last] {
            params.extend([Address::of(&of.source), to(of)].map(Param::Address));
            params.extend(strides(&[&of.source.strides]));
        }
        params.extend(cache.tables(&k.pages));
        params.extend([cache.heads, page, layer, token, head].map(Param::Number));
        self.launches.push(PlannedLaunch::Function(Call {
            source: store_source(cache, first.source.dtype),
            grid: [(rows as u64).div_ceil(8).min(1 << 16) as u32, parts.len() as u32, 1],
            block: [256, 1, 1],
            shared: 0,
            params,
        }));
        Ok(())
    }

    /// Adds attention.
    pub(super) fn paged_attention(&mut self, k: &PagedAttention<i64>) -> Result<()> {
        let cache = Cache::new(&k.pages, &k.cache)?;
        if !is_read(k.query.dtype) || cache.heads < 1 || k.heads % cache.heads != 0 {
            bail!(internal, "attention of {} heads of {} to {}", k.heads, k.query.dtype, cache.heads);
        }
        if k.epilogue.shape.contains(&0) {
            return Ok(());
        }
        let direct = fused::read(&k.epilogue)
            .filter(|fused| {
                fused.is_scaled_store() && !fused.is_scaled() && fused.store.dtype != DType::Float64
            })
            .map(|FusedEpilogue { store, .. }| store);
        let out = match direct {
            Some(out) => out,
            None => {
                let (strides, count) = row_major(&k.epilogue.shape)?;
                let offset = self.scratch(DType::Float32, count)?;
                Access { slot: SCRATCH, dtype: DType::Float32, offset, strides }
            }
        };
        let form = self.form(k, &cache);
        match form {
            Form::Rows => self.by_rows(k, &cache, &out),
            Form::Tiles(shape) => self.by_tiles(k, &cache, shape, &out),
            Form::Splits(shape, splits) => self.by_splits(k, &cache, (shape, splits), &out)?,
        }
        if out.slot == SCRATCH { self.epilogue(&k.epilogue, out) } else { Ok(()) }
    }

    /// How attention is computed.
    fn form(&self, k: &PagedAttention<i64>, cache: &Cache) -> Form {
        let Pages { tokens, sequences, most, sizes, .. } = &k.pages;
        let whole = |stride: &i64| stride % 8 == 0;
        let can = self.gpu.compute_capability() >= (8, 0)
            && matches!(cache.dtype, DType::Float16 | DType::BFloat16)
            && cache.depth % 8 == 0
            && cache.depth <= MOST_DEPTH
            && *most <= MOST_PAGES
            && sizes[0] <= i64::from(i32::MAX)
            && k.heads <= MOST_HEADS
            && whole(&k.cache.offset)
            && cache.strides[..5].iter().all(whole);
        if !can {
            return Form::Rows;
        }
        let shared = k.heads / cache.heads;
        let by_groups = flash::fits(self.gpu, cache.depth, cache.depth)
            && flash::keeps_order(k.scale)
            && sizes[3] % COPIED_TOKENS == 0
            && most.saturating_mul(sizes[3]) <= flash::MOST_POSITIONS
            && tokens.saturating_mul(k.heads) <= flash::MOST_POSITIONS;
        // Warps have tiles of long rows only where shared memory has room for them.
        if !by_groups && shared_bytes(k, cache, None) as usize > self.gpu.shared_bytes() {
            return Form::Rows;
        }
        let rows = if by_groups { GROUP_ROWS } else { ROWS };
        if tokens.saturating_mul(shared) > sequences.saturating_mul(rows) || *sequences > 1 << 15 {
            return Form::Tiles(by_groups.then(|| Shape::of_many_rows(cache.depth, cache.depth)));
        }
        let all = most.saturating_mul(sizes[3]).div_euclid(TILE) + 1;
        let items = (cache.heads * sequences).max(1);
        let multiprocessors = i64::from(self.gpu.multiprocessors());
        let shape = by_groups.then(|| Shape::of_few_rows(cache.depth, cache.depth, items > multiprocessors));
        let wanted = shape.map_or(BLOCKS * multiprocessors, |shape| shape.blocks(self.gpu));
        let splits = (wanted / items).clamp(1, all);
        Form::Splits(shape, if splits > COMBINED { splits / COMBINED * COMBINED } else { splits })
    }

    fn by_rows(&mut self, k: &PagedAttention<i64>, cache: &Cache, out: &Access<i64>) {
        let rows = k.pages.tokens.saturating_mul(k.heads);
        let mut params = [&k.query, &k.cache, out].map(|access| Param::Address(Address::of(access))).to_vec();
        params.extend(cache.tables(&k.pages));
        params.extend([Param::Number(k.heads), Param::Number(k.heads / cache.heads)]);
        params.extend([Param::Bits(k.scale.to_bits()), Param::Number(i64::from(k.causal))]);
        params.extend([Param::Number(window(k)), Param::Bits(k.softcap.to_bits())]);
        params.extend(strides(&[&k.query.strides, &out.strides, &cache.strides[..5]]));
        self.launches.push(PlannedLaunch::Function(Call {
            source: rows_source(k, cache, out.dtype),
            grid: [(rows as u64).div_ceil(4).min(1 << 20) as u32, 1, 1],
            block: [128, 1, 1],
            shared: 0,
            params,
        }));
    }

    fn by_tiles(&mut self, k: &PagedAttention<i64>, cache: &Cache, shape: Option<Shape>, out: &Access<i64>) {
        // Each sequence may have a tile that is not full.
        let Pages { tokens, sequences, .. } = &k.pages;
        let (grid, block) = match shape {
            Some(shape) => {
                let tiles = tokens * (k.heads / cache.heads) / shape.rows() + sequences;
                let blocks = tiles.saturating_mul(cache.heads).min(shape.blocks(self.gpu));
                ([blocks as u32, 1, 1], shape.threads())
            }
            None => {
                let tiles = tokens / TILE + sequences;
                ([tiles.min(i64::from(i32::MAX)) as u32, k.heads as u32, 1], 128)
            }
        };
        let params = tensor_params(k, cache, Address::of(out), Param::Number(0), (1, &out.strides));
        self.launches.push(PlannedLaunch::Function(Call {
            source: tensor_source(k, cache, shape, out, false),
            grid,
            block: [block, 1, 1],
            shared: shared_bytes(k, cache, shape),
            params,
        }));
    }

    /// By warpgroups with tiles of a shape or by warps, in so many parts.
    fn by_splits(
        &mut self,
        k: &PagedAttention<i64>,
        cache: &Cache,
        (shape, splits): (Option<Shape>, i64),
        out: &Access<i64>,
    ) -> Result<()> {
        let (_, found) = row_major(&[k.pages.tokens, k.heads, splits])?;
        let (_, elements) = row_major(&[found, cache.depth])?;
        let offset = self.scratch(DType::Float32, elements)?;
        let parts = Access { slot: SCRATCH, dtype: DType::Float32, offset, strides: vec![0; 3] };
        let weights = self.scratch(DType::Float32, found.saturating_mul(2))? * 4;
        let weights = Param::Address(Address { slot: SCRATCH, bytes: weights });
        let sequences = k.pages.sequences;
        let (grid, block) = match shape {
            Some(shape) => ([(splits * cache.heads * sequences) as u32, 1, 1], shape.threads()),
            None => ([splits as u32, cache.heads as u32, sequences as u32], 128),
        };
        self.launches.push(PlannedLaunch::Function(Call {
            source: tensor_source(k, cache, shape, &parts, true),
            grid,
            block: [block, 1, 1],
            shared: shared_bytes(k, cache, shape),
            params: tensor_params(k, cache, Address::of(&parts), weights, (splits, &parts.strides)),
        }));
        let mut params = vec![Param::Address(Address::of(&parts)), weights, Param::Address(Address::of(out))];
        params.extend([k.heads, splits].map(Param::Number));
        params.extend(strides(&[&out.strides]));
        self.launches.push(PlannedLaunch::Function(Call {
            source: combine_source(cache.depth, out.dtype),
            grid: [k.pages.tokens as u32, k.heads as u32, 1],
            block: [128, 1, 1],
            shared: 0,
            params,
        }));
        Ok(())
    }
}

/// How attention is computed: row by row, by tiles of tokens, or by so many parts of the keys. Warpgroups have tiles of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Rows,
    Tiles(Option<Shape>),
    Splits(Option<Shape>, i64),
}

/// What functions know about a cache.
struct Cache {
    dtype: DType,
    depth: i64,
    heads: i64,
    strides: [i64; 6],
}

impl Cache {
    fn new(pages: &Pages<i64>, access: &Access<i64>) -> Result<Cache> {
        let Pages { sizes, depth, tokens, sequences, ends, starts, lengths, table, layer, .. } = pages;
        let integers = [starts, lengths, table, layer].iter().all(|access| access.dtype == DType::Int64);
        let length = match access.dtype {
            DType::UInt8 if depth % BLOCK == 0 => depth / BLOCK * BLOCK_BYTES,
            DType::UInt8 => -1,
            _ => *depth,
        };
        let known = matches!(access.dtype, DType::Float32 | DType::Float16 | DType::BFloat16 | DType::UInt8);
        let strides = <[i64; 6]>::try_from(access.strides.as_slice());
        let (true, Ok(strides)) = (known && integers, strides) else {
            bail!(internal, "a cache of {} with tables of other dtypes", access.dtype)
        };
        if sizes[5] != length || *ends != sequences + 1 || (strides[5] != 1 && length > 1) {
            bail!(internal, "a cache of the sizes {sizes:?} for {sequences} sequences of the depth {depth}");
        }
        if sizes[3] < 1 {
            bail!(value, "pages must have room for a token; they have the size {}", sizes[3]);
        }
        row_major(&[*tokens, *sequences, 1])?;
        // Functions look for the sequence of a token, so there must be one.
        if *sequences == 0 && *tokens > 0 {
            bail!(index, "there are {tokens} tokens, but no sequence that they belong to");
        }
        Ok(Cache { dtype: access.dtype, depth: *depth, heads: sizes[4], strides })
    }

    /// The parameters that tables have in functions.
    fn tables(&self, pages: &Pages<i64>) -> Vec<Param> {
        let Pages { sizes, tokens, sequences, most, starts, lengths, table, layer, .. } = pages;
        let mut params =
            [starts, lengths, table, layer].map(|access| Param::Address(Address::of(access))).to_vec();
        params.push(Param::Report);
        params.extend(strides(&[&starts.strides, &lengths.strides, &table.strides]));
        let page = sizes[3];
        let shift = if page.count_ones() == 1 { i64::from(page.trailing_zeros()) } else { -1 };
        params.extend([sizes[0], sizes[2], page, shift, *tokens, *sequences, *most].map(Param::Number));
        params
    }

    fn is_encoded(&self) -> bool {
        self.dtype == DType::UInt8
    }
}

/// Whether functions read tokens in a dtype.
fn is_read(dtype: DType) -> bool {
    dtype == DType::Float32 || dtype.is_half()
}

fn strides(all: &[&[i64]]) -> Vec<Param> {
    all.iter().copied().flatten().map(|&stride| Param::Number(stride)).collect()
}

/// The window, clamped to a length that no number of keys reaches.
fn window(k: &PagedAttention<i64>) -> i64 {
    k.window.min(1 << 40) as i64
}

/// The tiles of keys and values, twice, and the pages of a sequence; what warpgroups need with tiles of a shape.
fn shared_bytes(k: &PagedAttention<i64>, cache: &Cache, shape: Option<Shape>) -> u32 {
    if let Some(shape) = shape {
        return shape.shared();
    }
    let row = (cache.depth as u32).next_multiple_of(16) + 8;
    4 * TILE as u32 * row * 2 + k.pages.most as u32 * 4
}

/// The parameters of `tensor.cu` and `flash/paged.cuh`.
fn tensor_params(
    k: &PagedAttention<i64>,
    cache: &Cache,
    out: Address,
    weights: Param,
    (splits, out_strides): (i64, &[i64]),
) -> Vec<Param> {
    let mut params = [&k.query, &k.cache].map(|access| Param::Address(Address::of(access))).to_vec();
    params.extend([Param::Address(out), weights]);
    params.extend(cache.tables(&k.pages));
    params.extend([Param::Number(k.heads), Param::Number(k.heads / cache.heads)]);
    params.extend([
        Param::Bits(k.scale.to_bits()),
        Param::Number(window(k)),
        Param::Bits(k.softcap.to_bits()),
    ]);
    params.push(Param::Number(splits));
    params.extend(strides(&[&k.query.strides, out_strides, &cache.strides[..5]]));
    params
}

/// The texts that all functions begin with.
const TABLES: &str = concat!(include_str!("report.cuh"), include_str!("paged/tables.cuh"));

fn store_source(cache: &Cache, from: DType) -> Source {
    let (depth, encoded) = (cache.depth.to_string(), u8::from(cache.is_encoded()).to_string());
    let name = format!("paged_store_{from}_{}_{depth}", cache.dtype);
    let words = [("DEPTH", depth.as_str()), ("ENCODED", &encoded)];
    let dtypes = [("FLOAT", DType::Float32), ("IN", cache.dtype), ("SOURCE", from)];
    typed(&name, &dtypes, &words, &[TABLES, include_str!("paged/store.cu")].concat())
}

fn rows_source(k: &PagedAttention<i64>, cache: &Cache, out: DType) -> Source {
    let (depth, encoded) = (cache.depth.to_string(), u8::from(cache.is_encoded()).to_string());
    let query = k.query.dtype;
    let name = format!("paged_attention_rows_{query}_{}_{out}_{depth}", cache.dtype);
    let words = [("DEPTH", depth.as_str()), ("ENCODED", &encoded)];
    let dtypes = [("FLOAT", DType::Float32), ("IN", cache.dtype), ("OUT", out), ("QUERY", k.query.dtype)];
    typed(&name, &dtypes, &words, &[TABLES, include_str!("paged/rows.cu")].concat())
}

/// The text of `flash.cu` with tiles of a shape, or of `tensor.cu`.
fn tensor_source(
    k: &PagedAttention<i64>,
    cache: &Cache,
    shape: Option<Shape>,
    out: &Access<i64>,
    split: bool,
) -> Source {
    let half = cache.dtype == DType::Float16;
    let whole_pieces = k.query.dtype == cache.dtype && in_pieces(&k.query, 8);
    let flags = [
        ("CAUSAL", k.causal),
        ("WINDOW", k.causal && k.window > 0),
        ("SOFTCAP", k.softcap > 0.0),
        ("SPLIT", split),
        ("WHOLE_PIECES", shape.is_some() && whole_pieces),
        ("PAIRS", shape.is_some() && in_pieces(out, 2)),
    ];
    let digits: String = flags.iter().map(|(_, on)| if *on { '1' } else { '0' }).collect();
    let dtypes =
        [("FLOAT", DType::Float32), ("IN", cache.dtype), ("OUT", out.dtype), ("QUERY", k.query.dtype)];
    let name = format!("{digits}_{}_{}_{}", k.query.dtype, cache.dtype, out.dtype);
    if let Some(shape) = shape {
        let text = [TABLES, &shape.text(half, &flags, include_str!("flash/paged.cuh"))].concat();
        return typed(&format!("paged_flash_{name}_{}", shape.name()), &dtypes, &[("MASK", "0")], &text);
    }
    let flags = flags.map(|(word, on)| (word, if on { "1" } else { "0" }));
    let depth = cache.depth.to_string();
    let words = [&flags[..], &[("HALF", if half { "1" } else { "0" }), ("DEPTH", depth.as_str())]].concat();
    let text = [TABLES, include_str!("tensor.cuh"), include_str!("paged/tensor.cu")].concat();
    typed(&format!("paged_attention_{name}_{depth}"), &dtypes, &words, &text)
}

fn combine_source(depth: i64, out: DType) -> Source {
    let words = [("DEPTH", depth.to_string())];
    let words = words.each_ref().map(|(word, meaning)| (*word, meaning.as_str()));
    let dtypes = [("FLOAT", DType::Float32), ("OUT", out)];
    typed(&format!("paged_combine_{out}_{depth}"), &dtypes, &words, include_str!("paged/combine.cu"))
}

#[cfg(test)]
mod tests {
    use max_core::kernel::{Instr, Loop, Reg, Slot};

    use super::*;
    use crate::cuda::nvrtc;

    fn access(slot: u32, dtype: DType, strides: &[i64]) -> Access<i64> {
        Access { slot: Slot(slot), dtype, offset: 0, strides: strides.to_vec() }
    }

    /// Attention of 8 heads to 2 heads of a cache with two layers and pages of 4 tokens.
    fn attention(dtype: DType, depth: i64) -> PagedAttention<i64> {
        let length = if dtype == DType::UInt8 { depth / BLOCK * BLOCK_BYTES } else { depth };
        let sizes = [5, 2, 2, 4, 2, length];
        let (strides, _) = row_major(&sizes).unwrap();
        let integers = |slot: u32, strides: &[i64]| access(slot, DType::Int64, strides);
        let code = vec![Instr::Product(DType::Float32), Instr::Store(0, Reg(0))];
        let out = access(7, DType::Float32, &[6 * depth, depth, 1]);
        PagedAttention {
            pages: Pages {
                sizes,
                depth,
                tokens: 6,
                sequences: 2,
                ends: 3,
                most: 3,
                starts: integers(2, &[1]),
                lengths: integers(3, &[1]),
                table: integers(4, &[3, 1]),
                layer: integers(5, &[]),
            },
            heads: 8,
            query: access(0, DType::Float32, &[6 * depth, depth, 1]),
            cache: access(1, dtype, &strides),
            scale: 0.5,
            causal: true,
            window: 0,
            softcap: 0.0,
            epilogue: Loop { shape: vec![8, 6, depth], reduce: None, accesses: vec![out], code },
        }
    }

    #[test]
    fn functions_compile() {
        let (mut any, mut tensor, mut groups) = (Vec::new(), Vec::new(), Vec::new());
        for dtype in [DType::Float32, DType::Float16, DType::BFloat16, DType::UInt8] {
            let k = attention(dtype, 96);
            let cache = Cache::new(&k.pages, &k.cache).unwrap();
            let from = if dtype == DType::UInt8 { DType::Float16 } else { dtype };
            any.extend([store_source(&cache, from), rows_source(&k, &cache, DType::BFloat16)]);
            any.push(combine_source(96, from));
        }
        for (dtype, depth) in [(DType::Float16, 64), (DType::BFloat16, 40), (DType::BFloat16, 256)] {
            for (window, softcap) in [(0, 0.0), (3, 2.0)] {
                let k = PagedAttention { window, softcap, ..attention(dtype, depth) };
                let cache = Cache::new(&k.pages, &k.cache).unwrap();
                let out = k.epilogue.accesses[0].clone();
                tensor.extend([false, true].map(|split| tensor_source(&k, &cache, None, &out, split)));
                let many = Shape::of_many_rows(depth, depth);
                let few = [false, true].map(|two| Shape::of_few_rows(depth, depth, two));
                groups.push(tensor_source(&k, &cache, Some(many), &out, false));
                groups.extend(few.map(|shape| tensor_source(&k, &cache, Some(shape), &out, true)));
                let like_cache = PagedAttention { query: Access { dtype, ..k.query.clone() }, ..k };
                let out = Access { dtype, ..out };
                groups.push(tensor_source(&like_cache, &cache, Some(many), &out, false));
            }
        }
        nvrtc::check(&any);
        nvrtc::check_for(&tensor, &["compute_80", "sm_90a"]);
        nvrtc::check_for(&groups, &["sm_90a"]);
    }

    #[test]
    fn tokens_belong_to_sequences() {
        let mut k = attention(DType::Float32, 8);
        (k.pages.sequences, k.pages.ends) = (0, 1);
        let error = Cache::new(&k.pages, &k.cache).err().unwrap();
        assert!(error.message().contains("6 tokens, but no sequence"), "{error}");
        k.pages.tokens = 0;
        assert!(Cache::new(&k.pages, &k.cache).is_ok());
    }

    #[test]
    fn blocks_of_bytes_must_be_whole() {
        let mut k = attention(DType::UInt8, 64);
        assert!(Cache::new(&k.pages, &k.cache).is_ok());
        k.pages.depth = 48;
        assert!(Cache::new(&k.pages, &k.cache).is_err());
    }
}
