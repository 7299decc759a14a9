//! Runs gathers: indices are checked first and become positions, then slices are copied bitwise.

use max_core::kernel::{Access, Gather, Slot};
use max_core::{Element, Result, bail, dispatch};

use crate::matmul::count;
use crate::{Memory, Pool, scratch};

/// Roughly how many elements a task copies.
const TASK: usize = 1 << 16;

/// A gather that is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedGather {
    /// Outer, size, picks and inner.
    sizes: [usize; 4],
    axis: usize,
    source: Walk<3>,
    indices: Walk<1>,
    out: Walk<3>,
    index: ReadIndex,
    copy: CopyRun,
    pick: PickElements,
}

/// Reads an index.
type ReadIndex = unsafe fn(*const u8) -> i128;

/// Copies a number of elements between two addresses, each with its stride.
type CopyRun = unsafe fn((*const u8, isize), (*mut u8, isize), usize);

/// Copies the elements at some positions: from an address with its stride, to another one.
type PickElements = unsafe fn((*const u8, isize), (*mut u8, isize), positions: &[usize]);

/// An access: offset in bytes from the start of its slot; strides in elements.
#[derive(Clone, Copy, Debug)]
struct Walk<const N: usize> {
    slot: Slot,
    size: usize,
    offset: isize,
    strides: [isize; N],
}

impl<const N: usize> Walk<N> {
    fn new(access: &Access<i64>) -> Walk<N> {
        let strides = std::array::from_fn(|axis| access.strides[axis] as isize);
        Walk {
            slot: access.slot,
            size: access.dtype.size_in_bytes(),
            offset: access.offset as isize,
            strides,
        }
    }

    /// The address of an element.
    fn at(&self, memory: &[Memory], index: [usize; N]) -> *mut u8 {
        let steps = index.iter().zip(self.strides).map(|(&i, stride)| i as isize * stride);
        let element = self.offset + steps.sum::<isize>();
        memory[self.slot.0 as usize].ptr().wrapping_offset(element * self.size as isize)
    }
}

impl PreparedGather {
    pub(crate) fn new(k: &Gather<i64>) -> Result<PreparedGather> {
        if k.source.dtype != k.out.dtype || !k.indices.dtype.is_integral() {
            let [source, indices, out] = [&k.source, &k.indices, &k.out].map(|access| access.dtype);
            bail!(internal, "a gather of {source} into {out} with {indices} indices");
        }
        count(&[k.outer, k.picks, k.inner])?;
        let (copy, pick): (CopyRun, PickElements) = match k.out.dtype.size_in_bytes() {
            1 => (copy::<u8>, pick::<u8>),
            2 => (copy::<u16>, pick::<u16>),
            4 => (copy::<u32>, pick::<u32>),
            _ => (copy::<u64>, pick::<u64>),
        };
        Ok(PreparedGather {
            sizes: [k.outer, k.size, k.picks, k.inner].map(|size| size as usize),
            axis: k.axis,
            source: Walk::new(&k.source),
            indices: Walk::new(&k.indices),
            out: Walk::new(&k.out),
            index: dispatch!(k.indices.dtype, T => read_index::<T>),
            copy,
            pick,
        })
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        // Positions of its own, because another thread may change the indices meanwhile.
        scratch::with(self.sizes[2] * size_of::<usize>(), |positions| {
            let positions = positions.cast::<usize>();
            // SAFETY: the scratch memory has room for a position per pick, and each is written before it is read.
            unsafe {
                self.find(memory, positions)?;
                self.copy_slices(memory, pool, std::slice::from_raw_parts(positions, self.sizes[2]));
            }
            Ok(())
        })
    }

    /// Writes the position of every pick.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, and there is room for the positions.
    unsafe fn find(&self, memory: &[Memory], positions: *mut usize) -> Result<()> {
        let [_, size, picks, _] = self.sizes;
        for pick in 0..picks {
            // SAFETY: the index is in bounds of its memory.
            let index = unsafe { (self.index)(self.indices.at(memory, [pick])) };
            let Some(position) = position(index, size) else {
                bail!(index, "index {index} is out of range for axis {} with size {size}", self.axis);
            };
            // SAFETY: guaranteed by the caller.
            unsafe { positions.add(pick).write(position) };
        }
        Ok(())
    }

    /// Copies the slices at the positions of the picks.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, and the positions are in bounds.
    unsafe fn copy_slices(&self, memory: &[Memory], pool: &Pool, positions: &[usize]) {
        let [outer, _, picks, inner] = self.sizes;
        if outer == 0 || picks == 0 || inner == 0 {
            return;
        }
        let chunk = inner.min(TASK);
        let chunks = inner.div_ceil(chunk);
        let runs = outer * picks * chunks;
        let runs_per_task = TASK / chunk;
        pool.run(runs.div_ceil(runs_per_task), &|task| {
            let mut run = task * runs_per_task;
            let end = runs.min(run + runs_per_task);
            while run < end {
                let (slice, start) = (run / chunks, run % chunks * chunk);
                let (o, pick) = (slice / picks, slice % picks);
                let out = (self.out.at(memory, [o, pick, start]), self.out.strides);
                if inner == 1 {
                    let count = (picks - pick).min(end - run);
                    let source = self.source.at(memory, [o, 0, 0]).cast_const();
                    let positions = &positions[pick..pick + count];
                    // SAFETY: all elements are in bounds of their memory, and no other task writes these.
                    unsafe { (self.pick)((source, self.source.strides[1]), (out.0, out.1[1]), positions) };
                    run += count;
                    continue;
                }
                let source = self.source.at(memory, [o, positions[pick], start]).cast_const();
                let count = chunk.min(inner - start);
                // SAFETY: both runs are in bounds of their memory, and no other task writes this one.
                unsafe { (self.copy)((source, self.source.strides[2]), (out.0, out.1[2]), count) };
                run += 1;
            }
        });
    }
}

/// The position that an index names; negative indices count from the end.
fn position(index: i128, size: usize) -> Option<usize> {
    let index = if index < 0 { index + size as i128 } else { index };
    usize::try_from(index).ok().filter(|&index| index < size)
}

/// # Safety
///
/// An element of type `T` can be read at the address.
unsafe fn read_index<T: Element>(at: *const u8) -> i128 {
    // SAFETY: guaranteed by the caller.
    unsafe { at.cast::<T>().read_unaligned() }.to_i128()
}

/// # Safety
///
/// `count` elements at their strides can be read and written.
unsafe fn copy<T: Copy>(source: (*const u8, isize), out: (*mut u8, isize), count: usize) {
    let ((source, source_stride), (out, out_stride)) = (source, out);
    // SAFETY: guaranteed by the caller. Elements need not be aligned.
    unsafe {
        if source_stride == 1 && out_stride == 1 {
            return std::ptr::copy_nonoverlapping(source, out, count * size_of::<T>());
        }
        let (source, out) = (source.cast::<T>(), out.cast::<T>());
        for i in 0..count as isize {
            out.offset(i * out_stride).write_unaligned(source.offset(i * source_stride).read_unaligned());
        }
    }
}

/// # Safety
///
/// The elements at the positions can be read, and as many can be written.
unsafe fn pick<T: Copy>(source: (*const u8, isize), out: (*mut u8, isize), positions: &[usize]) {
    let ((source, source_stride), (out, out_stride)) = (source, out);
    let (source, out) = (source.cast::<T>(), out.cast::<T>());
    for (i, &position) in positions.iter().enumerate() {
        // SAFETY: guaranteed by the caller. Elements need not be aligned.
        unsafe {
            let element = source.wrapping_offset(position as isize * source_stride).read_unaligned();
            out.wrapping_offset(i as isize * out_stride).write_unaligned(element);
        }
    }
}

#[cfg(test)]
mod tests {
    use max_core::kernel::Kernel;
    use max_core::{DType, ErrorKind};
    use max_driver::Buffer;

    use super::*;
    use crate::prepare;

    fn access(slot: u32, dtype: DType, offset: i64, strides: &[i64]) -> Access<i64> {
        Access { slot: Slot(slot), dtype, offset, strides: strides.to_vec() }
    }

    fn row_major(slot: u32, dtype: DType, shape: [i64; 3]) -> Access<i64> {
        access(slot, dtype, 0, &[shape[1] * shape[2], shape[2], 1])
    }

    fn run(k: Gather<i64>, source: &Buffer, indices: &Buffer, out: &Buffer) -> Result<()> {
        let kernel = prepare(&Kernel::Gather(k))?;
        let memory = [Memory::of(source)?, Memory::of(indices)?, Memory::of_mut(out)?];
        kernel.run(&memory, &Pool::new(2))
    }

    /// `[outer, size, inner]` of an element type, gathered along the middle with i8 indices.
    fn check<T: Element + std::fmt::Debug>(shape: [i64; 3], indices: &[i8]) {
        let [outer, size, inner] = shape;
        let picks = indices.len() as i64;
        let source: Vec<T> = (0..outer * size * inner).map(|i| T::from_i128(i.into())).collect();
        let expected: Vec<T> = (0..outer)
            .flat_map(|o| indices.iter().map(move |&index| (o, i64::from(index))))
            .flat_map(|(o, index)| (0..inner).map(move |i| (o * size + (index + size) % size) * inner + i))
            .map(|at| source[at as usize])
            .collect();
        let out = Buffer::from(vec![T::from_i128(99); expected.len()]);
        let k = Gather {
            outer,
            size,
            picks,
            inner,
            axis: 1,
            source: row_major(0, T::DTYPE, shape),
            indices: access(1, DType::Int8, 0, &[1]),
            out: row_major(2, T::DTYPE, [outer, picks, inner]),
        };
        run(k, &Buffer::from(source), &Buffer::from(indices.to_vec()), &out).unwrap();
        assert_eq!(out.to_vec::<T>().unwrap(), expected);
    }

    #[test]
    fn slices_are_picked_for_every_size_of_element() {
        for shape in [[1, 5, 1], [3, 5, 7], [2, 9, 1], [4, 3, 0], [0, 3, 2], [1, 3, 70_001], [40_000, 3, 2]] {
            for indices in [&[0, 2, 1, -1, -3, 2][..], &[1], &[]] {
                check::<u8>(shape, indices);
                check::<i16>(shape, indices);
                check::<f32>(shape, indices);
                check::<f64>(shape, indices);
            }
        }
    }

    #[test]
    fn strides_may_be_anything() {
        // The columns of a 3 x 4 matrix, backwards, every second pick of the indices, out transposed.
        let source = Buffer::from((0..12).collect::<Vec<i32>>());
        let out = Buffer::from(vec![0i32; 6]);
        let k = Gather {
            outer: 1,
            size: 4,
            picks: 2,
            inner: 3,
            axis: 0,
            source: access(0, DType::Int32, 3, &[0, -1, 4]),
            indices: access(1, DType::UInt64, 0, &[2]),
            out: access(2, DType::Int32, 0, &[0, 1, 2]),
        };
        run(k, &source, &Buffer::from(vec![0u64, 77, 2]), &out).unwrap();
        assert_eq!(out.to_vec::<i32>().unwrap(), [3, 1, 7, 5, 11, 9]);
    }

    #[test]
    fn bad_indices_are_named_before_anything_is_written() {
        for (index, size) in [(4i64, 4), (-5, 4), (0, 0)] {
            let out = Buffer::from(vec![7f32; 2]);
            let k = Gather {
                outer: 1,
                size,
                picks: 2,
                inner: 1,
                axis: 3,
                source: row_major(0, DType::Float32, [1, size, 1]),
                indices: access(1, DType::Int64, 0, &[1]),
                out: row_major(2, DType::Float32, [1, 2, 1]),
            };
            let source = Buffer::from(vec![1f32; size as usize]);
            let indices = Buffer::from(vec![if size == 0 { index } else { 0 }, index]);
            let error = run(k, &source, &indices, &out).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Index);
            let message = format!("index {index} is out of range for axis 3 with size {size}");
            assert_eq!(error.message(), message);
            assert_eq!(out.to_vec::<f32>().unwrap(), [7.0, 7.0]);
        }
    }
}
