//! Batches of matmuls with one right operand, as one matmul of more rows.

use max_core::kernel::{Access, Loop, Matmul};

/// The same matmul with fewer batch axes: axes of size one are removed, and those along which the right operand repeats
/// and everything else is laid out like further rows become rows.
pub(crate) fn fold(k: &Matmul<i64>) -> Matmul<i64> {
    let mut k = k.clone();
    fold_axes(&mut k.batch, &mut k.m, &mut k.lhs, Some(&mut k.rhs), vec![&mut k.epilogue]);
    k
}

/// As [`fold`], for one or more epilogues. Without a right operand that has batch axes, it repeats along all of them.
pub(crate) fn fold_axes(
    batch: &mut Vec<i64>,
    m: &mut i64,
    lhs: &mut Access<i64>,
    mut rhs: Option<&mut Access<i64>>,
    mut epilogues: Vec<&mut Loop<i64>>,
) {
    while let Some(&size) = batch.last() {
        let axis = batch.len() - 1;
        let rows = *m;
        let continues = |access: &Access<i64>| {
            rows == 1 || rows.checked_mul(access.strides[axis + 1]) == Some(access.strides[axis])
        };
        let is_rows = rhs.as_ref().is_none_or(|rhs| rhs.strides[axis] == 0)
            && continues(lhs)
            && epilogues.iter().flat_map(|epilogue| &epilogue.accesses).all(continues)
            && rows.checked_mul(size).is_some();
        if size != 1 && !is_rows {
            break;
        }
        *m *= size;
        batch.pop();
        // The stride of a single row has no meaning: that of the batch replaces it.
        let removed = if rows == 1 { axis + 1 } else { axis };
        lhs.strides.remove(removed);
        if let Some(rhs) = &mut rhs {
            rhs.strides.remove(axis);
        }
        for epilogue in &mut epilogues {
            for access in &mut epilogue.accesses {
                access.strides.remove(removed);
            }
            epilogue.shape.remove(axis);
            epilogue.shape[axis] = *m;
        }
    }
}
