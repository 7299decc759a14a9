//! Attention on a GPU: one pass on tensor cores for 16-bit floats, by warpgroups (`flash.rs`) or warps (`attention.cu`), else
//! composed of matmuls and a softmax in scratch memory, in parts if that would take too much memory.

use max_core::kernel::{Access, Attention, Instr, Literal, Loop, Matmul, Reduction, Reg};
use max_core::scalar::{CompareOp, NumericOp, RealOp};
use max_core::{DType, Result, ScalarOp};
use max_driver::cuda::Source;

use super::epilogue::of_zeros;
use super::flash::{self, Shape};
use super::matmul::row_major;
use super::{Address, Call, Param, Plan, PlannedLaunch, SCRATCH};

/// The most bytes of scores that composed attention has in memory at a time.
const MOST_SCORES: i64 = 1 << 29;

/// The number of batch axes of functions, and the sizes of the tiles of `attention.cu`.
const BATCH_AXES: usize = 4;
const TILE_QUERIES: i64 = 64;
const TILE_KEYS: i64 = 64;
const THREADS: u32 = 128;

/// The longest queries and values that fit its registers.
const MOST_DEPTH: i64 = 128;

/// The bytes of keys and values that stay in the cache of a GPU while many blocks read them.
const CACHED: i64 = 32 << 20;

impl Plan {
    pub(super) fn attention(&mut self, k: &Attention<i64>) -> Result<()> {
        if k.epilogue.shape.contains(&0) {
            return Ok(());
        }
        if k.keys == 0 {
            return self.loop_(&of_zeros(&k.epilogue));
        }
        if fits_one_pass(k) && flash::fits(self.gpu, k.depth, k.width) && fits_flash(k) {
            return self.one_pass(k, Some(shape(k)));
        }
        let parallel = self.gpu.compute_capability() >= (8, 0);
        let small = k.depth.max(k.width) <= MOST_DEPTH;
        match parallel && small && fits_one_pass(k) {
            true => self.one_pass(k, None),
            false => self.composed(k, k.keys - k.queries),
        }
    }

    /// By warpgroups with tiles of a shape, or by warps.
    fn one_pass(&mut self, k: &Attention<i64>, shape: Option<Shape>) -> Result<()> {
        let out = match plain_store(&k.epilogue).filter(|out| in_pieces(out, 2)) {
            Some(out) => out.clone(),
            None => self.in_scratch(k.query.dtype, &k.epilogue.shape)?,
        };
        let mask = k.mask.as_ref();
        let operands = [Some(&k.query), Some(&k.key), Some(&k.value), mask, Some(&out)];
        let Some(batch) = merged(&k.batch, &operands) else { return self.composed(k, k.keys - k.queries) };
        let tiles = match shape {
            Some(shape) => (k.queries + shape.rows() - 1) / shape.rows(),
            None => tiles(k),
        };
        let entries = batch.iter().map(|axis| axis.size).product::<i64>();
        let number = Param::Number;
        let address = |access: Option<&Access<i64>>| match access {
            Some(access) => Param::Address(Address::of(access)),
            None => number(0),
        };
        let mut params: Vec<Param> = operands.iter().map(|access| address(*access)).collect();
        params.extend([number(k.queries), number(k.keys), number(tiles), Param::Bits(k.scale.to_bits())]);
        params.extend([number(k.keys - k.queries), number(window(k))]);
        params.extend(batch[1..].iter().map(|axis| number(axis.size)));
        for (operand, access) in operands.iter().enumerate() {
            params.extend(batch.iter().map(|axis| number(axis.strides[operand])));
            // The row strides of all operands, and the column stride of the mask; other operands have contiguous
            // columns.
            let inner = access.map_or([0, 0], |access| {
                let [.., row, column] = access.strides[..] else { return [0, 0] };
                [row, column]
            });
            let columns = usize::from(operand == 3);
            params.extend(inner[..1 + columns].iter().map(|&stride| number(stride)));
        }
        let (source, blocks, threads, shared) = match shape {
            Some(shape) => {
                let running = shape.blocks(self.gpu);
                // Sections are long enough that all blocks have several items of each.
                let read = k.keys.saturating_mul(2 * (k.depth + k.width)).max(1);
                let section = (CACHED / read).max(2 * running / tiles + 1).min(entries);
                params.extend([entries, section].map(number));
                (flash_source(k, shape), running.min(entries * tiles), shape.threads(), shape.shared())
            }
            None => {
                let padded = |size: i64| (size as u32).next_multiple_of(16) + 8;
                let shared = 2 * 2 * TILE_KEYS as u32 * (padded(k.depth) + padded(k.width));
                (source(k), entries * tiles, THREADS, shared)
            }
        };
        self.launches.push(PlannedLaunch::Function(Call {
            source,
            grid: [u32::try_from(blocks).unwrap_or(u32::MAX), 1, 1],
            block: [threads, 1, 1],
            shared,
            params,
        }));
        if out.slot == SCRATCH { self.epilogue(&k.epilogue, out) } else { Ok(()) }
    }

    /// Matmuls and a softmax in scratch memory. Query `i` is at position `i + shift` of the keys.
    fn composed(&mut self, k: &Attention<i64>, shift: i64) -> Result<()> {
        let wide = if k.query.dtype == DType::Float64 { DType::Float64 } else { DType::Float32 };
        let shape = [k.batch.as_slice(), &[k.queries, k.keys]].concat();
        let bytes = shape.iter().fold(wide.size_in_bytes() as i64, |bytes, &size| bytes.saturating_mul(size));
        if bytes > MOST_SCORES
            && let Some(axis) = (0..=k.batch.len()).find(|&axis| shape[axis] > 1)
        {
            return self.halves(k, axis, shift);
        }
        let query = self.widened(&k.query, &[&k.batch[..], &[k.queries, k.depth]].concat(), wide)?;
        let mut key = self.widened(&k.key, &[&k.batch[..], &[k.keys, k.depth]].concat(), wide)?;
        let value = self.widened(&k.value, &[&k.batch[..], &[k.keys, k.width]].concat(), wide)?;
        let scores = self.in_scratch(wide, &shape)?;
        let rank = shape.len();
        key.strides.swap(rank - 2, rank - 1);
        self.matmul(&Matmul {
            batch: k.batch.clone(),
            m: k.queries,
            n: k.keys,
            k: k.depth,
            lhs: query,
            rhs: key,
            epilogue: store(&shape, scores.clone()),
        })?;
        self.loop_(&softmax(k, &scores, shape, shift))?;
        let direct = k.query.dtype == wide;
        let result = match direct {
            true => None,
            false => Some(self.in_scratch(wide, &k.epilogue.shape)?),
        };
        let epilogue = match &result {
            None => k.epilogue.clone(),
            Some(result) => store(&k.epilogue.shape, result.clone()),
        };
        self.matmul(&Matmul {
            batch: k.batch.clone(),
            m: k.queries,
            n: k.width,
            k: k.keys,
            lhs: scores,
            rhs: value,
            epilogue,
        })?;
        match result {
            None => Ok(()),
            Some(result) => self.epilogue(&k.epilogue, result),
        }
    }

    /// Both halves along an axis of the scores, one after the other in the same scratch memory.
    fn halves(&mut self, k: &Attention<i64>, axis: usize, shift: i64) -> Result<()> {
        let start = self.scratch;
        let mut most = start;
        let queries = axis == k.batch.len();
        let whole = if queries { k.queries } else { k.batch[axis] };
        for (from, size) in [(0, whole / 2), (whole / 2, whole - whole / 2)] {
            let mut half = k.clone();
            if queries {
                half.queries = size;
            } else {
                half.batch[axis] = size;
            }
            half.epilogue.shape[axis] = size;
            let walked =
                [&mut half.query].into_iter().chain(&mut half.mask).chain(&mut half.epilogue.accesses);
            walked.for_each(|access| access.offset += from * access.strides[axis]);
            if !queries {
                half.key.offset += from * half.key.strides[axis];
                half.value.offset += from * half.value.strides[axis];
            }
            // The scratch memory of the other half is free again, including the workspace of its matmuls.
            (self.scratch, self.workspace) = (start, None);
            self.composed(&half, shift + if queries { from } else { 0 })?;
            most = most.max(self.scratch);
        }
        self.scratch = most;
        Ok(())
    }

    /// Row-major scratch memory for all elements of a shape.
    fn in_scratch(&mut self, dtype: DType, shape: &[i64]) -> Result<Access<i64>> {
        let (strides, elements) = row_major(shape)?;
        Ok(Access { slot: SCRATCH, dtype, offset: self.scratch(dtype, elements)?, strides })
    }

    /// An operand in a wider dtype: the operand itself, or a converted copy.
    fn widened(&mut self, access: &Access<i64>, shape: &[i64], wide: DType) -> Result<Access<i64>> {
        if access.dtype == wide {
            return Ok(access.clone());
        }
        let copy = self.in_scratch(wide, shape)?;
        self.loop_(&Loop {
            shape: shape.to_vec(),
            reduce: None,
            accesses: vec![access.clone(), copy.clone()],
            code: vec![Instr::Load(0), Instr::Cast(Reg(0), wide), Instr::Store(1, Reg(1))],
        })?;
        Ok(copy)
    }
}

/// The window, clamped to a length that no number of keys reaches.
fn window(k: &Attention<i64>) -> i64 {
    k.window.min(1 << 40) as i64
}

/// How many tiles of 16 queries a warp has: two, which share the keys and values that are read, if there are enough
/// queries and registers.
fn rows(k: &Attention<i64>) -> i64 {
    let small = k.depth.max(k.width) <= 64 && k.mask.is_none();
    if small && k.queries >= 4 * TILE_QUERIES { 2 } else { 1 }
}

/// How many tiles the queries fill.
fn tiles(k: &Attention<i64>) -> i64 {
    let queries = rows(k) * TILE_QUERIES;
    (k.queries + queries - 1) / queries
}

/// The tiles of warpgroups for an attention.
fn shape(k: &Attention<i64>) -> Shape {
    match k.queries <= 64 {
        true => Shape::of_few_rows(k.depth, k.width, true),
        false => Shape::of_many_rows(k.depth, k.width),
    }
}

/// Whether a single pass supports an attention but for the lengths of its rows: 16-bit floats that can be read 16 bytes at a
/// time.
fn fits_one_pass(k: &Attention<i64>) -> bool {
    let whole = |size: i64| size > 0 && size % 8 == 0;
    let blocks = k.batch.iter().fold(tiles(k), |n, &size| n.saturating_mul(size));
    let mask = k.mask.as_ref().is_none_or(|mask| [DType::Bool, k.query.dtype].contains(&mask.dtype));
    matches!(k.query.dtype, DType::Float16 | DType::BFloat16)
        && (whole(k.depth) && whole(k.width) && mask)
        && (in_pieces(&k.query, 2) && in_pieces(&k.key, 8) && in_pieces(&k.value, 8))
        && (blocks <= i64::from(i32::MAX) && k.keys <= i64::from(i32::MAX))
}

/// Whether warpgroups also support it.
fn fits_flash(k: &Attention<i64>) -> bool {
    let few = k.queries.max(k.keys) <= flash::MOST_POSITIONS;
    few && in_pieces(&k.query, 8) && flash::keeps_order(k.scale)
}

/// Whether the columns of an access are contiguous and every row starts at a multiple of `elements`.
pub(super) fn in_pieces(access: &Access<i64>, elements: i64) -> bool {
    let Some((&column, outer)) = access.strides.split_last() else { return false };
    column == 1 && access.offset % elements == 0 && outer.iter().all(|stride| stride % elements == 0)
}

/// An axis of the batch: its size, and the stride of each operand.
struct Axis {
    size: i64,
    strides: [i64; 5],
}

/// The batch axes merged and padded to four, or `None` if there are more.
fn merged(batch: &[i64], operands: &[Option<&Access<i64>>; 5]) -> Option<Vec<Axis>> {
    let mut axes: Vec<Axis> = Vec::new();
    for (axis, &size) in batch.iter().enumerate().filter(|(_, size)| **size != 1) {
        let strides = operands.map(|access| access.map_or(0, |access| access.strides[axis]));
        match axes.last_mut() {
            Some(outer) if (0..5).all(|i| outer.strides[i] == strides[i] * size) => {
                *outer = Axis { size: outer.size * size, strides };
            }
            _ => axes.push(Axis { size, strides }),
        }
    }
    let missing = BATCH_AXES.checked_sub(axes.len())?;
    Some((0..missing).map(|_| Axis { size: 1, strides: [0; 5] }).chain(axes).collect())
}

/// The text of `attention.cu` for an attention.
fn source(k: &Attention<i64>) -> Source {
    let half = u8::from(k.query.dtype == DType::Float16);
    let mask = mask_kind(k);
    let (causal, window) = (u8::from(k.causal), u8::from(k.causal && k.window > 0));
    let (depth, width, rows) = (k.depth, k.width, rows(k));
    let name = format!("attention_{half}_{depth}_{width}_{mask}{causal}{window}_{rows}");
    let definitions = format!(
        "#define NAME {name}\n#define ROWS {rows}\n#define HALF {half}\n#define DEPTH {depth}\n#define WIDTH {width}\n#define MASK {mask}\n\
         #define CAUSAL {causal}\n#define WINDOW {window}\n"
    );
    let text = [&definitions, include_str!("tensor.cuh"), include_str!("attention.cu")].concat();
    Source { code: text, prelude: "".into(), name }
}

/// The text of `flash.cu` for an attention.
fn flash_source(k: &Attention<i64>, shape: Shape) -> Source {
    let half = k.query.dtype == DType::Float16;
    let window = k.causal && k.window > 0;
    let flags = [
        ("CAUSAL", k.causal),
        ("WINDOW", window),
        ("SOFTCAP", false),
        ("SPLIT", false),
        ("WHOLE_PIECES", true),
    ];
    let (mask, causal, windowed) = (mask_kind(k), u8::from(k.causal), u8::from(window));
    let name = format!("flash_{}_{}_{mask}{causal}{windowed}", k.query.dtype, shape.name());
    let operands = [&format!("#define MASK {mask}\n"), include_str!("flash/dense.cuh")].concat();
    let code = [&format!("#define NAME {name}\n"), shape.text(half, &flags, &operands).as_str()].concat();
    Source { code, prelude: "".into(), name }
}

/// What functions call a mask: none, bools or what is added.
fn mask_kind(k: &Attention<i64>) -> u8 {
    match &k.mask {
        None => 0,
        Some(mask) if mask.dtype == DType::Bool => 1,
        Some(_) => 2,
    }
}

/// The access that an epilogue stores to, if storing the result is all it does.
fn plain_store(epilogue: &Loop<i64>) -> Option<&Access<i64>> {
    match epilogue.code[..] {
        [Instr::Product(_), Instr::Store(access, Reg(0))] => epilogue.accesses.get(access as usize),
        _ => None,
    }
}

/// An epilogue that stores the result.
fn store(shape: &[i64], to: Access<i64>) -> Loop<i64> {
    let code = vec![Instr::Product(to.dtype), Instr::Store(0, Reg(0))];
    Loop { shape: shape.to_vec(), reduce: None, accesses: vec![to], code }
}

/// Turns scores into weights, in place.
fn softmax(k: &Attention<i64>, scores: &Access<i64>, shape: Vec<i64>, shift: i64) -> Loop<i64> {
    let (rank, wide) = (shape.len(), scores.dtype);
    let mut accesses = vec![scores.clone()];
    let mut code = vec![Instr::Load(0)];
    let push = |code: &mut Vec<Instr<i64>>, instr| {
        code.push(instr);
        Reg(code.len() as u32 - 1)
    };
    let number = |value: f64| {
        let bits = if wide == DType::Float64 { value.to_bits() } else { u64::from((value as f32).to_bits()) };
        Instr::Literal(Literal { dtype: wide, bits })
    };
    let apply = |op: ScalarOp, a: Reg, b: Reg| Instr::Apply(op, [a, b]);
    let scale = push(&mut code, number(k.scale));
    let mut x = push(&mut code, apply(NumericOp::Mul.into(), Reg(0), scale));
    if let Some(mask) = &k.mask {
        accesses.push(mask.clone());
        let kept = push(&mut code, Instr::Load(accesses.len() as u32 - 1));
        x = match mask.dtype {
            DType::Bool => {
                let lowest = push(&mut code, number(f64::NEG_INFINITY));
                push(&mut code, Instr::Select([kept, x, lowest]))
            }
            dtype => {
                let added = if dtype == wide { kept } else { push(&mut code, Instr::Cast(kept, wide)) };
                let sum = push(&mut code, apply(NumericOp::Add.into(), x, added));
                // Negative infinity masks any score, also NaN.
                let lowest = push(&mut code, number(f64::NEG_INFINITY));
                let hidden = push(&mut code, apply(CompareOp::Equal.into(), added, lowest));
                push(&mut code, Instr::Select([hidden, lowest, sum]))
            }
        };
    }
    if k.causal {
        let mut position = |code: &mut Vec<Instr<i64>>, axis: usize, offset: i64| {
            let mut strides = vec![0; rank];
            strides[axis] = 1;
            accesses.push(Access {
                slot: max_core::kernel::Slot::NONE,
                dtype: DType::Int64,
                offset,
                strides,
            });
            push(code, Instr::Index(accesses.len() as u32 - 1))
        };
        let query = position(&mut code, rank - 2, shift);
        let key = position(&mut code, rank - 1, 0);
        let mut seen = push(&mut code, apply(CompareOp::GreaterEqual.into(), query, key));
        if k.window > 0 {
            let end = position(&mut code, rank - 1, window(k));
            let near = push(&mut code, apply(CompareOp::Greater.into(), end, query));
            seen = push(&mut code, apply(max_core::scalar::LogicalOp::LogicalAnd.into(), seen, near));
        }
        let lowest = push(&mut code, number(f64::NEG_INFINITY));
        x = push(&mut code, Instr::Select([seen, x, lowest]));
    }
    let greatest = push(&mut code, Instr::Reduce(Reduction::Max, x));
    let below = push(&mut code, apply(NumericOp::Sub.into(), x, greatest));
    let weight = push(&mut code, apply(RealOp::Exp.into(), below, below));
    let sum = push(&mut code, Instr::Reduce(Reduction::Sum, weight));
    let share = push(&mut code, apply(RealOp::Div.into(), weight, sum));
    accesses.push(scores.clone());
    code.push(Instr::Store(accesses.len() as u32 - 1, share));
    Loop { shape, reduce: Some(rank - 1), accesses, code }
}

#[cfg(test)]
mod tests {
    use max_core::kernel::Slot;

    use super::super::epilogue::of_parts;
    use super::*;

    fn access(slot: u32, dtype: DType, strides: &[i64]) -> Access<i64> {
        Access { slot: Slot(slot), dtype, offset: 0, strides: strides.to_vec() }
    }

    /// Queries, keys and values as one matmul makes them: `[batch, length, 3, heads, depth]`.
    fn packed(dtype: DType, causal: bool, window: usize) -> Attention<i64> {
        let (batch, length, heads, depth) = (2, 100, 12, 64);
        let part = |number: i64| Access {
            offset: number * heads * depth,
            ..access(0, dtype, &[length * 3 * heads * depth, depth, 3 * heads * depth, 1])
        };
        let out = access(1, dtype, &[length * heads * depth, depth, heads * depth, 1]);
        Attention {
            batch: vec![batch, heads],
            queries: length,
            keys: length,
            depth,
            width: depth,
            query: part(0),
            key: part(1),
            value: part(2),
            mask: None,
            scale: 0.125,
            causal,
            window,
            epilogue: store(&[batch, heads, length, depth], out),
        }
    }

    #[test]
    fn row_layout_decides_whether_one_pass_fits() {
        let k = packed(DType::BFloat16, true, 0);
        assert!(fits_one_pass(&k) && plain_store(&k.epilogue).is_some());
        assert!(!fits_one_pass(&packed(DType::Float32, true, 0)));
        let mut odd = packed(DType::Float16, false, 0);
        odd.key.offset += 4;
        assert!(!fits_one_pass(&odd));
        let mut uneven = packed(DType::Float16, false, 0);
        uneven.depth = 60;
        assert!(!fits_one_pass(&uneven));
        let masked = |dtype| Attention {
            mask: Some(access(3, dtype, &[0, 0, 100, 1])),
            ..packed(DType::Float16, false, 0)
        };
        assert!(fits_one_pass(&masked(DType::Bool)) && fits_one_pass(&masked(DType::Float16)));
        assert!(!fits_one_pass(&masked(DType::Float32)));
    }

    #[test]
    fn windows_of_any_length_do_not_overflow() {
        let scores = access(7, DType::Float32, &[12 * 10_000, 10_000, 100, 1]);
        for (longest, expected) in [(7, 7), (usize::MAX, 1 << 40)] {
            let loop_ = softmax(&packed(DType::Float32, true, longest), &scores, vec![2, 12, 100, 100], 0);
            assert!(loop_.accesses.iter().any(|access| access.offset == expected), "{loop_:?}");
        }
    }

    #[test]
    fn batch_axes_merge_where_all_operands_do() {
        let k = packed(DType::BFloat16, false, 0);
        let axes = merged(&k.batch, &[Some(&k.query), Some(&k.key), Some(&k.value), None, None]).unwrap();
        assert_eq!(axes.iter().map(|axis| axis.size).collect::<Vec<_>>(), [1, 1, 2, 12]);
        let whole = access(0, DType::Float16, &[600, 200, 10, 1]);
        let axes = merged(&[5, 3], &[Some(&whole), Some(&whole), Some(&whole), None, None]).unwrap();
        assert_eq!(axes.iter().map(|axis| axis.size).collect::<Vec<_>>(), [1, 1, 1, 15]);
        let apart = access(0, DType::Float16, &[1, 10, 100, 1000, 10000, 1, 1]);
        assert!(merged(&[2; 5], &[Some(&apart), None, None, None, None]).is_none());
    }

    #[test]
    fn composed_loops_are_valid() {
        for (causal, window) in [(false, 0), (true, 0), (true, 7)] {
            let mut k = packed(DType::BFloat16, causal, window);
            let scores = access(7, DType::Float32, &[12 * 10_000, 10_000, 100, 1]);
            for mask in [None, Some(DType::Bool), Some(DType::BFloat16)] {
                k.mask = mask.map(|dtype| access(3, dtype, &[0, 0, 100, 1]));
                let loop_ = softmax(&k, &scores, vec![2, 12, 100, 100], 0);
                assert!(loop_.dtypes().is_ok(), "{loop_:?}");
            }
        }
        let k = packed(DType::BFloat16, false, 0);
        let loop_ = of_parts(&k.epilogue, vec![access(7, DType::Float32, &[76_800, 6_400, 64, 1])]);
        assert!(loop_.dtypes().is_ok(), "{loop_:?}");
        assert!(of_zeros(&k.epilogue).dtypes().is_ok());
    }

    #[test]
    fn functions_compile() {
        let masks = [(DType::Float16, None), (DType::BFloat16, Some(DType::Bool))];
        let masks = masks.into_iter().chain([(DType::BFloat16, Some(DType::BFloat16))]);
        let sources = masks.map(|(dtype, mask)| {
            let mask = mask.map(|mask| access(3, mask, &[0, 0, 100, 1]));
            source(&Attention { mask, ..packed(dtype, true, 7) })
        });
        crate::cuda::nvrtc::check_for(&sources.collect::<Vec<_>>(), &["compute_80", "sm_90a"]);
    }

    #[test]
    fn functions_of_warpgroups_compile() {
        let base = packed(DType::BFloat16, true, 0);
        let mask = |dtype| Some(access(3, dtype, &[0, 0, 100, 1]));
        let all = [
            base.clone(),
            Attention { causal: false, queries: 50, ..base.clone() },
            Attention { depth: 192, width: 128, ..base.clone() },
            Attention { depth: 40, width: 72, mask: mask(DType::Bool), ..packed(DType::Float16, true, 7) },
            Attention { depth: 256, width: 256, mask: mask(DType::BFloat16), ..base },
        ];
        let sources = all.each_ref().map(|k| flash_source(k, shape(k)));
        crate::cuda::nvrtc::check_for(&sources, &["sm_90a"]);
    }

    #[test]
    fn warpgroups_need_whole_pieces_and_factors_above_zero() {
        let k = packed(DType::BFloat16, true, 0);
        assert!(fits_flash(&k));
        assert!(!fits_flash(&Attention { scale: -1.0, ..k.clone() }));
        assert!(!fits_flash(&Attention { scale: f64::MIN_POSITIVE, ..k.clone() }));
        let mut odd = k;
        odd.query.offset += 2;
        assert!(fits_one_pass(&odd) && !fits_flash(&odd));
    }

    #[test]
    fn sources_differ_where_the_code_does() {
        let [a, b] = [packed(DType::BFloat16, true, 0), packed(DType::BFloat16, true, 3)].map(|k| source(&k));
        assert!(
            a.name != b.name && a.code.contains("#define WINDOW 0") && b.code.contains("#define WINDOW 1")
        );
    }
}
