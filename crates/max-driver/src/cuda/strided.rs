//! Copies between strided layouts on a GPU, with one kernel per size of the unit that a thread moves at a time.

use std::sync::OnceLock;

use max_core::Result;

use super::{Function, Gpu, Source};
use crate::Stream;
use crate::buffer::strided::{Axis, merged};

/// The kernels, from the one that moves single bytes to the one that moves sixteen.
#[derive(Default)]
pub(super) struct Copies([OnceLock<Function>; WIDTHS]);

const WIDTHS: usize = 5;

/// The number of axes in the kernel; the host loops over further ones.
const AXES: usize = 6;

const THREADS: u64 = 256;

/// One side of a copy: the address of the element with all indices zero, and the strides of all axes in elements.
#[derive(Clone, Copy)]
pub(crate) struct Side<'a> {
    /// The address.
    pub(crate) address: u64,
    /// The strides, one per axis.
    pub(crate) strides: &'a [isize],
}

/// A copy in the kernel's terms: units of bytes, and axes with strides in bytes.
#[derive(Debug, PartialEq)]
struct Plan {
    /// The base-2 logarithm of the bytes moved at a time.
    width: usize,
    axes: Vec<Axis>,
}

/// Copies elements of `element` bytes, in stream order. Addresses need not be aligned.
///
/// # Safety
///
/// All elements of both sides are memory that the stream's GPU can access, those of `to` writable; they stay valid
/// until the work is done, and the two sides do not overlap.
pub(crate) unsafe fn copy(
    stream: &Stream,
    shape: &[usize],
    element: usize,
    to: Side<'_>,
    from: Side<'_>,
) -> Result<()> {
    let Some((gpu, _)) = stream.cuda().filter(|_| !shape.contains(&0)) else { return Ok(()) };
    let Plan { width, axes } = plan(shape, element, to, from);
    let function = gpu.copies.get(gpu, width)?;
    let (outer, inner) = axes.split_at(axes.len().saturating_sub(AXES));
    let count: usize = inner.iter().map(|axis| axis.size).product();
    let mut params = vec![0, 0, count as u64];
    for at in 0..AXES {
        let axis =
            (at + inner.len()).checked_sub(AXES).map_or(Axis { size: 1, to: 0, from: 0 }, |i| inner[i]);
        params.extend([axis.size as u64, axis.to as u64, axis.from as u64]);
    }
    let blocks = (count as u64).div_ceil(THREADS).min(u64::from(gpu.multiprocessors()) * 32).max(1);
    for walk in 0..outer.iter().map(|axis| axis.size).product::<usize>() {
        let (mut rest, mut target, mut source) = (walk, 0, 0);
        for axis in outer.iter().rev() {
            let index = (rest % axis.size) as isize;
            (target, source) = (target + index * axis.to, source + index * axis.from);
            rest /= axis.size;
        }
        params[0] = to.address.wrapping_add_signed(target as i64);
        params[1] = from.address.wrapping_add_signed(source as i64);
        // SAFETY: guaranteed by the caller; the plan covers the bytes of the elements and no others.
        unsafe { function.launch(stream, [blocks as u32, 1, 1], [THREADS as u32, 1, 1], 0, &params)? };
    }
    Ok(())
}

/// The widest units that all addresses and strides are multiples of, and the axes over them.
fn plan(shape: &[usize], element: usize, to: Side<'_>, from: Side<'_>) -> Plan {
    // The bytes of an element are an axis like any other: it merges with contiguous ones.
    let bytes = |strides: &[isize]| -> Vec<isize> {
        strides.iter().map(|stride| stride.wrapping_mul(element as isize)).chain([1]).collect()
    };
    let shape: Vec<usize> = shape.iter().copied().chain([element]).collect();
    let mut axes = merged(&shape, &bytes(to.strides), &bytes(from.strides));
    let run = match axes.last() {
        Some(&Axis { size, to: 1, from: 1 }) => {
            axes.pop();
            size
        }
        _ => 1,
    };
    let steps = axes.iter().fold(0, |bits, axis| bits | axis.to | axis.from) as u64;
    let width = (to.address | from.address | run as u64 | steps).trailing_zeros().min(WIDTHS as u32 - 1);
    let unit = 1isize << width;
    if run >> width > 1 {
        axes.push(Axis { size: run >> width, to: unit, from: unit });
    }
    Plan { width: width as usize, axes }
}

impl Copies {
    fn get(&self, gpu: &'static Gpu, width: usize) -> Result<Function> {
        if let Some(function) = self.0[width].get() {
            return Ok(function.clone());
        }
        let functions = gpu.functions(&[source(width)])?;
        let function = functions.into_iter().next();
        let function =
            function.ok_or_else(|| max_core::Error::internal("no function was made from a source"))?;
        Ok(self.0[width].get_or_init(|| function).clone())
    }
}

/// The source of the kernel that moves two to the width bytes at a time.
fn source(width: usize) -> Source {
    let unit = 1 << width;
    let name = format!("copy_strided_{unit}");
    let text = include_str!("strided.cu");
    let code = format!("#define UNIT {unit}\n#define AXES {AXES}\n#define NAME {name}\n{text}");
    Source { name, prelude: "".into(), code }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(shape: &[usize], element: usize, to: (u64, &[isize]), from: (u64, &[isize])) -> Plan {
        let side = |(address, strides)| Side { address, strides };
        plan(shape, element, side(to), side(from))
    }

    fn axis(size: usize, to: isize, from: isize) -> Axis {
        Axis { size, to, from }
    }

    #[test]
    fn units_are_as_wide_as_everything_allows() {
        // Rows of 32 bytes out of rows of 64.
        let rows = planned(&[4, 8], 4, (1 << 8, &[8, 1]), (1 << 9, &[16, 1]));
        assert_eq!(rows, Plan { width: 4, axes: vec![axis(4, 32, 64), axis(2, 16, 16)] });
        // The same from an address that is odd, or in rows that start at multiples of four.
        assert_eq!(planned(&[4, 8], 4, (1 << 8, &[8, 1]), (513, &[16, 1])).width, 0);
        assert_eq!(planned(&[4, 8], 4, (1 << 8, &[8, 1]), (512, &[17, 1])).width, 2);
        // A transpose moves element by element.
        let transpose = planned(&[3, 5], 8, (0, &[5, 1]), (0, &[1, 3]));
        assert_eq!(transpose, Plan { width: 3, axes: vec![axis(3, 40, 8), axis(5, 8, 24)] });
        // A fill reads the same element again and again.
        assert_eq!(planned(&[6], 8, (0, &[-2]), (0, &[0])), Plan { width: 3, axes: vec![axis(6, -16, 0)] });
        // What is contiguous on both sides is one run, and a single unit needs no axis at all.
        assert_eq!(
            planned(&[2, 3], 2, (2, &[3, 1]), (4, &[3, 1])),
            Plan { width: 1, axes: vec![axis(6, 2, 2)] }
        );
        assert_eq!(planned(&[1, 1], 1, (3, &[7, 9]), (4, &[1, 1])), Plan { width: 0, axes: vec![] });
        assert_eq!(planned(&[], 8, (8, &[]), (16, &[])), Plan { width: 3, axes: vec![] });
    }

    #[test]
    fn every_byte_of_a_plan_is_one_of_the_copy() {
        let (shape, to, from) = ([3, 2, 4], [-20isize, 9, 2], [1isize, 0, -5]);
        let Plan { width, axes } = planned(&shape, 4, (1000, &to), (2000, &from));
        let mut moved = Vec::new();
        for at in 0..axes.iter().map(|axis| axis.size).product::<usize>() {
            let (mut rest, mut target, mut source) = (at, 1000, 2000);
            for axis in axes.iter().rev() {
                let index = (rest % axis.size) as isize;
                (target, source, rest) =
                    (target + index * axis.to, source + index * axis.from, rest / axis.size);
            }
            moved.extend((0..1 << width).map(|byte| (target + byte, source + byte)));
        }
        let mut wanted = Vec::new();
        for index in 0..24 {
            let [i, j, k] = [index / 8, index / 4 % 2, index % 4];
            let at = |strides: [isize; 3]| (i * strides[0] + j * strides[1] + k * strides[2]) * 4;
            wanted.extend((0..4).map(|byte| (1000 + at(to) + byte, 2000 + at(from) + byte)));
        }
        moved.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(moved, wanted);
    }

    #[test]
    fn sources_differ_in_name_and_text() {
        let sources: Vec<_> = (0..WIDTHS).map(source).collect();
        assert_eq!(sources[4].name, "copy_strided_16");
        assert!((1..WIDTHS).all(|i| sources[i].code != sources[i - 1].code));
    }
}
