//! Compiled programs by graph structure, so that loading the same graph again compiles nothing.
//!
//! Two graphs have the same structure if they print the same and their long constants are the same bytes. There is one
//! bounded cache per process; graphs with a lot of data are not cached.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use max_compiler::program::Origin;
use max_compiler::{Program, Target};
use max_core::HostBytes;
use max_graph::region::regions;
use max_graph::text::{Constants, print};
use max_graph::{Body, Region};

use crate::lock;
use crate::lru::Lru;

/// How many programs are cached.
const KEPT: usize = 128;

/// Graphs with more bytes of text and constants, given or computed, are not cached.
const MOST_BYTES: usize = 16 << 20;

/// The most bytes of text and constants in the whole cache.
const MOST_IN_ALL: usize = 256 << 20;

/// Constants of up to this many bytes are compared; longer ones must be the same memory.
const COMPARED: usize = 64 << 10;

#[derive(Debug)]
struct Entry {
    key: Key,
    program: Arc<Program>,
    bytes: usize,
}

/// The structure of a graph, and the target it is compiled for.
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

/// How this process has used the cache of compiled programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStats {
    /// Lookups that found a program.
    pub hits: u64,
    /// Lookups that did not, so that the graph was compiled.
    pub misses: u64,
    /// Programs in the cache.
    pub size: usize,
}

/// How this process has used the cache of compiled programs.
pub fn program_cache_stats() -> CacheStats {
    let size = lock(&CACHE).len();
    CacheStats { hits: HITS.load(Ordering::Relaxed), misses: MISSES.load(Ordering::Relaxed), size }
}

/// Empties the cache of compiled programs; models keep theirs.
pub fn clear_program_cache() {
    // Dropping a constant may run foreign code that owns its memory, so nothing is dropped while the cache is locked.
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
        // Error messages name the lines that recorded the ops, so graphs recorded elsewhere are different graphs.
        let nested = regions(body);
        for op in nested.iter().map(Region::body).chain([body]).flat_map(Body::ops) {
            op.location.as_ref().map(|location| (&location.file, location.line)).hash(&mut hasher);
        }
        Key { hash: hasher.finish(), text, constants, target: format!("{target:?}") }
    }

    /// The approximate memory that the entry and its program use.
    fn bytes(&self, program: &Program) -> usize {
        let computed = program.slots.iter().map(|slot| match &slot.origin {
            Origin::Constant(bytes) => bytes.len(),
            _ => 0,
        });
        // Constants that were not computed are shared with the graph.
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

/// The program of a graph, if it is cached.
pub(crate) fn find(key: &Key) -> Option<Arc<Program>> {
    let found = lock(&CACHE).find(|entry| entry.key == *key).map(|entry| entry.program.clone());
    let counter = if found.is_some() { &HITS } else { &MISSES };
    counter.fetch_add(1, Ordering::Relaxed);
    found
}

/// Adds the program of a graph to the cache.
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
