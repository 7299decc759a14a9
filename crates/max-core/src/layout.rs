//! How the axes of convolution inputs and filters are named, and how strides lay elements out in memory.

use crate::{Error, Result, bail};

macro_rules! axis_orders {
    ($($(#[$doc:meta])* $name:ident { $($variant:ident),* })*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "each variant is named by its axes")]
        pub enum $name { $($variant),* }

        impl $name {
            /// Every variant.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// The axes in order.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => stringify!($variant)),* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<$name> {
                $name::ALL.iter().copied().find(|l| l.name() == text).ok_or_else(|| {
                    let known: Vec<_> = $name::ALL.iter().map(|l| l.name()).collect();
                    Error::value(format!("'{text}' is not a {}; expected one of {}", stringify!($name), known.join(", ")))
                })
            }
        })*
    };
}

axis_orders! {
    /// The axes of a convolution's input: batch, channels, height, width.
    ConvInputLayout { NHWC, NCHW }
    /// The axes of a filter: F output channels, C input channels, Q depth, R height, S width.
    FilterLayout { RSCF, QRSCF, FCRS, FCQRS, CFRS }
}

/// Where the elements of a strided array are in memory: sizes, strides and an offset, all counted in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strided {
    /// The size of each axis.
    pub shape: Vec<usize>,
    /// The distance between neighbours along each axis; may be zero or negative.
    pub strides: Vec<isize>,
    /// The position of the element with all indices zero.
    pub offset: usize,
}

/// One position of an index expression over a strided array, as in NumPy's basic indexing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewIndex {
    /// Picks one element of an axis and drops the axis; negative counts from the end.
    At(i64),
    /// Keeps part of an axis; bounds are clamped as Python does.
    Slice {
        /// Where to start; by default the end of the axis that the step comes from.
        start: Option<i64>,
        /// Where to stop (exclusive); by default the other end.
        stop: Option<i64>,
        /// The step; not zero.
        step: i64,
    },
    /// Inserts an axis of size one.
    NewAxis,
    /// Stands for as many full slices as there are axes without an index; at most one.
    Ellipsis,
}

impl ViewIndex {
    /// The slice that keeps all of an axis.
    pub const ALL: ViewIndex = ViewIndex::Slice { start: None, stop: None, step: 1 };
}

impl Strided {
    /// The row-major layout without gaps.
    pub fn contiguous(shape: &[usize]) -> Strided {
        let mut strides = vec![0; shape.len()];
        let mut step = 1isize;
        for (stride, &size) in strides.iter_mut().zip(shape).rev() {
            *stride = step;
            step = step.saturating_mul(size.max(1) as isize);
        }
        Strided { shape: shape.to_vec(), strides, offset: 0 }
    }

    /// The number of elements; one for rank zero.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the elements are row-major without gaps, wherever they start.
    pub fn is_contiguous(&self) -> bool {
        let mut step = 1isize;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if size == 0 {
                return true;
            }
            if size != 1 {
                if stride != step {
                    return false;
                }
                step *= size as isize;
            }
        }
        true
    }

    /// The lowest and the highest position of an element, or `None` if there are no elements.
    pub fn span(&self) -> Option<(usize, usize)> {
        if self.shape.contains(&0) {
            return None;
        }
        let (mut low, mut high) = (self.offset as isize, self.offset as isize);
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            let reach = (size as isize - 1) * stride;
            *(if reach < 0 { &mut low } else { &mut high }) += reach;
        }
        Some((low as usize, high as usize))
    }

    /// The positions of all elements in row-major order.
    pub fn positions(&self) -> Positions<'_> {
        Positions {
            layout: self,
            index: vec![0; self.shape.len()],
            position: self.offset as isize,
            left: self.num_elements(),
        }
    }

    /// The view that an index expression selects.
    pub fn index(&self, indices: &[ViewIndex]) -> Result<Strided> {
        let rank = self.shape.len();
        let consumed =
            indices.iter().filter(|i| matches!(i, ViewIndex::At(_) | ViewIndex::Slice { .. })).count();
        if consumed > rank {
            bail!(value, "too many indices: {consumed} given for an array of rank {rank}");
        }
        let ellipses = indices.iter().filter(|i| matches!(i, ViewIndex::Ellipsis)).count();
        if ellipses > 1 {
            bail!(index, "an index can only have a single ellipsis ('...')");
        }
        let missing = [ViewIndex::ALL].repeat(rank - consumed);
        let full = indices.iter().flat_map(|i| match i {
            ViewIndex::Ellipsis => missing.as_slice(),
            other => std::slice::from_ref(other),
        });
        let tail = if ellipses == 0 { missing.as_slice() } else { &[] };

        let mut view = Strided { shape: Vec::new(), strides: Vec::new(), offset: self.offset };
        let mut axis = 0;
        for index in full.chain(tail) {
            if *index == ViewIndex::NewAxis {
                view.shape.push(1);
                view.strides.push(0);
                continue;
            }
            let (size, stride) = (self.shape[axis], self.strides[axis]);
            let start = match *index {
                ViewIndex::At(at) => {
                    let start = if at < 0 { at + size as i64 } else { at };
                    if start < 0 || start >= size as i64 {
                        bail!(index, "index {at} is out of range for axis {axis} with size {size}");
                    }
                    start
                }
                ViewIndex::Slice { start, stop, step } => {
                    let (start, len) = slice_range(size, start, stop, step)?;
                    view.shape.push(len);
                    view.strides.push(if len > 1 { stride * step as isize } else { stride });
                    if len == 0 { 0 } else { start }
                }
                ViewIndex::NewAxis | ViewIndex::Ellipsis => 0,
            };
            view.offset = (view.offset as isize + start as isize * stride) as usize;
            axis += 1;
        }
        Ok(view)
    }
}

/// Resolves Python slice bounds against an axis: the first position and the number of positions.
fn slice_range(size: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Result<(i64, usize)> {
    if step == 0 {
        bail!(value, "slice step cannot be zero");
    }
    let size = size as i64;
    let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
    let resolve = |bound: Option<i64>, natural: i64| match bound {
        None => natural,
        Some(b) if b < 0 => b.saturating_add(size).clamp(low, high),
        Some(b) => b.clamp(low, high),
    };
    let (start, stop) = if step > 0 {
        (resolve(start, low), resolve(stop, high))
    } else {
        (resolve(start, high), resolve(stop, low))
    };
    let distance = if step > 0 { stop - start } else { start - stop };
    let len = if distance <= 0 { 0 } else { (distance as u64 - 1) / step.unsigned_abs() + 1 };
    Ok((start, len as usize))
}

/// Iterator over element positions in row-major order.
pub struct Positions<'a> {
    layout: &'a Strided,
    index: Vec<usize>,
    position: isize,
    left: usize,
}

impl Iterator for Positions<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let current = self.position as usize;
        for axis in (0..self.index.len()).rev() {
            let stride = self.layout.strides[axis];
            self.index[axis] += 1;
            self.position += stride;
            if self.index[axis] < self.layout.shape[axis] {
                break;
            }
            self.position -= stride * self.index[axis] as isize;
            self.index[axis] = 0;
        }
        Some(current)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Positions<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(start: Option<i64>, stop: Option<i64>, step: i64) -> ViewIndex {
        ViewIndex::Slice { start, stop, step }
    }

    #[test]
    fn index_expressions_select_as_in_numpy() {
        let a = Strided::contiguous(&[3, 4]);
        let positions = |i: &[ViewIndex]| a.index(i).unwrap().positions().collect::<Vec<_>>();
        assert_eq!(positions(&[ViewIndex::At(-1)]), [8, 9, 10, 11]);
        assert_eq!(positions(&[ViewIndex::Ellipsis, ViewIndex::At(1)]), [1, 5, 9]);
        assert_eq!(positions(&[slice(None, None, -2), slice(Some(1), Some(-1), 1)]), [9, 10, 1, 2]);
        assert_eq!(positions(&[slice(Some(5), None, 1)]), [] as [usize; 0]);
        let v = a.index(&[ViewIndex::NewAxis, ViewIndex::At(2), ViewIndex::NewAxis]).unwrap();
        assert_eq!((v.shape, v.offset), (vec![1, 1, 4], 8));
        assert!(a.index(&[ViewIndex::At(3)]).is_err());
        assert!(a.index(&[ViewIndex::At(0); 3]).is_err());
        assert!(a.index(&[slice(None, None, 0)]).is_err());
        assert!(a.index(&[ViewIndex::Ellipsis; 2]).is_err());
    }

    #[test]
    fn contiguity_and_span() {
        let a = Strided::contiguous(&[3, 4]);
        assert!(a.is_contiguous());
        assert_eq!(a.span(), Some((0, 11)));
        let reversed = a.index(&[slice(None, None, -1)]).unwrap();
        assert!(!reversed.is_contiguous());
        assert_eq!(reversed.span(), Some((0, 11)));
        assert!(a.index(&[slice(Some(1), Some(2), 1)]).unwrap().is_contiguous());
        assert_eq!(Strided::contiguous(&[0, 4]).span(), None);
        assert_eq!(Strided::contiguous(&[]).positions().collect::<Vec<_>>(), [0]);
    }
}
