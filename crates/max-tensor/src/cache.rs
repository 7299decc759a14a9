//! Compiled models by graph structure: see [`crate::structure`].
//!
//! There is one model per structure. It is compiled for the sizes and numbers seen first; when one of them varies it is
//! compiled again for all values of it, so a structure is compiled a few times at most. Where a graph cannot be recorded
//! for varying sizes (a reshape to numbers that fit only these sizes) there is one model per combination of sizes. Where a
//! number decides how the compiler rounds (the scale of an attention, which becomes one op) there is one per number, so that
//! the same numbers give the same bits, whatever ran before. The cache is bounded, LRU, and shared by the process.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};

use max_core::{DeviceRef, Result};
use max_driver::{Buffer, Device};
use max_engine::{InferenceSession, Model};
use max_graph::ops::constant::Constant;
use max_graph::{Body, HostTensor, ValueId};

use crate::lock;
use crate::structure::{Rigid, Structure, Variation, specialize};

/// How many structures are cached.
const MOST: usize = 1024;

/// The most ops in all cached graphs together.
const MOST_OPS: usize = 1 << 16;

/// How this process has used the cache of compiled regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStats {
    /// Regions whose model was found.
    pub hits: u64,
    /// Regions for which a model was compiled.
    pub misses: u64,
    /// Models in the cache.
    pub size: usize,
}

/// A model, the inputs to run it on, and whether it was cached.
pub(crate) struct Found {
    pub(crate) model: Arc<Model>,
    pub(crate) inputs: Vec<Buffer>,
    pub(crate) compiled: bool,
}

/// The cache entry of a structure.
enum Entry {
    Family(Arc<Family>),
    /// No one model serves all sizes, or all numbers: look it up with them as part of the key.
    Rigid(Rigid),
}

/// A model, and what it was compiled for.
struct Family {
    sizes: Vec<Variation<i64>>,
    numbers: Vec<Variation<HostTensor>>,
    model: Arc<Model>,
    ops: usize,
    /// When it was last used.
    used: AtomicU64,
}

impl Family {
    fn covers(&self, structure: &Structure) -> bool {
        self.sizes.iter().zip(&structure.sizes).all(|(seen, size)| seen.covers(size))
            && self.numbers.iter().zip(&structure.numbers).all(|(seen, number)| seen.covers(&number.value))
    }
}

/// What is known of a graph that may run again: its structure, and its model as long as that is cached.
#[derive(Default)]
pub(crate) struct Known {
    structure: OnceCell<Structure>,
    family: RefCell<Weak<Family>>,
}

#[derive(Default)]
struct Cache {
    entries: HashMap<Vec<u64>, Entry>,
    ops: usize,
}

static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);
static SESSION: Mutex<Option<Arc<InferenceSession>>> = Mutex::new(None);
/// Counts uses.
static CLOCK: AtomicU64 = AtomicU64::new(0);
static HITS: AtomicU64 = AtomicU64::new(0);
static MISSES: AtomicU64 = AtomicU64::new(0);

/// How this process has used the cache of compiled regions.
pub fn cache_stats() -> CacheStats {
    let cache = lock(&CACHE);
    let models = cache.entries.values().filter(|entry| matches!(entry, Entry::Family(_)));
    CacheStats {
        hits: HITS.load(Ordering::Relaxed),
        misses: MISSES.load(Ordering::Relaxed),
        size: models.count(),
    }
}

/// Empties the cache, and forgets what was seen to vary.
pub fn clear_cache() {
    let all = std::mem::take(&mut *lock(&CACHE));
    drop(all);
}

/// The model of a graph, with its inputs: those of the graph, its arrays, and the numbers that vary.
pub(crate) fn find(body: &Body, known: &Known, mut inputs: Vec<Buffer>) -> Result<Found> {
    let structure = known.structure.get_or_init(|| Structure::of(body));
    // The bound statement ends the borrow: compiling may run anything.
    let cached = known.family.borrow().upgrade();
    let (family, compiled) = match cached.map_or_else(|| look_up(structure), Lookup::Found) {
        Lookup::Found(family) => {
            HITS.fetch_add(1, Ordering::Relaxed);
            (family, false)
        }
        Lookup::Missing { key, sizes, numbers, before } => {
            MISSES.fetch_add(1, Ordering::Relaxed);
            (compile(body, structure, key, sizes, numbers, before)?, true)
        }
    };
    family.used.store(CLOCK.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    known.family.replace(Arc::downgrade(&family));
    for array in &structure.arrays {
        inputs.push(placed(array)?);
    }
    for (number, seen) in structure.numbers.iter().zip(&family.numbers) {
        if *seen == Variation::Varies {
            inputs.push(placed(number)?);
        }
    }
    Ok(Found { model: family.model.clone(), inputs, compiled })
}

/// The session on the devices that graphs have named so far: a GPU that no graph names is not opened.
fn session(body: &Body) -> Result<Arc<InferenceSession>> {
    let mut session = lock(&SESSION);
    let mut devices =
        session.as_ref().map_or_else(|| vec![Device::cpu()], |session| session.devices().to_vec());
    let known = devices.len();
    for id in 0..body.num_values() {
        let named = body.type_of(ValueId(id as u32)).device();
        if let Some(named) = named.filter(|&named| devices.iter().all(|device| device.device_ref() != named))
        {
            devices.push(Device::from_ref(named)?);
        }
    }
    match &*session {
        Some(session) if devices.len() == known => Ok(session.clone()),
        _ => Ok(session.insert(Arc::new(InferenceSession::new(devices))).clone()),
    }
}

/// The data of a constant as a buffer on its device.
fn placed(constant: &Constant) -> Result<Buffer> {
    let buffer = host_buffer(&constant.value)?;
    if constant.device == DeviceRef::CPU {
        Ok(buffer)
    } else {
        buffer.to(&Device::from_ref(constant.device)?)
    }
}

/// The data of a constant as a buffer, without a copy.
pub(crate) fn host_buffer(tensor: &HostTensor) -> Result<Buffer> {
    Buffer::from_host_bytes(tensor.bytes().clone(), tensor.dtype(), tensor.shape())
}

enum Lookup {
    Found(Arc<Family>),
    /// There is no model: one must be compiled for this, replacing the previous one.
    Missing {
        key: Vec<u64>,
        sizes: Vec<Variation<i64>>,
        numbers: Vec<Variation<HostTensor>>,
        before: Option<Arc<Family>>,
    },
}

fn look_up(structure: &Structure) -> Lookup {
    let cache = lock(&CACHE);
    let mut key = Cow::Borrowed(&structure.key);
    while let Some(&Entry::Rigid(rigid)) = cache.entries.get(&*key) {
        structure.make_rigid(key.to_mut(), rigid);
    }
    let (sizes, numbers) = (structure.sizes.iter(), structure.numbers.iter());
    let Some(Entry::Family(family)) = cache.entries.get(&*key) else {
        let sizes = sizes.copied().map(Variation::Constant).collect();
        let numbers = numbers.map(|number| Variation::Constant(number.value.clone())).collect();
        return Lookup::Missing { key: key.into_owned(), sizes, numbers, before: None };
    };
    if family.covers(structure) {
        return Lookup::Found(family.clone());
    }
    let sizes = family.sizes.iter().cloned().zip(sizes).map(|(seen, size)| seen.and(size)).collect();
    let seen = family.numbers.iter().cloned().zip(numbers);
    let numbers = seen.map(|(seen, number)| seen.and(&number.value)).collect();
    Lookup::Missing { key: key.into_owned(), sizes, numbers, before: Some(family.clone()) }
}

fn compile(
    body: &Body,
    structure: &Structure,
    mut key: Vec<u64>,
    sizes: Vec<Variation<i64>>,
    numbers: Vec<Variation<HostTensor>>,
    before: Option<Arc<Family>>,
) -> Result<Arc<Family>> {
    let own_sizes = structure.sizes.clone();
    let load = |sizes: &[Variation<i64>], numbers: &[Variation<HostTensor>]| {
        let sizes: Vec<_> = own_sizes.iter().copied().zip(sizes.iter().cloned()).collect();
        session(body)?.load_body(specialize(body, &sizes, numbers)?)
    };
    let (sizes, mut model) = match load(&sizes, &numbers) {
        Ok(model) => (sizes, model),
        Err(error) if !sizes.contains(&Variation::Varies) => return Err(error),
        Err(_) => {
            let fixed: Vec<_> = own_sizes.iter().copied().map(Variation::Constant).collect();
            let model = load(&fixed, &numbers)?;
            make_rigid(&mut key, structure, Rigid::Sizes);
            (fixed, model)
        }
    };
    let mut numbers = numbers;
    if numbers.contains(&Variation::Varies) {
        let fixed: Vec<_> =
            structure.numbers.iter().map(|number| Variation::Constant(number.value.clone())).collect();
        let plain = load(&sizes, &fixed)?;
        let changes = |other: &Model| other.program().rounding != model.program().rounding;
        if changes(&plain) || before.is_some_and(|before| changes(&before.model)) {
            make_rigid(&mut key, structure, Rigid::Numbers);
            (numbers, model) = (fixed, plain);
        }
    }
    let ops = body.block.ops.len();
    let family = Arc::new(Family { sizes, numbers, model: Arc::new(model), ops, used: AtomicU64::new(0) });
    keep(key, Entry::Family(family.clone()));
    Ok(family)
}

fn make_rigid(key: &mut Vec<u64>, structure: &Structure, rigid: Rigid) {
    keep(key.clone(), Entry::Rigid(rigid));
    structure.make_rigid(key, rigid);
}

fn keep(key: Vec<u64>, entry: Entry) {
    let mut cache = lock(&CACHE);
    if let Entry::Family(family) = &entry {
        family.used.store(CLOCK.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
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
    // Dropped only now, after unlocking: models may own a lot.
    drop(gone);
}

impl Cache {
    /// Takes out the least recently used half.
    fn oldest_half(&mut self) -> Vec<Entry> {
        let used = |entry: &Entry| match entry {
            Entry::Family(family) => family.used.load(Ordering::Relaxed),
            Entry::Rigid(_) => 0,
        };
        let mut times: Vec<u64> = self.entries.values().map(used).collect();
        times.sort_unstable();
        let middle = times[times.len() / 2];
        let clock = CLOCK.load(Ordering::Relaxed);
        let old = |entry: &Entry| used(entry) <= middle && used(entry) < clock;
        self.entries.extract_if(|_, entry| old(entry)).map(|(_, entry)| entry).collect()
    }
}

#[cfg(test)]
mod tests;
