//! Runs gathers: indices are checked first and become places, then slices are copied bitwise.

use max_core::Result;
use max_core::bail;
use max_core::kernel::Gather;

use crate::indexed::{Along, Finder};
use crate::{Memory, Pool, scratch};

/// Roughly how many elements a task copies.
const TASK: usize = 1 << 16;

/// A gather that is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedGather {
    /// Outer, picks and inner.
    sizes: [usize; 3],
    finder: Finder,
    /// How many outer positions have indices of their own.
    lines: usize,
    /// Along outer and inner.
    source: Along<2>,
    out: Along<3>,
    copy: CopyRun,
    pick: PickElements,
}

/// Copies a number of elements between two addresses, each with its stride.
type CopyRun = unsafe fn((*const u8, isize), (*mut u8, isize), usize);

/// Copies the elements at some places after an address to another one with its stride.
type PickElements = unsafe fn(*const u8, (*mut u8, isize), places: &[isize]);

impl PreparedGather {
    pub(crate) fn new(k: &Gather<i64>) -> Result<PreparedGather> {
        let (space, last) = (&k.space, k.source.strides.len().saturating_sub(1));
        if k.source.dtype != k.out.dtype || space.index_shape[2] != 1 {
            bail!(internal, "a gather of {} into {}: {:?}", k.source.dtype, k.out.dtype, space.index_shape);
        }
        let finder = Finder::new(space, &k.source)?;
        let (copy, pick): (CopyRun, PickElements) = match k.out.dtype.size_in_bytes() {
            1 => (copy::<u8>, pick::<u8>),
            2 => (copy::<u16>, pick::<u16>),
            4 => (copy::<u32>, pick::<u32>),
            _ => (copy::<u64>, pick::<u64>),
        };
        Ok(PreparedGather {
            sizes: [space.outer, *space.picks(), space.inner].map(|size| size as usize),
            finder,
            lines: space.index_shape[0] as usize,
            source: Along::new(&k.source, [0, last]),
            out: Along::new(&k.out, [0, 1, 2]),
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
        let [outer, picks, inner] = self.sizes;
        if outer == 0 || picks == 0 || inner == 0 {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.finder.check(memory, pool) };
        }
        let count = self.lines * picks;
        scratch::with(count * size_of::<isize>(), |places| {
            let places = places.cast::<isize>();
            // SAFETY: the scratch memory has room for a place per pick, and each is written before it is read.
            unsafe {
                self.finder.table(memory, pool, self.lines, places)?;
                self.copy_slices(memory, pool, std::slice::from_raw_parts(places, count));
            }
            Ok(())
        })
    }

    /// Copies the slices at the places of the picks.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, and the places are in bounds.
    unsafe fn copy_slices(&self, memory: &[Memory], pool: &Pool, places: &[isize]) {
        let [outer, picks, inner] = self.sizes;
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
                let places = if self.lines == 1 { places } else { &places[o * picks..] };
                let out = (self.out.at(memory, [o, pick, start]), self.out.strides);
                let source = self.source.at(memory, [o, start]);
                if inner == 1 {
                    let count = (picks - pick).min(end - run);
                    let places = &places[pick..pick + count];
                    // SAFETY: all elements are in bounds of their memory, and no other task writes these.
                    unsafe { (self.pick)(source.cast_const(), (out.0, out.1[1]), places) };
                    run += count;
                    continue;
                }
                let source = self.source.after(source, places[pick]).cast_const();
                let count = chunk.min(inner - start);
                // SAFETY: both runs are in bounds of their memory, and no other task writes this one.
                unsafe { (self.copy)((source, self.source.strides[1]), (out.0, out.1[2]), count) };
                run += 1;
            }
        });
    }
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
/// The elements at the places can be read, and as many can be written.
unsafe fn pick<T: Copy>(source: *const u8, out: (*mut u8, isize), places: &[isize]) {
    let (source, out, out_stride) = (source.cast::<T>(), out.0.cast::<T>(), out.1);
    for (i, &place) in places.iter().enumerate() {
        // SAFETY: guaranteed by the caller. Elements need not be aligned.
        unsafe {
            let element = source.wrapping_offset(place).read_unaligned();
            out.wrapping_offset(i as isize * out_stride).write_unaligned(element);
        }
    }
}

#[cfg(test)]
mod tests {
    use max_core::kernel::{Access, Indexed, Kernel, Slot};
    use max_core::{DType, Element, ErrorKind};
    use max_driver::Buffer;

    use super::*;
    use crate::prepare;

    fn access(slot: u32, dtype: DType, offset: i64, strides: &[i64]) -> Access<i64> {
        Access { slot: Slot(slot), dtype, offset, strides: strides.to_vec() }
    }

    fn row_major(slot: u32, dtype: DType, shape: [i64; 3]) -> Access<i64> {
        access(slot, dtype, 0, &[shape[1] * shape[2], shape[2], 1])
    }

    /// One indexed axis, with indices for every pick.
    fn space([outer, size, inner]: [i64; 3], axis: usize, picks: i64, indices: Access<i64>) -> Indexed<i64> {
        Indexed { outer, sizes: vec![size], inner, axis, indices, index_shape: [1, picks, 1, 1] }
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
            space: space([outer, size, inner], 1, picks, access(1, DType::Int8, 0, &[0, 1, 0, 0])),
            source: row_major(0, T::DTYPE, shape),
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
            space: space([1, 4, 3], 0, 2, access(1, DType::UInt64, 0, &[0, 2, 0, 0])),
            source: access(0, DType::Int32, 3, &[0, -1, 4]),
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
                space: space([1, size, 1], 3, 2, access(1, DType::Int64, 0, &[0, 1, 0, 0])),
                source: row_major(0, DType::Float32, [1, size, 1]),
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

    #[test]
    fn several_axes_are_indexed_at_once() {
        // Two matrices of 3 x 4 pairs; for each of them two picks of a row and a column.
        let source: Vec<i16> = (0..48).collect();
        let indices = Buffer::from(vec![0i32, 3, -1, -4, 1, 1, 2, 0]);
        let k = Gather {
            space: Indexed {
                outer: 2,
                sizes: vec![3, 4],
                inner: 2,
                axis: 1,
                indices: access(1, DType::Int32, 0, &[4, 2, 0, 1]),
                index_shape: [2, 2, 1, 2],
            },
            source: access(0, DType::Int16, 0, &[24, 8, 2, 1]),
            out: row_major(2, DType::Int16, [2, 2, 2]),
        };
        let out = Buffer::from(vec![0i16; 8]);
        run(k.clone(), &Buffer::from(source.clone()), &indices, &out).unwrap();
        assert_eq!(out.to_vec::<i16>().unwrap(), [6, 7, 16, 17, 34, 35, 40, 41]);
        let bad = Buffer::from(vec![0i32, 3, 2, 0, 1, 4, 3, 0]);
        let error = run(k, &Buffer::from(source), &bad, &out).unwrap_err();
        assert_eq!(error.message(), "index 4 is out of range for axis 2 with size 4");
    }
}
