//! A small decoder with a cache: reading a prompt at once, in pieces and beside others gives the same logits.

use std::collections::HashMap;

use max_core::{BufferType, DType, DeviceRef, Dim, Result, Shape, TensorType, Type};
use max_driver::{Buffer, CPU};
use max_engine::{InferenceSession, Model};
use max_graph::Graph;
use max_nn::state::Rules;
use max_nn::{
    Activation, AttentionConfig, AttentionWithRope, CachedTokens, Embedding, EmbeddingConfig, LinearConfig,
    Mlp, Module, RmsNorm, RotaryEmbedding, Transformer, TransformerBlock, WeightData,
};

const CPU_REF: DeviceRef = DeviceRef::CPU;
const LAYERS: usize = 2;
const PAGES: usize = 8;
const PAGE: usize = 4;

const CONFIG: AttentionConfig = AttentionConfig {
    hidden_size: 16,
    heads: 4,
    key_heads: 2,
    head_dim: 4,
    has_bias: true,
    dtype: DType::Float32,
    device: CPU_REF,
};

fn decoder() -> Result<Transformer> {
    let norm = || RmsNorm::new(16, DType::Float32, CPU_REF, 1e-5);
    let rope = RotaryEmbedding::new(16, 4, 10000.0, 32, CPU_REF)?;
    let block = |_| {
        let mlp = Mlp::new(DType::Float32, &Default::default(), 16, 24, CPU_REF, Activation::Silu)?;
        Ok(TransformerBlock {
            self_attn: AttentionWithRope::new(&CONFIG, rope.clone())?,
            mlp: Box::new(mlp),
            input_layernorm: Box::new(norm()?),
            post_attention_layernorm: Box::new(norm()?),
            residual_multiplier: 1.0,
        })
    };
    let table = EmbeddingConfig { vocab_size: 20, hidden_dim: 16, dtype: DType::Float32, encoding: None };
    Ok(Transformer {
        embed_tokens: Embedding::new(table, CPU_REF)?,
        layers: (0..LAYERS).map(block).collect::<Result<_>>()?,
        norm: Box::new(norm()?),
        lm_head: LinearConfig::new(16, 20, DType::Float32, CPU_REF).build()?,
        rope,
    })
}

fn load() -> Result<Model> {
    let model = decoder()?;
    let mut seed = 0;
    let values: HashMap<String, WeightData> = model
        .zeros()?
        .into_iter()
        .map(|(name, zeros)| {
            seed += 1;
            let draw = |i: usize| ((i * 7919 + seed * 104_729) % 613) as f32 / 613.0 - 0.4;
            let count = zeros.shape().iter().product();
            let values: Vec<f32> = (0..count).map(draw).collect();
            Ok((name, WeightData::from(Buffer::from_slice(&values, zeros.shape())?)))
        })
        .collect::<Result<_>>()?;
    let weights = model.load_state_dict(&values, Rules::default())?;
    let integers = |shape: Shape| Type::from(TensorType::new(DType::UInt32, shape, CPU_REF));
    let cache = [PAGES, 2, LAYERS, PAGE, 2, 4].map(Dim::from);
    let types = [
        TensorType::new(DType::Int64, ("tokens",), CPU_REF).into(),
        integers(("offsets",).into()),
        integers(("sequences",).into()),
        integers(("sequences", "columns").into()),
        BufferType::new(DType::Float32, Shape::from(cache), CPU_REF).into(),
    ];
    let graph = Graph::new("decoder", types)?;
    {
        let _scope = graph.enter();
        let given = CachedTokens {
            tokens: graph.input(0)?,
            row_offsets: graph.input(1)?,
            cache_lengths: graph.input(2)?,
            lookup_table: graph.input(3)?,
            cache: graph.inputs()[4].buffer()?,
        };
        graph.output([model.forward(&given)?])?;
    }
    InferenceSession::new([CPU()]).load_with(&graph, &weights)
}

/// The logits after sequences, each with how many of its tokens are in the cache and its pages.
fn run(model: &Model, cache: &Buffer, sequences: &[(&[i64], u32, [u32; 3])]) -> Result<Vec<f32>> {
    let tokens: Vec<i64> = sequences.iter().flat_map(|(tokens, ..)| tokens.iter().copied()).collect();
    let mut offsets = vec![0u32];
    for (tokens, ..) in sequences {
        offsets.push(offsets[offsets.len() - 1] + tokens.len() as u32);
    }
    let lengths: Vec<u32> = sequences.iter().map(|(_, length, _)| *length).collect();
    let pages: Vec<u32> = sequences.iter().flat_map(|(_, _, pages)| *pages).collect();
    let given = [
        Buffer::from_slice(&tokens, &[tokens.len()])?,
        Buffer::from_slice(&offsets, &[offsets.len()])?,
        Buffer::from_slice(&lengths, &[lengths.len()])?,
        Buffer::from_slice(&pages, &[lengths.len(), 3])?,
        cache.clone(),
    ];
    model.execute(&given)?[0].to_vec::<f32>()
}

#[test]
fn a_prompt_in_pieces_is_the_same_prompt() -> Result<()> {
    let model = load()?;
    let cache = || Buffer::zeros(DType::Float32, &[PAGES, 2, LAYERS, PAGE, 2, 4], &CPU());
    let prompt = [3i64, 14, 15, 9, 2, 6, 5, 3, 5];
    let whole = run(&model, &cache()?, &[(&prompt, 0, [0, 1, 2])])?;
    assert!(whole.iter().any(|x| x.abs() > 0.1) && whole.iter().all(|x| x.is_finite()));

    let (pieces, other) = (cache()?, [1i64, 2]);
    run(&model, &pieces, &[(&prompt[..5], 0, [7, 3, 0])])?;
    run(&model, &pieces, &[(&other, 0, [1, 0, 0]), (&prompt[5..8], 5, [7, 3, 0])])?;
    let last = run(&model, &pieces, &[(&prompt[8..], 8, [7, 3, 5]), (&other[..1], 2, [1, 0, 0])])?;
    let close = whole.iter().zip(&last).all(|(a, b)| (a - b).abs() < 1e-4);
    assert!(close, "{whole:?} {last:?}");
    assert_eq!(last.len(), 2 * 20);
    Ok(())
}

#[test]
fn heads_must_fit() {
    let rope = RotaryEmbedding::new(16, 4, 10000.0, 32, CPU_REF).unwrap();
    let wrong = AttentionConfig { key_heads: 3, ..CONFIG };
    let error = AttentionWithRope::new(&wrong, rope).err().unwrap().to_string();
    assert!(error.contains("4 heads do not share 3 heads"), "{error}");
}
