//! Compiled code on disk, shared by all processes of a user.
//!
//! An entry is one file: a header, which identifies the content and has its checksum, and the content. It is written
//! under a temporary name and then renamed, so that other processes see all of it or nothing. Damaged, truncated or
//! incompatible entries count as missing. Without a usable folder nothing is cached, which is not an error.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::digest::digest;

/// The key of an entry: two hashes of everything that its content depends on. One is the file name, the other is stored
/// in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    name: u128,
    check: u128,
}

impl Key {
    pub(crate) fn of(parts: &[&[u8]]) -> Key {
        Key { name: digest(u128::from(FORMAT), parts), check: digest(!u128::from(FORMAT), parts) }
    }
}

/// A folder of entries, or none.
pub(crate) struct Cache {
    folder: Option<PathBuf>,
    limit: u64,
    /// How many bytes may be written before the size of the folder is checked again.
    unseen: AtomicU64,
}

/// The version of the entry format: entries of other versions are not read.
const FORMAT: u64 = 1;
const MAGIC: &[u8; 8] = b"MAXCUBIN";
const HEADER: usize = 64;
const ENDING: &str = "kernel";
/// The size limit of the folder; beyond it, the oldest entries are removed until three quarters of it are left.
const LIMIT: u64 = 512 << 20;
/// A temporary file left behind by a process that ended is removed after this long.
const ABANDONED: Duration = Duration::from_secs(3600);

impl Cache {
    /// The cache of this process, in the folder that the environment names: `MAX_CACHE_DIR`, where an empty value
    /// disables the cache, or `max-rs/kernels` in the user's cache directory.
    pub(crate) fn of_environment() -> Cache {
        Cache::new(folder(|name| std::env::var_os(name).map(PathBuf::from)), LIMIT)
    }

    fn new(folder: Option<PathBuf>, limit: u64) -> Cache {
        Cache { folder, limit, unseen: AtomicU64::new(0) }
    }

    /// The content of an entry, if it exists and is intact. Reading marks it as recently used.
    pub(crate) fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.path(key)?;
        // Nothing this large is ever stored, and reading from something other than a regular file may never end.
        if !path.metadata().is_ok_and(|facts| facts.is_file() && facts.len() <= self.limit) {
            return None;
        }
        let mut file = File::open(path).ok()?;
        let mut header = [0; HEADER];
        file.read_exact(&mut header).ok()?;
        let mut content = Vec::new();
        file.read_to_end(&mut content).ok()?;
        if header != self::header(key, &content) {
            return None;
        }
        // The time only decides what is removed first when the folder is full.
        let _ = file.set_modified(SystemTime::now());
        Some(content)
    }

    /// Stores an entry, if that is possible.
    pub(crate) fn put(&self, key: &Key, content: &[u8]) {
        let Some(path) = self.path(key) else { return };
        if self.write(&path, key, content).is_some() {
            self.make_room(content.len() as u64);
        }
    }

    fn write(&self, path: &Path, key: &Key, content: &[u8]) -> Option<()> {
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let folder = self.folder.as_ref()?;
        fs::create_dir_all(folder).ok()?;
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let unfinished = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
        let written = File::create(&unfinished).and_then(|mut file| {
            file.write_all(&header(key, content))?;
            file.write_all(content)?;
            fs::rename(&unfinished, path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written.ok()
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{:032x}.{ENDING}", key.name)))
    }

    /// Checks the size of the folder, at the first entry and rarely after that, and removes the oldest entries.
    fn make_room(&self, written: u64) {
        let left = |unseen: u64| unseen.checked_sub(written);
        if self.unseen.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok() {
            return;
        }
        self.unseen.store(self.limit / 16, Ordering::Relaxed);
        let Some(Ok(files)) = self.folder.as_ref().map(fs::read_dir) else { return };
        let mut entries = Vec::new();
        for file in files.flatten() {
            let Ok(facts) = file.metadata() else { continue };
            let path = file.path();
            let changed = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            match path.extension().and_then(|ending| ending.to_str()) {
                Some(ENDING) => entries.push((changed, facts.len(), path)),
                Some("tmp") if changed.elapsed().is_ok_and(|age| age > ABANDONED) => {
                    let _ = fs::remove_file(path);
                }
                _ => {}
            }
        }
        let mut total: u64 = entries.iter().map(|(_, bytes, _)| bytes).sum();
        if total <= self.limit {
            return;
        }
        entries.sort();
        for (_, bytes, path) in entries {
            if total <= self.limit / 4 * 3 {
                break;
            }
            let _ = fs::remove_file(path);
            total -= bytes;
        }
    }
}

/// The header of an entry: magic, format, length, the checksum of the content and the second hash of the key.
fn header(key: &Key, content: &[u8]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&FORMAT.to_le_bytes());
    header[16..24].copy_from_slice(&(content.len() as u64).to_le_bytes());
    header[32..48].copy_from_slice(&digest(0, &[content]).to_le_bytes());
    header[48..].copy_from_slice(&key.check.to_le_bytes());
    header
}

/// The folder, from environment variables.
fn folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    if let Some(folder) = variable("MAX_CACHE_DIR") {
        return Some(folder).filter(|folder| !folder.as_os_str().is_empty());
    }
    let caches = variable("XDG_CACHE_HOME").filter(|folder| folder.is_absolute());
    let home = || Some(variable("HOME").filter(|home| home.is_absolute())?.join(".cache"));
    Some(caches.or_else(home)?.join("max-rs").join("kernels"))
}

#[cfg(test)]
mod tests;
