//! Buffers: typed, strided views of memory on a device.
//!
//! Invariants: every element that the layout names lies inside the memory; the numbers of elements and of bytes fit an
//! `isize`; there are at most [`MAX_RANK`] axes. Views keep these invariants by only ever selecting from what a buffer
//! already names.

mod copy;
mod create;
mod format;
pub(crate) mod strided;
mod transfer;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use max_core::{DType, Error, Result, Strided, ViewIndex, bail};

use crate::cuda::Pinned;
use crate::guard::guard;
use crate::memory::Memory;
use crate::{Access, Device, Stream};

/// The most axes a buffer can have, as in NumPy.
pub(crate) const MAX_RANK: usize = 64;

/// Elements of one dtype in the memory of a device, arranged by shape and strides.
///
/// Clones and views share the memory and keep it alive; see the crate's documentation for who may write.
#[derive(Clone)]
pub struct Buffer {
    dtype: DType,
    /// Shared, because buffers are cloned more often than created.
    layout: Arc<Strided>,
    /// The offset in bytes of the layout's position zero in the memory.
    base: usize,
    memory: Arc<Memory>,
    stream: Stream,
}

impl Buffer {
    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The size of each axis.
    pub fn shape(&self) -> &[usize] {
        &self.layout.shape
    }

    /// The stride of each axis, in elements.
    pub fn strides(&self) -> &[isize] {
        &self.layout.strides
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.layout.shape.len()
    }

    /// The number of elements; one for rank zero.
    pub fn num_elements(&self) -> usize {
        self.layout.num_elements()
    }

    /// The size of one element in bytes.
    pub fn element_size(&self) -> usize {
        self.dtype.size_in_bytes()
    }

    /// The size of all elements in bytes, without gaps.
    pub fn num_bytes(&self) -> usize {
        self.num_elements() * self.element_size()
    }

    /// Whether the elements lie row-major without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// Whether the memory is the host's.
    pub fn is_host(&self) -> bool {
        self.device().is_host()
    }

    /// Whether writing is refused.
    pub fn is_read_only(&self) -> bool {
        self.memory.access() == Access::ReadOnly
    }

    /// Whether the memory is page-locked for transfers to an accelerator.
    pub fn pinned(&self) -> bool {
        self.memory.as_pinned().is_some()
    }

    /// Whether memory is [guarded](crate::guard) and this host memory is not, because another library allocated it.
    pub fn lacks_guard(&self) -> bool {
        guard().is_some() && !self.memory.is_pooled()
    }

    /// The device whose memory it is.
    pub fn device(&self) -> &Device {
        self.stream.device()
    }

    /// The stream in whose order its contents are computed.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The address, on its device, of the element with all indices zero. It need not be aligned for the dtype: mapped
    /// files and views of bytes start anywhere. Waits for pending copies to and from page-locked memory.
    pub fn data_ptr(&self) -> *const u8 {
        // If one of them failed, the next wait for the device reports it.
        let _ = self.memory.as_pinned().map(Pinned::wait);
        self.address()
    }

    /// Like [`data_ptr`](Buffer::data_ptr), for writing; an error for read-only memory.
    pub fn data_ptr_mut(&self) -> Result<*mut u8> {
        if self.is_read_only() {
            bail!(value, "cannot write to the read-only {self:?}; write to a copy of it");
        }
        Ok(self.data_ptr().cast_mut())
    }

    /// The part that an index expression selects: a view of the same memory. The only element of a buffer of rank zero
    /// also has the index 0.
    pub fn index(&self, indices: &[ViewIndex]) -> Result<Buffer> {
        let indices = if self.rank() == 0 && indices == [ViewIndex::At(0)] { &[] } else { indices };
        let layout = self.layout.index(indices)?;
        byte_count(self.dtype, &layout.shape)?;
        Ok(Buffer { layout: layout.into(), ..self.clone() })
    }

    /// The same bytes as elements of another dtype, shape or both: a view of the same memory.
    ///
    /// Without a shape the last axis is rescaled to the new element size.
    pub fn view(&self, dtype: DType, shape: Option<&[usize]>) -> Result<Buffer> {
        if !self.is_contiguous() {
            bail!(
                value,
                "only a contiguous buffer can be viewed as another type; take a contiguous copy of {self:?}"
            );
        }
        let rescaled;
        let shape = match shape {
            Some(shape) => shape,
            None => {
                rescaled = self.rescale(dtype)?;
                &rescaled
            }
        };
        let (bytes, wanted) = (self.num_bytes(), byte_count(dtype, shape)?);
        if bytes != wanted {
            bail!(
                value,
                "{self:?} has {bytes} bytes and cannot be viewed as {dtype} of shape {}, which has {wanted}",
                tuple(shape)
            );
        }
        Ok(Buffer { dtype, layout: Strided::contiguous(shape).into(), base: self.origin(), ..self.clone() })
    }

    /// The shape in which the elements of another dtype fill the same bytes.
    fn rescale(&self, dtype: DType) -> Result<Vec<usize>> {
        let (old, new) = (self.element_size(), dtype.size_in_bytes());
        let mut shape = self.shape().to_vec();
        match shape.last_mut() {
            Some(last) if (*last * old).is_multiple_of(new) => *last = *last * old / new,
            Some(last) => bail!(
                value,
                "{self:?} cannot be viewed as {dtype} without a shape: the {last} elements of {old} bytes in its \
                 last axis do not divide into elements of {new} bytes"
            ),
            None if old == new => {}
            None => bail!(
                value,
                "{self:?} has rank 0 and cannot be viewed as {dtype} without a shape: elements of {old} bytes do \
                 not become elements of {new} bytes"
            ),
        }
        Ok(shape)
    }

    /// The offset in bytes of the element with all indices zero. A layout without elements may start anywhere, so its
    /// offset is ignored.
    fn origin(&self) -> usize {
        let offset = if self.layout.shape.contains(&0) { 0 } else { self.layout.offset };
        self.base + offset * self.element_size()
    }

    /// The address of the element with all indices zero, without waiting for pending copies.
    fn address(&self) -> *const u8 {
        self.memory.ptr().as_ptr().wrapping_add(self.origin())
    }

    /// Whether both are the same elements in the same order.
    fn is_same(&self, other: &Buffer) -> bool {
        let place = |buffer: &Buffer| (Arc::as_ptr(&buffer.memory), buffer.base, buffer.dtype);
        place(self) == place(other) && self.layout == other.layout
    }

    /// The address for reading in host memory, that of a virtual device included, once all pending work on the elements
    /// is done.
    fn host_ptr(&self) -> Result<*const u8> {
        if !self.device().runs_on_host() {
            bail!(runtime, "{self:?} is not in host memory; copy it to the CPU first");
        }
        self.memory.settle()?;
        Ok(self.address())
    }

    /// The addresses from the lowest byte of any element to the end of the highest.
    fn address_range(&self) -> Range<usize> {
        let start = self.memory.ptr().as_ptr() as usize + self.base;
        match self.layout.span() {
            Some((low, high)) => start + low * self.element_size()..start + (high + 1) * self.element_size(),
            None => start..start,
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (label, id) = (self.device().label(), self.device().id());
        write!(f, "max.driver.Buffer(DType.{}, {}, {label}[{id}])", self.dtype, tuple(self.shape()))
    }
}

/// The byte count of contiguous elements, or an error if it overflows or there are too many axes.
fn byte_count(dtype: DType, shape: &[usize]) -> Result<usize> {
    if shape.len() > MAX_RANK {
        bail!(value, "a buffer can have at most {MAX_RANK} axes, not {}", shape.len());
    }
    // Empty axes count as one: the product of the others must not overflow either.
    let bytes = shape.iter().try_fold(dtype.size_in_bytes(), |bytes, &size| bytes.checked_mul(size.max(1)));
    match bytes.filter(|&bytes| isize::try_from(bytes).is_ok()) {
        Some(_) if shape.contains(&0) => Ok(0),
        Some(bytes) => Ok(bytes),
        None => Err(Error::value(format!(
            "the byte count of {dtype} elements of shape {} overflows",
            tuple(shape)
        ))),
    }
}

/// A shape as Python writes a tuple.
fn tuple(shape: &[usize]) -> String {
    match shape {
        [one] => format!("({one},)"),
        _ => format!("({})", shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use max_core::ErrorKind;

    fn matrix() -> Buffer {
        Buffer::from_slice(&[0i32, 1, 2, 3, 4, 5], &[2, 3]).unwrap()
    }

    fn slice(start: Option<i64>, stop: Option<i64>, step: i64) -> ViewIndex {
        ViewIndex::Slice { start, stop, step }
    }

    #[test]
    fn buffers_go_between_threads() {
        let buffer = matrix();
        let sum = std::thread::scope(|scope| {
            let threads = [0, 1].map(|row| {
                let row = buffer.index(&[ViewIndex::At(row)]).unwrap();
                scope.spawn(move || row.to_vec::<i32>().unwrap().iter().sum::<i32>())
            });
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(sum, [3, 12]);
    }

    #[test]
    fn properties() {
        let buffer = matrix();
        assert_eq!(
            (buffer.dtype(), buffer.shape(), buffer.strides()),
            (DType::Int32, &[2, 3][..], &[3, 1][..])
        );
        assert_eq!((buffer.rank(), buffer.num_elements(), buffer.num_bytes()), (2, 6, 24));
        assert!(buffer.is_contiguous() && buffer.is_host() && !buffer.is_read_only() && !buffer.pinned());
        assert_eq!((buffer.device(), buffer.stream().device()), (&Device::cpu(), &Device::cpu()));
        assert_eq!(format!("{buffer:?}"), "max.driver.Buffer(DType.int32, (2, 3), cpu[0])");
        let vector = buffer.index(&[ViewIndex::At(0)]).unwrap();
        assert_eq!(format!("{vector:?}"), "max.driver.Buffer(DType.int32, (3,), cpu[0])");
    }

    #[test]
    fn views_select_and_share() {
        let buffer = matrix();
        let column = buffer.index(&[ViewIndex::Ellipsis, ViewIndex::At(-1)]).unwrap();
        assert_eq!(column.to_vec::<i32>().unwrap(), [2, 5]);
        let backwards = buffer.index(&[slice(None, None, -1), slice(None, None, -2)]).unwrap();
        assert_eq!(backwards.to_vec::<i32>().unwrap(), [5, 3, 2, 0]);
        assert!(!backwards.is_contiguous());
        column.fill(max_core::Number::Int(9)).unwrap();
        assert_eq!(buffer.to_vec::<i32>().unwrap(), [0, 1, 9, 3, 4, 9]);
        drop(buffer);
        assert_eq!(backwards.to_vec::<i32>().unwrap(), [9, 3, 9, 0]);
        assert_eq!(backwards.index(&[ViewIndex::At(2)]).unwrap_err().kind(), ErrorKind::Index);
        assert_eq!(backwards.index(&[ViewIndex::At(0); 3]).unwrap_err().kind(), ErrorKind::Value);
        assert_eq!(backwards.index(&[ViewIndex::NewAxis; 70]).unwrap_err().kind(), ErrorKind::Value);
    }

    #[test]
    fn the_element_of_a_scalar_has_the_index_zero() {
        let scalar = Buffer::scalar(max_core::Number::Int(5), DType::Int32, &Device::cpu()).unwrap();
        scalar.index(&[ViewIndex::At(0)]).unwrap().fill(max_core::Number::Int(8)).unwrap();
        assert_eq!(scalar.item(), Ok(max_core::Number::Int(8)));
        for indices in [&[ViewIndex::At(1)][..], &[ViewIndex::At(-1)], &[ViewIndex::At(0); 2]] {
            assert_eq!(scalar.index(indices).unwrap_err().kind(), ErrorKind::Value);
        }
    }

    #[test]
    fn bytes_are_viewed_anew() {
        let buffer = matrix();
        let bytes = buffer.view(DType::UInt8, None).unwrap();
        assert_eq!(bytes.shape(), [2, 12]);
        assert_eq!(bytes.view(DType::Int32, None).unwrap().to_vec::<i32>().unwrap(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(buffer.view(DType::Int16, Some(&[3, 4])).unwrap().shape(), [3, 4]);
        assert_eq!(buffer.view(DType::Float32, Some(&[6])).unwrap().data_ptr(), buffer.data_ptr());

        // A wider type may start at any byte.
        let flat = bytes.view(DType::UInt8, Some(&[24])).unwrap();
        let odd = flat.index(&[slice(Some(3), Some(11), 1)]).unwrap().view(DType::UInt32, None).unwrap();
        assert_eq!(odd.to_vec::<u32>().unwrap(), [0x100, 0x200].map(u32::to_le));

        let value = |result: Result<Buffer>| assert_eq!(result.unwrap_err().kind(), ErrorKind::Value);
        value(buffer.view(DType::Int64, None));
        value(buffer.view(DType::Int32, Some(&[7])));
        value(buffer.view(DType::Int32, Some(&[usize::MAX, 8])));
        value(buffer.index(&[ViewIndex::ALL, slice(None, None, 2)]).unwrap().view(DType::UInt8, None));
        let scalar = buffer.index(&[ViewIndex::At(1), ViewIndex::At(0)]).unwrap();
        assert_eq!(scalar.view(DType::UInt32, None).unwrap().to_vec::<u32>().unwrap(), [3]);
        assert_eq!(scalar.view(DType::UInt16, Some(&[2])).unwrap().shape(), [2]);
        value(scalar.view(DType::UInt8, None));
    }

    #[test]
    fn views_of_nothing_stay_in_bounds() {
        let cpu = Device::cpu();
        let empty = Buffer::new(DType::Float32, &[4, 0], &cpu).unwrap();
        let row = empty.index(&[ViewIndex::At(3)]).unwrap();
        assert_eq!((row.shape(), row.to_vec::<f32>().unwrap()), (&[0][..], vec![]));
        row.fill(max_core::Number::Int(1)).unwrap();
        assert_eq!(row.host_bytes().unwrap().len(), 0);
        assert!(row.copy(None).is_ok() && row.view(DType::Int8, None).is_ok());
        assert_eq!(row.data_ptr(), empty.data_ptr());
        assert!(Buffer::new(DType::Int8, &[usize::MAX, usize::MAX, 0], &cpu).is_err());
        let wide = Buffer::new(DType::Int8, &[0, isize::MAX as usize], &cpu).unwrap();
        assert_eq!(wide.view(DType::Int64, None).unwrap_err().kind(), ErrorKind::Value);
    }
}
