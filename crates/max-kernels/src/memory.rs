//! The memory that kernels work on: pieces of buffers and constants, and the check that a kernel stays inside them
//! and overwrites nothing that it still reads.

use std::collections::BTreeMap;

use max_core::kernel::{Ending, Kernel, Role, Walk};
use max_core::{DType, DeviceRef, HostBytes, Result, ViewIndex, bail};
use max_driver::Buffer;

use crate::Constant;
use crate::loops::settle;

/// A piece of device memory, borrowed from its owner.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    ptr: *mut u8,
    len: usize,
    writable: bool,
    device: DeviceRef,
    /// What it is, if that never changes.
    constant: Option<&'a Constant>,
    owner: Owner<'a>,
}

/// What a piece of memory is a part of.
#[derive(Clone, Copy, Debug)]
enum Owner<'a> {
    Nothing,
    Buffer(&'a Buffer),
    Bytes(&'a HostBytes),
}

// SAFETY: the memory is alive while it is borrowed, and may be used from any thread; buffers are shared mutable memory,
// and whoever runs kernels makes sure that nobody else writes to it meanwhile.
unsafe impl Send for Memory<'_> {}
// SAFETY: as above.
unsafe impl Sync for Memory<'_> {}

impl<'a> Memory<'a> {
    /// No memory.
    pub const EMPTY: Memory<'static> = Memory {
        ptr: std::ptr::null_mut(),
        len: 0,
        writable: false,
        device: DeviceRef::CPU,
        constant: None,
        owner: Owner::Nothing,
    };

    /// The elements of a contiguous buffer, for reading.
    pub fn of(buffer: &'a Buffer) -> Result<Memory<'a>> {
        if !buffer.is_contiguous() {
            bail!(internal, "a kernel was given {buffer:?}, which is not contiguous");
        }
        let device = buffer.device().device_ref();
        let ptr = buffer.data_ptr().cast_mut();
        Ok(Memory { ptr, len: buffer.num_bytes(), device, owner: Owner::Buffer(buffer), ..Memory::EMPTY })
    }

    /// The elements of a contiguous buffer, for reading and writing.
    pub fn of_mut(buffer: &'a Buffer) -> Result<Memory<'a>> {
        let ptr = buffer.data_ptr_mut()?;
        Ok(Memory { ptr, writable: true, ..Memory::of(buffer)? })
    }

    /// Host bytes, for reading.
    pub fn of_bytes(bytes: &'a HostBytes) -> Memory<'a> {
        let ptr = bytes.as_ptr().cast_mut();
        Memory { ptr, len: bytes.len(), owner: Owner::Bytes(bytes), ..Memory::EMPTY }
    }

    /// The bytes of a constant, of which kernels may keep packed copies.
    pub fn of_constant(constant: &'a Constant) -> Memory<'a> {
        Memory { constant: Some(constant), ..Memory::of_bytes(constant.bytes()) }
    }

    /// A part.
    pub fn part(self, offset: usize, len: usize) -> Result<Memory<'a>> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                Ok(Memory { ptr: self.ptr.wrapping_add(offset), len, constant: None, ..self })
            }
            _ => bail!(internal, "{len} bytes at {offset} are not inside {} bytes", self.len),
        }
    }

    /// Its elements as a buffer, which shares it and keeps it alive.
    pub fn buffer(self, dtype: DType, shape: &[usize]) -> Result<Buffer> {
        let bytes = shape.iter().product::<usize>() * dtype.size_in_bytes();
        if bytes > self.len {
            bail!(internal, "{bytes} bytes are not inside {}", self.len);
        }
        match self.owner {
            Owner::Buffer(owner) => {
                let start = self.ptr.addr() - owner.data_ptr().addr();
                let whole = owner.view(DType::UInt8, Some(&[owner.num_bytes()]))?;
                let (start, stop) = (Some(start as i64), Some((start + bytes) as i64));
                whole.index(&[ViewIndex::Slice { start, stop, step: 1 }])?.view(dtype, Some(shape))
            }
            Owner::Bytes(owner) => {
                let part = owner.slice(self.ptr.addr() - owner.as_ptr().addr(), bytes);
                match part {
                    Some(part) => Buffer::from_host_bytes(part, dtype, shape),
                    None => bail!(internal, "{bytes} bytes are not inside {}", owner.len()),
                }
            }
            Owner::Nothing => bail!(internal, "there is no memory for {dtype} {shape:?}"),
        }
    }

    /// Its first byte, if it is host memory.
    pub fn first_byte(self) -> Result<u8> {
        if self.len == 0 || !self.device.is_cpu() {
            bail!(internal, "there is no byte on the host in {self:?}");
        }
        // SAFETY: the memory is borrowed, and has at least one byte.
        Ok(unsafe { self.ptr.read() })
    }

    /// What is left after some bytes.
    pub(crate) fn after(self, bytes: usize) -> Result<Memory<'a>> {
        match self.len.checked_sub(bytes) {
            Some(left) => self.part(bytes, left),
            None => bail!(internal, "there are no {bytes} bytes in {}", self.len),
        }
    }

    /// The constant it is, if it never changes.
    pub(crate) fn constant(self) -> Option<&'a Constant> {
        self.constant
    }

    /// The buffer that it is a part of.
    pub(crate) fn owner(self) -> Option<&'a Buffer> {
        match self.owner {
            Owner::Buffer(owner) => Some(owner),
            Owner::Bytes(_) | Owner::Nothing => None,
        }
    }

    /// Whether it may be written.
    pub(crate) fn is_writable(self) -> bool {
        self.writable
    }

    /// The address of its first byte.
    pub(crate) fn ptr(self) -> *mut u8 {
        self.ptr
    }

    /// The address after its last byte.
    pub(crate) fn end(self) -> *const u8 {
        self.ptr.wrapping_add(self.len)
    }
}

/// What a kernel requires of the memory in its slots.
#[derive(Debug)]
pub(crate) struct Extents {
    device: DeviceRef,
    /// One per slot.
    slots: Vec<Extent>,
}

/// What a kernel requires of the memory in a slot.
#[derive(Clone, Copy, Debug)]
struct Extent {
    slot: usize,
    bytes: usize,
    write: bool,
    /// The number of the only way in which the kernel's loop walks the slot; `None` if there are several. Memory may be
    /// written through one slot and read through another if both are walked in the same way.
    walk: Option<u32>,
}

/// Up to this many slots are compared pairwise; more are sorted first.
const FEW: usize = 16;

impl Extents {
    /// What a function requires that reads whole pieces of memory, one per slot, and writes some: their sizes in bytes, and
    /// whether each is written.
    pub(crate) fn of_whole(device: DeviceRef, pieces: &[(usize, bool)]) -> Extents {
        let pieces = pieces.iter().enumerate().filter(|(_, (bytes, _))| *bytes > 0);
        let slots = pieces.map(|(slot, &(bytes, write))| Extent { slot, bytes, write, walk: None });
        Extents { device, slots: slots.collect() }
    }

    /// Whether the kernel may run on this memory: it is large enough and on the right device, and what is written
    /// overlaps nothing else, except what is read element by element where it is written.
    pub(crate) fn check(&self, memory: &[Memory]) -> Result<()> {
        self.slots.iter().try_for_each(|extent| extent.check(memory, self.device))?;
        if self.slots.len() > FEW {
            return self.check_sorted(memory);
        }
        for (at, a) in self.slots.iter().enumerate() {
            self.slots[..at].iter().try_for_each(|b| a.check_overlap(b, memory))?;
        }
        Ok(())
    }

    /// As [`Extents::check`], for any number of slots: only neighbours in memory are compared.
    fn check_sorted(&self, memory: &[Memory]) -> Result<()> {
        let mut slots: Vec<&Extent> = self.slots.iter().collect();
        slots.sort_unstable_by_key(|extent| extent.range(memory));
        // Those that extend beyond the start of the next one: written, and only read.
        let mut open: [Vec<&Extent>; 2] = [Vec::new(), Vec::new()];
        for extent in slots {
            let (start, _) = extent.range(memory);
            open.iter_mut().for_each(|open| open.retain(|other| other.range(memory).1 > start));
            let [written, read] = &open;
            written.iter().try_for_each(|other| extent.check_overlap(other, memory))?;
            if extent.write {
                read.iter().try_for_each(|other| extent.check_overlap(other, memory))?;
            }
            open[usize::from(!extent.write)].push(extent);
        }
        Ok(())
    }
}

impl Extent {
    fn check(&self, memory: &[Memory], device: DeviceRef) -> Result<()> {
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

    /// The addresses used of memory that was checked.
    fn range(&self, memory: &[Memory]) -> (usize, usize) {
        let start = memory[self.slot].ptr.addr();
        (start, start + self.bytes)
    }

    fn check_overlap(&self, other: &Extent, memory: &[Memory]) -> Result<()> {
        let [(start, end), (from, to)] = [self, other].map(|extent| extent.range(memory));
        let apart = end <= from || to <= start;
        let in_step = start == from && self.walk.is_some() && self.walk == other.walk;
        if apart || !self.write && !other.write || in_step && !(self.write && other.write) {
            return Ok(());
        }
        let (written, other) = if self.write { (self.slot, other.slot) } else { (other.slot, self.slot) };
        bail!(internal, "a kernel writes slot {written}, whose memory overlaps that of slot {other}")
    }
}

/// What a kernel requires of its memory: every element that its accesses name, over the shapes they are walked with.
pub(crate) fn extents(kernel: &Kernel<i64>, device: DeviceRef) -> Result<Extents> {
    // An empty row has a result too.
    let settled;
    let kernel = match kernel {
        Kernel::Loop(k) => {
            settled = Kernel::Loop(settle(k.clone()));
            &settled
        }
        kernel => kernel,
    };
    for Ending { run, space } in kernel.endings() {
        run.dtypes()?;
        if !run.shape.iter().eq(space.iter().copied()) {
            bail!(internal, "an epilogue has the shape {:?} where {space:?} is computed", run.shape);
        }
    }
    let mut slots: BTreeMap<usize, Extent> = BTreeMap::new();
    // Accesses of one final loop that name the same bytes at every index walk memory in the same way.
    let mut ways = BTreeMap::new();
    for walk in kernel.walks() {
        let access = walk.access;
        let (slot, bytes, write) = (access.slot.0 as usize, span(&walk)?, walk.role.writes());
        if bytes == 0 {
            continue;
        }
        let way = matches!(walk.role, Role::Load | Role::Store).then(|| {
            let (number, element) = (ways.len() as u32, access.dtype.size_in_bytes());
            *ways.entry((walk.ending, element, access.offset, &access.strides)).or_insert(number)
        });
        let known = slots.entry(slot).or_insert(Extent { slot, bytes, write, walk: way });
        if known.write != write && (way.is_none() || known.walk != way) {
            bail!(internal, "a kernel reads slot {slot} in a different way than it writes it");
        }
        known.walk = known.walk.filter(|known| Some(*known) == way);
        (known.bytes, known.write) = (known.bytes.max(bytes), known.write || write);
    }
    Ok(Extents { device, slots: slots.into_values().collect() })
}

/// The bytes from the start of a slot to the end of the last element that an access names; an error if it names one
/// before the start or if the count overflows.
fn span(walk: &Walk<'_, i64>) -> Result<usize> {
    let (access, shape) = (walk.access, &walk.shape);
    if shape.len() != access.strides.len() || shape.iter().any(|&&size| size < 0) {
        bail!(internal, "an access with {} strides walks the shape {shape:?}", access.strides.len());
    }
    if shape.iter().any(|&&size| size == 0) {
        return Ok(0);
    }
    let (mut low, mut high) = (i128::from(access.offset), i128::from(access.offset));
    for (&&size, &stride) in shape.iter().zip(&access.strides) {
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
    use max_core::kernel::{Access, Instr, Loop, Reg, Slot};
    use max_core::scalar::NumericOp;

    use super::*;

    #[test]
    fn spans_cover_every_element() {
        let span = |offset, strides: &[i64], shape: &[i64]| {
            let (slot, dtype) = (Slot(0), DType::Int16);
            let access = &Access { slot, dtype, offset, strides: strides.to_vec() };
            span(&Walk { role: Role::Operand, access, shape: shape.iter().collect(), ending: 0 })
        };
        assert_eq!(span(1, &[4, 1], &[2, 3]).unwrap(), 16);
        assert_eq!(span(3, &[-1], &[4]).unwrap(), 8);
        assert!(span(2, &[-1], &[4]).is_err());
        assert_eq!(span(100, &[1, 1], &[5, 0]).unwrap(), 0);
        assert!(span(0, &[i64::MAX], &[i64::MAX]).is_err());
    }

    #[test]
    fn parts_stay_inside() {
        let buffer = Buffer::from([1i32, 2, 3]);
        let memory = Memory::of(&buffer).unwrap();
        assert!(
            memory.part(4, 8).is_ok() && memory.part(8, 8).is_err() && memory.part(usize::MAX, 2).is_err()
        );
        let extent = Extent { slot: 0, bytes: 12, write: true, walk: None };
        let check = |memory: &[Memory]| extent.check(memory, DeviceRef::CPU);
        assert!(check(&[memory]).is_err() && check(&[]).is_err());
        assert!(check(&[Memory::of_mut(&buffer).unwrap()]).is_ok());
    }

    /// `out[i] = -in[i + shift]`.
    fn negate(shift: i64) -> Kernel<i64> {
        let access =
            |slot, offset| Access { slot: Slot(slot), dtype: DType::Int32, offset, strides: vec![1] };
        Kernel::Loop(Loop {
            shape: vec![4],
            reduce: None,
            accesses: vec![access(0, shift), access(1, 0)],
            code: vec![
                Instr::Load(0),
                Instr::Apply(NumericOp::Negate.into(), [Reg(0), Reg(0)]),
                Instr::Store(1, Reg(1)),
            ],
        })
    }

    #[test]
    fn what_is_written_overlaps_nothing_else() {
        let buffer = Buffer::from([1i32, 2, 3, 4, 5, 6, 7, 8]);
        let all = Memory::of_mut(&buffer).unwrap();
        let check = |kernel, from: usize, to: usize| {
            let pieces = [all.part(4 * from, 16).unwrap(), all.part(4 * to, 16).unwrap()];
            extents(&kernel, DeviceRef::CPU).unwrap().check(&pieces)
        };
        assert!(check(negate(0), 0, 4).is_ok(), "separate");
        assert!(check(negate(0), 2, 2).is_ok(), "in place");
        assert!(check(negate(0), 0, 1).unwrap_err().message().contains("overlaps"), "shifted");
        let pieces = [all, all];
        let shifted = extents(&negate(1), DeviceRef::CPU).unwrap();
        assert!(shifted.check(&pieces).is_err(), "an element is written that is still to be read");
    }

    #[test]
    fn many_slots_are_compared_as_few_are() {
        let buffer = Buffer::from(vec![0u8; 400]);
        let all = Memory::of_mut(&buffer).unwrap();
        let mut state = 7u32;
        let mut draw = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        let (mut fine, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let count = 2 + draw(7) as usize;
            let extent = |slot| Extent {
                slot,
                bytes: 1 + draw(40) as usize,
                write: draw(3) == 0,
                walk: (draw(2) == 0).then(|| draw(2)),
            };
            let slots: Vec<Extent> = (0..count).map(extent).collect();
            let extents = Extents { device: DeviceRef::CPU, slots };
            let memory: Vec<Memory> =
                (0..count).map(|_| all.part(20 * draw(16) as usize, 60).unwrap()).collect();
            let found = extents.check(&memory).is_ok();
            assert_eq!(found, extents.check_sorted(&memory).is_ok(), "{extents:?} {memory:?}");
            *(if found { &mut fine } else { &mut refused }) += 1;
        }
        assert!(fine > 1_000 && refused > 1_000, "{fine} fine, {refused} refused");
    }
}
