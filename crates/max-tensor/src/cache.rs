//! Compiled models by the structure of their graph: see [`crate::structure`].
//!
//! For each structure there is one model. It is made for what was seen first; when a size or a number varies it is made
//! anew for all of those, so a structure is compiled a few times at most. Where a graph cannot be recorded for sizes that
//! vary (a reshape to numbers that fit these sizes only) there is one model for each of its sizes. The cache is one for
//! the process and bounded: what was not used for longest goes first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use max_core::Result;
use max_driver::Buffer;
use max_engine::{InferenceSession, Model};
use max_graph::{Body, HostTensor};

use crate::lock;
use crate::structure::{Seen, Structure, specialize};

/// How many structures are kept.
const MOST: usize = 1024;

/// How many ops the graphs that are kept have in all.
const MOST_OPS: usize = 1 << 16;

/// How the cache of compiled regions has been used by this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStats {
    /// Regions whose model was found.
    pub hits: u64,
    /// Regions for which a model was compiled.
    pub misses: u64,
    /// Models that are kept.
    pub size: usize,
}

/// A model, what it is to be run on, and whether it was there.
pub(crate) struct Found {
    pub(crate) model: Arc<Model>,
    pub(crate) inputs: Vec<Buffer>,
    pub(crate) compiled: bool,
}

/// What is kept of a structure.
enum Entry {
    Family(Arc<Family>),
    /// It cannot be compiled for sizes that vary: look under the sizes.
    Rigid,
}

/// A model, and what it was made for.
struct Family {
    sizes: Vec<Seen<i64>>,
    numbers: Vec<Seen<HostTensor>>,
    model: Arc<Model>,
    ops: usize,
    /// When it was used last.
    used: AtomicU64,
}

impl Family {
    fn covers(&self, structure: &Structure) -> bool {
        self.sizes.iter().zip(&structure.sizes).all(|(seen, size)| seen.covers(size))
            && self.numbers.iter().zip(&structure.numbers).all(|(seen, number)| seen.covers(number))
    }
}

#[derive(Default)]
struct Cache {
    entries: HashMap<Vec<u64>, Entry>,
    /// Counts uses.
    clock: u64,
    ops: usize,
}

static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);
static SESSION: LazyLock<InferenceSession> = LazyLock::new(|| InferenceSession::new([]));
static HITS: AtomicU64 = AtomicU64::new(0);
static MISSES: AtomicU64 = AtomicU64::new(0);

/// How the cache of compiled regions has been used.
pub fn cache_stats() -> CacheStats {
    let cache = lock(&CACHE);
    let models = cache.entries.values().filter(|entry| matches!(entry, Entry::Family(_)));
    CacheStats {
        hits: HITS.load(Ordering::Relaxed),
        misses: MISSES.load(Ordering::Relaxed),
        size: models.count(),
    }
}

/// Forgets all compiled regions and what was seen to vary.
pub fn clear_cache() {
    let all = std::mem::take(&mut *lock(&CACHE));
    drop(all);
}

/// The model for a graph, with its inputs: those of the graph, its arrays, and the numbers that vary.
pub(crate) fn find(body: &Body, mut inputs: Vec<Buffer>) -> Result<Found> {
    let mut structure = Structure::of(body);
    let (family, compiled) = match look_up(&mut structure) {
        Lookup::Found(family) => {
            HITS.fetch_add(1, Ordering::Relaxed);
            (family, false)
        }
        Lookup::Missing { sizes, numbers } => {
            MISSES.fetch_add(1, Ordering::Relaxed);
            (compile(body, &mut structure, sizes, numbers)?, true)
        }
    };
    for array in &structure.arrays {
        inputs.push(host_buffer(array)?);
    }
    for (number, seen) in structure.numbers.iter().zip(&family.numbers) {
        if *seen == Seen::Varies {
            inputs.push(host_buffer(number)?);
        }
    }
    Ok(Found { model: family.model.clone(), inputs, compiled })
}

/// The data of a constant as a buffer, without a copy.
pub(crate) fn host_buffer(tensor: &HostTensor) -> Result<Buffer> {
    Buffer::from_host_bytes(tensor.bytes().clone(), tensor.dtype(), tensor.shape())
}

enum Lookup {
    Found(Arc<Family>),
    /// There is no model; one must be made for this.
    Missing {
        sizes: Vec<Seen<i64>>,
        numbers: Vec<Seen<HostTensor>>,
    },
}

fn look_up(structure: &mut Structure) -> Lookup {
    let mut cache = lock(&CACHE);
    cache.clock += 1;
    if let Some(Entry::Rigid) = cache.entries.get(&structure.key) {
        structure.make_rigid();
    }
    let (sizes, numbers) = (structure.sizes.iter(), structure.numbers.iter());
    let Some(Entry::Family(family)) = cache.entries.get(&structure.key) else {
        let sizes = sizes.copied().map(Seen::Always).collect();
        let numbers = numbers.map(|&number| Seen::Always(number.clone())).collect();
        return Lookup::Missing { sizes, numbers };
    };
    family.used.store(cache.clock, Ordering::Relaxed);
    if family.covers(structure) {
        return Lookup::Found(family.clone());
    }
    let sizes = family.sizes.iter().cloned().zip(sizes).map(|(seen, size)| seen.and(size)).collect();
    let numbers =
        family.numbers.iter().cloned().zip(numbers).map(|(seen, number)| seen.and(number)).collect();
    Lookup::Missing { sizes, numbers }
}

fn compile(
    body: &Body,
    structure: &mut Structure,
    sizes: Vec<Seen<i64>>,
    numbers: Vec<Seen<HostTensor>>,
) -> Result<Arc<Family>> {
    let load = |sizes: &[Seen<i64>]| {
        let sizes: Vec<_> = structure.sizes.iter().copied().zip(sizes.iter().cloned()).collect();
        SESSION.load_body(specialize(body, &sizes, &numbers)?)
    };
    let (sizes, model) = match load(&sizes) {
        Ok(model) => (sizes, model),
        Err(error) if !sizes.contains(&Seen::Varies) => return Err(error),
        Err(_) => {
            let fixed: Vec<_> = structure.sizes.iter().copied().map(Seen::Always).collect();
            let model = load(&fixed)?;
            keep(structure.key.clone(), Entry::Rigid);
            structure.make_rigid();
            (fixed, model)
        }
    };
    let ops = body.block.ops.len();
    let family = Arc::new(Family { sizes, numbers, model: Arc::new(model), ops, used: AtomicU64::new(0) });
    keep(std::mem::take(&mut structure.key), Entry::Family(family.clone()));
    Ok(family)
}

fn keep(key: Vec<u64>, entry: Entry) {
    let mut cache = lock(&CACHE);
    cache.clock += 1;
    if let Entry::Family(family) = &entry {
        family.used.store(cache.clock, Ordering::Relaxed);
        cache.ops += family.ops;
    }
    let mut gone = Vec::from_iter(cache.entries.insert(key, entry));
    if cache.entries.len() > MOST || cache.ops > MOST_OPS {
        gone.extend(cache.oldest_half());
    }
    for entry in &gone {
        if let Entry::Family(family) = entry {
            cache.ops -= family.ops;
        }
    }
    drop(cache);
    // Only now, without the lock: what models keep may be much.
    drop(gone);
}

impl Cache {
    /// Takes out the half that was not used for longest.
    fn oldest_half(&mut self) -> Vec<Entry> {
        let used = |entry: &Entry| match entry {
            Entry::Family(family) => family.used.load(Ordering::Relaxed),
            Entry::Rigid => 0,
        };
        let mut times: Vec<u64> = self.entries.values().map(used).collect();
        times.sort_unstable();
        let middle = times[times.len() / 2];
        self.entries.extract_if(|_, entry| used(entry) <= middle).map(|(_, entry)| entry).collect()
    }
}

#[cfg(test)]
mod tests;
