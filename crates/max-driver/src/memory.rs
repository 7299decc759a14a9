//! A range of memory on some device, and whatever keeps it alive.
//!
//! Owned, borrowed and mapped memory differ only in their owner: a lease from the device's pool, an object of another
//! library, or a file mapping. All are alive exactly as long as the `Memory` is; GPU memory lives until the work of all
//! streams that use it is done.

use std::any::Any;
use std::ptr::NonNull;

use max_core::Result;

use crate::cuda::{Block, Foreign, Gpu, Pinned, Users};
use crate::pool::{Contents, Lease};
use crate::{Stream, host};

/// What may be done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// It may only be read.
    ReadOnly,
    /// It may be read and written.
    ReadWrite,
}

/// The range: see the module.
pub(crate) struct Memory {
    ptr: NonNull<u8>,
    len: usize,
    access: Access,
    owner: Owner,
}

/// The owner: the first three are ours.
enum Owner {
    Host { _lease: Lease },
    Gpu(Block),
    Pinned(Pinned),
    Foreign(Foreign),
    Other { _owner: Box<dyn Any + Send + Sync> },
}

// SAFETY: the owner may be sent and shared; the pointer is only an address here. Every access through it is
// a raw one made by buffers, whose contract (see the crate) excludes races.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory from the pool of a stream's device, for work on that stream.
    pub(crate) fn owned(len: usize, stream: &Stream, contents: Contents) -> Result<Memory> {
        let (ptr, owner) = match stream.device().gpu() {
            None => {
                let lease = host::POOL.take(len, contents)?;
                (lease.ptr(), Owner::Host { _lease: lease })
            }
            Some(gpu) => {
                let block = Block::new(gpu, len, contents, stream)?;
                (block.ptr(), Owner::Gpu(block))
            }
        };
        Ok(Memory { ptr, len, access: Access::ReadWrite, owner })
    }

    /// Zeroed page-locked host memory.
    pub(crate) fn pinned(len: usize, gpu: &'static Gpu) -> Result<Memory> {
        let pinned = Pinned::new(gpu, len)?;
        Ok(Memory { ptr: pinned.ptr(), len, access: Access::ReadWrite, owner: Owner::Pinned(pinned) })
    }

    /// Memory that another library allocated, and that is used on a stream.
    ///
    /// # Safety
    ///
    /// The `len` bytes at `ptr` are initialized memory of the stream's device, which stays valid for reads, and for
    /// writes if the access allows them, until the owner is dropped.
    pub(crate) unsafe fn borrowed(
        ptr: NonNull<u8>,
        len: usize,
        access: Access,
        stream: &Stream,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Memory {
        let owner = match stream.device().is_host() {
            true => Owner::Other { _owner: owner },
            false => Owner::Foreign(Foreign::new(stream, owner)),
        };
        Memory { ptr, len, access, owner }
    }

    /// The first byte, an address on its device.
    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// What may be done to it.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// The page-locked memory, if it is page-locked memory of ours.
    pub(crate) fn as_pinned(&self) -> Option<&Pinned> {
        match &self.owner {
            Owner::Pinned(pinned) => Some(pinned),
            _ => None,
        }
    }

    /// The streams that use it, if it is GPU memory.
    pub(crate) fn users(&self) -> Option<&Users> {
        match &self.owner {
            Owner::Gpu(block) => Some(block.users()),
            Owner::Foreign(foreign) => Some(foreign.users()),
            _ => None,
        }
    }

    /// The GPU memory of another library, if it is that.
    pub(crate) fn as_foreign(&self) -> Option<&Foreign> {
        match &self.owner {
            Owner::Foreign(foreign) => Some(foreign),
            _ => None,
        }
    }

    /// Whether it is host memory of another library, which may have page-locked it.
    pub(crate) fn is_others(&self) -> bool {
        matches!(self.owner, Owner::Other { .. })
    }

    /// Whether it came from the pool of host memory.
    pub(crate) fn is_pooled(&self) -> bool {
        matches!(self.owner, Owner::Host { .. })
    }

    /// Waits for the asynchronous copies of the driver, and reports their failure.
    pub(crate) fn settle(&self) -> Result<()> {
        self.as_pinned().map_or(Ok(()), Pinned::settle)
    }
}
