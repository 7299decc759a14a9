//! From the vectors of tokens to the vector of their text, as the files of sentence-transformers say.

use max_core::{DType, Dim, Error, Result, Shape, bail};
use max_graph::{TensorValue, ops};
use serde_json::Value;

use crate::config::Config;
use crate::folder::Folder;

/// How the vectors of tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// That of the first token.
    Cls,
    /// The largest of each element.
    Max,
    /// Their mean.
    Mean,
    /// Their sum, divided by the square root of their number.
    MeanSqrtLength,
}

/// What comes after the layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The vectors of a text, which are concatenated.
    pub pooling: Vec<Pooling>,
    /// Whether the result is scaled to length one.
    pub normalize: bool,
}

/// The names of poolings: in a list of modes, and as flags of older files.
const POOLINGS: [(Pooling, &str, &str); 4] = [
    (Pooling::Cls, "cls", "pooling_mode_cls_token"),
    (Pooling::Max, "max", "pooling_mode_max_tokens"),
    (Pooling::Mean, "mean", "pooling_mode_mean_tokens"),
    (Pooling::MeanSqrtLength, "mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
];

impl Head {
    /// What the files of a model say; without `modules.json`, the mean as it is.
    pub fn read(folder: &Folder) -> Result<Head> {
        let mut head = Head { pooling: vec![Pooling::Mean], normalize: false };
        let Some(text) = folder.read("modules.json")? else { return Ok(head) };
        let modules = serde_json::from_slice::<Value>(&text).ok();
        let Some(modules) = modules.as_ref().and_then(Value::as_array) else {
            bail!(value, "modules.json is not a JSON list of modules");
        };
        for module in modules {
            let text = |name| module.get(name).and_then(Value::as_str).unwrap_or_default();
            match text("type").rsplit('.').next() {
                Some("Transformer") if text("path").is_empty() => {}
                Some("Pooling") => {
                    let path = format!("{}/config.json", text("path"));
                    let config = folder.config(&path)?;
                    let config = config.ok_or_else(|| Error::value(format!("{path} is missing")))?;
                    head.pooling = poolings(&config)?;
                }
                Some("Normalize") => head.normalize = true,
                _ => bail!(
                    not_implemented,
                    "modules.json has a module '{}'; Transformer, Pooling and Normalize are known",
                    text("type")
                ),
            }
        }
        Ok(head)
    }

    /// The vectors of texts, `[batch, size]` in float32, of tokens `[batch, length, width]`. With lengths `[batch]`, tokens
    /// from there on do not count.
    pub fn forward(&self, tokens: &TensorValue, lengths: Option<&TensorValue>) -> Result<TensorValue> {
        let tokens = ops::cast(tokens, DType::Float32)?;
        let parts = self.pooling.iter().map(|pooling| pooling.forward(&tokens, lengths));
        let pooled = ops::concat(parts.collect::<Result<Vec<_>>>()?, -1)?;
        if !self.normalize {
            return Ok(pooled);
        }
        let length = ops::sqrt(ops::sum(ops::mul(&pooled, &pooled)?, -1)?)?;
        ops::div(pooled, ops::max(length, 1e-12)?)
    }
}

/// The poolings that a config names.
fn poolings(config: &Config) -> Result<Vec<Pooling>> {
    let modes = match config.get("pooling_mode") {
        Some(Value::String(mode)) => vec![mode.as_str()],
        Some(_) => config.texts("pooling_mode")?,
        None => {
            let mut modes = vec![];
            for (_, mode, flag) in POOLINGS {
                modes.extend(config.flag(flag)?.then_some(mode));
            }
            for flag in ["pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken"] {
                modes.extend(config.flag(flag)?.then_some(flag));
            }
            modes
        }
    };
    let find = |mode: &str| POOLINGS.iter().find(|(_, name, _)| *name == mode).map(|(pooling, ..)| *pooling);
    let known = || POOLINGS.map(|(_, name, _)| name).join(", ");
    match modes.iter().map(|mode| find(mode).ok_or(mode)).collect::<Result<Vec<_>, _>>() {
        Ok(poolings) if poolings.is_empty() => {
            bail!(value, "the config of the pooling chooses none of {}", known())
        }
        Ok(poolings) => Ok(poolings),
        Err(mode) => bail!(not_implemented, "the pooling '{mode}' is not known; there are {}", known()),
    }
}

impl Pooling {
    fn forward(self, tokens: &TensorValue, lengths: Option<&TensorValue>) -> Result<TensorValue> {
        let [batch, length, width] = &tokens.shape()[..] else { bail!(internal, "tokens without a batch") };
        let own_or = |padding: f64| match lengths {
            Some(lengths) => {
                let position = ops::range(0, length.clone(), 1, None, DType::Int64, tokens.device())?;
                let own = ops::greater(ops::unsqueeze(lengths, 1)?, position)?;
                ops::where_(ops::unsqueeze(own, 2)?, tokens, padding)
            }
            None => Ok(tokens.clone()),
        };
        let count = || {
            let count = match lengths {
                Some(lengths) => {
                    ops::reshape(lengths, Shape::from([batch, &Dim::Static(1), &Dim::Static(1)]))?
                }
                None => ops::transfer_to(length.clone(), tokens.device())?,
            };
            ops::cast(count, DType::Float32)
        };
        let pooled = match self {
            Pooling::Cls => tokens.slice((.., 0..1))?,
            Pooling::Max => ops::reduce_max(own_or(f64::NEG_INFINITY)?, 1)?,
            Pooling::Mean => ops::div(ops::sum(own_or(0.0)?, 1)?, count()?)?,
            Pooling::MeanSqrtLength => ops::div(ops::sum(own_or(0.0)?, 1)?, ops::sqrt(count()?)?)?,
        };
        ops::reshape(pooled, Shape::from([batch, width]))
    }
}
