//! Regions of interest, and where they are sampled.

use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::ops::{Add, Div, Mul, Sub};

use super::walk::one;
use super::{Ending, no_ending};
use crate::kernel::{Access, Loop, Map, Role, Slot, Walk};
use crate::{Result, bail};

/// Regions of images, each divided into bins of which samples are combined.
#[derive(Clone, Debug, PartialEq)]
pub struct RoiAlign<D, M = Slot> {
    /// The number of images, their height, width and channels.
    pub images: [D; 4],
    /// The number of regions, and the five numbers of each: the image, then the left, upper, right and lower edge.
    pub regions: [D; 2],
    /// The height and the width of a result.
    pub bins: [D; 2],
    /// How regions are divided and sampled.
    pub sampling: Sampling,
    /// Over `images`.
    pub source: Access<D, M>,
    /// Over `regions`, in the type of coordinates.
    pub rois: Access<D, M>,
    /// Over regions, `bins` and channels.
    pub out: Access<D, M>,
}

/// How regions are divided and sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// What coordinates are multiplied by.
    pub scale: f64,
    /// The samples of a bin along an axis; zero for one for each pixel that it extends over.
    pub samples: usize,
    /// Whether coordinates are moved by half a pixel, so that pixels are centred on theirs. Otherwise a region extends over
    /// at least one pixel.
    pub aligned: bool,
    /// Whether the largest contribution counts, not the mean.
    pub max: bool,
}

impl Hash for Sampling {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.scale.to_bits(), self.samples, self.aligned, self.max).hash(state);
    }
}

no_ending!(RoiAlign);

impl<D, M> RoiAlign<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<RoiAlign<E, N>> {
        let [n, h, w, c] = &self.images;
        let ([m, five], [down, across]) = (&self.regions, &self.bins);
        Ok(RoiAlign {
            images: [to.size(n)?, to.size(h)?, to.size(w)?, to.size(c)?],
            regions: [to.size(m)?, to.size(five)?],
            bins: [to.size(down)?, to.size(across)?],
            sampling: self.sampling,
            source: to.access(&self.source)?,
            rois: to.access(&self.rois)?,
            out: to.access(&self.out)?,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        see(Walk::new(Role::Operand, &self.source, &[&self.images]));
        see(Walk::new(Role::Operand, &self.rois, &[&self.regions]));
        see(Walk::new(Role::Result, &self.out, &[one(&self.regions[0]), &self.bins, one(&self.images[3])]));
    }
}

impl<D: Hash, M: Hash> Hash for RoiAlign<D, M> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.images, &self.regions, &self.bins, &self.sampling).hash(state);
        (&self.source, &self.rois, &self.out).hash(state);
    }
}

impl<D: Display> RoiAlign<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (RoiAlign { source, rois, out, bins: [h, w], .. }, sampling) = (self, &self.sampling);
        write!(
            f,
            "{source} at {rois} into {out} bins [{h}, {w}] scale {} samples {}",
            sampling.scale, sampling.samples
        )?;
        let aligned = if sampling.aligned { " aligned" } else { "" };
        writeln!(f, "{aligned}{}", if sampling.max { " max" } else { "" })
    }
}

/// The type of coordinates: what f32 and f64 have in common.
pub trait Coordinate:
    Copy + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// The nearest one.
    fn new(value: f64) -> Self;
    /// Its value.
    fn value(self) -> f64;
}

impl Coordinate for f32 {
    fn new(value: f64) -> f32 {
        value as f32
    }

    fn value(self) -> f64 {
        self.into()
    }
}

impl Coordinate for f64 {
    fn new(value: f64) -> f64 {
        value
    }

    fn value(self) -> f64 {
        self
    }
}

/// A region of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Region<F> {
    /// The number of the image.
    pub image: usize,
    /// Its extent along height and width.
    pub spans: [Bins<F>; 2],
}

/// The extent of a region along an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bins<F> {
    start: F,
    /// The size of a bin.
    bin: F,
    /// The samples of a bin, a whole number, which may be infinite.
    samples: F,
    size: usize,
}

/// Two neighbouring pixels and their weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<F> {
    /// The pixels.
    pub at: [usize; 2],
    /// Their weights.
    pub weights: [F; 2],
}

impl<F: Coordinate> Region<F> {
    /// A region as five numbers in a batch of images `[images, height, width]`, divided into bins.
    pub fn new(
        numbers: [F; 5],
        images: [usize; 3],
        bins: [usize; 2],
        sampling: &Sampling,
    ) -> Result<Region<F>> {
        let [image, left, upper, right, lower] = numbers;
        let [count, height, width] = images;
        let number = image.value().trunc();
        // Written so that NaN is out of range too.
        if !(number >= 0.0 && number < count as f64) {
            bail!(
                index,
                "index {} is out of range for axis 0 with size {count}: the image of a region",
                image.value()
            );
        }
        let span = |from: F, to: F, bins: usize, size: usize| {
            let (scale, shift) = (F::new(sampling.scale), F::new(if sampling.aligned { 0.5 } else { 0.0 }));
            let (start, end) = (from * scale - shift, to * scale - shift);
            let (extent, one) = (end - start, F::new(1.0));
            let extent = if sampling.aligned || extent > one { extent } else { one };
            let bin = extent / F::new(bins as f64);
            let samples = match sampling.samples {
                0 => F::new(bin.value().ceil().max(0.0)),
                samples => F::new(samples as f64),
            };
            Bins { start, bin, samples, size }
        };
        Ok(Region {
            image: number as usize,
            spans: [span(upper, lower, bins[0], height), span(left, right, bins[1], width)],
        })
    }

    /// What the sum of all samples of a bin is divided by.
    pub fn count(&self) -> F {
        let count = self.spans[0].samples * self.spans[1].samples;
        if count > F::new(1.0) { count } else { F::new(1.0) }
    }
}

impl<F: Coordinate> Bins<F> {
    /// The samples of a bin that are inside the image or at most a pixel away from it; others contribute zero. Returns
    /// whether there are such others.
    ///
    /// However large the region is, only as many samples are visited as there is room for in the image.
    pub fn samples(&self, bin: usize, samples: &mut Vec<Sample<F>>) -> bool {
        let Bins { start, bin: extent, samples: count, size } = *self;
        samples.clear();
        let first = start + F::new(bin as f64) * extent;
        let place = |sample: i64| first + (F::new(sample as f64) + F::new(0.5)) * extent / count;
        let (mut from, mut to) = (0, count.value() as i64);
        let most = 2 * size as i64 + 8;
        // A bin with as many samples has them at least half a pixel apart, from its start to its end.
        if to > most.max(4096) {
            let step = (extent / count).value();
            let before = ((-1.0 - first.value()) / step).floor() as i64;
            from = before.saturating_sub(2).clamp(0, to);
            to = to.min(from.saturating_add(most));
        }
        for sample in from..to {
            let y = place(sample).value();
            // Written so that NaN is outside.
            if size == 0 || !(y >= -1.0 && y <= size as f64) {
                continue;
            }
            let y = y.max(0.0);
            let low = y.floor().min((size - 1) as f64);
            let part = F::new(y) - F::new(low);
            let low = low as usize;
            samples.push(Sample { at: [low, (low + 1).min(size - 1)], weights: [F::new(1.0) - part, part] });
        }
        (samples.len() as f64) < count.value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Sampling = Sampling { scale: 1.0, samples: 0, aligned: false, max: false };

    fn samples(numbers: [f32; 5], sampling: &Sampling) -> (Vec<Sample<f32>>, bool) {
        let region = Region::new(numbers, [1, 6, 7], [1, 1], sampling).unwrap();
        let mut samples = Vec::new();
        let outside = region.spans[0].samples(0, &mut samples);
        (samples, outside)
    }

    #[test]
    fn a_region_is_sampled_once_per_pixel() {
        let (inside, outside) = samples([0.0, 0.0, 1.0, 0.0, 3.0], &PLAIN);
        assert_eq!(inside.len(), 2);
        assert_eq!(inside[0], Sample { at: [1, 2], weights: [0.5, 0.5] });
        assert!(!outside);
    }

    #[test]
    fn regions_of_any_size_end() {
        let infinite = f32::INFINITY;
        for (upper, lower) in [
            (-1e30, 1e30),
            (-1e12, 1e12),
            (-3e6, 4e6),
            (-infinite, infinite),
            (f32::NAN, 3.0),
            (0.0, f32::NAN),
        ] {
            for aligned in [false, true] {
                let (inside, _) = samples([0.0, 0.0, upper, 0.0, lower], &Sampling { aligned, ..PLAIN });
                assert!(inside.len() <= 20, "{upper} {lower}: {}", inside.len());
            }
        }
        // All samples inside of the image are found.
        let (inside, outside) = samples([0.0, 0.0, -9000.0, 0.0, 9000.0], &PLAIN);
        assert_eq!((inside.len(), outside), (7, true));
    }

    #[test]
    fn an_image_that_does_not_exist_is_an_error() {
        for image in [-1.0, 1.0, f32::NAN, f32::INFINITY] {
            assert!(Region::new([image, 0.0, 0.0, 1.0, 1.0], [1, 6, 7], [1, 1], &PLAIN).is_err());
        }
    }
}
