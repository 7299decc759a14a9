//! Tables of op cases as JSON: an op, its arguments with generated tensors, and the dtypes to run it with.

use max_core::{Bindings, DType, DeviceRef, Dim, Element, Number, Result, Shape, TensorType, dispatch};
use max_graph::registry::{self, Arg, Output};
use max_graph::{Graph, HostTensor, Value};
use serde_json::Value as Json;

/// A row in one dtype: its graph, and inputs for it.
pub struct Case {
    pub graph: Graph,
    pub inputs: Vec<HostTensor>,
}

/// The rows of a table in the folder of cases, in each of their dtypes.
pub fn rows(name: &str) -> Vec<(Json, DType)> {
    // A test binary that was built elsewhere is told where they are.
    let folder = std::env::var("MAX_CASES").unwrap_or(format!("{}/../../cases", env!("CARGO_MANIFEST_DIR")));
    let table: Vec<Json> =
        serde_json::from_str(&std::fs::read_to_string(format!("{folder}/{name}")).unwrap()).unwrap();
    let dtypes = |row: &Json| -> Vec<DType> {
        row["dtypes"].as_array().unwrap().iter().flat_map(|name| group(name.as_str().unwrap())).collect()
    };
    table
        .into_iter()
        .flat_map(|row| dtypes(&row).into_iter().map(move |dtype| (row.clone(), dtype)))
        .collect()
}

fn group(name: &str) -> Vec<DType> {
    use DType::*;
    match name {
        "float" => vec![Float32, Float64],
        "half" => vec![Float16, BFloat16],
        "small" => DType::ALL.iter().copied().filter(|dtype| dtype.is_small_float()).collect(),
        "int" => vec![Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64],
        other => vec![other.parse().unwrap()],
    }
}

/// A tensor input written as `$[n=3, 2]` or `int64[4]<5`, with generated values.
struct Input {
    ty: TensorType,
    value: HostTensor,
}

fn parse_input(text: &str, row: DType, seed: usize) -> Option<Input> {
    let (head, rest) = text.split_once('[')?;
    let dtype = if head == "$" { row } else { head.parse().ok()? };
    let (dims, bound) = rest.split_once(']')?;
    let mut bindings = Bindings::new();
    let mut parse_dim = |dim: &str| match dim.split_once('=') {
        Some((name, size)) => {
            bindings.insert(name.into(), size.parse().unwrap());
            Dim::symbolic(name).unwrap()
        }
        None => dim.parse().unwrap(),
    };
    let shape: Shape = dims.split(',').map(str::trim).filter(|d| !d.is_empty()).map(&mut parse_dim).collect();
    let sizes = shape.evaluate(&bindings).unwrap();
    let limit = bound.trim_start_matches(['<', '±']).parse::<usize>().ok();
    let values = (0..sizes.iter().product()).map(|i: usize| {
        let draw = (i * 7919 + seed * 104729 + 13) % 6007;
        match limit {
            Some(limit) => (draw % limit) as f64,
            None if dtype.is_float() => draw as f64 / 1000.0 - 3.0,
            None => (draw % 5) as f64,
        }
    });
    let value =
        dispatch!(dtype, T => HostTensor::from_vec(sizes, values.map(T::from_double).collect::<Vec<T>>()));
    Some(Input { ty: TensorType::new(dtype, shape, DeviceRef::CPU), value: value.unwrap() })
}

fn inputs(json: &Json, row: DType, found: &mut Vec<Input>) {
    match json {
        Json::Array(items) => items.iter().for_each(|item| inputs(item, row, found)),
        Json::Object(items) => items.values().for_each(|item| inputs(item, row, found)),
        Json::String(s) => found.extend(parse_input(s, row, found.len())),
        _ => {}
    }
}

/// An argument of a case; inputs become the graph's values in order of appearance.
fn arg(json: &Json, row: DType, values: &mut dyn Iterator<Item = Value>) -> Arg {
    match json {
        Json::Null => Arg::None,
        Json::Bool(b) => Arg::Number(Number::Bool(*b)),
        Json::Number(n) => {
            n.as_i64().map_or_else(|| Arg::Number(Number::Float(n.as_f64().unwrap())), Arg::from)
        }
        Json::Array(items) => Arg::List(items.iter().map(|item| arg(item, row, values)).collect()),
        Json::String(s) => match s.split_once(':') {
            Some(("dtype", "$")) => Arg::DType(row),
            Some(("dtype", name)) => Arg::DType(name.parse().unwrap()),
            Some(("device", kind)) => Arg::Device(DeviceRef { kind: kind.parse().unwrap(), id: 0 }),
            Some(("type", text)) => Arg::Type(parse_input(text, row, 0).unwrap().ty.into()),
            Some((_, name)) => name.into(),
            None if parse_input(s, row, 0).is_some() => Arg::Value(values.next().unwrap()),
            None => s.as_str().into(),
        },
        Json::Object(_) => panic!("an argument cannot be an object"),
    }
}

/// Functions that Python dispatches on their arguments, resolved to the function meant.
fn resolve(op: &str, args: &mut Vec<Arg>, named: &mut Vec<(String, Arg)>) -> String {
    let mut take = |name: &str| named.iter().position(|(n, _)| n == name).map(|at| named.swap_remove(at).1);
    match op {
        "max" | "min" if args.len() == 1 => format!("reduce_{op}"),
        "gelu" => match take("approximate").or_else(|| (args.len() > 1).then(|| args.remove(1))) {
            Some(Arg::Str(kind)) if kind != "none" => format!("gelu_{kind}"),
            _ => op.into(),
        },
        "conv2d" | "conv2d_transpose" | "conv3d" => {
            let axes = if op == "conv3d" { 3 } else { 2 };
            let (more, none, filter_layout) = match op {
                "conv2d_transpose" => ("output_paddings", Arg::List(vec![0.into(); 2]), "RSCF"),
                "conv3d" => ("groups", 1.into(), "QRSCF"),
                _ => ("groups", 1.into(), "RSCF"),
            };
            let ones = Arg::List(vec![1.into(); axes]);
            let mut given = args.drain(2..).collect::<Vec<_>>().into_iter();
            let mut option =
                |name: &str, default: Arg| given.next().or_else(|| take(name)).unwrap_or(default);
            let moves = [
                option("stride", ones.clone()),
                option("dilation", ones),
                option("padding", Arg::List(vec![0.into(); 2 * axes])),
                option(more, none),
            ];
            let bias = option("bias", Arg::None);
            let layouts =
                [option("input_layout", "NHWC".into()), option("filter_layout", filter_layout.into())];
            args.extend([bias, Arg::List(moves.into_iter().chain(layouts).collect())]);
            op.into()
        }
        _ => op.into(),
    }
}

/// Builds the graph of a row and generates its inputs.
pub fn read(row: &Json, dtype: DType) -> Result<Case> {
    let mut found = Vec::new();
    inputs(&row["args"], dtype, &mut found);
    inputs(row.get("kwargs").unwrap_or(&Json::Null), dtype, &mut found);
    let graph = Graph::new("case", found.iter().map(|i| i.ty.clone()))?;
    let _scope = graph.enter();
    let mut values = graph.inputs().into_iter();
    let mut args: Vec<Arg> =
        row["args"].as_array().unwrap().iter().map(|a| arg(a, dtype, &mut values)).collect();
    let kwargs = row.get("kwargs").and_then(Json::as_object).into_iter().flatten();
    let mut named: Vec<(String, Arg)> =
        kwargs.map(|(n, a)| (n.clone(), arg(a, dtype, &mut values))).collect();
    let name = resolve(row["op"].as_str().unwrap(), &mut args, &mut named);
    let outputs = match registry::call(&name, args, named)? {
        Output::None => vec![],
        Output::One(value) => vec![value],
        Output::Many(values) => values,
    };
    graph.output(outputs)?;
    Ok(Case { graph, inputs: found.into_iter().map(|i| i.value).collect() })
}
