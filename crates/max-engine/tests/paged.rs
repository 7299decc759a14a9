//! Attention with a cache in pages gives the interpreter's results, on a GPU too. On a CPU it gives the same bits however tokens
//! are divided into executions and whatever sequences are computed together.

#[path = "cases/gpu.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod gpu;

use max_core::{BufferType, DType, DeviceRef, HostBytes, Result, Shape, TensorType, Type};
use max_driver::{Buffer, CPU, Device};
use max_engine::{InferenceSession, Model};
use max_graph::interpret::interpret_in_place;
use max_graph::{Graph, HostTensor, TensorValue, ops};

/// The sizes of a model of one attention.
#[derive(Clone, Copy, Debug)]
struct Config {
    dtype: DType,
    pages: usize,
    layers: usize,
    page: usize,
    heads: usize,
    key_heads: usize,
    depth: usize,
    causal: bool,
    window: i64,
    softcap: f64,
    /// Whether keys are stored twice, and are seen before there are values.
    apart: bool,
    /// Whether queries are rounded to the dtype of the cache first.
    rounded: bool,
}

const PLAIN: Config = Config {
    dtype: DType::Float32,
    pages: 12,
    layers: 2,
    page: 16,
    heads: 4,
    key_heads: 2,
    depth: 32,
    causal: true,
    window: -1,
    softcap: 0.0,
    apart: false,
    rounded: false,
};

impl Config {
    fn cache_shape(&self) -> [usize; 6] {
        let length = if self.dtype == DType::UInt8 { self.depth / 32 * 34 } else { self.depth };
        [self.pages, 2, self.layers, self.page, self.key_heads, length]
    }

    /// Stores keys and values in layer 1 and attends.
    fn graph(&self, device: DeviceRef) -> Result<Graph> {
        let mut shape: Vec<max_core::Dim> = self.cache_shape().iter().map(|&size| size.into()).collect();
        shape[0] = "pages".into();
        let floats =
            |heads: usize| Type::from(TensorType::new(DType::Float32, ("tokens", heads, self.depth), device));
        let ints = |shape: Shape| Type::from(TensorType::new(DType::UInt32, shape, device));
        let types = [
            BufferType::new(self.dtype, Shape::from(shape), device).into(),
            floats(self.heads),
            floats(self.key_heads),
            floats(self.key_heads),
            ints(("ends",).into()),
            ints(("batch",).into()),
            ints(("batch", "most").into()),
        ];
        let graph = Graph::new("attention", types)?;
        {
            let _scope = graph.enter();
            let cache = graph.inputs()[0].buffer()?;
            let [q, k, v, starts, lengths, table] = [1, 2, 3, 4, 5, 6].map(|at| graph.input(at));
            let (mut q, k, v, starts, lengths, table) = (q?, k?, v?, starts?, lengths?, table?);
            if self.rounded {
                q = ops::cast(&q, self.dtype)?;
            }
            let store =
                |x: &TensorValue, part: i64| ops::paged_store(&cache, x, &starts, &lengths, &table, 1, part);
            let scale = 1.0 / (self.depth as f64).sqrt();
            let (causal, window, softcap) = (self.causal, self.window, self.softcap);
            let attend = || {
                ops::paged_attention(&q, &cache, &starts, &lengths, &table, 1, scale, causal, window, softcap)
            };
            if self.apart {
                store(&v, 0)?;
            }
            store(&k, 0)?;
            let early = self.apart.then(attend).transpose()?;
            store(&v, 1)?;
            let mut all = attend()?;
            if let Some(early) = early {
                all = ops::sub(all, early)?;
            }
            let all = ops::cast(&all, DType::Float32)?;
            graph.output([all, ops::ragged_positions(&q, &starts, &lengths)?])?;
        }
        Ok(graph)
    }
}

fn draw(count: usize, seed: usize) -> Vec<f32> {
    let mut state = (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1u64 << 24) as f32) * 3.0 - 1.5
    };
    (0..count).map(|_| next()).collect()
}

/// A sequence: its pages, the tokens that are in the cache, and those that are computed.
#[derive(Clone, Debug)]
struct Sequence {
    pages: Vec<u32>,
    cached: usize,
    count: usize,
}

/// The sequences of an execution, each with a seed.
type Batch = Vec<(Sequence, usize)>;

/// The inputs after the cache; tokens are drawn by position and seed, so that they do not depend on their company.
fn inputs(config: &Config, sequences: &[(Sequence, usize)]) -> Vec<HostTensor> {
    let most = sequences.iter().map(|(sequence, _)| sequence.pages.len()).max().unwrap_or(0);
    let (mut starts, mut table) = (vec![0u32], Vec::new());
    let mut floats = [Vec::new(), Vec::new(), Vec::new()];
    let widths = [config.heads, config.key_heads, config.key_heads].map(|heads| heads * config.depth);
    for (sequence, seed) in sequences {
        starts.push(starts[starts.len() - 1] + sequence.count as u32);
        table.extend((0..most).map(|at| sequence.pages.get(at).copied().unwrap_or(u32::MAX)));
        for token in sequence.cached..sequence.cached + sequence.count {
            for (which, (to, width)) in floats.iter_mut().zip(widths).enumerate() {
                to.extend(draw(width, (seed * 1000 + token) * 3 + which));
            }
        }
    }
    let lengths: Vec<u32> = sequences.iter().map(|(sequence, _)| sequence.cached as u32).collect();
    let (batch, tokens) = (sequences.len(), starts[sequences.len()] as usize);
    let [q, k, v] = floats;
    vec![
        HostTensor::from_vec([tokens, config.heads, config.depth], q).unwrap(),
        HostTensor::from_vec([tokens, config.key_heads, config.depth], k).unwrap(),
        HostTensor::from_vec([tokens, config.key_heads, config.depth], v).unwrap(),
        HostTensor::from_vec([batch + 1], starts).unwrap(),
        HostTensor::from_vec([batch], lengths).unwrap(),
        HostTensor::from_vec([batch, most], table).unwrap(),
    ]
}

fn buffer(tensor: &HostTensor) -> Buffer {
    Buffer::from_host_bytes(tensor.bytes().clone(), tensor.dtype(), tensor.shape()).unwrap()
}

/// An empty cache.
fn zeros(config: &Config) -> HostTensor {
    let shape = config.cache_shape();
    let bytes = shape.iter().product::<usize>() * config.dtype.size_in_bytes();
    HostTensor::new(config.dtype, shape, HostBytes::from_vec(vec![0u8; bytes])).unwrap()
}

fn load(config: &Config) -> Model {
    InferenceSession::new([CPU()]).load(&config.graph(DeviceRef::CPU).unwrap()).unwrap()
}

/// Runs a model on its cache.
fn execute(model: &Model, cache: &Buffer, given: &[HostTensor]) -> Result<Vec<f32>> {
    let mut all = vec![cache.clone()];
    all.extend(given.iter().map(buffer));
    model.execute(&all)?[0].to_vec::<f32>()
}

fn fresh(config: &Config) -> Buffer {
    Buffer::zeros(config.dtype, &config.cache_shape(), &CPU()).unwrap()
}

/// Compares some executions on a device, one after the other, with the interpreter: results and cache.
fn check(config: Config, steps: &[Batch], device: &Device, tolerance: f32) {
    let graph = config.graph(device.device_ref()).unwrap();
    let model = InferenceSession::new([device.clone()]).load(&graph).unwrap();
    let cache = fresh(&config).to(device).unwrap();
    let mut expected_cache = zeros(&config);
    for step in steps {
        let given = inputs(&config, step);
        let mut all = vec![expected_cache.clone()];
        all.extend(given.iter().cloned());
        let expected = interpret_in_place(&graph.body(), &mut all, &()).unwrap();
        expected_cache = all.swap_remove(0);
        let mut buffers = vec![cache.clone()];
        buffers.extend(given.iter().map(|tensor| buffer(tensor).to(device).unwrap()));
        let found = model.execute(&buffers).unwrap();
        assert_eq!(found[1].to_vec::<i64>().unwrap(), expected[1].elements::<i64>().unwrap().to_vec());
        let stored = cache.to(&CPU()).unwrap();
        let stored = stored.host_bytes().unwrap();
        assert!(*stored == **expected_cache.bytes(), "the cache of {config:?} {step:?}");
        let (found, expected) = (found[0].to_vec::<f32>().unwrap(), expected[0].elements::<f32>().unwrap());
        let worst = found.iter().zip(expected.iter()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < tolerance && found.iter().all(|x| x.is_finite()), "{worst} for {config:?} {step:?}");
    }
}

/// Pages that are neither in order nor beside each other.
fn scattered(first: u32, count: u32, pages: u32) -> Vec<u32> {
    (0..count).map(|at| (first + at * 5) % pages).collect()
}

/// Caches, pages, heads and masks of many kinds, with steps that read a prompt and go on.
fn forms() -> Vec<(Config, Vec<Batch>)> {
    let base = Config { pages: 11, ..PLAIN };
    let mut configs = vec![base];
    for dtype in [DType::Float16, DType::BFloat16, DType::UInt8] {
        configs.push(Config { dtype, ..base });
    }
    configs.push(Config { window: 5, ..base });
    configs.push(Config { window: 40, softcap: 2.0, ..base });
    configs.push(Config { causal: false, ..base });
    configs.push(Config { apart: true, ..base });
    configs.push(Config { apart: true, dtype: DType::BFloat16, ..base });
    configs.push(Config { page: 1, pages: 173, ..base });
    configs.push(Config { page: 7, pages: 29, depth: 24, heads: 3, key_heads: 3, ..base });
    configs.push(Config { page: 128, heads: 8, key_heads: 1, depth: 64, ..base });
    configs.push(Config { page: 512, pages: 5, heads: 2, key_heads: 2, depth: 8, ..base });
    configs.push(Config { depth: 1, heads: 1, key_heads: 1, ..base });
    let steps = |config: Config| {
        let pages = |tokens: usize| tokens.div_ceil(config.page) as u32;
        let (long, short) = (77, 23);
        let of = |first: u32, count: u32, cached: usize, tokens: usize| Sequence {
            pages: scattered(first, count, config.pages as u32),
            cached,
            count: tokens,
        };
        // Each sequence has pages of its own, since 5 is prime to their number.
        let (a, b) = (pages(long + 2), pages(short + 2));
        let start = 5 * a % config.pages as u32;
        vec![
            vec![(of(0, a, 0, long), 1), (of(start, b, 0, 0), 2)],
            vec![(of(0, a, long, 1), 1), (of(start, b, 0, short), 2)],
            vec![(of(0, a, long + 1, 1), 1), (of(start, b, short, 1), 2)],
            vec![],
        ]
    };
    configs.into_iter().map(|config| (config, steps(config))).collect()
}

#[test]
fn every_form_matches_the_interpreter() {
    for (config, steps) in forms() {
        check(config, &steps, &CPU(), 2e-5);
    }
}

#[test]
fn every_form_matches_the_interpreter_on_a_gpu() {
    let Some(device) = gpu::gpu() else { return };
    for (config, steps) in forms() {
        if !config.dtype.is_half() {
            check(config, &steps, &device, 2e-5);
        }
        for dtype in [DType::Float16, DType::BFloat16] {
            // Queries and weights are rounded to the dtype of the cache.
            let tolerance = if dtype == DType::Float16 { 3e-3 } else { 2e-2 };
            check(Config { dtype, ..config }, &steps, &device, tolerance);
        }
    }
}

#[test]
fn long_sequences_match_the_interpreter_on_a_gpu() {
    let Some(device) = gpu::gpu() else { return };
    for (window, depth, rounded) in [(-1, 128, true), (300, 64, false), (-1, 256, true), (130, 128, false)] {
        let config = Config {
            rounded,
            dtype: DType::BFloat16,
            page: 128,
            pages: 24,
            heads: 8,
            key_heads: 2,
            depth,
            window,
            ..PLAIN
        };
        let of = |first: u32, cached, count| {
            (Sequence { pages: scattered(first, 10, 24), cached, count }, first as usize)
        };
        let steps = [
            vec![of(0, 0, 1000)],
            vec![of(0, 1000, 1), of(2, 0, 700)],
            vec![of(0, 1001, 1), of(2, 700, 1)],
            vec![of(0, 1002, 3), of(2, 701, 2)],
        ];
        check(config, &steps, &device, 2e-2);
    }
}

#[test]
fn chunks_and_company_change_no_bit() {
    for config in [
        Config { page: 128, pages: 24, heads: 8, depth: 64, ..PLAIN },
        Config { dtype: DType::BFloat16, window: 100, ..Config { page: 64, pages: 48, ..PLAIN } },
        Config { dtype: DType::UInt8, softcap: 3.0, ..Config { page: 32, pages: 96, ..PLAIN } },
    ] {
        let model = load(&config);
        let total = 600;
        let count = (total / config.page + 1) as u32;
        let row = config.heads * config.depth;
        let own = scattered(0, count, config.pages as u32);
        let of = |cached, count| Sequence { pages: own.clone(), cached, count };
        let whole = execute(&model, &fresh(&config), &inputs(&config, &[(of(0, total), 1)])).unwrap();
        for chunks in [vec![599, 1], vec![1, 255, 256, 88], vec![300, 300], vec![17; 35]] {
            let cache = fresh(&config);
            let (mut cached, mut found) = (0, Vec::new());
            for (at, chunk) in chunks.iter().enumerate() {
                // Another sequence comes along now and then.
                let pages = scattered(5 * count % config.pages as u32, 1, config.pages as u32);
                let other = Sequence { pages, cached: 0, count: 1 + at % 3 };
                let before = if at % 2 == 0 { 0 } else { other.count };
                let mut batch = vec![(of(cached, *chunk), 1)];
                if at % 2 == 1 {
                    batch.insert(0, (other, 9));
                }
                let results = execute(&model, &cache, &inputs(&config, &batch)).unwrap();
                found.extend_from_slice(&results[before * row..][..chunk * row]);
                cached += chunk;
            }
            let same = found.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{config:?} in chunks of {chunks:?}");
        }
    }
}

#[test]
fn many_sequences_are_computed_together() {
    let config = Config { pages: 64, ..PLAIN };
    let batch: Vec<_> = (0..40u32)
        .map(|at| (Sequence { pages: vec![at], cached: 0, count: 1 + at as usize % 5 }, at as usize))
        .collect();
    check(config, std::slice::from_ref(&batch), &CPU(), 2e-5);
    if let Some(device) = gpu::gpu() {
        check(config, &[batch], &device, 2e-5);
    }
}

#[test]
fn what_tables_say_is_checked() {
    let model = load(&PLAIN);
    let message = |sequence: Sequence, change: &dyn Fn(&mut Vec<HostTensor>)| {
        let mut given = inputs(&PLAIN, &[(sequence, 1)]);
        change(&mut given);
        execute(&model, &fresh(&PLAIN), &given).unwrap_err().to_string()
    };
    let of = |pages: &[u32], cached, count| Sequence { pages: pages.to_vec(), cached, count };
    assert!(message(of(&[12], 0, 3), &|_| ()).contains("page 12 of sequence 0"));
    assert!(message(of(&[1], 15, 2), &|_| ()).contains("pages for 16"));
    assert!(message(of(&[], 0, 1), &|_| ()).contains("pages for 0"));
    let starts = |values: Vec<u32>| HostTensor::from_vec([2], values).unwrap();
    assert!(message(of(&[1], 0, 2), &|given| given[3] = starts(vec![0, 1])).contains("there are 2 tokens"));
    assert!(message(of(&[1], 0, 2), &|given| given[3] = starts(vec![1, 2])).contains("row offset 1 at 0"));
    let lengths = HostTensor::from_vec([1], vec![u32::MAX]).unwrap();
    assert!(message(of(&[1], 0, 2), &|given| given[4] = lengths.clone()).contains("pages for 16"));
    let three = HostTensor::from_vec([3], vec![0u32, 1, 2]).unwrap();
    assert!(message(of(&[1], 0, 2), &|given| given[3] = three.clone()).contains("an offset more"));
    // A failed execution does no harm to the next.
    execute(&model, &fresh(&PLAIN), &inputs(&PLAIN, &[(of(&[1], 0, 2), 1)])).unwrap();
}

#[test]
fn a_layer_of_attention_is_a_few_steps() {
    let model = load(&PLAIN);
    let names: Vec<_> = model.kernel_summaries().into_iter().map(|kernel| kernel.name).collect();
    let paged: Vec<_> =
        names.iter().filter(|name| name.contains("paged") || name.contains("permute")).collect();
    // The attention writes its result where the output has it.
    assert_eq!(paged.len(), 2, "keys and values are stored together: {names:?}");
    assert_eq!(*paged[1], "paged_attention+permute");
}
