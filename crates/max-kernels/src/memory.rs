//! The memory that kernels work on: pieces of buffers and constants, and the check that a kernel stays inside.

use max_core::kernel::{Access, Kernel};
use max_core::{DeviceRef, HostBytes, Result, bail};
use max_driver::Buffer;

/// A piece of memory of a device. It does not keep the memory alive: whoever runs a kernel does that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    ptr: *mut u8,
    len: usize,
    writable: bool,
    device: DeviceRef,
}

// SAFETY: a piece is only an address and a length; kernels dereference it, and their callers see to it that the
// memory is alive and that nobody else writes to it meanwhile.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// No memory.
    pub const EMPTY: Memory =
        Memory { ptr: std::ptr::null_mut(), len: 0, writable: false, device: DeviceRef::CPU };

    /// The elements of a contiguous buffer, for reading.
    pub fn of(buffer: &Buffer) -> Result<Memory> {
        if !buffer.is_contiguous() {
            bail!(internal, "a kernel was given {buffer:?}, which is not contiguous");
        }
        let device = buffer.device().device_ref();
        Ok(Memory { ptr: buffer.data_ptr().cast_mut(), len: buffer.num_bytes(), writable: false, device })
    }

    /// The elements of a contiguous buffer, for reading and writing.
    pub fn of_mut(buffer: &Buffer) -> Result<Memory> {
        let ptr = buffer.data_ptr_mut()?;
        Ok(Memory { ptr, writable: true, ..Memory::of(buffer)? })
    }

    /// Bytes of the host, for reading.
    pub fn of_bytes(bytes: &HostBytes) -> Memory {
        let ptr = bytes.as_ptr().cast_mut();
        Memory { ptr, len: bytes.len(), writable: false, device: DeviceRef::CPU }
    }

    /// A part.
    pub fn part(self, offset: usize, len: usize) -> Result<Memory> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(Memory { ptr: self.ptr.wrapping_add(offset), len, ..self }),
            _ => bail!(internal, "{len} bytes at {offset} are not inside {} bytes", self.len),
        }
    }

    /// The address of its first byte.
    pub(crate) fn ptr(self) -> *mut u8 {
        self.ptr
    }

    /// The address behind its last byte.
    pub(crate) fn end(self) -> *const u8 {
        self.ptr.wrapping_add(self.len)
    }
}

/// What a kernel asks of the memory in a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    slot: usize,
    bytes: usize,
    write: bool,
}

impl Extent {
    /// Whether a kernel of the host may run on memory.
    pub(crate) fn check(&self, memory: &[Memory]) -> Result<()> {
        self.check_on(memory, DeviceRef::CPU)
    }

    /// Whether a kernel of a device may run on memory.
    pub(crate) fn check_on(&self, memory: &[Memory], device: DeviceRef) -> Result<()> {
        match memory.get(self.slot) {
            Some(piece)
                if piece.len >= self.bytes
                    && (piece.writable || !self.write)
                    && (piece.device == device || piece.len == 0) =>
            {
                Ok(())
            }
            Some(piece) => bail!(
                internal,
                "a kernel of {device} needs {} bytes in slot {}{}; it was given {} on {}",
                self.bytes,
                self.slot,
                if self.write { " for writing" } else { "" },
                piece.len,
                piece.device
            ),
            None => bail!(internal, "a kernel uses slot {}; it was given {}", self.slot, memory.len()),
        }
    }
}

/// The extents of all accesses of a kernel: every element they name, over the shapes they are walked with.
pub(crate) fn extents(kernel: &Kernel<i64>) -> Result<Vec<Extent>> {
    let mut extents = Vec::new();
    let mut add = |access: &Access<i64>, shape: &[i64], write: bool| -> Result<()> {
        let bytes = span(access, shape)?;
        if bytes > 0 {
            extents.push(Extent { slot: access.slot.0 as usize, bytes, write });
        }
        Ok(())
    };
    let with = |batch: &[i64], last: [i64; 2]| [batch, last.as_slice()].concat();
    match kernel {
        Kernel::Loop(_) => {}
        Kernel::Matmul(k) => {
            add(&k.lhs, &with(&k.batch, [k.m, k.k]), false)?;
            add(&k.rhs, &with(&k.batch, [k.k, k.n]), false)?;
            expect_shape(&k.epilogue.shape, &with(&k.batch, [k.m, k.n]))?;
        }
        Kernel::Attention(k) => {
            add(&k.query, &with(&k.batch, [k.queries, k.depth]), false)?;
            add(&k.key, &with(&k.batch, [k.keys, k.depth]), false)?;
            add(&k.value, &with(&k.batch, [k.keys, k.width]), false)?;
            if let Some(mask) = &k.mask {
                add(mask, &with(&k.batch, [k.queries, k.keys]), false)?;
            }
            expect_shape(&k.epilogue.shape, &with(&k.batch, [k.queries, k.width]))?;
        }
        Kernel::Conv2d(k) => {
            let [height, width, channels] = k.input_size;
            add(&k.input, &[k.out[0], height, width, channels], false)?;
            let groups = k.groups.max(1) as i64;
            add(&k.filter, &[k.filter_size[0], k.filter_size[1], channels / groups, k.out[3]], false)?;
            expect_shape(&k.epilogue.shape, &k.out)?;
        }
        Kernel::Gather(k) => {
            add(&k.source, &[k.outer, k.size, k.inner], false)?;
            add(&k.indices, &[k.picks], false)?;
            add(&k.out, &[k.outer, k.picks, k.inner], true)?;
        }
    }
    if let Some(ending) = kernel.ending() {
        ending.dtypes()?;
        for access in ending.loaded() {
            add(access, &ending.shape, false)?;
        }
        for access in ending.stored() {
            add(access, &ending.shape, true)?;
        }
    }
    Ok(extents)
}

fn expect_shape(shape: &[i64], expected: &[i64]) -> Result<()> {
    if shape != expected {
        bail!(internal, "an epilogue has the shape {shape:?} where {expected:?} is computed");
    }
    Ok(())
}

/// The bytes from the start of a slot to behind the last element that an access names; an error if it names one
/// before the start or beyond what can be counted.
fn span(access: &Access<i64>, shape: &[i64]) -> Result<usize> {
    if shape.len() != access.strides.len() || shape.iter().any(|&size| size < 0) {
        bail!(internal, "an access with {} strides walks the shape {shape:?}", access.strides.len());
    }
    if shape.contains(&0) {
        return Ok(0);
    }
    let (mut low, mut high) = (i128::from(access.offset), i128::from(access.offset));
    for (&size, &stride) in shape.iter().zip(&access.strides) {
        let reach = i128::from(size - 1) * i128::from(stride);
        *(if reach < 0 { &mut low } else { &mut high }) += reach;
    }
    let bytes = (high + 1) * access.dtype.size_in_bytes() as i128;
    match usize::try_from(bytes) {
        Ok(bytes) if low >= 0 && isize::try_from(bytes).is_ok() => Ok(bytes),
        _ => bail!(internal, "an access walks from element {low} to {high}"),
    }
}

#[cfg(test)]
mod tests {
    use max_core::DType;
    use max_core::kernel::Slot;

    use super::*;

    #[test]
    fn spans_cover_every_element() {
        let access = |offset, strides: &[i64]| Access {
            slot: Slot(0),
            dtype: DType::Int16,
            offset,
            strides: strides.to_vec(),
        };
        assert_eq!(span(&access(1, &[4, 1]), &[2, 3]).unwrap(), 16);
        assert_eq!(span(&access(3, &[-1]), &[4]).unwrap(), 8);
        assert!(span(&access(2, &[-1]), &[4]).is_err());
        assert_eq!(span(&access(100, &[1, 1]), &[5, 0]).unwrap(), 0);
        assert!(span(&access(0, &[i64::MAX]), &[i64::MAX]).is_err());
    }

    #[test]
    fn parts_stay_inside() {
        let buffer = Buffer::from([1i32, 2, 3]);
        let memory = Memory::of(&buffer).unwrap();
        assert!(
            memory.part(4, 8).is_ok() && memory.part(8, 8).is_err() && memory.part(usize::MAX, 2).is_err()
        );
        let extent = Extent { slot: 0, bytes: 12, write: true };
        assert!(extent.check(&[memory]).is_err() && extent.check(&[]).is_err());
        assert!(extent.check(&[Memory::of_mut(&buffer).unwrap()]).is_ok());
    }
}
