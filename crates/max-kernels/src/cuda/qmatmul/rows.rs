//! Products of up to some hundred rows, and of groups of rows with a matrix each: see `rows.cu`.

use max_core::kernel::{Access, Instr, Loop, Projection, QMatmul, Reg};
use max_core::{DType, Result, bail};
use max_driver::cuda::Source;

use super::super::epilogue::of_zeros;
use super::super::matmul::fused::{self, FusedEpilogue};
use super::super::matmul::row_major;
use super::super::text::typed;
use super::super::{Address, Call, Param, Plan, PlannedLaunch, SCRATCH};
use super::Weights;
use super::text::Decoder;

/// The warps of a block.
const WARPS: usize = 8;

/// The most stages of a ring.
const STAGES: usize = 4;

/// Shared memory that each block takes in addition to what functions ask for.
const RESERVED: usize = 1 << 10;

/// Groups of rows that are expected to be computed at the same time.
const BUSY_GROUPS: u64 = 4;

/// The activations as bytes and their scales, in scratch memory, for each order of bytes that was needed.
#[derive(Default)]
pub(super) struct Quantized([Option<[Address; 2]>; 2]);

/// The shape of the work of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// How many rows it computes at a time.
    pub(super) rows: usize,
    /// How many times 16 columns.
    pub(super) tiles: usize,
    /// How many chunks each warp has in shared memory.
    pub(super) stages: usize,
    /// How many blocks a multiprocessor has room for.
    pub(super) blocks: usize,
}

/// Where parts of the shared memory are.
struct Layout {
    row: usize,
    scale_row: usize,
    stage: usize,
    factors: usize,
    parts: usize,
    bytes: usize,
}

impl Shape {
    /// The shape for some rows at a time of a product with `n` columns, on a GPU with some multiprocessors and shared memory
    /// for each.
    pub(super) fn new(
        decoder: &Decoder,
        [rows, n]: [i64; 2],
        (multiprocessors, shared): (u32, usize),
    ) -> Option<Shape> {
        let rows = match rows {
            ..=8 => 8,
            9..=16 => 16,
            _ => 32,
        };
        // Wide tiles read activations less often, but they are few.
        let is_wide = n as u64 / 32 >= u64::from(multiprocessors) * 7 / 8;
        let tiles = if is_wide { [2, 1] } else { [1, 1] };
        tiles.into_iter().find_map(|tiles| {
            let shape = |stages, blocks| Shape { rows, tiles, stages, blocks };
            let fits =
                |shape: &Shape| shape.layout(decoder).bytes + RESERVED <= (shared + RESERVED) / shape.blocks;
            // Two blocks, so that one computes while the other ends, if each has a stage to copy and one to compute on.
            let two = (2..=STAGES).rev().map(|stages| shape(stages, 2));
            let one = (1..=STAGES).rev().map(|stages| shape(stages, 1));
            two.chain(one).find(fits)
        })
    }

    fn layout(&self, decoder: &Decoder) -> Layout {
        // An odd number of vectors, so that the rows of a tile are in different banks.
        let row = (decoder.vectors() | 1) * 16;
        let columns = self.tiles * 16;
        let scale_row = if decoder.apart.is_some() { 48 } else { 0 };
        let stage = columns * (row + scale_row);
        let factors = WARPS * self.stages * stage;
        let factor = if decoder.has_min() { 8 } else { 4 };
        let parts = factors + WARPS * decoder.groups() * columns * factor;
        let bytes = parts + WARPS * self.rows * (columns + 4) * 4;
        Layout { row, scale_row, stage, factors, parts, bytes }
    }

    /// The grid for passes over rows, or groups of rows, and columns: as many blocks as the GPU has room for share the
    /// tiles evenly.
    pub(super) fn grid(&self, passes: u64, busy: u64, n: i64, multiprocessors: u32) -> [u32; 3] {
        let tiles = (n as u64).div_ceil(self.tiles as u64 * 16).max(1);
        let room = (u64::from(multiprocessors) * self.blocks as u64 / busy.max(1)).clamp(1, 1 << 15);
        let each = tiles.div_ceil(room);
        [passes.clamp(1, i32::MAX as u64) as u32, tiles.div_ceil(each) as u32, 1]
    }
}

impl Plan {
    /// Adds a product by bytes.
    pub(super) fn quantized_rows(
        &mut self,
        k: &QMatmul<i64>,
        projection: &Projection<i64>,
        quantized: &mut Quantized,
    ) -> Result<()> {
        let rows = k.batch.iter().product::<i64>() * k.m;
        let (n, depth) = (projection.n, k.k);
        let experts = k.experts.as_ref();
        let lhs = self.flat_rows(k)?;
        let fused = fused::read(&projection.epilogue).filter(|fused| !fused.is_scaled());
        let fused = fused.and_then(|fused| Flat::new(k, &fused));
        // With groups, rows outside of them are stored first: then only a plain store may follow.
        let fused = fused.filter(|flat| experts.is_none() || flat.epilogue.is_store());
        let (flat, result) = match fused {
            Some(flat) => (flat, None),
            None => {
                let (strides, count) = row_major(&projection.epilogue.shape)?;
                let dtype = k.lhs.dtype;
                let result = Access { slot: SCRATCH, dtype, offset: self.scratch(dtype, count)?, strides };
                (Flat::store(result.clone(), n), Some(result))
            }
        };
        let of_matrices = |length: i64| match experts {
            Some(experts) => vec![experts.count, n, length],
            None => vec![n, length],
        };
        let (storage, shape) = (projection.storage, of_matrices(projection.length));
        let codes = self.contiguous(&projection.codes, &shape, storage)?;
        let scales = match &projection.scales {
            Some((length, scales)) => Some(self.contiguous(scales, &of_matrices(*length), storage)?),
            None => None,
        };
        let decoder = Decoder::new(storage)?;
        let weights = Weights { storage, codes, scales };
        // How many rows of a group are computed at a time does not change its results.
        let together = experts.map_or(rows, |experts| rows / experts.groups.max(1) + 1);
        let gpu = (self.gpu.multiprocessors(), self.gpu.shared_bytes());
        let Some(shape) = Shape::new(&decoder, [together, n], gpu) else {
            bail!(
                not_implemented,
                "products with {storage} weights on a GPU with {} bytes of shared memory",
                gpu.1
            )
        };
        let activations = self.quantized(&lhs, rows, depth, decoder.interleaved, quantized)?;
        if let Some(experts) = experts {
            let zeros = match &result {
                None => of_zeros(&projection.epilogue),
                Some(result) => of_zeros(&store(&projection.epilogue.shape, result.clone())),
            };
            self.loop_(&zeros)?;
            if experts.groups <= 0 || experts.count <= 0 {
                return result.map_or(Ok(()), |result| self.epilogue(&projection.epilogue, result));
            }
        }
        let addend = |access: &Option<Access<i64>>| {
            access.as_ref().map_or(Param::Number(0), |access| Param::Address(Address::of(access)))
        };
        let FusedEpilogue { bias, residual, store, .. } = &flat.epilogue;
        let mut params = vec![Param::Address(Address::of(&weights.codes)), weights.scale_address()];
        params.extend(activations.map(Param::Address));
        params.extend([Param::Address(Address::of(store)), addend(bias), addend(residual)]);
        let indices = experts.map(|experts| [&experts.starts, &experts.ids]);
        params.extend(match indices {
            Some(both) => both.map(|access| Param::Address(Address::of(access))),
            None => [Param::Number(0); 2],
        });
        params.push(Param::Report);
        params.extend([rows, n, depth].into_iter().chain(weights.rows()).map(Param::Number));
        params.extend(flat.store.into_iter().chain(flat.residual).map(Param::Number));
        let steps = indices.map_or([0; 2], |both| both.map(|access| access.strides[0]));
        let matrix = |access: &Access<i64>| if experts.is_some() { access.strides[0] } else { 0 };
        let count = experts.map_or(1, |experts| experts.count);
        let matrices = [matrix(&weights.codes), weights.scales.as_ref().map_or(0, matrix)];
        params.extend(steps.into_iter().chain([count]).chain(matrices).map(Param::Number));
        let (passes, busy) = match experts {
            Some(experts) => (experts.groups as u64, (experts.groups as u64).min(BUSY_GROUPS)),
            None => {
                let passes = (rows as u64).div_ceil(shape.rows as u64);
                (passes, passes)
            }
        };
        self.launches.push(PlannedLaunch::Function(Call {
            source: source(
                &decoder,
                &shape,
                &flat.epilogue,
                indices.map(|both| both.map(|access| access.dtype)),
            ),
            grid: shape.grid(passes, busy, n, gpu.0),
            block: [WARPS as u32 * 32, 1, 1],
            shared: shape.layout(&decoder).bytes as u32,
            params,
        }));
        match result {
            Some(result) => self.epilogue(&projection.epilogue, result),
            None => Ok(()),
        }
    }

    /// The left operand over `[rows, k]`: itself, or a copy.
    pub(super) fn flat_rows(&mut self, k: &QMatmul<i64>) -> Result<Access<i64>> {
        let lhs = match flat_stride(&k.lhs, k) {
            Some(_) => k.lhs.clone(),
            None => {
                let shape = [&k.batch[..], &[k.m, k.k]].concat();
                let (strides, _) = row_major(&shape)?;
                let copy = self.copy(&k.lhs, &shape, k.lhs.dtype)?;
                // A batch that repeats one matrix has been copied once: its rows are still no rows of one matrix.
                if copy.strides != strides {
                    let expanded = Access {
                        strides,
                        offset: self.scratch(copy.dtype, shape.iter().product())?,
                        ..copy.clone()
                    };
                    self.loop_(&copying(shape, copy, expanded.clone()))?;
                    expanded
                } else {
                    copy
                }
            }
        };
        let row = flat_stride(&lhs, k).unwrap_or(0);
        let along = lhs.strides.last().copied().unwrap_or(0);
        Ok(Access { strides: vec![row, along], ..lhs })
    }

    /// The activations as bytes, in an order, quantized once.
    fn quantized(
        &mut self,
        lhs: &Access<i64>,
        rows: i64,
        k: i64,
        interleaved: bool,
        known: &mut Quantized,
    ) -> Result<[Address; 2]> {
        if let Some(known) = known.0[usize::from(interleaved)] {
            return Ok(known);
        }
        // Eight rows are beside each other.
        let places = rows.checked_add(7).and_then(|rows| (rows / 8 * 8).checked_mul(k));
        let Some(places) = places else { bail!(internal, "{rows} rows of {k} elements") };
        let codes = Address { slot: SCRATCH, bytes: self.scratch(DType::UInt8, places)? };
        let scales = Address { slot: SCRATCH, bytes: self.scratch(DType::UInt64, places / 32)? * 8 };
        let mut params =
            vec![Param::Address(Address::of(lhs)), Param::Address(codes), Param::Address(scales)];
        params.extend([rows, k, lhs.strides[0], lhs.strides[1], i64::from(interleaved)].map(Param::Number));
        self.launches.push(PlannedLaunch::Function(Call {
            source: quantizing_source(lhs.dtype),
            grid: [((rows * (k / 32)) as u64).div_ceil(64).clamp(1, 1 << 20) as u32, 1, 1],
            block: [256, 1, 1],
            shared: 0,
            params,
        }));
        known.0[usize::from(interleaved)] = Some([codes, scales]);
        Ok([codes, scales])
    }
}

/// A loop that copies.
fn copying(shape: Vec<i64>, from: Access<i64>, to: Access<i64>) -> Loop<i64> {
    let code = vec![Instr::Load(0), Instr::Store(1, Reg(0))];
    Loop { shape, reduce: None, accesses: vec![from, to], code }
}

/// An epilogue that stores the result.
pub(super) fn store(shape: &[i64], to: Access<i64>) -> Loop<i64> {
    let code = vec![Instr::Product(to.dtype), Instr::Store(0, Reg(0))];
    Loop { shape: shape.to_vec(), reduce: None, accesses: vec![to], code }
}

/// An epilogue that a function applies itself, with the strides of its accesses over `[rows, n]`.
struct Flat {
    epilogue: FusedEpilogue,
    store: [i64; 2],
    residual: [i64; 2],
}

impl Flat {
    /// `None` if the batch axes of an access are not like further rows.
    fn new(k: &QMatmul<i64>, fused: &FusedEpilogue) -> Option<Flat> {
        let strides = |access: &Access<i64>| Some([flat_stride(access, k)?, *access.strides.last()?]);
        let residual = match &fused.residual {
            Some(residual) => strides(residual)?,
            None => [0, 0],
        };
        Some(Flat { store: strides(&fused.store)?, residual, epilogue: fused.clone() })
    }

    /// A store to contiguous rows of `n` elements.
    fn store(to: Access<i64>, n: i64) -> Flat {
        let epilogue = FusedEpilogue::store(to);
        Flat { epilogue, store: [n, 1], residual: [0, 0] }
    }
}

/// The distance between consecutive rows of an access over `[batch.., m, ..]`, if it is the same for all of them.
fn flat_stride(access: &Access<i64>, k: &QMatmul<i64>) -> Option<i64> {
    let axes: Vec<_> = k.batch.iter().chain([&k.m]).zip(&access.strides).collect();
    let (mut row, mut count) = (None, 1i64);
    for (&size, &stride) in axes.into_iter().rev().filter(|(size, _)| **size != 1) {
        match row {
            None => row = Some(stride),
            Some(row) if count.checked_mul(row) == Some(stride) => {}
            Some(_) => return None,
        }
        count = count.checked_mul(size)?;
    }
    Some(row.unwrap_or(0))
}

/// The function for a shape.
pub(super) fn source(
    decoder: &Decoder,
    shape: &Shape,
    fused: &FusedEpilogue,
    indices: Option<[DType; 2]>,
) -> Source {
    let layout = shape.layout(decoder);
    let to = fused.store.dtype;
    let flag = |on: bool| u8::from(on).to_string();
    let is_alignable = decoder.bytes.is_multiple_of(4);
    let mut words = vec![
        ("ROWS", shape.rows.to_string()),
        ("TILES", shape.tiles.to_string()),
        ("STAGES", shape.stages.to_string()),
        ("BLOCKS", shape.blocks.to_string()),
        ("STAGE", layout.stage.to_string()),
        ("ROW_BYTES", layout.row.to_string()),
        ("SCALE_ROW_BYTES", layout.scale_row.to_string()),
        ("FACTORS_AT", layout.factors.to_string()),
        ("PARTS_AT", layout.parts.to_string()),
        ("HAS_EXPERTS", flag(indices.is_some())),
        ("IS_ALIGNABLE", is_alignable.to_string()),
    ];
    words.extend(fused.words().map(|(word, meaning)| (word, meaning.to_string())));
    let [start, id] = indices.unwrap_or([DType::Int64; 2]);
    let experts = indices.map_or(String::new(), |_| format!("_{start}_{id}"));
    let name = format!(
        "qmatmul_{}_{to}_{}_{}x{}x{}x{}{experts}",
        decoder.name,
        fused.flags(),
        shape.rows,
        shape.tiles,
        shape.stages,
        shape.blocks
    );
    let text = [include_str!("../report.cuh"), FusedEpilogue::TEXT, include_str!("rows.cu")];
    decoder.source(&name, &[("OUT", to), ("START", start), ("ID", id)], &words, &text.concat())
}

/// The function that quantizes activations of a dtype.
pub(super) fn quantizing_source(dtype: DType) -> Source {
    let text = [include_str!("activations.cuh"), include_str!("quantize.cu")].concat();
    typed(&format!("quantize_rows_{dtype}"), &[("IN", dtype)], &[], &text)
}
