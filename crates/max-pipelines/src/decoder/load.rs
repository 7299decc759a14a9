//! Models from files.

use std::fmt;
use std::path::{Path, PathBuf};

use max_core::{DType, Result, bail};
use max_driver::Device;
use max_engine::InferenceSession;
use max_weights::{Weights, load_weights};

use super::{CacheConfig, DecoderConfig, DecoderModel, Sources, Stored};
use crate::architecture::{Architecture, Kind, gguf};
use crate::embedded::Embedded;
use crate::folder::Folder;

/// How a decoder runs.
#[derive(Clone, Debug)]
pub struct DecoderOptions {
    /// Where it runs.
    pub device: Device,
    /// The number of threads; one per core if it is not said.
    pub threads: Option<usize>,
    /// The most tokens of a sequence; those of the model's context, but at most 8192, if it is not said.
    pub max_length: Option<usize>,
    /// The tokens that the cache has room for; as many as one sequence has at most, if it is not said.
    pub cache_tokens: Option<usize>,
    /// The dtype of the cache, uint8 for blocks of Q8_0. If it is not said, the one that everything is computed in; on a GPU
    /// float16 beside weights that are blocks, since tensor cores read it.
    pub cache_dtype: Option<DType>,
    /// The tokens of a page of the cache.
    pub page_size: usize,
    /// What matrices are converted to when they are loaded, if it is not what they are.
    pub quantize: Option<Stored>,
    /// Whether weights mean nothing, so that a folder without any can be used for measuring.
    pub dummy: bool,
}

impl Default for DecoderOptions {
    fn default() -> DecoderOptions {
        DecoderOptions {
            device: Device::cpu(),
            threads: None,
            max_length: None,
            cache_tokens: None,
            cache_dtype: None,
            page_size: 128,
            quantize: None,
            dummy: false,
        }
    }
}

/// The length of sequences if nothing is said: a longer cache is rarely used, and takes memory.
const USUAL_LENGTH: usize = 8192;

impl DecoderOptions {
    /// The dtype that everything is computed in. A GPU computes in that of 16-bit weights; on a CPU, and with blocks, it is
    /// float32, also where what weights in bfloat16 are multiplied by is rounded.
    fn dtype(&self, matrices: Stored) -> DType {
        match matrices {
            Stored::Floats(dtype) if dtype.is_half() && !self.device.runs_on_host() => dtype,
            _ => DType::Float32,
        }
    }

    /// The dtype of the cache.
    fn cache_dtype(&self, matrices: Stored) -> DType {
        let usual = match matrices {
            Stored::Blocks(_) if !self.device.runs_on_host() => DType::Float16,
            _ => self.dtype(matrices),
        };
        self.cache_dtype.unwrap_or(usual)
    }

    /// The config with the length that is wanted, how its cache is made, and a session.
    fn apply(
        &self,
        mut config: DecoderConfig,
        matrices: Stored,
    ) -> Result<(DecoderConfig, CacheConfig, InferenceSession)> {
        let longest = self.max_length.unwrap_or(config.max_length.min(USUAL_LENGTH));
        if longest == 0 || longest > config.max_length && !config.is_open_ended() {
            bail!(value, "sequences of {longest} tokens: the context of the model has {}", config.max_length);
        }
        config.max_length = longest;
        let cache = CacheConfig {
            page_size: self.page_size,
            tokens: self.cache_tokens.unwrap_or(longest),
            dtype: self.cache_dtype(matrices),
        };
        let session = InferenceSession::new([self.device.clone()]);
        Ok((
            config,
            cache,
            match self.threads {
                Some(threads) => session.with_num_threads(threads)?,
                None => session,
            },
        ))
    }
}

/// Where a model is.
#[derive(Clone, Debug)]
pub enum ModelFiles {
    /// In a folder with `config.json`.
    Folder(Folder),
    /// In a GGUF file.
    Gguf(PathBuf),
    /// In a GGUF file that is part of the program.
    Embedded(&'static Embedded),
}

impl ModelFiles {
    /// A GGUF file, or a folder or name: see [`Folder::find`].
    pub fn find(model: &str, progress: &dyn Fn(crate::hub::Progress)) -> Result<ModelFiles> {
        let path = Path::new(model);
        match path.extension() {
            Some(extension) if extension == "gguf" && path.is_file() => Ok(ModelFiles::Gguf(path.into())),
            Some(extension) if extension == "gguf" => bail!(value, "there is no file {model}"),
            _ => Folder::find(model, progress).map(ModelFiles::Folder),
        }
    }

    /// A model of the shape that the files describe, with weights that mean nothing.
    pub fn dummy(&self, options: &DecoderOptions) -> Result<DecoderModel> {
        let config = match self {
            ModelFiles::Gguf(_) | ModelFiles::Embedded(_) => self.open()?.config,
            ModelFiles::Folder(folder) => {
                let config = folder.model_config()?;
                match Architecture::of(&config)?.kind {
                    Kind::Decoder(read) => read(&config)?,
                    Kind::Encoder(_) => bail!(value, "{folder} gives embeddings; it generates no text"),
                }
            }
        };
        let stored = options.quantize.unwrap_or(Stored::Floats(DType::Float32));
        let dtype = options.dtype(stored);
        let (config, cache, session) = options.apply(config, stored)?;
        DecoderModel::dummy(config, stored, session, (cache, dtype, &options.device))
    }

    /// The weights, and what describes them: the architecture, the config and how weights are renamed.
    pub fn open(&self) -> Result<Opened> {
        match self {
            ModelFiles::Gguf(path) => Opened::gguf(load_weights(&[path])?),
            ModelFiles::Embedded(model) => Opened::gguf(model.gguf()?),
            ModelFiles::Folder(folder) => {
                let config = folder.model_config()?;
                let architecture = Architecture::of(&config)?;
                let Kind::Decoder(read) = architecture.kind else {
                    bail!(value, "{} gives embeddings; it generates no text", architecture.name)
                };
                Ok(Opened {
                    weights: folder.weights()?,
                    architecture: architecture.name,
                    config: read(&config)?,
                    names: Names::Of(architecture),
                })
            }
        }
    }
}

impl fmt::Display for ModelFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelFiles::Folder(folder) => write!(f, "{folder}"),
            ModelFiles::Gguf(path) => write!(f, "{}", path.display()),
            ModelFiles::Embedded(model) => write!(f, "{model}"),
        }
    }
}

/// The weights of a model and what they are.
pub struct Opened {
    /// The weights.
    pub weights: Weights,
    /// The name of the architecture.
    pub architecture: &'static str,
    /// What the model is made from.
    pub config: DecoderConfig,
    names: Names,
}

/// Whose names weights have.
#[derive(Clone, Copy)]
enum Names {
    Of(&'static Architecture),
    /// Those of GGUF files, where the gates of perceptrons are a matrix of their own, or in that of what they gate.
    Gguf {
        gated: bool,
    },
}

impl Names {
    /// What a weight is called here, if it is used.
    fn rename(self, name: &str) -> Option<String> {
        match self {
            Names::Of(architecture) => architecture.weight_name(name),
            Names::Gguf { gated: true } => gguf::weight_name(name),
            Names::Gguf { gated: false } => gguf::weight_name(&name.replace("ffn_up", "ffn_gate_up")),
        }
    }
}

impl Opened {
    /// The weights of a GGUF file, whose metadata describes them.
    fn gguf(weights: Weights) -> Result<Opened> {
        let (architecture, config) = gguf::config(&weights)?;
        let names = Names::Gguf { gated: weights.contains("blk.0.ffn_gate.weight") };
        Ok(Opened { weights, architecture, config, names })
    }

    /// The model, ready to run; a function is told how many weights are loaded.
    pub fn load(self, options: &DecoderOptions, each: &mut dyn FnMut(usize, usize)) -> Result<DecoderModel> {
        let Opened { weights, config, names, .. } = self;
        // Every layer has weights, so that there are not more layers than weights.
        if config.layers.len() > weights.len() {
            bail!(value, "{} layers have only {} weights", config.layers.len(), weights.len());
        }
        let mut sources = Sources::new(&weights, &config, &|name| names.rename(name), options.quantize);
        let matrices = sources.stored("layers.0.attention.query.weight");
        let dtype = options.dtype(matrices);
        sources.dtype = dtype;
        let (config, cache, session) = options.apply(config, matrices)?;
        DecoderModel::new(config, &sources, session, (cache, dtype, &options.device), each)
    }
}
