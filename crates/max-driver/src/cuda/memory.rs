//! Memory of a GPU: taken from and given back to the pool of its driver, in the order of streams.
//!
//! A block belongs to the stream it was allocated for, its home, and is given back in the order of that stream: the next
//! block there can be the same memory although earlier work on it is still pending. Other streams that use a block are
//! remembered, and at the end the home waits for them first. Nothing here makes the host wait, except where memory has to
//! go back to somebody who knows nothing of our streams.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr::NonNull;
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

/// What is freed stays with the pool for the next block, however much it is; a block that finds no room takes it back.
pub(super) fn keep_all(gpu: &Gpu) -> Result<()> {
    let mut all = u64::MAX;
    // SAFETY: the attribute is a number of this size.
    let status = unsafe { gpu.api.cuMemPoolSetAttribute(gpu.pool, RELEASE_THRESHOLD, (&raw mut all).cast()) };
    gpu.api.check(status, "cuMemPoolSetAttribute")
}

/// Memory on loan from the pool.
pub(crate) struct Block {
    /// Zero for no memory at all.
    address: u64,
    users: Users,
}

/// Where a block of no bytes lies: nothing is there, but the address is as aligned as any.
#[repr(align(256))]
struct Nothing;

impl Block {
    /// A block for work on a stream of a GPU, and on others that wait for it.
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

    /// Who uses it.
    pub(crate) fn users(&self) -> &Users {
        &self.users
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.address == 0 {
            return;
        }
        // Memory that somebody may still be using is lost rather than given to the next one.
        if let (Ok(()), Some((gpu, home))) = (self.users.gather(), self.users.home.cuda()) {
            let _entered = gpu.enter();
            // SAFETY: the block is nobody's any more once the work before this point of its home is done.
            let _ = unsafe { gpu.api.cuMemFreeAsync(self.address, home) };
        }
    }
}

/// Memory of a GPU that somebody else owns. The owner gets it back when all work on it is done.
pub(crate) struct Foreign {
    users: Users,
    _owner: Box<dyn Any + Send + Sync>,
}

impl Foreign {
    /// Memory that is used on a stream.
    pub(crate) fn new(home: &Stream, owner: Box<dyn Any + Send + Sync>) -> Foreign {
        Foreign { users: Users::new(home), _owner: owner }
    }

    /// Who uses it.
    pub(crate) fn users(&self) -> &Users {
        &self.users
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let done = self.users.gather().and_then(|()| self.users.home.finish());
        if let (Err(_), Some((gpu, _))) = (done, self.users.home.cuda()) {
            // Where even this fails the context is lost, and no work runs on it any more.
            let _ = gpu.finish();
        }
    }
}

/// The streams that use a memory.
pub(crate) struct Users {
    home: Stream,
    /// Streams beside the home. Nothing stands for one of somebody else, which may be gone before the memory is.
    others: Mutex<Vec<Option<Stream>>>,
}

impl Users {
    fn new(home: &Stream) -> Users {
        Users { home: home.clone(), others: Mutex::new(Vec::new()) }
    }

    /// Remembers a stream; nothing stands for one that may be gone before the memory is.
    pub(crate) fn add(&self, user: Option<&Stream>) {
        if user == Some(&self.home) {
            return;
        }
        let mut others = self.lock();
        if !others.iter().any(|known| known.as_ref() == user) {
            others.push(user.cloned());
        }
    }

    /// Lets the home wait for all others.
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
    /// The pool from which blocks come.
    pub(super) fn default_pool(api: &Api, device: c_int) -> Result<MemPool> {
        let mut pool = std::ptr::null_mut();
        // SAFETY: writes a handle.
        let status = unsafe { api.cuDeviceGetDefaultMemPool(&raw mut pool, device) };
        api.check(status, "cuDeviceGetDefaultMemPool")?;
        Ok(pool)
    }

    /// Waits for all work of all streams, of other libraries too. Says nothing of what kernels reported.
    pub(crate) fn finish(&self) -> Result<()> {
        let (_entered, _paused) = (self.enter()?, self.recordings.pause());
        // SAFETY: the context is current.
        self.api.check(unsafe { self.api.cuCtxSynchronize() }, "cuCtxSynchronize")
    }

    /// The numbers of `Device::stats`. What cannot be asked for is left out.
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

    /// The bytes that are free, and all there are.
    pub(crate) fn free_and_total(&self) -> Result<(usize, usize)> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        let status = unsafe { self.api.cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        self.api.check(status, "cuMemGetInfo")?;
        Ok((free, total))
    }

    /// The bytes of blocks, and those that the pool keeps for the next ones.
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

    /// Sets bytes, in the order of a stream.
    pub(crate) fn set_bytes(&self, address: u64, value: u8, count: usize, stream: &Stream) -> Result<()> {
        let Some((_, stream)) = stream.cuda() else { return Ok(()) };
        let _entered = self.enter()?;
        // SAFETY: the callers own the memory, and keep it until the work is done.
        let status = unsafe { self.api.cuMemsetD8Async(address, value, count, stream) };
        self.api.check(status, "cuMemsetD8Async")
    }

    /// Takes memory from the pool. If there is none, everything that the pool keeps goes back to the device first.
    fn allocate(&self, bytes: usize, home: &Stream) -> Result<u64> {
        let mut taken = self.take(bytes, home)?;
        if taken.is_err() && self.make_room() {
            taken = self.take(bytes, home)?;
        }
        taken.map_err(|status| self.refusal(bytes, status))
    }

    /// Gives back to the device what the pool keeps; whether that was possible.
    pub(super) fn make_room(&self) -> bool {
        // SAFETY: nobody has what the pool keeps.
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
                "{device} is out of memory: there is no room for {bytes} bytes more, {free} of its {total} bytes are free"
            )),
            _ => match self.api.check(status, "cuMemAllocAsync") {
                Err(error) => error.context(format!("{bytes} bytes of {device} could not be allocated")),
                Ok(()) => Error::memory(format!("{bytes} bytes of {device} could not be allocated")),
            },
        }
    }

    /// Whether kernels and copies of this GPU reach the memory of another one, which is then arranged.
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

    /// Whether the memory at an address of the host is, or may be, page-locked: copies of it may run on when a call returns.
    pub(crate) fn is_page_locked(&self, ptr: *const u8) -> bool {
        let (_entered, mut kind) = (self.enter(), 0u32);
        let (attribute, mut place) = (MEMORY_TYPE, (&raw mut kind).cast());
        // The form for several attributes: of memory that the driver does not know it answers with zero, not with a failure.
        // SAFETY: one attribute, and the place for a number of its size.
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
        // Memory of pools has its own rules.
        let access = PoolAccess { location: ON_DEVICE, id: self.device, flags: READ_WRITE };
        // SAFETY: one description, as the driver lays it out.
        let status = unsafe { self.api.cuMemPoolSetAccess(other.pool, (&raw const access).cast(), 1) };
        self.api.check(status, "cuMemPoolSetAccess").map(|()| true)
    }
}

/// Who may do what with the memory of a pool.
#[repr(C)]
struct PoolAccess {
    location: c_int,
    id: c_int,
    flags: c_int,
}

const ON_DEVICE: c_int = 1;
const READ_WRITE: c_int = 3;
const PEER_ACCESS_ALREADY_ENABLED: Status = 704;

/// What is known of an address: where its memory is.
const MEMORY_TYPE: c_int = 2;

/// The handle of the stream that other libraries use unless told otherwise. Every context has it, always.
pub(crate) const LEGACY: u64 = 1;
