//! Moving elements: into a buffer, between buffers and devices, and out to the host.

use std::sync::Arc;

use max_core::{DType, Element, Error, HostBytes, Number, Result, Strided, bail, dispatch};

use super::Buffer;
use super::strided::{self, Side};
use crate::memory::Memory;
use crate::{Device, Stream};

impl Buffer {
    /// Sets every element to a number; "Unsafe cast" if the dtype cannot represent it.
    pub fn fill(&self, value: Number) -> Result<()> {
        if !self.device().runs_on_host() {
            return self.fill_on_gpu(value);
        }
        let to = Side { ptr: self.host_ptr_mut()?, strides: self.strides() };
        let still = vec![0; self.rank()];
        dispatch!(self.dtype, T => {
            let element = value.to_element::<T>()?;
            let from = Side { ptr: (&raw const element).cast(), strides: &still };
            // SAFETY: the buffer's elements are writable, and the one source element is read for each of them.
            unsafe { strided::copy::<T>(self.shape(), to, from) }
        });
        Ok(())
    }

    /// Sets the elements to those of a buffer of the same shape and dtype, which may share memory with this one.
    pub fn copy_from(&self, source: &Buffer) -> Result<()> {
        if (self.dtype, self.shape()) != (source.dtype, source.shape()) {
            bail!(value, "cannot copy {source:?} into {self:?}: shape and dtype must be the same");
        }
        if !(self.device().runs_on_host() && source.device().runs_on_host()) {
            return self.transfer_from(source);
        }
        let ptr = self.host_ptr_mut()?;
        let (ours, theirs) = (self.address_range(), source.address_range());
        let overlap = ours.start < theirs.end && theirs.start < ours.end;
        let apart;
        let source = if overlap && !(self.is_contiguous() && source.is_contiguous()) {
            apart = source.contiguous()?;
            &apart
        } else {
            source
        };
        let from = Side { ptr: source.host_ptr()?, strides: source.strides() };
        let to = Side { ptr, strides: self.strides() };
        // SAFETY: both buffers' elements are in host memory and of this type, ours are writable, and the two overlap
        // only if both are contiguous.
        dispatch!(self.dtype, T => unsafe { strided::copy::<T>(self.shape(), to, from) });
        Ok(())
    }

    /// Copies the elements of another buffer, which may be on another device. Both must be contiguous and of
    /// the same dtype and number of elements; the shapes may differ. Copying a buffer onto itself does nothing.
    pub fn inplace_copy_from(&self, source: &Buffer) -> Result<()> {
        if self.is_same(source) {
            return Ok(());
        }
        if !(self.is_contiguous() && source.is_contiguous()) {
            bail!(value, "cannot copy {source:?} into {self:?} in place: both must be contiguous");
        }
        if (self.dtype, self.num_elements()) != (source.dtype, source.num_elements()) {
            bail!(
                value,
                "cannot copy {source:?} into {self:?} in place: dtype and number of elements must be the same"
            );
        }
        self.copy_from(&source.view(self.dtype, Some(self.shape()))?)
    }

    /// A contiguous copy.
    pub fn contiguous(&self) -> Result<Buffer> {
        self.copy_to_stream(&self.stream)
    }

    /// A contiguous copy on a device, or on the buffer's own.
    pub fn copy(&self, device: Option<&Device>) -> Result<Buffer> {
        match device {
            Some(device) if device != self.device() => self.copy_to_stream(&device.default_stream()),
            _ => self.contiguous(),
        }
    }

    /// A contiguous copy on a stream's device, made in stream order.
    pub fn copy_to_stream(&self, stream: &Stream) -> Result<Buffer> {
        let copy = Buffer::uninit_pooled(self.dtype, self.shape(), stream)?;
        copy.copy_from(self)?;
        Ok(copy)
    }

    /// The buffer itself if it is on the device, else a copy there.
    pub fn to(&self, device: &Device) -> Result<Buffer> {
        if device == self.device() { Ok(self.clone()) } else { self.copy(Some(device)) }
    }

    /// The same memory in the order of another stream if that belongs to the same device, else a copy there.
    pub fn to_stream(&self, stream: &Stream) -> Result<Buffer> {
        if stream.device() != self.device() {
            return self.copy_to_stream(stream);
        }
        stream.wait_for(&self.stream)?;
        self.used_on(stream);
        Ok(Buffer { stream: stream.clone(), ..self.clone() })
    }

    /// The value of the only element.
    pub fn item(&self) -> Result<Number> {
        let count = self.num_elements();
        if count != 1 {
            bail!(value, "calling `item` on a tensor with {count} items but expected only 1");
        }
        let host = self.to(&Device::cpu())?;
        let ptr = host.host_ptr()?;
        Ok(dispatch!(self.dtype, T => {
            // SAFETY: the first and only element.
            let element = unsafe { ptr.cast::<T>().read_unaligned() };
            match T::DTYPE {
                DType::Bool => Number::Bool(element.to_i128() != 0),
                dtype if dtype.is_integral() => Number::Int(element.to_i128()),
                _ => Number::Float(element.to_f64()),
            }
        }))
    }

    /// The elements in row-major order.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype {
            bail!(type_, "the elements of {self:?} cannot be read as {}", T::DTYPE);
        }
        let count = self.num_elements();
        let mut elements = Vec::<T>::new();
        if elements.try_reserve_exact(count).is_err() {
            let bytes = self.num_bytes();
            return Err(Error::memory(format!(
                "the system refused to allocate {bytes} bytes for the elements of {self:?}"
            )));
        }
        let host = self.to(&Device::cpu())?;
        let from = Side { ptr: host.host_ptr()?, strides: host.strides() };
        let layout = Strided::contiguous(self.shape());
        let to = Side { ptr: elements.as_mut_ptr().cast(), strides: &layout.strides };
        // SAFETY: the vector is new and has room for all elements, which are then initialized.
        unsafe {
            strided::copy::<T>(self.shape(), to, from);
            elements.set_len(count);
        }
        Ok(elements)
    }

    /// The bytes of the elements in row-major order. Contiguous host memory is not copied and stays alive as long as
    /// the bytes; strided elements are gathered; memory of an accelerator is an error.
    ///
    /// Whoever holds bytes that were not gathered must make sure that nobody writes to the memory meanwhile.
    pub fn host_bytes(&self) -> Result<HostBytes> {
        if !self.is_host() {
            bail!(runtime, "{self:?} is not in host memory; copy it to the CPU first");
        }
        self.host_ptr()?;
        if !self.is_contiguous() {
            return self.contiguous()?.host_bytes();
        }
        Ok(HostBytes::new(Part { memory: self.memory.clone(), start: self.origin(), len: self.num_bytes() }))
    }

    /// The address for writing on the host, once all pending work on the elements is done.
    fn host_ptr_mut(&self) -> Result<*mut u8> {
        self.host_ptr()?;
        self.data_ptr_mut()
    }

    /// The element at an index that is inside the shape, of a buffer in host memory.
    pub(super) fn host_element<T: Element>(&self, index: &[usize]) -> T {
        assert!(T::DTYPE == self.dtype && self.is_host(), "elements are read by their type, on the host");
        assert!(
            index.len() == self.rank() && index.iter().zip(self.shape()).all(|(i, size)| i < size),
            "inside"
        );
        let distance: isize = index.iter().zip(self.strides()).map(|(&i, &stride)| i as isize * stride).sum();
        // SAFETY: an element of the buffer, which was checked to be of this type and on the host.
        unsafe { self.data_ptr().cast::<T>().offset(distance).read_unaligned() }
    }
}

/// A part of host memory as bytes.
struct Part {
    memory: Arc<Memory>,
    start: usize,
    len: usize,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: these are the bytes of a contiguous buffer, so they are inside its memory and initialized; the
        // contract of `host_bytes` excludes writes while they are borrowed.
        unsafe { std::slice::from_raw_parts(self.memory.ptr().as_ptr().add(self.start), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use max_core::{ErrorKind, ViewIndex};

    fn slice(start: Option<i64>, stop: Option<i64>, step: i64) -> ViewIndex {
        ViewIndex::Slice { start, stop, step }
    }

    #[test]
    fn elements_go_between_strided_views() {
        let buffer = Buffer::new(DType::Float64, &[3, 4], &Device::cpu()).unwrap();
        let corner = buffer.index(&[slice(None, None, 2), slice(None, None, -3)]).unwrap();
        corner.copy_from(&Buffer::from_slice(&[1f64, 2., 3., 4.], &[2, 2]).unwrap()).unwrap();
        assert_eq!(buffer.to_vec::<f64>().unwrap(), [2., 0., 0., 1., 0., 0., 0., 0., 4., 0., 0., 3.]);
        assert_eq!(corner.contiguous().unwrap().to_vec::<f64>().unwrap(), [1., 2., 3., 4.]);
        assert_eq!(corner.fill(Number::Int(1 << 70)), Ok(()));
        assert_eq!(buffer.copy_from(&corner).unwrap_err().kind(), ErrorKind::Value);
        let other = Buffer::new(DType::Int64, &[3, 4], &Device::cpu()).unwrap();
        assert_eq!(buffer.copy_from(&other).unwrap_err().kind(), ErrorKind::Value);
    }

    #[test]
    fn overlapping_copies_read_before_they_write() {
        let buffer = || Buffer::from([0i32, 1, 2, 3, 4, 5]);
        let copied = |to: ViewIndex, from: ViewIndex| {
            let all = buffer();
            all.index(&[to]).unwrap().copy_from(&all.index(&[from]).unwrap()).unwrap();
            all.to_vec::<i32>().unwrap()
        };
        assert_eq!(copied(slice(Some(1), None, 1), slice(None, Some(-1), 1)), [0, 0, 1, 2, 3, 4]);
        assert_eq!(copied(slice(None, Some(-1), 1), slice(Some(1), None, 1)), [1, 2, 3, 4, 5, 5]);
        assert_eq!(copied(ViewIndex::ALL, slice(None, None, -1)), [5, 4, 3, 2, 1, 0]);
        assert_eq!(copied(slice(None, None, 2), slice(Some(1), None, 2)), [1, 1, 3, 3, 5, 5]);
    }

    #[test]
    fn in_place_copies_want_equal_bytes() {
        let to = Buffer::new(DType::Int16, &[2, 3], &Device::cpu()).unwrap();
        to.inplace_copy_from(&Buffer::from([1i16, 2, 3, 4, 5, 6])).unwrap();
        assert_eq!(to.to_vec::<i16>().unwrap(), [1, 2, 3, 4, 5, 6]);
        let refused = [
            Buffer::from([1i16, 2]),
            Buffer::from([1i32, 2, 3, 4, 5, 6]),
            Buffer::from([0i16; 12]).index(&[slice(None, None, 2)]).unwrap(),
        ];
        for source in refused {
            assert_eq!(to.inplace_copy_from(&source).unwrap_err().kind(), ErrorKind::Value);
        }
        let column = to.index(&[ViewIndex::ALL, ViewIndex::At(0)]).unwrap();
        column.inplace_copy_from(&column.clone()).unwrap();
        let other = to.index(&[ViewIndex::ALL, ViewIndex::At(1)]).unwrap();
        assert_eq!(column.inplace_copy_from(&other).unwrap_err().kind(), ErrorKind::Value);
        assert_eq!(to.to_vec::<i16>().unwrap(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn copies_are_apart_and_moves_are_not() {
        let (cpu, buffer) = (Device::cpu(), Buffer::from([1u8, 2]));
        assert_eq!(buffer.to(&cpu).unwrap().data_ptr(), buffer.data_ptr());
        assert_eq!(buffer.to_stream(&cpu.default_stream()).unwrap().data_ptr(), buffer.data_ptr());
        for copy in [buffer.copy(None), buffer.copy(Some(&cpu)), buffer.copy_to_stream(&cpu.default_stream())]
        {
            let copy = copy.unwrap();
            copy.fill(Number::Int(9)).unwrap();
            assert_ne!(copy.data_ptr(), buffer.data_ptr());
        }
        assert_eq!(buffer.to_vec::<u8>().unwrap(), [1, 2]);
    }

    #[test]
    fn elements_are_read_by_their_type() {
        let pair = Buffer::from([1f32, 2.]);
        let message = "calling `item` on a tensor with 2 items but expected only 1";
        assert_eq!(pair.item().unwrap_err().message(), message);
        assert_eq!(pair.index(&[ViewIndex::At(-1)]).unwrap().item(), Ok(Number::Float(2.)));
        assert_eq!(Buffer::from([max_core::Bool::TRUE]).item(), Ok(Number::Bool(true)));
        assert_eq!(pair.to_vec::<f64>().unwrap_err().kind(), ErrorKind::Type);
    }

    #[test]
    fn host_bytes_share_or_gather() {
        let buffer = Buffer::from([1u16, 2, 3, 4]);
        let tail = buffer.index(&[slice(Some(2), None, 1)]).unwrap().host_bytes().unwrap();
        assert_eq!(tail.as_ptr(), buffer.data_ptr().wrapping_add(4));
        let even = buffer.index(&[slice(None, None, 2)]).unwrap().host_bytes().unwrap();
        drop(buffer);
        assert_eq!(*tail, [3u16.to_ne_bytes(), 4u16.to_ne_bytes()].concat());
        assert_eq!(*even, [1u16.to_ne_bytes(), 3u16.to_ne_bytes()].concat());
    }
}
