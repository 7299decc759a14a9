//! Copies to, from and on GPUs.
//!
//! A copy runs in the order of the GPU buffer's stream (the destination's, if both are on a GPU): after what is pending
//! on the source, and before later changes to the source. The memory of both outlives it. The host waits where it could
//! see half a result: for copies to pageable host memory. With page-locked memory, whoever looks at it waits.

use max_core::{Number, Result};

use super::Buffer;
use crate::cuda::{self, Fill, LEGACY, Side};
use crate::{Device, Stream};

impl Buffer {
    /// Records that work on another stream uses the memory too; that work must be enqueued before the buffer is
    /// dropped. The memory is not reused before it is done. Required for work on any stream other than the buffer's
    /// own.
    pub fn used_on(&self, stream: &Stream) {
        if let Some(users) = self.memory.users() {
            users.add(Some(stream));
        }
    }

    /// Hands GPU memory over to another library, which uses it on a stream of its own. With the handle of that stream,
    /// work enqueued there from now on starts after what is pending here; without one, the other library takes care of
    /// that. Host memory is always ready.
    ///
    /// # Safety
    ///
    /// The handle is that of a stream of the buffer's device.
    pub unsafe fn release_to(&self, handle: Option<u64>) -> Result<()> {
        let Some(users) = self.memory.users() else { return Ok(()) };
        // SAFETY: as the caller promises.
        let theirs = handle.map(|handle| unsafe { Stream::from_handle(self.device(), handle) });
        theirs.iter().try_for_each(|theirs| theirs.wait_for(&self.stream))?;
        // Any stream other than the default one may be gone when the memory comes back.
        users.add(theirs.filter(|theirs| theirs.handle() == Some(LEGACY)).as_ref());
        Ok(())
    }

    /// Gives borrowed GPU memory back to the library that owns it: dropping the buffer then waits for nothing. Other memory
    /// needs no giving back.
    ///
    /// # Safety
    ///
    /// The owner uses the memory only after all work that is pending on it here, and nobody enqueues more of that.
    pub unsafe fn give_back(&self) {
        if let Some(foreign) = self.memory.as_foreign() {
            foreign.give_back();
        }
    }

    /// Sets every element of a buffer on a GPU to a number.
    pub(super) fn fill_on_gpu(&self, value: Number) -> Result<()> {
        let address = self.data_ptr_mut()? as u64;
        let one = Buffer::uninit_pooled(self.dtype, &[], &Device::cpu())?;
        one.fill(value)?;
        if let Some(fill) = Fill::of(&one.host_bytes()?, address).filter(|_| self.is_contiguous()) {
            // SAFETY: the bytes of all elements, in memory that is freed in stream order.
            return unsafe { fill.run(&self.stream, address, self.num_bytes()) };
        }
        let one = one.to_stream(&self.stream)?;
        let (to, still) = (Side { address, strides: self.strides() }, vec![0; self.rank()]);
        let from = Side { address: one.address() as u64, strides: &still };
        // SAFETY: all elements of this buffer, and the one source element, which nothing else shares; as above.
        unsafe { cuda::copy_strided(&self.stream, self.shape(), self.element_size(), to, from) }
    }

    /// Sets the elements to those of a buffer of the same shape and dtype; one of the two is on a GPU.
    pub(super) fn transfer_from(&self, source: &Buffer) -> Result<()> {
        self.data_ptr_mut()?;
        if self.num_elements() == 0 {
            return Ok(());
        }
        if self.device() == source.device() {
            return self.move_from(source);
        }
        // Copies between devices need contiguous memory.
        if !source.is_contiguous() {
            return self.transfer_from(&source.contiguous()?);
        }
        if !self.is_contiguous() {
            let whole = Buffer::uninit_pooled(self.dtype, self.shape(), &self.stream)?;
            whole.transfer_from(source)?;
            return self.copy_from(&whole);
        }
        match (self.is_host(), source.device().gpu()) {
            (true, _) => self.download_from(source),
            (false, None) => self.upload_from(source),
            // SAFETY: the bytes of all elements of both, on two GPUs; see the module for how long they stay alive.
            (false, Some(gpu)) => self.after(source, |to, from| unsafe {
                cuda::copy(&self.stream, to, from, gpu, self.num_bytes())
            }),
        }
    }

    /// On one GPU.
    fn move_from(&self, source: &Buffer) -> Result<()> {
        let whole = self.is_contiguous() && source.is_contiguous();
        if whole && self.address() == source.address() {
            return Ok(());
        }
        let (ours, theirs) = (self.address_range(), source.address_range());
        if ours.start < theirs.end && theirs.start < ours.end {
            return self.move_from(&source.contiguous()?);
        }
        self.after(source, |to, from| match self.device().gpu() {
            // SAFETY: the bytes of all elements of both, which do not overlap; see the module for how long they stay
            // alive.
            Some(gpu) if whole => unsafe { cuda::copy(&self.stream, to, from, gpu, self.num_bytes()) },
            _ => {
                let to = Side { address: to, strides: self.strides() };
                let from = Side { address: from, strides: source.strides() };
                // SAFETY: as above.
                unsafe { cuda::copy_strided(&self.stream, self.shape(), self.element_size(), to, from) }
            }
        })
    }

    /// Runs a copy between GPUs in the order of both streams.
    fn after(&self, source: &Buffer, copy: impl FnOnce(u64, u64) -> Result<()>) -> Result<()> {
        self.stream.wait_for(&source.stream)?;
        source.used_on(&self.stream);
        copy(self.address() as u64, source.address() as u64)?;
        source.stream.wait_for(&self.stream)
    }

    /// From the host.
    fn upload_from(&self, source: &Buffer) -> Result<()> {
        let (stream, ptr, pinned) = (&self.stream, source.address(), source.memory.as_pinned());
        pinned.map_or(Ok(()), |pinned| pinned.hold(stream))?;
        // SAFETY: the bytes of all elements of both. The driver has read pageable memory when it returns, our
        // page-locked memory records the copy, and that of others is waited for.
        unsafe { cuda::upload(stream, self.address() as u64, ptr, self.num_bytes())? };
        match pinned {
            Some(pinned) => pinned.remember(stream).or_else(|_| stream.finish()),
            None if source.memory.is_others()
                && self.device().gpu().is_some_and(|gpu| gpu.is_page_locked(ptr)) =>
            {
                stream.finish()
            }
            None => Ok(()),
        }
    }

    /// To the host.
    fn download_from(&self, source: &Buffer) -> Result<()> {
        let (stream, to, pinned) = (&source.stream, self.address().cast_mut(), self.memory.as_pinned());
        pinned.map_or(Ok(()), |pinned| pinned.hold(stream))?;
        // SAFETY: the bytes of all elements of both, ours writable. Our page-locked memory records the copy; any other
        // is waited for.
        unsafe { cuda::download(stream, to, source.address() as u64, self.num_bytes())? };
        match pinned {
            Some(pinned) => pinned.remember(stream).or_else(|_| stream.finish()),
            None => stream.synchronize(),
        }
    }
}
