//! Exporting our buffers.

use std::ffi::c_void;

use max_core::{Result, bail};

use super::{
    DLManagedTensor, DLManagedTensorVersioned, DLTensor, FLAG_COPIED, FLAG_PADDED, FLAG_READ_ONLY, VERSION,
};
use crate::Buffer;

/// An exported tensor and everything it points to; the deleter frees it as a whole.
struct Exported<M> {
    managed: M,
    _shape: Box<[i64]>,
    _strides: Box<[i64]>,
    _buffer: Buffer,
}

/// A tensor for a consumer of the protocol before version 1, which frees it by its deleter. That version cannot express
/// "read-only" or "padded", so read-only buffers and elements of fewer than eight bits are refused.
pub fn export(buffer: &Buffer) -> Result<*mut DLManagedTensor> {
    if buffer.is_read_only() {
        bail!(
            value,
            "the read-only {buffer:?} can only be exported to consumers of DLPack 1.0 or later, which can be told \
             not to write; export a copy of it"
        );
    }
    if is_padded(buffer) {
        bail!(
            value,
            "{buffer:?} has a byte for each element of {}, which can only be exported to consumers of DLPack 1.1 or \
             later; export a view of it as uint8",
            buffer.dtype()
        );
    }
    leak(buffer, |dl_tensor, manager_ctx| DLManagedTensor { dl_tensor, manager_ctx, deleter: Some(delete) })
}

/// A tensor for a consumer of version 1, which frees it by its deleter. `copied` says that the buffer was copied for
/// this consumer alone.
pub fn export_versioned(buffer: &Buffer, copied: bool) -> Result<*mut DLManagedTensorVersioned> {
    let read_only = if buffer.is_read_only() { FLAG_READ_ONLY } else { 0 };
    let padded = if is_padded(buffer) { FLAG_PADDED } else { 0 };
    let flags = read_only | padded | if copied { FLAG_COPIED } else { 0 };
    leak(buffer, |dl_tensor, manager_ctx| DLManagedTensorVersioned {
        version: VERSION,
        manager_ctx,
        deleter: Some(delete_versioned),
        flags,
        dl_tensor,
    })
}

/// Whether elements have fewer bits than their bytes.
fn is_padded(buffer: &Buffer) -> bool {
    buffer.dtype().size_in_bits() < 8
}

/// Allocates a tensor; `managed` assembles it.
fn leak<M>(buffer: &Buffer, managed: impl FnOnce(DLTensor, *mut c_void) -> M) -> Result<*mut M> {
    let device = buffer.device().try_into()?;
    // Sizes and strides fit: no axis of a buffer spans more than its bytes, whose number fits an isize.
    let mut shape: Box<[i64]> = buffer.shape().iter().map(|&size| size as i64).collect();
    let mut strides: Box<[i64]> = buffer.strides().iter().map(|&stride| stride as i64).collect();
    // On a GPU, the protocol wants a null pointer for a tensor without elements; on the host any address will do.
    let nothing = !buffer.is_host() && buffer.num_elements() == 0;
    let data = if nothing { std::ptr::null() } else { buffer.data_ptr() };
    let tensor = DLTensor {
        data: data.cast_mut().cast(),
        device,
        ndim: buffer.rank() as i32,
        dtype: buffer.dtype().into(),
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let place = Box::into_raw(Box::<Exported<M>>::new_uninit());
    let exported = Exported {
        managed: managed(tensor, place.cast()),
        _shape: shape,
        _strides: strides,
        _buffer: buffer.clone(),
    };
    // SAFETY: the memory was just allocated for this type, and nobody else knows it yet.
    unsafe {
        (*place).write(exported);
        Ok(&raw mut (*place.cast::<Exported<M>>()).managed)
    }
}

unsafe extern "C" fn delete(tensor: *mut DLManagedTensor) {
    // SAFETY: a consumer calls this once, with a tensor from `export`, whose context is what `leak` allocated.
    drop(unsafe { Box::from_raw((*tensor).manager_ctx.cast::<Exported<DLManagedTensor>>()) });
}

unsafe extern "C" fn delete_versioned(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: a consumer calls this once, with a tensor from `export_versioned`, whose context `leak` allocated.
    drop(unsafe { Box::from_raw((*tensor).manager_ctx.cast::<Exported<DLManagedTensorVersioned>>()) });
}
