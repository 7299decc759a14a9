//! Virtual devices: they answer as `gpu:0`, `gpu:1` and so on, and run on the host, each with memory of its own. Programs
//! for several GPUs can be tested with them on any machine.
//!
//! A number means the same device for the whole life of a process, because graphs, caches and buffers name devices by
//! number: a process uses either its GPUs or virtual devices, whichever it opens first.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use max_core::{Result, bail};

use crate::cuda::{self, Gpu};
use crate::host::KEPT_BYTES;
use crate::pool::Pool;

/// A device that the host stands in for.
pub(crate) struct Virtual {
    pub(crate) id: u32,
    pub(crate) pool: Pool,
}

/// Its number is its identity: there is one per number.
impl PartialEq for Virtual {
    fn eq(&self, other: &Virtual) -> bool {
        self.id == other.id
    }
}

impl Eq for Virtual {}

impl Hash for Virtual {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// An accelerator of either kind.
pub(crate) enum Accelerator {
    Gpu(&'static Gpu),
    Virtual(&'static Virtual),
}

/// What the numbers of accelerators mean in this process.
enum Meaning {
    /// None has been opened yet.
    Open,
    Gpus,
    /// Those opened so far.
    Virtual(Vec<&'static Virtual>),
}

/// Written while [`MEANING`] is locked.
static COUNT: AtomicU32 = AtomicU32::new(0);
static MEANING: Mutex<Meaning> = Mutex::new(Meaning::Open);

/// The most virtual devices there can be.
const MOST: u32 = 1024;

/// Sets the number of virtual devices: `gpu:0` up to `gpu:count - 1` are then devices that run on the host. With 0, the
/// numbers stand for the machine's GPUs, as they do at first. The number may change at any time, also while devices are in
/// use, but a process that has opened a GPU cannot use virtual devices, and one that has opened a virtual device cannot
/// use GPUs.
pub fn set_virtual_device_count(count: u32) -> Result<()> {
    if count > MOST {
        bail!(value, "there can be at most {MOST} virtual devices; {count} were asked for");
    }
    let meaning = meaning();
    if let (Meaning::Gpus, 1..) = (&*meaning, count) {
        bail!(
            runtime,
            "virtual devices cannot be used any more: this process has already opened a GPU, and its number would mean \
             two devices; set the number of virtual devices first"
        );
    }
    COUNT.store(count, Ordering::Release);
    Ok(())
}

/// The number of virtual devices; 0 if accelerators are the GPUs of the machine.
pub fn get_virtual_device_count() -> u32 {
    COUNT.load(Ordering::Acquire)
}

/// Whether accelerators are virtual devices.
pub fn is_virtual_device_mode() -> bool {
    get_virtual_device_count() > 0
}

/// Opens the accelerator that a number means.
pub(crate) fn open(id: u32) -> Result<Accelerator> {
    let mut meaning = meaning();
    let count = get_virtual_device_count();
    if count == 0 {
        if let Meaning::Virtual(_) = *meaning {
            bail!(runtime, "this process has used virtual devices, and therefore cannot use GPUs");
        }
        let gpu = cuda::open(id)?;
        *meaning = Meaning::Gpus;
        return Ok(Accelerator::Gpu(gpu));
    }
    if id >= count {
        bail!(runtime, "there are {count} virtual devices");
    }
    if let Meaning::Open = *meaning {
        *meaning = Meaning::Virtual(Vec::new());
    }
    let Meaning::Virtual(opened) = &mut *meaning else {
        bail!(internal, "virtual devices were set after a GPU was opened")
    };
    if let Some(device) = opened.iter().copied().find(|device| device.id == id) {
        return Ok(Accelerator::Virtual(device));
    }
    // A device lives as long as the process, like a GPU.
    let device: &'static Virtual = Box::leak(Box::new(Virtual { id, pool: Pool::new(KEPT_BYTES) }));
    opened.push(device);
    Ok(Accelerator::Virtual(device))
}

fn meaning() -> MutexGuard<'static, Meaning> {
    MEANING.lock().unwrap_or_else(PoisonError::into_inner)
}
