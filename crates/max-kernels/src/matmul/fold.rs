//! Batches of matmuls with one right operand, as one matmul of more rows.

use max_core::kernel::{Access, Matmul};

/// The same matmul with fewer batch axes: axes of size one are removed, and those along which the right operand repeats
/// and everything else is laid out like further rows become rows.
pub(crate) fn fold(k: &Matmul<i64>) -> Matmul<i64> {
    let mut k = k.clone();
    while let Some(&size) = k.batch.last() {
        let axis = k.batch.len() - 1;
        let rows = k.m;
        let continues = |access: &Access<i64>| {
            rows == 1 || rows.checked_mul(access.strides[axis + 1]) == Some(access.strides[axis])
        };
        let is_rows = k.rhs.strides[axis] == 0
            && continues(&k.lhs)
            && k.epilogue.accesses.iter().all(continues)
            && rows.checked_mul(size).is_some();
        if size != 1 && !is_rows {
            break;
        }
        k.m *= size;
        k.batch.pop();
        // The stride of a single row has no meaning: that of the batch replaces it.
        let removed = if rows == 1 { axis + 1 } else { axis };
        k.lhs.strides.remove(removed);
        k.rhs.strides.remove(axis);
        for access in &mut k.epilogue.accesses {
            access.strides.remove(removed);
        }
        k.epilogue.shape.remove(axis);
        k.epilogue.shape[axis] = k.m;
    }
    k
}
