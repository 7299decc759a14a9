//! Where buffers come from: the device's pool, elements, memory of other libraries, files.

use std::any::Any;
use std::io::Read;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use max_core::{DType, Element, HostBytes, Number, Result, Strided, bail};

use super::{Buffer, byte_count, tuple};
use crate::guard::guard;
use crate::memory::Memory;
use crate::mmap::{self, MmapMode};
use crate::pool::Contents;
use crate::{Access, Device, Stream};

impl Buffer {
    /// A zeroed buffer, on a device or on a stream of one.
    pub fn new(dtype: DType, shape: &[usize], place: impl Into<Stream>) -> Result<Buffer> {
        Buffer::pooled(dtype, shape, place.into(), Contents::Zeroed)
    }

    /// The documented name of [`new`](Buffer::new).
    pub fn zeros(dtype: DType, shape: &[usize], place: impl Into<Stream>) -> Result<Buffer> {
        Buffer::new(dtype, shape, place)
    }

    /// A buffer whose elements must be written before they are read: it may hold what an earlier buffer left behind.
    /// Outputs of executions are made like this, because clearing them costs as much as writing them.
    pub fn uninit_pooled(dtype: DType, shape: &[usize], place: impl Into<Stream>) -> Result<Buffer> {
        Buffer::pooled(dtype, shape, place.into(), Contents::Stale)
    }

    /// A zeroed buffer in page-locked host memory, for fast copies to and from the given device, or any GPU if that is
    /// the host. Such copies run asynchronously. Everything here that reads or writes the elements on the host waits
    /// for them, but arrays of other libraries over the same memory do not. Ordinary memory if there is no GPU.
    pub fn new_pinned(dtype: DType, shape: &[usize], place: impl Into<Stream>) -> Result<Buffer> {
        let (bytes, cpu) = (byte_count(dtype, shape)?, Device::cpu());
        let gpu = place.into().device().gpu().or_else(|| Device::accelerator(None).ok()?.gpu());
        let memory = match gpu {
            Some(gpu) => Memory::pinned(bytes, gpu)?,
            None => Memory::owned(bytes, &cpu.default_stream(), Contents::Zeroed)?,
        };
        Ok(Buffer::over(memory, dtype, Strided::contiguous(shape), cpu.default_stream()))
    }

    fn pooled(dtype: DType, shape: &[usize], stream: Stream, contents: Contents) -> Result<Buffer> {
        let memory = Memory::owned(byte_count(dtype, shape)?, &stream, contents)?;
        Ok(Buffer::over(memory, dtype, Strided::contiguous(shape), stream))
    }

    /// A buffer of rank zero that holds a number; "Unsafe cast" if the dtype cannot represent it.
    pub fn scalar(value: Number, dtype: DType, place: impl Into<Stream>) -> Result<Buffer> {
        let host = Buffer::uninit_pooled(dtype, &[], &Device::cpu())?;
        host.fill(value)?;
        host.to_stream(&place.into())
    }

    /// A copy of elements in host memory.
    pub fn from_slice<T: Element>(elements: &[T], shape: &[usize]) -> Result<Buffer> {
        let (bytes, given) = (byte_count(T::DTYPE, shape)?, size_of_val(elements));
        if bytes != given {
            let count = elements.len();
            bail!(
                value,
                "{count} elements cannot fill a buffer of {} elements of shape {}",
                T::DTYPE,
                tuple(shape)
            );
        }
        let buffer = Buffer::uninit_pooled(T::DTYPE, shape, &Device::cpu())?;
        // SAFETY: both have `bytes` bytes, and the buffer is new and so does not overlap the slice.
        unsafe { buffer.data_ptr_mut()?.copy_from_nonoverlapping(elements.as_ptr().cast(), bytes) };
        Ok(buffer)
    }

    /// Read-only elements in shared host bytes, without a copy.
    pub fn from_host_bytes(bytes: HostBytes, dtype: DType, shape: &[usize]) -> Result<Buffer> {
        let (wanted, given) = (byte_count(dtype, shape)?, bytes.len());
        if wanted != given {
            bail!(
                value,
                "{given} bytes do not match {dtype} elements of shape {}, which take {wanted}",
                tuple(shape)
            );
        }
        let ptr = bytes.as_ptr().cast_mut();
        // SAFETY: the bytes stay in place while their owner lives, and are not written.
        unsafe {
            Buffer::from_raw(ptr, dtype, shape, None, &Device::cpu(), Access::ReadOnly, Box::new(bytes))
        }
    }

    /// Elements in memory that another library allocated, without a copy. The pointer is to the element with all
    /// indices zero; strides count elements, may be zero or negative, and default to row-major without gaps. The owner
    /// is dropped with the last buffer that shares the memory, or at once if this fails; for GPU memory, not before all
    /// work on it is done.
    ///
    /// # Safety
    ///
    /// All elements that shape and strides name are initialized memory of the device, and stay valid for reads,
    /// and for writes if the access allows them, until the owner is dropped.
    pub unsafe fn from_raw(
        ptr: *mut u8,
        dtype: DType,
        shape: &[usize],
        strides: Option<&[isize]>,
        device: &Device,
        access: Access,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Buffer> {
        let mut bytes = byte_count(dtype, shape)?;
        let mut layout = Strided::contiguous(shape);
        if let Some(strides) = strides {
            (layout.offset, bytes) = reach(dtype, shape, strides)?;
            for (axis, &stride) in strides.iter().enumerate() {
                // The stride of an axis of size 0 or 1 does not matter.
                if bytes > 0 && shape[axis] > 1 {
                    layout.strides[axis] = stride;
                }
            }
        }
        let below = layout.offset * dtype.size_in_bytes();
        let start = match NonNull::new(ptr).map(|ptr| ptr.as_ptr().wrapping_sub(below)).and_then(NonNull::new)
        {
            Some(start) => start,
            None if bytes == 0 => NonNull::dangling(),
            None => bail!(value, "a null pointer cannot hold {dtype} elements of shape {}", tuple(shape)),
        };
        let stream = device.default_stream();
        // SAFETY: the elements that the caller vouches for reach from `start` over these bytes.
        let memory = unsafe { Memory::borrowed(start, bytes, access, &stream, owner) };
        Ok(Buffer::over(memory, dtype, layout, stream))
    }

    /// A read-only view of a host buffer, which keeps it alive.
    pub fn read_only(&self) -> Result<Buffer> {
        let (ptr, strides) = (self.host_ptr()?.cast_mut(), Some(self.strides()));
        let owner = Box::new(self.clone());
        // SAFETY: the elements are those of a buffer that lives as long as its owner, and are not written.
        unsafe {
            Buffer::from_raw(ptr, self.dtype(), self.shape(), strides, self.device(), Access::ReadOnly, owner)
        }
    }

    /// The next bytes of a reader, in new memory.
    pub fn from_reader(mut reader: impl Read, bytes: usize) -> Result<Buffer> {
        let buffer = Buffer::uninit_pooled(DType::UInt8, &[bytes], &Device::cpu())?;
        // SAFETY: the buffer has that many bytes, nobody else has it yet, and memory of the pool is initialized.
        let memory = unsafe { std::slice::from_raw_parts_mut(buffer.data_ptr_mut()?, bytes) };
        match reader.read_exact(memory) {
            Ok(()) => Ok(buffer),
            Err(error) => bail!(runtime, "cannot read {bytes} bytes: {error}"),
        }
    }

    /// Elements in a mapped file, starting at a byte offset; see [`MmapMode`] for where writes go. The file must not be
    /// changed by others while the buffer lives: see the module `mmap`.
    pub fn mmap(
        path: impl AsRef<Path>,
        dtype: DType,
        shape: &[usize],
        mode: MmapMode,
        offset: u64,
    ) -> Result<Buffer> {
        let memory = mmap::map(path.as_ref(), mode, offset, byte_count(dtype, shape)?)?;
        Ok(Buffer::over(memory, dtype, Strided::contiguous(shape), (&Device::cpu()).into()))
    }

    /// All of a memory range.
    fn over(memory: Memory, dtype: DType, layout: Strided, stream: Stream) -> Buffer {
        debug_assert!(
            layout.span().is_none_or(|(_, high)| (high + 1) * dtype.size_in_bytes() <= memory.len())
        );
        Buffer { dtype, layout: Arc::new(layout), base: 0, memory: Arc::new(memory), stream }
    }
}

/// The number of elements below the one with all indices zero, and the number of bytes from the lowest element to the
/// end of the highest.
fn reach(dtype: DType, shape: &[usize], strides: &[isize]) -> Result<(usize, usize)> {
    if shape.len() != strides.len() {
        bail!(value, "the shape {} and the strides {strides:?} differ in length", tuple(shape));
    }
    if shape.contains(&0) {
        return Ok((0, 0));
    }
    let sides = shape.iter().zip(strides).try_fold((0usize, 0usize), |(below, above), (&size, &stride)| {
        let distance = (size - 1).checked_mul(stride.unsigned_abs())?;
        if stride < 0 {
            Some((below.checked_add(distance)?, above))
        } else {
            Some((below, above.checked_add(distance)?))
        }
    });
    let bytes = |(below, above): (usize, usize)| {
        let bytes = below.checked_add(above)?.checked_add(1)?.checked_mul(dtype.size_in_bytes())?;
        isize::try_from(bytes).ok().map(|_| (below, bytes))
    };
    let Some(found) = sides.and_then(bytes) else {
        bail!(
            value,
            "the byte range of {dtype} elements of shape {} with strides {strides:?} overflows",
            tuple(shape)
        );
    };
    Ok(found)
}

/// A vector becomes a buffer of rank one in host memory, without a copy unless memory is [guarded](crate::guard).
impl<T: Element> From<Vec<T>> for Buffer {
    fn from(elements: Vec<T>) -> Buffer {
        if guard().is_some()
            && let Ok(copy) = Buffer::from_slice(&elements, &[elements.len()])
        {
            return copy;
        }
        let mut elements = Box::new(elements);
        let layout = Strided::contiguous(&[elements.len()]);
        let (start, bytes) = (NonNull::from(&mut elements[..]).cast(), size_of_val(&elements[..]));
        let stream = Device::cpu().default_stream();
        // SAFETY: the vector is the owner, is not used otherwise, and its elements stay where they are.
        let memory = unsafe { Memory::borrowed(start, bytes, Access::ReadWrite, &stream, elements) };
        Buffer::over(memory, T::DTYPE, layout, stream)
    }
}

/// An array becomes a buffer of rank one in host memory.
impl<T: Element, const N: usize> From<[T; N]> for Buffer {
    fn from(elements: [T; N]) -> Buffer {
        Vec::from(elements).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::ALIGNMENT;
    use max_core::{Bool, ErrorKind, ViewIndex};

    const CPU: Device = Device::cpu();

    #[test]
    fn new_buffers_are_zero_and_aligned() {
        for &dtype in DType::ALL {
            for shape in [&[][..], &[0], &[3, 5], &[70_000], &[2_000_000]] {
                let buffer = Buffer::new(dtype, shape, &CPU).unwrap();
                assert!(buffer.is_contiguous() && buffer.data_ptr().addr().is_multiple_of(ALIGNMENT));
                assert!(buffer.host_bytes().unwrap().iter().all(|&byte| byte == 0));
                Buffer::uninit_pooled(dtype, shape, &CPU).unwrap().fill(Number::Int(1)).unwrap();
            }
        }
    }

    #[test]
    fn impossible_sizes_are_errors() {
        let kind = |shape: &[usize]| Buffer::new(DType::Float64, shape, &CPU).unwrap_err().kind();
        assert_eq!(kind(&[usize::MAX, 2]), ErrorKind::Value);
        assert_eq!(kind(&[1 << 60]), ErrorKind::Value);
        assert_eq!(kind(&[1; 65]), ErrorKind::Value);
        assert_eq!(kind(&[1 << 44]), ErrorKind::Memory);
        assert!(Buffer::new(DType::Bool, &[], &CPU).is_ok());
    }

    #[test]
    fn scalars_and_elements() {
        assert_eq!(Buffer::scalar(Number::Int(7), DType::Int64, &CPU).unwrap().item(), Ok(Number::Int(7)));
        assert_eq!(
            Buffer::scalar(Number::Float(0.5), DType::Float16, &CPU).unwrap().item(),
            Ok(Number::Float(0.5))
        );
        assert_eq!(
            Buffer::scalar(Number::Int(300), DType::UInt8, &CPU).unwrap_err().kind(),
            ErrorKind::Value
        );
        assert_eq!(Buffer::from_slice(&[1u8, 2], &[3]).unwrap_err().kind(), ErrorKind::Value);
        let buffer = Buffer::from([Bool::TRUE, Bool::FALSE]);
        assert_eq!((buffer.dtype(), buffer.shape()), (DType::Bool, &[2][..]));
        assert!(Buffer::from(Vec::<f32>::new()).to_vec::<f32>().unwrap().is_empty());
    }

    #[test]
    fn read_only_views_show_changes_and_refuse_writes() {
        let buffer = Buffer::from([1i32, 2, 3]);
        let backwards = buffer.index(&[ViewIndex::Slice { start: None, stop: None, step: -1 }]).unwrap();
        let view = backwards.read_only().unwrap();
        buffer.fill(Number::Int(7)).unwrap();
        assert_eq!((view.is_read_only(), view.to_vec::<i32>().unwrap()), (true, vec![7, 7, 7]));
        assert!(view.fill(Number::Int(1)).is_err());
        drop((buffer, backwards));
        assert_eq!(view.to_vec::<i32>().unwrap(), [7, 7, 7]);
    }

    #[test]
    fn host_bytes_are_borrowed_and_read_only() {
        let bytes = HostBytes::from_vec(vec![1i16, 2, 3]);
        let buffer = Buffer::from_host_bytes(bytes.clone(), DType::Int16, &[3]).unwrap();
        assert_eq!(buffer.data_ptr(), bytes.as_ptr());
        assert!(buffer.is_read_only());
        assert_eq!(buffer.fill(Number::Int(0)).unwrap_err().kind(), ErrorKind::Value);
        assert_eq!(buffer.index(&[ViewIndex::At(0)]).unwrap().item(), Ok(Number::Int(1)));
        assert!(buffer.copy(None).unwrap().fill(Number::Int(0)).is_ok());
        assert!(Buffer::from_host_bytes(bytes, DType::Int16, &[4]).is_err());
    }

    #[test]
    fn foreign_memory_keeps_its_owner() {
        let owner = Arc::new(vec![1f32, 2., 3., 4., 5., 6.]);
        let raw = |at: usize, shape: &[usize], strides: &[isize]| {
            let ptr = owner[at..].as_ptr().cast_mut().cast();
            let keep = Box::new(owner.clone());
            // SAFETY: each call below names elements inside the vector, which the owner keeps.
            unsafe {
                Buffer::from_raw(ptr, DType::Float32, shape, Some(strides), &CPU, Access::ReadOnly, keep)
            }
        };
        let reversed = raw(5, &[2, 3], &[-3, -1]).unwrap();
        assert_eq!(reversed.to_vec::<f32>().unwrap(), [6., 5., 4., 3., 2., 1.]);
        let view = reversed.index(&[ViewIndex::At(1)]).unwrap();
        drop(reversed);
        assert_eq!(Arc::strong_count(&owner), 2);
        assert_eq!(view.to_vec::<f32>().unwrap(), [3., 2., 1.]);
        drop(view);
        assert_eq!(raw(0, &[2, 2], &[0, 1]).unwrap().to_vec::<f32>().unwrap(), [1., 2., 1., 2.]);
        assert!(raw(0, &[2], &[1, 1]).is_err() && raw(0, &[3, 3], &[isize::MAX, 1]).is_err());
        assert!(raw(0, &[2], &[isize::MIN]).is_err());
        assert_eq!(Arc::strong_count(&owner), 1);
        // SAFETY: there are no elements, or the pointer is refused.
        let null = |n| unsafe {
            Buffer::from_raw(
                std::ptr::null_mut(),
                DType::Int8,
                &[n],
                None,
                &CPU,
                Access::ReadWrite,
                Box::new(()),
            )
        };
        assert!(null(0).is_ok() && null(1).is_err());
    }

    #[test]
    fn readers_give_as_much_as_is_asked_for() {
        let mut reader = &[1u8, 2, 3, 4][..];
        let buffer = Buffer::from_reader(&mut reader, 3).unwrap();
        assert_eq!(buffer.to_vec::<u8>().unwrap(), [1, 2, 3]);
        assert!(buffer.data_ptr().addr().is_multiple_of(ALIGNMENT));
        assert_eq!(Buffer::from_reader(&mut reader, 0).unwrap().num_elements(), 0);
        let error = Buffer::from_reader(&mut reader, 2).unwrap_err();
        assert!(error.message().contains("cannot read 2 bytes"), "{error}");
        assert_eq!(Buffer::from_reader(reader, usize::MAX / 2).unwrap_err().kind(), ErrorKind::Memory);
    }

    #[test]
    fn files_are_mapped_in_every_mode() {
        let path = std::env::temp_dir().join(format!("max-driver-mmap-{}", std::process::id()));
        let map = |mode: &str, shape: &[usize], offset| {
            Buffer::mmap(&path, DType::Int32, shape, mode.parse().unwrap(), offset)
        };
        let missing = map("r", &[1], 0).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::Runtime);
        assert!(missing.message().contains("max-driver-mmap"));

        assert_eq!(map("w+", &[0], 0).unwrap().to_vec::<i32>().unwrap(), []);
        let written = map("w+", &[3], 0).unwrap();
        written.copy_from(&Buffer::from([1i32, 2, 3])).unwrap();
        drop(written);
        assert_eq!(map("r", &[2], 4).unwrap().to_vec::<i32>().unwrap(), [2, 3]);
        for mode in ["r", "readonly", "c", "copyonwrite"] {
            let private = map(mode, &[3], 0).unwrap();
            private.fill(Number::Int(9)).unwrap();
            assert_eq!(private.to_vec::<i32>().unwrap(), [9, 9, 9]);
        }
        assert_eq!(map("r", &[3], 0).unwrap().to_vec::<i32>().unwrap(), [1, 2, 3]);
        map("r+", &[1], 8).unwrap().fill(Number::Int(7)).unwrap();
        assert_eq!(map("r", &[3], 0).unwrap().to_vec::<i32>().unwrap(), [1, 2, 7]);
        assert_eq!(map("r", &[0, 5], 12).unwrap().num_elements(), 0);
        let odd = map("r", &[1], 1).unwrap().to_vec::<i32>().unwrap();
        assert_eq!(odd, [i32::from_le_bytes([0, 0, 0, 2]).to_le()]);

        let short = map("r+", &[3], 4).unwrap_err();
        assert_eq!(short.kind(), ErrorKind::Value);
        assert!(short.message().contains("16 bytes") && short.message().contains("has 12"));
        assert_eq!(map("r", &[1], u64::MAX).unwrap_err().kind(), ErrorKind::Value);
        assert_eq!(map("r", &[usize::MAX], 0).unwrap_err().kind(), ErrorKind::Value);
        assert!("rw".parse::<MmapMode>().is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
