//! Models by name: from the local cache of the Hugging Face hub, and from the hub if they are not there.
//!
//! The cache has the layout that other tools use too, so that a model is downloaded once for all of them. What is in it is
//! used as it is, without asking the hub whether there is anything newer.

mod cache;
mod client;

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use max_core::{Error, Result, bail};

use cache::Cache;
pub use cache::CachedModel;
use client::Client;

/// A repository of the hub and a branch, tag or commit of it: `organization/name` or `organization/name@revision`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repo {
    id: String,
    revision: String,
}

impl Repo {
    /// Its name, with that of its organization.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The branch, tag or commit.
    pub fn revision(&self) -> &str {
        &self.revision
    }
}

impl FromStr for Repo {
    type Err = Error;

    fn from_str(text: &str) -> Result<Repo> {
        let (id, revision) = text.split_once('@').unwrap_or((text, "main"));
        let word = |word: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            word.chars().all(plain) && word.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        };
        let fits = id.len() <= 96 && id.split('/').count() <= 2 && id.split('/').all(word);
        // Names of folders in the cache are made with two hyphens.
        if !fits || id.contains("--") || id.contains("..") {
            bail!(value, "'{id}' is not the name of a model; expected one like organization/name");
        }
        if revision.len() > 255 || revision.contains("..") || !revision.split('/').all(word) {
            bail!(value, "'{revision}' is not a branch, tag or commit of {id}");
        }
        Ok(Repo { id: id.into(), revision: revision.into() })
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.revision.as_str() {
            "main" => f.write_str(&self.id),
            revision => write!(f, "{}@{revision}", self.id),
        }
    }
}

/// How far a download is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The file.
    pub file: &'a str,
    /// The bytes that are here.
    pub done: u64,
    /// The bytes of the whole file.
    pub total: u64,
}

/// Where models are looked for and downloaded from.
#[derive(Clone, Debug)]
pub struct Hub {
    /// The folder of the local cache.
    pub cache: PathBuf,
    /// The address of the hub.
    pub endpoint: String,
    /// What the hub knows its user by.
    pub token: Option<String>,
    /// Whether nothing may be downloaded.
    pub offline: bool,
}

impl Hub {
    /// As the environment says, by the variables that other tools have too: `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`,
    /// `HF_TOKEN`, `HF_TOKEN_PATH` and `HF_HUB_OFFLINE`.
    pub fn from_environment() -> Hub {
        Hub::from_variables(&|name| env::var(name).ok().filter(|value| !value.trim().is_empty()))
    }

    fn from_variables(variable: &dyn Fn(&str) -> Option<String>) -> Hub {
        let path = |name: &str| variable(name).map(PathBuf::from);
        let caches = || path("XDG_CACHE_HOME").or_else(|| Some(env::home_dir()?.join(".cache")));
        let home = path("HF_HOME").or_else(|| Some(caches()?.join("huggingface"))).unwrap_or_default();
        let stored = || std::fs::read_to_string(path("HF_TOKEN_PATH").unwrap_or(home.join("token"))).ok();
        let token = variable("HF_TOKEN").or_else(stored).map(|token| token.trim().to_string());
        let yes = |name| {
            variable(name).is_some_and(|value| ["1", "on", "yes", "true"].contains(&&*value.to_lowercase()))
        };
        Hub {
            cache: path("HF_HUB_CACHE").unwrap_or_else(|| home.join("hub")),
            endpoint: variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into()),
            token: token.filter(|token| !token.is_empty()),
            offline: yes("HF_HUB_OFFLINE"),
        }
    }

    /// The folder of a model. What is missing of it in the cache is downloaded first, and a function is told how far that is.
    pub fn fetch(&self, repo: &Repo, progress: &dyn Fn(Progress)) -> Result<PathBuf> {
        let cache = Cache::of(&self.cache, repo);
        if let Some(folder) = cache.snapshot(repo.revision()).filter(|folder| is_complete(folder)) {
            return Ok(folder);
        }
        if self.offline {
            bail!(
                runtime,
                "the model '{repo}' is not in the cache ({}), and HF_HUB_OFFLINE forbids downloading it",
                self.cache.display()
            );
        }
        let client = Client::new(&self.endpoint, self.token.as_deref(), repo);
        let listing = client.list()?;
        let files = model_files(&listing.files);
        if files.is_empty() {
            bail!(value, "'{repo}' has no config.json with weights, nor a GGUF file that stands alone");
        }
        for file in files {
            cache.add(&client, &listing.commit, file, progress)?;
        }
        cache.set_revision(repo.revision(), &listing.commit)?;
        match cache.snapshot(repo.revision()).filter(|folder| is_complete(folder)) {
            Some(folder) => Ok(folder),
            None => {
                bail!(value, "'{repo}' has no complete model: a file of weights that it names is missing")
            }
        }
    }

    /// The models in the cache, by name.
    pub fn models(&self) -> Vec<CachedModel> {
        cache::models(&self.cache)
    }
}

/// The files of a model among those of a repository, weights last: what a folder with its weights lacks, it never had.
fn model_files(all: &[String]) -> Vec<&str> {
    let suffix = |suffix: &'static str| move |file: &&str| file.ends_with(suffix) && !file.contains('/');
    let names = || all.iter().map(String::as_str);
    let small = |file: &&str| match file.split_once('/') {
        None => [".json", ".jinja", ".txt", ".model"].iter().any(|end| file.ends_with(end)),
        // The modules of sentence-transformers have folders of their own.
        Some((module, file)) => module.starts_with(|c: char| c.is_ascii_digit()) && file == "config.json",
    };
    let weights: Vec<&str> = [".safetensors", ".bin"]
        .into_iter()
        .map(|end| names().filter(suffix(end)).collect::<Vec<_>>())
        .find(|files| !files.is_empty())
        .unwrap_or_default();
    let ggufs: Vec<&str> = names().filter(suffix(".gguf")).collect();
    let has_config = names().any(|file| file == "config.json");
    match (has_config && !weights.is_empty(), &ggufs[..]) {
        (true, _) => names().filter(small).chain(weights).collect(),
        (false, [gguf]) => names().filter(small).chain([*gguf]).collect(),
        _ => vec![],
    }
}

/// Whether a folder has the weights of a model, all parts of them if there are several.
fn is_complete(folder: &Path) -> bool {
    let Ok(entries) = folder.read_dir() else { return false };
    let names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    let exists = |name: &str| folder.join(name).is_file();
    let parts = |index: &String| -> Option<Vec<String>> {
        let text = std::fs::read(folder.join(index)).ok()?;
        let index: serde_json::Value = serde_json::from_slice(&text).ok()?;
        let files = index.get("weight_map")?.as_object()?.values();
        files.map(|file| Some(file.as_str()?.to_string())).collect()
    };
    match names.iter().find(|name| name.ends_with(".safetensors.index.json")) {
        Some(index) => parts(index).is_some_and(|parts| parts.iter().all(|part| exists(part))),
        None => {
            let ends = [".safetensors", ".bin", ".gguf"];
            names.iter().any(|name| ends.iter().any(|end| name.ends_with(end)) && exists(name))
        }
    }
}

#[cfg(test)]
mod tests;
