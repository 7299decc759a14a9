//! One GPU: what it is, its context, and its default stream.

use std::ffi::{CStr, c_int};
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, OnceLock, PoisonError};

use max_core::{DeviceRef, Error, Result, bail};

use super::api::{self, Api, Context, MemPool, StreamHandle};
use super::blas::Blas;
use super::compile::Modules;
use super::graph::Turns;
use super::memory;
use super::nvml::Meter;
use super::strided::Copies;
use super::watch::Watch;

/// A GPU that has been opened. There is one of each for the life of the process, in the context that other libraries
/// use too.
pub struct Gpu {
    pub(crate) api: &'static Api,
    pub(crate) id: u32,
    pub(crate) device: c_int,
    pub(crate) context: Context,
    pub(crate) name: String,
    pub(crate) capability: (u32, u32),
    pub(crate) default_stream: StreamHandle,
    pub(super) pool: MemPool,
    /// The other GPUs that were asked for, and whether this one reaches their memory.
    pub(super) peers: Mutex<Vec<(u32, bool)>>,
    pub(super) copies: Copies,
    pub(super) turns: Turns,
    pub(super) meter: OnceLock<Option<Meter>>,
    multiprocessors: u32,
    shared_bytes: usize,
    pub(crate) modules: Modules,
    pub(crate) blas: Blas,
    pub(crate) watch: Watch,
}

// SAFETY: the handles are of the driver, whose functions may be called from any thread.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

/// Attributes of a device, by their published numbers.
const MULTIPROCESSOR_COUNT: c_int = 16;
const MAJOR: c_int = 75;
const MINOR: c_int = 76;
const SHARED_BYTES_OPT_IN: c_int = 97;
const MEMORY_POOLS: c_int = 115;

/// The number of GPUs, or why there are none.
pub(crate) fn count() -> Result<u32> {
    let api = api::api()?;
    let mut count = 0;
    // SAFETY: writes a number.
    api.check(unsafe { api.cuDeviceGetCount(&raw mut count) }, "cuDeviceGetCount")?;
    Ok(count.max(0) as u32)
}

/// A GPU by number: opened once, then kept.
pub(crate) fn open(id: u32) -> Result<&'static Gpu> {
    static OPENED: Mutex<Vec<&'static OnceLock<Result<Gpu>>>> = Mutex::new(Vec::new());
    let count = count()?;
    if id >= count {
        let has = if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") };
        bail!(runtime, "this machine has {has}, and none with the number {id}");
    }
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    while opened.len() < count as usize {
        opened.push(Box::leak(Box::default()));
    }
    let place = opened[id as usize];
    drop(opened);
    place.get_or_init(|| Gpu::new(id)).as_ref().map_err(Error::clone)
}

impl Gpu {
    fn new(id: u32) -> Result<Gpu> {
        let api = api::api()?;
        let (mut device, mut context, mut name) = (0, std::ptr::null_mut(), [0; 128]);
        // SAFETY: each writes its result to the place it is given, which has room for it.
        unsafe {
            api.check(api.cuDeviceGet(&raw mut device, id as c_int), "cuDeviceGet")?;
            api.check(
                api.cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int - 1, device),
                "cuDeviceGetName",
            )?;
            api.check(api.cuDevicePrimaryCtxRetain(&raw mut context, device), "cuDevicePrimaryCtxRetain")?;
            api.check(api.cuCtxSetCurrent(context), "cuCtxSetCurrent")?;
        }
        // SAFETY: the driver ends the name with a zero, and the last byte is one.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let attribute = |number: c_int| -> Result<u32> {
            let mut value = 0;
            // SAFETY: writes a number.
            let status = unsafe { api.cuDeviceGetAttribute(&raw mut value, number, device) };
            api.check(status, "cuDeviceGetAttribute")?;
            Ok(value.max(0) as u32)
        };
        let capability = (attribute(MAJOR)?, attribute(MINOR)?);
        if attribute(MEMORY_POOLS)? == 0 {
            bail!(runtime, "{name} cannot be used: its driver allocates no memory in the order of streams");
        }
        let mut default_stream = std::ptr::null_mut();
        // SAFETY: writes a handle. The stream does not wait for that of the null handle.
        api.check(unsafe { api.cuStreamCreate(&raw mut default_stream, NON_BLOCKING) }, "cuStreamCreate")?;
        let gpu = Gpu {
            api,
            id,
            device,
            context,
            capability,
            default_stream,
            pool: Gpu::default_pool(api, device)?,
            peers: Mutex::default(),
            copies: Copies::default(),
            turns: Turns::default(),
            meter: OnceLock::new(),
            multiprocessors: attribute(MULTIPROCESSOR_COUNT)?,
            shared_bytes: attribute(SHARED_BYTES_OPT_IN)? as usize,
            modules: Modules::default(),
            blas: Blas::default(),
            watch: Watch::new(api)?,
            name,
        };
        memory::keep_all(&gpu)?;
        Ok(gpu)
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The version of its architecture, such as (9, 0).
    pub fn compute_capability(&self) -> (u32, u32) {
        self.capability
    }

    /// The number of its multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// The most shared memory that a block can ask for.
    pub fn shared_bytes(&self) -> usize {
        self.shared_bytes
    }

    /// Where kernels report what they cannot return: see `Report` in `watch.rs`.
    pub fn report_address(&self) -> u64 {
        self.watch.address()
    }

    /// Makes its context the one that calls from this thread are about.
    pub(crate) fn enter(&self) -> Result<()> {
        // SAFETY: the context lives as long as the process.
        self.api.check(unsafe { self.api.cuCtxSetCurrent(self.context) }, "cuCtxSetCurrent")
    }
}

/// A stream that does not wait for that of the null handle.
pub(crate) const NON_BLOCKING: u32 = 1;

impl PartialEq for Gpu {
    fn eq(&self, other: &Gpu) -> bool {
        self.id == other.id
    }
}

impl Eq for Gpu {}

impl Hash for Gpu {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", DeviceRef::gpu(self.id), self.name)
    }
}
