//! Decoders: transformers that say which token comes next.

mod cache;
mod config;
mod dummy;
mod graph;
mod load;
mod sequence;
mod weights;

use std::sync::{Arc, OnceLock};

use max_core::{BufferType, DType, DeviceRef, Dim, Result, Shape, TensorType, Type, bail};
use max_driver::{Buffer, Device};
use max_engine::{InferenceSession, Model, WeightsRegistry};
use max_graph::Graph;

pub use cache::{Cache, CacheConfig, Pages};
pub use config::{DecoderConfig, LayerConfig, Norms, QueryNorm, Rope};
pub use graph::Stored;
use graph::{Decoder, Tokens};
pub use load::{DecoderOptions, ModelFiles, Opened};
pub use sequence::{Sequence, Sequences};
pub use weights::Sources;

/// A decoder that is ready to run.
pub struct DecoderModel {
    config: DecoderConfig,
    decoder: Decoder,
    session: InferenceSession,
    values: WeightsRegistry,
    cache: CacheConfig,
    device: DeviceRef,
    /// Gives the logits after the last token of each sequence.
    last: Model,
    /// Gives those after every token.
    all: OnceLock<Arc<Model>>,
}

/// New tokens of a sequence, and its pages, which have room for them.
pub struct Step<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// Where those before them are, and they will be.
    pub pages: &'a mut Pages,
}

impl DecoderModel {
    /// A model with weights from files; a function is told how many of them are loaded.
    pub fn new(
        config: DecoderConfig,
        sources: &Sources,
        session: InferenceSession,
        (cache, dtype, device): (CacheConfig, DType, &Device),
        each: &mut dyn FnMut(usize, usize),
    ) -> Result<DecoderModel> {
        let device = device.device_ref();
        let decoder = Decoder::new(&config, &|name| sources.stored(name), dtype, device)?;
        let values = sources.values(&decoder, each)?;
        DecoderModel::with_values(config, decoder, session, (cache, device), values)
    }

    /// A model with weights that mean nothing, and matrices that are stored in some way.
    pub fn dummy(
        config: DecoderConfig,
        stored: Stored,
        session: InferenceSession,
        (cache, dtype, device): (CacheConfig, DType, &Device),
    ) -> Result<DecoderModel> {
        let device = device.device_ref();
        let decoder = Decoder::new(&config, &|_| stored, dtype, device)?;
        let values = dummy::values(&decoder)?;
        DecoderModel::with_values(config, decoder, session, (cache, device), values)
    }

    fn with_values(
        config: DecoderConfig,
        decoder: Decoder,
        session: InferenceSession,
        (cache, device): (CacheConfig, DeviceRef),
        values: WeightsRegistry,
    ) -> Result<DecoderModel> {
        let last = session.load_with(&graph(&config, &decoder, cache, device, false)?, &values)?;
        Ok(DecoderModel { config, decoder, session, values, cache, device, last, all: OnceLock::new() })
    }

    /// What it is made from.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// How its caches are made.
    pub fn cache_config(&self) -> CacheConfig {
        self.cache
    }

    /// The bytes of its weights.
    pub fn weight_bytes(&self) -> usize {
        self.values.values().map(Buffer::num_bytes).sum()
    }

    /// Computes new tokens of sequences: the logits after the last one of each, `[sequences, vocab]`.
    pub fn run(&self, cache: &Cache, steps: &mut [Step]) -> Result<Buffer> {
        self.run_on(&self.last, cache, steps)
    }

    /// As [`run`](DecoderModel::run), with the logits after every token, `[tokens, vocab]`.
    pub fn run_all(&self, cache: &Cache, steps: &mut [Step]) -> Result<Buffer> {
        let model = match self.all.get() {
            Some(model) => model.clone(),
            None => {
                let graph = graph(&self.config, &self.decoder, self.cache, self.device, true)?;
                let model = Arc::new(self.session.load_with(&graph, &self.values)?);
                self.all.get_or_init(|| model).clone()
            }
        };
        self.run_on(&model, cache, steps)
    }

    fn run_on(&self, model: &Model, cache: &Cache, steps: &mut [Step]) -> Result<Buffer> {
        let most = self.config.max_length.div_ceil(self.cache.page_size);
        let (mut tokens, mut starts) = (Vec::new(), vec![0i64]);
        let (mut lengths, mut table) = (Vec::new(), Vec::new());
        for step in steps.iter() {
            let Pages { pages, length } = &*step.pages;
            if step.tokens.is_empty() {
                bail!(value, "a sequence without new tokens");
            }
            if length + step.tokens.len() > self.config.max_length {
                bail!(
                    value,
                    "a sequence of {} tokens is longer than the context of the model, {}",
                    length + step.tokens.len(),
                    self.config.max_length
                );
            }
            if let Some(token) = step.tokens.iter().find(|token| **token as usize >= self.config.vocab_size) {
                bail!(index, "there is no token {token}: the model has {}", self.config.vocab_size);
            }
            tokens.extend(step.tokens.iter().map(|&token| i64::from(token)));
            starts.push(tokens.len() as i64);
            lengths.push(*length as i64);
            table.extend((0..most).map(|at| pages.get(at).map_or(-1, |&page| i64::from(page))));
        }
        let batch = steps.len();
        let inputs = [
            Buffer::from_slice(&tokens, &[tokens.len()])?,
            Buffer::from_slice(&starts, &[batch + 1])?,
            Buffer::from_slice(&lengths, &[batch])?,
            Buffer::from_slice(&table, &[batch, most])?,
            cache.buffer().clone(),
        ];
        let Some(logits) = model.execute(&inputs)?.into_iter().next() else {
            bail!(internal, "a decoder without a result")
        };
        for step in steps {
            step.pages.length += step.tokens.len();
        }
        Ok(logits)
    }
}

/// The graph of a decoder over tokens, row offsets, lengths, pages and the cache.
fn graph(
    config: &DecoderConfig,
    decoder: &Decoder,
    cache: CacheConfig,
    device: DeviceRef,
    all: bool,
) -> Result<Graph> {
    let integers = |shape: Shape| Type::from(TensorType::new(DType::Int64, shape, DeviceRef::CPU));
    let most = config.max_length.div_ceil(cache.page_size);
    let length = if cache.dtype == DType::UInt8 { config.head_dim / 32 * 34 } else { config.head_dim };
    let sizes = [2, config.layers.len(), cache.page_size, config.key_heads, length];
    let sizes: Vec<Dim> = ["pages".into()].into_iter().chain(sizes.map(Dim::from)).collect();
    let types = [
        integers(("tokens",).into()),
        integers((Dim::from("batch").add(&Dim::Static(1))?,).into()),
        integers(("batch",).into()),
        integers(("batch", most).into()),
        BufferType::new(cache.dtype, Shape::from(sizes), device).into(),
    ];
    let graph = Graph::new("decoder", types)?;
    {
        let _scope = graph.enter();
        let given = Tokens {
            tokens: graph.input(0)?,
            row_offsets: graph.input(1)?,
            cache_lengths: graph.input(2)?,
            lookup_table: graph.input(3)?,
            cache: graph.inputs()[4].buffer()?,
        };
        graph.output(decoder.forward(&given, all)?)?;
    }
    Ok(graph)
}
