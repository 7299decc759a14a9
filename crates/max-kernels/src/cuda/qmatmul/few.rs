//! Products of very few rows, with all matrices that are stored alike in one launch: see `few.cu`.

use std::borrow::Cow;

use max_core::kernel::{Access, Projection, QMatmul};
use max_core::{DType, Result, bail};
use max_driver::cuda::Source;

use super::super::loops::{PRELUDE, named};
use super::super::matmul::ending::{self, Ending};
use super::super::matmul::row_major;
use super::super::{Address, Call, Param, Plan, PlannedLaunch, SCRATCH};
use super::Weights;
use super::rows::store;
use super::text::Decoder;

/// The most rows, and the most elements in them: with more, quantizing them in every block takes longer than it saves.
const ROWS: i64 = 4;
const ELEMENTS: i64 = 1 << 15;

/// The elements of a segment of a row, the stages of a ring and the rows of weights in a stage.
const SEGMENT: usize = 1024;
const STAGES: usize = 2;
const LINES: usize = 4;

/// The bytes of a slice of a row of activations, and those between spans of several slices.
const RECORD: usize = 48;
const BETWEEN: usize = 16;

/// The shape of the work of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// How many rows it computes at a time.
    rows: usize,
    /// How many rows of weights a lane multiplies by the same activations.
    wide: usize,
    /// How many warps have rings.
    warps: usize,
    /// The bytes of the quantized rows.
    records: usize,
}

/// Where parts of the shared memory are.
struct Layout {
    line: usize,
    scale_line: usize,
    stage: usize,
    ring: usize,
    records: usize,
    bytes: usize,
}

impl Shape {
    /// The shape for some rows of a depth, on a GPU with some shared memory for each multiprocessor; `None` if there are too
    /// many, or if they do not fit.
    pub(super) fn new(decoder: &Decoder, [rows, k]: [i64; 2], shared: usize) -> Option<Shape> {
        rows.checked_mul(k).filter(|&elements| elements <= ELEMENTS)?;
        let rows = match rows {
            1 => 1,
            2 => 2,
            3..=ROWS => ROWS as usize,
            _ => return None,
        };
        let span = decoder.span();
        let between = if span > 1 { BETWEEN } else { 0 };
        let spans = usize::try_from(k).ok()?.div_ceil(32 * span);
        let records = spans.checked_mul(span * RECORD + between)?.checked_mul(rows)?;
        // Segments are whole numbers of spans for each lane.
        let wide = if span <= 2 { 2 } else { 1 };
        let shapes = [16, 12, 8, 4].map(|warps| Shape { rows, wide, warps, records });
        shapes.into_iter().find(|shape| shape.layout(decoder).bytes <= shared)
    }

    fn layout(&self, decoder: &Decoder) -> Layout {
        // The vectors that contain bytes which start anywhere.
        let vectors = |bytes: usize| (bytes + 30) / 16 * 16;
        let line = vectors(SEGMENT / decoder.elements * decoder.bytes);
        // A segment may start and end inside of groups.
        let scale_line = decoder.apart.map_or(0, |bytes| vectors((SEGMENT / 32 + 1) * bytes));
        let stage = LINES * (line + scale_line);
        let ring = (self.warps * STAGES * 8).next_multiple_of(128);
        let records = ring + self.warps * STAGES * stage;
        Layout { line, scale_line, stage, ring, records, bytes: records.saturating_add(self.records) }
    }
}

impl Plan {
    /// Adds products with matrices that are stored alike.
    pub(super) fn few_rows(
        &mut self,
        k: &QMatmul<i64>,
        all: &[&Projection<i64>],
        shape: Shape,
    ) -> Result<()> {
        let Some(storage) = all.first().map(|projection| projection.storage) else { return Ok(()) };
        let rows = k.batch.iter().product::<i64>() * k.m;
        let lhs = self.flat_rows(k)?;
        let mut params = vec![Param::Address(Address::of(&lhs))];
        params.extend([rows, k.k, lhs.strides[0], lhs.strides[1], k.m].map(Param::Number));
        let (mut endings, mut results, mut read, mut lines) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (number, projection) in all.iter().enumerate() {
            let &&Projection { n, length, ref epilogue, .. } = projection;
            let codes = self.contiguous(&projection.codes, &[n, length], storage)?;
            let scales = match &projection.scales {
                Some((length, scales)) => Some(self.contiguous(scales, &[n, *length], storage)?),
                None => None,
            };
            read.extend([&codes].into_iter().chain(&scales).map(|access| access.slot));
            let weights = Weights { storage, codes, scales };
            params.extend([Param::Address(Address::of(&weights.codes)), weights.scale_address()]);
            params.push(Param::Number(n));
            params.extend(weights.rows().map(Param::Number));
            endings.push(match ending::write(epilogue, number)? {
                Some(ending) => (ending, epilogue.shape.len() > 2),
                None => {
                    let dtype = k.lhs.dtype;
                    let offset = self.scratch(dtype, rows * n)?;
                    let result = |strides| Access { slot: SCRATCH, dtype, offset, strides };
                    let Some(ending) = ending::write(&store(&[rows, n], result(vec![n, 1])), number)? else {
                        bail!(internal, "a result in scratch memory is not stored")
                    };
                    results.push((epilogue, result(row_major(&epilogue.shape)?.0)));
                    (ending, false)
                }
            });
            lines += (n as u64).div_ceil(LINES as u64);
        }
        params.extend(endings.iter().flat_map(|(ending, _)| &ending.params).map(|(_, param)| *param));
        let decoder = Decoder::new(storage)?;
        let call = Call {
            source: source(&decoder, &shape, k.lhs.dtype, &endings),
            grid: [lines.clamp(1, self.gpu.multiprocessors().into()) as u32, 1, 1],
            block: [shape.warps as u32 * 32, 1, 1],
            shared: shape.layout(&decoder).bytes as u32,
            params,
        };
        // Weights that were copied have just been written.
        self.launches.push(match read.contains(&SCRATCH) {
            true => PlannedLaunch::Function(call),
            false => PlannedLaunch::Early(call, read),
        });
        results.into_iter().try_for_each(|(epilogue, result)| self.epilogue(epilogue, result))
    }
}

/// The function for products with some endings, each over batches of rows if that is said.
pub(super) fn source(decoder: &Decoder, shape: &Shape, dtype: DType, endings: &[(Ending, bool)]) -> Source {
    let layout = shape.layout(decoder);
    let words = [
        ("ROWS", shape.rows),
        ("WIDE", shape.wide),
        ("WARPS", shape.warps),
        ("COUNT", endings.len()),
        ("SEGMENT", SEGMENT),
        ("STAGES", STAGES),
        ("STAGE", layout.stage),
        ("LINE_BYTES", layout.line),
        ("SCALE_LINE_BYTES", layout.scale_line),
        ("RING_AT", layout.ring),
        ("RECORDS_AT", layout.records),
    ];
    let mut params = String::from(
        "const IN *x, long long rows, long long k, long long x_row, long long x_col, long long m, const __grid_constant__ \
         Matrices matrices",
    );
    let mut body = String::new();
    for (number, (ending, has_batches)) in endings.iter().enumerate() {
        for (declaration, _) in &ending.params {
            params += ", ";
            params += declaration;
        }
        let place = match has_batches {
            true => "number = at / m, row = at - number * m",
            false => "number = 0, row = at",
        };
        body += &format!(
            "        if (matrix == {number}) {{\n            const long long {place};\n{}            return;\n        }}\n",
            ending.body
        );
    }
    let text = [
        include_str!("activations.cuh"),
        include_str!("few.cu"),
        &format!(
            "\nextern \"C\" __global__ void __launch_bounds__(WARPS * 32, 1) NAME({params}) {{\n    multiply(x, rows, k, x_row, \
             x_col, matrices, [&](int matrix, float product, long long at, long long column) {{\n{body}    }});\n}}\n"
        ),
    ]
    .concat();
    let words = words.map(|(word, number)| (word, number.to_string()));
    let own = decoder.source("few", &[("IN", dtype)], &words, &text);
    let name = named(&format!("qmatmul_{}_{dtype}_few", decoder.name), &own.code);
    let code = own.code.replacen("#define NAME few\n", &format!("#define NAME {name}\n"), 1);
    Source { name, prelude: Cow::Borrowed(PRELUDE.as_str()), code }
}
