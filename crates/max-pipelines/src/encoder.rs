//! Embeddings of texts.

mod batches;
mod embeddings;
mod graph;
mod habits;
mod pooling;

use std::borrow::Cow;
use std::collections::HashMap;

use max_core::{DType, DeviceRef, Error, Result, TensorType, bail};
use max_driver::{Buffer, Device};
use max_engine::{InferenceSession, Model, WeightsRegistry};
use max_graph::{Graph, ops};
use max_nn::Module;
use max_nn::state::Rules;
use max_weights::Weights;

use crate::architecture::{Architecture, Kind};
use crate::embedded::ENCODER;
use crate::folder::Folder;
use crate::tokenizer::Tokenizer;
use batches::{Batch, batches};
use graph::Encoder;
use habits::Habits;
use pooling::Head;

pub use embeddings::Embeddings;
pub use graph::{EncoderConfig, RelativePositions};

/// How a [`SentenceEncoder`] runs.
#[derive(Clone, Debug)]
pub struct EncoderOptions {
    /// Where it runs.
    pub device: Device,
    /// The number of threads; one per core if it is not said.
    pub threads: Option<usize>,
    /// The dtype of weights and of what is computed with them. If it is not said, it is float32 on a CPU, and that of the
    /// model's files on a GPU.
    pub dtype: Option<DType>,
    /// The most texts that run together.
    pub batch_size: usize,
}

impl Default for EncoderOptions {
    fn default() -> EncoderOptions {
        EncoderOptions { device: Device::cpu(), threads: None, dtype: None, batch_size: 32 }
    }
}

/// A model that turns texts into vectors, such that texts with similar meanings have similar vectors.
///
/// ```
/// use max_pipelines::SentenceEncoder;
///
/// let encoder = SentenceEncoder::load_default()?;
/// let texts = ["The child is happy.", "The kid is glad.", "The car is broken."];
/// let embeddings = encoder.encode(&texts)?;
/// assert!(embeddings.similarity(0, 1) > embeddings.similarity(0, 2));
/// # Ok::<(), max_core::Error>(())
/// ```
///
pub struct SentenceEncoder {
    architecture: &'static Architecture,
    tokenizer: Tokenizer,
    habits: Habits,
    max_length: usize,
    dimension: usize,
    /// For texts that all have one length.
    even: Model,
    /// For texts that are padded to one length.
    padded: Model,
    batch_size: usize,
}

impl SentenceEncoder {
    /// The model in a folder, or with a name: see [`Folder::find`].
    pub fn load(model: &str, options: &EncoderOptions) -> Result<SentenceEncoder> {
        SentenceEncoder::from_folder(&Folder::find(model, &|_| ())?, options)
    }

    /// The small model that is part of the program.
    pub fn load_default() -> Result<SentenceEncoder> {
        SentenceEncoder::from_folder(&ENCODER.folder(), &EncoderOptions::default())
    }

    /// The model that these files describe.
    pub fn from_folder(folder: &Folder, options: &EncoderOptions) -> Result<SentenceEncoder> {
        SentenceEncoder::read(folder, options).map_err(|e| e.context(format!("in {folder}")))
    }

    fn read(folder: &Folder, options: &EncoderOptions) -> Result<SentenceEncoder> {
        let config = folder.model_config()?;
        let architecture = Architecture::of(&config)?;
        let Kind::Encoder(read) = architecture.kind else {
            bail!(value, "{} generates text; it gives no embeddings", architecture.name)
        };
        let encoder_config = read(&config)?;
        let (head, habits) = (Head::read(folder)?, Habits::read(folder)?);
        let max_length = habits.max_length.unwrap_or(usize::MAX).min(encoder_config.max_length());
        let weights = folder.weights()?;
        let device = options.device.device_ref();
        let dtype = match options.dtype {
            Some(dtype) => dtype,
            None if device.is_cpu() => DType::Float32,
            None => stored_dtype(&weights)?,
        };
        // Every layer has weights, so that there are not more layers than weights.
        if encoder_config.layers > weights.len() {
            bail!(value, "{} layers have only {} weights", encoder_config.layers, weights.len());
        }
        let encoder = Encoder::new(&encoder_config, dtype, device)?;
        let values = values(architecture, &encoder, &weights, dtype)?;
        let mut session = InferenceSession::new([options.device.clone()]);
        if let Some(threads) = options.threads {
            session = session.with_num_threads(threads)?;
        }
        let load = |padded: bool| {
            let tokens = TensorType::new(DType::Int64, ("batch", "length"), DeviceRef::CPU);
            let lengths = TensorType::new(DType::Int64, ["batch"], DeviceRef::CPU);
            let inputs = [Some(tokens), padded.then_some(lengths)].into_iter().flatten();
            let graph = Graph::build(architecture.name, inputs, |inputs| {
                let inputs = inputs.iter().map(|input| ops::transfer_to(input, device));
                let inputs = inputs.collect::<Result<Vec<_>>>()?;
                let (tokens, lengths) = (&inputs[0], inputs.get(1));
                head.forward(&encoder.forward(tokens, lengths)?, lengths)
            })?;
            session.load_with(&graph, &values)
        };
        Ok(SentenceEncoder {
            architecture,
            tokenizer: Tokenizer::load(folder)?.truncated(max_length)?,
            habits,
            max_length,
            dimension: encoder_config.width * head.pooling.len(),
            even: load(false)?,
            padded: load(true)?,
            batch_size: options.batch_size,
        })
    }

    /// The number of elements of a vector.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// The most tokens of a text that count.
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    /// Its architecture.
    pub fn architecture(&self) -> &'static Architecture {
        self.architecture
    }

    /// The vectors of texts.
    pub fn encode<T: AsRef<str>>(&self, texts: &[T]) -> Result<Embeddings> {
        self.encode_tokens(&self.tokenize(texts)?, &mut |_| Ok(()))
    }

    /// The tokens of texts.
    pub fn tokenize<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Vec<u32>>> {
        let texts: Vec<Cow<str>> = texts.iter().map(|text| self.habits.apply(text.as_ref())).collect();
        self.tokenizer.encode_batch(texts.iter().map(|text| &**text).collect())
    }

    /// The vectors of texts whose tokens are known. After each batch a function is told how many texts it had, and may end
    /// the work with an error.
    pub fn encode_tokens<T: AsRef<[u32]>>(
        &self,
        texts: &[T],
        after: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Embeddings> {
        let length = |at: &usize| texts[*at].as_ref().len();
        // A text without tokens has no meaning, and a vector of zeros.
        let mut order: Vec<usize> = (0..texts.len()).filter(|at| length(at) > 0).collect();
        order.sort_by_key(length);
        let lengths: Vec<usize> = order.iter().map(length).collect();
        let mut embeddings = Embeddings::zeros(texts.len(), self.dimension)?;
        for Batch { texts: range, length } in batches(&lengths, self.batch_size) {
            let numbers = &order[range.clone()];
            let batch: Vec<&[u32]> = numbers.iter().map(|&at| texts[at].as_ref()).collect();
            let vectors = self.run(&batch, length)?.to_vec::<f32>()?;
            for (&at, vector) in numbers.iter().zip(vectors.chunks_exact(self.dimension)) {
                embeddings.row_mut(at).copy_from_slice(vector);
            }
            after(numbers.len())?;
        }
        Ok(embeddings)
    }

    /// Runs texts of at most this many tokens.
    fn run(&self, texts: &[&[u32]], length: usize) -> Result<Buffer> {
        let mut tokens = Vec::with_capacity(texts.len() * length);
        for text in texts {
            tokens.extend(text.iter().map(|&token| i64::from(token)));
            tokens.resize(tokens.len() + length - text.len(), 0);
        }
        let tokens = Buffer::from_slice(&tokens, &[texts.len(), length])?;
        let outputs = match texts.iter().all(|text| text.len() == length) {
            true => self.even.execute(&[tokens])?,
            false => {
                let lengths: Vec<i64> = texts.iter().map(|text| text.len() as i64).collect();
                self.padded.execute(&[tokens, Buffer::from_slice(&lengths, &[texts.len()])?])?
            }
        };
        outputs.into_iter().next().ok_or_else(|| Error::internal("an encoder without a result"))
    }
}

/// The dtype of most of a model's numbers in its files.
fn stored_dtype(weights: &Weights) -> Result<DType> {
    let infos = weights.names().map(|name| weights.info(name)).collect::<Result<Vec<_>>>()?;
    let floats = infos.iter().filter(|info| info.dtype.is_float());
    Ok(floats.max_by_key(|info| info.num_bytes).map_or(DType::Float32, |info| info.dtype))
}

/// The values of an encoder's weights, by their names in it.
fn values(
    architecture: &Architecture,
    encoder: &Encoder,
    weights: &Weights,
    dtype: DType,
) -> Result<WeightsRegistry> {
    let expected = encoder.raw_state_dict();
    let mut state = HashMap::new();
    for name in weights.names() {
        let Some(own) = architecture.weight_name(name) else { continue };
        let value = weights.get(name)?;
        let value = if expected.contains_key(&own) { value.astype(dtype)? } else { value };
        state.insert(own, value);
    }
    encoder.load_state_dict(&state, Rules::default())
}
