//! Copies of bytes between the host and GPUs, and fills, all in stream order.

use std::ffi::c_void;

use max_core::Result;

use super::Gpu;
use crate::Stream;

/// Copies bytes from the host to the GPU of a stream.
///
/// # Safety
///
/// Both sides are valid for `bytes` bytes. The GPU memory stays alive until the work is done; page-locked host memory
/// does too, and stays unchanged.
pub(crate) unsafe fn upload(stream: &Stream, to: u64, from: *const u8, bytes: usize) -> Result<()> {
    let Some((gpu, handle)) = stream.cuda().filter(|_| bytes > 0) else { return Ok(()) };
    let _entered = gpu.enter()?;
    // SAFETY: guaranteed by the caller.
    let status = unsafe { gpu.api.cuMemcpyHtoDAsync_v2(to, from.cast::<c_void>(), bytes, handle) };
    gpu.api.check(status, "cuMemcpyHtoDAsync")
}

/// Copies bytes from the GPU of a stream to the host, where they can be read once the stream has reached this point.
///
/// # Safety
///
/// Both sides are valid for `bytes` bytes, and stay alive until the work is done.
pub(crate) unsafe fn download(stream: &Stream, to: *mut u8, from: u64, bytes: usize) -> Result<()> {
    let Some((gpu, handle)) = stream.cuda().filter(|_| bytes > 0) else { return Ok(()) };
    let _entered = gpu.enter()?;
    // SAFETY: guaranteed by the caller.
    let status = unsafe { gpu.api.cuMemcpyDtoHAsync_v2(to.cast::<c_void>(), from, bytes, handle) };
    gpu.api.check(status, "cuMemcpyDtoHAsync")
}

/// Copies bytes from a GPU to the GPU of a stream, which may be the same.
///
/// # Safety
///
/// Both sides are valid for `bytes` bytes, do not overlap, and stay alive until the work is done.
pub(crate) unsafe fn copy(
    stream: &Stream,
    to: u64,
    from: u64,
    source: &'static Gpu,
    bytes: usize,
) -> Result<()> {
    let Some((gpu, handle)) = stream.cuda().filter(|_| bytes > 0) else { return Ok(()) };
    // The driver copies through the host where there is no peer access.
    let same = gpu == source || gpu.reaches(source);
    let _entered = gpu.enter()?;
    // SAFETY: guaranteed by the caller.
    let status = unsafe {
        if same {
            gpu.api.cuMemcpyDtoDAsync_v2(to, from, bytes, handle)
        } else {
            gpu.api.cuMemcpyPeerAsync(to, gpu.context, from, source.context, bytes, handle)
        }
    };
    gpu.api.check(status, "cuMemcpyDtoDAsync")
}

/// A pattern of bytes that fills memory without a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// One byte.
    Byte(u8),
    /// Two bytes, at addresses that are multiples of two.
    Half(u16),
    /// Four bytes, at addresses that are multiples of four.
    Word(u32),
}

impl Fill {
    /// The pattern that repeats an element from an address on, if there is one.
    pub(crate) fn of(element: &[u8], address: u64) -> Option<Fill> {
        let repeats = |part: usize| {
            element.len().is_multiple_of(part) && element[part..] == element[..element.len() - part]
        };
        match *element {
            [byte, ..] if repeats(1) => Some(Fill::Byte(byte)),
            [a, b, ..] if repeats(2) && address.is_multiple_of(2) => {
                Some(Fill::Half(u16::from_ne_bytes([a, b])))
            }
            [a, b, c, d, ..] if repeats(4) && address.is_multiple_of(4) => {
                Some(Fill::Word(u32::from_ne_bytes([a, b, c, d])))
            }
            _ => None,
        }
    }

    /// Fills `bytes` bytes.
    ///
    /// # Safety
    ///
    /// The bytes are memory of the stream's GPU, and stay alive until the work is done.
    pub(crate) unsafe fn run(self, stream: &Stream, to: u64, bytes: usize) -> Result<()> {
        let Some((gpu, handle)) = stream.cuda().filter(|_| bytes > 0) else { return Ok(()) };
        let _entered = gpu.enter()?;
        // SAFETY: guaranteed by the caller; the address is a multiple of the pattern's size.
        let status = unsafe {
            match self {
                Fill::Byte(value) => gpu.api.cuMemsetD8Async(to, value, bytes, handle),
                Fill::Half(value) => gpu.api.cuMemsetD16Async(to, value, bytes / 2, handle),
                Fill::Word(value) => gpu.api.cuMemsetD32Async(to, value, bytes / 4, handle),
            }
        };
        gpu.api.check(status, "cuMemsetAsync")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_become_the_smallest_fill() {
        assert_eq!(Fill::of(&[7], 1), Some(Fill::Byte(7)));
        assert_eq!(Fill::of(&[0; 8], 3), Some(Fill::Byte(0)));
        assert_eq!(Fill::of(&1u16.to_ne_bytes(), 2), Some(Fill::Half(1)));
        assert_eq!(Fill::of(&1u16.to_ne_bytes(), 1), None);
        assert_eq!(Fill::of(&0x0001_0001u32.to_ne_bytes(), 4), Some(Fill::Half(1)));
        assert_eq!(Fill::of(&1f32.to_ne_bytes(), 8), Some(Fill::Word(1f32.to_bits())));
        assert_eq!(Fill::of(&1f32.to_ne_bytes(), 6), None);
        assert_eq!(Fill::of(&0x0000_0002_0000_0002u64.to_ne_bytes(), 8), Some(Fill::Word(2)));
        assert_eq!(Fill::of(&1f64.to_ne_bytes(), 8), None);
    }
}
