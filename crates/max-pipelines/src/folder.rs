//! The files of a model: in a folder, or built into the program.

use std::fmt;
use std::path::{Path, PathBuf};

use max_core::{Error, HostBytes, Result, bail};
use max_weights::{Weights, WeightsFormat, load_weights};

use crate::config::Config;
use crate::hub::{Hub, Progress, Repo};

/// The most bytes of a text file: no tokenizer has that many.
const MOST_TEXT: u64 = 256 << 20;

/// Where the files of a model are.
#[derive(Clone, Debug)]
pub enum Folder {
    /// In a folder on disk.
    Path(PathBuf),
    /// In the program itself: a name for all of them, then their own names and contents.
    Embedded(&'static str, &'static [(&'static str, &'static [u8])]),
}

impl Folder {
    /// The folder at a path, if there is one; else the model with that name, from the local cache or from the hub. A
    /// function is told how far downloads are.
    pub fn find(model: &str, progress: &dyn Fn(Progress)) -> Result<Folder> {
        let path = Path::new(model);
        if path.is_dir() {
            return Ok(Folder::Path(path.into()));
        }
        if path.exists() {
            bail!(value, "{model} is a file; expected a folder with config.json, tokenizer.json and weights");
        }
        match model.parse::<Repo>() {
            Ok(repo) => Hub::from_environment().fetch(&repo, progress).map(Folder::Path),
            Err(_) => bail!(value, "there is no folder {model}, and no model can have that name"),
        }
    }

    /// The contents of a file, if there is one of that name.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match self {
            Folder::Embedded(_, files) => {
                Ok(files.iter().find(|(own, _)| *own == name).map(|(_, contents)| contents.to_vec()))
            }
            Folder::Path(folder) => {
                let path = folder.join(name);
                let wrong = |error: std::io::Error| {
                    Error::runtime(format!("cannot read {}: {error}", path.display()))
                };
                if !path.exists() {
                    return Ok(None);
                }
                let data = path.metadata().map_err(wrong)?;
                if !data.is_file() || data.len() > MOST_TEXT {
                    bail!(value, "{} is not a file of at most {} MB", path.display(), MOST_TEXT >> 20);
                }
                std::fs::read(&path).map(Some).map_err(wrong)
            }
        }
    }

    /// A JSON file, if there is one of that name.
    pub fn config(&self, name: &str) -> Result<Option<Config>> {
        self.read(name)?.map(|text| Config::parse(name, &text)).transpose()
    }

    /// What describes the model: `config.json`.
    pub fn model_config(&self) -> Result<Config> {
        match self.config("config.json")? {
            Some(config) => Ok(config),
            None => bail!(value, "{self} has no config.json"),
        }
    }

    /// The weights: those in safetensors if there are any, else those of a PyTorch checkpoint.
    pub fn weights(&self) -> Result<Weights> {
        let nothing = || Error::value(format!("{self} has no weights: neither *.safetensors nor *.bin"));
        match self {
            Folder::Path(path) => load_weights(&weight_files(path)?.ok_or_else(nothing)?),
            Folder::Embedded(_, files) => {
                let file =
                    files.iter().find(|(name, _)| name.ends_with(".safetensors")).ok_or_else(nothing)?;
                Weights::from_bytes(HostBytes::new(file.1), WeightsFormat::Safetensors)
            }
        }
    }
}

/// The files of weights in a folder, or the index that names them.
fn weight_files(folder: &Path) -> Result<Option<Vec<PathBuf>>> {
    let entries = folder.read_dir();
    let entries =
        entries.map_err(|error| Error::runtime(format!("cannot read {}: {error}", folder.display())))?;
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    let chosen = [".safetensors", ".bin"].into_iter().find_map(|end| {
        let ending =
            |end: &str| -> Vec<&String> { names.iter().filter(|name| name.ends_with(end)).collect() };
        let (index, files) = (ending(&format!("{end}.index.json")), ending(end));
        // Some folders have one file with everything beside the parts of it, or beside other files.
        let whole = files
            .iter()
            .copied()
            .filter(|name| ["model.safetensors", "pytorch_model.bin"].contains(&name.as_str()));
        let candidates = [whole.collect(), index, files];
        candidates.into_iter().find(|names| !names.is_empty())
    });
    Ok(chosen.map(|names| names.into_iter().map(|name| folder.join(name)).collect()))
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Folder::Path(path) => write!(f, "{}", path.display()),
            Folder::Embedded(name, _) => write!(f, "the built-in model {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_chosen() {
        let folder = std::env::temp_dir().join(format!("max-folder-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let chosen = || {
            let files = weight_files(&folder).unwrap().unwrap_or_default();
            let names = files.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_string());
            names.collect::<Vec<_>>().join(" ")
        };
        let add = |name: &str| std::fs::write(folder.join(name), "").unwrap();
        assert_eq!(chosen(), "");
        add("training_args.bin");
        assert_eq!(chosen(), "training_args.bin");
        add("pytorch_model.bin");
        assert_eq!(chosen(), "pytorch_model.bin");
        add("a-2.safetensors");
        add("a-1.safetensors");
        assert_eq!(chosen(), "a-1.safetensors a-2.safetensors");
        add("a.safetensors.index.json");
        assert_eq!(chosen(), "a.safetensors.index.json");
        add("model.safetensors");
        assert_eq!(chosen(), "model.safetensors");
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(weight_files(&folder).is_err());
    }

    #[test]
    fn folders_are_found() {
        let find = |model: &str| Folder::find(model, &|_| ()).map(|folder| folder.to_string());
        assert_eq!(find(env!("CARGO_MANIFEST_DIR")), Ok(env!("CARGO_MANIFEST_DIR").into()));
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert!(find(file).unwrap_err().message().contains("is a file"));
        assert!(
            find("./no/such/folder").unwrap_err().message().contains("there is no folder ./no/such/folder")
        );
        assert!(find("").is_err());
    }

    #[test]
    fn only_files_are_read() {
        let folder = Folder::Path(env!("CARGO_MANIFEST_DIR").into());
        assert_eq!(folder.read("nothing"), Ok(None));
        assert!(folder.read("src").unwrap_err().message().contains("is not a file"));
        assert!(folder.model_config().unwrap_err().message().ends_with("has no config.json"));
        assert!(folder.weights().unwrap_err().message().contains("has no weights"));
    }
}
