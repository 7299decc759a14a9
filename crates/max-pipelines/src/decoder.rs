//! Decoders: transformers that say which token comes next.

mod cache;
mod config;
mod dummy;
mod graph;
mod largest;
mod load;
mod sequence;
mod weights;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use max_core::{BufferType, DType, DeviceRef, Dim, Result, Shape, TensorType, Type, ViewIndex, bail};
use max_driver::{Buffer, CPU, Device};
use max_engine::{InferenceSession, Model, WeightsRegistry};
use max_graph::Graph;

pub use cache::{Cache, CacheConfig, Pages};
pub use config::{DecoderConfig, LayerConfig, Norms, QueryNorm, Rope};
pub use graph::Stored;
use graph::{Decoder, Tokens};
use largest::Largest;
pub use load::{DecoderOptions, ModelFiles, Opened};
pub use sequence::{Sequence, Sequences};
pub use weights::Sources;

use crate::text::sampling::{Logits, Wanted};

/// The most sequences whose next tokens are recorded for a GPU.
const MOST_RECORDED: usize = 64;

/// A decoder that is ready to run.
pub struct DecoderModel {
    config: DecoderConfig,
    decoder: Decoder,
    session: InferenceSession,
    values: WeightsRegistry,
    cache: CacheConfig,
    device: Device,
    /// Gives the logits after the last token of each sequence.
    last: Model,
    /// What a recorded execution reads and writes, by the number of its sequences, which have one new token each.
    recorded: Mutex<HashMap<usize, Recorded>>,
    /// Gives those after every token.
    all: OnceLock<Arc<Model>>,
    largest: Largest,
}

/// The memory of a recorded execution.
struct Recorded {
    given: Buffer,
    logits: Buffer,
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
        let decoder = Decoder::new(&config, &|name| sources.stored(name), dtype, device.device_ref())?;
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
        let decoder = Decoder::new(&config, &|_| stored, dtype, device.device_ref())?;
        let values = dummy::values(&decoder, device)?;
        DecoderModel::with_values(config, decoder, session, (cache, device), values)
    }

    fn with_values(
        config: DecoderConfig,
        decoder: Decoder,
        session: InferenceSession,
        (cache, device): (CacheConfig, &Device),
        values: WeightsRegistry,
    ) -> Result<DecoderModel> {
        let graph = graph(&config, &decoder, cache, device.device_ref(), false)?;
        let last = session.load_with(&graph, &values)?;
        let (device, recorded, all) = (device.clone(), Mutex::default(), OnceLock::new());
        let largest = Largest::default();
        Ok(DecoderModel { config, decoder, session, values, cache, device, last, recorded, all, largest })
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
        self.run_on(&self.last, cache, steps, |logits| logits.to(&CPU()))
    }

    /// As [`run`](DecoderModel::run), with what is wanted of the logits of each sequence, or more.
    pub fn next(&self, cache: &Cache, steps: &mut [Step], wanted: &[Wanted]) -> Result<Vec<Logits>> {
        self.run_on(&self.last, cache, steps, |logits| self.largest.of(&self.session, logits, wanted))
    }

    /// As [`run`](DecoderModel::run), with the logits after every token, `[tokens, vocab]`.
    pub fn run_all(&self, cache: &Cache, steps: &mut [Step]) -> Result<Buffer> {
        let model = match self.all.get() {
            Some(model) => model.clone(),
            None => {
                let graph = graph(&self.config, &self.decoder, self.cache, self.device.device_ref(), true)?;
                let model = Arc::new(self.session.load_with(&graph, &self.values)?);
                self.all.get_or_init(|| model).clone()
            }
        };
        self.run_on(&model, cache, steps, |logits| logits.to(&CPU()))
    }

    /// Runs a model, and passes the logits to a function before anything else can overwrite them.
    fn run_on<R>(
        &self,
        model: &Model,
        cache: &Cache,
        steps: &mut [Step],
        then: impl Fn(&Buffer) -> Result<R>,
    ) -> Result<R> {
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
        let given = Given { tokens: tokens.len(), batch, most };
        let numbers = given.pack([&tokens, &starts, &lengths, &table])?;
        let one_each = tokens.len() == batch && steps.iter().all(|step| step.tokens.len() == 1);
        let recorded = !self.device.runs_on_host() && std::ptr::eq(model, &self.last);
        let found = if recorded && one_each && (1..=MOST_RECORDED).contains(&batch) {
            self.replay(given, &numbers, cache, then)?
        } else {
            let inputs = given.inputs(&numbers.to(&self.device)?, cache)?;
            let Some(logits) = model.execute(&inputs)?.into_iter().next() else {
                bail!(internal, "a decoder without a result")
            };
            then(&logits)?
        };
        for step in steps {
            step.pages.length += step.tokens.len();
        }
        Ok(found)
    }

    /// Runs the next token of some sequences, as recorded the first time.
    fn replay<R>(
        &self,
        given: Given,
        numbers: &Buffer,
        cache: &Cache,
        then: impl Fn(&Buffer) -> Result<R>,
    ) -> Result<R> {
        // Replays write the same memory, so they take turns.
        let mut all = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let key = given.batch as u64;
        if let Some(recorded) = all.get(&given.batch) {
            recorded.given.copy_from(numbers)?;
            self.last.replay(key, &given.inputs(&recorded.given, cache)?)?;
            return then(&recorded.logits);
        }
        let numbers = numbers.copy(Some(&self.device))?;
        let outputs = self.last.capture(key, &given.inputs(&numbers, cache)?)?;
        let Some(logits) = outputs.into_iter().next() else { bail!(internal, "a decoder without a result") };
        let found = then(&logits)?;
        all.insert(given.batch, Recorded { given: numbers, logits });
        Ok(found)
    }
}

/// The sizes of what a decoder is given: new tokens, row offsets, lengths and pages. They are one buffer, so that one copy
/// brings them to a device.
#[derive(Clone, Copy)]
struct Given {
    tokens: usize,
    batch: usize,
    most: usize,
}

impl Given {
    /// Where a part may start, in elements.
    const ALIGNED: usize = 8;

    fn lengths(self) -> [usize; 4] {
        [self.tokens, self.batch + 1, self.batch, self.batch * self.most]
    }

    fn pack(self, parts: [&[i64]; 4]) -> Result<Buffer> {
        let mut all = Vec::new();
        for part in parts {
            all.extend_from_slice(part);
            all.resize(all.len().next_multiple_of(Given::ALIGNED), 0);
        }
        Buffer::from_slice(&all, &[all.len()])
    }

    /// The inputs of the graph.
    fn inputs(self, packed: &Buffer, cache: &Cache) -> Result<Vec<Buffer>> {
        let (mut inputs, mut start) = (Vec::with_capacity(5), 0);
        for length in self.lengths() {
            let stop = start + length;
            let slice = ViewIndex::Slice { start: Some(start as i64), stop: Some(stop as i64), step: 1 };
            inputs.push(packed.index(&[slice])?);
            start = stop.next_multiple_of(Given::ALIGNED);
        }
        inputs[3] = inputs[3].view(DType::Int64, Some(&[self.batch, self.most]))?;
        inputs.push(cache.buffer().clone());
        Ok(inputs)
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
    let integers = |shape: Shape| Type::from(TensorType::new(DType::Int64, shape, device));
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::folder::Folder;

    #[test]
    fn a_layer_is_a_few_kernels() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/decoders/llama3");
        let options =
            DecoderOptions { quantize: Some(Stored::Floats(DType::Float32)), ..DecoderOptions::default() };
        let model = ModelFiles::Folder(Folder::Path(folder)).dummy(&options).unwrap();
        let names: Vec<String> =
            model.last.kernel_summaries().into_iter().map(|kernel| kernel.name).collect();
        let stores: Vec<usize> = (0..names.len()).filter(|&at| names[at].contains("paged_store")).collect();
        // From the store of the first layer to that of the second: both stores, attention, four products of which those of
        // the gate are two and those of queries, keys and values are one, two norms, and the loop that turns.
        let layer = &names[stores[0]..stores[1]];
        assert_eq!(layer.len(), 10, "{layer:#?}");
        assert!(layer.iter().all(|name| name != "concat"), "{layer:#?}");
    }
}
