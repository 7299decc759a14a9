//! All weights of one or several files, by name.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use max_core::{DType, Error, HostBytes, QuantizationEncoding, Result, bail};

use crate::contents::{Contents, Tensor};
use crate::format::is_index;
use crate::source::Source;
use crate::{Metadata, WeightData, WeightsFormat, gguf, index, names, pytorch, safetensors, weights_format};

/// All weights of one or several files, by name.
///
/// Files are mapped. They must not be written to while the weights or any of their values are in use: a value that changes
/// under a computation gives any result, and reading what was cut off ends the process. Renaming another file over one of
/// them is safe.
pub struct Weights {
    format: WeightsFormat,
    files: Vec<Source>,
    tensors: Vec<Weight>,
    by_name: HashMap<Arc<str>, usize>,
    metadata: Metadata,
}

/// A weight and the number of its file.
struct Weight {
    name: Arc<str>,
    file: usize,
    tensor: Tensor,
}

/// What is known about a weight without looking at its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightInfo {
    /// The type of its elements; uint8 if they are encoded.
    pub dtype: DType,
    /// Its sizes, row-major; the last one counts bytes if the elements are encoded.
    pub shape: Vec<usize>,
    /// How its elements are encoded, if they are.
    pub quantization_encoding: Option<QuantizationEncoding>,
    /// The size of its elements in bytes.
    pub num_bytes: usize,
    /// The file it is in; none if it was loaded from memory.
    pub file: Option<Arc<Path>>,
}

/// Loads the weights of files of one format. An index, such as `model.safetensors.index.json`, stands for all files that it
/// names.
///
/// Nothing but the descriptions of tensors is read.
pub fn load_weights(paths: &[impl AsRef<Path>]) -> Result<Weights> {
    let mut weights = Weights::empty(weights_format(paths)?);
    for path in paths {
        let path = path.as_ref();
        match is_index(path) {
            false => weights.add_file(path)?,
            true => {
                let index = index::read(path).map_err(|error| about(path, error))?;
                for file in index.files() {
                    weights.add_file(&file)?;
                }
                index.check(&weights).map_err(|error| about(path, error))?;
            }
        }
    }
    Ok(weights)
}

impl Weights {
    /// Loads weights from bytes that a file of a format would have. Nothing is copied that is aligned.
    pub fn from_bytes(bytes: HostBytes, format: WeightsFormat) -> Result<Weights> {
        let mut weights = Weights::empty(format);
        weights.add(Source::from_bytes(bytes)?)?;
        Ok(weights)
    }

    /// Loads one file of a format, whatever its name.
    pub(crate) fn open(path: &Path, format: WeightsFormat) -> Result<Weights> {
        let mut weights = Weights::empty(format);
        weights.add_file(path)?;
        Ok(weights)
    }

    fn empty(format: WeightsFormat) -> Weights {
        Weights {
            format,
            files: Vec::new(),
            tensors: Vec::new(),
            by_name: HashMap::new(),
            metadata: Metadata::new(),
        }
    }

    fn add_file(&mut self, path: &Path) -> Result<()> {
        Source::open(path).and_then(|source| self.add(source)).map_err(|error| about(path, error))
    }

    fn add(&mut self, source: Source) -> Result<()> {
        let Contents { tensors, metadata } = match self.format {
            WeightsFormat::Safetensors => safetensors::read(&source)?,
            WeightsFormat::Gguf => gguf::read(&source)?,
            WeightsFormat::Pytorch => pytorch::read(&source)?,
        };
        let file = self.files.len();
        self.files.push(source);
        for (name, tensor) in tensors {
            let name: Arc<str> = name.into();
            if let Some(&other) = self.by_name.get(&name) {
                let elsewhere = match self.files[self.tensors[other].file].path() {
                    Some(path) if self.tensors[other].file != file => {
                        format!(", one of them in '{}'", path.display())
                    }
                    _ => String::new(),
                };
                bail!(value, "there are two tensors with the name '{name}'{elsewhere}");
            }
            self.by_name.insert(name.clone(), self.tensors.len());
            self.tensors.push(Weight { name, file, tensor });
        }
        // Where files disagree, the first one counts.
        for (key, value) in metadata {
            self.metadata.entry(key).or_insert(value);
        }
        Ok(())
    }

    /// The format of the files.
    pub fn format(&self) -> WeightsFormat {
        self.format
    }

    /// The names of all weights, in the order of the files.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.iter().map(|weight| &*weight.name)
    }

    /// The number of weights.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Whether there is a weight with a name.
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The files, in the order in which they were loaded.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.files.iter().filter_map(|file| Some(file.path()?.to_path_buf()))
    }

    /// The size of the files in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len() as u64).sum()
    }

    /// What is known about a weight, without touching its data.
    pub fn info(&self, name: &str) -> Result<WeightInfo> {
        let Weight { file, tensor, .. } = self.find(name)?;
        Ok(WeightInfo {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            quantization_encoding: tensor.encoding,
            num_bytes: tensor.bytes,
            file: self.files[*file].path(),
        })
    }

    /// The value of a weight: a view of the mapped file. It is a copy only if the elements are not aligned in the file or
    /// have gaps there. Writes to it stay in memory.
    pub fn get(&self, name: &str) -> Result<WeightData> {
        let weight = self.find(name)?;
        weight.tensor.value(&self.files[weight.file])
    }

    /// What the files say about themselves: the metadata of safetensors, the key-value pairs of GGUF. If several files
    /// have a key, the first one counts.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn find(&self, name: &str) -> Result<&Weight> {
        match self.by_name.get(name) {
            Some(&index) => Ok(&self.tensors[index]),
            None => {
                let similar = names::similar(name, self.names());
                let hint = match similar.is_empty() {
                    true => format!("It has {} others.", self.len()),
                    false => format!("Did you mean '{}'?", similar.join("' or '")),
                };
                bail!(key, "'{name}' is not a weight in the {} checkpoint. {hint}", self.format)
            }
        }
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Weights({} tensors in {} {} files)", self.len(), self.files.len(), self.format)
    }
}

/// An error with the file that it is about.
pub(crate) fn about(path: &Path, error: Error) -> Error {
    error.prefixed(&format!("cannot load '{}': ", path.display()))
}
