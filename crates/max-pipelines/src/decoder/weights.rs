//! The values of the weights of a decoder, from files.

use std::collections::HashMap;

use max_core::{DType, QuantizationEncoding, Result, ViewIndex, bail};
use max_driver::Buffer;
use max_engine::WeightsRegistry;
use max_nn::Module;
use max_nn::state::Rules;
use max_weights::{WeightData, WeightInfo, Weights};

use super::config::DecoderConfig;
use super::graph::{Decoder, Stored};

/// The weights in files, by the names that the graph has for them.
pub struct Sources<'a> {
    weights: &'a Weights,
    /// The name in the files, and which rows of it, unless it is all of them.
    named: HashMap<String, (String, Option<[usize; 2]>)>,
    /// What matrices are converted to, if it is not what they are.
    to: Option<Stored>,
    /// The dtype of what is computed, and so of vectors.
    pub dtype: DType,
}

impl<'a> Sources<'a> {
    /// The weights under the names that a function gives; those without are not used. Matrices of several projections
    /// below each other are divided. Everything is computed in float32, unless it is said otherwise.
    pub fn new(
        weights: &'a Weights,
        config: &DecoderConfig,
        rename: &dyn Fn(&str) -> Option<String>,
        to: Option<Stored>,
    ) -> Sources<'a> {
        let (query, key) = (config.heads * config.head_dim, config.key_heads * config.head_dim);
        let fused = [
            ("attention.query_key_value", vec![("query", query), ("key", key), ("value", key)]),
            ("mlp.gate_up", vec![("gate", config.intermediate), ("up", config.intermediate)]),
        ];
        let mut named = HashMap::new();
        for name in weights.names() {
            let Some(own) = rename(name) else { continue };
            let together = fused.iter().find_map(|(part, all)| Some((own.split_once(part)?, part, all)));
            let Some(((before, after), part, all)) = together else {
                // A table that is that of the logits too need not be there twice.
                if !(config.tied && own == "head.weight") {
                    named.insert(own, (name.to_string(), None));
                }
                continue;
            };
            let group = part.split_once('.').map_or("", |(group, _)| group);
            let mut start = 0;
            for (projection, rows) in all {
                let rows = [start, start + rows];
                named.insert(format!("{before}{group}.{projection}{after}"), (name.to_string(), Some(rows)));
                start = rows[1];
            }
        }
        Sources { weights, named, to, dtype: DType::Float32 }
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        self.named.get(name).and_then(|(file, _)| self.weights.info(file).ok())
    }

    /// Whether there is a weight.
    pub fn contains(&self, name: &str) -> bool {
        self.named.contains_key(name)
    }

    /// How a matrix will be stored.
    pub fn stored(&self, name: &str) -> Stored {
        let own =
            self.info(name).map_or(Stored::Floats(self.dtype), |info| match info.quantization_encoding {
                Some(encoding) => Stored::Blocks(encoding),
                None => Stored::Floats(info.dtype),
            });
        match (own, self.to) {
            (Stored::Floats(_), Some(Stored::Blocks(encoding))) if !self.fits(name, encoding) => own,
            (_, Some(to)) => to,
            // Halves are read as they are; everything else that is no block is computed in the dtype anyway.
            (Stored::Floats(dtype), None) if dtype.is_half() => own,
            (Stored::Floats(_), None) => Stored::Floats(self.dtype),
            (own, None) => own,
        }
    }

    /// Whether the rows of a matrix are whole blocks.
    fn fits(&self, name: &str, encoding: QuantizationEncoding) -> bool {
        let columns = self.info(name).and_then(|info| info.shape.last().copied());
        match (columns, encoding.block_parameters()) {
            (Some(columns), Ok(block)) => columns.is_multiple_of(block.elements_per_block),
            _ => false,
        }
    }

    /// The values of all weights of a graph.
    pub fn values(&self, decoder: &Decoder, each: &mut dyn FnMut(usize, usize)) -> Result<WeightsRegistry> {
        let expected = decoder.raw_state_dict();
        let mut state = HashMap::new();
        for (number, (name, (file, rows))) in self.named.iter().enumerate() {
            each(number, self.named.len());
            let mut value = self.weights.get(file)?;
            if let Some(rows) = rows {
                value.data = part(&value.data, *rows, file)?;
            }
            if let Some(weight) = expected.get(name) {
                let target = match weight.quantization_encoding {
                    Some(encoding) => Stored::Blocks(encoding),
                    None => Stored::Floats(weight.tensor_type().dtype),
                };
                value = converted(value, target).map_err(|e| e.context(format!("for weight '{file}'")))?;
            }
            state.insert(name.clone(), value);
        }
        decoder.load_state_dict(&state, Rules::default())
    }
}

/// Some rows of a tensor.
fn part(data: &Buffer, [start, stop]: [usize; 2], name: &str) -> Result<Buffer> {
    let rows = data.shape().first().copied().unwrap_or(0);
    if stop > rows {
        bail!(value, "'{name}' has {rows} rows, but the model needs {stop}");
    }
    data.index(&[ViewIndex::Slice { start: Some(start as i64), stop: Some(stop as i64), step: 1 }])
}

/// A value in another form.
fn converted(value: WeightData, to: Stored) -> Result<WeightData> {
    match to {
        Stored::Floats(dtype) => value.astype(dtype),
        Stored::Blocks(encoding) if value.quantization_encoding == Some(encoding) => Ok(value),
        Stored::Blocks(encoding) => value.encode(encoding),
    }
}
