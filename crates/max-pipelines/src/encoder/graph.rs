//! The graph of encoders: a transformer whose tokens all see each other, with norms after residuals.

use max_core::{DType, DeviceRef, Dim, Result, Shape, bail};
use max_graph::ops::slice::{Bound, Index};
use max_graph::{HostTensor, TensorValue, ops};
use max_nn::{Activation, Embedding, EmbeddingConfig, LayerNorm, Linear, LinearConfig, module};

/// What an encoder is made from.
#[derive(Clone, Debug)]
pub struct EncoderConfig {
    /// The number of tokens that there are.
    pub vocab_size: usize,
    /// The elements of a token between layers.
    pub width: usize,
    /// The number of layers.
    pub layers: usize,
    /// The number of attention heads.
    pub heads: usize,
    /// The elements of a token inside of a perceptron.
    pub intermediate: usize,
    /// The rows of the table of positions.
    pub positions: usize,
    /// The row of the first token of a text.
    pub first_position: usize,
    /// The rows of the table of token types, of which all texts have the first; without such a table zero.
    pub token_types: usize,
    /// What attention adds to scores for the distance of two tokens, if anything.
    pub relative: Option<RelativePositions>,
    /// What perceptrons apply to their inner elements.
    pub activation: Activation,
    /// What keeps norms from dividing by zero.
    pub epsilon: f64,
}

/// Biases by distance. Near distances have a bucket each, farther ones share buckets that grow with the distance.
#[derive(Clone, Copy, Debug)]
pub struct RelativePositions {
    /// The number of buckets, half of them for tokens further on.
    pub buckets: usize,
    /// From which distance on all are in the last bucket.
    pub most_distant: usize,
}

impl EncoderConfig {
    /// The config, if a model can have it.
    pub fn validated(self) -> Result<EncoderConfig> {
        if !self.width.is_multiple_of(self.heads) {
            bail!(value, "{} heads cannot share {} elements of a token", self.heads, self.width);
        }
        if self.first_position >= self.positions {
            bail!(value, "a table of {} positions has none from {} on", self.positions, self.first_position);
        }
        if self.relative.is_some_and(|relative| relative.buckets < 4) {
            bail!(value, "relative positions need at least 4 buckets");
        }
        Ok(self)
    }

    /// The most tokens of a text.
    pub fn max_length(&self) -> usize {
        self.positions - self.first_position
    }
}

/// The weights of an encoder.
pub struct Encoder {
    words: Embedding,
    positions: Embedding,
    types: Option<Embedding>,
    relative: Option<Embedding>,
    norm: LayerNorm,
    layers: Vec<Block>,
    config: EncoderConfig,
}

module!(Encoder { words, positions, types, relative, norm, layers });

struct Block {
    attention: Attention,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    norm: LayerNorm,
}

module!(Block { attention, attention_norm, up, down, norm });

struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
}

module!(Attention { query, key, value, output });

impl Encoder {
    pub fn new(config: &EncoderConfig, dtype: DType, device: DeviceRef) -> Result<Encoder> {
        let &EncoderConfig { width, intermediate, heads, epsilon, .. } = config;
        let table = |rows, columns| {
            let config = EmbeddingConfig { vocab_size: rows, hidden_dim: columns, dtype, encoding: None };
            Embedding::new(config, device)
        };
        let norm = || LayerNorm::new(width, device, dtype, epsilon, true);
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs, dtype, device).with_bias().build();
        let square = || linear(width, width);
        let block = |_| {
            let (query, key, value, output) = (square()?, square()?, square()?, square()?);
            Ok(Block {
                attention: Attention { query, key, value, output },
                attention_norm: norm()?,
                up: linear(width, intermediate)?,
                down: linear(intermediate, width)?,
                norm: norm()?,
            })
        };
        Ok(Encoder {
            words: table(config.vocab_size, width)?,
            positions: table(config.positions, width)?,
            types: (config.token_types > 0).then(|| table(config.token_types, width)).transpose()?,
            relative: config.relative.map(|relative| table(relative.buckets, heads)).transpose()?,
            norm: norm()?,
            layers: (0..config.layers).map(block).collect::<Result<_>>()?,
            config: config.clone(),
        })
    }

    /// The tokens `[batch, length]` after all layers, `[batch, length, width]`. With lengths `[batch]`, tokens from there on
    /// are padding, which no token sees.
    pub fn forward(&self, tokens: &TensorValue, lengths: Option<&TensorValue>) -> Result<TensorValue> {
        let length = &tokens.shape()[1];
        let seen = lengths.map(|lengths| seen(lengths, length)).transpose()?;
        let mask = match (self.distance_bias(length)?, seen) {
            (None, None) => Mask::None,
            (None, Some(seen)) => Mask::Keep(seen),
            (Some(bias), None) => Mask::Add(bias),
            (Some(bias), Some(seen)) => Mask::Add(ops::where_(seen, bias, f64::NEG_INFINITY)?),
        };
        let embedded = self.norm.forward(self.embed(tokens)?)?;
        self.layers.iter().try_fold(embedded, |x, layer| layer.forward(x, &self.config, &mask))
    }

    /// The sum of what each token, its position and its type stand for.
    fn embed(&self, tokens: &TensorValue) -> Result<TensorValue> {
        let first = Dim::from(self.config.first_position);
        let (start, stop) = (Bound::Dim(first.clone()), Bound::Dim(first.add(&tokens.shape()[1])?));
        let own = Index::Slice { start, stop, step: 1, out_dim: None };
        let x = ops::add(self.words.forward(tokens)?, self.positions.weight.value()?.slice(vec![own])?)?;
        match &self.types {
            Some(types) => ops::add(x, types.weight.value()?.slice(0)?),
            None => Ok(x),
        }
    }

    /// What is added to the score of each pair of tokens, `[1, heads, length, length]`.
    fn distance_bias(&self, length: &Dim) -> Result<Option<TensorValue>> {
        let (Some(table), Some(relative)) = (&self.relative, self.config.relative) else { return Ok(None) };
        let most = self.config.max_length() as i64 - 1;
        let buckets: Vec<i64> = (-most..=most).map(|distance| relative.bucket(distance)).collect();
        let buckets = HostTensor::from_vec([buckets.len()], buckets)?;
        let biases = ops::transpose(table.forward(buckets)?, 0, 1)?;
        let position = ops::range(0, length.clone(), 1, None, DType::Int64, table.device)?;
        let distance = ops::sub(ops::unsqueeze(&position, 0)?, ops::unsqueeze(&position, 1)?)?;
        let bias = ops::gather(biases, ops::add(distance, most)?, 1)?;
        ops::unsqueeze(bias, 0).map(Some)
    }
}

/// Which keys each query sees, `[batch, 1, 1, length]`.
fn seen(lengths: &TensorValue, length: &Dim) -> Result<TensorValue> {
    let position = ops::range(0, length.clone(), 1, None, DType::Int64, lengths.device())?;
    let seen = ops::greater(ops::unsqueeze(lengths, 1)?, position)?;
    let one = Dim::Static(1);
    ops::reshape(seen, Shape::from([&lengths.shape()[0], &one, &one, length]))
}

/// What attention does with scores.
enum Mask {
    None,
    /// Keeps those where a bool says so.
    Keep(TensorValue),
    /// Adds to them.
    Add(TensorValue),
}

impl Block {
    fn forward(&self, x: TensorValue, config: &EncoderConfig, mask: &Mask) -> Result<TensorValue> {
        let attended = self.attention.forward(&x, config.heads, mask)?;
        let x = self.attention_norm.forward(ops::add(x, attended)?)?;
        let inner = ops::activate(self.up.forward(&x)?, config.activation)?;
        self.norm.forward(ops::add(x, self.down.forward(inner)?)?)
    }
}

impl Attention {
    fn forward(&self, x: &TensorValue, heads: usize, mask: &Mask) -> Result<TensorValue> {
        let [batch, length, Dim::Static(width)] = &x.shape()[..] else {
            bail!(internal, "tokens of no known width: {}", x.shape());
        };
        let depth = width / heads as i64;
        let split = Shape::from([batch, length, &Dim::from(heads), &Dim::Static(depth)]);
        let project =
            |layer: &Linear| ops::permute(ops::reshape(layer.forward(x)?, split.clone())?, vec![0, 2, 1, 3]);
        let (query, key, value) = (project(&self.query)?, project(&self.key)?, project(&self.value)?);
        let scores = ops::matmul(query, ops::transpose(key, -1, -2)?)?;
        let scores = ops::mul(scores, 1.0 / (depth as f64).sqrt())?;
        let scores = match mask {
            Mask::None => scores,
            Mask::Keep(seen) => ops::where_(seen, scores, f64::NEG_INFINITY)?,
            Mask::Add(bias) => ops::add(scores, bias)?,
        };
        let mixed = ops::matmul(ops::softmax(scores, -1)?, value)?;
        self.output.forward(ops::reshape(ops::permute(mixed, vec![0, 2, 1, 3])?, x.shape().clone())?)
    }
}

impl RelativePositions {
    /// The bucket of a key that is this much further on than its query.
    fn bucket(&self, distance: i64) -> i64 {
        let half = self.buckets as i64 / 2;
        let near = half / 2;
        let (side, apart) = (if distance > 0 { half } else { 0 }, distance.abs());
        if apart < near {
            return side + apart;
        }
        // In float32, like the models that were trained with it: a bucket may begin exactly at a power of two.
        let range = (self.most_distant as f64 / near as f64).ln() as f32;
        let far = (apart as f32 / near as f32).ln() / range * (half - near) as f32;
        side + (near + far as i64).min(half - 1)
    }
}
