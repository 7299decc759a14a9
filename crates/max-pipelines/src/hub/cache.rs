//! The cache on disk: `models--organization--name` with contents under their hashes (`blobs`), the commits that branches
//! stand for (`refs`), and the files of a commit as links to contents (`snapshots`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use max_core::{Error, Result, bail};

use super::client::{Client, Found};
use super::{Progress, Repo, is_complete};

/// The part of the cache that belongs to a repository.
pub struct Cache {
    folder: PathBuf,
}

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// Its name.
    pub name: String,
    /// Where its files are.
    pub folder: PathBuf,
    /// The bytes of its files.
    pub bytes: u64,
}

impl Cache {
    pub fn of(cache: &Path, repo: &Repo) -> Cache {
        Cache { folder: cache.join(format!("models--{}", repo.id().replace('/', "--"))) }
    }

    /// The folder with the files of a revision, if there is one.
    pub fn snapshot(&self, revision: &str) -> Option<PathBuf> {
        let commit = fs::read_to_string(self.folder.join("refs").join(revision));
        let commit = commit.map_or(revision.to_string(), |commit| commit.trim().to_string());
        let is_name = !commit.is_empty() && commit.chars().all(|c| c.is_ascii_alphanumeric());
        Some(self.folder.join("snapshots").join(commit)).filter(|folder| is_name && folder.is_dir())
    }

    /// Notes the commit that a revision stands for.
    pub fn set_revision(&self, revision: &str, commit: &str) -> Result<()> {
        if revision == commit {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        let written = parent(&path).and_then(|()| fs::write(&path, commit));
        written.map_err(|error| cannot("write", &path, &error))
    }

    /// Adds a file of a commit unless it is there: what is missing of its contents is downloaded, and then it gets its name.
    pub fn add(&self, client: &Client, commit: &str, file: &str, progress: &dyn Fn(Progress)) -> Result<()> {
        let relative = Path::new(file);
        if !relative.components().all(|part| matches!(part, Component::Normal(_))) {
            bail!(value, "the hub lists a file with the name '{file}', which is outside of the model");
        }
        let path = self.folder.join("snapshots").join(commit).join(relative);
        if path.is_file() {
            return Ok(());
        }
        let found = client.find(commit, file)?;
        let blob = self.blob(&found);
        if !blob.is_file() {
            let mut told = |done| progress(Progress { file, done, total: found.size });
            self.download(client, commit, file, &found, &mut told)?;
        }
        let up: PathBuf = (0..relative.components().count() + 1).map(|_| "..").collect();
        let linked =
            parent(&path).and_then(|()| match link(&up.join("blobs").join(&found.hash), &blob, &path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                linked => linked,
            });
        linked.map_err(|error| cannot("write", &path, &error))
    }

    fn blob(&self, found: &Found) -> PathBuf {
        self.folder.join("blobs").join(&found.hash)
    }

    /// Downloads contents to a file next to their final place, from where an earlier download ended.
    fn download(
        &self,
        client: &Client,
        commit: &str,
        name: &str,
        found: &Found,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let blob = self.blob(found);
        let part = blob.with_file_name(format!("{}.max.incomplete", found.hash));
        let wrong = |error: io::Error| cannot("write", &part, &error);
        parent(&part).map_err(wrong)?;
        let open = || OpenOptions::new().create(true).append(true).read(true).open(&part);
        let mut file = open().map_err(wrong)?;
        // Another process may be downloading the same.
        file.lock().map_err(wrong)?;
        if blob.is_file() {
            return Ok(());
        }
        if file.metadata().map_err(wrong)?.len() > found.size {
            file.set_len(0).map_err(wrong)?;
        }
        client.download(commit, name, found, &mut file, progress)?;
        if let Some(hash) = sha256(&part, &found.hash).map_err(wrong)?.filter(|hash| *hash != found.hash) {
            fs::remove_file(&part).map_err(wrong)?;
            bail!(runtime, "what was downloaded from {} has the hash {hash}, not {}", found.url, found.hash);
        }
        file.flush().and_then(|()| fs::rename(&part, &blob)).map_err(wrong)
    }
}

/// The hash of a file, if what it is compared with is one of this kind: 64 digits.
fn sha256(path: &Path, expected: &str) -> io::Result<Option<String>> {
    if expected.len() != 64 {
        return Ok(None);
    }
    let (mut file, mut buffer) = (File::open(path)?, vec![0; 1 << 16]);
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => context.update(&buffer[..count]),
        }
    }
    Ok(Some(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// The models in a cache, by name.
pub fn models(cache: &Path) -> Vec<CachedModel> {
    let entries = cache.read_dir().into_iter().flatten().flatten();
    let mut models: Vec<CachedModel> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?.strip_prefix("models--")?.replace("--", "/");
            let folder = Cache { folder: entry.path() }.snapshot("main")?;
            is_complete(&folder).then(|| CachedModel { name, bytes: size(&folder), folder })
        })
        .collect();
    models.sort_by(|a, b| a.name.cmp(&b.name));
    models
}

/// The bytes of the files in a folder and in the folders in it.
fn size(folder: &Path) -> u64 {
    let sizes = |folder: &Path, deeper: &dyn Fn(&Path) -> u64| -> u64 {
        let entries = folder.read_dir().into_iter().flatten().flatten();
        entries
            .map(|entry| match fs::metadata(entry.path()) {
                Ok(data) if data.is_dir() => deeper(&entry.path()),
                Ok(data) => data.len(),
                Err(_) => 0,
            })
            .sum()
    };
    sizes(folder, &|inner| sizes(inner, &|_| 0))
}

fn parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

#[cfg(unix)]
fn link(relative: &Path, _: &Path, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(relative, path)
}

#[cfg(not(unix))]
fn link(_: &Path, absolute: &Path, path: &Path) -> io::Result<()> {
    fs::hard_link(absolute, path)
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::runtime(format!("cannot {what} {}: {error}", path.display()))
}
