//! The files of a model: in a folder, or built into the program.

use std::fmt;
use std::path::{Path, PathBuf};

use max_core::{Error, Result, bail};

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
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Folder::Path(path) => write!(f, "{}", path.display()),
            Folder::Embedded(name, _) => write!(f, "the built-in model {name}"),
        }
    }
}
