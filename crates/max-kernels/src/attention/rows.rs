//! Some rows of a group of heads against blocks of keys.

use std::ops::Range;

use max_core::{Bool, DType, Element, dispatch};

use super::PreparedAttention;
use super::context::Context;
use super::pack::{avoids_cache_conflicts, is_wide, pack_keys, prefetch_columns, prefetch_rows, staging};
use super::softmax::{GROUP, LINES, Mask, Scores, State, Weighing, bound, weigh};
use super::weight::Real;
use crate::Memory;
use crate::matmul::{DEPTH, Kernels, Matrix, ROW, THIN, next_rows, pack, pack_right};
use crate::scratch::{Pieces, bytes, pieces};

/// The most rows for which keys and values are read in place, since they are used only a few times.
pub(super) const FEW: usize = 64;

/// The padding of packed queries, so that they do not share cache sets.
const GAP: usize = 16;

/// Rows of a group of heads: those of its first head, then those of the next.
pub(super) struct Rows<'a, L: 'static> {
    pub(super) k: &'a PreparedAttention,
    pub(super) context: Context<'a>,
    pub(super) kernels: &'static Kernels<L>,
    pub(super) weighing: Weighing<L>,
    pub(super) memory: &'a [Memory<'a>],
    /// Which group of heads.
    pub(super) group: usize,
    pub(super) rows: Range<usize>,
    /// The keys and values of the group, if they are packed.
    pub(super) packed: Option<Packed<L>>,
}

/// The packed keys and values of a group, block after block; values only if they are not read in place.
#[derive(Clone, Copy)]
pub(super) struct Packed<L> {
    pub(super) keys: *mut L,
    pub(super) values: *mut L,
}

/// Scratch memory of a task.
pub(super) struct Room<L> {
    queries: Queries<L>,
    keys: *mut L,
    values: *mut L,
    staging: *mut L,
    scores: *mut L,
    masks: *mut L,
    decoded: *mut L,
}

/// The queries of rows, with unit stride along the depth: the distance between rows, and between the parts of the depth
/// that are multiplied at a time.
#[derive(Clone, Copy)]
struct Queries<L> {
    start: *const L,
    stride: isize,
    part: usize,
}

/// A block of values, with the distances between rows and between panels.
struct Values<L> {
    start: *const L,
    stride: isize,
    panel: usize,
    /// Whether whole rows are contiguous, rather than packed in panels.
    whole: bool,
}

/// The keys of a block that some rows see, for each row and for all of them.
struct VisibleKeys {
    each: [[usize; 2]; LINES],
    /// From the first, rounded down to a whole group, to the last; `None` if there are none.
    all: Option<[usize; 2]>,
}

impl<L: Real> Rows<'_, L> {
    /// Whether keys and values are read in place for these rows.
    fn few(&self) -> bool {
        self.rows.len() <= FEW && self.packed.is_none()
    }

    /// How many rows are computed together.
    pub(super) fn height(&self) -> usize {
        self.kernels.tiles.len()
    }

    /// The number of groups of rows that are computed together.
    pub(super) fn groups(&self) -> usize {
        self.rows.len().div_ceil(self.height())
    }

    /// The distance between the sums of rows.
    pub(super) fn stride(&self) -> usize {
        self.k.width.next_multiple_of(self.kernels.width)
    }

    /// The queries in place, if they need no widening, belong to one head and do not share cache sets.
    fn queries_in_place<T: Element<Lane = L>>(&self) -> Option<Queries<L>> {
        let (k, rows, context) = (self.k, &self.rows, self.context);
        let head = rows.start / context.queries;
        let query = k.query.at::<T>(self.memory, k.heads.index(self.group, head));
        let [stride, along] = query.strides;
        let fits = is_wide::<T>()
            && along == 1
            && head == (rows.end - 1) / context.queries
            && avoids_cache_conflicts::<T>(stride);
        fits.then(|| {
            let first = context.first + rows.start % context.queries;
            let start = query.part([first, 0], [0, 0]).start.cast();
            Queries { start, stride, part: DEPTH }
        })
    }

    /// The distance between packed queries.
    fn query_stride(&self) -> usize {
        self.k.depth.min(DEPTH) + GAP
    }

    /// The sizes of the pieces of scratch memory.
    fn sizes<Q: Element<Lane = L>, T: Element<Lane = L>>(&self) -> [usize; 7] {
        let block = self.context.keys.min(self.context.block).next_multiple_of(self.kernels.width);
        let depth = self.k.depth;
        [
            match self.queries_in_place::<Q>() {
                Some(_) => 0,
                None => self.query_stride() * self.rows.len() * depth.div_ceil(DEPTH),
            },
            match self.packed {
                Some(_) => 0,
                None if self.few() => self.kernels.width * depth.min(DEPTH),
                None => block * depth,
            },
            if self.packed.is_some() || self.direct::<T>() { 0 } else { block * self.stride() },
            if self.packed.is_some() { 0 } else { staging::<T>(self.kernels, depth.min(DEPTH)) },
            if self.few() { self.rows.len() * ROW } else { LINES * ROW },
            if self.k.mask.is_some() { LINES * ROW } else { 0 },
            if self.packed.is_some() { 0 } else { self.decoded() },
        ]
    }

    /// The bytes of scratch memory that blocks need.
    pub(super) fn bytes<Q: Element<Lane = L>, T: Element<Lane = L>>(&self) -> usize {
        self.sizes::<Q, T>().map(bytes::<L>).iter().sum()
    }

    /// Takes scratch memory and packs the queries of the rows.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, whose queries have type `Q`, and whose keys and values have type `T`.
    pub(super) unsafe fn room<Q: Element<Lane = L>, T: Element<Lane = L>>(
        &self,
        scratch: &mut Pieces,
    ) -> Room<L> {
        let [queries, keys, values, staging, scores, masks, decoded] =
            self.sizes::<Q, T>().map(|size| scratch.take::<L>(size));
        if let Some(queries) = self.queries_in_place::<Q>() {
            return Room { queries, keys, values, staging, scores, masks, decoded };
        }
        let (k, context, stride) = (self.k, self.context, self.query_stride());
        let part = stride * self.rows.len();
        let mut row = self.rows.start;
        while row < self.rows.end {
            let (head, first) = (row / context.queries, row % context.queries);
            let count = (context.queries - first).min(self.rows.end - row);
            let first = context.first + first;
            let query = k.query.at::<Q>(self.memory, k.heads.index(self.group, head));
            for (number, depth) in (0..k.depth).step_by(DEPTH).enumerate() {
                let deep = DEPTH.min(k.depth - depth);
                // SAFETY: guaranteed by the caller; scratch memory has the requested size.
                unsafe {
                    let to = queries.add(number * part + (row - self.rows.start) * stride);
                    pack(to, stride, query.part([first, depth], [count, deep]));
                }
            }
            row += count;
        }
        let queries = Queries { start: queries, stride: stride as isize, part };
        Room { queries, keys, values, staging, scores, masks, decoded }
    }

    /// The range of keys that a row sees: start and end.
    fn visible(&self, row: usize) -> [usize; 2] {
        self.context.visible(row % self.context.queries, self.k.causal, self.k.window)
    }

    /// The range of keys that any of the rows sees.
    pub(super) fn range(&self) -> Range<usize> {
        let visible = self.rows.clone().map(|row| self.visible(row));
        let visible = visible.filter(|[from, to]| from < to);
        visible
            .fold(None, |all: Option<Range<usize>>, [from, to]| match all {
                Some(all) => Some(all.start.min(from)..all.end.max(to)),
                None => Some(from..to),
            })
            .unwrap_or(0..0)
    }

    /// Computes the contribution of a block of keys to the rows, `height` at a time, with one callback that says where
    /// to write it and one that is called when it is complete.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, whose operands have type `T`; `room` was made for these rows, and the
    /// states have room for them.
    pub(super) unsafe fn block<T: Element<Lane = L>>(
        &self,
        room: &Room<L>,
        start: usize,
        part: impl Fn(usize) -> State<L>,
        done: impl Fn(usize, usize, State<L>),
    ) {
        let (k, height) = (self.k, self.height());
        let taken = self.context.taken(start);
        let few = self.few();
        // SAFETY: guaranteed by the caller.
        unsafe {
            let packed = self.packed.map(|packed| self.packed_block(packed, start));
            let (keys, values) = match packed {
                Some(block) if !self.direct::<T>() => (block.keys, self.packed_values(block.values, taken)),
                _ => {
                    let matrices = self.block_of::<T>(start, room.decoded);
                    if few {
                        self.scores_of_few(room, &matrices, start, taken);
                    } else if packed.is_none() {
                        self.pack_keys(matrices[0], room.keys, room.staging);
                    }
                    (packed.map_or(room.keys, |block| block.keys), self.values(room, matrices[1]))
                }
            };
            for group in 0..self.groups() {
                let first = group * height;
                let rows = height.min(self.rows.len() - first);
                let part = part(group);
                let visible = self.visible_keys(first, rows, start, taken);
                let scores = room.scores.add(if few { first * ROW } else { 0 });
                let (Some(all), Some(mask)) = (visible.all, self.mask(room, first, rows, start, taken))
                else {
                    part.clear(rows, 1);
                    done(group, rows, part);
                    continue;
                };
                if !few {
                    let panel = taken.next_multiple_of(self.kernels.width);
                    for depth in (0..k.depth.max(1)).step_by(DEPTH) {
                        self.scores(room, [first, rows], depth, (keys.add(depth * panel), all), scores);
                    }
                }
                if k.softcap > 0.0 {
                    bound(scores, rows, all, k.scale, k.softcap);
                }
                weigh(&Scores {
                    scores,
                    rows,
                    keys: all,
                    visible: visible.each,
                    mask,
                    weighing: self.weighing,
                    state: part,
                });
                self.product(rows, all, scores, &values, part);
                done(group, rows, part);
            }
        }
    }

    /// The keys of a block that some rows see.
    fn visible_keys(&self, first: usize, rows: usize, start: usize, taken: usize) -> VisibleKeys {
        let mut visible = VisibleKeys { each: [[0; 2]; LINES], all: None };
        for (i, each) in visible.each[..rows].iter_mut().enumerate() {
            let row = self.rows.start + first + i;
            *each = self.visible(row).map(|key| key.saturating_sub(start).min(taken));
            if each[0] < each[1] {
                let whole = each[0] / GROUP * GROUP;
                let all = visible.all.get_or_insert([whole, each[1]]);
                *all = [all[0].min(whole), all[1].max(each[1])];
            }
        }
        visible
    }

    /// The dot products of some rows with the visible range of packed keys, from a depth on.
    ///
    /// # Safety
    ///
    /// As for `block`; the keys are packed from this depth on, and there is room for the scores.
    unsafe fn scores(
        &self,
        room: &Room<L>,
        [first, rows]: [usize; 2],
        depth: usize,
        (keys, visible): (*const L, [usize; 2]),
        scores: *mut L,
    ) {
        let width = self.kernels.width;
        let Queries { start, stride, part } = room.queries;
        let deep = DEPTH.min(self.k.depth - depth);
        // SAFETY: guaranteed by the caller.
        unsafe {
            let queries = start.add(depth / DEPTH * part).offset(first as isize * stride);
            for panel in visible[0] / width..visible[1].div_ceil(width) {
                let right = (keys.add(panel * deep * width), width as isize);
                let to = (scores.add(panel * width), ROW as isize);
                let add = (depth > 0).then_some((to.0.cast_const(), to.1));
                self.kernels.tiles[rows - 1](deep, (queries, stride), right, add, to, next_rows(right));
            }
        }
    }

    /// The dot products of few rows with the keys of a block, which are packed one panel at a time.
    ///
    /// # Safety
    ///
    /// As for `block`.
    unsafe fn scores_of_few<T: Element<Lane = L>>(
        &self,
        room: &Room<L>,
        &[key, value]: &[Matrix<T>; 2],
        start: usize,
        taken: usize,
    ) {
        let (k, width, height) = (self.k, self.kernels.width, self.height());
        let visible = self.range();
        let visible = [visible.start, visible.end].map(|key| key.saturating_sub(start).min(taken));
        for panel in
            (visible[0] / GROUP * GROUP / width..visible[1].div_ceil(width)).map(|panel| panel * width)
        {
            // Few rows are bound by memory: prefetch the next keys, and the values that are needed after the scores.
            let next = panel + width;
            prefetch_columns(key.part([0, next], [k.depth, width.min(taken.saturating_sub(next))]));
            prefetch_rows(value.part([panel, 0], [width.min(taken - panel), k.width]));
            for depth in (0..k.depth.max(1)).step_by(DEPTH) {
                let size = [DEPTH.min(k.depth - depth), width.min(taken - panel)];
                // SAFETY: guaranteed by the caller.
                unsafe {
                    pack_keys(self.kernels, room.keys, room.staging, key.part([depth, panel], size));
                    for first in (0..self.rows.len()).step_by(height) {
                        let rows = height.min(self.rows.len() - first);
                        let scores = room.scores.add(first * ROW + panel);
                        self.scores(room, [first, rows], depth, (room.keys, [0, width]), scores);
                    }
                }
            }
        }
    }

    /// Whether values are read in place: they need no widening, panels are whole and rows do not share cache sets.
    fn direct<T: Element<Lane = L>>(&self) -> bool {
        let [down, along] = self.value_strides();
        let apart = avoids_cache_conflicts::<T>(down) || self.rows.len() <= self.height();
        let whole = self.k.width.is_multiple_of(self.kernels.width);
        is_wide::<T>() && !self.decodes() && along == 1 && whole && apart
    }

    /// The values of a block, from a matrix of them.
    ///
    /// # Safety
    ///
    /// As for `block`.
    unsafe fn values<T: Element<Lane = L>>(&self, room: &Room<L>, value: Matrix<T>) -> Values<L> {
        if self.direct::<T>() {
            let (start, stride, panel) = (value.start.cast(), value.strides[0], self.kernels.width);
            return Values { start, stride, panel, whole: true };
        }
        // SAFETY: guaranteed by the caller.
        unsafe { pack_right(self.kernels, room.values, value) };
        self.packed_values(room.values, value.size[0])
    }

    /// The values of a block that are packed.
    fn packed_values(&self, start: *const L, taken: usize) -> Values<L> {
        let width = self.kernels.width;
        Values { start, stride: width as isize, panel: taken * width, whole: false }
    }

    /// Where the keys and the values of a block are packed: each block has room for whole panels.
    fn packed_block(&self, packed: Packed<L>, start: usize) -> Packed<L> {
        let before = start / self.context.block * self.panels();
        Packed {
            keys: packed.keys.wrapping_add(before * self.k.depth),
            values: packed.values.wrapping_add(before * self.stride()),
        }
    }

    /// The number of keys of a block in whole panels.
    fn panels(&self) -> usize {
        self.context.block.next_multiple_of(self.kernels.width)
    }

    /// Packs a block of keys.
    ///
    /// # Safety
    ///
    /// The matrix can be read; there is room for the keys, and for [`staging`] elements.
    unsafe fn pack_keys<T: Element<Lane = L>>(&self, key: Matrix<T>, to: *mut L, staging: *mut L) {
        let [depths, taken] = key.size;
        for depth in (0..depths).step_by(DEPTH) {
            let deep = DEPTH.min(depths - depth);
            // SAFETY: guaranteed by the caller.
            unsafe {
                let to = to.add(depth * taken.next_multiple_of(self.kernels.width));
                pack_keys(self.kernels, to, staging, key.part([depth, 0], [deep, taken]));
            }
        }
    }

    /// How many elements the packed keys and the packed values of a group have.
    pub(super) fn packed_sizes<T: Element<Lane = L>>(&self) -> [usize; 2] {
        // Operands that repeat one element may have any size.
        let keys = self.context.keys.div_ceil(self.context.block).saturating_mul(self.panels());
        let values = if self.direct::<T>() { 0 } else { self.stride() };
        [self.k.depth, values].map(|size| keys.saturating_mul(size).min(1 << 48))
    }

    /// Packs the keys and the values of a block for all rows of the group.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, whose keys and values have type `T`, unless they are decoded to it; there is
    /// room for all keys and values, and no other task packs this block.
    pub(super) unsafe fn pack<T: Element<Lane = L>>(&self, start: usize, to: Packed<L>) {
        let sizes = [staging::<T>(self.kernels, self.k.depth.min(DEPTH)), self.decoded()];
        let to = self.packed_block(to, start);
        pieces(sizes.map(bytes::<L>).iter().sum(), |scratch| {
            let [staging, decoded] = sizes.map(|size| scratch.take::<L>(size));
            // SAFETY: guaranteed by the caller; scratch memory has the requested size.
            unsafe {
                let [key, value] = self.block_of::<T>(start, decoded);
                self.pack_keys(key, to.keys, staging);
                if !self.direct::<T>() {
                    pack_right(self.kernels, to.values, value);
                }
            }
        });
    }

    /// The weighted sums of the values of a block, for some rows.
    ///
    /// # Safety
    ///
    /// As for `block`.
    unsafe fn product(
        &self,
        rows: usize,
        visible: [usize; 2],
        weights: *const L,
        values: &Values<L>,
        to: State<L>,
    ) {
        let (depth, width) = (visible[1] - visible[0], self.kernels.width);
        // SAFETY: guaranteed by the caller.
        unsafe {
            let weights = weights.add(visible[0]);
            let start = values.start.offset(visible[0] as isize * values.stride);
            if values.whole && rows <= THIN {
                let (weights, values) = ((weights, ROW as isize), (start, values.stride));
                let to = (to.sums, to.stride as isize);
                return self.kernels.thin[rows - 1](depth, weights, values, self.k.width, to);
            }
            for panel in 0..self.k.width.div_ceil(width) {
                let right = (start.add(panel * values.panel), values.stride);
                let to = (to.sums.add(panel * width), to.stride as isize);
                self.kernels.tiles[rows - 1](
                    depth,
                    (weights, ROW as isize),
                    right,
                    None,
                    to,
                    next_rows(right),
                );
            }
        }
    }

    /// The mask for some rows and a block of keys, packed; `None` if it hides all of them.
    ///
    /// # Safety
    ///
    /// As for `block`.
    unsafe fn mask(
        &self,
        room: &Room<L>,
        first: usize,
        rows: usize,
        start: usize,
        taken: usize,
    ) -> Option<Mask<L>> {
        let Some((mask, dtype)) = &self.k.mask else { return Some(Mask::None) };
        let keeps = *dtype == DType::Bool;
        let hidden = if keeps { L::zeroed() } else { L::splat(f64::NEG_INFINITY) };
        let mut all_hidden = true;
        for i in 0..rows {
            let row = self.rows.start + first + i;
            let index = self.k.heads.index(self.group, row / self.context.queries);
            let (at, size) = ([row % self.context.queries, start], [1, taken]);
            // SAFETY: guaranteed by the caller; the mask's elements widen to the type of scores, which `new` has
            // checked.
            unsafe {
                let to = room.masks.add(i * ROW);
                if keeps {
                    let Matrix { start, strides, .. } = mask.at::<Bool>(self.memory, index).part(at, size);
                    for j in 0..taken {
                        let kept = start.offset(j as isize * strides[1]).read();
                        to.add(j).write(L::splat(f64::from(u8::from(kept.get()))));
                    }
                } else {
                    dispatch!(*dtype, M => {
                        pack(to.cast(), ROW, mask.at::<M>(self.memory, index).part(at, size));
                    });
                }
                if all_hidden {
                    let row = std::slice::from_raw_parts(to, taken);
                    all_hidden = row.iter().all(|&x| x == hidden);
                }
            }
        }
        (!all_hidden).then_some(if keeps { Mask::Keep(room.masks) } else { Mask::Add(room.masks) })
    }
}
