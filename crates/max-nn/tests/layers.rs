//! Layers against plain code, through sessions.

use std::collections::HashMap;

use max_core::{DType, DeviceRef, QuantizationEncoding, Result, TensorType};
use max_driver::{Buffer, CPU};
use max_engine::{InferenceSession, WeightsRegistry};
use max_graph::{Graph, TensorValue, Weight};
use max_nn::state::Rules;
use max_nn::{
    Activation, ConvConfig, Embedding, EmbeddingConfig, Form, GroupNorm, LayerNorm, Linear, LinearConfig,
    Mlp, MoEConfig, Module, RmsNorm, Sequential, TransformerBlock, WeightData, module,
};

const CPU_REF: DeviceRef = DeviceRef::CPU;

/// Numbers that look random: between -1 and 1, different for each seed.
fn numbers(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 7919 + seed * 104_729 + 13) % 2003) as f32 / 1001.5 - 1.0).collect()
}

/// Values for all weights of a module.
fn values(module: &dyn Module) -> WeightsRegistry {
    let zeros = module.zeros().unwrap().into_iter().enumerate();
    zeros
        .map(|(seed, (name, zeros))| {
            let values = numbers(seed, zeros.num_elements());
            (name, Buffer::from_slice(&values, zeros.shape()).unwrap())
        })
        .collect()
}

/// What a module makes of an input.
fn run(
    weights: &WeightsRegistry,
    shape: &[usize],
    forward: impl FnOnce(TensorValue) -> Result<TensorValue>,
) -> Result<(Vec<usize>, Vec<f32>)> {
    let x = Buffer::from_slice(&numbers(99, shape.iter().product()), shape)?;
    run_on(weights, x, forward)
}

fn run_on(
    weights: &WeightsRegistry,
    x: Buffer,
    forward: impl FnOnce(TensorValue) -> Result<TensorValue>,
) -> Result<(Vec<usize>, Vec<f32>)> {
    let sizes: Vec<i64> = x.shape().iter().map(|&size| size as i64).collect();
    let ty = TensorType::new(x.dtype(), sizes, CPU_REF);
    let graph = Graph::build("layer", [ty], |x| forward(x[0].tensor()?))?;
    let model = InferenceSession::new([CPU()]).load_with(&graph, weights)?;
    let result = model.execute(&[x])?;
    Ok((result[0].shape().to_vec(), result[0].to_vec()?))
}

fn close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (at, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "element {at}: {a} instead of {b}");
    }
}

fn list(weights: &WeightsRegistry, name: &str) -> Vec<f32> {
    weights[name].to_vec().unwrap()
}

/// `x @ weight.T + bias`, for rows of `k` elements.
fn product(x: &[f32], weight: &[f32], bias: Option<&[f32]>, k: usize) -> Vec<f32> {
    let rows = x.chunks(k).flat_map(|row| {
        weight.chunks(k).enumerate().map(move |(n, column)| {
            row.iter().zip(column).map(|(a, b)| a * b).sum::<f32>() + bias.map_or(0.0, |bias| bias[n])
        })
    });
    rows.collect()
}

fn plain(inputs: usize, outputs: usize) -> LinearConfig {
    LinearConfig::new(inputs, outputs, DType::Float32, CPU_REF)
}

#[test]
fn linear_layers_multiply_by_the_transposed_weight() {
    let layer = plain(5, 3).with_bias().build().unwrap();
    let weights = values(&layer);
    let (shape, found) = run(&weights, &[2, 7, 5], |x| layer.forward(x)).unwrap();
    assert_eq!(shape, [2, 7, 3]);
    let (weight, bias) = (list(&weights, "weight"), list(&weights, "bias"));
    close(&found, &product(&numbers(99, 70), &weight, Some(&bias), 5), 1e-6);

    let clipped = plain(5, 3).with_form(Form::Clipped(0.25)).build().unwrap();
    let (_, found) = run(&weights, &[1, 5], |x| clipped.forward(x)).unwrap();
    let weight: Vec<f32> = weight.iter().map(|x| x.clamp(-0.25, 0.25)).collect();
    close(&found, &product(&numbers(99, 5), &weight, None, 5), 1e-6);
    assert!(run(&weights, &[1, 4], |x| layer.forward(x)).is_err());
    let negative = plain(5, 3).with_form(Form::Clipped(-1.0)).build().unwrap();
    assert!(run(&weights, &[1, 5], |x| negative.forward(x)).unwrap_err().to_string().contains("-1"));
}

#[test]
fn encoded_weights_are_multiplied_as_they_are() {
    for encoding in [QuantizationEncoding::Q4_0, QuantizationEncoding::Q8_0, QuantizationEncoding::Q6_K] {
        let config = plain(256, 6).with_bias().with_form(Form::Encoded(encoding, None));
        let layer = config.build().unwrap();
        let floats = numbers(3, 256 * 6);
        let blocks = encoding.quantize(&floats).unwrap();
        let bias = numbers(4, 6);
        let weights = HashMap::from([
            ("weight".into(), Buffer::from_slice(&blocks, &[6, blocks.len() / 6]).unwrap()),
            ("bias".into(), Buffer::from_slice(&bias, &[6]).unwrap()),
        ]);
        layer.raw_state_dict();
        let (_, found) = run(&weights, &[3, 256], |x| layer.forward(x)).unwrap();
        let decoded = encoding.dequantize(&blocks).unwrap();
        close(&found, &product(&numbers(99, 3 * 256), &decoded, Some(&bias), 256), 0.05);
        let embedding = Embedding::new(
            EmbeddingConfig { vocab_size: 6, hidden_dim: 256, dtype: DType::UInt8, encoding: Some(encoding) },
            CPU_REF,
        );
        let ids = Buffer::from_slice(&[5i64, 0], &[2]).unwrap();
        let (shape, found) = run_on(&weights, ids, |ids| embedding.unwrap().forward(ids)).unwrap();
        assert_eq!((shape, &found[..256]), (vec![2, 256], &decoded[5 * 256..]));
    }
    let odd = plain(33, 6).with_form(Form::Encoded(QuantizationEncoding::Q4_0, None)).build();
    assert!(odd.unwrap_err().to_string().contains("33"));
}

#[test]
fn shards_give_the_whole_result() {
    let devices = [CPU_REF; 3];
    let rows = max_nn::ShardingStrategy::new(3, max_nn::Sharding::Rowwise).unwrap();
    let columns = max_nn::ShardingStrategy::new(3, max_nn::Sharding::Columnwise).unwrap();
    let layer = plain(7, 8).with_bias().build().unwrap();
    let weights = values(&layer);
    let whole = run(&weights, &[2, 7], |x| layer.forward(x)).unwrap();
    let by_rows = run(&weights, &[2, 7], |x| {
        let parts = layer.shard(&rows, &devices)?;
        let parts = parts.iter().map(|part| part.forward(&x)).collect::<Result<Vec<_>>>()?;
        max_graph::ops::concat(parts, -1)
    });
    assert_eq!(by_rows.unwrap(), whole);
    let (_, by_columns) = run(&weights, &[2, 7], |x| {
        let parts = layer.shard(&columns, &devices)?;
        let ends = [0, 3, 5, 7];
        let parts = parts.iter().enumerate().map(|(at, part)| {
            let own = x.slice((.., ends[at]..ends[at + 1]))?;
            part.forward(own)
        });
        let parts = parts.collect::<Result<Vec<_>>>()?;
        max_graph::ops::add(max_graph::ops::add(&parts[0], &parts[1])?, &parts[2])
    })
    .unwrap();
    close(&by_columns, &whole.1, 1e-5);

    let mlp = Mlp::new(DType::Float32, &Form::Plain, 4, 9, CPU_REF, Activation::Silu).unwrap();
    let weights = values(&mlp);
    let (_, whole) = run(&weights, &[5, 4], |x| mlp.forward(x)).unwrap();
    let (_, summed) = run(&weights, &[5, 4], |x| {
        let parts = mlp.shard(&devices)?;
        let parts = parts.iter().map(|part| part.forward(&x)).collect::<Result<Vec<_>>>()?;
        max_graph::ops::add(max_graph::ops::add(&parts[0], &parts[1])?, &parts[2])
    })
    .unwrap();
    close(&summed, &whole, 1e-5);
    assert!(layer.shard(&rows, &[CPU_REF]).unwrap_err().to_string().contains("3 devices"));
    let again = layer.shard(&rows, &devices).unwrap()[0].weight.shard(&rows, &devices);
    assert!(again.unwrap_err().to_string().contains("is a shard"));
}

#[test]
fn norms_have_unit_scale() {
    let dims = 5;
    let x = numbers(99, 2 * dims);
    let layer = LayerNorm::new(dims, CPU_REF, DType::Float32, 1e-5, false).unwrap();
    let weights = values(&layer);
    let (_, found) = run(&weights, &[2, dims], |x| layer.forward(x)).unwrap();
    let weight = list(&weights, "weight");
    let expected: Vec<f32> = x
        .chunks(dims)
        .flat_map(|row| {
            let mean = row.iter().sum::<f32>() / dims as f32;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / dims as f32;
            let weight = &weight;
            row.iter().enumerate().map(move |(at, x)| (x - mean) / (variance + 1e-5).sqrt() * weight[at])
        })
        .collect();
    close(&found, &expected, 1e-5);

    let layer = RmsNorm { weight_offset: 1.0, ..RmsNorm::new(dims, DType::Float32, CPU_REF, 1e-6).unwrap() };
    let (_, found) = run(&weights, &[2, dims], |x| layer.forward(x)).unwrap();
    let expected: Vec<f32> = x
        .chunks(dims)
        .flat_map(|row| {
            let square = row.iter().map(|x| x * x).sum::<f32>() / dims as f32;
            let weight = &weight;
            row.iter().enumerate().map(move |(at, x)| x / (square + 1e-6).sqrt() * (weight[at] + 1.0))
        })
        .collect();
    close(&found, &expected, 1e-5);

    let layer = GroupNorm::new(2, 6, CPU_REF, DType::Float32, 1e-5, false).unwrap();
    let (shape, found) = run(&HashMap::new(), &[1, 6, 4], |x| layer.forward(x)).unwrap();
    assert_eq!(shape, [1, 6, 4]);
    assert!(found.chunks(12).all(|group| group.iter().sum::<f32>().abs() < 1e-4));
    assert!(GroupNorm::new(4, 6, CPU_REF, DType::Float32, 1e-5, true).is_err());
}

#[test]
fn convolutions_have_both_orders_of_axes() {
    // A filter of one tap is a linear layer over channels.
    for (axes, sizes) in [(1, &[6][..]), (2, &[3, 2]), (3, &[1, 3, 2])] {
        let config =
            ConvConfig { has_bias: true, ..ConvConfig::new(&vec![1; axes], 5, 4, DType::Float32, CPU_REF) };
        let layer = config.clone().build().unwrap();
        let weights = values(&layer);
        let shape = [&[2], sizes, &[5]].concat();
        let (result, found) = run(&weights, &shape, |x| layer.forward(x)).unwrap();
        assert_eq!(result, [&[2], sizes, &[4]].concat());
        let filter = list(&weights, "filter");
        let transposed: Vec<f32> = (0..20).map(|at| filter[at % 5 * 4 + at / 5]).collect();
        close(&found, &product(&numbers(99, 60), &transposed, Some(&list(&weights, "bias")), 5), 1e-5);

        let permuted = ConvConfig { permute: true, ..config }.build().unwrap();
        let first = [&[2, 5], sizes].concat();
        let (result, _) = run(&values(&permuted), &first, |x| permuted.forward(x)).unwrap();
        assert_eq!(result, [&[2, 4], sizes].concat());
    }
    assert!(ConvConfig::new(&[1; 4], 1, 1, DType::Float32, CPU_REF).build().is_err());
    let groups = ConvConfig { num_groups: 3, ..ConvConfig::new(&[1], 4, 4, DType::Float32, CPU_REF) };
    assert!(groups.build().unwrap_err().to_string().contains("3 groups"));
}

#[test]
fn experts_are_perceptrons() {
    let config = MoEConfig {
        hidden_dim: 4,
        num_experts: 1,
        num_experts_per_token: 1,
        moe_dim: 6,
        shared_experts_dim: 0,
        dtype: DType::Float32,
        device: CPU_REF,
        normalize: true,
    };
    let moe = config.clone().build().unwrap();
    let weights = values(&moe);
    let (_, found) = run(&weights, &[5, 4], |x| moe.forward(x)).unwrap();
    let mlp = Mlp::new(DType::Float32, &Form::Plain, 4, 6, CPU_REF, Activation::Silu).unwrap();
    let alike = |name: &str, shape: [usize; 2]| {
        (format!("{name}.weight"), Buffer::from_slice(&list(&weights, name), &shape).unwrap())
    };
    let own =
        HashMap::from([alike("gate_proj", [6, 4]), alike("up_proj", [6, 4]), alike("down_proj", [4, 6])]);
    mlp.raw_state_dict();
    let (_, expected) = run(&own, &[5, 4], |x| mlp.forward(x)).unwrap();
    close(&found, &expected, 1e-5);
    assert!(MoEConfig { num_experts_per_token: 2, ..config }.build().is_err());
}

struct Doubled {
    first: Linear,
    second: Linear,
}

module!(Doubled { first, second });

#[test]
fn shared_weights_are_one() {
    let first = plain(3, 3).build().unwrap();
    let model = Doubled { second: Linear { weight: first.weight.clone(), ..first.clone() }, first };
    assert_eq!(model.raw_state_dict().into_keys().collect::<Vec<_>>(), ["first.weight"]);
    let weights = values(&model);
    let (_, found) = run(&weights, &[1, 3], |x| model.second.forward(model.first.forward(x)?)).unwrap();
    let weight = list(&weights, "first.weight");
    close(&found, &product(&product(&numbers(99, 3), &weight, None, 3), &weight, None, 3), 1e-5);
}

#[test]
fn layers_are_found_by_path_and_errors_name_all_weights() {
    let norm = || LayerNorm::new(3, CPU_REF, DType::Float32, 1e-5, true).unwrap();
    let block = TransformerBlock {
        self_attn: plain(3, 3).build().unwrap(),
        mlp: Box::new(Sequential::default().then(plain(3, 3).build().unwrap()).then(norm())),
        input_layernorm: Box::new(norm()),
        post_attention_layernorm: Box::new(norm()),
        residual_multiplier: 0.5,
    };
    let model = vec![block];
    let weights = values(&model);
    assert!(weights.contains_key("0.mlp.layers.1.bias") && weights.len() == 8);
    let (shape, _) =
        run(&weights, &[2, 3], |x| model[0].forward(x, |attention: &Linear, x| attention.forward(x)))
            .unwrap();
    assert_eq!(shape, [2, 3]);
    let state = weights.into_iter().map(|(name, value)| (name, WeightData::from(value)));
    let mut state: HashMap<String, WeightData> = state.collect();
    assert_eq!(model.load_state_dict(&state, Rules::default()).unwrap().len(), 8);
    let moved = state.remove("0.self_attn.weight").unwrap();
    state.insert("0.attn.weight".into(), moved);
    let short = WeightData::from(Buffer::from_slice(&[1f32], &[1]).unwrap());
    state.insert("0.input_layernorm.bias".into(), short);
    let error = model.load_state_dict(&state, Rules::default()).unwrap_err().to_string();
    for part in ["0.self_attn.weight", "did you mean '0.attn.weight'", "0.input_layernorm.bias", "[3]", "[1]"]
    {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn weights_have_no_value_outside_a_graph() {
    let weight = Weight::new("w", DType::Float32, [3], CPU_REF).unwrap();
    assert!(weight.value().unwrap_err().to_string().contains("no parent graph"));
}
