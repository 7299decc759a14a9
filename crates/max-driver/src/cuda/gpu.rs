//! A GPU: its properties, its context, and its default stream.

use std::ffi::{CStr, c_int};
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, OnceLock, PoisonError};

use max_core::{DeviceRef, Result, bail};

use super::api::{self, Api, Context, MemPool, StreamHandle};
use super::blas::Blas;
use super::compile::Modules;
use super::graph::Recordings;
use super::memory;
use super::nvml::Meter;
use super::strided::Copies;
use super::watch::Watch;

/// An opened GPU: one instance per device for the life of the process, in the primary context, which other libraries
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
    /// The other GPUs that were asked about, and whether this one can access their memory.
    pub(super) peers: Mutex<Vec<(u32, bool)>>,
    pub(super) recordings: Recordings,
    pub(super) copies: Copies,
    pub(super) meter: OnceLock<Option<Meter>>,
    multiprocessors: u32,
    shared_bytes: usize,
    pub(crate) modules: Modules,
    pub(crate) blas: Blas,
    pub(crate) watch: Watch,
}

// SAFETY: the handles belong to the driver, whose functions may be called from any thread.
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

/// A GPU by number, opened once and then kept. If opening fails, say because another program has all of its memory, a
/// later call tries again.
pub(crate) fn open(id: u32) -> Result<&'static Gpu> {
    static OPENED: Mutex<Vec<&'static OnceLock<Gpu>>> = Mutex::new(Vec::new());
    static OPENING: Mutex<()> = Mutex::new(());
    let count = count()?;
    if id >= count {
        let has = if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") };
        bail!(runtime, "this machine has {has} and no GPU with the number {id}");
    }
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    while opened.len() < count as usize {
        opened.push(Box::leak(Box::default()));
    }
    let place = opened[id as usize];
    drop(opened);
    if let Some(gpu) = place.get() {
        return Ok(gpu);
    }
    let _one_by_one = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    match place.get() {
        Some(gpu) => Ok(gpu),
        None => {
            let gpu = Gpu::new(id)?;
            Ok(place.get_or_init(|| gpu))
        }
    }
}

impl Gpu {
    fn new(id: u32) -> Result<Gpu> {
        let api = api::api()?;
        let (mut device, mut context, mut name) = (0, std::ptr::null_mut(), [0; 128]);
        // SAFETY: each writes its result to a variable that has room for it.
        unsafe {
            api.check(api.cuDeviceGet(&raw mut device, id as c_int), "cuDeviceGet")?;
            api.check(
                api.cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int - 1, device),
                "cuDeviceGetName",
            )?;
            api.check(api.cuDevicePrimaryCtxRetain(&raw mut context, device), "cuDevicePrimaryCtxRetain")?;
        }
        let _entered = Entered::new(api, context, id)?;
        // SAFETY: the driver terminates the name with a zero, and so does the last byte of the array.
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
            bail!(
                runtime,
                "{name} cannot be used: its driver does not support stream-ordered memory allocation"
            );
        }
        let mut default_stream = std::ptr::null_mut();
        // SAFETY: writes a handle. The stream does not synchronize with the null stream.
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
            recordings: Recordings::default(),
            copies: Copies::default(),
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

    /// Its compute capability, such as (9, 0).
    pub fn compute_capability(&self) -> (u32, u32) {
        self.capability
    }

    /// Whether functions can start before what is on their stream is done, in recordings too.
    pub(crate) fn starts_early(&self) -> bool {
        static VERSION: OnceLock<c_int> = OnceLock::new();
        let version = *VERSION.get_or_init(|| {
            let mut version = 0;
            // SAFETY: writes a number.
            let status = unsafe { self.api.cuDriverGetVersion(&raw mut version) };
            if status == 0 { version } else { 0 }
        });
        self.capability >= (9, 0) && version >= 12040
    }

    /// The number of its multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// The most shared memory that a block can opt in to.
    pub fn shared_bytes(&self) -> usize {
        self.shared_bytes
    }

    /// Where kernels report what they cannot return: see `Report` in `watch.rs`.
    pub fn report_address(&self) -> u64 {
        self.watch.address()
    }

    /// Makes its context current on this thread while the guard lives.
    pub(crate) fn enter(&self) -> Result<Entered> {
        Entered::new(self.api, self.context, self.id)
    }
}

/// Keeps a context current on this thread. Dropping it restores the previous one, by which other libraries on the same
/// thread know their GPU.
#[must_use = "the context is current only while this guard lives"]
pub(crate) struct Entered {
    api: &'static Api,
    before: Option<Context>,
}

impl Entered {
    fn new(api: &'static Api, context: Context, id: u32) -> Result<Entered> {
        let mut before = std::ptr::null_mut();
        // SAFETY: writes a handle.
        api.check(unsafe { api.cuCtxGetCurrent(&raw mut before) }, "cuCtxGetCurrent")?;
        if before == context {
            return Ok(Entered { api, before: None });
        }
        // SAFETY: the context lives as long as the process.
        api.check(unsafe { api.cuCtxSetCurrent(context) }, "cuCtxSetCurrent")?;
        // A thread without a context would use the first GPU anyway, so that one's stays current, which saves switching
        // back.
        let before = Some(before).filter(|before| !before.is_null() || id != 0);
        Ok(Entered { api, before })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: it was current when this guard was made, or there was none.
            let _ = unsafe { self.api.cuCtxSetCurrent(before) };
        }
    }
}

/// A stream that does not synchronize with the null stream.
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
