//! The index of weights that are spread over several files, as Hugging Face writes it: `model.safetensors.index.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use max_core::{Error, Result, bail};
use serde::Deserialize;

use crate::Weights;
use crate::source::Source;

/// The longest index that is read.
const MOST_BYTES: usize = 100 << 20;

/// Which weight is in which file.
#[derive(Deserialize)]
struct Table {
    weight_map: BTreeMap<String, String>,
}

/// An index and the folder it is in.
pub(crate) struct Index {
    folder: PathBuf,
    table: Table,
}

/// Reads an index.
pub(crate) fn read(path: &Path) -> Result<Index> {
    let source = Source::open(path)?;
    if source.len() > MOST_BYTES {
        bail!(value, "it has {} bytes, more than the {MOST_BYTES} that an index may have", source.len());
    }
    let text = source.read(0, source.len())?;
    let table: Table = serde_json::from_slice(&text)
        .map_err(|error| Error::value(format!("it is not an index of weights: {error}")))?;
    let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
    for file in table.weight_map.values() {
        // A file of weights does not say what else is opened: only neighbours are.
        let mut parts = Path::new(file).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
            bail!(value, "'{file}' is not the name of a file beside the index");
        }
    }
    Ok(Index { folder, table })
}

impl Index {
    /// The files, each once.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let names: BTreeSet<_> = self.table.weight_map.values().collect();
        names.into_iter().map(|name| self.folder.join(name)).collect()
    }

    /// An error if a weight is not in the file where it should be.
    pub(crate) fn check(&self, weights: &Weights) -> Result<()> {
        for (name, file) in &self.table.weight_map {
            let found =
                weights.contains(name).then(|| weights.info(name)).transpose()?.and_then(|info| info.file);
            if found.as_deref() != Some(&*self.folder.join(file)) {
                bail!(value, "the tensor '{name}' is not in '{file}', where it should be");
            }
        }
        Ok(())
    }
}
