//! The one loop behind every copy and fill on the host: elements from one strided layout to another.

/// One side of a copy: the element with all indices zero, and the strides in elements.
pub(super) struct Side<'a, P> {
    /// Where the first element lies; it need not be aligned.
    pub ptr: P,
    /// The strides, one per axis.
    pub strides: &'a [isize],
}

/// An axis of both sides: its size and both strides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Axis {
    pub(crate) size: usize,
    pub(crate) to: isize,
    pub(crate) from: isize,
}

/// Copies all elements of a shape.
///
/// # Safety
///
/// All elements of `from` are valid for reads, all of `to` for writes. The two may overlap only if both are
/// row-major without gaps.
pub(super) unsafe fn copy<T: Copy>(shape: &[usize], to: Side<'_, *mut u8>, from: Side<'_, *const u8>) {
    if shape.contains(&0) {
        return;
    }
    let (to_ptr, from_ptr) = (to.ptr.cast::<T>(), from.ptr.cast::<T>());
    let mut axes = merged(shape, to.strides, from.strides);
    let row = axes.pop().unwrap_or(Axis { size: 1, to: 1, from: 1 });
    let mut index = vec![0; axes.len()];
    let (mut to_at, mut from_at) = (0isize, 0isize);
    loop {
        // SAFETY: these are the positions of the elements with this index, for which the caller vouches.
        unsafe { copy_row(row, to_ptr.offset(to_at), from_ptr.offset(from_at)) };
        let next = (0..axes.len()).rev().find(|&i| {
            let Axis { size, to, from } = axes[i];
            index[i] += 1;
            (to_at, from_at) = (to_at + to, from_at + from);
            if index[i] < size {
                return true;
            }
            (to_at, from_at) = (to_at - to * size as isize, from_at - from * size as isize);
            index[i] = 0;
            false
        });
        if next.is_none() {
            return;
        }
    }
}

/// Copies along one axis.
///
/// # Safety
///
/// As for [`copy`].
unsafe fn copy_row<T: Copy>(row: Axis, to: *mut T, from: *const T) {
    if row.to == 1 && row.from == 1 {
        // SAFETY: the row is contiguous on both sides. It is copied as bytes because elements need not be aligned.
        return unsafe { from.cast::<u8>().copy_to(to.cast(), row.size * size_of::<T>()) };
    }
    for i in 0..row.size as isize {
        // SAFETY: one element of each side.
        unsafe { to.offset(i * row.to).write_unaligned(from.offset(i * row.from).read_unaligned()) };
    }
}

/// The axes without those of size one; adjacent axes are merged wherever both sides step through them as through one.
pub(crate) fn merged(shape: &[usize], to: &[isize], from: &[isize]) -> Vec<Axis> {
    let mut axes: Vec<Axis> = Vec::with_capacity(shape.len());
    for ((&size, &to), &from) in shape.iter().zip(to).zip(from) {
        let count = size as isize;
        match axes.last_mut() {
            _ if size == 1 => {}
            Some(outer) if outer.to == to * count && outer.from == from * count => {
                *outer = Axis { size: outer.size * size, to, from };
            }
            _ => axes.push(Axis { size, to, from }),
        }
    }
    axes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_merged() {
        let sizes = |shape: &[usize], to: &[isize], from: &[isize]| {
            merged(shape, to, from).iter().map(|axis| axis.size).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[2, 3, 4], &[12, 4, 1], &[12, 4, 1]), [24]);
        assert_eq!(sizes(&[2, 1, 4], &[4, 9, 1], &[4, 7, 1]), [8]);
        assert_eq!(sizes(&[2, 3], &[3, 1], &[1, 2]), [2, 3]);
        assert_eq!(sizes(&[2, 3], &[3, 1], &[0, 0]), [6]);
        assert_eq!(sizes(&[1, 1], &[1, 1], &[1, 1]), []);
    }

    #[test]
    fn elements_arrive_where_the_strides_say() {
        let from: Vec<u16> = (0..12).collect();
        let mut to = [0u16; 12];
        let source = Side { ptr: from.as_ptr().cast(), strides: &[1, 4] };
        // SAFETY: a 4 x 3 transpose inside both arrays, which are distinct.
        unsafe { copy::<u16>(&[4, 3], Side { ptr: to.as_mut_ptr().cast(), strides: &[3, 1] }, source) };
        assert_eq!(to, [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]);
    }
}
