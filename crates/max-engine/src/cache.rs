//! Compiled programs by the structure of their graph, so that loading the same graph again compiles nothing.
//!
//! Two graphs have the same structure if they print the same and their long constants are the same bytes. The cache is
//! one for the process and bounded; graphs with much data in them are not kept.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use max_compiler::program::Origin;
use max_compiler::{Program, Target};
use max_core::HostBytes;
use max_graph::Body;
use max_graph::text::{Constants, print};

use crate::lock;
use crate::lru::Lru;

/// How many programs are kept.
const KEPT: usize = 128;

/// Graphs with more bytes of text and constants, their own or computed ones, are not kept.
const MOST_BYTES: usize = 16 << 20;

/// All that is kept has at most this many bytes of text and constants.
const MOST_IN_ALL: usize = 256 << 20;

/// Constants of up to this many bytes are compared, longer ones must be the same memory.
const COMPARED: usize = 64 << 10;

#[derive(Debug)]
struct Entry {
    key: Key,
    program: Arc<Program>,
    bytes: usize,
}

/// The structure of a graph, and what it is compiled for.
#[derive(Debug)]
pub(crate) struct Key {
    hash: u64,
    text: String,
    constants: Vec<HostBytes>,
    target: String,
}

static CACHE: Mutex<Lru<Entry, KEPT>> = Mutex::new(Lru::new());
static HITS: AtomicU64 = AtomicU64::new(0);
static MISSES: AtomicU64 = AtomicU64::new(0);

/// How the cache of compiled programs has been used by this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStats {
    /// Graphs that were found.
    pub hits: u64,
    /// Graphs that were compiled.
    pub misses: u64,
    /// Programs that are kept.
    pub size: usize,
}

/// How the cache of compiled programs has been used.
pub fn program_cache_stats() -> CacheStats {
    let size = lock(&CACHE).len();
    CacheStats { hits: HITS.load(Ordering::Relaxed), misses: MISSES.load(Ordering::Relaxed), size }
}

/// Forgets all compiled programs; models keep theirs.
pub fn clear_program_cache() {
    // What constants belong to may have code of others run when it goes, so nothing goes while the cache is locked.
    let all = std::mem::take(&mut *lock(&CACHE));
    drop(all);
}

impl Key {
    pub(crate) fn of(body: &Body, target: &Target) -> Key {
        let mut constants: Vec<HostBytes> = Vec::new();
        let text = print(
            body,
            Constants::Blobs(&mut |tensor| {
                constants.push(tensor.bytes().clone());
                constants.len() - 1
            }),
        );
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        // Messages name the places where ops were recorded, so graphs from other places are other graphs.
        for op in body.ops() {
            op.location.as_ref().map(|location| (&location.file, location.line)).hash(&mut hasher);
        }
        Key { hash: hasher.finish(), text, constants, target: format!("{target:?}") }
    }

    /// About how much memory it and its program keep.
    fn bytes(&self, program: &Program) -> usize {
        let computed = program.slots.iter().map(|slot| match &slot.origin {
            Origin::Constant(bytes) => bytes.len(),
            _ => 0,
        });
        // What is not computed anew is shared.
        let own = self.constants.iter().map(|bytes| bytes.len()).sum::<usize>();
        self.text.len() + own.max(computed.sum())
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        let same = |(a, b): (&HostBytes, &HostBytes)| {
            std::ptr::eq(a.as_ptr(), b.as_ptr()) && a.len() == b.len() || a.len() <= COMPARED && a == b
        };
        self.hash == other.hash
            && self.target == other.target
            && self.text == other.text
            && self.constants.len() == other.constants.len()
            && self.constants.iter().zip(&other.constants).all(same)
    }
}

/// The program of a graph, if it is kept.
pub(crate) fn find(key: &Key) -> Option<Arc<Program>> {
    let found = lock(&CACHE).find(|entry| entry.key == *key).map(|entry| entry.program.clone());
    let counter = if found.is_some() { &HITS } else { &MISSES };
    counter.fetch_add(1, Ordering::Relaxed);
    found
}

/// Keeps the program of a graph.
pub(crate) fn keep(key: Key, program: &Arc<Program>) {
    let bytes = key.bytes(program);
    if bytes > MOST_BYTES {
        return;
    }
    let mut cache = lock(&CACHE);
    let mut evicted = Vec::from_iter(cache.insert(Entry { key, program: program.clone(), bytes }));
    while cache.iter().map(|entry| entry.bytes).sum::<usize>() > MOST_IN_ALL {
        evicted.extend(cache.evict());
    }
    drop(cache);
    drop(evicted);
}
