//! A transformer encoder of twelve layers, built from the layers of `max::nn` and written by hand with the same ops: how long
//! it takes to build and load, and to run.
//!
//!     cargo run --release --example encoder

use std::collections::HashMap;
use std::time::{Duration, Instant};

use max::Result;
use max::driver::{Buffer, CPU};
use max::dtype::DType;
use max::engine::{InferenceSession, Model};
use max::graph::{DeviceRef, Dim, Graph, Shape, TensorType, TensorValue, Weight, ops};
use max::nn::{
    Activation, Embedding, EmbeddingConfig, LayerNorm, Linear, LinearConfig, MaskVariant, Mlp, Module,
    TransformerBlock, module,
};

const LAYERS: usize = 12;
const WIDTH: usize = 384;
const HEADS: usize = 12;
const MIDDLE: usize = 1536;
const VOCABULARY: usize = 1000;
const EPSILON: f64 = 1e-5;

struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
}

module!(Attention { q_proj, k_proj, v_proj, o_proj });

impl Attention {
    fn new() -> Result<Attention> {
        let linear = || LinearConfig::new(WIDTH, WIDTH, DType::Float32, DeviceRef::CPU).with_bias().build();
        Ok(Attention { q_proj: linear()?, k_proj: linear()?, v_proj: linear()?, o_proj: linear()? })
    }

    fn forward(&self, x: TensorValue) -> Result<TensorValue> {
        let split = |layer: &Linear| ops::reshape(layer.forward(&x)?, heads(&x));
        let (q, k, v) = (split(&self.q_proj)?, split(&self.k_proj)?, split(&self.v_proj)?);
        let y = ops::flash_attention(q, k, v, MaskVariant::Null, scale(), -1, None)?;
        self.o_proj.forward(ops::reshape(y, x.shape().clone())?)
    }
}

struct Encoder {
    embedding: Embedding,
    layers: Vec<TransformerBlock<Attention>>,
    norm: LayerNorm,
}

module!(Encoder { embedding, layers, norm });

impl Encoder {
    fn new() -> Result<Encoder> {
        let norm = || LayerNorm::new(WIDTH, DeviceRef::CPU, DType::Float32, EPSILON, true);
        let block = |_| {
            let gelu = Activation::Gelu;
            let mlp = Mlp::new(DType::Float32, &Default::default(), WIDTH, MIDDLE, DeviceRef::CPU, gelu)?;
            Ok(TransformerBlock {
                self_attn: Attention::new()?,
                mlp: Box::new(mlp),
                input_layernorm: Box::new(norm()?),
                post_attention_layernorm: Box::new(norm()?),
                residual_multiplier: 1.0,
            })
        };
        let table = EmbeddingConfig {
            vocab_size: VOCABULARY,
            hidden_dim: WIDTH,
            dtype: DType::Float32,
            encoding: None,
        };
        Ok(Encoder {
            embedding: Embedding::new(table, DeviceRef::CPU)?,
            layers: (0..LAYERS).map(block).collect::<Result<_>>()?,
            norm: norm()?,
        })
    }

    fn forward(&self, tokens: &TensorValue) -> Result<TensorValue> {
        let mut x = self.embedding.forward(tokens)?;
        for layer in &self.layers {
            x = layer.forward(x, Attention::forward)?;
        }
        self.norm.forward(x)
    }
}

/// The same model with ops and weights only.
fn by_hand(tokens: &TensorValue) -> Result<TensorValue> {
    let weight = |name: String, sizes: &[usize]| {
        let shape: Shape = sizes.iter().map(|&size| Dim::from(size)).collect();
        Weight::new(name, DType::Float32, shape, DeviceRef::CPU)?.value()
    };
    let linear = |name: &str, x: &TensorValue, [inputs, outputs]: [usize; 2], bias: bool| {
        let product = ops::matmul(x, weight(format!("{name}.weight"), &[outputs, inputs])?.T()?)?;
        if bias { ops::add(product, weight(format!("{name}.bias"), &[outputs])?) } else { Ok(product) }
    };
    let norm = |name: &str, x: &TensorValue| {
        let part = |part: &str| weight(format!("{name}.{part}"), &[WIDTH]);
        ops::layer_norm(x, part("weight")?, part("bias")?, EPSILON)
    };
    let mut x = ops::gather(weight("embedding.weight".into(), &[VOCABULARY, WIDTH])?, tokens, 0)?;
    for layer in 0..LAYERS {
        let name = |part: &str| format!("layers.{layer}.{part}");
        let normal = norm(&name("input_layernorm"), &x)?;
        let project = |part: &str| {
            let y = linear(&name(part), &normal, [WIDTH, WIDTH], true)?;
            ops::permute(ops::reshape(y, heads(&x))?, vec![0, 2, 1, 3])
        };
        let (q, k, v) =
            (project("self_attn.q_proj")?, project("self_attn.k_proj")?, project("self_attn.v_proj")?);
        let scores = ops::mul(ops::matmul(q, ops::transpose(k, -1, -2)?)?, scale())?;
        let mixed = ops::permute(ops::matmul(ops::softmax(scores, -1)?, v)?, vec![0, 2, 1, 3])?;
        let mixed = ops::reshape(mixed, x.shape().clone())?;
        x = ops::add(&x, linear(&name("self_attn.o_proj"), &mixed, [WIDTH, WIDTH], true)?)?;
        let normal = norm(&name("post_attention_layernorm"), &x)?;
        let gate = ops::gelu(linear(&name("mlp.gate_proj"), &normal, [WIDTH, MIDDLE], false)?)?;
        let middle = ops::mul(gate, linear(&name("mlp.up_proj"), &normal, [WIDTH, MIDDLE], false)?)?;
        x = ops::add(&x, linear(&name("mlp.down_proj"), &middle, [MIDDLE, WIDTH], false)?)?;
    }
    norm("norm", &x)
}

/// `[batch, length, width]` as heads.
fn heads(x: &TensorValue) -> Shape {
    Shape::from([x.shape()[0].clone(), x.shape()[1].clone(), Dim::from(HEADS), Dim::from(WIDTH / HEADS)])
}

fn scale() -> f64 {
    1.0 / ((WIDTH / HEADS) as f64).sqrt()
}

/// The least time of many.
fn least(mut run: impl FnMut() -> Result<()>, times: usize) -> Result<Duration> {
    let mut least = Duration::MAX;
    for _ in 0..times {
        let start = Instant::now();
        run()?;
        least = least.min(start.elapsed());
    }
    Ok(least)
}

fn main() -> Result<()> {
    let model = Encoder::new()?;
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 * 0.1 - 0.05
    };
    let weights: HashMap<String, Buffer> = model
        .zeros()?
        .into_iter()
        .map(|(name, zeros)| {
            let values: Vec<f32> = (0..zeros.num_elements()).map(|_| random()).collect();
            Ok((name, Buffer::from_slice(&values, zeros.shape())?))
        })
        .collect::<Result<_>>()?;
    let input = || [TensorType::new(DType::Int64, ("batch", "length"), DeviceRef::CPU)];
    let session = InferenceSession::new([CPU()]);
    let count = std::cell::Cell::new(0);
    let from_layers = || -> Result<Model> {
        // A name of its own, so that the program is compiled and not found in the session's cache.
        count.set(count.get() + 1);
        let model = Encoder::new()?;
        model.raw_state_dict();
        let graph =
            Graph::build(format!("layers{}", count.get()), input(), |x| model.forward(&x[0].tensor()?))?;
        session.load_with(&graph, &weights)
    };
    let hand = || -> Result<Model> {
        count.set(count.get() + 1);
        let graph = Graph::build(format!("hand{}", count.get()), input(), |x| by_hand(&x[0].tensor()?))?;
        session.load_with(&graph, &weights)
    };
    let (first, second) = (from_layers()?, hand()?);
    println!("build and load: layers {:?}", least(|| from_layers().map(drop), 20)?);
    println!("build and load: by hand {:?}", least(|| hand().map(drop), 20)?);
    for [batch, length] in [[1, 16], [8, 128]] {
        let tokens: Vec<i64> = (0..batch * length).map(|at| (at * 37 % VOCABULARY) as i64).collect();
        let tokens = [Buffer::from_slice(&tokens, &[batch, length])?];
        let [a, b] = [first.execute(&tokens)?, second.execute(&tokens)?];
        let (a, b) = (a[0].to_vec::<f32>()?, b[0].to_vec::<f32>()?);
        let apart = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let times =
            [&first, &second, &first, &second].map(|model| least(|| model.execute(&tokens).map(drop), 15));
        let [a, b, c, d] = times;
        let (layers, hand) = (a?.min(c?), b?.min(d?));
        let ratio = hand.as_secs_f64() / layers.as_secs_f64();
        println!(
            "{batch}x{length}: layers {layers:?}, by hand {hand:?}, ratio {ratio:.2}; results differ by {apart:e}"
        );
    }
    Ok(())
}
