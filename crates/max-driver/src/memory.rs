//! A range of memory on some device, and whatever keeps it alive.
//!
//! Owned, borrowed and mapped memory differ only in their owner: a lease from the device's pool, somebody
//! else's object, or a file mapping. All are alive exactly as long as the `Memory` is.

use std::any::Any;
use std::ptr::NonNull;

use max_core::Result;

use crate::Stream;
use crate::pool::Contents;

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
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the owner may be sent and shared; the pointer is only an address here. Every access through it is
// a raw one made by buffers, whose contract (see the crate) excludes races.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory from the pool of a stream's device.
    pub(crate) fn owned(len: usize, stream: &Stream, contents: Contents) -> Result<Memory> {
        let lease = stream.device().allocate(len, contents)?;
        Ok(Memory { ptr: lease.ptr(), len, access: Access::ReadWrite, _owner: Box::new(lease) })
    }

    /// Memory that somebody else allocated.
    ///
    /// # Safety
    ///
    /// The `len` bytes at `ptr` are initialized memory of one device, which stays valid for reads, and for
    /// writes if the access allows them, until the owner is dropped.
    pub(crate) unsafe fn borrowed(
        ptr: NonNull<u8>,
        len: usize,
        access: Access,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Memory {
        Memory { ptr, len, access, _owner: owner }
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
}
