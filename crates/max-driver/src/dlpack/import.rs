//! Importing buffers of other libraries.

use std::ptr::NonNull;

use max_core::{DType, Error, Result, bail};

use super::{DLManagedTensor, DLManagedTensorVersioned, DLTensor, FLAG_PADDED, FLAG_READ_ONLY, VERSION};
use crate::buffer::MAX_RANK;
use crate::{Access, Buffer, Device};

/// A tensor of the protocol before version 1 as a buffer, without a copy. The tensor is consumed even if it is refused.
/// A tensor on a GPU is used in the order of the default stream of its device, for which the producer has to make it
/// ready.
///
/// # Safety
///
/// The pointer is null, or points to a tensor that a producer made according to the protocol, that nobody else has
/// consumed, and whose deleter may be called from any thread.
pub unsafe fn import(tensor: *mut DLManagedTensor) -> Result<Buffer> {
    // SAFETY: as the caller promises.
    let owner = unsafe { Consumed::new(tensor) }?;
    // SAFETY: the owner keeps the tensor.
    let tensor = unsafe { owner.0.as_ref() }.dl_tensor;
    // SAFETY: as the caller promises.
    unsafe { adopt(tensor, 0, owner) }
}

/// A tensor of version 1 as a buffer, without a copy; read-only if the producer says so. The tensor is consumed even if
/// it is refused.
///
/// # Safety
///
/// As for [`import`].
pub unsafe fn import_versioned(tensor: *mut DLManagedTensorVersioned) -> Result<Buffer> {
    // SAFETY: as the caller promises.
    let owner = unsafe { Consumed::new(tensor) }?;
    // SAFETY: the owner keeps the tensor. Up to the deleter its fields mean the same in all versions.
    let version = unsafe { (*owner.0.as_ptr()).version };
    if version.major != VERSION.major {
        let (major, minor) = (version.major, version.minor);
        bail!(value, "a tensor of DLPack version {major}.{minor} cannot be read; versions 1.x can");
    }
    // SAFETY: the owner keeps the tensor, and its version is known.
    let managed = unsafe { owner.0.as_ref() };
    let (tensor, flags) = (managed.dl_tensor, managed.flags);
    // SAFETY: as the caller promises.
    unsafe { adopt(tensor, flags, owner) }
}

/// Makes a buffer over a tensor after checking everything it states.
///
/// # Safety
///
/// The tensor follows the protocol, and its memory, shape and strides are alive until the owner is dropped.
unsafe fn adopt<M: Managed>(tensor: DLTensor, flags: u64, owner: Consumed<M>) -> Result<Buffer> {
    let access = if flags & FLAG_READ_ONLY == 0 { Access::ReadWrite } else { Access::ReadOnly };
    let device = Device::try_from(tensor.device)?;
    let dtype = DType::try_from(tensor.dtype)?;
    if dtype.size_in_bits() < 8 && flags & FLAG_PADDED == 0 {
        bail!(
            value,
            "a DLPack tensor of packed {dtype} cannot be imported: elements have a byte each here; export its bytes \
             as uint8"
        );
    }
    let rank = usize::try_from(tensor.ndim).ok().filter(|&rank| rank <= MAX_RANK);
    let Some(rank) = rank else {
        bail!(value, "a DLPack tensor with {} axes cannot be imported", tensor.ndim);
    };
    // SAFETY: the producer made the array with one number per axis.
    let shape = unsafe { numbers(tensor.shape, rank) };
    let Some(shape) = shape else {
        bail!(value, "a DLPack tensor with {rank} axes has no shape");
    };
    let sizes = shape.iter().map(|&size| usize::try_from(size)).collect::<Result<Vec<_>, _>>();
    let sizes = sizes.map_err(|_| Error::value(format!("a DLPack tensor has a negative size: {shape:?}")))?;
    // SAFETY: as above; a null pointer stands for row-major without gaps.
    let strides = unsafe { numbers(tensor.strides, rank) };
    let strides = strides.map(|strides| strides.iter().map(|&stride| stride as isize).collect::<Vec<_>>());
    let offset = usize::try_from(tensor.byte_offset).map_err(|_| {
        Error::value(format!("the byte offset {} of a DLPack tensor overflows", tensor.byte_offset))
    })?;
    if tensor.data.is_null() && !sizes.contains(&0) {
        bail!(value, "a DLPack tensor of shape {shape:?} has no data");
    }
    let data = tensor.data.cast::<u8>().wrapping_add(offset);
    // SAFETY: the producer vouches for the elements until its deleter is called, which the owner does.
    unsafe { Buffer::from_raw(data, dtype, &sizes, strides.as_deref(), &device, access, Box::new(owner)) }
}

/// The numbers of an array that may be absent; a count of zero needs no memory.
///
/// # Safety
///
/// The pointer is null or has `count` numbers, which stay alive and unchanged while they are borrowed.
unsafe fn numbers<'a>(array: *const i64, count: usize) -> Option<&'a [i64]> {
    match array {
        _ if count == 0 => Some(&[]),
        array if array.is_null() => None,
        // SAFETY: as the caller promises.
        array => Some(unsafe { std::slice::from_raw_parts(array, count) }),
    }
}

/// A tensor that is ours to delete.
struct Consumed<M: Managed>(NonNull<M>);

impl<M: Managed> Consumed<M> {
    /// # Safety
    ///
    /// As for [`import`].
    unsafe fn new(tensor: *mut M) -> Result<Consumed<M>> {
        NonNull::new(tensor)
            .map(Consumed)
            .ok_or_else(|| Error::value("a null pointer is not a DLPack tensor"))
    }
}

impl<M: Managed> Drop for Consumed<M> {
    fn drop(&mut self) {
        // SAFETY: nobody else has consumed the tensor, and nothing uses it any more.
        unsafe { M::delete(self.0) }
    }
}

// SAFETY: once imported the structure is only passed to its deleter, which may be called from any thread.
unsafe impl<M: Managed> Send for Consumed<M> {}
// SAFETY: as above; a shared reference gives access to nothing.
unsafe impl<M: Managed> Sync for Consumed<M> {}

/// A structure that has a deleter.
trait Managed: 'static {
    /// Calls the deleter, if there is one.
    ///
    /// # Safety
    ///
    /// The structure is alive and not used afterwards.
    unsafe fn delete(this: NonNull<Self>);
}

macro_rules! managed {
    ($($type:ty),*) => {$(
        impl Managed for $type {
            unsafe fn delete(this: NonNull<Self>) {
                // SAFETY: the structure is alive.
                if let Some(deleter) = unsafe { (*this.as_ptr()).deleter } {
                    // SAFETY: the structure's own deleter, called once.
                    unsafe { deleter(this.as_ptr()) }
                }
            }
        }
    )*};
}

managed!(DLManagedTensor, DLManagedTensorVersioned);

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;
    use max_core::{ErrorKind, HostBytes, Number, ViewIndex};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A producer's tensor over six floats that counts its deletions.
    struct Producer {
        tensor: DLManagedTensorVersioned,
        shape: [i64; 2],
        strides: [i64; 2],
        data: [f32; 6],
        deleted: Arc<AtomicUsize>,
    }

    unsafe extern "C" fn delete(tensor: *mut DLManagedTensorVersioned) {
        // SAFETY: the context is the box that `produce` leaked, and this is called once (the count would show
        // otherwise).
        let producer = unsafe { Box::from_raw((*tensor).manager_ctx.cast::<Producer>()) };
        producer.deleted.fetch_add(1, Ordering::SeqCst);
    }

    /// Imports a tensor after an edit, and returns the result and the number of deletions.
    fn produce(edit: impl FnOnce(&mut Producer)) -> (Result<Buffer>, Arc<AtomicUsize>) {
        let deleted = Arc::new(AtomicUsize::new(0));
        let dl_tensor = DLTensor {
            data: std::ptr::null_mut(),
            device: (&Device::cpu()).try_into().unwrap(),
            ndim: 2,
            dtype: DType::Float32.into(),
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        let manager_ctx = std::ptr::null_mut();
        let tensor = DLManagedTensorVersioned {
            version: VERSION,
            manager_ctx,
            deleter: Some(delete),
            flags: 0,
            dl_tensor,
        };
        let data = [0., 1., 2., 3., 4., 5.];
        let producer = Producer { tensor, shape: [2, 3], strides: [3, 1], data, deleted: deleted.clone() };
        let producer = Box::into_raw(Box::new(producer));
        // SAFETY: the box is alive until the deleter takes it back.
        unsafe {
            let p = &mut *producer;
            p.tensor.manager_ctx = producer.cast();
            p.tensor.dl_tensor.data = p.data.as_mut_ptr().cast();
            p.tensor.dl_tensor.shape = p.shape.as_mut_ptr();
            p.tensor.dl_tensor.strides = p.strides.as_mut_ptr();
            edit(p);
            (import_versioned(&raw mut (*producer).tensor), deleted)
        }
    }

    #[test]
    fn the_deleter_is_called_once_with_the_last_view() {
        let (buffer, deleted) = produce(|_| ());
        let row = buffer.unwrap().index(&[ViewIndex::At(1)]).unwrap();
        assert_eq!((row.to_vec::<f32>().unwrap(), row.is_read_only()), (vec![3., 4., 5.], false));
        assert_eq!(deleted.load(Ordering::SeqCst), 0);
        drop(row);
        assert_eq!(deleted.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn what_a_producer_says_is_honoured() {
        let (buffer, _) = produce(|p| {
            p.tensor.dl_tensor.dtype = DType::Float4E2M1FN.into();
            p.tensor.flags = FLAG_PADDED;
        });
        assert_eq!(buffer.unwrap().dtype(), DType::Float4E2M1FN);
        let (buffer, _) = produce(|p| p.tensor.flags = FLAG_READ_ONLY);
        assert_eq!(buffer.unwrap().fill(Number::Int(1)).unwrap_err().kind(), ErrorKind::Value);
        let (buffer, _) = produce(|p| {
            p.tensor.dl_tensor.strides = std::ptr::null_mut();
            p.tensor.dl_tensor.byte_offset = 8;
            p.shape = [2, 2];
        });
        assert_eq!(buffer.unwrap().to_vec::<f32>().unwrap(), [2., 3., 4., 5.]);
        let (buffer, _) = produce(|p| p.tensor.dl_tensor.device.device_type = CUDA_HOST);
        assert!(buffer.unwrap().is_host());
        let (buffer, _) = produce(|p| p.tensor.dl_tensor.ndim = 0);
        assert_eq!(buffer.unwrap().item(), Ok(Number::Float(0.)));
        let (buffer, _) = produce(|p| {
            p.shape = [0, 3];
            p.tensor.dl_tensor.data = std::ptr::null_mut();
        });
        assert_eq!(buffer.unwrap().shape(), [0, 3]);
    }

    #[test]
    fn bad_tensors_are_refused_and_deleted() {
        let refused = |edit: &dyn Fn(&mut Producer), words: &str| {
            let (buffer, deleted) = produce(|p| edit(p));
            let error = buffer.unwrap_err();
            assert!(error.message().contains(words), "{error}");
            assert_eq!(deleted.load(Ordering::SeqCst), 1);
        };
        refused(&|p| p.tensor.dl_tensor.dtype = DType::Float4E2M1FN.into(), "packed float4_e2m1fn");
        refused(&|p| p.tensor.version.major = 2, "version 2.1");
        refused(&|p| p.tensor.dl_tensor.device = DLDevice { device_type: 2, device_id: 300 }, "CUDA:300");
        refused(&|p| p.tensor.dl_tensor.device = DLDevice { device_type: 2, device_id: -1 }, "CUDA:-1");
        refused(&|p| p.tensor.dl_tensor.device = DLDevice { device_type: 10, device_id: 0 }, "ROCM:0");
        refused(&|p| p.tensor.dl_tensor.dtype.lanes = 4, "4 lanes");
        refused(&|p| p.tensor.dl_tensor.ndim = -1, "-1 axes");
        refused(&|p| p.tensor.dl_tensor.ndim = i32::MAX, "axes");
        refused(&|p| p.tensor.dl_tensor.shape = std::ptr::null_mut(), "no shape");
        refused(&|p| p.tensor.dl_tensor.data = std::ptr::null_mut(), "no data");
        refused(&|p| p.shape[0] = -1, "negative");
        refused(&|p| p.shape = [i64::MAX, i64::MAX], "overflows");
        refused(&|p| (p.shape, p.strides) = ([4, 1 << 62], [1 << 62, 1]), "overflows");
        // SAFETY: null is allowed.
        assert!(unsafe { import(std::ptr::null_mut()) }.is_err());
    }

    #[test]
    fn buffers_go_out_and_come_back() {
        for &dtype in DType::ALL {
            let buffer = Buffer::new(dtype, &[2, 3], &Device::cpu()).unwrap();
            let again = match dtype.size_in_bits() < 8 {
                // SAFETY: a fresh tensor, consumed once.
                true => unsafe { import_versioned(export_versioned(&buffer, false).unwrap()) },
                // SAFETY: as above.
                false => unsafe { import(export(&buffer).unwrap()) },
            };
            let again = again.unwrap();
            // SAFETY: as above.
            let versioned = unsafe { import_versioned(export_versioned(&buffer, true).unwrap()) }.unwrap();
            let ptr = buffer.data_ptr();
            drop(buffer);
            again.fill(Number::Int(1)).unwrap();
            assert_eq!(
                (versioned.dtype(), versioned.shape(), versioned.data_ptr()),
                (dtype, &[2, 3][..], ptr)
            );
            assert_eq!(versioned.host_bytes().unwrap(), again.host_bytes().unwrap());
        }
    }

    #[test]
    fn exports_keep_their_buffer_and_say_read_only() {
        let counted = Arc::new(vec![1u8, 2, 3]);
        struct Bytes(Arc<Vec<u8>>);
        impl AsRef<[u8]> for Bytes {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        let bytes = HostBytes::new(Bytes(counted.clone()));
        let buffer = Buffer::from_host_bytes(bytes, DType::UInt8, &[3]).unwrap();
        assert_eq!(export(&buffer).unwrap_err().kind(), ErrorKind::Value);
        let tensor = export_versioned(&buffer, false).unwrap();
        drop(buffer);
        assert_eq!(Arc::strong_count(&counted), 2);
        // SAFETY: alive until it is consumed, once.
        let again = unsafe {
            assert_eq!((*tensor).flags, FLAG_READ_ONLY);
            import_versioned(tensor)
        };
        assert!(again.as_ref().unwrap().is_read_only());
        drop(again);
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn small_elements_have_a_byte_each() {
        let small = Buffer::zeros(DType::Float6E3M2FN, &[3], &Device::cpu()).unwrap();
        assert!(export(&small).unwrap_err().message().contains("a byte for each element of float6_e3m2fn"));
        let tensor = export_versioned(&small, false).unwrap();
        // SAFETY: alive until it is consumed, once.
        let again = unsafe {
            assert_eq!((*tensor).flags, FLAG_PADDED);
            import_versioned(tensor)
        };
        assert_eq!(
            (again.as_ref().unwrap().dtype(), again.as_ref().unwrap().shape()),
            (DType::Float6E3M2FN, &[3][..])
        );
    }

    #[test]
    fn strided_views_keep_their_strides() {
        let buffer = Buffer::from([0i32, 1, 2, 3]);
        let odd = buffer.index(&[ViewIndex::Slice { start: None, stop: None, step: -2 }]).unwrap();
        let tensor = export(&odd).unwrap();
        // SAFETY: alive until it is consumed, once.
        let again = unsafe {
            assert_eq!((*(*tensor).dl_tensor.strides, *(*tensor).dl_tensor.shape), (-2, 2));
            import(tensor)
        };
        let again = again.unwrap();
        assert_eq!((again.strides(), again.to_vec::<i32>().unwrap()), (&[-2][..], vec![3, 1]));
    }
}
