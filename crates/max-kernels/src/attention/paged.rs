//! Attention to the tokens of sequences in a cache.

use max_core::kernel::{PagedAttention, Sequence};
use max_core::{DType, Element, Result, bail, dispatch_small};

use super::context::{Context, Source};
use super::rows::{FEW, Rows};
use super::{ENOUGH, Heads, PreparedAttention, Run, attend};
use crate::matmul::{DEPTH, Ending, Micro, Operand, count};
use crate::pages::Cache;
use crate::{Memory, Pool};

/// An attention to a cache that is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedPagedAttention(PreparedAttention);

impl PreparedPagedAttention {
    pub(crate) fn new(k: &PagedAttention<i64>) -> Result<PreparedPagedAttention> {
        let cache = Cache::new(&k.pages, &k.cache)?;
        let [_, parts, _, page, key_heads, _] = k.pages.sizes;
        let (tokens, depth) = (k.pages.tokens, k.pages.depth);
        if k.query.dtype != DType::Float32 {
            bail!(not_implemented, "attention of {} queries on a host; cast them to float32", k.query.dtype);
        }
        if parts != 2 {
            bail!(value, "attention needs a cache of keys and values, which are 2 parts; got {parts}");
        }
        if key_heads < 1 || k.heads % key_heads != 0 {
            bail!(value, "{} heads do not share {key_heads} heads of keys and values equally", k.heads);
        }
        if page > DEPTH as i64 && page % DEPTH as i64 != 0 {
            bail!(
                value,
                "attention needs pages of at most {DEPTH} tokens, or a multiple of that; got {page}"
            );
        }
        count(&[k.heads, tokens, depth])?;
        let (groups, members) = (key_heads as usize, (k.heads / key_heads) as usize);
        Ok(PreparedPagedAttention(PreparedAttention {
            heads: Heads { groups, members, axes: [vec![(groups, members)], vec![(members, 1)]] },
            queries: tokens as usize,
            keys: 0,
            depth: depth as usize,
            width: depth as usize,
            query: Operand::new(&k.query, &[k.heads], [tokens, depth]),
            source: Source::Cache(cache),
            mask: None,
            scale: k.scale,
            causal: k.causal,
            window: k.window,
            softcap: k.softcap,
            ending: Ending::new(&k.epilogue, DType::Float32)?,
            run: floats(k.cache.dtype)?,
        }))
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.0.run(memory, pool) }
    }
}

/// The function for a dtype of the cache.
fn floats(dtype: DType) -> Result<Run> {
    Ok(dispatch_small!(dtype, N => run::<N>,
        DType::Float32 | DType::UInt8 => run::<f32>,
        DType::Float16 => run::<max_core::f16>,
        DType::BFloat16 => run::<max_core::bf16>,
        _ => bail!(value, "attention needs a cache of float32, float16, bfloat16 or Q8_0 blocks; got {dtype}"),
    ))
}

/// # Safety
///
/// The memory was checked for the kernel, whose keys and values have type `T`, unless they are decoded to it.
unsafe fn run<T: Element<Lane = f32>>(k: &PreparedAttention, memory: &[Memory], pool: &Pool) -> Result<()> {
    let Source::Cache(cache) = &k.source else { bail!(internal, "paged attention without a cache") };
    // SAFETY: guaranteed by the caller.
    let placed = unsafe { cache.read(memory)? };
    let context = |sequence: &Sequence| Context {
        first: sequence.first,
        queries: sequence.count,
        keys: sequence.cached + sequence.count,
        block: cache.page().min(DEPTH),
        pages: &placed.pages[sequence.pages.clone()],
        layer: placed.layer,
    };
    let is_small = |sequence: &&Sequence| k.heads.members * sequence.count <= FEW;
    let small: Vec<Context> = placed.sequences.iter().filter(is_small).map(context).collect();
    let groups = k.heads.groups;
    let together = small.len() * groups >= ENOUGH;
    if together {
        let (kernels, weighing) = (f32::kernels(), k.weighing::<f32>());
        pool.run(small.len() * groups, &|task| {
            let (context, group) = (small[task / groups], task % groups);
            let rows = 0..k.heads.members * context.queries;
            let rows = Rows { k, context, kernels, weighing, memory, group, rows, packed: None };
            if !rows.rows.is_empty() && k.width > 0 {
                // SAFETY: the caller guarantees the memory; no other task writes these rows.
                unsafe { rows.run::<f32, T>() };
            }
        });
    }
    for sequence in placed.sequences.iter().filter(|sequence| !together || !is_small(sequence)) {
        // SAFETY: guaranteed by the caller.
        unsafe { attend::<f32, T>(k, context(sequence), memory, pool) };
    }
    Ok(())
}
