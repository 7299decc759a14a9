//! GPU memory: allocated from and returned to the driver's pool in stream order.
//!
//! A block belongs to the stream it was allocated for, its home, and is freed in the order of that stream: the next
//! block there can reuse the memory while earlier work on it is still pending. Other streams that use a block are
//! remembered, and the home waits for them before the block is freed. Nothing here makes the host wait, except where
//! memory goes back to an owner that knows nothing of our streams.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use max_core::{DeviceRef, Error, Number, Result};

use super::Gpu;
use super::api::{Api, MemPool, OUT_OF_MEMORY, Status};
use crate::Stream;
use crate::pool::Contents;

/// Attributes of a pool, by their published numbers.
const RELEASE_THRESHOLD: c_int = 4;
const RESERVED_BYTES: c_int = 5;
const USED_BYTES: c_int = 7;

/// Freed memory stays in the pool, however much it is; only an allocation that finds no room releases it.
pub(super) fn keep_all(gpu: &Gpu) -> Result<()> {
    let mut all = u64::MAX;
    // SAFETY: the attribute is a number of this size.
    let status = unsafe { gpu.api.cuMemPoolSetAttribute(gpu.pool, RELEASE_THRESHOLD, (&raw mut all).cast()) };
    gpu.api.check(status, "cuMemPoolSetAttribute")
}

/// Memory allocated from the pool.
pub(crate) struct Block {
    /// Zero for an empty block.
    address: u64,
    users: Users,
}

/// The address of empty blocks: no memory, but aligned like any block.
#[repr(align(256))]
struct Nothing;

impl Block {
    /// A block for work on a stream of a GPU, and on other streams that wait for it.
    pub(crate) fn new(gpu: &'static Gpu, bytes: usize, contents: Contents, home: &Stream) -> Result<Block> {
        let address = if bytes == 0 { 0 } else { gpu.allocate(bytes, home)? };
        let block = Block { address, users: Users::new(home) };
        if bytes > 0 && contents == Contents::Zeroed {
            gpu.set_bytes(address, 0, bytes, home)?;
        }
        Ok(block)
    }

    /// Where it starts.
    pub(crate) fn ptr(&self) -> NonNull<u8> {
        NonNull::new(self.address as *mut u8).unwrap_or(NonNull::<Nothing>::dangling().cast())
    }

    /// The streams that use it.
    pub(crate) fn users(&self) -> &Users {
        &self.users
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.address == 0 {
            return;
        }
        // Memory that may still be in use is leaked rather than reused.
        if let (Ok(()), Some((gpu, home))) = (self.users.gather(), self.users.home.cuda()) {
            let _entered = gpu.enter();
            // SAFETY: nothing uses the block once the work before this point of its home stream is done.
            let _ = unsafe { gpu.api.cuMemFreeAsync(self.address, home) };
        }
    }
}

/// GPU memory with a foreign owner, which gets it back when all work on it is done.
pub(crate) struct Foreign {
    users: Users,
    /// Whether the owner has it back already, and waits for the pending work itself.
    given_back: AtomicBool,
    _owner: Box<dyn Any + Send + Sync>,
}

impl Foreign {
    /// Memory to be used on a stream.
    pub(crate) fn new(home: &Stream, owner: Box<dyn Any + Send + Sync>) -> Foreign {
        Foreign { users: Users::new(home), given_back: AtomicBool::new(false), _owner: owner }
    }

    /// Lets the owner wait for the pending work itself.
    pub(crate) fn give_back(&self) {
        self.given_back.store(true, Ordering::Release);
    }

    /// The streams that use it.
    pub(crate) fn users(&self) -> &Users {
        &self.users
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if *self.given_back.get_mut() {
            return;
        }
        let done = self.users.gather().and_then(|()| self.users.home.finish());
        if let (Err(_), Some((gpu, _))) = (done, self.users.home.cuda()) {
            // If even this fails the context is lost, and no work runs on it any more.
            let _ = gpu.finish();
        }
    }
}

/// The streams that use a piece of memory.
pub(crate) struct Users {
    home: Stream,
    /// Streams other than the home. `None` stands for a foreign stream, which may be destroyed before the memory is.
    others: Mutex<Vec<Option<Stream>>>,
}

impl Users {
    fn new(home: &Stream) -> Users {
        Users { home: home.clone(), others: Mutex::new(Vec::new()) }
    }

    /// Remembers a stream; `None` stands for one that may be destroyed before the memory is.
    pub(crate) fn add(&self, user: Option<&Stream>) {
        if user == Some(&self.home) {
            return;
        }
        let mut others = self.lock();
        if !others.iter().any(|known| known.as_ref() == user) {
            others.push(user.cloned());
        }
    }

    /// Makes the home wait for all others.
    fn gather(&self) -> Result<()> {
        self.lock().drain(..).try_for_each(|user| match user {
            Some(stream) => self.home.wait_for(stream),
            None => self.home.cuda().map_or(Ok(()), |(gpu, _)| gpu.finish()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Stream>>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gpu {
    /// The pool that blocks come from.
    pub(super) fn default_pool(api: &Api, device: c_int) -> Result<MemPool> {
        let mut pool = std::ptr::null_mut();
        // SAFETY: writes a handle.
        let status = unsafe { api.cuDeviceGetDefaultMemPool(&raw mut pool, device) };
        api.check(status, "cuDeviceGetDefaultMemPool")?;
        Ok(pool)
    }

    /// Waits for all work on all streams, including those of other libraries. Does not check what kernels reported.
    pub(crate) fn finish(&self) -> Result<()> {
        let (_entered, _paused) = (self.enter()?, self.recordings.pause());
        // SAFETY: the context is current.
        self.api.check(unsafe { self.api.cuCtxSynchronize() }, "cuCtxSynchronize")
    }

    /// The numbers of `Device::stats`. Unavailable ones are left out.
    pub(crate) fn stats(&self) -> BTreeMap<String, Number> {
        let mut stats = Vec::new();
        if let Ok((used, kept)) = self.used_and_kept() {
            stats.extend([
                ("bytes_in_use", Number::Int(used.into())),
                ("bytes_pooled", Number::Int(kept.into())),
            ]);
        }
        if let Ok((free, total)) = self.free_and_total() {
            stats.extend([
                ("free_memory", Number::Int(free as i128)),
                ("total_memory", Number::Int(total as i128)),
            ]);
        }
        stats.extend(self.readings());
        stats.into_iter().map(|(name, number)| (name.to_owned(), number)).collect()
    }

    /// Free and total bytes.
    pub(crate) fn free_and_total(&self) -> Result<(usize, usize)> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        let status = unsafe { self.api.cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        self.api.check(status, "cuMemGetInfo")?;
        Ok((free, total))
    }

    /// The bytes of live blocks, and those that the pool keeps for later ones.
    fn used_and_kept(&self) -> Result<(u64, u64)> {
        let read = |attribute| {
            let mut bytes = 0u64;
            // SAFETY: the attribute is a number of this size.
            let status =
                unsafe { self.api.cuMemPoolGetAttribute(self.pool, attribute, (&raw mut bytes).cast()) };
            self.api.check(status, "cuMemPoolGetAttribute").map(|()| bytes)
        };
        let (used, reserved) = (read(USED_BYTES)?, read(RESERVED_BYTES)?);
        Ok((used, reserved.saturating_sub(used)))
    }

    /// Sets bytes, in stream order.
    pub(crate) fn set_bytes(&self, address: u64, value: u8, count: usize, stream: &Stream) -> Result<()> {
        let Some((_, stream)) = stream.cuda() else { return Ok(()) };
        let _entered = self.enter()?;
        // SAFETY: the callers own the memory and keep it alive until the work is done.
        let status = unsafe { self.api.cuMemsetD8Async(address, value, count, stream) };
        self.api.check(status, "cuMemsetD8Async")
    }

    /// Allocates from the pool. If there is no room, the pool first releases everything it keeps.
    fn allocate(&self, bytes: usize, home: &Stream) -> Result<u64> {
        let mut taken = self.take(bytes, home)?;
        if taken.is_err() && self.make_room() {
            taken = self.take(bytes, home)?;
        }
        taken.map_err(|status| self.refusal(bytes, status))
    }

    /// Releases what the pool keeps; whether that was possible.
    pub(super) fn make_room(&self) -> bool {
        // SAFETY: only unused memory of the pool is released.
        self.finish().is_ok() && unsafe { self.api.cuMemPoolTrimTo(self.pool, 0) } == 0
    }

    fn take(&self, bytes: usize, home: &Stream) -> Result<Result<u64, Status>> {
        let _entered = self.enter()?;
        let (mut address, stream) = (0, home.cuda().map_or(self.default_stream, |(_, stream)| stream));
        // SAFETY: writes an address.
        let status = unsafe { self.api.cuMemAllocAsync(&raw mut address, bytes, stream) };
        Ok(if status == 0 { Ok(address) } else { Err(status) })
    }

    /// Why there is no memory.
    fn refusal(&self, bytes: usize, status: Status) -> Error {
        let device = DeviceRef::gpu(self.id);
        match self.free_and_total() {
            Ok((free, total)) if status == OUT_OF_MEMORY || bytes > total => Error::memory(format!(
                "{device} is out of memory: there is no room for {bytes} more bytes, {free} of its {total} bytes are free"
            )),
            _ => match self.api.check(status, "cuMemAllocAsync") {
                Err(error) => error.context(format!("{bytes} bytes could not be allocated on {device}")),
                Ok(()) => Error::memory(format!("{bytes} bytes could not be allocated on {device}")),
            },
        }
    }

    /// Enables access from this GPU to the memory of another one; whether that is possible.
    pub(crate) fn reaches(&self, other: &'static Gpu) -> bool {
        if self == other {
            return true;
        }
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&(_, reaches)) = peers.iter().find(|(id, _)| *id == other.id) {
            return reaches;
        }
        let reaches = self.reach(other).is_ok_and(|can| can);
        peers.push((other.id, reaches));
        reaches
    }

    /// Whether host memory at an address is, or may be, page-locked: copies of it may still be running when a call
    /// returns.
    pub(crate) fn is_page_locked(&self, ptr: *const u8) -> bool {
        let (_entered, mut kind) = (self.enter(), 0u32);
        let (attribute, mut place) = (MEMORY_TYPE, (&raw mut kind).cast());
        // The call for several attributes: for memory unknown to the driver it gives zero instead of failing.
        // SAFETY: one attribute, and a variable of its size.
        let status =
            unsafe { self.api.cuPointerGetAttributes(1, &raw const attribute, &raw mut place, ptr as u64) };
        status != 0 || kind != 0
    }

    fn reach(&self, other: &Gpu) -> Result<bool> {
        let mut can = 0;
        // SAFETY: writes a number.
        let status = unsafe { self.api.cuDeviceCanAccessPeer(&raw mut can, self.device, other.device) };
        self.api.check(status, "cuDeviceCanAccessPeer")?;
        if can == 0 {
            return Ok(false);
        }
        let _entered = self.enter()?;
        // SAFETY: the context lives as long as the process.
        match unsafe { self.api.cuCtxEnablePeerAccess(other.context, 0) } {
            PEER_ACCESS_ALREADY_ENABLED => {}
            status => self.api.check(status, "cuCtxEnablePeerAccess")?,
        }
        // Access to pool memory is granted separately.
        let access = PoolAccess { location: ON_DEVICE, id: self.device, flags: READ_WRITE };
        // SAFETY: one description, as the driver lays it out.
        let status = unsafe { self.api.cuMemPoolSetAccess(other.pool, (&raw const access).cast(), 1) };
        self.api.check(status, "cuMemPoolSetAccess").map(|()| true)
    }
}

/// Access rights to the memory of a pool.
#[repr(C)]
struct PoolAccess {
    location: c_int,
    id: c_int,
    flags: c_int,
}

const ON_DEVICE: c_int = 1;
const READ_WRITE: c_int = 3;
const PEER_ACCESS_ALREADY_ENABLED: Status = 704;

/// The attribute of an address that says where its memory is.
const MEMORY_TYPE: c_int = 2;

/// The handle of the legacy default stream, which other libraries use unless told otherwise. Every context always has
/// it.
pub(crate) const LEGACY: u64 = 1;
