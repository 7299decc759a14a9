//! Runs products with quantized weights.
//!
//! The rows of the left operand are quantized first, block by block along the depth, by all threads; weights that are floats
//! get them as they are. Then each task multiplies some rows by some panels of the weights: constant weights are packed as
//! panels once for all executions, others by the task itself. Which rows and columns a task has never shows in results.

mod activations;
mod panel;
#[cfg(test)]
mod tests;
mod tile;

use std::ops::Range;

use max_core::kernel::{Access, Experts, Projection, QMatmul, Slot};
use max_core::quantization::Storage;
use max_core::{DType, Element, QuantizationEncoding, Result, bail, bf16, dispatch, f16};

use crate::matmul::fold::fold_axes;
use crate::matmul::{Cut, Ending, Matrix, Operand, Place, Places, count, pack};
use crate::scratch::{Line, bytes, list, pieces};
use crate::{Memory, Pool};
use activations::{HEIGHTS, Rows, TALL, height};
use panel::{DEPTH, Layout, Source, WIDTH};
use tile::{Tile, float_block, float_kernels, kernels};

/// Roughly how many rows a task computes, more if it packs the weights itself, and how many panels if there are so many rows.
const ROWS: usize = 96;
const OWN_ROWS: usize = 4096;
const PANELS: usize = 8;

/// The most rows that are computed together, so that weights are read once.
const FEW_ROWS: usize = TALL;

/// Roughly how many bytes of weights a task of few rows reads, and the most panels it has.
const FEW_BYTES: usize = 256 << 10;
const FEW_PANELS: usize = 64;

/// The minimum number of tasks per thread, so that no thread waits long for the last one.
const TASKS: usize = 4;

/// Roughly how many elements of the left operand are in scratch memory at a time.
const SLAB: usize = 1 << 24;

/// How many elements are quantized by a task.
const QUANTIZED: usize = 1 << 15;

/// Products of a left operand that are ready to run.
#[derive(Debug)]
pub(crate) struct PreparedQMatmul {
    batch: usize,
    /// The rows and the depth.
    size: [usize; 2],
    left: Operand,
    widen: Widen,
    /// Whether rows are quantized, and not left as floats.
    integers: bool,
    /// For how many heights there are kernels.
    heights: usize,
    groups: Option<Groups>,
    all: Vec<Product>,
}

/// Widens a row: from memory with a stride, to a place.
type Widen = unsafe fn(Matrix<u8>, *mut f32);

/// Which rows have which weights.
#[derive(Debug)]
struct Groups {
    matrices: usize,
    count: usize,
    starts: Integers,
    ids: Integers,
}

/// A vector of integers.
#[derive(Debug)]
struct Integers {
    places: Places,
    dtype: DType,
}

/// The product with one of the weights.
#[derive(Debug)]
struct Product {
    storage: Storage,
    columns: usize,
    matrices: usize,
    codes: Weights,
    scales: Option<Weights>,
    form: Form,
    /// The bytes of a panel.
    panel: usize,
    ending: Ending,
}

/// Codes or scales: matrices in memory.
#[derive(Debug)]
struct Weights {
    slot: Slot,
    operand: Operand,
    place: Place,
}

/// How panels are packed and multiplied.
#[derive(Debug)]
enum Form {
    Integers(&'static Layout, &'static [Tile]),
    /// Of a type, with or without scales.
    Floats(DType, bool, &'static [Tile]),
}

/// Consecutive rows of a matrix of the left operand that are multiplied by one matrix of weights, or that give zeros.
#[derive(Clone, Debug)]
struct Segment {
    index: usize,
    rows: Range<usize>,
    matrix: Option<usize>,
}

impl PreparedQMatmul {
    pub(crate) fn new(kernel: &QMatmul<i64>) -> Result<PreparedQMatmul> {
        let mut k = kernel.clone();
        let experts = k.experts.take();
        if experts.is_none() {
            let epilogues = k.all.iter_mut().map(|projection| &mut projection.epilogue).collect();
            fold_axes(&mut k.batch, &mut k.m, &mut k.lhs, None, epilogues);
        } else if !k.batch.is_empty() {
            bail!(internal, "groups of rows in a batch");
        }
        let matrices = experts.as_ref().map_or(1, |experts| experts.count);
        let sizes = [&k.batch[..], &[k.m, k.k, matrices]].concat();
        count(&sizes)?;
        let integers = k.all.iter().all(|projection| projection.storage.is_integers());
        let several = experts.is_some().then_some(matrices);
        let all = k.all.iter().map(|projection| Product::new(projection, &k, several, integers));
        let all = all.collect::<Result<Vec<Product>>>()?;
        Ok(PreparedQMatmul {
            batch: count(&k.batch)?,
            size: [k.m as usize, k.k as usize],
            left: Operand::new(&k.lhs, &k.batch, [k.m, k.k]),
            widen: match k.lhs.dtype {
                DType::Float32 => widen::<f32>,
                DType::Float16 => widen::<f16>,
                DType::BFloat16 => widen::<bf16>,
                other => bail!(internal, "a quantized product of {other}"),
            },
            integers,
            heights: all.iter().map(|product| product.form.tiles().len()).min().unwrap_or(1),
            groups: experts.map(|experts| Groups::new(&experts)),
            all,
        })
    }

    /// Runs them.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        let [m, depth] = self.size;
        if m == 0 || self.batch == 0 {
            return Ok(());
        }
        let most = (SLAB / depth.max(1)).next_multiple_of(TALL);
        if self.groups.is_none() && self.batch == 1 && m <= most {
            // SAFETY: guaranteed by the caller.
            unsafe { self.round(&[Segment { index: 0, rows: 0..m, matrix: Some(0) }], memory, pool) };
            return Ok(());
        }
        let segments = match &self.groups {
            // SAFETY: guaranteed by the caller.
            Some(groups) => unsafe { groups.segments(memory, m)? },
            None => {
                let mut segments = list(self.batch)?;
                segments.extend((0..self.batch).map(|index| Segment { index, rows: 0..m, matrix: Some(0) }));
                segments
            }
        };
        let (mut round, mut rows) = (list::<Segment>(0)?, 0);
        for segment in segments {
            let mut rest = segment.rows.clone();
            while !rest.is_empty() {
                let taken = rest.len().min(most - rows);
                round.push(Segment { rows: rest.start..rest.start + taken, ..segment.clone() });
                (rest.start, rows) = (rest.start + taken, rows + taken);
                if rows == most {
                    // SAFETY: guaranteed by the caller.
                    unsafe { self.round(&round, memory, pool) };
                    round.clear();
                    rows = 0;
                }
            }
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.round(&round, memory, pool) };
        Ok(())
    }

    /// The blocks along the depth.
    fn blocks(&self) -> usize {
        self.size[1].div_ceil(DEPTH)
    }

    /// Computes some rows.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, and the segments are inside it.
    unsafe fn round(&self, segments: &[Segment], memory: &[Memory], pool: &Pool) {
        let rows: usize = segments.iter().map(|segment| segment.rows.len()).sum();
        if rows == 0 {
            return;
        }
        let blocks = rows * self.blocks();
        let (elements, scales) = match self.integers {
            true => (bytes::<u8>(blocks * DEPTH), blocks),
            false => (bytes::<f32>(blocks * DEPTH), 0),
        };
        let total = elements + 2 * bytes::<f32>(scales) + bytes::<f32>(2 * scales);
        pieces(total, |pieces| {
            let left = Rows {
                elements: pieces.take::<u8>(elements),
                scales: pieces.take(scales),
                sums: [pieces.take(scales), pieces.take(2 * scales)],
                size: if self.integers { 1 } else { size_of::<f32>() },
                scaled: false,
            };
            // SAFETY: guaranteed by the caller; there is room for the rows.
            unsafe { self.quantize(segments, left, memory, pool) };
            let constants = |product: &Product| product.constant(self.blocks(), memory, pool);
            for product in &self.all {
                let packed = constants(product);
                let (heights, blocks) = (self.heights, self.blocks());
                let run = Running { product, left, heights, packed, blocks, memory };
                // SAFETY: guaranteed by the caller; the rows are quantized.
                unsafe { run.segments(segments, pool) };
            }
        });
    }

    /// Quantizes the rows of segments, one after the other.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, the segments are inside it, and there is room for the rows.
    unsafe fn quantize(&self, segments: &[Segment], to: Rows, memory: &[Memory], pool: &Pool) {
        let tiles = |segment: &Segment| segment.rows.len().div_ceil(TALL);
        let (depth, blocks) = (self.size[1], self.blocks());
        let count: usize = segments.iter().map(tiles).sum();
        let run = |mut tile: usize| {
            let mut first = 0;
            for segment in segments {
                if tile < tiles(segment) {
                    let start = segment.rows.start + tile * TALL;
                    let rows = start..segment.rows.end.min(start + TALL);
                    // SAFETY: guaranteed by the caller; nobody else has these rows.
                    return unsafe {
                        self.quantize_rows(segment.index, rows, to.at(first + tile * TALL, blocks), memory);
                    };
                }
                (tile, first) = (tile - tiles(segment), first + segment.rows.len());
            }
        };
        if count == 1 || count * TALL * depth <= QUANTIZED {
            (0..count).for_each(run)
        } else {
            pool.run(count, &run)
        }
    }

    /// Quantizes up to [`TALL`] rows, as tiles of the heights that kernels have.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, the rows are inside it, and there is room for them.
    unsafe fn quantize_rows(&self, index: usize, rows: Range<usize>, to: Rows, memory: &[Memory]) {
        let (depth, blocks) = (self.size[1], self.blocks());
        let matrix = self.left.at::<u8>(memory, index);
        pieces(bytes::<f32>(blocks * DEPTH), |pieces| {
            let wide = pieces.take::<f32>(blocks * DEPTH);
            let mut row = 0;
            while row < rows.len() {
                let tall = HEIGHTS[height(rows.len() - row, self.heights)];
                let tile = to.at(row, blocks);
                for at in 0..tall {
                    // SAFETY: guaranteed by the caller; elements after the depth are zeros.
                    unsafe {
                        let element = self.left.element() as isize;
                        let distance = (rows.start + row + at) as isize * matrix.strides[0] * element;
                        let start = matrix.start.wrapping_offset(distance);
                        (self.widen)(Matrix { start, size: [1, depth], ..matrix }, wide);
                        wide.add(depth).write_bytes(0, blocks * DEPTH - depth);
                        match self.integers {
                            true => tile.quantize(wide, blocks, at, tall),
                            false => tile.spread(wide, blocks, at, tall),
                        }
                    }
                }
                row += tall;
            }
        });
    }
}

/// Widens a row whose address and stride are those of elements of a type.
///
/// # Safety
///
/// The row can be read, and there is room for it.
unsafe fn widen<T: Element<Lane = f32>>(row: Matrix<u8>, to: *mut f32) {
    let Matrix { start, strides, size } = row;
    // SAFETY: guaranteed by the caller.
    unsafe { pack(to, size[1], Matrix { start: start.cast::<T>(), strides, size }) }
}

impl Groups {
    fn new(experts: &Experts<i64>) -> Groups {
        let integers = |access: &Access<i64>, size: i64| Integers {
            places: Places::new(access, &[size]),
            dtype: access.dtype,
        };
        Groups {
            matrices: experts.count as usize,
            count: experts.groups as usize,
            starts: integers(&experts.starts, experts.ends),
            ids: integers(&experts.ids, experts.groups),
        }
    }

    /// The segments of all rows.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    unsafe fn segments(&self, memory: &[Memory], rows: usize) -> Result<Vec<Segment>> {
        let mut segments = list(self.count + 2)?;
        let mut add = |rows: Range<usize>, matrix| segments.push(Segment { index: 0, rows, matrix });
        // SAFETY: guaranteed by the caller: there is one start more than there are groups.
        let mut start = unsafe { self.starts.at(memory, 0) };
        let mut end = 0;
        for group in 0..self.count {
            // SAFETY: as above.
            let (next, id) = unsafe { (self.starts.at(memory, group + 1), self.ids.at(memory, group)) };
            let bounds = usize::try_from(start).ok().zip(usize::try_from(next).ok());
            let matrix = usize::try_from(id).ok();
            match bounds {
                Some((first, last))
                    if first <= last && last <= rows && matrix.is_none_or(|id| id < self.matrices) =>
                {
                    if group == 0 {
                        add(0..first, None);
                    }
                    add(first..last, matrix.filter(|_| id >= 0));
                    (start, end) = (next, last);
                }
                _ => bail!(
                    value,
                    "a group of rows {start} to {next} with matrix {id} is not among {rows} rows and {} matrices",
                    self.matrices
                ),
            }
        }
        add(end..rows, None);
        Ok(segments)
    }
}

impl Integers {
    /// # Safety
    ///
    /// The memory was checked for the kernel, and the index is inside.
    unsafe fn at(&self, memory: &[Memory], index: usize) -> i128 {
        let at = self.places.at(memory, index);
        // SAFETY: guaranteed by the caller.
        dispatch!(self.dtype, T => unsafe { at.cast::<T>().read_unaligned() }.to_i128())
    }
}

impl Product {
    fn new(
        projection: &Projection<i64>,
        k: &QMatmul<i64>,
        matrices: Option<i64>,
        integers: bool,
    ) -> Result<Product> {
        let Projection { storage, n, length, codes, scales, epilogue } = projection;
        let depth = storage.elements(count(&[*length])?)?;
        if storage.is_integers() != integers || depth != k.k as usize || codes.dtype != storage.dtype() {
            bail!(internal, "weights stored as {storage} in a product of depth {}", k.k);
        }
        let blocks = depth.div_ceil(DEPTH);
        let form = match *storage {
            Storage::Blocks(encoding) => Form::integers(encoding)?,
            Storage::Integers { bits: 8, .. } => Form::integers(QuantizationEncoding::Q8_0)?,
            Storage::Integers { .. } => Form::integers(QuantizationEncoding::Q4_0)?,
            Storage::Float4 => Form::integers(QuantizationEncoding::MXFP4)?,
            Storage::Floats { dtype, group } => match float_kernels(dtype) {
                Some(tiles) => Form::Floats(dtype, group > 0, tiles),
                None => bail!(type_, "weights of {dtype} cannot be multiplied; cast them to another float"),
            },
        };
        let panel = match &form {
            Form::Integers(layout, _) => layout.panel(blocks),
            Form::Floats(dtype, scaled, _) => blocks * float_block(dtype.size_in_bytes(), *scaled),
        };
        count(&[matrices.unwrap_or(1), *n + WIDTH as i64, panel as i64])?;
        Ok(Product {
            storage: *storage,
            columns: *n as usize,
            matrices: matrices.unwrap_or(1) as usize,
            codes: Weights::new(codes, matrices, [*n, *length], *storage),
            scales: scales
                .as_ref()
                .map(|(length, scales)| Weights::new(scales, matrices, [*n, *length], *storage)),
            form,
            panel,
            ending: Ending::new(epilogue, k.lhs.dtype)?,
        })
    }

    /// The panels of each matrix.
    fn panels(&self) -> usize {
        self.columns.div_ceil(WIDTH)
    }

    /// The panels of all matrices, if the weights are constant and can be packed once.
    fn constant(&self, blocks: usize, memory: &[Memory], pool: &Pool) -> Option<*const u8> {
        let constant = memory[self.codes.slot.0 as usize].constant()?;
        let scales = match &self.scales {
            Some(scales) => Some((memory[scales.slot.0 as usize].constant()?, scales.place)),
            None => None,
        };
        let lines = (self.matrices * self.panels() * self.panel).div_ceil(size_of::<Line>());
        constant.packed_with(self.codes.place, scales, lines, |to| {
            let to = Packed(to);
            pool.run(self.matrices * self.panels(), &|number| {
                let to = to.at(number * self.panel);
                // SAFETY: the memory was checked for the kernel; every panel has its place among the lines.
                unsafe { self.pack(number / self.panels(), number % self.panels(), blocks, memory, to) };
            });
        })
    }

    /// Packs a panel of a matrix.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, and there is room for the panel.
    unsafe fn pack(&self, matrix: usize, panel: usize, blocks: usize, memory: &[Memory], to: *mut u8) {
        let codes = self.codes.operand.at::<u8>(memory, matrix);
        let scales = self.scales.as_ref().map(|scales| scales.operand.at::<u8>(memory, matrix));
        let source = Source { storage: self.storage, codes, scales };
        // SAFETY: guaranteed by the caller.
        unsafe {
            match &self.form {
                Form::Integers(layout, _) => source.pack(layout, panel * WIDTH, blocks, to),
                Form::Floats(dtype, ..) => source.pack_floats(*dtype, panel * WIDTH, blocks, to),
            }
        }
    }
}

impl Form {
    fn integers(encoding: QuantizationEncoding) -> Result<Form> {
        match kernels(encoding) {
            Some((layout, tiles)) => Ok(Form::Integers(layout, tiles)),
            None => bail!(internal, "there is no kernel for {}", encoding.name()),
        }
    }

    fn tiles(&self) -> &'static [Tile] {
        match self {
            Form::Integers(_, tiles) | Form::Floats(_, _, tiles) => tiles,
        }
    }
}

impl Weights {
    fn new(access: &Access<i64>, matrices: Option<i64>, size: [i64; 2], storage: Storage) -> Weights {
        let outer: Vec<i64> = matrices.into_iter().collect();
        Weights {
            slot: access.slot,
            operand: Operand::new(access, &outer, size),
            place: Place::quantized(access, matrices, size, storage),
        }
    }
}

/// Lines that several threads pack.
struct Packed(*mut u8);

// SAFETY: it is only an address; whoever writes there guarantees that this is allowed.
unsafe impl Sync for Packed {}

impl Packed {
    fn at(&self, distance: usize) -> *mut u8 {
        self.0.wrapping_add(distance)
    }
}

/// A product that is running on rows that are ready.
struct Running<'a> {
    product: &'a Product,
    left: Rows,
    heights: usize,
    packed: Option<*const u8>,
    blocks: usize,
    memory: &'a [Memory<'a>],
}

// SAFETY: the packed weights are only read.
unsafe impl Sync for Running<'_> {}

impl Running<'_> {
    /// Computes the rows of segments.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, the segments are inside it, and their rows are ready.
    unsafe fn segments(&self, segments: &[Segment], pool: &Pool) {
        let columns = self.product.columns;
        if columns == 0 {
            return;
        }
        let cuts = |segment: &Segment| self.cuts(segment.rows.len(), pool.threads());
        let tasks = |segment: &Segment| {
            let (rows, panels) = cuts(segment);
            rows.parts() * panels.parts()
        };
        let count: usize = segments.iter().map(tasks).sum();
        let run = |mut task: usize| {
            let mut first = 0;
            for segment in segments {
                if task < tasks(segment) {
                    let (rows, panels) = cuts(segment);
                    let part = rows.range(task % rows.parts());
                    // SAFETY: guaranteed by the caller; every task has its own rows and columns.
                    return unsafe { self.block(segment, part, panels.range(task / rows.parts()), first) };
                }
                (task, first) = (task - tasks(segment), first + segment.rows.len());
            }
        };
        if count == 1 { run(0) } else { pool.run(count, &run) }
    }

    /// How rows and panels are split into tasks.
    fn cuts(&self, rows: usize, threads: usize) -> (Cut, Cut) {
        let panels = self.product.panels();
        let few = rows <= FEW_ROWS;
        // A task that packs its panels has many rows to use them for.
        let about = if self.packed.is_some() { ROWS } else { OWN_ROWS };
        let rows = Cut::new(rows, about.max(FEW_ROWS), TALL);
        let most = if few { (FEW_BYTES / self.product.panel.max(1)).clamp(1, FEW_PANELS) } else { PANELS };
        let enough = panels.div_ceil((TASKS * threads).div_ceil(rows.parts().max(1)));
        (rows, Cut::new(panels, most.min(enough).max(1), 1))
    }

    /// Computes some rows of a segment and some panels.
    ///
    /// # Safety
    ///
    /// As for `segments`; nobody else has this block. The rows of the segment start at the first.
    unsafe fn block(&self, segment: &Segment, rows: Range<usize>, panels: Range<usize>, first: usize) {
        let Running { product, blocks, .. } = *self;
        let stride = panels.len() * WIDTH;
        let own = if self.packed.is_some() { 0 } else { product.panel };
        pieces(bytes::<f32>(rows.len() * stride) + bytes::<u8>(own), |pieces| {
            let sums = pieces.take::<f32>(rows.len() * stride);
            let scratch = pieces.take::<u8>(own);
            // SAFETY: guaranteed by the caller; the block fits.
            unsafe {
                let Some(matrix) = segment.matrix.filter(|_| blocks > 0) else {
                    sums.write_bytes(0, rows.len() * stride);
                    return self.deliver(segment, rows, panels, (sums, stride));
                };
                for (at, panel) in panels.clone().enumerate() {
                    let packed = match self.packed {
                        Some(packed) => packed.add((matrix * product.panels() + panel) * product.panel),
                        None => {
                            product.pack(matrix, panel, blocks, self.memory, scratch);
                            scratch.cast_const()
                        }
                    };
                    let mut row = rows.start;
                    while row < rows.end {
                        let height = height(rows.end - row, self.heights);
                        let tiles = (rows.end - row) / HEIGHTS[height];
                        let scaled = matches!(product.form, Form::Floats(_, true, _));
                        let left = Rows { scaled, ..self.left.at(first + row, blocks) };
                        let to = sums.add((row - rows.start) * stride + at * WIDTH);
                        product.form.tiles()[height](blocks, packed, left, tiles, to, stride);
                        row += tiles * HEIGHTS[height];
                    }
                }
                self.deliver(segment, rows, panels, (sums, stride));
            }
        });
    }

    /// Stores a block of the result, or runs the epilogue on it.
    ///
    /// # Safety
    ///
    /// As for `block`; the sums hold it.
    unsafe fn deliver(
        &self,
        segment: &Segment,
        rows: Range<usize>,
        panels: Range<usize>,
        sums: (*mut f32, usize),
    ) {
        let rows = segment.rows.start + rows.start..segment.rows.start + rows.end;
        let columns = panels.start * WIDTH..self.product.columns.min(panels.end * WIDTH);
        let sums = (sums.0.cast_const(), sums.1);
        // SAFETY: guaranteed by the caller.
        unsafe { self.product.ending.deliver(self.memory, segment.index, rows, columns, sums) };
    }
}
