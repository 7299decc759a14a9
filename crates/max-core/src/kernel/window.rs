//! Pooling.

use std::fmt::{self, Display, Formatter};

use super::print::List;
use super::{Ending, epilogue};
use crate::Result;
use crate::kernel::{Access, Loop, Map, Role, Slot, Walk};
use crate::resample::named;

named! {
    /// What is computed of the elements of a window.
    Pooling ("a kind of pooling") {
        /// Their maximum. Padding is below all of them: a window without elements gives the least number.
        Max = "max",
        /// Their mean, with padding as zeros. What is beyond the padding does not count.
        Mean = "mean",
        /// Their mean without padding; zero where there are none.
        MeanInside = "mean_inside",
    }
}

/// A maximum or mean of windows over height and width, passed to an epilogue over `[batch, height, width, channels]`.
/// Means of integers are truncated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Window<D, M = Slot> {
    /// What is computed.
    pub pooling: Pooling,
    /// Batch, height, width and channels of the result.
    pub out: [D; 4],
    /// Height and width of the input.
    pub input_size: [D; 2],
    /// Height and width of a window.
    pub window: [D; 2],
    /// The distance between neighbouring windows along height and width.
    pub stride: [usize; 2],
    /// The distance between neighbouring elements of a window.
    pub dilation: [usize; 2],
    /// The padding before the first row and after the last one, then the same for columns.
    pub padding: [usize; 4],
    /// Over `[batch, height, width, channels]`, in any memory order.
    pub input: Access<D, M>,
    /// What happens to the result.
    pub epilogue: Loop<D, M>,
}

epilogue!(Window, k => [&k.out]);

impl<D, M> Window<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Window<E, N>> {
        Ok(Window {
            pooling: self.pooling,
            out: to.array(&self.out)?,
            input_size: to.array(&self.input_size)?,
            window: to.array(&self.window)?,
            stride: self.stride,
            dilation: self.dilation,
            padding: self.padding,
            input: to.access(&self.input)?,
            epilogue: to.ending(&self.epilogue)?,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        let Window { out, input_size, .. } = self;
        see(Walk::new(Role::Operand, &self.input, &[&out[..1], input_size, &out[3..]]));
        self.epilogue.walk(see);
    }
}

impl<D: Display> Window<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} ", self.pooling, self.input, List(&self.window))?;
        write!(f, "stride {:?} dilation {:?} padding {:?} ", self.stride, self.dilation, self.padding)?;
        self.epilogue.write(f)
    }
}

/// What a window covers of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first element inside the axis.
    pub first: usize,
    /// The number of elements inside the axis, which are the dilation apart.
    pub len: usize,
    /// How many elements a mean counts along this axis.
    pub count: usize,
}

/// How windows slide along an axis. All numbers are below 2^63, and `size`, `taps` and the padding add up to less.
#[derive(Clone, Copy, Debug)]
pub struct Sliding {
    /// What is computed.
    pub pooling: Pooling,
    /// The length of the axis.
    pub size: usize,
    /// The number of elements of a window.
    pub taps: usize,
    /// The distance between windows.
    pub stride: usize,
    /// The distance between the elements of a window.
    pub dilation: usize,
    /// The padding before and after the axis.
    pub padding: [usize; 2],
}

impl Sliding {
    /// What the window at a position covers.
    pub fn span(&self, position: usize) -> Span {
        let [before, after] = self.padding.map(|padding| padding as i128);
        let (start, size) = (position as i128 * self.stride as i128 - before, self.size as i128);
        // The number of the first tap at or after a place.
        let tap = |place: i128| {
            let ahead = usize::try_from(place - start).unwrap_or(0);
            ahead.div_ceil(self.dilation).min(self.taps)
        };
        let inside = tap(0)..tap(size);
        let counted = match self.pooling {
            Pooling::Mean => tap(-before)..tap(size + after),
            Pooling::Max | Pooling::MeanInside => inside.clone(),
        };
        let first = start + inside.start as i128 * self.dilation as i128;
        Span { first: usize::try_from(first).unwrap_or(0), len: inside.len(), count: counted.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_what_counting_gives() {
        let mut seen = 0;
        for (size, taps, stride, dilation) in (0..5).flat_map(|size| {
            (1..4).flat_map(move |taps| (1..4).flat_map(move |s| (1..4).map(move |d| (size, taps, s, d))))
        }) {
            for (pooling, padding) in
                Pooling::ALL.iter().flat_map(|&p| [[0, 0], [1, 0], [2, 3]].map(move |padding| (p, padding)))
            {
                let sliding = Sliding { pooling, size, taps, stride, dilation, padding };
                for position in 0..4 {
                    let places = (0..taps).map(|tap| position * stride + tap * dilation);
                    let inside: Vec<usize> = places
                        .clone()
                        .filter_map(|at| at.checked_sub(padding[0]))
                        .filter(|&at| at < size)
                        .collect();
                    let padded = places.filter(|&at| at < padding[0] + size + padding[1]).count();
                    let span = sliding.span(position);
                    assert_eq!(span.len, inside.len(), "{sliding:?} at {position}");
                    assert_eq!(span.count, if pooling == Pooling::Mean { padded } else { inside.len() });
                    assert!(inside.first().is_none_or(|&first| first == span.first));
                    seen += 1;
                }
            }
        }
        assert_eq!(seen, 5 * 27 * 9 * 4);
    }
}
