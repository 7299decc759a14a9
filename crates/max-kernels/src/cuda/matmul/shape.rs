//! Simplifies the axes of matmuls, and describes operands as matrices.

use max_core::kernel::{Access, Matmul};
use max_core::{Result, bail};
use max_driver::cuda::Matrix;

use crate::matmul::fold::fold;

/// The same matmul with as few batch axes as its accesses allow: axes of size one are removed, axes that continue the
/// rows become rows, and nested axes are merged.
pub(super) fn simplify(k: &Matmul<i64>) -> Result<Matmul<i64>> {
    let rank = k.batch.len() + 2;
    let accesses = || [&k.lhs, &k.rhs].into_iter().chain(&k.epilogue.accesses);
    if accesses().any(|access| access.strides.len() != rank) || k.epilogue.shape.len() != rank {
        bail!(internal, "a matmul of rank {rank} whose accesses have other ranks: {k:?}");
    }
    if k.lhs.dtype != k.rhs.dtype {
        bail!(internal, "a matmul of {} and {}", k.lhs.dtype, k.rhs.dtype);
    }
    let mut k = k.clone();
    for axis in (0..k.batch.len()).rev().filter(|&axis| k.batch[axis] == 1).collect::<Vec<_>>() {
        k.batch.remove(axis);
        k.epilogue.shape.remove(axis);
        each_access(&mut k, |access| {
            access.strides.remove(axis);
        });
    }
    let mut k = fold(&k);
    for axis in (1..k.batch.len()).rev() {
        let size = k.batch[axis];
        let mut nested = true;
        each_access(&mut k, |access| {
            nested &= access.strides[axis].checked_mul(size) == Some(access.strides[axis - 1]);
        });
        let Some(merged) = size.checked_mul(k.batch[axis - 1]).filter(|_| nested) else { continue };
        k.batch[axis - 1] = merged;
        k.batch.remove(axis);
        k.epilogue.shape[axis - 1] = merged;
        k.epilogue.shape.remove(axis);
        each_access(&mut k, |access| {
            access.strides.remove(axis - 1);
        });
    }
    Ok(k)
}

fn each_access(k: &mut Matmul<i64>, mut change: impl FnMut(&mut Access<i64>)) {
    change(&mut k.lhs);
    change(&mut k.rhs);
    k.epilogue.accesses.iter_mut().for_each(change);
}

/// Whether the batch axes are one axis for an access.
pub(super) fn is_one_axis(access: &Access<i64>, batch: &[i64]) -> bool {
    (1..batch.len())
        .all(|axis| access.strides[axis].checked_mul(batch[axis]) == Some(access.strides[axis - 1]))
}

/// The matmuls at each index of a batch axis.
pub(super) fn slices(k: &Matmul<i64>, axis: usize) -> Vec<Matmul<i64>> {
    let slice = |index: i64| {
        let mut slice = k.clone();
        slice.batch.remove(axis);
        slice.epilogue.shape.remove(axis);
        each_access(&mut slice, |access| access.offset += index * access.strides.remove(axis));
        slice
    };
    (0..k.batch[axis]).map(slice).collect()
}

/// The matmul whose result is the transpose.
pub(super) fn transposed(k: &Matmul<i64>) -> Matmul<i64> {
    let mut other = k.clone();
    std::mem::swap(&mut other.m, &mut other.n);
    std::mem::swap(&mut other.lhs, &mut other.rhs);
    let last = k.batch.len();
    other.epilogue.shape.swap(last, last + 1);
    each_access(&mut other, |access| access.strides.swap(last, last + 1));
    other
}

/// An operand over `[batch.., rows, columns]` as the library reads it, if it can. The batch stride is that of the last
/// batch axis.
pub(super) fn matrix(access: &Access<i64>, [rows, columns]: [i64; 2]) -> Option<Matrix> {
    let [batch @ .., down, along] = access.strides.as_slice() else { return None };
    if batch.iter().any(|&stride| stride < 0) || !is_aligned(access) {
        return None;
    }
    let leading = |step: i64, steps: i64, extent: i64| match steps {
        1 => Some(extent),
        _ => Some(step).filter(|&step| step >= extent),
    };
    let is_run = |step: i64, steps: i64| step == 1 || steps == 1;
    let plain = is_run(*along, columns).then(|| leading(*down, rows, columns)).flatten();
    let swapped = is_run(*down, rows).then(|| leading(*along, columns, rows)).flatten();
    let batch_stride = batch.last().copied().unwrap_or(0);
    let of = |transposed, leading| Matrix {
        dtype: access.dtype,
        transposed,
        leading,
        batch_stride,
        alignment: ALIGNMENT as u32,
    };
    plain.map(|leading| of(false, leading)).or(swapped.map(|leading| of(true, leading)))
}

/// The alignment in bytes of the start of every operand.
const ALIGNMENT: i64 = 16;

/// Whether an access starts at the alignment that the library's functions assume of all memory.
pub(super) fn is_aligned(access: &Access<i64>) -> bool {
    access.offset.wrapping_mul(access.dtype.size_in_bytes() as i64) % ALIGNMENT == 0
}

/// The row-major strides of a shape, and its number of elements.
pub(in super::super) fn row_major(shape: &[i64]) -> Result<(Vec<i64>, i64)> {
    let (mut strides, mut count) = (vec![0; shape.len()], 1i64);
    for (stride, &size) in strides.iter_mut().zip(shape).rev() {
        *stride = count;
        match count.checked_mul(size.max(1)) {
            Some(product) => count = product,
            None => bail!(memory, "a kernel needs {shape:?} elements of scratch memory, which is too much"),
        }
    }
    Ok((strides, count))
}
