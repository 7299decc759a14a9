//! `docs/ops.md`, the list of ops: made from the declarations of the ops, the table of op cases, and what the cases compile
//! to. This test compares the page with the file; `UPDATE_EXPECT=1 cargo test -p max-engine --test ops_doc` rewrites it.

#[path = "cases/table.rs"]
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use max_compiler::{Options, Target, compile};
use max_core::kernel::Kernel;
use max_core::{DType, DeviceRef, Dim, Type};
use max_driver::{Buffer, Device};
use max_engine::InferenceSession;
use max_graph::registry;
use serde_json::Value as Json;

use table::{Case, read, rows};

/// The top of the page.
const HEAD: &str = "\
# The ops

Every op of `max.graph.ops`, under the same name in `max.experimental.functional` and, with a few exceptions, in Rust as
`max::graph::ops`. This page is made from their declarations by a test, which fails when it is out of date.

- **dtypes**: *float* is float16, bfloat16, float32 and float64, *small float* the eight floats of at most eight bits,
  *int* all eight integer types.
- **runs as**: *view* means that no element is moved; *loop* is fused with what comes before and after it; `matmul + loop`
  means a kernel in whose final loop the ops that follow are computed; other kernels write their results to memory.
- **GPU**: whether it runs on an NVIDIA GPU. What does not is an error that names the op and the device.

In examples `x`, `y` and so on are tensors of the given types.

```python
import numpy as np
from max.experimental import functional as F
from max.experimental.tensor import Tensor

scores = Tensor(np.array([0.1, 0.7, 0.2], np.float32))
values, places = F.top_k(scores, 2)
print(values.to_numpy(), places.to_numpy())
```

```text
[0.7 0.2] [1 2]
```
";

/// Ops that the table of cases cannot describe, because they are not only functions of tensors: names in Python, the op
/// function, and an example.
const OTHERS: &[(&str, &str, &str)] = &[
    ("allgather", "allgather", "ops.allgather([x, y], signals)"),
    ("allreduce.sum", "allreduce.sum", "ops.allreduce.sum([x, y], signals)"),
    ("buffer_create", "buffer_create", "ops.buffer_create(BufferType(DType.float32, [4], DeviceRef.CPU()))"),
    ("buffer_load", "buffer_load", "ops.buffer_load(buffer)"),
    ("buffer_store", "buffer_store", "ops.buffer_store(buffer, x)"),
    ("buffer_store_slice", "buffer_store_slice", "ops.buffer_store_slice(buffer, x, [slice(0, 2)])"),
    ("call", "call", "ops.call(subgraph, x)"),
    ("cond", "cond", "ops.cond(predicate, [x.type], lambda: x, lambda: -x)"),
    ("constant", "constant", "ops.constant([1, 2], DType.float32, DeviceRef.CPU())"),
    ("constant_external", "constant_external", "ops.constant_external(\"w\", type)"),
    ("custom", "custom", "ops.custom(\"softcap\", DeviceRef.CPU(), [x], [x.type])"),
    ("distributed_broadcast", "distributed_broadcast", "ops.distributed_broadcast(x, signals)"),
    ("distributed_scatter", "distributed_scatter", "ops.distributed_scatter([x, y], signals)"),
    ("fence", "fence", "ops.fence(x)"),
    ("inplace_custom", "inplace_custom", "ops.inplace_custom(\"fill\", DeviceRef.CPU(), [buffer])"),
    ("print", "print", "ops.print(x, label=\"x\")"),
    ("random.gaussian", "random_gaussian", "ops.random.gaussian(x.type)"),
    ("random.set_seed", "random_set_seed", "ops.random.set_seed(7)"),
    ("random.uniform", "random_uniform", "ops.random.uniform(x.type, range=(-1, 1))"),
    ("reducescatter.sum", "reducescatter.sum", "ops.reducescatter.sum([x, y], signals)"),
    ("shape_to_tensor", "shape_to_tensor", "ops.shape_to_tensor(x.shape)"),
    ("slice_tensor", "slice_tensor", "ops.slice_tensor(x, [slice(1, None), ..., 0])"),
    ("transfer_to", "transfer_to", "ops.transfer_to(x, DeviceRef.GPU())"),
    ("while_loop", "while_loop", "ops.while_loop(x, lambda x: x < 9, lambda x: x + 1)"),
];

/// Op functions that are no op of their own in Python: parts of others, or methods of values.
const PARTS: &[&str] = &[
    "activate",
    "affine_group_norm",
    "affine_layer_norm",
    "all",
    "any",
    "apply_penalties_to_logits",
    "cache_add",
    "cache_key_norm",
    "cache_kv",
    "cache_qkv",
    "cache_rope",
    "cached_attention",
    "cached_self_attention",
    "convolution",
    "embedding",
    "flash_attention",
    "float8_e4m3fnuz",
    "float8_linear",
    "gated",
    "gelu_quick",
    "gelu_tanh",
    "grouped_matmul",
    "grouped_scaled_matmul",
    "latent_attention",
    "latent_keys",
    "latent_plan",
    "latent_prefill",
    "linear",
    "merge_ragged_tensors",
    "mixture",
    "moe_create_indices",
    "paged_attention",
    "paged_store",
    "quantize_dynamic_float8",
    "quantize_static_float8",
    "quantized_linear",
    "quantized_matmul",
    "ragged_flash_attention",
    "ragged_lengths",
    "ragged_positions",
    "rebind_filter",
    "reduce_max",
    "reduce_min",
    "rope",
    "rope_rows",
    "rope_table",
    "scaled_matmul",
    "scatter_set_constant",
    "sgmv",
    "sgmv_lora",
    "shard",
    "stdev",
    "swish_glu",
    "tensor",
    "topk_fused_sampling",
    "update_frequency_data",
    "var",
];

/// What the page says of an op.
#[derive(Default)]
struct Entry {
    dtypes: BTreeSet<DType>,
    runs_as: BTreeSet<String>,
    gpu: bool,
    example: Option<String>,
}

/// Whether a case runs, given that its graph could be built.
fn runs(case: &Case, session: &InferenceSession) -> bool {
    let buffer = |v: &max_graph::HostTensor| Buffer::from_host_bytes(v.bytes().clone(), v.dtype(), v.shape());
    let Ok(inputs) = case.inputs.iter().map(buffer).collect::<Result<Vec<_>, _>>() else { return false };
    session.load(&case.graph).and_then(|model| model.execute(&inputs)).is_ok()
}

/// The kernels that a case became.
fn kernels(case: &Case) -> Vec<Kernel<Dim>> {
    let options = Options { fuse: true, fold_exactly: false, nccl: false };
    let target = Target { devices: vec![DeviceRef::CPU], options };
    let program = compile(case.graph.body().clone(), &target, &mut |_, _| {}).unwrap();
    program.kernels.into_iter().map(|(_, kernel)| kernel).collect()
}

/// How a case runs, in words.
fn runs_as(case: &Case) -> String {
    let body = case.graph.body();
    if body.ops().all(|op| body.properties(op).form.is_free()) {
        return "view".into();
    }
    let name = |kernel: &Kernel<Dim>| match kernel {
        Kernel::Loop(_) => "loop".into(),
        kernel if kernel.endings().is_empty() => kernel.kind().into(),
        kernel => format!("{} + loop", kernel.kind()),
    };
    let kernels = kernels(case);
    let names: Vec<String> = kernels.iter().map(name).collect();
    let own: BTreeSet<&str> = names.iter().map(String::as_str).filter(|name| *name != "loop").collect();
    match own.is_empty() {
        true => "loop".into(),
        false => own.into_iter().collect::<Vec<_>>().join(", "),
    }
}

/// A type as in `float32[n, 3]`.
fn type_name(ty: &Type) -> String {
    match ty.array() {
        Some((dtype, shape)) => {
            let dims: Vec<String> = shape.iter().map(Dim::to_string).collect();
            format!("{dtype}[{}]", dims.join(", "))
        }
        None => ty.to_string(),
    }
}

/// A case as a call in Python with its types.
fn example(row: &Json, case: &Case) -> String {
    let mut names = ["x", "y", "z", "w", "v", "u"].into_iter();
    let mut inputs = case.graph.inputs().into_iter();
    let mut given = Vec::new();
    let mut text = |json: &Json| {
        python(json, &mut || {
            let name = names.next().unwrap();
            given.push(format!("{name}: {}", type_name(inputs.next().unwrap().type_())));
            name.to_owned()
        })
    };
    let mut args: Vec<String> = row["args"].as_array().unwrap().iter().map(&mut text).collect();
    let named = row.get("kwargs").and_then(Json::as_object).into_iter().flatten();
    args.extend(named.map(|(name, value)| format!("{name}={}", text(value))));
    let call = format!("`ops.{}({})`", row["op"].as_str().unwrap(), args.join(", "));
    let body = case.graph.body();
    let results = body.block.results.iter().flatten();
    let results: Vec<String> = results.map(|&value| type_name(body.type_of(value))).collect();
    let given = if given.is_empty() { String::new() } else { format!(", `{}`", given.join(", ")) };
    format!("{call}{given} → `{}`", results.join(", "))
}

/// An argument of a case as Python code.
fn python(json: &Json, next_input: &mut dyn FnMut() -> String) -> String {
    match json {
        Json::Null => "None".into(),
        Json::Bool(true) => "True".into(),
        Json::Bool(false) => "False".into(),
        Json::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| python(item, next_input)).collect();
            format!("[{}]", items.join(", "))
        }
        Json::String(text) => match text.split_once(':') {
            Some(("dtype", "$")) => "DType.float32".into(),
            Some(("dtype", name)) => format!("DType.{name}"),
            Some(("device", _)) => "DeviceRef.CPU()".into(),
            Some(("encoding", name)) => format!("QuantizationEncoding.{name}"),
            Some((_, name)) => format!("\"{name}\""),
            None if text.contains('[') => next_input(),
            None => format!("\"{text}\""),
        },
        other => other.to_string(),
    }
}

/// The names of dtypes, by groups where these are complete.
fn dtype_names(found: &BTreeSet<DType>) -> String {
    type Belongs = fn(DType) -> bool;
    let all = |belongs: Belongs| DType::ALL.iter().copied().filter(move |&dtype| belongs(dtype));
    let groups: [(&str, Belongs); 4] = [
        ("float", |dtype| dtype.is_float() && !dtype.is_small_float()),
        ("small float", |dtype| dtype.is_small_float()),
        ("int", |dtype| dtype.is_integral() && dtype != DType::Bool),
        ("bool", |dtype| dtype == DType::Bool),
    ];
    let mut names = Vec::new();
    for (name, belongs) in groups {
        let (here, missing): (Vec<DType>, Vec<DType>) = all(belongs).partition(|dtype| found.contains(dtype));
        match missing[..] {
            [] => names.push(name.to_owned()),
            [one] if here.len() > 4 => names.push(format!("{name} except {one}")),
            _ => names.extend(here.iter().map(DType::to_string)),
        }
    }
    names.join(", ")
}

/// The first sentence of what an op says about itself, without links.
fn summary(doc: &str) -> String {
    let paragraph: Vec<&str> = doc.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let paragraph = paragraph.join(" ").replace("[`", "`").replace("`]", "`");
    match paragraph.find(". ") {
        Some(end) => paragraph[..=end].into(),
        None => paragraph,
    }
}

fn page() -> String {
    let session = InferenceSession::new([Device::cpu()]);
    let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (row, _) in rows("ops.json") {
        if !seen.insert(row.to_string()) {
            continue;
        }
        let entry = entries
            .entry(row["op"].as_str().unwrap().into())
            .or_insert_with(|| Entry { gpu: true, ..Entry::default() });
        let varies = row["args"].to_string().contains("\"$") || row.to_string().contains("dtype:$");
        for &dtype in DType::ALL {
            if varies
                && !entry.dtypes.contains(&dtype)
                && read(&row, dtype).is_ok_and(|case| runs(&case, &session))
            {
                entry.dtypes.insert(dtype);
            }
        }
        let mut cases = [DType::Float32, DType::Bool, DType::Int32]
            .map(|dtype| read(&row, dtype).ok())
            .into_iter()
            .flatten();
        let Some(case) = cases.find(|case| runs(case, &session)) else { continue };
        entry.runs_as.insert(runs_as(&case));
        entry.gpu &= kernels(&case).iter().all(|kernel| !kernel.is_host_only());
        if case.inputs.iter().all(|input| input.num_elements() > 0) {
            entry.example.get_or_insert_with(|| example(&row, &case));
        }
    }
    let described: BTreeSet<&str> = entries
        .keys()
        .map(String::as_str)
        .chain(OTHERS.iter().map(|(_, function, _)| *function))
        .chain(PARTS.iter().copied())
        .collect();
    let missing: Vec<&str> = registry::functions()
        .map(|function| function.name)
        .filter(|name| !described.contains(name))
        .collect();
    assert!(missing.is_empty(), "neither cases/ops.json nor this test has {missing:?}");

    let summary = |name: &str| summary(registry::find(name).unwrap().doc);
    let mut page = HEAD.to_owned();
    page.push_str("\n## On tensors\n\n| op | what it does | dtypes | GPU | runs as | example |\n");
    page.push_str("|---|---|---|---|---|---|\n");
    for (name, entry) in &entries {
        let doc = match name.as_str() {
            "max" | "min" => format!("{} {}", summary(name), summary(&format!("reduce_{name}"))),
            name => summary(name),
        };
        let runs_as = entry.runs_as.iter().cloned().collect::<Vec<_>>().join("; ");
        let (dtypes, gpu) = (dtype_names(&entry.dtypes), if entry.gpu { "yes" } else { "no" });
        let example = entry.example.as_deref().unwrap_or_default();
        writeln!(page, "| `{name}` | {doc} | {dtypes} | {gpu} | {runs_as} | {example} |").unwrap();
    }
    page.push_str("\n## On more than tensors\n\n");
    page.push_str(
        "They take buffers, types, functions or devices, with tensors of any dtype on any device.\n\n",
    );
    page.push_str("| op | what it does | example |\n|---|---|---|\n");
    for (name, function, example) in OTHERS {
        writeln!(page, "| `{name}` | {} | `{example}` |", summary(function)).unwrap();
    }
    page
}

#[test]
fn the_list_of_ops_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ops.md");
    let page = page();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "docs/ops.md is out of date: UPDATE_EXPECT=1 cargo test -p max-engine --test ops_doc"
    );
}
