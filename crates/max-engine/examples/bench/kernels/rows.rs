//! The rows of `cases/kernels.json`: what is computed, and how much.
//!
//! A row has a `group`, the `model` it comes from, a `layer` and `dtypes`, and one of
//! - `matmul`: a list of `[rows, depth, columns]`; `transposed` (`left` or `right`) says which operand is stored transposed,
//! - `conv`: `input` (NHWC), `filter` (RSCF), and `stride`, `padding` and `groups` where they differ from 1, 0 and 1,
//! - `qmatmul`: a list of `[rows, depth, columns]` with a constant right operand in the `encodings`, beside PyTorch's float32,
//! - `attention`: `batch`, `heads`, `queries`, `keys` and `depth`; `kv_heads` if fewer, and `causal`.
//!
//! With `constant` the operands after the first are constants of the graph, like the weights of a model. With `rotate`
//! every run takes the next of several copies, so that operands come from memory however large the last-level cache is.

use std::fs;

use max_core::{DType, QuantizationEncoding};
use serde_json::{Value as Json, json};

use crate::options::Options;
use crate::suite::smaller;

/// One row with one of its shapes and one of its dtypes.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub group: String,
    pub name: String,
    pub dtype: DType,
    pub work: Work,
    pub constant: bool,
    rotate: bool,
}

/// What a kernel computes.
#[derive(Clone, Debug)]
pub enum Work {
    Matmul {
        m: usize,
        k: usize,
        n: usize,
        transposed: Option<Side>,
    },
    Quantized {
        m: usize,
        k: usize,
        n: usize,
        encoding: QuantizationEncoding,
    },
    Conv {
        input: [usize; 4],
        filter: [usize; 4],
        stride: usize,
        padding: usize,
        groups: usize,
    },
    Attention {
        batch: usize,
        heads: usize,
        kv_heads: usize,
        queries: usize,
        keys: usize,
        depth: usize,
        causal: bool,
    },
}

/// An operand of a matmul.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Side {
    Left,
    Right,
}

/// The total size of rotated copies: more than any last-level cache holds.
const ROTATED_BYTES: usize = 256 << 20;
const MOST_COPIES: usize = 128;

/// The requested kernels.
pub fn kernels(options: &Options) -> Result<Vec<Kernel>, String> {
    let mut kernels = table()?;
    kernels.retain(|kernel| options.groups.contains(&&*kernel.group) && options.wants(&kernel.title()));
    if options.quick {
        kernels.iter_mut().for_each(|kernel| kernel.work.shrink());
    }
    if kernels.is_empty() { Err("no kernel has one of the words in its title".into()) } else { Ok(kernels) }
}

fn table() -> Result<Vec<Kernel>, String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../cases/kernels.json");
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"))?;
    let rows: Vec<Json> = serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))?;
    let parsed = rows.iter().map(|row| parse(row).ok_or(format!("{path}: invalid row: {row}")));
    Ok(parsed.collect::<Result<Vec<_>, _>>()?.concat())
}

fn parse(row: &Json) -> Option<Vec<Kernel>> {
    let text = |key: &str| row.get(key).and_then(Json::as_str);
    let flag = |key: &str| row.get(key).and_then(Json::as_bool).unwrap_or(false);
    let mut kernels = Vec::new();
    for work in works(row)? {
        for dtype in row.get("dtypes")?.as_array()? {
            kernels.push(Kernel {
                group: text("group")?.into(),
                name: format!("{} {}", text("model")?, text("layer")?),
                dtype: dtype.as_str()?.parse().ok()?,
                work: work.clone(),
                constant: flag("constant"),
                rotate: flag("rotate"),
            });
        }
    }
    Some(kernels)
}

fn works(row: &Json) -> Option<Vec<Work>> {
    if let Some(shapes) = row.get("matmul") {
        let transposed = match row.get("transposed").and_then(Json::as_str) {
            None => None,
            Some("left") => Some(Side::Left),
            Some("right") => Some(Side::Right),
            Some(_) => return None,
        };
        let product = |shape: &Json| {
            let [m, k, n] = sizes(shape)?;
            Some(Work::Matmul { m, k, n, transposed })
        };
        return shapes.as_array()?.iter().map(product).collect();
    }
    if let Some(shapes) = row.get("qmatmul") {
        let mut works = vec![];
        for (shape, encoding) in shapes.as_array()?.iter().flat_map(|shape| {
            row.get("encodings").and_then(Json::as_array).into_iter().flatten().map(move |name| (shape, name))
        }) {
            let [m, k, n] = sizes(shape)?;
            works.push(Work::Quantized { m, k, n, encoding: encoding.as_str()?.parse().ok()? });
        }
        return Some(works);
    }
    if let Some(conv) = row.get("conv") {
        let number = |key: &str, default| conv.get(key).map_or(Some(default), size);
        let (input, filter) = (sizes(conv.get("input")?)?, sizes(conv.get("filter")?)?);
        let (stride, padding) = (number("stride", 1)?, number("padding", 0)?);
        return Some(vec![Work::Conv { input, filter, stride, padding, groups: number("groups", 1)? }]);
    }
    let attention = row.get("attention")?;
    let number = |key: &str| attention.get(key).and_then(size);
    let heads = number("heads")?;
    Some(vec![Work::Attention {
        batch: number("batch")?,
        heads,
        kv_heads: number("kv_heads").unwrap_or(heads),
        queries: number("queries")?,
        keys: number("keys")?,
        depth: number("depth")?,
        causal: attention.get("causal").and_then(Json::as_bool).unwrap_or(false),
    }])
}

fn size(json: &Json) -> Option<usize> {
    json.as_u64().and_then(|size| size.try_into().ok())
}

fn sizes<const N: usize>(json: &Json) -> Option<[usize; N]> {
    json.as_array()?.iter().map(size).collect::<Option<Vec<_>>>()?.try_into().ok()
}

impl Kernel {
    /// Its group, model, layer and dtype, which filters match.
    pub fn title(&self) -> String {
        format!("{} {} {}", self.group, self.name, self.dtype)
    }

    /// How many sets of operands its runs cycle through.
    pub fn copies(&self) -> usize {
        let bytes: usize = self.operand_bytes().iter().sum();
        if self.rotate { ROTATED_BYTES.div_ceil(bytes.max(1)).clamp(1, MOST_COPIES) } else { 1 }
    }

    /// The bytes that a run must read and write.
    pub fn bytes(&self) -> usize {
        self.operand_bytes().iter().sum::<usize>() + self.bytes_of(&self.work.result())
    }

    /// The bytes of each operand.
    pub fn operand_bytes(&self) -> Vec<usize> {
        let mut bytes: Vec<usize> = self.work.operands().iter().map(|shape| self.bytes_of(shape)).collect();
        if let Work::Quantized { k, n, encoding, .. } = self.work {
            bytes[1] = encoding.blocks().map_or(0, |format| n * k / format.elements * format.bytes);
        }
        bytes
    }

    fn bytes_of(&self, shape: &[usize]) -> usize {
        shape.iter().product::<usize>() * self.dtype.size_in_bytes()
    }

    /// The row as a request to the other process.
    pub fn request(&self) -> Json {
        let mut request = match &self.work {
            Work::Matmul { transposed, .. } => json!({
                "work": "matmul",
                "left": *transposed == Some(Side::Left), "right": *transposed == Some(Side::Right),
            }),
            Work::Quantized { .. } => json!({ "work": "matmul", "left": false, "right": true }),
            Work::Conv { stride, padding, groups, .. } => {
                json!({"work": "conv", "stride": stride, "padding": padding, "groups": groups})
            }
            Work::Attention { causal, .. } => json!({"work": "attention", "causal": causal}),
        };
        request["operands"] = json!(self.work.operands());
        request["dtype"] = json!(self.dtype.to_string());
        request["constant"] = json!(self.constant);
        // Weights that PyTorch has as floats are more bytes, so fewer copies exceed the cache.
        let copies =
            if matches!(self.work, Work::Quantized { .. }) { self.copies().min(2) } else { self.copies() };
        request["copies"] = json!(copies);
        request
    }
}

impl Work {
    /// The shapes of its operands, as stored in memory.
    pub fn operands(&self) -> Vec<Vec<usize>> {
        match *self {
            Work::Matmul { m, k, n, transposed } => {
                let left = if transposed == Some(Side::Left) { [k, m] } else { [m, k] };
                let right = if transposed == Some(Side::Right) { [n, k] } else { [k, n] };
                vec![left.into(), right.into()]
            }
            Work::Quantized { m, k, n, .. } => vec![vec![m, k], vec![n, k]],
            Work::Conv { input, filter, .. } => vec![input.into(), filter.into()],
            Work::Attention { batch, heads, kv_heads, queries, keys, depth, .. } => {
                let cached = vec![batch, kv_heads, keys, depth];
                vec![vec![batch, heads, queries, depth], cached.clone(), cached]
            }
        }
    }

    pub fn result(&self) -> Vec<usize> {
        match *self {
            Work::Matmul { m, n, .. } | Work::Quantized { m, n, .. } => vec![m, n],
            Work::Conv {
                input: [images, height, width, _],
                filter: [r, s, _, filters],
                stride,
                padding,
                ..
            } => {
                let places = |size: usize, taps: usize| (size + 2 * padding - taps) / stride + 1;
                vec![images, places(height, r), places(width, s), filters]
            }
            Work::Attention { batch, heads, queries, depth, .. } => vec![batch, heads, queries, depth],
        }
    }

    /// Multiplications and additions; for causal attention, only those of visible scores.
    pub fn flops(&self) -> f64 {
        let results = self.result().iter().product::<usize>() as f64;
        let terms = match *self {
            Work::Matmul { k, .. } | Work::Quantized { k, .. } => k as f64,
            Work::Conv { filter: [r, s, channels, _], .. } => (r * s * channels) as f64,
            Work::Attention { keys, causal: true, .. } => (keys + 1) as f64,
            Work::Attention { keys, .. } => 2.0 * keys as f64,
        };
        2.0 * results * terms
    }

    /// How it is displayed: the sizes of operands, and how they are stored.
    pub fn describe(&self) -> String {
        let operands = self.operands();
        match *self {
            Work::Matmul { m, k, n, transposed } => {
                let mark = |side| if transposed == Some(side) { "'" } else { "" };
                format!("{m}x{k}{} {k}x{n}{}", mark(Side::Left), mark(Side::Right))
            }
            Work::Quantized { m, k, n, encoding } => format!("{m}x{k} {n}x{k} {}", encoding.name()),
            Work::Conv { stride, .. } => {
                let stride = if stride == 1 { String::new() } else { format!(" /{stride}") };
                crate::columns::shapes(&operands) + &stride
            }
            Work::Attention { causal, .. } => {
                crate::columns::shapes(&operands[..2]) + if causal { " causal" } else { "" }
            }
        }
    }

    /// Makes large sizes smaller, so that they still fit together.
    fn shrink(&mut self) {
        let mut sizes: Vec<&mut usize> = match self {
            Work::Matmul { m, k, n, .. } => vec![m, k, n],
            Work::Quantized { m, n, .. } => vec![m, n],
            Work::Conv { input, filter, groups, .. } => {
                input.iter_mut().chain(filter.iter_mut()).chain([groups]).collect()
            }
            Work::Attention { queries, keys, .. } => vec![queries, keys],
        };
        sizes.iter_mut().for_each(|size| **size = smaller(**size as u64) as usize);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::kernels::GROUPS;

    #[test]
    fn the_table_is_as_promised() {
        let kernels = table().unwrap();
        let groups: BTreeSet<&str> = kernels.iter().map(|kernel| &*kernel.group).collect();
        assert_eq!(groups, BTreeSet::from(GROUPS));
        for kernel in &kernels {
            let largest = kernel.operand_bytes().into_iter().max().unwrap();
            assert!(largest <= 256 << 20, "{} has an operand of {largest} bytes", kernel.title());
        }
        let sweep = kernels.iter().filter(|kernel| kernel.group == "sweep").count();
        assert!(sweep >= 60, "a mean over {sweep} shapes says little");
    }

    #[test]
    fn work_is_counted() {
        let product = Work::Matmul { m: 2, k: 3, n: 4, transposed: Some(Side::Right) };
        assert_eq!((product.operands(), product.result()), (vec![vec![2, 3], vec![4, 3]], vec![2, 4]));
        assert_eq!((product.flops(), product.describe()), (48.0, "2x3 3x4'".into()));
        let conv = Work::Conv { input: [1, 8, 8, 3], filter: [3, 3, 3, 5], stride: 2, padding: 1, groups: 1 };
        assert_eq!((conv.result(), conv.flops()), (vec![1, 4, 4, 5], 2.0 * 80.0 * 27.0));
    }
}
