//! Caches of keys and values in pages.

use max_core::kernel::{Access, Kernel, Loop, PagedAttention, PagedStore, Pages, StoredPart};
use max_core::{Dim, Result, Shape, bail};
use max_graph::ir::Op;
use max_graph::{OpId, ValueId, ops};

use super::group::{Group, Work};
use super::{Lowering, NodeId, View};
use crate::layout::Layout;

impl Lowering<'_> {
    pub(super) fn paged_attention(
        &mut self,
        id: OpId,
        op: &Op,
        attention: &ops::paged::PagedAttention,
    ) -> Result<()> {
        let [query, cache, tables @ ..] = &op.operands[..] else {
            bail!(internal, "attention without a cache")
        };
        let device = self.device(op.results[0])?;
        let (query, cache) = (self.stored(*query, device)?, self.whole(id, *cache, device)?);
        let [heads, tokens, depth] = &query.layout.shape[..] else {
            bail!(internal, "queries of another rank")
        };
        let sizes = Shape::from(&self.node(cache).shape[..]);
        let pages = self.pages(op, tables, &sizes, [tokens, depth])?;
        let kernel = PagedAttention {
            pages,
            heads: heads.clone(),
            query: self.access(&query, &query.layout.shape),
            cache: self.flat(cache, sizes.iter())?,
            scale: attention.scale,
            causal: attention.causal,
            window: attention.window,
            softcap: attention.softcap,
            epilogue: Loop::empty(vec![]),
        };
        self.fused(id, op, kernel, None)
    }

    pub(super) fn paged_store(&mut self, id: OpId, op: &Op, part: usize) -> Result<()> {
        let [buffer, source, tables @ ..] = &op.operands[..] else {
            bail!(internal, "a store without a cache")
        };
        self.pass(*buffer)?;
        let device = self.device(*buffer)?;
        let source = self.stored(*source, device)?;
        let source = self.apart_from(*buffer, source)?;
        let [tokens, _, depth] = &source.layout.shape[..] else { bail!(internal, "tokens of another rank") };
        let sizes = self.array(*buffer)?.1;
        let pages = self.pages(op, tables, &sizes, [tokens, depth])?;
        let stored = StoredPart { part, source: self.access(&source, &source.layout.shape) };
        if let Some(number) = self.joined_store(*buffer, &source, &pages, part)? {
            if let Work::Kernel(Kernel::PagedStore(kernel)) = &mut self.groups[number].work {
                kernel.parts.push(stored);
            }
            self.read(number, source.node);
            self.note(number, id);
            return Ok(());
        }
        self.before_write(*buffer)?;
        let number = self.groups.len();
        let version = self.new_version(*buffer, number)?;
        let kernel = PagedStore {
            pages,
            parts: vec![stored],
            cache: self.access(&View { node: version, layout: Layout::contiguous(&sizes)? }, &sizes),
        };
        self.add_group(Group::new(device, Work::Kernel(kernel.into()), &[]));
        self.note(number, id);
        Ok(())
    }

    /// The group that wrote a buffer last, if it stores other parts for the same tokens and may store this one too: what
    /// is stored must be there before the group runs, and nothing may have seen the buffer since.
    fn joined_store(
        &mut self,
        buffer: ValueId,
        source: &View,
        pages: &Pages<Dim, NodeId>,
        part: usize,
    ) -> Result<Option<usize>> {
        let Some((number, is_seen)) = self.last_write(buffer)? else { return Ok(None) };
        let Work::Kernel(Kernel::PagedStore(kernel)) = &self.groups[number].work else { return Ok(None) };
        let alike = kernel.pages == *pages
            && kernel
                .parts
                .iter()
                .all(|own| own.part != part && own.source.dtype == self.node(source.node).dtype);
        let is_there = self.group_of(source.node).is_none_or(|writer| writer < number);
        Ok((self.options.fuse && alike && is_there && !is_seen && number >= self.barrier()).then_some(number))
    }

    /// Where the tokens of an op are in a cache of some sizes.
    fn pages(
        &mut self,
        op: &Op,
        tables: &[ValueId],
        sizes: &[Dim],
        [tokens, depth]: [&Dim; 2],
    ) -> Result<Pages<Dim, NodeId>> {
        let device = self.device(op.operands[0])?;
        let mut views = Vec::with_capacity(tables.len());
        for &table in tables {
            views.push(self.stored(table, device)?);
        }
        let accesses: Vec<Access<Dim, NodeId>> =
            views.iter().map(|view| self.access(view, &view.layout.shape)).collect();
        let (Ok([starts, lengths, table, layer]), Ok(sizes)) =
            (<[_; 4]>::try_from(accesses), <[Dim; 6]>::try_from(sizes.to_vec()))
        else {
            bail!(internal, "a cache of the shape {sizes:?} with {} tables", tables.len())
        };
        let (starts_shape, table_shape) = (&views[0].layout.shape, &views[2].layout.shape);
        Ok(Pages {
            sizes,
            depth: depth.clone(),
            tokens: tokens.clone(),
            sequences: table_shape[0].clone(),
            ends: starts_shape[0].clone(),
            most: table_shape[1].clone(),
            starts,
            lengths,
            table,
            layer,
        })
    }
}
