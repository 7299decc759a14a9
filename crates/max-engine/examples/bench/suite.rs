//! The benchmarks: the rows of a case table, and graphs of several ops that should fuse.

use max_core::{DType, DeviceRef, Element, Result, Shape, TensorType, dispatch};
use max_graph::{Graph, HostTensor, TensorValue, Value, ops};
use serde_json::Value as Json;

use crate::options::Options;
use crate::table::{self, Case};

/// One benchmark.
pub struct Bench {
    pub name: String,
    pub dtype: DType,
    source: Source,
}

enum Source {
    Row(Json),
    Pattern { shapes: Vec<Vec<usize>>, build: Build },
}

type Build = fn(&[TensorValue]) -> Result<TensorValue>;

impl Bench {
    /// Its op, arguments and dtype, which filters match.
    pub fn title(&self) -> String {
        format!("{} {}", self.name, self.dtype)
    }

    /// Its graph and inputs, made on demand: together they are large.
    pub fn case(&self) -> Result<Case> {
        match &self.source {
            Source::Row(row) => table::read(row, self.dtype),
            Source::Pattern { shapes, build } => pattern(self.dtype, shapes, *build),
        }
    }
}

/// The benchmarks that were asked for.
pub fn suite(options: &Options) -> Vec<Bench> {
    let table = if options.small { "ops.json" } else { "bench.json" };
    let mut all: Vec<Bench> = table::rows(table)
        .into_iter()
        .map(|(mut row, dtype)| {
            if options.quick {
                shrink(&mut row["args"]);
            }
            Bench { name: name(&row), dtype, source: Source::Row(row) }
        })
        .collect();
    if !options.small {
        all.extend(patterns(if options.quick { SHRINKS } else { 1 }));
    }
    all.retain(|bench| options.wants(&bench.title()));
    all
}

/// The op of a row with the arguments that are not tensors.
fn name(row: &Json) -> String {
    let is_tensor = |arg: &&Json| arg.to_string().contains('[') && arg.to_string().contains('"');
    let positional = row["args"].as_array().into_iter().flatten().filter(|arg| !is_tensor(arg)).map(plain);
    let kwargs = row.get("kwargs").and_then(Json::as_object).into_iter().flatten();
    let named = kwargs.filter(|(_, arg)| !is_tensor(arg)).map(|(name, arg)| format!("{name}={}", plain(arg)));
    let arguments: Vec<String> = positional.chain(named).collect();
    let op = row["op"].as_str().unwrap_or_default();
    if arguments.is_empty() { op.into() } else { format!("{op}({})", arguments.join(", ")) }
}

/// An argument as a person writes it.
fn plain(arg: &Json) -> String {
    arg.to_string().trim_matches('"').trim_start_matches("dtype:").replace(',', ", ")
}

/// A quick run divides the large sizes by this.
const SHRINKS: usize = 8;

/// A size in a quick run.
pub fn smaller(size: u64) -> u64 {
    if size >= 256 { size / SHRINKS as u64 } else { size }
}

/// Divides the large numbers in the arguments of a row, inside and outside of shapes, so that they still fit together.
fn shrink(args: &mut Json) {
    match args {
        Json::Array(items) => items.iter_mut().for_each(shrink),
        Json::Number(n) => {
            if let Some(size) = n.as_u64() {
                *n = smaller(size).into();
            }
        }
        Json::String(text) => {
            let mut shrunk = String::new();
            let mut digits = String::new();
            for c in text.chars().chain([' ']) {
                if c.is_ascii_digit() {
                    digits.push(c);
                    continue;
                }
                let number = std::mem::take(&mut digits);
                shrunk += &number.parse().map_or(number, |size| smaller(size).to_string());
                shrunk.push(c);
            }
            *text = shrunk.trim_end().into();
        }
        _ => {}
    }
}

/// Building blocks of models, written op by op.
fn patterns(shrinks: usize) -> Vec<Bench> {
    let n = 2048 / shrinks;
    let heads = 8;
    let table: [(&str, Vec<Vec<usize>>, Build); 10] = [
        ("relu(x + y) * 2", vec![vec![8192 * n]; 2], bandwidth),
        ("transposed + 1", vec![vec![2 * n, 2 * n]], transposed),
        ("softmax", vec![vec![2 * n, 2 * n]], |x| ops::softmax(&x[0], -1)),
        ("mean of rows", vec![vec![4 * n, n]], |x| ops::mean(&x[0], -1)),
        ("chain of 8", vec![vec![n, n]; 2], chain),
        ("chain of two functions", vec![vec![4096 * n]; 2], functions),
        ("rms_norm by ops", vec![vec![n, n], vec![n]], rms_norm),
        ("softmax by ops", vec![vec![n, n]], softmax),
        ("mlp", vec![vec![n / 4, n / 2], vec![n / 2, n], vec![n], vec![n, n / 2]], mlp),
        ("attention by ops", vec![vec![heads, n / 4, 64]; 3], attention),
    ];
    let bench = |(name, shapes, build): &(&str, Vec<Vec<usize>>, Build), dtype| Bench {
        name: (*name).into(),
        dtype,
        source: Source::Pattern { shapes: shapes.clone(), build: *build },
    };
    table.iter().flat_map(|row| [DType::Float32, DType::BFloat16].map(|dtype| bench(row, dtype))).collect()
}

fn pattern(dtype: DType, shapes: &[Vec<usize>], build: Build) -> Result<Case> {
    let types = shapes
        .iter()
        .map(|sizes| TensorType::new(dtype, sizes.iter().copied().collect::<Shape>(), DeviceRef::CPU));
    let graph = Graph::new("pattern", types)?;
    let scope = graph.enter();
    let inputs = graph.inputs().iter().map(Value::tensor).collect::<Result<Vec<_>>>()?;
    graph.output(build(&inputs)?)?;
    drop(scope);
    let input = |sizes: &Vec<usize>| {
        let count = sizes.iter().product();
        let draw = |i: usize| (i * 7919 % 6007) as f64 / 3000.0 - 1.0;
        dispatch!(dtype, T => HostTensor::from_vec(sizes.clone(), (0..count).map(|i| T::from_double(draw(i))).collect::<Vec<T>>()))
    };
    Ok(Case { graph, inputs: shapes.iter().map(input).collect::<Result<Vec<_>>>()? })
}

fn chain(x: &[TensorValue]) -> Result<TensorValue> {
    let [x, y] = x else { return ops::tensor(0.0) };
    let gate = ops::sigmoid(ops::add(ops::mul(x, 1.5), 0.25));
    ops::relu(ops::sub(ops::mul(ops::mul(gate, y), 0.5), ops::abs(x)))
}

fn functions(x: &[TensorValue]) -> Result<TensorValue> {
    let [x, y] = x else { return ops::tensor(0.0) };
    let gelu = ops::gelu(ops::add(ops::mul(x, 1.5), y))?;
    ops::add(ops::tanh(ops::sub(ops::mul(gelu, y), x)), x)
}

fn rms_norm(x: &[TensorValue]) -> Result<TensorValue> {
    let [x, weight] = x else { return ops::tensor(0.0) };
    let square = ops::mean(ops::mul(x, x), -1);
    ops::mul(ops::mul(x, ops::rsqrt(ops::add(square, 1e-5))), weight)
}

fn bandwidth(x: &[TensorValue]) -> Result<TensorValue> {
    ops::relu(&x[0] + &x[1])? * 2.0
}

fn transposed(x: &[TensorValue]) -> Result<TensorValue> {
    ops::transpose(&x[0], 0, 1)? + 1.0
}

fn softmax(x: &[TensorValue]) -> Result<TensorValue> {
    let [x] = x else { return ops::tensor(0.0) };
    let exp = ops::exp(ops::sub(x, ops::reduce_max(x, -1)))?;
    ops::div(&exp, ops::sum(&exp, -1))
}

fn mlp(x: &[TensorValue]) -> Result<TensorValue> {
    let [x, up, bias, down] = x else { return ops::tensor(0.0) };
    ops::matmul(ops::gelu_tanh(ops::add(ops::matmul(x, up), bias)), down)
}

fn attention(x: &[TensorValue]) -> Result<TensorValue> {
    let [q, k, v] = x else { return ops::tensor(0.0) };
    let scores = ops::mul(ops::matmul(q, ops::transpose(k, -1, -2)), 0.125);
    ops::matmul(ops::softmax(scores, -1), v)
}
